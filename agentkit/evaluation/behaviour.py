"""What a policy does: behaviour measured on trajectories, as shares of the occasions to behave so.

Everything is computed from the record (calls, observations, answer, stop reason) and, where the task has one,
its plan.
These are stated rules, not readings of intent: each measure says what is counted. Leaves out how policies
fail (failures), success and its tests (evaluation) and the formulas (statistics).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from agentkit.evaluation import SOLVED, Samples, flatten, statistics, tables
from agentkit.evaluation.evidence import TEXT_LIMIT, gave_up, stands, was_run, writes_code
from agentkit.records import Task, ToolResult, Trajectory
from agentkit.trajectories import call_key, needs_tools, plan_of, results_of, verifier_kind

_NO_PROSE = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)|<\|[^|<>]{1,40}\|>|</?think>", re.DOTALL)


@dataclass(frozen=True)
class Measure:
    """One behaviour as a ratio over trajectories: ``count`` gives (times it was done, occasions to do it)."""

    title: str
    meaning: str
    count: Callable[[Trajectory, Task], tuple[int, int]]
    share: bool = True  # in percent; otherwise a number for each occasion


def _after_failure(t: Trajectory) -> list[tuple[ToolResult, ...]]:
    """The calls of the turn that follows each turn with a failed call."""
    pairs = zip(t.turns, t.turns[1:], strict=False)
    return [later.results for turn, later in pairs if any(not result.ok for result in turn.results)]


def _retries(t: Trajectory, task: Task) -> tuple[int, int]:
    after = _after_failure(t)
    return sum(bool(results) for results in after), len(after)


def _recovers(t: Trajectory, task: Task) -> tuple[int, int]:
    after = _after_failure(t)
    return sum(bool(results) and all(r.ok for r in results) for results in after), len(after)


def _plans(t: Trajectory, task: Task) -> tuple[int, int]:
    if not t.turns or not t.turns[0].results:
        return 0, 0
    prose = _NO_PROSE.sub(" ", t.turns[0].text[:TEXT_LIMIT])
    return int(len(prose.split()) >= 3), 1


def _verifies(t: Trajectory, task: Task) -> tuple[int, int]:
    calling = [turn for turn in t.turns if turn.results]
    seen = [
        any(r.ok and t.answer and stands(t.answer, r.observation) for r in turn.results) for turn in calling
    ]
    return (int(seen.index(True) < len(seen) - 1), 1) if any(seen) else (0, 0)


def _repeats(t: Trajectory, task: Task) -> tuple[int, int]:
    calls = Counter(call_key(result) for result in results_of(t))
    return calls.total() - len(calls), calls.total()


def _calls_of_solved(t: Trajectory, task: Task) -> tuple[int, int]:
    return (len(results_of(t)), 1) if t.success is not None and t.success > SOLVED else (0, 0)


def _no_tool(t: Trajectory, task: Task) -> tuple[int, int]:
    return (int(not results_of(t)), 1) if needs_tools(task) and t.answer is not None else (0, 0)


def _skips(t: Trajectory, task: Task) -> tuple[int, int]:
    plan = plan_of(task)
    if not plan or t.answer is None or writes_code(task):  # a program may well be written in one go
        return 0, 0
    return int(len({call_key(result) for result in results_of(t) if result.ok}) < len(plan)), 1


def _ungrounded(t: Trajectory, task: Task) -> tuple[int, int]:
    if t.answer is None or not needs_tools(task):
        return 0, 0
    results = results_of(t)
    if verifier_kind(task) == "code":
        return int(not was_run(t.answer, results)), 1
    return int(not any(r.ok and stands(t.answer, r.observation) for r in results)), 1


def _gives_up(t: Trajectory, task: Task) -> tuple[int, int]:
    return int(t.answer is not None and gave_up(t.answer, task)), 1


MEASURES = {
    "retries": Measure(
        "Retries after a failed call", "turns with a failed call that are followed by another call", _retries
    ),
    "recovers": Measure(
        "Recovers from a failed call", "turns with a failed call whose next calls all work", _recovers
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
        "Calls in a solved trajectory", "tool calls for each right trajectory", _calls_of_solved, share=False
    ),
    "no_tool": Measure(
        "Shortcut: answers without any tool", "answers to tasks that need a tool, with no call", _no_tool
    ),
    "skips": Measure(
        "Shortcut: skips a planned step",
        "answers after fewer different working calls than the plan has",
        _skips,
    ),
    "ungrounded": Measure(
        "Shortcut: answer from nowhere", "answers that no tool had returned; programs never run", _ungrounded
    ),
    "gives_up": Measure("Gives up", "trajectories whose answer says that there is none", _gives_up),
}


@dataclass(frozen=True)
class Behaviour:
    """Behaviour of policies on the same tasks, with 95 % intervals clustered by task."""

    rates: dict[
        str, dict[str, dict[str, Any]]
    ]  # measure -> policy -> value, ci95, occasions; value None without occasion
    changes: list[dict[str, Any]]  # measure, a, b, diff, ci95, p, p_holm: each policy against the first

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy."""
        titles = {name: MEASURES[name].title for name in self.rates}
        return pd.DataFrame(
            {
                titles[name]: {policy: _rate_cell(name, rate) for policy, rate in own.items()}
                for name, own in self.rates.items()
            }
        ).T

    def sentences(self) -> list[str]:
        """One for each change that Holm's correction lets stand, or one that says that there is none."""
        shown = [change for change in self.changes if change["p_holm"] < statistics.ALPHA]
        if not shown:
            return [
                f"No behaviour changed by more than chance explains ({len(self.changes)} comparisons, Holm)."
            ]
        return [_change_sentence(change, self.rates[change["measure"]]) for change in shown]

    def _repr_html_(self) -> str:
        rules = [f"{m.title}: {m.meaning}." for m in (MEASURES[name] for name in self.rates)]
        return tables.to_html(
            self.table(), "Share of occasions; 95 % intervals over tasks in brackets", self.sentences(), rules
        )


def behaviour(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> Behaviour:
    """Measure what policies do, and what changed against the first of them (t test over tasks, Holm over all
    changes).

    Args:
        policies: trajectories by policy name, the baseline first.
        tasks: a suite that holds at least these tasks.
    """
    known = {task.id: task for task in tasks}
    flat = {name: flatten(samples) for name, samples in policies.items()}
    first, *others = flat
    rates: dict[str, dict[str, dict[str, Any]]] = {}
    changes = []
    for name, measure in MEASURES.items():
        pulls = {policy: _pulls(own, known, measure) for policy, own in flat.items()}
        rates[name] = {policy: _rate(own, measure) for policy, own in pulls.items()}
        changes += [
            {"measure": name, "a": first, "b": b, **_change(pulls[first], pulls[b])}
            for b in others
            if pulls[first] and pulls[b]
        ]
    corrected = statistics.holm([change["p"] for change in changes])
    return Behaviour(rates, [change | {"p_holm": p} for change, p in zip(changes, corrected, strict=True)])


_Pulls = tuple[float, dict[str, float], int]  # the ratio, each task's pull on it, occasions


def _pulls(trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], measure: Measure) -> _Pulls | None:
    counts: dict[str, np.ndarray] = {}
    for t in trajectories:
        counts[t.task_id] = counts.get(t.task_id, np.zeros(2)) + measure.count(t, tasks[t.task_id])
    totals = np.array(list(counts.values()), dtype=np.float64)
    if not totals.size or not totals[:, 1].sum():
        return None
    ratio, pulls = statistics.ratio_influence(totals[:, 0].copy(), totals[:, 1].copy())
    return ratio, dict(zip(counts, map(float, pulls), strict=True)), int(totals[:, 1].sum())


def _rate(found: _Pulls | None, measure: Measure) -> dict[str, Any]:
    if found is None:
        return {"value": None, "ci95": None, "occasions": 0}
    ratio, pulls, occasions = found
    interval = statistics.ratio_interval(
        ratio, np.array(list(pulls.values())), high=1.0 if measure.share else np.inf
    )
    return {"value": ratio, "ci95": interval, "occasions": occasions}


def _change(before: _Pulls, after: _Pulls) -> dict[str, Any]:
    """Difference of two ratios over the same tasks, by each task's pull on it."""
    shared = [task for task in before[1] if task in after[1]]
    difference = after[0] - before[0]
    moved = np.array([after[1][task] - before[1][task] for task in shared], dtype=np.float64) + difference
    still = float(np.ptp(moved)) < 1e-12
    interval = (
        [difference, difference] if still else statistics.mean_interval(moved, low=-np.inf, high=np.inf)
    )
    return {"diff": difference, "ci95": interval, "p": 1.0 if still else statistics.mean_p(moved)}


def _rate_cell(name: str, rate: Mapping[str, Any]) -> str:
    if rate["value"] is None:
        return "– (no occasion)"
    if MEASURES[name].share:
        return f"{tables.percent(rate['value'], rate['ci95'])} of {rate['occasions']}"
    bounds = f" [{rate['ci95'][0]:.2f}, {rate['ci95'][1]:.2f}]" if rate["ci95"] else ""
    return f"{rate['value']:.2f}{bounds}"


def _change_sentence(change: Mapping[str, Any], rates: Mapping[str, Mapping[str, Any]]) -> str:
    name, before, after = (change["measure"], rates[change["a"]]["value"], rates[change["b"]]["value"])
    shown = [f"{100 * v:.1f} %" if MEASURES[name].share else f"{v:.2f}" for v in (before, after)]
    return f"{MEASURES[name].title}: {change['a']} {shown[0]}, {change['b']} {shown[1]} (p = {change['p_holm']:.2g} after Holm)."
