"""What a sweep showed: made-up cells, their statistics, table, answer, figures and page."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from test_evaluation import trajectory

from agentkit.evaluation.statistics import over_seeds
from agentkit.evaluation.sweeps import Ablation, against_one, differences
from agentkit.records import Task
from agentkit.runs import Run, append_jsonl, write_tasks, write_trajectories
from agentkit.views import plots


def finished(folder, success, policy="sft", start=()):
    """A sweep whose cells (S, N) of each arm came out like that; of the arms in ``start`` validation kept step 0."""
    cells, runs = [], {}
    seeds = max(map(len, success.values()))
    for arm, outcomes in success.items():
        runs[arm] = {}
        for seed in range(1, seeds + 1):
            cell = {"arm": arm, "seed": seed, "run": f"{arm}/seed-{seed}", "status": "waits", "error": ""}
            cells.append(cell)
            if seed <= len(outcomes):
                runs[arm][seed] = _cell(folder / cell["run"], outcomes[seed - 1], policy)
                if arm in start:
                    stage = {"status": "done", "best_step": 0, "measured_step": 2}
                    runs[arm][seed].update(stages={"03_grpo": stage})
                cell["status"] = "done"
    arms = {name: {"policy": policy} for name in success}
    state = {"question": "Which?", "against": "default", "arms": arms, "cells": cells}
    return Ablation(SimpleNamespace(folder=folder, state=state, runs=runs.get, file=folder.joinpath))


def _cell(path, outcomes, policy):
    run = Run.create(path)
    levels = ["easy", "hard"] * len(outcomes)
    tasks = [Task(f"t{i}", "?", "1", "numeric", "A", levels[i], "test") for i in range(len(outcomes))]
    write_tasks(run.file("tasks.jsonl"), tasks)
    rollouts = [trajectory(f"t{i}", float(v), policy=policy) for i, v in enumerate(outcomes)]
    write_trajectories(run.file("eval", f"{policy}.parquet"), rollouts)
    stage = {"status": "done", "seconds": 36.0}
    run.update(recipe={"prompts_per_step": 2, "group_size": 4}, versions={"torch": "2.13.0+cpu"})
    run.update(stages={"02_baseline": stage, "03_grpo": stage | {"best_step": 2}})
    for step in (1, 2):
        row = {"step": step, "seconds": 18.0, "rollout_seconds": 9.0, "completion_tokens": 100.0}
        row |= {"extra_rollouts": 0, "dead_groups": 0.5, "val_success": 0.4}
        append_jsonl(run.file("train", "metrics.jsonl"), row)
    return run


def outcomes(seeds, share, tasks=60):
    return (np.random.default_rng(seeds).random((seeds, tasks)) < share).astype(float)


def test_ablations_json_has_its_form(tmp_path):
    own = {"default": outcomes(3, 0.1), "free": outcomes(3, 0.95), "same": outcomes(3, 0.1)[::-1]}
    ablation = finished(tmp_path, own, policy="grpo")
    found = ablation.to_json()
    json.dumps(found, allow_nan=False)
    assert found.keys() >= {"question", "against", "arms", "paired", "answer"}
    arm = found["arms"]["free"]
    entry = "success ci95 n_tasks seeds turns tool_failure_rate tokens rollouts gpu_hours dead_groups"
    assert arm.keys() >= set(entry.split())
    assert (arm["n_tasks"], arm["seeds"], arm["rollouts"], arm["kept_step"]) == (60, [1, 2, 3], 16, 2)
    assert arm["gpu_hours"] is None and arm["hours"] == pytest.approx(0.02), "made on a CPU"
    assert arm["million_tokens"] == pytest.approx(0.0016)
    better, same = found["paired"]
    assert better.keys() >= {"arm", "diff", "ci95", "p", "p_holm", "verdict"}
    assert (better["verdict"], same["verdict"]) == ("better", "no difference shown")
    assert "better: free (+" in found["answer"] and "would have been shown (80 % power)" in found["answer"]
    assert ablation.table().loc["free", "rollouts"] == "16"


@pytest.mark.parametrize(("seeds", "said"), [(1, "one seed, no verdict"), (2, "two seeds, no verdict")])
def test_fewer_than_three_seeds_give_intervals_and_no_verdict(tmp_path, seeds, said):
    ablation = finished(tmp_path, {"default": outcomes(seeds, 0.1), "free": outcomes(seeds, 0.95)})
    (test,) = ablation.paired
    assert test["verdict"] == said and test["p"] is test["p_holm"] is test["could_show"] is None
    assert test["ci95"][0] < test["diff"] < test["ci95"][1] and test["diff"] > 0.5
    assert "no verdict, as it needs 3 seeds of every arm: free (+" in ablation.answer()
    assert "better" not in ablation.answer() and ablation.table().loc["free", "p, Dunnett"] == "–"
    assert "a verdict needs 3 seeds" in plots.arm_success(ablation).layout.title.subtitle.text


def test_an_arm_that_lacks_seeds_takes_no_verdict_from_the_others(tmp_path):
    own = {"default": outcomes(3, 0.1), "free": outcomes(3, 0.95), "torn": outcomes(2, 0.5)}
    ablation = finished(tmp_path, own)
    assert [(test["arm"], test["verdict"]) for test in ablation.paired] == [("free", "better")]
    assert list(ablation.table()["verdict"]) == ["compared with", "better", "lacks seeds"]
    assert "not compared, as they lack seeds: torn" in ablation.answer()
    assert ablation.missing == ["torn/seed-3"]


def test_an_arm_that_kept_step_0_is_marked_and_a_sweep_of_such_arms_gives_no_verdict(tmp_path):
    own = {"default": outcomes(3, 0.9), "harm": outcomes(3, 0.1)}
    ablation = finished(tmp_path / "one", own, policy="grpo", start=["harm"])
    note = ablation.to_json()["arms"]["harm"]["note"]
    assert note.startswith("harm, seed 1, 2, 3: Validation preferred the start")
    assert "harm can be seen" in note
    assert "; worse: harm (-" in ablation.answer() and ablation.answer().endswith(note)
    assert list(ablation.table()["step 0 kept"]) == ["–", "seed 1, seed 2, seed 3"]
    never = finished(tmp_path / "all", own, policy="grpo", start=list(own))
    (test,) = never.to_json()["paired"]
    assert test["verdict"] == "step 0 kept, no verdict" and test["p"] is test["p_dunnett"] is None
    assert "no verdict, as validation preferred the start in every cell of GRPO: harm (-" in never.answer()
    assert "worse" not in never.answer() and "off its line" not in str(plots.arm_success(never).layout.title)


def test_an_interval_and_its_verdict_never_disagree():
    rng = np.random.default_rng(1)
    for _ in range(15):
        base = rng.random((3, 40))
        cube = np.stack([base, *(base + rng.normal(d, 0.2, (3, 40)) for d in (0.06, 0.08, 0.3))])
        for test in against_one(cube):
            low, high = test["ci95"]
            assert (test["verdict"] in ("better", "worse")) == (not low <= 0 <= high)
            assert test["p"] <= test["p_dunnett"] and test["p"] <= test["p_holm"]


def test_pooling_the_seeds_of_two_arms_changes_nothing():
    cube = np.random.default_rng(0).random((2, 3, 20))
    (pooled,), own = differences(cube), over_seeds(cube[1] - cube[0])
    assert (pooled.error, pooled.freedom) == pytest.approx((own.error, own.freedom))


def test_equal_arms_of_few_tasks_show_nothing_within_a_wide_interval():
    equal = against_one(np.full((2, 3, 7), 0.5))[0]
    assert equal["verdict"] == "no difference shown" and equal["ci95"][1] > 0.3, "of seven tasks"
