"""Facts about trajectories and tasks, on literals."""

import asyncio
from dataclasses import replace

import pytest

from agentkit.records import StopReason, Task, ToolCall, ToolResult, Trajectory, Turn
from agentkit.tools.environments import CorpusEnvironment
from agentkit.tools.runtime import run_call
from agentkit.trajectories import (
    by_task,
    call_key,
    failure_of,
    is_truncated,
    met_limit,
    needs_tools,
    plan_of,
    results_of,
    trajectory_id,
)

GOOD = ToolResult("search", {"query": "a", "k": 1}, "found", True)
BAD = ToolResult("search", {"k": 1, "query": "a"}, "Error: the index is closed.", False)
MALFORMED = ToolResult("", {}, "Error: no JSON.", False)


def trajectory(task_id, *turns):
    turns = tuple(Turn("", (0, 0), results) for results in turns)
    return Trajectory(task_id, "sft", 0, 0, (), (), (), (), turns, StopReason.ANSWER)


def test_results_are_in_order_over_turns():
    assert results_of(trajectory("t", (GOOD, BAD), (), (MALFORMED,))) == [GOOD, BAD, MALFORMED]
    assert results_of(trajectory("t")) == []


def test_equal_calls_have_equal_keys_whatever_the_order_of_their_arguments():
    assert call_key(GOOD) == call_key(BAD) != call_key(MALFORMED)


def test_each_way_a_call_fails_has_its_name():
    assert [failure_of(result) for result in (GOOD, BAD, MALFORMED)] == [None, "failed", "malformed"]


def test_the_tool_runtime_says_that_a_tool_is_unknown(corpus):
    environment = CorpusEnvironment(corpus)
    unknown, wrong = (asyncio.run(run_call(ToolCall(name, {}), environment)) for name in ("fly", "search"))
    assert [failure_of(unknown), failure_of(wrong)] == ["unknown tool", "failed"]


def test_trajectories_by_task_keep_their_order():
    first, second, third = trajectory("b"), trajectory("a"), trajectory("b", (GOOD,))
    assert list(by_task([first, second, third]).items()) == [("b", [first, third]), ("a", [second])]


@pytest.mark.parametrize(
    ("meta", "steps", "needed"),
    [
        ({}, 0, True),
        ({"plan": []}, 0, False),
        ({"plan": [{"tool": "search"}, "junk"]}, 1, True),
        ({"plan": 3}, 0, True),
    ],
)
def test_plans(meta, steps, needed):
    task = Task("t", "?", "1", meta=meta)
    assert len(plan_of(task)) == steps and needs_tools(task) is needed
    assert not needs_tools(Task("t", "?", "1", tools=(), meta=meta))


def test_a_turn_limit_ends_a_trajectory_but_truncates_none():
    ends = {reason: replace(trajectory("t"), stop_reason=reason) for reason in StopReason}
    assert [r.value for r, t in ends.items() if met_limit(t) and not is_truncated(t)] == ["turn_limit"]
    assert not met_limit(ends[StopReason.ANSWER]) and not met_limit(ends[StopReason.ERROR])


def test_a_trajectory_is_named_by_step_task_and_sample():
    assert trajectory_id(trajectory("t")) == "t#0"
    assert trajectory_id(replace(trajectory("t"), step=3, sample=2)) == "3:t#2"
