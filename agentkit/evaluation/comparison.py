"""Several policies on the same tasks: every pair tested, with a verdict, and the table.

Leaves out how numbers are said in words (tables, headline) and the formulas (statistics).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations
from typing import Any, Self

import numpy as np
import pandas as pd

from agentkit.evaluation import html, statistics, tables
from agentkit.evaluation.headline import headline
from agentkit.evaluation.summary import (
    BREAKDOWNS,
    Samples,
    Values,
    clusters_of,
    labels_of,
    named,
    rates,
    same_tasks,
    split_by,
    summarize,
    values_of,
)
from agentkit.records import DataError, Task, Trajectory
from agentkit.runs import Run, RunError


@dataclass(frozen=True)
class Comparison:
    """Policies measured on the same tasks. ``to_json`` is comparison.json; ``from_json`` reads it back."""

    n_tasks: int
    policies: dict[str, dict[str, Any]]  # summarize() of each
    paired: list[dict[str, Any]]  # each pair (earlier, later), tested over all tasks, described by kind
    flipped: dict[str, dict[str, list[str]]]  # "a->b": tasks whose first sample went to_right and to_wrong
    # the last policy against the best of the others; None of one policy, and of another measure than success
    headline: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, path: object = "comparison.json") -> Self:
        """What ``to_json`` gave. Raises RunError, which names ``path``, where it cannot be shown."""
        try:
            comparison = cls(**{field.name: value[field.name] for field in fields(cls)})
            comparison.table(), comparison.paired_table(), comparison.sentences()
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
        pairs = html.folded("Every pair, tested", html.paragraphs(self.sentences()))
        return html.fragment(html.paragraphs(self.lead()), tables.drawn(self.table(), caption), pairs)


def compare(policies: Mapping[str, Samples], tasks: Iterable[Task] | None = None) -> Comparison:
    """Measure policies on the same tasks and test every pair (earlier, later).

    Each task's samples are averaged, and the differences between two policies are tested by Student's t: over
    tasks, or over training seeds and tasks where a policy was trained with three seeds or more. Two seeds
    give an interval and no verdict. A task without a scored sample of either policy is left out of a pair.
    Verdicts follow Holm's correction over the pairs. Every interval is at 95 %, on its own. Families and
    difficulties are described with intervals and not tested.

    Args:
        policies: trajectories by policy name, the baseline first; {training seed: trajectories} where there
            are several.
        tasks: a suite that holds at least these tasks, for the breakdowns.

    Raises:
        DataError: policies, or training seeds of one, cover different tasks; two policies have different
            seeds, share no scored task, or have nothing to measure; a sample is there twice.
    """
    if not policies:
        raise DataError("there is no policy to compare. Pass {'sft': trajectories, 'grpo': trajectories}.")
    _check_seeds(policies)
    tasks = None if tasks is None else list(tasks)
    values = {name: named(name, values_of, samples) for name, samples in policies.items()}
    entries = {name: named(name, summarize, samples, tasks) for name, samples in policies.items()}
    same_tasks(values)
    measured = next(iter(values.values()))
    labels, clusters = labels_of(measured, tasks), clusters_of(measured, tasks)
    pairs = [Pair.of(a, b, values[a], values[b]) for a, b in combinations(values, 2)]
    paired = [
        tested | _by_template(pair, clusters) | _described(pair, labels)
        for pair, tested in zip(pairs, judged(pairs), strict=True)
    ]
    flipped = {f"{pair.a}->{pair.b}": _flips(pair) for pair in pairs}
    return Comparison(len(measured), entries, paired, flipped, headline(entries, paired))


def _check_seeds(policies: Mapping[str, Samples]) -> None:
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

    def differences(self, tasks: Sequence[str] | None = None) -> np.ndarray:
        """By seed and task, shape (S, N); a policy with one seed stands beside each of the other's."""
        before, after = (rates(values, tasks or self.tasks) for values in self.values)
        return after - before

    def difference(self, tasks: Sequence[str] | None = None) -> statistics.Estimate:
        """The mean difference, of these tasks or of all."""
        found = self.differences(tasks)
        return statistics.over_seeds(found) if len(found) > 1 else statistics.over_tasks(found[0])


def judged(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Each pair's entry of comparison.json, with a verdict by Holm's correction over all that are tested."""
    entries = [_tested(pair) for pair in pairs]
    tested = [entry for entry in entries if entry["p"] is not None]
    for entry, p in zip(tested, statistics.holm([entry["p"] for entry in tested]), strict=True):
        entry["p_holm"], entry["verdict"] = p, tables.NO_DIFFERENCE
        if p < statistics.ALPHA:
            entry["verdict"] = "better" if entry["diff"] > 0 else "worse"
    return entries


def _tested(pair: Pair) -> dict[str, Any]:
    found, seeds = pair.difference(), len(pair.differences())
    is_tested = seeds == 1 or seeds >= statistics.SEEDS  # two hold no level: one degree of freedom
    return {
        "a": pair.a,
        "b": pair.b,
        "diff": found.mean,
        "ci95": found.interval(-1.0, 1.0),
        "p": found.p if is_tested else None,
        "test": "paired_t" if seeds == 1 else "seeds_and_tasks_t",
        "n": len(pair.tasks),
        "p_holm": None,
        "verdict": tables.NO_VERDICT,
        "detectable": found.detectable() if is_tested else None,
    }


def _described(pair: Pair, labels: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Differences by family and difficulty, each with a 95 % interval, described, not tested."""
    described: dict[str, dict] = {}
    for kind, order in BREAKDOWNS.items():
        groups = split_by(dict.fromkeys(pair.tasks), labels[kind], order)
        found = {name: pair.difference(list(tasks)) for name, tasks in groups.items()}
        described[kind] = {
            name: {"diff": own.mean, "ci95": own.interval(-1.0, 1.0), "n": len(groups[name])}
            for name, own in found.items()
        }
    return described


def _by_template(pair: Pair, clusters: Mapping[str, int]) -> dict[str, Any]:
    """The difference clustered by template, where tasks name theirs and there is one training seed."""
    differences = pair.differences()
    if not clusters or len(differences) > 1:
        return {}
    index = np.unique([clusters[task] for task in pair.tasks], return_inverse=True)[1]
    found = statistics.over_clusters(differences[0], index)
    return {"by_template": {"ci95": found.interval(-1.0, 1.0), "p": found.p, "n": int(index.max()) + 1}}


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
