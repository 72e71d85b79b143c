"""Tasks worth reading: some that the last policy solves and the first failed, some that both fail, as
different as possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from agentkit.evaluation import SOLVED, Samples, flatten, tables, task_success
from agentkit.evaluation.failures import failure_class
from agentkit.records import Task


@dataclass(frozen=True)
class Examples:
    """Tasks to read, chosen by the stated rule."""

    gained: list[str]  # ids: the first policy failed, the second solves
    failing: list[str]  # ids: both fail
    rule: str
    table: pd.DataFrame  # one row a task, in this order

    def _repr_html_(self) -> str:
        return tables.to_html(
            self.table, f"{len(self.gained)} gained, {len(self.failing)} still failing", [self.rule]
        )


def examples(
    policies: Mapping[str, Samples], tasks: Iterable[Task], *, gained: int = 10, failing: int = 5
) -> Examples:
    """Choose tasks that the first policy failed and the last solves, and some that both fail, as different as
    possible.

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
        f"Of the tasks that {a} fails and {b} solves (more than half of the samples right), and of those "
        "that both fail, each "
        "next one is that whose category, difficulty and most common failure are rarest among those chosen "
        "so far; ties go to "
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
        best = min(
            left, key=lambda i: (sum(c[x] for c, x in zip(used, labels[i], strict=True)), -clear[i], i)
        )
        chosen.append(best)
        for counter, label in zip(used, labels[best], strict=True):
            counter[label] += 1
    return chosen
