"""Which training tasks can this policy learn from? Those that it solves sometimes.

A task that a policy always or never solves gives a group without variance, and no gradient. From the GRPO-TCR
recipe (arXiv 2510.11701): eight rollouts a task, 0 % and 100 % dropped, easy from 0.75 on, hard up to 0.25.
An optional pass between building a suite and training on it. Leaves out validation and test, which keep all
their tasks, so that what is measured does not depend on the policy.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from agentkit.records import SuiteError, Trajectory
from agentkit.tasks.suite import Suite

EASY, HARD = 0.75, 0.25


def pass_rates(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """The mean success of each task's scored trajectories, by task id."""
    successes = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.success is not None:
            successes[trajectory.task_id].append(trajectory.success)
    return {task: fmean(values) for task, values in successes.items()}


def band(rate: float) -> str:
    """easy from 0.75 on, hard up to 0.25, medium between."""
    if rate >= EASY:
        return "easy"
    return "hard" if rate <= HARD else "medium"


def model_aware(suite: Suite, trajectories: Iterable[Trajectory]) -> Suite:
    """The suite without the training tasks that a policy always or never solved.

    Args:
        suite: any suite.
        trajectories: k rollouts of the policy to be trained, such as
            ``rollout(suite.split("train"), policy, group_size=8, temperature=0.7)``.

    Returns:
        A suite whose training tasks carry ``pass_rate`` and ``band`` in ``meta``; the other splits are
        unchanged.

    Raises:
        SuiteError: a training task has no scored trajectory, or no training task is left.
    """
    rates = pass_rates(trajectories)
    if missing := [task.id for task in suite.split("train") if task.id not in rates]:
        count = f"{len(missing)} training tasks have no scored trajectory"
        raise SuiteError(f"{count}, {missing[0]} first: roll them out too")
    kept = [task for task in suite if task.split != "train" or 0 < rates[task.id] < 1]
    for i, task in enumerate(kept):
        if task.split == "train":
            rate = rates[task.id]
            kept[i] = dataclasses.replace(task, meta=task.meta | {"pass_rate": rate, "band": band(rate)})
    if not any(task.split == "train" for task in kept):
        why = "this policy always or never solves each training task"
        raise SuiteError(f"{why}: take other tasks or more rollouts")
    return Suite(kept)
