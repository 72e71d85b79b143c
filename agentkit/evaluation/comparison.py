"""Several policies on the same tasks: every pair tested, with a verdict, and the table.

Leaves out how numbers are said in words (tables) and the formulas (statistics).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from agentkit.evaluation import statistics, tables
from agentkit.evaluation.statistics import ALPHA
from agentkit.evaluation.summary import (
    SOLVED,
    Samples,
    Values,
    easy_first,
    labels_of,
    measure,
    named,
    rate,
    rates,
    same_tasks,
    single_samples,
    split_by,
    summarize,
    task_success,
    values_of,
)
from agentkit.records import Task
from agentkit.runs import RunError

BREAKDOWNS = {"by_category": sorted, "by_difficulty": easy_first}


@dataclass(frozen=True)
class Comparison:
    """Policies measured on the same tasks. ``to_json`` is comparison.json; ``from_json`` reads it back."""

    n_tasks: int
    policies: dict[str, dict[str, Any]]  # summarize() of each; "greedy": {success, ci95, n} where measured
    paired: list[dict[str, Any]]  # each pair (earlier, later): a, b, and what paired_test and verdicts add
    flipped: dict[str, dict[str, list[str]]]  # "a->b": ids of the tasks that went to_right and to_wrong

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, path: object = "comparison.json") -> Comparison:
        """What ``to_json`` gave, in this version or an earlier one.

        Raises:
            RunError: it cannot be shown; the message names ``path``.
        """
        try:
            comparison = cls(**{field.name: value[field.name] for field in fields(cls)})
            comparison.table(), comparison.paired_table(), comparison.sentences()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            way_out = "Run notebook 05 for this run again."
            raise RunError(f"{path} holds no comparison that can be shown ({why}). {way_out}") from None
        return comparison

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy, as text with intervals."""
        return tables.policy_table(self.policies)

    def paired_table(self) -> pd.DataFrame:
        """One row a paired test: overall, by category and by difficulty, each with Holm's correction."""
        rows = []
        for pair in self.paired:
            for tasks, block in {"all tasks": pair, **tables.breakdown(pair)}.items():
                row = {"comparison": f"{pair['a']} → {pair['b']}", "tasks": tasks}
                rows.append(row | tables.paired_cells(block))
        return pd.DataFrame(rows)

    def tidy(self) -> pd.DataFrame:
        """Every measured number as one row: policy, measure, value, low, high, n."""
        rows = []
        for policy, entry in self.policies.items():
            for title, value, interval, n, _ in tables.figures(entry):
                low, high = interval or (None, None)
                rows.append([policy, title, value, low, high, n])
        return pd.DataFrame(rows, columns=["policy", "measure", "value", "low", "high", "n"])

    def sentences(self) -> list[str]:
        """Each paired result in words, with its verdict."""
        n = len(self.paired)
        return [tables.sentence(p, self.flipped[f"{p['a']}->{p['b']}"], n) for p in self.paired]

    def where(self, a: str, b: str) -> str:
        """For which categories and difficulties policy b differs from policy a, in one sentence."""
        pair = next((p for p in self.paired if (p["a"], p["b"]) == (a, b)), {})
        parts = [f"{tasks} {tables.briefly(block)}" for tasks, block in tables.breakdown(pair).items()]
        return f"{a} → {b}: {'; '.join(parts)}." if parts else "There is no breakdown to compare."

    def draws(self) -> list[str]:
        """What sampling more than once would give, one sentence a policy."""
        sentences = (tables.draws(name, entry) for name, entry in self.policies.items())
        return [sentence for sentence in sentences if sentence]

    def _repr_html_(self) -> str:
        caption = f"{self.n_tasks} tasks; 95 % intervals over tasks in brackets"
        return tables.to_html(self.table(), caption, self.sentences())


def compare(
    policies: Mapping[str, Samples],
    tasks: Iterable[Task] | None = None,
    greedy: Mapping[str, Samples] | None = None,
) -> Comparison:
    """Measure policies on the same tasks and test every pair (earlier, later).

    The test is exact McNemar where every task has one right-or-wrong sample (its mid-p stands beside it),
    else a sign-flip permutation test on task means, and a t test over seeds and tasks where a policy was
    trained with several seeds. A task that either policy of a pair has no scored sample of is left out of
    that pair. Holm's correction is over the pairs, and within a pair over its categories and over its
    difficulties; the verdict follows the corrected p.

    Args:
        policies: trajectories by policy name, the baseline first; {training seed: trajectories} where there
            are several.
        tasks: a suite that holds at least these tasks, for the breakdowns.
        greedy: greedy trajectories by policy name, measured beside the sampled ones.

    Raises:
        ValueError: policies, or training seeds of one, cover different tasks; two policies have different
            seeds, share no scored task, or have nothing to measure.
    """
    if not policies:
        raise ValueError("there is no policy to compare. Pass {'sft': trajectories, 'grpo': trajectories}.")
    tasks = None if tasks is None else list(tasks)
    values = {name: named(name, values_of, samples) for name, samples in policies.items()}
    entries = {name: named(name, summarize, samples, tasks) for name, samples in policies.items()}
    first = next(iter(values))
    for name in values:
        same_tasks(first, values[first], name, values[name])
    for name, samples in (greedy or {}).items():
        if name not in entries:
            raise ValueError(f"greedy trajectories of {name!r}, not among the policies {sorted(entries)}.")
        greedy_values = named(f"{name}, greedy", values_of, samples)
        same_tasks(name, values[name], f"{name}, greedy", greedy_values)
        entries[name]["greedy"] = measure(greedy_values)
    labels = dict(zip(BREAKDOWNS, labels_of(values[first], tasks), strict=True))
    paired, flipped = [], {}
    for a, b in combinations(values, 2):
        _same_seeds(a, policies[a], b, policies[b])
        paired.append(paired_test(a, b, values[a], values[b], labels))
        flipped[f"{a}->{b}"] = _flips(values[a], values[b])
    return Comparison(len(values[first]), entries, with_verdicts(paired), flipped)


def _same_seeds(a: str, samples_a: Samples, b: str, samples_b: Samples) -> None:
    seeds = [list(map(str, s)) if isinstance(s, Mapping) else [] for s in (samples_a, samples_b)]
    if min(map(len, seeds)) > 1 and seeds[0] != seeds[1]:
        named = f"{a} has the training seeds {', '.join(seeds[0])} and {b} has {', '.join(seeds[1])}"
        raise ValueError(f"{named}. Pass the same seeds in the same order, or one of them alone.")


def paired_test(
    a: str, b: str, values_a: Values, values_b: Values, labels: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, Any]:
    """One pair's entry of comparison.json, over the tasks that are scored for both."""
    both = {i: None for i in values_a if all(values_a[i]) and all(values_b[i])}
    if not both:
        raise ValueError(f"{a} and {b} share no task that is scored for both. Score more trajectories.")
    pair = {"a": a, "b": b, **_difference(values_a, values_b, list(both))}
    for kind, order in BREAKDOWNS.items():
        groups = split_by(both, (labels or {}).get(kind, {}), order)
        pair[kind] = {name: _difference(values_a, values_b, list(ids)) for name, ids in groups.items()}
    return pair


def _difference(values_a: Values, values_b: Values, tasks: list[str]) -> dict[str, Any]:
    """Difference in success over these tasks: size, interval, test, and what the test could have seen."""
    rates_a, rates_b = rates(values_a, tasks), rates(values_b, tasks)
    before, after = rates_a.mean(axis=0), rates_b.mean(axis=0)
    differences = rates_b - rates_a  # (S, N); a policy with one seed stands beside each of the other's
    if len(differences) > 1:
        tested = _several_seeds(differences)
    else:
        tested = _one_seed(before, after, single_samples(v[i] for v in (values_a, values_b) for i in tasks))
    effect = statistics.effect_sizes(before, after)
    return {"diff": float(differences.mean()), **tested, "n": len(tasks), "effect": effect}


def _several_seeds(differences: np.ndarray) -> dict[str, Any]:
    error, freedom = statistics.seeds_spread(differences)
    return {
        "ci95": statistics.seeds_interval(differences, low=-1.0, high=1.0),
        "p": statistics.seeds_p(differences),
        "test": "seeds_and_tasks_t",
        "detectable": statistics.detectable_seeds(error, freedom) if error else None,
    }


def _one_seed(before: np.ndarray, after: np.ndarray, single: bool) -> dict[str, Any]:
    differences, n = after - before, before.size
    tested = {"ci95": statistics.difference_interval(differences, single)}
    flip_p = statistics.sign_flip_p(differences)
    if single:
        tested |= {"p": statistics.mcnemar_p(before, after), "test": "mcnemar_exact", "mid_p": flip_p}
        return tested | {"detectable": statistics.detectable_mcnemar(n, float(np.mean(before != after)))}
    spread = float(differences.std(ddof=1)) if n > 1 else 0.0
    tested |= {"p": flip_p, "test": "sign_flip_permutation"}
    return tested | {"detectable": statistics.detectable_mean(n, spread)}


def with_verdicts(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs with p_holm and a verdict, overall and in each breakdown."""
    judged = _judged(pairs)
    for pair in judged:
        for kind in BREAKDOWNS:
            pair[kind] = dict(zip(pair[kind], _judged(list(pair[kind].values())), strict=True))
    return judged


def _judged(family: list[dict[str, Any]]) -> list[dict[str, Any]]:
    corrected = statistics.holm([test["p"] for test in family])
    judged = []
    for test, p in zip(family, corrected, strict=True):
        better = "better" if test["diff"] > 0 else "worse"
        judged.append(test | {"p_holm": p, "verdict": better if p < ALPHA else tables.NO_DIFFERENCE})
    return judged


def _flips(values_a: Values, values_b: Values) -> dict[str, list[str]]:
    flips: dict[str, list[str]] = {"to_right": [], "to_wrong": []}
    for task in values_a:
        if all(values_a[task]) and all(values_b[task]):
            solved = rate(values_a[task]) > SOLVED, rate(values_b[task]) > SOLVED
            if solved[0] != solved[1]:
                flips["to_right" if solved[1] else "to_wrong"].append(task)
    return flips


# ---- cases: a table of a few kinds of tasks, as model cards print them
def case_of(task: Task) -> str:
    """The case a task is listed under: its meta["case"], else the shape of its plan."""
    if case := task.meta.get("case"):
        return str(case)
    if not isinstance(plan := task.meta.get("plan"), list):
        return f"Family {task.family}"
    tools = {step.get("tool") for step in plan}
    if len(plan) < 2:
        return "One tool call" if plan else "No tools needed"
    if len(tools) == 1:
        return "Multi-step, one tool"
    if len(plan) == 2:
        return "Two tools, one call each"
    return "Full pipeline, 4 or more calls" if len(plan) > 3 else "Multi-step, several tools"


def case_scores(trajectories: Samples, tasks: Iterable[Task]) -> dict[str, float]:
    """Mean success of the tasks of each case, for ``case_table``."""
    success, cases = task_success(trajectories), {}
    for task in tasks:
        if task.id in success:
            cases.setdefault(case_of(task), []).append(success[task.id])
    return {case: fmean(rates) for case, rates in cases.items()}


def case_table(scores: Mapping[str, Mapping[str, float]]) -> tuple[pd.DataFrame, list[str]]:
    """Cases by policies with their average, and what such a table can show: a sentence for each pair.

    The cases are the sample here, so the test is over cases. Six of them rarely show anything.

    Args:
        scores: mean score in [0, 1] by policy and case, the baseline first.

    Raises:
        ValueError: policies are scored on different cases.
    """
    (first, cases), *others = scores.items()
    for name, other in others:
        if other.keys() != cases.keys():
            differing = sorted(other.keys() ^ cases.keys())
            raise ValueError(f"{first} and {name} are scored on different cases: {differing}.")
    rows = {case: {name: f"{score[case]:.2f}" for name, score in scores.items()} for case in cases}
    rows["Average"] = {name: f"{fmean(score.values()):.2f}" for name, score in scores.items()}
    values = {name: {case: [[score[case]]] for case in cases} for name, score in scores.items()}
    pairs = with_verdicts([paired_test(a, b, values[a], values[b]) for a, b in combinations(values, 2)])
    return tables.text_table(rows), [tables.sentence(pair, None, len(pairs), unit="cases") for pair in pairs]
