"""What a sweep's statistics, table, figures and card say of finished cells."""

from __future__ import annotations

import html
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from simulated_sweeps import levels, power
from test_evaluation import trajectory

from agentkit.evaluation.summary import summarize
from agentkit.evaluation.sweeps import (
    LEVELS,
    Ablation,
    Spread,
    against_one,
    errors,
    measured_spread,
    smallest,
)
from agentkit.records import RunError, Task, ToolResult, Turn
from agentkit.runs import Run, write_json, write_trajectories
from agentkit.runs.sweep import Driver, Sweep, read_design
from agentkit.runs.trajectory_files import write_tasks
from agentkit.views import plots
from agentkit.views.sweep_card import cells, write_sweep_report

ROOT = Path(__file__).resolve().parents[1]
GOOD = {
    "recipe": "params/nano-ablation.yaml",
    "question": "Why?",
    "seeds": [1, 2],
    "arms": {"default": {}, "free": {"beta": 0.0}},
}


def write(folder: Path, **changes) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in (GOOD | changes).items() if value is not None})
    )
    return path


# ---- finished cells, with trajectories made up
def finished(folder: Path, success: dict[str, np.ndarray], policy: str = "sft", **changes) -> Ablation:
    """A sweep of the arms default, free, ..., whose cells (S, N) came out like that; NaN is not scored."""
    folder.mkdir(exist_ok=True)
    difficulties = changes.pop("difficulties", ["easy"])
    seeds = changes.pop("seeds", [*range(1, 1 + max(map(len, success.values())))])
    arms = {"default": {"policy": "sft"}, "free": {"sft_epochs": 2, "policy": policy}}
    own = [name for name in success if name not in arms]
    arms |= {name: {"sft_epochs": 3 + i, "policy": policy} for i, name in enumerate(own)}
    sweep = Sweep(folder / "out")
    sweep.folder.mkdir()
    Driver(read_design(write(folder, arms=arms, seeds=seeds, **changes)), sweep, None, print)._write()
    for cell in sweep.state["cells"]:
        own = success[cell["arm"]]
        if cell["seed"] > len(own):
            continue
        row = own[cell["seed"] - 1]
        run, name = Run.create(sweep.folder / cell["run"]), sweep.state["arms"][cell["arm"]]["policy"]
        hard = [difficulties[i % len(difficulties)] for i in range(len(row))]
        tasks = [Task(f"t{i}", "?", "1", "numeric", "A", d, "test") for i, d in enumerate(hard)]
        write_tasks(run.file("tasks.jsonl"), tasks)
        outcomes = [None if np.isnan(value) else float(value) for value in row]
        run.file("eval").mkdir()
        write_trajectories(
            run.file("eval", f"{name}.parquet"),
            [trajectory(f"t{i}", v, policy=name) for i, v in enumerate(outcomes)],
        )
        cell["status"] = "done"
    write_json(sweep.file("sweep.json"), sweep.state)
    return Ablation(Sweep(sweep.folder))


def outcomes(seeds: int, share: float, tasks: int = 60) -> np.ndarray:
    return (np.random.default_rng(seeds).random((seeds, tasks)) < share).astype(float)


@pytest.mark.parametrize(("seeds", "said"), [(1, "one seed, no verdict"), (2, "2 seeds, no verdict")])
def test_fewer_than_three_seeds_give_intervals_and_no_verdict(tmp_path, seeds, said):
    ablation = finished(tmp_path, {"default": outcomes(seeds, 0.1), "free": outcomes(seeds, 0.95)})
    (test,) = ablation.to_json()["paired"]
    assert test["verdict"] == said and test["p"] is test["p_holm"] is test["could_show"] is None
    assert test["ci95"][0] < test["diff"] < test["ci95"][1] and test["diff"] > 0.5
    answer = ablation.answer()
    assert "no verdict: free (+" in answer and "A verdict needs 3 seeds that every arm has" in answer
    assert "better" not in answer and ablation.table().loc["free", "p, Dunnett"] == "–"


def test_the_conclusion_says_what_easy_tasks_give_on_hard_ones_and_the_sweet_spot(tmp_path):
    own = {"default": np.tile([1.0, 0.0, 0.0, 1.0], (3, 1)), "free": np.ones((3, 4))}
    ablation = finished(tmp_path, own, difficulties=["easy", "hard"])
    assert "hard tasks" not in ablation.answer()
    ablation.sweep.state["arms"]["free"]["train_difficulty"] = "easy"
    solved = "default 50.0 %; free, trained on easy tasks alone, 100.0 %."
    assert ablation.answer().endswith(f" Success on the 2 hard tasks (described, not tested): {solved}")
    own = {"default": own["default"], "free": np.tile([1.0, np.nan, 0.0, np.nan], (3, 1))}
    ablation = finished(tmp_path / "c", own, difficulties=["easy", "hard"])
    ablation.sweep.state["arms"]["free"]["train_difficulty"] = "easy"
    assert ablation.answer().endswith("(described, not tested): default 50.0 %."), (
        "free has no verdict on them"
    )
    ablation = finished(tmp_path / "b", {"default": outcomes(3, 0.9), "free": outcomes(3, 0.9)})
    cost = {name: entry | {"million_tokens": 1.5} for name, entry in ablation.arms.items()}
    ablation.training, ablation.arms = dict.fromkeys(cost), cost
    assert "sweet spot" not in ablation.answer(), "their groups are of one size"
    ablation.sweep.state["arms"]["free"]["group_size"] = 16
    assert (
        " The sweet spot is default, with 1.50 million completion tokens (tool replies included)"
        in ablation.answer()
    )


def test_a_sweep_holds_what_it_counts_and_no_texts(tmp_path):
    ablation = finished(tmp_path, {"default": outcomes(3, 0.5), "free": outcomes(3, 0.5)})
    run = ablation.runs["free"][1]
    lost = ToolResult("search", {"query": "x" * 99}, "Error: there is no tool search." + "y" * 99, False)
    stored = [replace(t, turns=(Turn("z" * 99, (0, 1), (lost,)),)) for t in run.trajectories("sft")]
    write_trajectories(run.file("eval", "sft.parquet"), stored)
    samples = ablation.samples["free"]
    assert summarize(samples[1], ablation.test) == summarize(stored, ablation.test)
    assert summarize(stored)["unknown_tool_rate"] == 1.0
    assert len(pickle.dumps(samples[1][0])) < len(pickle.dumps(stored[0])) - 250
    assert len(samples[1][0].completion_ids) == len(stored[0].completion_ids)


def test_an_arm_that_lacks_seeds_takes_no_verdict_from_the_others(tmp_path):
    own = {"default": outcomes(3, 0.1), "free": outcomes(3, 0.95), "torn": outcomes(2, 0.5)}
    ablation = finished(tmp_path, own)
    assert [(test["arm"], test["verdict"]) for test in ablation.paired] == [("free", "better")]
    assert list(ablation.table()["verdict"]) == ["compared with", "better", "lacks seeds"]
    assert "not compared, as they lack seeds: torn" in ablation.answer()


def test_whiskers_off_the_line_are_the_verdicts_better_and_worse(tmp_path):
    base, quarter = outcomes(3, 0.5, 400), np.arange(400) % 4 == 0
    solved, names = np.flatnonzero(base.all(axis=0)), ("default", "free", "same", "same-2", "same-3")
    arms = {name: base.copy() for name in names} | {"torn": base[:2], "weak": base * ~quarter}
    for name, lost in (
        ("free", slice(9)),
        ("same", slice(20, 22)),
        ("same-2", [22, 23]),
        ("same-3", [24, 25]),
    ):
        arms[name][:, solved[lost]] = 0.0
    ablation = finished(tmp_path, arms | {"good": np.maximum(base, quarter)}, margin=0.1)
    figure, drawn = plots.arm_success(ablation), {}
    line = figure.layout.shapes[0].x0
    for trace in figure.data:
        if trace.mode == "markers" and trace.error_x.array is not None:
            low, high = trace.x[0] - trace.error_x.arrayminus[0], trace.x[0] + trace.error_x.array[0]
            drawn[trace.y[0]] = "across" if low <= line <= high else "left" if high < line else "right"
    found = {name: (side, ablation.verdict(name)) for name, side in drawn.items()}
    equal = dict.fromkeys(names[1:], ("across", "equal within the margin"))
    assert found == equal | {"good": ("right", "better"), "weak": ("left", "worse")}
    assert ablation.paired[0]["ci95"][1] < 0, "its own interval, of two one-sided tests, leaves 0 out"
    assert figure.layout.yaxis.ticktext[-1].endswith(">worse</span>")
    few = finished(tmp_path / "few", {"default": base[:2], "free": base[:2]})
    assert "a verdict needs 3 seeds" in plots.arm_success(few).layout.title.subtitle.text


def test_the_sweet_spot_is_never_an_arm_that_is_worse(tmp_path, monkeypatch):
    cost = {"default": 4.0, "free": 3.0, "weak": 1.0}
    arms = {name: {"million_tokens": tokens} for name, tokens in cost.items()}
    monkeypatch.setattr(Ablation, "training", dict.fromkeys(arms))
    monkeypatch.setattr(Ablation, "arms", arms)
    same = outcomes(3, 0.9)
    ablation = finished(
        tmp_path, {"default": same, "free": same[::-1], "weak": outcomes(3, 0.3)}, policy="grpo"
    )
    assert ablation.sweet_spot() == "free"
    ablation.seeds = ablation.seeds[:2]
    assert ablation.sweet_spot() == ""


def test_success_is_that_of_the_sample_that_is_named(tmp_path):
    first = outcomes(5, 0.5)
    first[:3], first[3:] = np.arange(60) < 30, 0.0  # seeds 4 and 5 are not there in the other arm
    second = outcomes(3, 0.5)
    second[1, :20] = np.nan
    ablation = finished(tmp_path, {"default": first, "free": second})
    head = ablation.answer().split(" (3 seeds)")[0]
    assert head.startswith("default solves 25.0 % [") and head.endswith(
        "of the 40 tasks that are scored everywhere, of 60,"
    )


def test_cells_that_share_no_scored_task_are_a_sentence(tmp_path):
    nothing = np.full((3, 6), np.nan)
    nothing[:, 0] = 1.0
    ablation = finished(tmp_path, {"default": outcomes(3, 0.5, 6), "free": nothing})
    with pytest.raises(RunError, match="1 of 6 test tasks are scored in every cell"):
        ablation.to_json()


def test_only_arms_of_grpo_have_its_training(tmp_path):
    recipe = yaml.safe_load((ROOT / "params" / "nano-ablation.yaml").read_text()) | {"controls": "sft_more"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    own = {"default": outcomes(3, 0.4), "free": outcomes(3, 0.5)}
    ablation = finished(tmp_path, own, policy="sft_more", recipe="recipe.yaml")
    assert ablation.training == {} and ablation.arms["free"]["rollouts"] == 0
    assert ablation.table().loc["free", "rollouts"] == "–"


def test_the_cards_say_at_which_level_intervals_are_and_miss_nothing_that_was_never_to_be(tmp_path, recwarn):
    ablation = finished(tmp_path, {"default": outcomes(3, 0.5), "free": outcomes(3, 0.5)})
    for runs in ablation.runs.values():
        for run in runs.values():
            run.update(
                shared={"from": "shared/a"}, stages={"02_baseline": {"status": "done", "seconds": 36.0}}
            )
    page = html.unescape(write_sweep_report(ablation).read_text())
    assert (
        LEVELS in page and "Dunnett's" in LEVELS and ablation.table().loc["free", "hours to make"] == "0.01"
    )
    card = ablation.sweep.file("default", "seed-1", "report.html").read_text()
    assert "comparison.json does not exist" not in card and 'id="training"' not in card
    assert not [w for w in recwarn if "comparison.json" in str(w.message)]


def test_a_card_of_a_cell_in_mid_training_is_written_anew_and_a_later_one_kept(tmp_path):
    ablation = finished(tmp_path, {"default": outcomes(2, 0.5), "free": outcomes(2, 0.5)})
    early, late = (ablation.sweep.file("free", f"seed-{n}", "report.html") for n in (1, 2))
    for card in (early, late):
        card.write_text("mine")
    os.utime(early, (0, 0))
    write_sweep_report(ablation)
    assert "Run card" in early.read_text() and late.read_text() == "mine"


def test_a_sweep_is_opened_outside_the_project(tmp_path, monkeypatch):
    ablation = finished(tmp_path, {"default": outcomes(3, 0.5), "free": outcomes(3, 0.5)})
    for runs in ablation.runs.values():
        for run in runs.values():
            run.update(stages={"02_baseline": {"status": "done", "seconds": 36.0}})
    inside = Ablation(ablation.sweep).to_json()
    monkeypatch.chdir(tmp_path)
    assert ablation.to_json() == inside, "agentkit's own prices say what the agent was made on"
    assert "Sweep: out" in write_sweep_report(ablation).read_text()


def test_only_cells_that_are_done_link_to_a_run_card(tmp_path):
    ablation = finished(tmp_path, {"default": outcomes(2, 0.5), "free": outcomes(1, 0.5)})
    page = str(cells(ablation))
    assert page.count("<a ") == 3 and "free/seed-2/report.html" not in page


# ---- statistics
def test_an_interval_and_its_verdict_never_disagree():
    rng, near = np.random.default_rng(1), 0
    for _ in range(60):
        base = rng.random((3, 40))
        cube = np.stack([base, *(base + rng.normal(d, 0.2, (3, 40)) for d in (0.06, 0.07, 0.08, 0.3))])
        tests = against_one(cube, 0.05)
        for test in tests:
            low, high = test["ci_difference"]
            assert (test["verdict"] in ("better", "worse")) == (not low <= 0 <= high)
            low, high = test["ci95"]
            if test["verdict"].startswith("equal"):
                assert -0.05 < low <= high < 0.05
            else:
                assert (test["verdict"] in ("better", "worse")) == (not low <= 0 <= high)
        near += sum(t["p"] < 0.05 <= t["p_dunnett"] for t in tests)
    assert all(t["p"] <= t["p_dunnett"] <= t["p_holm"] for t in tests)
    assert near > 5, "some are only significant where they are not corrected"


def test_differences_and_verdicts_on_literals():
    base = np.tile([0.0, 0.25, 0.5, 0.75, 1.0] * 20, (3, 1))
    success = np.stack([base, np.clip(base + 0.25, 0, 1), base + np.array([[0.01], [-0.01], [0.0]])])
    better, equal = against_one(success, 0.05)
    assert better["diff"] == pytest.approx(0.2) and better["verdict"] == "better" and better["p_holm"] < 1e-6
    assert equal["diff"] == pytest.approx(0, abs=1e-12) and equal["verdict"] == "equal within the margin"
    assert against_one(success[[0, 2]], 0.001)[0]["verdict"] == "no difference shown"
    (difference, error, freedom), _ = errors(success)
    assert (difference, freedom > 2) == (pytest.approx(0.2), True) and error < 0.02


def test_a_large_difference_is_shown_where_seeds_hardly_differ():
    """What is subtracted between the three mean squares once left 0.8 degrees of freedom, or a crash."""
    same = outcomes(3, 0.9)
    tests = against_one(np.stack([same, same[::-1], outcomes(3, 0.3)]), 0.05)
    assert [test["verdict"] for test in tests] == ["equal within the margin", "worse"]
    assert all(test["freedom"] >= 4 for test in tests)


def test_equal_outcomes_of_a_few_tasks_are_no_proof_of_equality():
    few, many = (against_one(np.full((2, 3, n), 0.5), 0.05)[0] for n in (7, 300))
    assert few["verdict"] == "no difference shown" and few["ci95"][1] == pytest.approx(0.41, abs=0.01)
    assert many["verdict"] == "equal within the margin" and many["p"] == pytest.approx(1.0)


def test_planned_power_is_that_of_the_test_and_grows_with_seeds():
    error, freedom = Spread().error(3, 183, 4)
    seen = smallest(error, freedom, 3)
    assert power(seen / error, freedom, 3) == pytest.approx(0.8, abs=1e-3)
    assert power(0.0, freedom, 1) == pytest.approx(0.05, abs=2e-3)
    sizes = [smallest(*Spread().error(seeds, 183, 4), 3) for seeds in (2, 3, 5, 10)]
    assert sizes == sorted(sizes, reverse=True)
    assert smallest(0.0, 4.0, 1) is None
    assert [smallest(*Spread().error(3, tasks, 2), 1) for tasks in (0, 1)] == [None, None]


def test_the_spread_of_finished_cells_is_found_again():
    rng = np.random.default_rng(0)
    cubes = [
        rng.normal(0, s / np.sqrt(2), shape)
        for s, shape in ((0.05, (2, 6, 1)), (0.1, (2, 1, 400)), (0.3, (2, 6, 400)))
    ]
    found = measured_spread([sum(cubes) for cubes in [cubes]] * 1)
    assert (found.tasks, found.rest) == (pytest.approx(0.1, abs=0.03), pytest.approx(0.3, abs=0.02))
    assert 0.01 < found.seeds < 0.12


@pytest.mark.slow
def test_simulated_sweeps_keep_their_level_and_the_planned_power():
    false, planned, shown = levels(500, 4, 3, 183, Spread(0.03, 0.1, 0.0))
    assert 0.03 <= false <= 0.07 and shown == pytest.approx(planned, abs=0.05)
