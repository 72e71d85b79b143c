"""Tasks worth reading: some that the last policy gained, some that both fail, drawn across families.

Leaves out showing them (views.widgets).
"""

import random
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from agentkit.evaluation import Samples, flatten, solved_tasks, tables, task_success
from agentkit.evaluation.failures import failure_class
from agentkit.records import Task
from agentkit.trajectories import by_task

PROMPT = 90  # characters of a task's prompt in the table
RULE = (
    "Chosen at random, but always the same of a run: tasks that the last policy gained over the first (more "
    "than half of the samples right) and tasks that both fail, one of each family and difficulty in turn."
)


def examples(
    policies: Mapping[str, Samples], tasks: Iterable[Task], *, gained: int = 10, failing: int = 5
) -> pd.DataFrame:
    """Tasks to read by RULE, one row each, named by its id.

    Args:
        policies: trajectories by policy name; the first and the last are compared.
        tasks: a suite that holds at least these tasks.
        gained: how many that the first failed and the last solves, where there are as many.
        failing: how many that both fail.
    """
    by_id, ends = {task.id: task for task in tasks}, (list(policies)[0], list(policies)[-1])
    before, after = (solved_tasks(policies[name]) for name in ends)
    both, rows = sorted(before.keys() & after.keys()), {}
    rates = {name: task_success(policies[name]) for name in ends}
    for outcome, policy, wanted, count in (
        ("solved now", ends[0], (False, True), gained),
        ("still fails", ends[1], (False, False), failing),
    ):
        failed = by_task(t for t in flatten(policies[policy]) if t.success is not None and t.success < 1.0)
        for i in _in_turn([by_id[i] for i in both if (before[i], after[i]) == wanted], count):
            ways = Counter(failure_class(t, by_id[i]) for t in failed[i])
            rows[i] = {
                "outcome": outcome,
                "task": textwrap.shorten(by_id[i].prompt, PROMPT, placeholder="…"),
                "family": by_id[i].family,
                "difficulty": by_id[i].difficulty,
                **{name: f"{rates[name][i]:.0%}" for name in ends},
                "how it failed": ways.most_common(1)[0][0],
            }
    return tables.text_table(rows).rename_axis("id")


def _in_turn(tasks: Sequence[Task], count: int) -> list[str]:
    """Ids of so many of the tasks, one of each family and difficulty in turn, in a random order."""
    order = random.Random(0).sample(tasks, len(tasks))
    seen: Counter = Counter()
    turns = {}
    for task in order:
        turns[task.id] = seen[task.family, task.difficulty]
        seen[task.family, task.difficulty] += 1
    return sorted(turns, key=turns.get)[:count]
