"""What a recipe will take and what a run took."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentkit.cli import main
from agentkit.recipe import Recipe
from agentkit.runs import Run, append_jsonl, write_jsonl
from agentkit.runs.cost import PHASES, Rates, actual, counts, forecast, read_prices

PRICES = Path(__file__).resolve().parents[1] / "params" / "prices.yaml"
RATES = Rates(rollout=2.0, evaluation=3.0, update=0.5, demonstration=0.25, other=100.0, source="test")
# 100 tasks: 70 train, 15 validation, 15 test; 4 rollouts a step
SMALL = {"n_tasks": 100, "steps": 10, "prompts_per_step": 2, "group_size": 2, "micro_batch": 2, "val_every": 4, "val_tasks": 60,
         "test_samples": 4, "sft": True, "sft_transcripts": 2, "sft_epochs": 3}  # fmt: skip


def test_counts_and_their_forecast_by_hand():
    # validation before step 1, after 4, 8 and 10; no more validation tasks than there are
    assert counts(Recipe.from_mapping(SMALL)) == {
        "demonstrations": 70 * 2 * 3, "baseline": 15 * 4, "rollouts": 40, "updates": 40, "validation": 4 * 15, "final": 15 * 4,
        "control rollouts": 0, "control updates": 0,
    }  # fmt: skip
    more = counts(Recipe.from_mapping(SMALL | {"controls": "sft_more,rft"}))
    assert (more["rollouts"], more["updates"], more["final"]) == (40, 40, 3 * 15 * 4)
    sft_more = 70 * 2  # which samples nothing
    assert (more["control rollouts"], more["control updates"]) == (40, 40 + sft_more)
    seconds = forecast(Recipe.from_mapping(SMALL), RATES)
    assert list(seconds) == list(PHASES)
    assert list(seconds.values()) == [420 * 0.25 + 60 * 3, 80, 20, 180, 180, 100]


def test_the_range_holds_what_was_measured_on_a_gpu():
    """docs/gpus.md: eight trajectories of 2,048 tokens after 1,024 at a 4B shape took one H200 2.69 s."""
    prices = replace(read_prices(PRICES), device="H200")
    four = {"model": "Qwen/Qwen3-4B-Instruct-2507", "max_tokens": 8192, "beta": 0}
    recipe = Recipe.from_mapping(SMALL | four)
    per_token = {case: prices.rates_of(recipe, case).update / (1024 + share * 8192)
                 for case, share in {"fast": 0.125, "likely": 0.25, "slow": 0.5}.items()}  # fmt: skip
    assert per_token["fast"] < 2.69 / (8 * 3072) < per_token["slow"]
    assert per_token["likely"] == pytest.approx(2.69 / (8 * 3072), rel=0.1)


def small_run(path, steps=10, done=("01_tasks", "02_baseline", "03_grpo", "05_compare")):
    """A run that kept exactly to RATES on one device."""
    run = Run.create(path)
    seconds = {"01_tasks": 40.0, "02_baseline": 285.0, "03_grpo": 60.0 + 46 * steps, "05_compare": 180.0}
    run.update(recipe=SMALL, stages={name: {"status": "done", "seconds": seconds[name]} for name in done})
    append_jsonl(run.file("train", "metrics.jsonl"), {"step": 0, "val_seconds": 90.0})
    for step in range(1, steps + 1):
        row = {"step": step, "rollout_seconds": 8.0, "update_seconds": 2.0}
        row |= {"val_seconds": 90.0} if step in (4, 8, 10) else {}
        append_jsonl(run.file("train", "metrics.jsonl"), row)
    return run


def test_a_run_took_what_its_stages_say(tmp_path):
    run = small_run(tmp_path / "a")
    assert list(actual(run).values()) == [285.0, 80.0, 20.0, 360.0, 180.0, 40.0 + 60.0]
    half = small_run(tmp_path / "b", done=("01_tasks", "02_baseline"))
    assert actual(half) == {PHASES[0]: 285.0, PHASES[5]: 40.0}
    run.update(stages={"02_baseline": {"status": "failed", "seconds": 9.0}})
    run.update(stages={"05_compare": {"status": "done", "seconds": 180.0, "devices": 2}})
    assert PHASES[0] not in actual(run) and actual(run)[PHASES[4]] == 360.0


def test_the_command(tmp_path, capsys, monkeypatch):
    plan = PRICES.parent / "plan-3b.yaml"
    monkeypatch.chdir(tmp_path)  # agentkit's own prices are found from anywhere
    assert main(["cost", str(plan)]) == 0
    told = capsys.readouterr().out
    assert "Run total" in told and "RunPod spot, $0.74 an hour" in told and "not measured" in told
    assert main(["cost", str(plan), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    total = sum(found["device_seconds"].values())
    assert list(found["device_seconds"]) == list(PHASES)
    least, most = found["range_seconds"]
    assert 3600 < least < total < most < 24 * 3600, "hours for a 3B on 22,400 trajectories, not days"
    assert found["money"]["Lambda Labs"] == pytest.approx(total / 3600 * 1.10)
    run = small_run(tmp_path / "a")
    assert main(["cost", str(PRICES.parent / "nano.yaml"), "--run", str(run.path)]) == 0
    told = capsys.readouterr().out
    assert "taken" in told and "$" not in told, "nobody rents a CPU by the hour"


def test_a_given_suite_is_counted_as_its_file_splits_it(tmp_path):
    def recipe(*splits: tuple[str, int]) -> Recipe:
        rows = [{"prompt": f"{s} {i}", "answer": "1", "split": s} for s, n in splits for i in range(n)]
        path = write_jsonl(tmp_path / f"{len(rows)}.jsonl", rows)
        return Recipe.from_mapping(SMALL | {"tasks": str(path), "epochs": 3, "val_tasks": 999})

    found = counts(recipe(("train", 100), ("validation", 50), ("test", 250)))
    assert (found["demonstrations"], found["final"], found["rollouts"]) == (100 * 6, 250 * 4, 10 * 4)
    found = counts(recipe(("train", 10), ("test", 250)))  # a fifth of the training tasks validates
    assert (found["demonstrations"], found["validation"]) == (8 * 6, 4 * 2)
    found = counts(recipe(("test", 200)))
    assert (found["demonstrations"], found["final"]) == (140 * 6, 30 * 4)
