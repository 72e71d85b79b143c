"""Several policies on the same tasks: every pair tested, with a verdict, and the table.

Leaves out how numbers are said in words (tables) and the formulas (statistics).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import combinations, permutations
from statistics import fmean
from typing import Any, Self

import numpy as np
import pandas as pd

from agentkit.evaluation import statistics, tables
from agentkit.evaluation.headline import headline
from agentkit.evaluation.statistics import ALPHA
from agentkit.evaluation.summary import (
    BREAKDOWNS,
    Samples,
    Values,
    clusters_of,
    flatten,
    labels_of,
    measure,
    named,
    rates,
    same_tasks,
    split_by,
    summarize,
    task_success,
    values_of,
)
from agentkit.records import DataError, Task, Trajectory
from agentkit.runs import Run, RunError
from agentkit.trajectories import wholly_right


@dataclass(frozen=True)
class Comparison:
    """Policies measured on the same tasks. ``to_json`` is comparison.json; ``from_json`` reads it back."""

    n_tasks: int
    policies: dict[str, dict[str, Any]]  # summarize() of each
    paired: list[dict[str, Any]]  # each pair (earlier, later): what ``judged`` says, and what stands beside
    flipped: dict[str, dict[str, list[str]]]  # "a->b": tasks whose first sample went to_right and to_wrong
    # the last policy against the best of the others; None of one policy, and of another measure than success
    headline: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, path: object = "comparison.json") -> Self:
        """What ``to_json`` gave, in this version or an earlier one.

        Raises:
            RunError: it cannot be shown; the message names ``path``.
        """
        try:
            names = (field.name for field in fields(cls) if field.name != "headline")
            comparison = cls(**{name: value[name] for name in names})
            comparison.table(), comparison.paired_table(), comparison.sentences()
            comparison = replace(comparison, headline=headline(comparison.policies, comparison.paired))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            raise RunError(
                f"{path} holds no comparison that can be shown ({why}). Run notebook 05 for this run again."
            ) from None
        return comparison

    def of_run(self, run: Run) -> Self:
        """This comparison with the step whose adapter the run's GRPO kept, which its headline goes by."""
        step, entry = run.trained_step, self.policies.get("grpo")
        if step is None or entry is None:
            return self
        policies = self.policies | {"grpo": entry | {"trained_step": step}}
        return replace(self, policies=policies, headline=headline(policies, self.paired))

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy, as text with intervals."""
        return tables.policy_table(self.policies)

    def paired_table(self) -> pd.DataFrame:
        """One row a pair over all tasks, tested, and one for each family and difficulty, described."""
        return pd.DataFrame(
            {"comparison": f"{pair['a']} → {pair['b']}", "tasks": tasks} | tables.paired_cells(block)
            for pair in self.paired
            for tasks, block in {"all tasks": pair, **tables.breakdown(pair)}.items()
        )

    def lead(self) -> list[str]:
        """The headline's sentence, where there is one."""
        return [self.headline["sentence"]] if self.headline else []

    def sentences(self) -> list[str]:
        """Each paired result in words, with its verdict."""
        n = len(self.paired)
        return [tables.sentence(p, self.flipped[f"{p['a']}->{p['b']}"], n) for p in self.paired]

    def where(self, a: str, b: str) -> str:
        """By how much policy b differs from policy a on each family and difficulty, in one sentence."""
        pair = next((p for p in self.paired if (p["a"], p["b"]) == (a, b)), {})
        parts = [f"{tasks} {tables.briefly(block)}" for tasks, block in tables.breakdown(pair).items()]
        how = "described with 95 % intervals, each on its own and none tested"
        return f"{a} → {b}: {'; '.join(parts)} ({how})." if parts else "There is no breakdown to compare."

    def draws(self) -> list[str]:
        """What sampling more than once would give, one sentence a policy."""
        sentences = (tables.draws(name, entry) for name, entry in self.policies.items())
        return [sentence for sentence in sentences if sentence]

    def _repr_html_(self) -> str:
        caption = f"{self.n_tasks} tasks; 95 % intervals over tasks in brackets"
        return tables.to_html(self.table(), caption, self.sentences(), lead=self.lead())


def compare(policies: Mapping[str, Samples], tasks: Iterable[Task] | None = None) -> Comparison:
    """Measure policies on the same tasks and test every pair (earlier, later).

    The test is McNemar's mid-p where every task has one right-or-wrong sample, else a sign-flip permutation
    test on task means, and a t test over seeds and tasks where a policy was trained with three seeds or more;
    two give an interval and no verdict. A task that either policy of a pair has no scored sample of is left
    out of that pair, and what the difference could be at most and at least with it stands beside. The verdict
    follows Holm's correction over the pairs, and interval and smallest detectable difference its level.
    Families and difficulties are described with intervals and not tested.

    Args:
        policies: trajectories by policy name, the baseline first; {training seed: trajectories} where there
            are several.
        tasks: a suite that holds at least these tasks, for the breakdowns.

    Raises:
        DataError: policies, or training seeds of one, cover different tasks; two policies have different
            seeds, share no scored task, or have nothing to measure; a sample is there twice; trajectories are
            passed under another one's name.
    """
    if not policies:
        raise DataError("there is no policy to compare. Pass {'sft': trajectories, 'grpo': trajectories}.")
    _check_names_and_seeds(policies)
    tasks = None if tasks is None else list(tasks)
    values = {name: named(name, values_of, samples) for name, samples in policies.items()}
    entries = {name: named(name, summarize, samples, tasks) for name, samples in policies.items()}
    same_tasks(values)
    measured = next(iter(values.values()))
    labels, clusters = labels_of(measured, tasks), clusters_of(measured, tasks)
    pairs = [Pair.of(a, b, values[a], values[b]) for a, b in combinations(values, 2)]
    paired = [
        entry | _beside(pair, entry["level"], clusters, entries) | _described(pair, labels)
        for pair, entry in zip(pairs, judged(pairs), strict=True)
    ]
    flipped = {f"{pair.a}->{pair.b}": _flips(pair) for pair in pairs}
    return Comparison(len(measured), entries, paired, flipped, headline(entries, paired))


def _check_names_and_seeds(policies: Mapping[str, Samples]) -> None:
    rows = {name: {t.policy for t in flatten(samples)} for name, samples in policies.items()}
    for name, other in permutations(rows, 2):
        if other in rows[name] and other not in rows[other]:
            raise DataError(
                f"the trajectories passed as {name} are of {other}, and those passed as {other} are not. "
                "Pass each under its own name."
            )
    seeds = {name: list(map(str, s)) for name, s in policies.items() if isinstance(s, Mapping) and len(s) > 1}
    for a, b in combinations(seeds, 2):
        if seeds[a] != seeds[b]:
            raise DataError(
                f"{a} has the training seeds {', '.join(seeds[a])} and {b} has {', '.join(seeds[b])}. Pass "
                "the same seeds in the same order, or one of them alone."
            )


@dataclass(frozen=True)
class Pair:
    """Two policies on the tasks that are scored for both."""

    a: str
    b: str
    values: tuple[Values, Values]
    tasks: list[str]

    @classmethod
    def of(cls, a: str, b: str, values_a: Values, values_b: Values) -> Self:
        """Raises DataError where no task is scored for both."""
        both = [task for task in values_a if all(values_a[task]) and all(values_b[task])]
        if not both:
            raise DataError(f"{a} and {b} share no task that is scored for both. Score more trajectories.")
        return cls(a, b, (values_a, values_b), both)

    def among(self, tasks: Iterable[str]) -> Self:
        wanted = set(tasks)
        return replace(self, tasks=[task for task in self.tasks if task in wanted])

    @cached_property
    def rates(self) -> tuple[np.ndarray, np.ndarray]:
        """Success by seed and task of both; a policy with one seed stands beside each of the other's."""
        both = tuple(rates(values, self.tasks) for values in self.values)
        return tuple(np.broadcast_arrays(*both))

    @property
    def differences(self) -> np.ndarray:
        return self.rates[1] - self.rates[0]  # (S, N)

    @cached_property
    def single(self) -> bool:
        """Whether every task has one sample, right or wrong: what McNemar's test is about."""
        return all(values[task] in ([[0.0]], [[1.0]]) for values in self.values for task in self.tasks)

    @cached_property
    def p(self) -> float | None:
        """None for two training seeds: a spread of one degree of freedom holds no level."""
        seeds = len(self.differences)
        if seeds > 1:
            return statistics.seeds_p(self.differences) if seeds >= statistics.SEEDS else None
        return statistics.sign_flip_p(self.differences[0])

    @property
    def test(self) -> str:
        if len(self.differences) > 1:
            return "seeds_and_tasks_t"
        return "mcnemar_mid_p" if self.single else "sign_flip_permutation"

    def interval(self, alpha: float = ALPHA, p: float | None = None) -> list[float]:
        """At 1 - ``alpha``, and in accord with ``p`` where it is given."""
        if len(self.differences) > 1:
            return statistics.seeds_interval(self.differences, low=-1.0, high=1.0, alpha=alpha)
        return statistics.difference_interval(self.differences[0], self.single, p, alpha)

    def detectable(self, alpha: float) -> float | None:
        """What the test at this level could have seen with 80 % power."""
        differences, n = self.differences, len(self.tasks)
        if len(differences) > 1:
            error, freedom = statistics.seeds_spread(differences)
            return statistics.detectable_seeds(error, freedom, alpha) if error else None
        success = np.mean(self.rates, axis=0)[0]
        if self.single:
            share = float(np.mean(differences != 0))
            return statistics.detectable_mcnemar(n, share, alpha, float(success.mean()))
        spread, lacks = float(differences.std(ddof=1)) if n > 1 else 0.0, 1 - float(success.mean())
        return statistics.detectable_mean(n, spread, alpha, float(success.std()) / max(lacks, 1e-3))


def judged(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Each pair's entry of comparison.json; Holm's correction over all that are tested.

    A verdict, its interval and what it could have seen are at one level: the one at which Holm decides.
    """
    pvalues = [pair.p for pair in pairs if pair.p is not None]
    decided = iter(zip(statistics.holm(pvalues), statistics.holm_levels(pvalues), strict=True))
    return [_judged(pair, None, ALPHA) if pair.p is None else _judged(pair, *next(decided)) for pair in pairs]


def _judged(pair: Pair, p_holm: float | None, level: float) -> dict[str, Any]:
    difference, is_tested = float(pair.differences.mean()), p_holm is not None
    verdict = tables.NO_DIFFERENCE if is_tested else tables.NO_VERDICT
    if is_tested and p_holm < ALPHA:
        verdict = "better" if difference > 0 else "worse"
    return {
        "a": pair.a,
        "b": pair.b,
        "diff": difference,
        "ci95": pair.interval(level, pair.p),
        "p": pair.p,
        "test": pair.test,
        "n": len(pair.tasks),
        "p_holm": p_holm,
        "level": level,
        "verdict": verdict,
        "detectable": pair.detectable(level) if is_tested else None,
    }


def _described(pair: Pair, labels: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Differences by family and difficulty, each with a 95 % interval, described, not tested."""
    described: dict[str, dict] = {}
    for kind, order in BREAKDOWNS.items():
        groups = split_by(dict.fromkeys(pair.tasks), labels.get(kind, {}), order)
        parts = {name: pair.among(ids) for name, ids in groups.items()}
        described[kind] = {
            name: {"diff": float(part.differences.mean()), "ci95": part.interval(), "n": len(part.tasks)}
            for name, part in parts.items()
        }
    return described


def _beside(
    pair: Pair, level: float, clusters: Mapping[str, int], entries: Mapping[str, Mapping]
) -> dict[str, Any]:
    """What stands beside a verdict: templates as the evidence, and the unscored counted against either."""
    beside: dict[str, Any] = {}
    if clusters and len(pair.differences) == 1:
        index = np.unique([clusters[task] for task in pair.tasks], return_inverse=True)[1]
        beside["by_template"] = statistics.clustered(pair.differences[0], index, level)
    both = entries[pair.a], entries[pair.b]
    if any(entry["unscored"] for entry in both):
        (a_low, a_high), (b_low, b_high) = (e.get("worst_case") or [e["success"]] * 2 for e in both)
        beside["worst_case"] = [b_low - a_high, b_high - a_low]
    return beside


def _flips(pair: Pair) -> dict[str, list[str]]:
    """Tasks whose first sample changed sides, so that more samples give no fewer and no more of them."""
    flips: dict[str, list[str]] = {"to_right": [], "to_wrong": []}
    for task in pair.tasks:
        before, after = (values[task][0][0] == 1.0 for values in pair.values)
        if before != after:
            flips["to_right" if after else "to_wrong"].append(task)
    return flips


# ---- measures that a family adds
def compare_by(
    measure: Callable[[Task, Trajectory], float | None],
    policies: Mapping[str, Samples],
    tasks: Iterable[Task],
) -> Comparison:
    """A comparison on these tasks with a measure, in [0, 1], in the place of success."""
    by_id = {task.id: task for task in tasks}

    def measured(samples: Samples) -> Samples:
        if isinstance(samples, Mapping):
            return {seed: measured(own) for seed, own in samples.items()}
        return [replace(t, success=measure(by_id[t.task_id], t)) for t in samples if t.task_id in by_id]

    found = compare({policy: measured(own) for policy, own in policies.items()}, by_id.values())
    return replace(found, headline=None)  # which tells of success


def measure_table(comparisons: Mapping[str, Comparison]) -> tuple[pd.DataFrame, list[str]]:
    """A row a measure, a column a policy, and a sentence for each pair of policies."""
    rows = {
        name: {policy: tables.percent(e["success"], e["ci95"]) for policy, e in own.policies.items()}
        for name, own in comparisons.items()
    }
    said = [f"{name}, {sentence}" for name, own in comparisons.items() for sentence in own.sentences()]
    return tables.text_table(rows), said


# ---- by family, as GRPO-TCR's model card prints it
SCORES = ("tool_call_reward", "tool_call_bonus")  # components that stand in the place of the verifier's value


def score_table(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> pd.DataFrame:
    """A row for each family and policy: accuracy with its interval, mean score and reward, tasks.

    Accuracy counts what is right altogether. Score is the verifier's value, such as the share of tests that a
    program passes, or the tool-call reward made of it.
    """
    tasks, rows = list(tasks), {}
    for family in dict.fromkeys(task.family for task in tasks):
        own = {task.id for task in tasks if task.family == family}
        for policy, samples in policies.items():
            tried = [t for t in flatten(samples) if t.task_id in own]
            right = measure(values_of([replace(t, success=wholly_right(t)) for t in tried]))
            rows[f"{family}, {policy}"] = {
                "accuracy": tables.percent(right["success"], right["ci95"]) if right["n"] else "–",
                "score": _mean(map(_score, tried)),
                "reward": _mean(t.reward for t in tried),
                "tasks": right["n"],
            }
    return tables.text_table(rows)


def _score(t: Trajectory) -> float | None:
    return next((t.components[name] for name in SCORES if name in t.components), t.success)


def _mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.4g}" if known else "–"


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
        DataError: policies are scored on different cases.
    """
    (first, cases), *others = scores.items()
    for name, other in others:
        if other.keys() != cases.keys():
            differing = sorted(other.keys() ^ cases.keys())
            raise DataError(f"{first} and {name} are scored on different cases: {differing}.")
    rows = {case: {name: f"{score[case]:.2f}" for name, score in scores.items()} for case in cases}
    rows["Average"] = {name: f"{fmean(score.values()):.2f}" for name, score in scores.items()}
    values = {name: {case: [[score[case]]] for case in cases} for name, score in scores.items()}
    pairs = judged([Pair.of(a, b, values[a], values[b]) for a, b in combinations(values, 2)])
    return tables.text_table(rows), [tables.sentence(pair, None, len(pairs), unit="cases") for pair in pairs]
