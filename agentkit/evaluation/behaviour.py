"""What a policy does: habits measured on trajectories, as shares of the occasions to behave so.

Everything is computed from the record (calls, observations, answer, stop reason) and, where the task has one,
its plan. These are stated rules, not readings of intent: each measure says what is counted. Habits are
described and not tested. Leaves out how policies fail (failures) and success (comparison).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from agentkit.evaluation import Samples, flatten, statistics, tables
from agentkit.evaluation.evidence import TEXT_LIMIT, gave_up, stands, was_run, writes_code
from agentkit.records import Task, ToolResult, Trajectory
from agentkit.trajectories import call_key, needs_tools, plan_of, results_of, verifier_kind

_NO_PROSE = re.compile(  # calls in the forms of rollouts.call_formats, control tokens, thoughts' marks
    r"<tool_call>.*?(?:</tool_call>|\Z)|\{\s*[\"']name[\"']\s*:.*|<\|[^|<>]{1,40}\|>|</?think>", re.DOTALL
)


@dataclass(frozen=True)
class Measure:
    """One behaviour: ``values`` gives a number for each occasion of a trajectory to behave so."""

    title: str
    meaning: str
    values: Callable[[Trajectory, Task], Sequence[float]]
    share: bool = True  # in percent; otherwise a number for each occasion


def _after_failure(t: Trajectory) -> list[tuple[ToolResult, ...]]:
    """The calls of the turn that follows each turn with a failed call."""
    pairs = zip(t.turns, t.turns[1:], strict=False)
    return [later.results for turn, later in pairs if any(not result.ok for result in turn.results)]


def _plans(t: Trajectory, task: Task) -> list[bool]:
    first = [turn for turn in t.turns[:1] if turn.results]
    return [len(_NO_PROSE.sub(" ", turn.text[:TEXT_LIMIT]).split()) >= 3 for turn in first]


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
    if t.answer is None or not needs_tools(task):
        return []
    results = results_of(t)
    is_grounded = was_run(t.answer, results) if verifier_kind(task) == "code" else _shows_answer(t, results)
    return [not is_grounded]


MEASURES = {
    "retries": Measure(
        "Retries after a failed call",
        "turns with a failed call that are followed by another call",
        lambda t, task: [bool(results) for results in _after_failure(t)],
    ),
    "recovers": Measure(
        "Recovers from a failed call",
        "turns with a failed call whose next calls all work",
        lambda t, task: [bool(results) and all(r.ok for r in results) for results in _after_failure(t)],
    ),
    "plans": Measure(
        "Plans before acting", "first turns that call a tool and say at least three words beside it", _plans
    ),
    "verifies": Measure(
        "Verifies before answering",
        "answers that a tool had returned before the last round of calls",
        _verifies,
    ),
    "repeats": Measure(
        "Repeats a call it has made", "calls whose name and arguments came before in the trajectory", _repeats
    ),
    "calls": Measure(
        "Calls in a solved trajectory",
        "tool calls for each right trajectory",
        lambda t, task: [len(results_of(t))] if t.success == 1.0 else [],
        share=False,
    ),
    "no_tool": Measure(
        "Shortcut: answers without any tool",
        "answers to tasks that need a tool, with no call",
        lambda t, task: [not results_of(t)] if needs_tools(task) and t.answer is not None else [],
    ),
    "skips": Measure(
        "Shortcut: skips a planned step",
        "answers after fewer different working calls than the plan has",
        _skips,
    ),
    "ungrounded": Measure(
        "Shortcut: answer from nowhere", "answers that no tool had returned; programs never run", _ungrounded
    ),
    "gives_up": Measure(
        "Gives up",
        "trajectories whose answer says that there is none",
        lambda t, task: [t.answer is not None and gave_up(t.answer, task)],
    ),
}


@dataclass(frozen=True)
class Behaviour:
    """Habits of policies on the same tasks; intervals of shares are at 95 %, clustered by task."""

    rates: dict[
        str, dict[str, dict[str, Any]]
    ]  # measure -> policy -> value (or None), ci95, occasions, tasks

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy."""
        return tables.text_table({
            MEASURES[name].title: {policy: _rate_cell(name, rate) for policy, rate in rates.items()}
            for name, rates in self.rates.items()
        })  # fmt: skip

    def _repr_html_(self) -> str:
        rules = [f"{MEASURES[name].title}: {MEASURES[name].meaning}." for name in self.rates]
        caption = "Share of occasions; 95 % intervals over the tasks with an occasion in brackets"
        return tables.to_html(self.table(), caption, (), rules)


def behaviour(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> Behaviour:
    """Measure what policies do on a suite that holds at least the tasks of their trajectories."""
    by_id = {task.id: task for task in tasks}
    return Behaviour({
        name: {policy: _rate(flatten(samples), by_id, measure) for policy, samples in policies.items()}
        for name, measure in MEASURES.items()
    })  # fmt: skip


def _rate(trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], measure: Measure) -> dict[str, Any]:
    """A habit of one policy: the mean of its values, over all occasions."""
    totals = {t.task_id: np.zeros(2) for t in trajectories}
    for t in trajectories:
        values = measure.values(t, tasks[t.task_id])
        totals[t.task_id] += [sum(values), len(values)]
    did, occasions = np.array(list(totals.values())).T
    rate = {
        "value": None,
        "ci95": None,
        "occasions": int(occasions.sum()),
        "tasks": int((occasions > 0).sum()),
    }
    if rate["occasions"]:
        rate["value"] = float(did.sum() / occasions.sum())
        rate["ci95"] = statistics.share_interval(did, occasions) if measure.share else None
    return rate


def _rate_cell(name: str, rate: Mapping[str, Any]) -> str:
    if rate["value"] is None:
        return "– (no occasion)"
    if not MEASURES[name].share:
        return f"{rate['value']:.2f}"
    return f"{tables.percent(rate['value'], rate['ci95'])} of {rate['occasions']} in {rate['tasks']} tasks"
