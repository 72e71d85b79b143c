"""Which training tasks can this policy learn from? Those that it solves sometimes.

A task that a policy always or never solves gives a group without variance, and no gradient. From the GRPO-TCR
recipe (arXiv 2510.11701): eight rollouts a task, 0 % and 100 % dropped. An optional pass between building a
suite and training on it. Leaves out validation and test, which keep all their tasks, so that what is measured
does not depend on the policy.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from agentkit.records import SuiteError, Task, Trajectory
from agentkit.tasks.suite import Suite
from agentkit.trajectories import wholly_right


def pass_rates(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """How often each task was solved whole, by id; one without a scored trajectory has no rate."""
    successes = defaultdict(list)
    for t in trajectories:
        if t.success is not None:
            successes[t.task_id].append(wholly_right(t))
    return {task: fmean(own) for task, own in successes.items()}


def with_pass_rates(suite: Suite, rates: Mapping[str, float]) -> Suite:
    """The suite, whose tasks with a known pass rate hold it in ``meta``."""
    known = {name: {"pass_rate": rate} for name, rate in rates.items()}
    tasks = [replace(task, meta=task.meta | known.get(task.id, {})) for task in suite]
    return Suite(tasks, suite.environments)


def learnable(tasks: Sequence[Task]) -> list[Task]:
    """The tasks that are not known to be solved never or always. Raises SuiteError where none is left."""
    kept = [task for task in tasks if 0 < task.meta.get("pass_rate", 0.5) < 1]
    if not kept:
        raise SuiteError(
            "this policy always or never solves each training task: take other tasks or more rollouts"
        )
    return kept
