"""Tasks worth reading: some that the last policy gained, some that both fail, drawn across families.

Leaves out showing them (views.widgets).
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from agentkit.evaluation import Samples, flatten, solved_tasks, tables, task_success
from agentkit.evaluation.failures import failure_class
from agentkit.records import Task
from agentkit.trajectories import by_task

PROMPT = 90  # characters of a task's prompt in the table
RULE = (
    "Drawn at random, but always the same of a run: tasks that {last} gained over {first} (more than half of "
    "the samples right) and tasks that both fail, one of each family and difficulty in turn."
)


@dataclass(frozen=True)
class Examples:
    """Tasks to read, chosen by the stated rule."""

    gained: list[str]  # ids: the first policy failed, the last solves
    failing: list[str]  # ids: both fail
    rule: str
    table: pd.DataFrame  # one row a task, in this order

    def _repr_html_(self) -> str:
        caption = f"{len(self.gained)} gained, {len(self.failing)} still failing"
        return tables.to_html(self.table, caption, [self.rule])


def examples(
    policies: Mapping[str, Samples], tasks: Iterable[Task], *, gained: int = 10, failing: int = 5
) -> Examples:
    """Choose tasks that the last policy gained over the first, and tasks that both still fail.

    Args:
        policies: trajectories by policy name; the first and the last are compared.
        tasks: a suite that holds at least these tasks.
        gained: how many that the first failed and the last solves, where there are as many.
        failing: how many that both fail.
    """
    by_id = {task.id: task for task in tasks}
    first, last = list(policies)[0], list(policies)[-1]
    before, after = solved_tasks(policies[first]), solved_tasks(policies[last])
    both = sorted(before.keys() & after.keys())
    chosen = [
        _in_turn([by_id[i] for i in both if (before[i], after[i]) == wanted], count)
        for wanted, count in (((False, True), gained), ((False, False), failing))
    ]
    rates = {name: task_success(policies[name]) for name in (first, last)}
    rows = {}
    for turn, name, ids in zip(("solved now", "still fails"), (first, last), chosen, strict=True):
        failed = by_task(t for t in flatten(policies[name]) if t.success is not None and t.success < 1.0)
        for task in map(by_id.get, ids):
            ways = Counter(failure_class(t, task) for t in failed.get(task.id, ()))
            rows[f"{len(rows) + 1}. {turn}"] = {
                "task": task.prompt if len(task.prompt) <= PROMPT else task.prompt[: PROMPT - 1] + "…",
                "family": task.family,
                "difficulty": task.difficulty,
                first: f"{rates[first][task.id]:.0%}",
                last: f"{rates[last][task.id]:.0%}",
                "how it failed": ways.most_common(1)[0][0],
            }
    return Examples(*chosen, RULE.format(first=first, last=last), tables.text_table(rows))


def _in_turn(tasks: Sequence[Task], count: int) -> list[str]:
    """Ids of so many of the tasks, one of each family and difficulty in turn, in a random order."""
    order = random.Random(0).sample(tasks, len(tasks))
    seen: Counter = Counter()
    turns = {}
    for task in order:
        turns[task.id] = seen[task.family, task.difficulty]
        seen[task.family, task.difficulty] += 1
    return sorted(turns, key=turns.get)[:count]
