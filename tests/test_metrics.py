"""The metrics row: what each column counts, and that no column is written that the list does not explain."""

import math

import pytest
from survive import make_trainer

from agentkit.records import Step, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import read_jsonl
from agentkit.training import metrics

TASK = Task("t", "Say 2.", "2")


def trajectory(results=(), components=None, **changes):
    values = {"success": 1.0, "reward": 1.0, "components": components or {}} | changes
    own = (4,), (1, 2), (1, 1), (-1.0, -1.0), (Turn("a", (0, 2), results),)
    return Trajectory("t", "p", 0, 0, *own, StopReason.ANSWER, **values)


def test_a_step_is_counted():
    failed = ToolResult("look", {}, "error", False, seconds=2.0)
    called = ToolResult("look", {}, "seen", True, seconds=0.5, cached=True)
    batch = (trajectory((called, failed)), trajectory(success=None, reward=None), trajectory(success=0.0))
    counts = {"dead": 1, "dead_sampled": 2, "extra": 4, "left_out": 1}
    found = metrics.rollout_metrics(Step(1, (TASK, TASK), batch, counts=counts, seconds=3.0))
    assert found == {
        "success": 0.5, "unscored": pytest.approx(1 / 3), "out_of_time": 0.0, "no_turn": 0.0,
        "turns": 1.0, "tool_calls": pytest.approx(2 / 3), "tool_failure_rate": 0.5, "completion_tokens": 2.0, "rollout_seconds": 3.0,
        "tool_seconds": pytest.approx(2.5 / 3), "tool_slowest_seconds": 2.0, "tool_cache_hits": 0.5,
        "dead_groups": 0.5, "dead_groups_sampled": 1.0, "groups_replaced": 0, "groups_dropped": 0,
        "extra_rollouts": 4, "left_out": pytest.approx(1 / 3),
    }  # fmt: skip


def test_components_are_logged_raw_and_weighted():
    reward = {"format": (lambda task, t: None, 0.5), "silent": (lambda task, t: None, 1.0)}
    scores = [{"format": 1.0, "silent": None}, {"format": 0.0, "silent": None}, {"format": None}]
    batch = [trajectory(components=found, reward=found["format"]) for found in scores]
    found = metrics.reward_metrics(Step(1, (TASK,), tuple(batch)), reward)
    assert found["reward/format"] == 0.5 and found["weighted/format"] == 0.25
    assert math.isnan(found["reward/silent"]) and found["reward_unscored"] == pytest.approx(1 / 3)


def test_steps_of_several_processes_are_one():
    one, two = (trajectory(), trajectory(reward=0.0)), (trajectory(reward=2.0), trajectory(reward=None))
    parts = [Step(3, (TASK,), one, ((1, 1), (0, 0)), {"dead": 1, "left_out": 1}, 2.0)]
    parts += [Step(3, (TASK,), two, ((1, 1), (1, 1)), {"dead": 1, "extra": 2}, 4.0)]
    found = metrics.joined(parts)
    assert found.trajectories == one + two and found.trained == ((1, 1), (0, 0), (1, 1), (1, 1))
    assert (found.number, found.tasks, found.seconds) == (3, (TASK, TASK), 4.0)
    assert found.counts == {"dead": 2, "left_out": 1, "extra": 2}


def test_every_column_of_a_training_is_listed_and_every_listed_one_explained(tmp_path):
    trainer = make_trainer(tmp_path / "run", steps=1)
    trainer.train()
    row = read_jsonl(tmp_path / "run" / "train" / "metrics.jsonl")[-1]
    named = {name for name in row if not name.startswith(tuple(metrics.FAMILIES))}
    assert named <= metrics.COLUMNS.keys() and {"reward/evenness", "weighted/evenness"} <= row.keys()
    own_weights = {"sync_gap", "sync_gap_share", "mismatch_share"}  # of an engine
    optional = own_weights | {"skipped_steps", "lessons", "mismatch_weight", "effective_samples"}
    assert metrics.COLUMNS.keys() - named == optional
    assert all(len(meaning) > 10 for meaning in metrics.COLUMNS.values())
    with pytest.raises(AssertionError, match="does not list: mystery"):
        metrics.row(1, {"mystery": 1.0, "reward/mine": 1.0})
