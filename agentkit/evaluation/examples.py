"""Tasks worth reading: some that the last policy gained, some that it lost, some that both fail.

Leaves out showing them (views.widgets).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from agentkit.evaluation import Samples, flatten, solved_tasks, tables, task_success
from agentkit.evaluation.failures import failure_class
from agentkit.records import Task
from agentkit.trajectories import by_task

PROMPT = 90  # characters of a task's prompt in the table


@dataclass(frozen=True)
class Examples:
    """Tasks to read, chosen by the stated rule."""

    gained: list[str]  # ids: the first policy failed, the last solves
    lost: list[str]  # ids: the first policy solved, the last fails
    failing: list[str]  # ids: both fail
    rule: str
    table: pd.DataFrame  # one row a task, in this order

    def _repr_html_(self) -> str:
        counts = (len(self.gained), len(self.lost), len(self.failing))
        caption = "{} gained, {} lost, {} still failing".format(*counts)
        return tables.to_html(self.table, caption, [self.rule])


RULE = (
    "Of the tasks that {last} gained over {first} (more than half of the samples right), of those that it "
    "lost, and of those that both fail, each next one is that whose family, difficulty and most common "
    "failure are rarest among those chosen so far; ties go to the larger change in success, for failing "
    "tasks to the lower success of {last}, then to the smaller id."
)


def examples(
    policies: Mapping[str, Samples],
    tasks: Iterable[Task],
    *,
    gained: int = 10,
    lost: int = 0,
    failing: int = 5,
) -> Examples:
    """Choose tasks that the last policy gained, lost or still fails, each as different as possible.

    Args:
        policies: trajectories by policy name; the first and the last are compared.
        tasks: a suite that holds at least these tasks.
        gained: how many that the first failed and the last solves, where there are as many.
        lost: how many that the first solved and the last fails.
        failing: how many that both fail.
    """
    by_id = {task.id: task for task in tasks}
    first, last = list(policies)[0], list(policies)[-1]
    before, after = task_success(policies[first]), task_success(policies[last])
    failed_before, failed_after = (_common_failures(policies[name], by_id) for name in (first, last))
    rises = {i: after[i] - before[i] for i in before if i in after}
    earlier, later = solved_tasks(policies[first]), solved_tasks(policies[last])
    solved = {i: (earlier[i], later[i]) for i in rises}
    candidates = {
        "solved now": {i: rises[i] for i in rises if solved[i] == (False, True)},
        "lost": {i: -rises[i] for i in rises if solved[i] == (True, False)},
        "still fails": {i: -after[i] for i in rises if solved[i] == (False, False)},
    }
    chosen, rows = [], {}
    for (turn, clear), count in zip(candidates.items(), (gained, lost, failing), strict=True):
        failures = failed_before if turn == "solved now" else failed_after
        labels = {i: (by_id[i].family, by_id[i].difficulty, failures.get(i)) for i in clear}
        chosen.append(_diverse(labels, clear, count))
        for i in chosen[-1]:
            task = by_id[i]
            rows[f"{len(rows) + 1}. {turn}"] = {
                "task": task.prompt if len(task.prompt) <= PROMPT else task.prompt[: PROMPT - 1] + "…",
                "family": task.family,
                "difficulty": task.difficulty,
                first: f"{before[i]:.0%}",
                last: f"{after[i]:.0%}",
                "how it failed": failures.get(i, ""),
            }
    return Examples(*chosen, RULE.format(first=first, last=last), tables.text_table(rows))


def _common_failures(samples: Samples, tasks: Mapping[str, Task]) -> dict[str, str]:
    """Each task's most common failure class."""
    failed = [t for t in flatten(samples) if t.success is not None and t.success < 1.0]
    return {
        i: Counter(failure_class(t, tasks[i]) for t in trajectories).most_common(1)[0][0]
        for i, trajectories in by_task(failed).items()
    }


def _diverse(labels: Mapping[str, tuple], clear: Mapping[str, float], count: int) -> list[str]:
    used = [Counter() for _ in range(3)]
    chosen: list[str] = []
    while len(chosen) < min(count, len(labels)):
        left = (i for i in labels if i not in chosen)
        best = min(
            left, key=lambda i: (sum(c[x] for c, x in zip(used, labels[i], strict=True)), -clear[i], i)
        )
        chosen.append(best)
        for counter, label in zip(used, labels[best], strict=True):
            counter[label] += 1
    return chosen
