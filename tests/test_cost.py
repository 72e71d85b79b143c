import json
import re
import time
from pathlib import Path

import pytest
import yaml

from agentkit.cli import main
from agentkit.preflight.forecasting import forecast as preflight_forecast
from agentkit.recipe import Recipe, RecipeError
from agentkit.records import Task
from agentkit.runs import Run, RunError, append_jsonl, cost, read_jsonl, write_bytes, write_jsonl, write_tasks
from agentkit.runs.cost import (
    PHASES,
    Rates,
    actual,
    against_table,
    counts,
    duration,
    forecast,
    hours,
    measured_rates,
    read_prices,
)

PRICES = Path(__file__).resolve().parents[1] / "params" / "prices.yaml"
RATES = Rates(rollout=2.0, evaluation=3.0, update=0.5, demonstration=0.25, other=100.0, source="test")
# 100 tasks: 70 train, 15 validation, 15 test; 4 rollouts a step
SMALL = {
    "n_tasks": 100,
    "steps": 10,
    "prompts_per_step": 2,
    "group_size": 2,
    "micro_batch": 2,
    "val_every": 4,
    "val_tasks": 60,
}
SMALL |= {"test_samples": 4, "sft": True, "sft_transcripts": 2, "sft_epochs": 3}


def test_counts_by_hand():
    assert counts(Recipe.from_mapping(SMALL)) == {
        "demonstrations": 70 * 2 * 3,
        "baseline": 15 * 4,
        "rollouts": 40,
        "updates": 40,
        "validation": 4 * 15,  # before step 1, after 4, 8 and 10; no more validation tasks than there are
        "final": 15 * 4,
        "control rollouts": 0,
        "control updates": 0,
    }
    more = counts(Recipe.from_mapping(SMALL | {"controls": "sft_more,rft"}))
    assert (more["rollouts"], more["updates"], more["final"]) == (40, 40, 3 * 15 * 4)
    assert (more["control rollouts"], more["control updates"]) == (
        40,
        40 + 70 * 2,
    )  # sft_more samples nothing


def test_forecast_by_hand():
    seconds = forecast(Recipe.from_mapping(SMALL), RATES)
    assert list(seconds) == list(PHASES)
    assert list(seconds.values()) == [420 * 0.25 + 60 * 3, 80, 20, 180, 180, 100]


def test_the_tables_of_the_document():
    """500 tasks, 8 rollouts, 5 epochs at the document's rates: 42 GPU-hours of rollouts, 3 of updates; $0.74
    to $1.64 an hour.
    """
    prices = read_prices(PRICES)
    recipe = {
        "n_tasks": 714,
        "steps": 2500,
        "prompts_per_step": 1,
        "group_size": 8,
        "val_every": 500,
        "model": "some-3b",
    }
    seconds = forecast(Recipe.from_mapping(recipe), prices.rates_of(Recipe(model="some-3b")))
    assert counts(Recipe.from_mapping(recipe))["rollouts"] == 500 * 8 * 5
    table = cost.phase_table(seconds, 4).set_index("Phase")
    assert (
        table.loc["Rollout generation", "GPU-hours"] == "42"
        and table.loc["Rollout generation", "Wall clock (4 GPUs)"] == "10.4 h"
    )
    assert (
        table.loc["GRPO training updates", "GPU-hours"] == "3.0"
        and table.loc["GRPO training updates", "Wall clock (4 GPUs)"] == "45.0 min"
    )
    money = cost.money_table({PHASES[1]: 55 * 3600.0}, prices).set_index("Provider")["Run"]
    assert list(money) == ["$40.70", "$60.50", "$90.20", "$0.00"]


def small_run(path, steps=10, done=("01_tasks", "02_baseline", "03_grpo", "05_compare")):
    """A run that kept exactly to RATES on one device."""
    run = Run.create(path)
    seconds = {"01_tasks": 40.0, "02_baseline": 285.0, "03_grpo": 60.0 + 46 * steps, "05_compare": 180.0}
    run.update(recipe=SMALL, stages={name: {"status": "done", "seconds": seconds[name]} for name in done})
    append_jsonl(run.file("train", "metrics.jsonl"), {"step": 0, "val_seconds": 45.0})
    for step in range(1, steps + 1):
        row = {"step": step, "rollout_seconds": 8.0, "update_seconds": 2.0}
        append_jsonl(
            run.file("train", "metrics.jsonl"), row | ({"val_seconds": 45.0} if step in (4, 8, 10) else {})
        )
    return run


def test_rollouts_in_place_of_dead_groups_are_counted(tmp_path):
    run, sampled = small_run(tmp_path / "a", steps=0), {"rollout_seconds": 8.0}
    for step, row in enumerate((sampled | {"extra_rollouts": 8}, {}, sampled), 1):
        append_jsonl(run.file("train", "metrics.jsonl"), {"step": step} | row)
    recipe = Recipe(prompts_per_step=2, group_size=4)
    assert list(cost.sampled(run.metrics, recipe)) == [0, 16, 0, 8]


def test_rates_are_measured_back(tmp_path):
    run = small_run(tmp_path / "a")
    assert actual(run) == dict(zip(PHASES, [285.0, 80.0, 20.0, 360.0, 180.0, 100.0], strict=True))
    rates = measured_rates(run)
    assert (rates.rollout, rates.evaluation, rates.update, rates.demonstration, rates.other) == (
        2.0,
        3.0,
        0.5,
        0.25,
        100.0,
    )
    assert "measured on a, 10 steps" in rates.source
    assert forecast(Recipe.of(run), rates) == actual(run)
    run.update(recipe={"processes": 2})
    assert measured_rates(run).rollout == 4.0 and actual(run)[PHASES[1]] == 160.0


def test_a_control_is_forecast_with_its_training_and_told_apart_in_what_a_run_took(tmp_path):
    run = small_run(tmp_path / "a")
    run.update(recipe={"controls": "rft"})
    seconds = forecast(Recipe.of(run), RATES)
    assert seconds[PHASES[4]] == 2 * 180 + 80 + 20
    five = run.manifest["stages"]["05_compare"]
    took = {"seconds": five["seconds"] + 280.0, "controls": {"rft": {"seconds": 280.0}}}
    run.update(stages={"05_compare": five | took})
    assert measured_rates(run).evaluation == pytest.approx(3.0)


def test_a_notebook_that_failed_has_measured_nothing(tmp_path):
    run = small_run(tmp_path / "a")
    last = run.manifest["stages"]["05_compare"]
    run.update(stages={"05_compare": last | {"status": "failed", "seconds": 2.0}})
    assert PHASES[4] not in actual(run) and measured_rates(run).evaluation > 1


def test_a_policy_took_the_notebooks_that_made_it(tmp_path):
    run = small_run(tmp_path / "a")
    took = [cost.made_in(run, policy) for policy in ("base", "sft", "grpo", "sft_more")]
    assert took == [0.0, 285.0, 285.0 + 520.0, 285.0 + 180.0]
    last = run.manifest["stages"]["05_compare"] | {"controls": {"sft_more": {"seconds": 80.0}}, "devices": 2}
    run.update(stages={"05_compare": last})
    assert cost.made_in(run, "sft_more") == 285.0 + 160.0
    run.update(stages={"03_grpo": run.manifest["stages"]["03_grpo"] | {"seconds": 5.0}})  # resumed at its end
    trained = sum(actual(run)[phase] for phase in PHASES[1:4])
    assert cost.made_in(run, "grpo") == 285.0 + trained > 400


def test_rates_where_a_batch_of_rollouts_is_trained_on_in_two_steps(tmp_path):
    """Every second step samples four trajectories."""
    run = small_run(tmp_path / "a")
    path = run.file("train", "metrics.jsonl")
    rows = [
        row if row["step"] % 2 else {k: v for k, v in row.items() if k != "rollout_seconds"}
        for row in read_jsonl(path)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.update(recipe={"minibatches": 2, "micro_batch": 2})
    rates = measured_rates(run)
    assert rates.rollout == 5 * 8.0 / (5 * 4) and rates.update == 10 * 2.0 / (5 * 4)
    forecasted = forecast(Recipe.of(run), rates)
    assert (forecasted[PHASES[1]], forecasted[PHASES[2]]) == (40.0, 20.0)


def test_a_resumed_step_counts_once_and_a_torn_line_not_at_all(tmp_path):
    run = small_run(tmp_path / "a")
    append_jsonl(
        run.file("train", "metrics.jsonl"),
        {"step": 10, "rollout_seconds": 8.0, "update_seconds": 2.0, "val_seconds": 45.0},
    )
    assert actual(run)[PHASES[1]] == 80.0 and measured_rates(run).rollout == 2.0


def test_calls_that_are_repeated_make_trajectories_longer():
    prices = read_prices(PRICES)
    plain, failing = (prices.rates_of(Recipe(model="nano", tool_failures=share)) for share in (0.0, 0.5))
    assert (failing.rollout, failing.evaluation, failing.update) == (
        2 * plain.rollout, 2 * plain.evaluation, 2 * plain.update)  # fmt: skip
    assert (failing.demonstration, failing.other) == (plain.demonstration, plain.other)


def test_epochs_are_forecast_as_the_steps_that_were_made(tmp_path):
    prices = read_prices(PRICES)
    tables = []
    for changes in ({}, {"epochs": 3}):
        run = small_run(tmp_path / f"a{len(changes)}", steps=4, done=("01_tasks", "02_baseline"))
        run.update(recipe=changes)
        tables.append(against_table(run, prices).set_index("Phase").loc["Rollout generation", "Predicted"])
    assert tables[0] == tables[1]


def test_half_a_run_is_compared_as_far_as_it_went(tmp_path):
    prices = read_prices(PRICES)
    run = small_run(tmp_path / "a", steps=4, done=("01_tasks", "02_baseline"))
    table = against_table(run, prices).set_index("Phase")
    assert (
        table.loc["Final evaluation", "Actual"] == "–" and table.loc["Rollout generation", "Actual"] == "32 s"
    )
    assert table.loc["Rollout generation", "Predicted"] == duration(16 * prices.rates_of(Recipe()).rollout)
    assert measured_rates(run).evaluation == 3.0  # from the validations
    tests = [Task(f"t{i}", "?", "1", split="test") for i in range(300)]  # new templates among them
    write_tasks(run.file("tasks.jsonl"), tests)
    known = forecast(Recipe.of(run), prices.rates_of(Recipe.of(run)), 300)["Final evaluation"]
    again = against_table(Run(run.path), prices).set_index("Phase")
    assert again.loc["Final evaluation", "Predicted"] == duration(known)
    recipe = Recipe.of(run)
    assert cost.tests_of(run, recipe) == 300
    assert cost.tests_of(run, recipe.but(n_tasks=20_000)) == 0, "that builds another suite"
    with pytest.raises(RunError, match="no finished training step"):
        measured_rates(Run.create(tmp_path / "b"))
    assert actual(Run.create(tmp_path / "b")) == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rates": {"nano": {}}}, "rates .*default"),
        ({"rates": {"default": {}}}, "rates.default .*rollout"),
        ({"rates": {}}, "rates .*default"),
        ({"rates": 3}, "no price file"),
        ({"extra": 3}, "extra"),
    ],
)
def test_wrong_prices_are_named(tmp_path, change, says):
    path = tmp_path / "prices.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(PRICES.read_text()) | change))
    with pytest.raises(RecipeError, match=says):
        read_prices(path)


@pytest.mark.parametrize("content", [b"", b"[", b"- 3", b"\xff\xfe\x00", b"3"])
def test_unreadable_prices_are_named(tmp_path, content):
    with pytest.raises(RecipeError, match="prices.yaml"):
        read_prices(write_bytes(tmp_path / "prices.yaml", content))
    with pytest.raises(RecipeError, match=r"nope.yaml does not exist"):
        read_prices(tmp_path / "nope.yaml")


def test_the_command(tmp_path, capsys):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(yaml.safe_dump(SMALL | {"model": "nano"}))
    run = small_run(tmp_path / "a")
    assert main(["cost", str(recipe), "--prices", str(PRICES), "--gpus", "2"]) == 0
    alone = capsys.readouterr().out
    assert "Wall clock (2 GPUs)" in alone and "RunPod spot" in alone and "two CPU cores" in alone
    assert main(["cost", str(recipe), "--prices", str(PRICES), "--run", str(run.path), "-p", "steps=20"]) == 0
    after = capsys.readouterr().out
    assert "Actual / predicted" in after and "measured on a, 10 steps" in after
    for name, n in {"rows.jsonl": 10 * SMALL["n_tasks"], "gsm8k:rows.jsonl": SMALL["n_tasks"]}.items():
        (tmp_path / "rows.jsonl").write_text('{"prompt": "x", "answer": "1"}\n' * 10 * SMALL["n_tasks"])
        recipe.write_text(yaml.safe_dump(SMALL | {"model": "nano", "tasks": name}))
        assert main(["cost", str(recipe), "--prices", str(PRICES), "--json"]) == 0
        seconds = json.loads(capsys.readouterr().out)["device_seconds"]
        more = forecast(Recipe.from_mapping(SMALL | {"model": "nano", "n_tasks": n}),
                        read_prices(PRICES).rates_of(Recipe(model="nano")))  # fmt: skip
        assert seconds == pytest.approx(more), "n_tasks is a limit of a public data set's rows only"
    assert main(["cost", str(recipe), "--prices", str(tmp_path / "nope.yaml")]) == 2
    assert "does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["cost", str(recipe), "--gpus", "0"])


def test_on_a_cpu_there_are_no_gpu_hours_and_no_money(tmp_path, capsys):
    recipe, run = tmp_path / "r.yaml", small_run(tmp_path / "a")
    run.update(recipe={"model": "nano"})

    def said(model, *more):
        recipe.write_text(yaml.safe_dump(SMALL | {"model": model}))
        assert main(["cost", str(recipe), "--prices", str(PRICES), *more]) == 0
        return capsys.readouterr().out

    for told in (said("nano"), said("nano", "--run", str(run.path)), said("some-3b", "--run", str(run.path))):
        assert "GPU" not in told and "$" not in told and "On one CPU" in told and "Run total" in told
    assert "GPU-hours" in said("some-3b") and "Wall clock (4 GPUs)" in said("some-3b")
    assert json.loads(said("nano", "--json"))["money"] == {}
    assert json.loads(said("some-3b", "--json"))["money"]["Lambda Labs"] > 0
    run.update(recipe={"model": "some-3b"})
    assert "GPU-hours" in said("some-3b", "--run", str(run.path))
    run.update(versions={"torch": "2.13.0+cpu"})
    assert "GPU" not in said("some-3b", "--run", str(run.path))


def test_numbers_as_text():
    assert [hours(v) for v in (351.2, 42, 19.96, 2.5, 0.083, 0, 1234.6)] == [
        "351",
        "42",
        "20.0",
        "2.5",
        "0.083",
        "0",
        "1,235",
    ]
    assert [duration(v) for v in (0, 45, 119, 150, 7199, 37800)] == [
        "0 s",
        "45 s",
        "119 s",
        "2.5 min",
        "120.0 min",
        "10.5 h",
    ]


@pytest.mark.parametrize(
    "change",
    [
        ("1.64", "'much'"),
        ("rollout: ", "rollout: x"),
        ("providers:", "providers: 3 #"),
        ("rates:", "rates: [1] #"),
    ],
)
def test_prices_of_a_wrong_kind_are_one_sentence(tmp_path, change):
    path = tmp_path / "prices.yaml"
    path.write_text(PRICES.read_text().replace(*change))
    with pytest.raises(RecipeError, match="prices.yaml is (no price file|not valid YAML)"):
        read_prices(path)


def test_prices_may_name_no_provider_and_are_found_from_inside_the_project(tmp_path, monkeypatch):
    for name in ("notebooks", "params"):
        (tmp_path / name).mkdir()
    text = PRICES.read_text()
    own = re.sub(r"(?ms)^providers:.*?(?=^\S)", "providers: {}\n", text)
    for name in ("mine.yaml", "prices.yaml"):
        (tmp_path / "params" / name).write_text(own)
    monkeypatch.chdir(tmp_path / "notebooks")
    assert read_prices("params/mine.yaml").providers == {}
    finding = preflight_forecast(Recipe(model="nano"), 0.05, 0.01, device="GPU").finding
    assert "GPU-hours, " in finding and "$" not in finding


def test_prices_are_found_from_anywhere_beside_the_recipe_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan = PRICES.parent / "plan-3b.yaml"
    assert main(["cost", str(plan)]) == 0 and "RunPod spot" in capsys.readouterr().out
    assert read_prices() == read_prices(PRICES), "agentkit's own"
    (tmp_path / "theirs").mkdir()
    own = re.sub(r"(?ms)^providers:.*?(?=^\S)", "providers: {Here: 9.0}\n", PRICES.read_text())
    (tmp_path / "theirs" / "prices.yaml").write_text(own)
    assert read_prices(near=tmp_path / "theirs" / "mine.yaml").providers == {"Here": 9.0}
    assert "RunPod spot" in read_prices(near=tmp_path / "mine.yaml").providers


DOUBLED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 41))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 41))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DOUBLED, "its aliases .* stand for more than 100,000 values"),
        (MERGED, "its aliases .* stand for more than 100,000 values"),
        ("a: &a {x: *a}", "stand for .* themselves"),
        ("a: &a {x: 1}\nb: {y: *a, z: *a}\nc: {x: 1, x: 2}", "line 3 sets 'x' again"),
        ("currency: !!bool foo", "not valid YAML: a value is not of the kind that its tag"),
        ("", "yaml: it is no mapping of keys to values$"),
        ("- 1", "yaml: it is no mapping of keys to values$"),
        ("? [a, b]\n: 1", "line 1 has a key that is no word"),
    ],
)
def test_prices_that_no_yaml_file_should_hold(tmp_path, text, says):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    begun = time.monotonic()
    with pytest.raises(RecipeError, match=says):
        read_prices(path)
    assert time.monotonic() - begun < 10


def test_a_file_that_is_no_yaml_is_told_without_the_name_of_a_class(tmp_path):
    (tmp_path / "README.md").write_text("# Prices\n`agentkit cost`\n")
    with pytest.raises(RecipeError, match=r"README.md is not valid YAML: while scanning") as error:
        read_prices(tmp_path / "README.md")
    assert "Error" not in str(error.value)


def test_rates_of_a_given_suite_count_its_own_test(tmp_path):
    """A given tasks.jsonl has another test than 15 % of n_tasks: here 44 samples took 180 seconds, not 60."""
    run = small_run(tmp_path / "a")
    samples = Recipe.of(run).test_samples
    tasks = [Task(str(i), f"How many {i}?", "3", split="test") for i in range(45 // samples)]
    write_tasks(run.file("tasks.jsonl"), tasks)
    assert measured_rates(run).evaluation == pytest.approx(180 / (len(tasks) * samples))


def test_a_given_suite_is_counted_as_its_file_splits_it(tmp_path):
    def recipe(*splits: tuple[str, int]) -> Recipe:
        rows = [{"prompt": f"{s} {i}", "answer": "1", "split": s} for s, n in splits for i in range(n)]
        path = write_jsonl(tmp_path / f"{len(rows)}.jsonl", rows)
        return Recipe.from_mapping(SMALL | {"tasks": str(path), "epochs": 3, "val_tasks": 999})

    found = counts(recipe(("train", 100), ("validation", 50), ("test", 250)))
    assert (found["demonstrations"], found["final"], found["rollouts"]) == (100 * 6, 250 * 4, 10 * 4)
    found = counts(recipe(("train", 10), ("test", 250)))  # a fifth of the training tasks validates
    assert (found["demonstrations"], found["validation"]) == (8 * 6, 4 * 2 * 2)
    found = counts(recipe(("test", 200)))
    assert (found["demonstrations"], found["final"]) == (140 * 6, 30 * 4)
