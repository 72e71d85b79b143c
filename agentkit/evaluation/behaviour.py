"""What a policy does: habits measured on trajectories, as shares of the occasions to behave so.

Everything is computed from the record (calls, observations, answer, stop reason) and, where the task has one,
its plan. These are stated rules, not readings of intent: each measure says what is counted. Habits are
described and not tested. Leaves out how policies fail (failures) and success (comparison).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from agentkit.evaluation import Samples, flatten, statistics
from agentkit.evaluation.evidence import gave_up, stands, writes_code
from agentkit.records import Task, ToolResult, Trajectory
from agentkit.trajectories import call_key, needs_tools, plan_of, results_of


@dataclass(frozen=True)
class Habit:
    """One behaviour: ``values`` says for each occasion in a trajectory whether it behaved so."""

    title: str
    meaning: str
    values: Callable[[Trajectory, Task], Sequence[bool]]


def _after_failure(t: Trajectory) -> list[tuple[ToolResult, ...]]:
    """The calls of the turn that follows each turn with a failed call."""
    pairs = zip(t.turns, t.turns[1:], strict=False)
    return [later.results for turn, later in pairs if any(not result.ok for result in turn.results)]


def _verifies(t: Trajectory, task: Task) -> list[bool]:
    shows = [_shows_answer(t, turn.results) for turn in t.turns if turn.results]
    return [any(shows[:-1])] if any(shows) else []


def _shows_answer(t: Trajectory, results: Iterable[ToolResult]) -> bool:
    return bool(t.answer) and any(r.ok and stands(t.answer, r.observation) for r in results)


def _repeats(t: Trajectory, task: Task) -> list[bool]:
    calls = [call_key(result) for result in results_of(t)]
    return [call in calls[:i] for i, call in enumerate(calls)]


def _skips(t: Trajectory, task: Task) -> list[bool]:
    planned = len(plan_of(task))
    if not planned or t.answer is None or writes_code(task):  # a program may well be written in one go
        return []
    return [len({call_key(result) for result in results_of(t) if result.ok}) < planned]


def _ungrounded(t: Trajectory, task: Task) -> list[bool]:
    if t.answer is None or not needs_tools(task) or writes_code(task):
        return []
    return [not _shows_answer(t, results_of(t))]


HABITS = (
    Habit(
        "Retries after a failed call",
        "turns with a failed call that are followed by another call",
        lambda t, task: [bool(results) for results in _after_failure(t)],
    ),
    Habit(
        "Recovers from a failed call",
        "turns with a failed call whose next calls all work",
        lambda t, task: [bool(results) and all(r.ok for r in results) for results in _after_failure(t)],
    ),
    Habit(
        "Verifies before answering",
        "answers that a tool had returned before the last round of calls",
        _verifies,
    ),
    Habit(
        "Repeats a call it has made", "calls whose name and arguments came before in the trajectory", _repeats
    ),
    Habit(
        "Shortcut: answers without any tool",
        "answers to tasks that need a tool, with no call",
        lambda t, task: [not results_of(t)] if needs_tools(task) and t.answer is not None else [],
    ),
    Habit(
        "Shortcut: skips a planned step",
        "answers after fewer different working calls than the plan has",
        _skips,
    ),
    Habit("Shortcut: answer from nowhere", "answers, but programs, that no tool had returned", _ungrounded),
    Habit(
        "Gives up",
        "trajectories whose answer says that there is none",
        lambda t, task: [t.answer is not None and gave_up(t.answer, task)],
    ),
)


def behaviour(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> pd.DataFrame:
    """What policies do on a suite that holds at least the tasks of their trajectories.

    One row a habit and policy: share of the occasions (missing where there was none), its 95 % interval
    clustered by task, the numbers of occasions and of tasks that had one, and what is counted.
    """
    by_id, rows = {task.id: task for task in tasks}, []
    for habit in HABITS:
        for policy, samples in policies.items():
            rates = _rate(flatten(samples), by_id, habit)
            rows.append({"habit": habit.title, "policy": policy} | rates | {"counted": habit.meaning})
    return pd.DataFrame(rows)


def _rate(trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], habit: Habit) -> dict[str, Any]:
    totals = {t.task_id: np.zeros(2) for t in trajectories}
    for t in trajectories:
        values = habit.values(t, tasks[t.task_id])
        totals[t.task_id] += [sum(values), len(values)]
    did, occasions = np.array(list(totals.values())).T
    counts = {"occasions": int(occasions.sum()), "tasks": int((occasions > 0).sum())}
    if not counts["occasions"]:
        return {"share": np.nan, "low": np.nan, "high": np.nan} | counts
    low, high = statistics.share_interval(did, occasions)
    return {"share": float(did.sum() / occasions.sum()), "low": low, "high": high} | counts
