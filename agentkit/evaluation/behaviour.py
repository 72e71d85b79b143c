"""What a policy does: behaviour measured on trajectories, as shares of the occasions to behave so.

Everything is computed from the record (calls, observations, answer, stop reason) and, where the task has one,
its plan. These are stated rules, not readings of intent: each measure says what is counted. Leaves out how
policies fail (failures), success and its tests (comparison) and the formulas (statistics).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from agentkit.evaluation import Samples, flatten, statistics, tables
from agentkit.evaluation.evidence import TEXT_LIMIT, gave_up, stands, was_run, writes_code
from agentkit.evaluation.summary import ratio_of
from agentkit.records import DataError, Task, ToolResult, Trajectory
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
    """Behaviour of policies on the same tasks, with 95 % intervals clustered by task."""

    rates: dict[
        str, dict[str, dict[str, Any]]
    ]  # measure -> policy -> value (or None), ci95, occasions, tasks
    changes: list[dict[str, Any]]  # measure, a, b, diff, ci95, p, p_holm: each policy against the first

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy."""
        rows = {
            MEASURES[name].title: {policy: _rate_cell(name, rate) for policy, rate in rates.items()}
            for name, rates in self.rates.items()
        }
        return tables.text_table(rows)

    def sentences(self) -> list[str]:
        """One for each change that Holm's correction lets stand, or one that says that there is none."""
        proven = [change for change in self.changes if change["p_holm"] < statistics.ALPHA]
        none = f"No behaviour changed by more than chance explains ({len(self.changes)} comparisons, Holm)."
        return [_change_sentence(change, self.rates[change["measure"]]) for change in proven] or [none]

    def _repr_html_(self) -> str:
        rules = [f"{MEASURES[name].title}: {MEASURES[name].meaning}." for name in self.rates]
        caption = "Share of occasions; 95 % intervals over the tasks with an occasion in brackets"
        return tables.to_html(self.table(), caption, self.sentences(), rules)


def behaviour(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> Behaviour:
    """Measure what policies do, and what changed against the first (Holm over all changes).

    Only tasks with an occasion to behave so are evidence, for a rate and for its change.

    Args:
        policies: trajectories by policy name, the baseline first.
        tasks: a suite that holds at least these tasks.

    Raises:
        DataError: a policy shares no task with the first.
    """
    by_id = {task.id: task for task in tasks}
    first, *others = policies
    rates: dict[str, dict[str, dict[str, Any]]] = {}
    changes = []
    for name, measure in MEASURES.items():
        counts = {policy: _counts(flatten(samples), by_id, measure) for policy, samples in policies.items()}
        rates[name] = {policy: _rate(own, measure) for policy, own in counts.items()}
        for other in others:
            pair = counts[first], counts[other]
            shared = pair[0].keys() & pair[1].keys()
            if not shared:
                raise DataError(f"{first} and {other} share no task. Use the same tasks.")
            if all(any(own[task][1] for task in shared) for own in pair):
                change = _change(*pair, measure)
                changes.append({"measure": name, "a": first, "b": other, **change})
    corrected = statistics.holm([change["p"] for change in changes])
    return Behaviour(rates, [change | {"p_holm": p} for change, p in zip(changes, corrected, strict=True)])


_Counts = dict[str, np.ndarray]  # by task: the sum of a measure's values, and the occasions


def _counts(trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], measure: Measure) -> _Counts:
    totals = {t.task_id: np.zeros(2) for t in trajectories}
    for t in trajectories:
        values = measure.values(t, tasks[t.task_id])
        totals[t.task_id] += [sum(values), len(values)]
    return totals


def _rate(counts: _Counts, measure: Measure) -> dict[str, Any]:
    totals = np.array(list(counts.values())).T
    value, interval = ratio_of(totals, measure.share)
    occasions, tasks = int(totals[1].sum()), int((totals[1] > 0).sum())
    return {"value": value, "ci95": interval, "occasions": occasions, "tasks": tasks}


def _change(before: _Counts, after: _Counts, measure: Measure) -> dict[str, Any]:
    """Difference of two ratios over the same tasks, with its interval and p."""
    shared = [task for task in before if task in after]
    pair = [np.array([own[task] for task in shared]).T.copy() for own in (before, after)]
    if measure.share:
        difference, interval, p = statistics.shares_change(*pair)
        return {"diff": difference, "ci95": interval, "p": p}
    occasion = (pair[0][1] > 0) | (pair[1][1] > 0)
    (a, u), (b, v) = (statistics.ratio_influence(*counts[:, occasion]) for counts in pair)
    moved = b - a + v - u
    if float(np.ptp(moved)) < 1e-12:
        return {"diff": b - a, "ci95": [b - a, b - a], "p": statistics.mean_p(moved)}
    interval = statistics.mean_interval(moved, low=-np.inf, high=np.inf)
    return {"diff": b - a, "ci95": interval, "p": statistics.mean_p(moved)}


def _rate_cell(name: str, rate: Mapping[str, Any]) -> str:
    if rate["value"] is None:
        return "– (no occasion)"
    shown = tables.cell(rate["value"], rate["ci95"], "{:.1%}" if MEASURES[name].share else "{:.2f}")
    return f"{shown} of {rate['occasions']} in {rate['tasks']} tasks" if MEASURES[name].share else shown


def _change_sentence(change: Mapping[str, Any], rates: Mapping[str, Mapping[str, Any]]) -> str:
    measure = MEASURES[change["measure"]]
    values = [rates[change[policy]]["value"] for policy in "ab"]
    before, after = (f"{100 * v:.1f} %" if measure.share else f"{v:.2f}" for v in values)
    p = f"p = {change['p_holm']:.2g} after Holm"
    return f"{measure.title}: {change['a']} {before}, {change['b']} {after} ({p})."
