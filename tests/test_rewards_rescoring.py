"""Stored trajectories under another reward: ranks, dead groups, and no torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from agentkit import rewards
from agentkit.lab import Lab
from agentkit.recipe import RecipeError
from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.rewards.rescoring import PAIRS, Rescoring, changes, compare_step, rescore_each
from agentkit.runs import Run, RunError, write_tasks, write_trajectories
from agentkit.views import plots

PLAN = [{"tool": "search", "arguments": {"query": "area of A"}, "expect": "30"}]
TASKS = [
    Task(name, "?", "30", "numeric", difficulty=hard, meta={"plan": PLAN})
    for name, hard in (("a", "easy"), ("b", "hard"))
]
HIT = ToolResult("search", {"query": "area of A"}, "The area of A is 30.", ok=True)


@pytest.mark.parametrize(
    ("before", "now", "kinds", "best"),
    [
        ([1.0, 0.0], [5.0, 2.0], (1, 0, 0, 0), False),
        ([1.0, 0.0], [0.0, 1.0], (0, 1, 0, 0), True),
        ([0.0, 0.0], [0.0, 1.0], (0, 0, 1, 0), False),
        ([0.0, 1.0], [2.0, 2.0], (0, 0, 0, 1), False),
        ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], (0, 1, 1, 1), True),
        ([1.0, None, 0.0], [1.0, 9.0, 0.0], (1, 0, 0, 0), False),
        ([1.0, 0.0], [None, 0.0], (0, 0, 0, 0), False),
        ([None, None], [None, None], (0, 0, 0, 0), False),
        ([], [], (0, 0, 0, 0), False),
        ([0.1 + 0.2, 0.3], [0.3, 0.3], (1, 0, 0, 0), False),
    ],
)
def test_how_pairs_change(before, now, kinds, best):
    found = changes(before, now)
    assert tuple(found[kind] for kind in PAIRS) == kinds and found["best changed"] is best


def trajectory(task, sample, success, searched, step=1) -> Trajectory:
    turns = ((Turn("", (0, 1), (HIT,)),) if searched else ()) + (Turn("", (1, 2), ()),)
    tokens = {"prompt_ids": (1,), "completion_ids": (2, 2), "action_mask": (1, 1), "old_logprobs": (0.0, 0.0)}
    tokens |= {
        "turns": turns,
        "stop_reason": StopReason.ANSWER,
        "answer": "30",
        "success": success,
        "step": step,
    }
    return Trajectory(task, "grpo", sample, 0, **tokens)


@pytest.fixture
def run(tmp_path) -> Run:
    """Two steps: task a is dead under correctness alone and distinguished by its calls; task b is the other way
    round.
    """
    made = Run.create(tmp_path / "run")
    write_tasks(made.file("tasks.jsonl"), TASKS)
    made.update(recipe={"reward": {"correctness": 1}, "max_tokens": 64, "n_tasks": 100})
    for step in (1, 2):
        batch = [trajectory("a", i, 0.0, searched=i == 1, step=step) for i in range(3)]
        batch += [trajectory("b", i, float(i == 0), searched=False, step=step) for i in range(3)]
        scored = rewards.score_all(TASKS, batch, {"correctness": (rewards.correctness, 1.0)})
        write_trajectories(made.file("train", "trajectories", f"step_{step:05d}.parquet"), scored)
    return made


def rescore(run: Run, reward: rewards.Reward, name: str, steps=None, **options: bool) -> Rescoring:
    return rescore_each(run, {name: reward}, steps, **options)[name]


def test_dead_groups_and_ranks_of_a_run(run):
    result = rescore(run, rewards.toolrl(), "toolrl")
    table = result.table()
    assert list(table.index) == ["all", "easy", "hard"]
    groups = {"groups": 4, "dead before": 2, "dead now": 2, "revived": 2, "died": 2, "best changed": 0}
    pairs = {"same order": 4, "reversed": 0, "distinguished now": 4, "tied now": 4}
    assert table.loc["all"].to_dict() == groups | pairs
    assert table.loc["easy", "revived"] == 2 and table.loc["hard", "died"] == 2
    figure = plots.rescoring(result)
    assert [trace.name for trace in figure.data if trace.type == "bar"] == list(PAIRS)
    assert len(rescore(run, rewards.toolrl(), "toolrl", steps=[2]).groups) == 2


def test_several_rewards_read_each_step_once(run, monkeypatch):
    others = {"toolrl": rewards.toolrl(), "plan": rewards.plan()}
    alone, read, read_as = (
        {name: rescore(run, own, name) for name, own in others.items()},
        [],
        Run.trajectories,
    )
    monkeypatch.setattr(
        Run, "trajectories", lambda own, step, **how: read.append(step) or read_as(own, step, **how)
    )
    together = rescore_each(run, others)
    assert read == [1, 2] and list(together) == list(others)
    assert all(together[name].groups.equals(result.groups) for name, result in alone.items())
    assert set(rescore_each(run, others, [2])["plan"].groups["step"]) == {2}


def test_under_its_own_reward_nothing_changes(run):
    table = rescore(run, {"correctness": (rewards.correctness, 1.0)}, "own").table().loc["all"]
    assert table["same order"] == 12 and table["revived"] == table["died"] == table["best changed"] == 0


def test_the_same_task_twice_in_a_step_is_two_groups():
    twice = [trajectory("a", i, float(i == 0), searched=False) for _ in range(2) for i in range(2)]
    assert len(compare_step(twice, TASKS, rewards.plan())) == 2


def test_another_reward_keeps_the_runs_limits(run):
    assert set(Lab.of(run).with_reward("toolrl").reward) == {"format", "match"}
    overlong, _ = Lab.of(run).with_reward({"overlong": 1}).reward["overlong"]
    assert (
        overlong(
            TASKS[0], dataclasses.replace(trajectory("a", 0, 1.0, searched=False), completion_ids=(2,) * 64)
        )
        == -1.0
    )
    with pytest.raises(RecipeError, match="toolrl"):
        Lab.of(run).with_reward("toolr")


def test_a_run_without_trajectories_or_without_its_tasks_says_so(run, tmp_path):
    with pytest.raises(RunError, match="03_grpo"):
        rescore(Run.create(tmp_path / "empty"), rewards.plan(), "plan")
    write_tasks(run.file("tasks.jsonl"), TASKS[:1])
    with pytest.raises(RunError, match="lacks task 'b'"):
        rescore(Run(run.path), rewards.plan(), "plan")


def test_no_torch_is_loaded():
    code = "import sys, agentkit.rewards.rescoring, agentkit.rewards; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    )


def test_steps_without_rollouts_are_one_sentence_and_a_damaged_step_leaves_the_rest(run):
    whole = rescore(run, rewards.toolrl(), "toolrl")
    first, second = (run.file("train", "trajectories", f"step_{step:05d}.parquet") for step in (1, 2))
    rows = run.trajectories(1)
    write_trajectories(first, rows[::-1])  # in whatever order
    assert rescore(run, rewards.toolrl(), "toolrl").table().equals(whole.table())
    second.write_bytes(b"PAR1")
    with pytest.warns(UserWarning, match="step_00002.parquet is not a trajectory file"):
        assert len(rescore(run, rewards.toolrl(), "toolrl").groups) == 2
    for path in (first, second):
        write_trajectories(path, [])
    with pytest.raises(RunError, match="stores no training trajectories"):
        rescore(run, rewards.toolrl(), "toolrl")
