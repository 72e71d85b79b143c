"""From scored trajectories to numbers that can be defended: success with intervals, paired tests, the comparison table.

The task is the unit of evidence: samples of one task are averaged first, and every interval and test is over tasks.
Leaves out: sampling and scoring (rollouts, verifiers), figures (plots) and showing trajectories (widgets).
"""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from agentkit.records import Task, Trajectory

RESAMPLES = 9999  # of bootstrap and permutation; the smallest two-sided permutation p is 2 / (RESAMPLES + 1)
SOLVED = 0.5  # a task is solved when its success rate is above this: more than half of its samples are right
_SEED = 0
_DIFFICULTIES = ("easy", "medium", "hard")
_TESTS = {"mcnemar_exact": "exact McNemar", "sign_flip_permutation": "sign-flip permutation over tasks"}


# ---- one policy ------------------------------------------------------------------------------------------------------
def summarize(trajectories: Sequence[Trajectory], tasks: Iterable[Task] | None = None) -> dict[str, Any]:
    """Measure one policy.

    Args:
        trajectories: one or several samples a task; those with success None are left out of success and counted.
        tasks: a suite that holds at least these tasks; without it there is no breakdown by category and difficulty.

    Returns:
        The policy's entry of comparison.json. A figure with nothing to measure (no tool call, no success) is None.

    Raises:
        ValueError: there is nothing to measure, a success is outside [0, 1], or a task is not in ``tasks``.
    """
    values = _values(trajectories)
    if not any(values.values()):
        raise ValueError(f"none of the {len(trajectories)} trajectories is scored. Verify them first.")
    results = [result for t in trajectories for turn in t.turns for result in turn.results]
    solved = [len(t.turns) for t in trajectories if t.success is not None and t.success > SOLVED]
    family, difficulty = _labels(values, tasks)
    return {
        **_measure(values),
        "samples": _whole(len(trajectories) / len(values)),
        "unscored": sum(t.success is None for t in trajectories),
        "by_category": _breakdown(values, family, sorted),
        "by_difficulty": _breakdown(values, difficulty, _easy_first),
        "turns_solved": fmean(solved) if solved else None,
        "tool_failure_rate": fmean(not result.ok for result in results) if results else None,
        "tokens": fmean(len(t.completion_ids) for t in trajectories),
    }


def task_success(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Mean success of each task's scored samples. A task with no scored sample is left out."""
    return {task: fmean(values) for task, values in _values(trajectories).items() if values}


def _values(trajectories: Iterable[Trajectory]) -> dict[str, list[float]]:
    """Scored successes by task id, in order of first appearance; an empty list where no sample is scored."""
    values: dict[str, list[float]] = {}
    for t in trajectories:
        scored = values.setdefault(t.task_id, [])
        if t.success is None:
            continue
        if not 0.0 <= t.success <= 1.0:  # also catches NaN
            raise ValueError(f"task {t.task_id}, sample {t.sample}: success is {t.success}, which is not in [0, 1].")
        scored.append(float(t.success))
    if not values:
        raise ValueError("there is no trajectory to measure. Roll out the policy first.")
    return values


def _measure(values: Mapping[str, list[float]]) -> dict[str, Any]:
    """Success, its 95 % interval and the number of tasks with a scored sample."""
    scored = [v for v in values.values() if v]
    if not scored:
        return {"success": None, "ci95": None, "n": 0}
    means = np.array([fmean(v) for v in scored], dtype=np.float64)
    return {"success": float(means.mean()), "ci95": success_interval(means, _single(scored)), "n": len(scored)}


def _single(scored: Iterable[list[float]]) -> bool:
    """One sample a task, each right or wrong: what Wilson's interval and McNemar's test are about."""
    return all(len(v) == 1 and v[0] in (0.0, 1.0) for v in scored)


def _labels(values: Mapping[str, Any], tasks: Iterable[Task] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Family and difficulty of each measured task; both empty without tasks."""
    if tasks is None:
        return {}, {}
    known = {task.id: task for task in tasks}
    _same_tasks("the trajectories", values, "the given tasks", known, both_ways=False)
    return {i: known[i].family for i in values}, {i: known[i].difficulty for i in values}


def _breakdown(values: Mapping[str, list[float]], label: Mapping[str, str], order: Callable) -> dict[str, dict]:
    names = order(set(label.values()))
    return {name: _measure({i: v for i, v in values.items() if label[i] == name}) for name in names}


def _easy_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda n: (_DIFFICULTIES.index(n) if n in _DIFFICULTIES else len(_DIFFICULTIES), n))


def _whole(number: float) -> int | float:
    return int(number) if number == int(number) else round(number, 2)


# ---- intervals and tests ---------------------------------------------------------------------------------------------
def success_interval(means: np.ndarray, single: bool) -> list[float]:
    """95 % interval of the mean success, over tasks.

    Args:
        means: success of each task in [0, 1], shape (N,).
        single: one right-or-wrong sample a task, where Wilson's interval holds; otherwise a bootstrap over tasks.
    """
    assert means.ndim == 1 and means.size and means.dtype == np.float64
    if not single:
        return bootstrap_interval(means, low=0.0, high=1.0)
    from statsmodels.stats.proportion import proportion_confint

    interval = proportion_confint(round(float(means.sum())), means.size, alpha=0.05, method="wilson")
    return [min(max(float(bound), 0.0), 1.0) for bound in interval]


def bootstrap_interval(values: np.ndarray, *, low: float, high: float) -> list[float]:
    """95 % percentile bootstrap interval of the mean, with a fixed seed.

    Where all values are equal the bootstrap would claim certainty. Then the exact binomial bound on the unseen says how
    many tasks could differ, and the interval is what the mean would be if those lay at ``low`` or at ``high``.

    Args:
        values: one value a task, shape (N,).
        low: the smallest value possible.
        high: the largest value possible.
    """
    assert values.ndim == 1 and values.size and values.dtype == np.float64
    n, mean = values.size, float(values.mean())
    if np.ptp(values) < 1e-12:
        unseen = 1 - 0.025 ** (1 / n)
        return [mean - (mean - low) * unseen, mean + (high - mean) * unseen]
    rng = np.random.default_rng(_SEED)
    chunks = np.array_split(np.arange(RESAMPLES), max(1, RESAMPLES * n // 1_000_000))  # bounds the memory
    resampled = np.concatenate([values[rng.integers(0, n, (len(chunk), n))].mean(axis=1) for chunk in chunks])
    return [float(bound) for bound in np.percentile(resampled, [2.5, 97.5])]


def sign_flip_p(differences: np.ndarray) -> float:
    """Two-sided p of "the two policies are exchangeable within each task"; exact for up to 13 differing tasks.

    Args:
        differences: per-task difference of mean success, shape (N,).
    """
    from scipy.stats import permutation_test

    assert differences.ndim == 1 and differences.dtype == np.float64
    differing = differences[np.abs(differences) > 1e-12]  # a sign flip leaves zeros alone
    if differing.size < 2:
        return 1.0
    test = permutation_test(
        (differing,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=1000,
        rng=np.random.default_rng(_SEED),
    )
    return float(test.pvalue)


def mcnemar_p(before: np.ndarray, after: np.ndarray) -> float:
    """Two-sided exact McNemar p of two right-or-wrong outcomes of the same tasks, each of shape (N,)."""
    from statsmodels.stats.contingency_tables import mcnemar

    assert before.shape == after.shape and before.ndim == 1
    table = [[int(np.sum((before == i) & (after == j))) for j in (1, 0)] for i in (1, 0)]
    return max(min(float(mcnemar(table, exact=True).pvalue), 1.0), sys.float_info.min)  # 2**-n underflows for huge n


# ---- several policies ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Comparison:
    """Policies measured on the same tasks. ``to_json`` is comparison.json; ``Comparison(**json)`` reads it back."""

    n_tasks: int
    policies: dict[str, dict[str, Any]]  # summarize() of each, with "greedy": {success, ci95, n} where it was measured
    paired: list[dict[str, Any]]  # for each pair (earlier, later): a, b, diff, ci95, p, test, n
    flipped: dict[str, dict[str, list[str]]]  # "a->b": ids of the tasks that went to_right and to_wrong

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None."""
        return asdict(self)

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy, as text with intervals."""
        return pd.DataFrame({name: _column(entry, self._rows()) for name, entry in self.policies.items()})

    def _rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Row titles with the path of each in a policy's entry."""
        entries = self.policies.values()
        categories = sorted({c for e in entries for c in e["by_category"]})
        difficulties = _easy_first({d for e in entries for d in e["by_difficulty"]})
        greedy = any("greedy" in e for e in entries)
        return [
            ("Overall success", ()),
            *([("Overall success, greedy", ("greedy",))] if greedy else []),
            *((f"Category {c}", ("by_category", c)) for c in categories),
            *((f"Difficulty {d}", ("by_difficulty", d)) for d in difficulties),
            ("Average turns (successful tasks)", ("turns_solved",)),
            ("Tool call failure rate", ("tool_failure_rate",)),
            ("Average tokens per task", ("tokens",)),
        ]

    def sentences(self) -> list[str]:
        """Each paired result in words."""
        return [_sentence(pair, self.flipped[f"{pair['a']}->{pair['b']}"]) for pair in self.paired]

    def _repr_html_(self) -> str:
        table = self.table()
        head = "".join(f"<th>{html.escape(str(name))}</th>" for name in table.columns)
        body = "".join(
            f"<tr><th>{html.escape(str(row))}</th>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>"
            for row, cells in zip(table.index, table.to_numpy(), strict=True)
        )
        notes = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.sentences())
        caption = f"{self.n_tasks} tasks; 95 % intervals over tasks in brackets"
        rows = f"<thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody>"
        shown = f"<style>{_CSS}</style><table><caption>{caption}</caption>{rows}</table>{notes}"
        return f'<div class="agentkit-comparison">{shown}</div>'


def compare(
    policies: Mapping[str, Sequence[Trajectory]],
    tasks: Iterable[Task] | None = None,
    greedy: Mapping[str, Sequence[Trajectory]] | None = None,
) -> Comparison:
    """Measure policies on the same tasks and test every pair (earlier, later).

    The test is exact McNemar where every task has one right-or-wrong sample, else a sign-flip permutation test on task
    means. A task that either policy of a pair has no scored sample of is left out of that pair.

    Args:
        policies: trajectories by policy name, the baseline first.
        tasks: a suite that holds at least these tasks, for the breakdowns.
        greedy: greedy trajectories by policy name, measured beside the sampled ones.

    Raises:
        ValueError: policies cover different tasks, share no scored task, or have nothing to measure.
    """
    if not policies:
        raise ValueError("there is no policy to compare. Pass {'sft': trajectories, 'grpo': trajectories}.")
    tasks = None if tasks is None else list(tasks)
    values = {name: _named(name, _values, trajectories) for name, trajectories in policies.items()}
    first, covered = next(iter(values.items()))
    entries = {name: _named(name, summarize, t, tasks) for name, t in policies.items()}
    for name, own in values.items():
        _same_tasks(first, covered, name, own)
    for name, trajectories in (greedy or {}).items():
        if name not in entries:
            raise ValueError(f"greedy trajectories of {name!r}, which is not among the policies {sorted(entries)}.")
        own = _named(f"{name}, greedy", _values, trajectories)
        _same_tasks(name, values[name], f"{name}, greedy", own)
        entries[name] = entries[name] | {"greedy": _measure(own)}
    pairs = list(combinations(values, 2))
    paired = [_pair(a, b, values[a], values[b]) for a, b in pairs]
    flipped = {f"{a}->{b}": _flips(values[a], values[b]) for a, b in pairs}
    return Comparison(len(covered), entries, paired, flipped)


def _named(name: str, function: Callable, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _same_tasks(a: str, ids_a: Iterable[str], b: str, ids_b: Iterable[str], both_ways: bool = True) -> None:
    for holder, lacking, missing in [(a, b, set(ids_a) - set(ids_b)), (b, a, set(ids_b) - set(ids_a))]:
        if missing and (both_ways or lacking == b):
            shown = ", ".join(sorted(missing)[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise ValueError(f"tasks of {holder} missing in {lacking} ({len(missing)}): {shown}. Use the same tasks.")


def _pair(a: str, b: str, values_a: dict[str, list[float]], values_b: dict[str, list[float]]) -> dict[str, Any]:
    both = [i for i in values_a if values_a[i] and values_b[i]]
    if not both:
        raise ValueError(f"{a} and {b} share no task that is scored for both. Score more trajectories.")
    before, after = (np.array([fmean(v[i]) for i in both], dtype=np.float64) for v in (values_a, values_b))
    single = _single(v[i] for v in (values_a, values_b) for i in both)
    difference = after - before
    return {
        "a": a,
        "b": b,
        "diff": float(difference.mean()),
        "ci95": bootstrap_interval(difference, low=-1.0, high=1.0),
        "p": mcnemar_p(before, after) if single else sign_flip_p(difference),
        "test": "mcnemar_exact" if single else "sign_flip_permutation",
        "n": len(both),
    }


def _flips(values_a: dict[str, list[float]], values_b: dict[str, list[float]]) -> dict[str, list[str]]:
    both = [i for i in values_a if values_a[i] and values_b[i]]
    solved = {i: (fmean(values_a[i]) > SOLVED, fmean(values_b[i]) > SOLVED) for i in both}
    return {
        "to_right": [i for i, now in solved.items() if now == (False, True)],
        "to_wrong": [i for i, now in solved.items() if now == (True, False)],
    }


# ---- numbers as text -------------------------------------------------------------------------------------------------
_CSS = """
.agentkit-comparison {font: 14px/1.5 system-ui, sans-serif; color: inherit; overflow-x: auto}
.agentkit-comparison table {border-collapse: collapse; margin: 0 0 .6em; font-variant-numeric: tabular-nums}
.agentkit-comparison caption {text-align: left; padding: 0 .8em .4em 0; opacity: .75}
.agentkit-comparison :is(th, td) {padding: .3em .9em; text-align: right; white-space: nowrap; background: none}
.agentkit-comparison :is(th, td) {border: 0 solid rgba(128, 128, 128, .4); border-bottom-width: 1px}
.agentkit-comparison tbody th {text-align: left !important; font-weight: normal}
.agentkit-comparison p {margin: .2em 0}
"""


def _column(entry: dict[str, Any], rows: list[tuple[str, tuple[str, ...]]]) -> pd.Series:
    cells = {}
    for title, path in rows:
        value: Any = entry
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        cells[title] = _cell(path[-1] if path else "", value)
    return pd.Series(cells, dtype=object)


def _cell(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return "–" if value["success"] is None else percent(value["success"], value["ci95"])
    if value is None:
        return "–"
    return percent(value) if key == "tool_failure_rate" else f"{value:.2f}" if key == "turns_solved" else f"{value:.0f}"


def percent(share: float, interval: Sequence[float] | None = None) -> str:
    """A share as text: 0.52 -> "52.0 %", with its interval "52.0 % [45.0, 59.0]"."""
    bounds = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    return f"{100 * share:.1f} %{bounds}"


def _sentence(pair: dict[str, Any], flips: dict[str, list[str]]) -> str:
    low, high = (100 * bound for bound in pair["ci95"])
    return (
        f"{pair['a']} → {pair['b']}: {100 * pair['diff']:+.1f} points [{low:+.1f}, {high:+.1f}], p = {pair['p']:.2g} "
        f"({_TESTS.get(pair['test'], pair['test'])}, {pair['n']} tasks); "
        f"{len(flips['to_right'])} tasks went from wrong to right, {len(flips['to_wrong'])} from right to wrong."
    )
