"""Which training tasks can this policy learn from? Model-aware filtering by the share of rollouts that solve
a task.

A task that a policy always or never solves gives a group without variance, and no gradient. From the GRPO-TCR
recipe (arXiv 2510.11701): eight rollouts a task, 0 % and 100 % dropped, easy from 0.75 on, hard up to 0.25.
An optional pass between building a suite and training on it; validation and test keep all their tasks, so
that what is measured does not depend on the policy.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

from agentkit.records import Trajectory
from agentkit.tasks.suite import Suite, SuiteError

EASY, HARD = 0.75, 0.25


def pass_rates(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """The mean success of each task's scored trajectories, by task id. Those that are not scored do not
    count.
    """
    found = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.success is not None:
            found[trajectory.task_id].append(trajectory.success)
    return {task: sum(values) / len(values) for task, values in found.items()}


def band(rate: float) -> str:
    """easy from 0.75 on, hard up to 0.25, medium between."""
    return "easy" if rate >= EASY else "hard" if rate <= HARD else "medium"


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
        raise SuiteError(
            f"{len(missing)} training tasks have no scored trajectory, {missing[0]} first: roll them out too"
        )
    kept = []
    for task in suite:
        if task.split != "train":
            kept.append(task)
        elif 0 < (rate := rates[task.id]) < 1:
            kept.append(dataclasses.replace(task, meta=task.meta | {"pass_rate": rate, "band": band(rate)}))
    if not any(task.split == "train" for task in kept):
        raise SuiteError(
            "this policy always or never solves each training task: take other tasks or more rollouts"
        )
    return Suite(kept)
