"""What a policy does and how it fails: behaviour measured on trajectories, each failure in exactly one class, and examples.

Everything is computed from the record (calls, observations, answer, stop reason) and, where the task has one, its plan: any
tool environment will do. These are stated rules, not readings of intent: each measure says what is counted. Leaves out
success and its tests (evaluation), the formulas (statistics) and showing trajectories (widgets).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from agentkit import statistics, tables
from agentkit.evaluation import SOLVED, Samples, flatten, task_success
from agentkit.records import StopReason, Task, ToolResult, Trajectory
from agentkit.verifiers import normalize, parse_number

_TEXT_LIMIT = 20_000  # characters of one observation or answer that are searched
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]{0,40}(?:\.\d{1,40})?(?![\w])")
_NO_PROSE = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)|<\|[^|<>]{1,40}\|>|</?think>", re.DOTALL)
_GIVING_UP = re.compile(
    r"\b(?:could ?n[o']t|cannot|can't|unable to|not able to|do(?:es)? ?n[o']t (?:know|say|exist)|"
    r"no (?:answer|information|results?)|not (?:found|available|known)|unknown|sorry)\b",
    re.IGNORECASE,
)


# ---- behaviour -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Measure:
    """One behaviour as a ratio over trajectories: ``count`` gives (times it was done, occasions to do it)."""

    title: str
    meaning: str
    count: Callable[[Trajectory, Task], tuple[int, int]]
    share: bool = True  # in percent; otherwise a number for each occasion


def _results(t: Trajectory) -> list[ToolResult]:
    return [result for turn in t.turns for result in turn.results]


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
    prose = _NO_PROSE.sub(" ", t.turns[0].text[:_TEXT_LIMIT])
    return int(len(prose.split()) >= 3), 1


def _verifies(t: Trajectory, task: Task) -> tuple[int, int]:
    calling = [turn for turn in t.turns if turn.results]
    seen = [any(r.ok and t.answer and _stands(t.answer, r.observation) for r in turn.results) for turn in calling]
    return (int(seen.index(True) < len(seen) - 1), 1) if any(seen) else (0, 0)


def _repeats(t: Trajectory, task: Task) -> tuple[int, int]:
    calls = Counter(_key(result) for result in _results(t))
    return calls.total() - len(calls), calls.total()


def _calls_of_solved(t: Trajectory, task: Task) -> tuple[int, int]:
    return (len(_results(t)), 1) if t.success is not None and t.success > SOLVED else (0, 0)


def _no_tool(t: Trajectory, task: Task) -> tuple[int, int]:
    return (int(not _results(t)), 1) if _needs_tools(task) and t.answer is not None else (0, 0)


def _skips(t: Trajectory, task: Task) -> tuple[int, int]:
    plan = _plan(task)
    if not plan or t.answer is None:
        return 0, 0
    return int(len({_key(result) for result in _results(t) if result.ok}) < len(plan)), 1


def _ungrounded(t: Trajectory, task: Task) -> tuple[int, int]:
    if t.answer is None or not _needs_tools(task):
        return 0, 0
    return int(not any(r.ok and _stands(t.answer, r.observation) for r in _results(t))), 1


def _gives_up(t: Trajectory, task: Task) -> tuple[int, int]:
    return int(t.answer is not None and _gave_up(t.answer, task)), 1


MEASURES = {
    "retries": Measure("Retries after a failed call", "turns with a failed call that are followed by another call", _retries),
    "recovers": Measure("Recovers from a failed call", "turns with a failed call whose next calls all work", _recovers),
    "plans": Measure("Plans before acting", "first turns that call a tool and say at least three words beside it", _plans),
    "verifies": Measure(
        "Verifies before answering", "answers that a tool had returned before the last round of calls", _verifies
    ),
    "repeats": Measure("Repeats a call it has made", "calls whose name and arguments came before in the trajectory", _repeats),
    "calls": Measure("Calls in a solved trajectory", "tool calls for each right trajectory", _calls_of_solved, share=False),
    "no_tool": Measure("Shortcut: answers without any tool", "answers to tasks that need a tool, with no call", _no_tool),
    "skips": Measure("Shortcut: skips a planned step", "answers after fewer different working calls than the plan has", _skips),
    "ungrounded": Measure("Shortcut: answer from nowhere", "answers that no tool had returned", _ungrounded),
    "gives_up": Measure("Gives up", "trajectories whose answer says that there is none", _gives_up),
}


@dataclass(frozen=True)
class Behaviour:
    """Behaviour of policies on the same tasks, with 95 % intervals clustered by task."""

    rates: dict[str, dict[str, dict[str, Any]]]  # measure -> policy -> value, ci95, occasions; value None without occasion
    changes: list[dict[str, Any]]  # measure, a, b, diff, ci95, p, p_holm: each policy against the first

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy."""
        titles = {name: MEASURES[name].title for name in self.rates}
        return pd.DataFrame(
            {titles[name]: {policy: _rate_cell(name, rate) for policy, rate in own.items()} for name, own in self.rates.items()}
        ).T

    def sentences(self) -> list[str]:
        """One for each change that Holm's correction lets stand, or one that says that there is none."""
        shown = [change for change in self.changes if change["p_holm"] < statistics.ALPHA]
        if not shown:
            return [f"No behaviour changed by more than chance explains ({len(self.changes)} comparisons, Holm)."]
        return [_change_sentence(change, self.rates[change["measure"]]) for change in shown]

    def _repr_html_(self) -> str:
        rules = [f"{m.title}: {m.meaning}." for m in (MEASURES[name] for name in self.rates)]
        return tables.to_html(self.table(), "Share of occasions; 95 % intervals over tasks in brackets", self.sentences(), rules)


def behaviour(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> Behaviour:
    """Measure what policies do, and what changed against the first of them (t test over tasks, Holm over all changes).

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
            {"measure": name, "a": first, "b": b, **_change(pulls[first], pulls[b])} for b in others if pulls[first] and pulls[b]
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
    values = np.array(list(pulls.values())) + ratio
    known = values.size > 1 and (measure.share or np.ptp(values) > 0)
    interval = statistics.mean_interval(values, low=0.0, high=1.0 if measure.share else float("inf")) if known else None
    return {"value": ratio, "ci95": interval, "occasions": occasions}


def _change(before: _Pulls, after: _Pulls) -> dict[str, Any]:
    """Difference of two ratios over the same tasks, by each task's pull on it."""
    shared = [task for task in before[1] if task in after[1]]
    difference = after[0] - before[0]
    moved = np.array([after[1][task] - before[1][task] for task in shared], dtype=np.float64) + difference
    still = float(np.ptp(moved)) < 1e-12
    interval = [difference, difference] if still else statistics.mean_interval(moved, low=-np.inf, high=np.inf)
    return {"diff": difference, "ci95": interval, "p": 1.0 if still else statistics.mean_p(moved)}


def _rate_cell(name: str, rate: Mapping[str, Any]) -> str:
    if rate["value"] is None:
        return "– (no occasion)"
    if MEASURES[name].share:
        return f"{tables.percent(rate['value'], rate['ci95'])} of {rate['occasions']}"
    bounds = f" [{rate['ci95'][0]:.2f}, {rate['ci95'][1]:.2f}]" if rate["ci95"] else ""
    return f"{rate['value']:.2f}{bounds}"


def _change_sentence(change: Mapping[str, Any], rates: Mapping[str, Mapping[str, Any]]) -> str:
    name, before, after = change["measure"], rates[change["a"]]["value"], rates[change["b"]]["value"]
    shown = [f"{100 * v:.1f} %" if MEASURES[name].share else f"{v:.2f}" for v in (before, after)]
    return f"{MEASURES[name].title}: {change['a']} {shown[0]}, {change['b']} {shown[1]} (p = {change['p_holm']:.2g} after Holm)."


# ---- failures --------------------------------------------------------------------------------------------------------
FAILURES = {
    "engine failed": "the engine or the environment broke, not the policy",
    "out of time": "the trajectory's wall-clock budget ran out",
    "went in circles": "a limit was reached after one and the same call at least three times",
    "out of turns": "the last allowed turn still called a tool",
    "out of tokens": "a turn or the whole completion reached its token budget",
    "no answer": "the last turn held no answer that could be read",
    "gave up": "the answer says that there is none",
    "answer form": "the right answer stands in it, but with others, or rounded or written so that it does not count",
    "no tool used": "a task that needs a tool was answered without any",
    "no call worked": "every tool call failed",
    "lookup skipped": "a fact the plan needs was never seen, and fewer lookups were made than planned",
    "lookup missed": "a fact that is needed was never seen, though enough lookups were made: the wrong thing was asked for",
    "misreported": "a tool had returned the right answer, and another was given",
    "stopped after a failed call": "the last call failed and was not repaired",
    "step skipped": "the facts were there, and a later planned step, such as the calculation, was done in the head",
    "wrong operands": "the later step was called without one of the facts found, a copying error for instance",
    "wrong operation": "the later step was called with all facts found and did something else with them",
    "wrong result": "the tools worked and the answer is wrong; the task has no plan that says more",
}


def failure_class(t: Trajectory, task: Task) -> str:
    """The one class of FAILURES a failed trajectory belongs to: the first whose rule holds, in the order listed there."""
    if ended := _ended(t):
        return ended
    if not (t.answer or "").strip():
        return "no answer"
    if _gave_up(t.answer, task):
        return "gave up"
    if _right_in_other_form(t.answer, task.answer):
        return "answer form"
    results = _results(t)
    if not results and _needs_tools(task):
        return "no tool used"
    if results and not any(r.ok for r in results):
        return "no call worked"
    return _evidence(task, results) or _steps(task, results)


def _ended(t: Trajectory) -> str | None:
    """A class that the stop reason alone decides."""
    limited = {
        StopReason.TURN_LIMIT: "out of turns",
        StopReason.TOKEN_LIMIT: "out of tokens",
        StopReason.TRUNCATED_TURN: "out of tokens",
    }
    if t.stop_reason in (StopReason.ERROR, StopReason.TIME_LIMIT):
        return "engine failed" if t.stop_reason is StopReason.ERROR else "out of time"
    if t.stop_reason in limited:
        calls = Counter(_key(result) for result in _results(t) if result.name)
        return "went in circles" if max(calls.values(), default=0) >= 3 else limited[t.stop_reason]
    return None


def _evidence(task: Task, results: Sequence[ToolResult]) -> str | None:
    """What went wrong with finding and reporting facts, or None."""
    seen = [r.observation for r in results if r.ok]
    needed = [step for step in _plan(task) if step.get("expect") is not None]
    missing = [step["tool"] for step in needed if not any(_stands(str(step["expect"]), text) for text in seen)]
    if missing:
        planned = sum(step["tool"] in missing for step in needed)
        made = len({_key(r) for r in results if r.ok and r.name in missing})
        return "lookup skipped" if made < planned else "lookup missed"
    told = not _stands(task.answer, task.prompt) and any(_stands(task.answer, text) for text in seen)
    keys = [key for key, value in _answer_if(task).items() if value == task.answer]
    if told or (seen and any(_stands(key, seen[-1]) for key in keys)):
        return "misreported"
    if not _plan(task) and _kind(task) == "exact" and not _stands(task.answer, task.prompt):
        return "lookup missed"
    return None


def _steps(task: Task, results: Sequence[ToolResult]) -> str:
    """What went wrong with the steps that come after finding the facts."""
    if results and not results[-1].ok:
        return "stopped after a failed call"
    later = {step["tool"] for step in _plan(task) if step.get("expect") is None}
    facts = [str(step["expect"]) for step in _plan(task) if step.get("expect") is not None]
    arguments = [json.dumps(r.arguments, ensure_ascii=False, default=str) for r in results if r.ok and r.name in later]
    if later and not arguments:
        return "step skipped"
    if later and facts:
        used = all(any(_stands(fact, text) for text in arguments) for fact in facts)
        return "wrong operation" if used else "wrong operands"
    return "wrong result"


@dataclass(frozen=True)
class Failures:
    """Failed trajectories of each policy by class."""

    counts: dict[str, dict[str, int]]  # class -> policy -> failed trajectories; classes that occur, in the order of FAILURES
    totals: dict[str, int]  # policy -> scored trajectories
    unscored: dict[str, int]  # policy -> trajectories the verifier could not judge: in no class

    def table(self) -> pd.DataFrame:
        """One row a class, one column a policy: trajectories and their share of the scored ones."""
        rows = {name: {p: self._cell(p, n) for p, n in own.items()} for name, own in self.counts.items()}
        failed = {p: self._cell(p, sum(own[p] for own in self.counts.values())) for p in self.totals}
        return pd.DataFrame(rows | {"all failures": failed}, index=list(self.totals)).T

    def _cell(self, policy: str, n: int) -> str:
        return f"{n} ({n / self.totals[policy]:.1%})" if self.totals[policy] else "–"

    def sentences(self) -> list[str]:
        """How many failed in the most common way under each policy, and what shrank or grew most from first to last."""
        said = []
        for policy, total in self.totals.items():
            own = {name: counts[policy] for name, counts in self.counts.items() if counts[policy]}
            worst = max(own, key=own.get, default=None)
            failed = f"{policy}: {sum(own.values())} of {total} trajectories failed"
            said.append(f"{failed}, most often “{worst}” ({own[worst]}): {FAILURES[worst]}." if worst else f"{failed}.")
        first, last = list(self.totals)[0], list(self.totals)[-1]
        if first != last and self.counts:
            change = {
                n: c[last] / max(self.totals[last], 1) - c[first] / max(self.totals[first], 1) for n, c in self.counts.items()
            }
            ends = {"fell": min(change, key=change.get), "rose": max(change, key=change.get)}
            moved = [f"“{n}” {how} most ({100 * change[n]:+.1f} points)" for how, n in ends.items()
                     if (change[n] < 0) == (how == "fell") and change[n]]  # fmt: skip
            said += [f"From {first} to {last}, {' and '.join(moved)}."] * bool(moved)
        return said

    def _repr_html_(self) -> str:
        rules = [f"{name}: {FAILURES[name]}." for name in self.counts]
        notes = self.sentences() + [
            f"{p}: {n} trajectories could not be scored and are in no class." for p, n in self.unscored.items() if n
        ]
        return tables.to_html(self.table(), "Failed trajectories, and their share of all scored ones", notes, rules)


def failures(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> Failures:
    """Put every failed trajectory (success of SOLVED or less) into exactly one class; unscored ones are only counted."""
    known = {task.id: task for task in tasks}
    scored = {name: [t for t in flatten(own) if t.success is not None] for name, own in policies.items()}
    found = {
        name: Counter(failure_class(t, known[t.task_id]) for t in own if t.success <= SOLVED) for name, own in scored.items()
    }
    counts = {c: {name: own[c] for name, own in found.items()} for c in FAILURES if any(own[c] for own in found.values())}
    unscored = {name: len(flatten(own)) - len(scored[name]) for name, own in policies.items()}
    return Failures(counts, {name: len(own) for name, own in scored.items()}, unscored)


# ---- examples --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Examples:
    """Tasks to read, chosen by the stated rule."""

    gained: list[str]  # ids: the first policy failed, the second solves
    failing: list[str]  # ids: both fail
    rule: str
    table: pd.DataFrame  # one row a task, in this order

    def _repr_html_(self) -> str:
        return tables.to_html(self.table, f"{len(self.gained)} gained, {len(self.failing)} still failing", [self.rule])


def examples(policies: Mapping[str, Samples], tasks: Iterable[Task], *, gained: int = 10, failing: int = 5) -> Examples:
    """Choose tasks that the first policy failed and the last solves, and some that both fail, as different as possible.

    Args:
        policies: trajectories by policy name; the first and the last are compared.
        tasks: a suite that holds at least these tasks.
        gained: how many of the first kind, where there are as many.
        failing: how many of the second kind.
    """
    known = {task.id: task for task in tasks}
    (a, before), (b, after) = list(policies.items())[0], list(policies.items())[-1]
    rate_a, rate_b = task_success(before), task_success(after)
    shared = [i for i in rate_a if i in rate_b]
    kind_a, kind_b = _common_failure(before, known), _common_failure(after, known)
    chosen = []
    for wanted, kinds, clear in (
        (gained, kind_a, {i: rate_b[i] - rate_a[i] for i in shared if rate_a[i] <= SOLVED < rate_b[i]}),
        (failing, kind_b, {i: -rate_b[i] for i in shared if max(rate_a[i], rate_b[i]) <= SOLVED}),
    ):
        labels = {i: (known[i].family, known[i].difficulty, kinds.get(i)) for i in clear}
        chosen.append(_diverse(labels, clear, wanted))
    rows = {
        f"{number}. {'solved now' if i in chosen[0] else 'still fails'}": {
            "task": known[i].prompt if len(known[i].prompt) <= 90 else known[i].prompt[:89] + "…",
            "category": known[i].family,
            "difficulty": known[i].difficulty,
            a: f"{rate_a[i]:.0%}",
            b: f"{rate_b[i]:.0%}",
            "how it failed": (kind_a if i in chosen[0] else kind_b).get(i, ""),
        }
        for number, i in enumerate(chosen[0] + chosen[1], start=1)
    }
    rule = (
        f"Of the tasks that {a} fails and {b} solves (more than half of the samples right), and of those that both fail, each "
        "next one is that whose category, difficulty and most common failure are rarest among those chosen so far; ties go to "
        f"the larger rise in success, for failing tasks to the lower success of {b}, then to the smaller id."
    )
    return Examples(*chosen, rule, pd.DataFrame(rows).T)


def _common_failure(samples: Samples, tasks: Mapping[str, Task]) -> dict[str, str]:
    """Each task's most common failure class."""
    found: dict[str, Counter] = {}
    for t in flatten(samples):
        if t.success is not None and t.success <= SOLVED:
            found.setdefault(t.task_id, Counter())[failure_class(t, tasks[t.task_id])] += 1
    return {task: classes.most_common(1)[0][0] for task, classes in found.items()}


def _diverse(labels: Mapping[str, tuple], clear: Mapping[str, float], wanted: int) -> list[str]:
    used = [Counter() for _ in range(3)]
    chosen: list[str] = []
    while len(chosen) < min(wanted, len(labels)):
        left = (i for i in labels if i not in chosen)
        best = min(left, key=lambda i: (sum(c[x] for c, x in zip(used, labels[i], strict=True)), -clear[i], i))
        chosen.append(best)
        for counter, label in zip(used, labels[best], strict=True):
            counter[label] += 1
    return chosen


# ---- reading trajectories --------------------------------------------------------------------------------------------
def _key(result: ToolResult) -> tuple[str, str]:
    """A call as written, whatever the order of its arguments."""
    return result.name, json.dumps(result.arguments, sort_keys=True, default=str)


def _plan(task: Task) -> list[dict]:
    plan = task.meta.get("plan")
    return [step for step in plan if isinstance(step, dict) and step.get("tool")] if isinstance(plan, list) else []


def _answer_if(task: Task) -> dict:
    found = task.meta.get("answer_if")
    return found if isinstance(found, dict) else {}


def _kind(task: Task) -> str:
    return task.verifier if isinstance(task.verifier, str) else str(task.verifier.get("kind"))


def _needs_tools(task: Task) -> bool:
    return bool(task.tools) and task.meta.get("plan") != []


def _gave_up(answer: str, task: Task) -> bool:
    return len(answer) < 400 and bool(_GIVING_UP.search(answer)) and not _GIVING_UP.search(task.answer)


def _numbers(text: str) -> set[float]:
    return {float(n.replace(",", "").replace("−", "-")) for n in _NUMBER.findall(text[:_TEXT_LIMIT])}


def _stands(value: str, text: str) -> bool:
    """Whether a text holds this value: as one of its numbers, or as words in a row, case and punctuation aside."""
    number = parse_number(value) if len(value) < 100 else None
    if number is not None:
        return number in _numbers(text)
    words = normalize(value[:_TEXT_LIMIT])
    return bool(words) and f" {words} " in f" {normalize(text[:_TEXT_LIMIT])} "


def _right_in_other_form(answer: str, gold: str) -> bool:
    if _stands(gold, answer):
        return True
    found, wanted = parse_number(answer) if len(answer) < 100 else None, parse_number(gold) if len(gold) < 100 else None
    if found is None or wanted is None:
        return False
    decimals = [len(text.strip().partition(".")[2]) for text in (answer, gold)]
    fewer = min(decimals)
    return decimals[0] != decimals[1] and abs(round(found, fewer) - round(wanted, fewer)) < 1e-9
