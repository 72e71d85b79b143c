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
    Samples,
    Values,
    breakdown,
    flatten,
    rates,
    same_tasks,
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
        """This comparison with the step that the run's GRPO kept, and the last if that was measured in its
        place, which its headline goes by.
        """
        step, entry = run.trained_step, self.policies.get("grpo")
        if step is None or entry is None:
            return self
        steps = {"trained_step": step, "measured_step": run.measured_step}
        policies = self.policies | {"grpo": entry | steps}
        return replace(self, policies=policies, headline=headline(policies, self.paired))

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy, as text with intervals."""
        return tables.policy_table(self.policies)

    def paired_table(self) -> pd.DataFrame:
        """One row a pair over all tasks, tested, and one for each family and difficulty, described."""
        rows = [
            {"comparison": f"{pair['a']} → {pair['b']}", "tasks": tasks} | tables.paired_cells(block)
            for pair in self.paired
            for tasks, block in {"all tasks": pair, **tables.breakdown(pair)}.items()
        ]
        return pd.DataFrame(rows, columns=None if rows else ["comparison", "tasks"])

    def lead(self) -> list[str]:
        """The headline's sentence, where there is one."""
        return [self.headline["sentence"]] if self.headline else []

    def sentences(self) -> list[str]:
        """Each paired result in words, with its verdict."""
        n = len(self.paired)
        return [tables.sentence(p, self.flipped[f"{p['a']}->{p['b']}"], n) for p in self.paired]

    def moved(self) -> html.Markup:
        """The tasks whose first sample changed sides, as links to them, folded."""
        columns = {"to_right": "from wrong to right", "to_wrong": "from right to wrong"}
        table = pd.DataFrame.from_dict(self.flipped, "index").rename(columns=columns)
        title = "Tasks whose first sample changed sides"
        return html.folded(title, tables.drawn(table)) if self.flipped else html.Markup("")

    def _repr_html_(self) -> str:
        caption = f"{self.n_tasks} tasks; 95 % intervals over tasks in brackets"
        pairs = html.folded("Every pair, tested", html.paragraphs(self.sentences()))
        table = tables.drawn(self.table(), caption)
        return html.fragment(html.paragraphs(self.lead()), table, pairs, self.moved())


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
            seeds, share no scored task, or have nothing to measure.
    """
    if not policies:
        raise DataError("there is no policy to compare. Pass {'sft': trajectories, 'grpo': trajectories}.")
    trained = [tuple(own) for own in policies.values() if isinstance(own, Mapping) and len(own) > 1]
    if len(set(trained)) > 1:
        raise DataError(f"policies with the training seeds {trained}: pass the same ones in the same order.")
    same_tasks({name: {t.task_id for t in flatten(own)} for name, own in policies.items()})
    tasks = None if tasks is None else list(tasks)
    values = {name: values_of(own) for name, own in policies.items()}
    entries = {name: summarize(own, tasks) for name, own in policies.items()}
    paired, flipped = [], {}
    for a, b in combinations(values, 2):
        both = [task for task in values[a] if all(values[a][task]) and all(values[b][task])]
        if not both:
            raise DataError(f"{a} and {b} share no task that is scored for both. Score more trajectories.")
        change = rates(values[b], both) - rates(values[a], both)  # one seed stands beside each of the other's
        paired.append({"a": a, "b": b} | _tested(change) | _by_template(change, both, tasks))
        paired[-1] |= _described(change, both, tasks)
        flipped[f"{a}->{b}"] = _flips(values[a], values[b], both)
    _judge(paired)
    return Comparison(len(next(iter(values.values()))), entries, paired, flipped, headline(entries, paired))


def _tested(change: np.ndarray) -> dict[str, Any]:
    """The mean change of shape (S, N), by seed and task."""
    found, seeds = statistics.mean_of(change), len(change)
    is_tested = seeds == 1 or seeds >= statistics.SEEDS  # two hold no level: one degree of freedom
    return {
        "diff": found.mean,
        "ci95": found.interval(-1.0, 1.0),
        "p": found.p if is_tested else None,
        "test": "paired_t" if seeds == 1 else "seeds_and_tasks_t",
        "n": change.shape[1],
        "p_holm": None,
        "verdict": tables.NO_VERDICT,
        "detectable": found.detectable() if is_tested else None,
    }


def _judge(pairs: Sequence[dict[str, Any]]) -> None:
    """Give each pair that is tested a verdict by Holm's correction over them all."""
    tested = [pair for pair in pairs if pair["p"] is not None]
    for pair, p in zip(tested, statistics.holm([pair["p"] for pair in tested]), strict=True):
        pair["p_holm"], pair["verdict"] = p, tables.verdict(p, pair["diff"])


def _described(
    change: np.ndarray, both: Sequence[str], tasks: Iterable[Task] | None
) -> dict[str, dict[str, dict[str, Any]]]:
    """Differences by family and difficulty, each with a 95 % interval, described, not tested."""
    described: dict[str, dict] = {}
    for kind, groups in breakdown(both, tasks).items():
        parts = {name: change[:, np.isin(both, own)] for name, own in groups.items()}
        found = {name: statistics.mean_of(part) for name, part in parts.items()}
        described[kind] = {
            name: {"diff": own.mean, "ci95": own.interval(-1.0, 1.0), "n": len(groups[name])}
            for name, own in found.items()
        }
    return described


def _by_template(change: np.ndarray, both: Sequence[str], tasks: Iterable[Task] | None) -> dict[str, Any]:
    """The difference clustered by template, where some tasks share one and there is one training seed."""
    names = {task.id: f"{task.family}: {task.meta.get('template') or task.id}" for task in tasks or ()}
    kinds, index = np.unique([names.get(task, task) for task in both], return_inverse=True)
    if len(kinds) == len(both) or len(change) > 1:
        return {}
    found = statistics.over_clusters(change[0], index)
    return {"by_template": {"ci95": found.interval(-1.0, 1.0), "p": found.p, "n": len(kinds)}}


def _flips(a: Values, b: Values, both: Sequence[str]) -> dict[str, list[str]]:
    """Tasks whose first sample changed sides, so that more samples give no fewer and no more of them."""
    flips: dict[str, list[str]] = {"to_right": [], "to_wrong": []}
    for task in both:
        before, after = (values[task][0][0] == 1.0 for values in (a, b))
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
