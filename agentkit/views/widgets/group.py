"""The G trajectories of one task at one step: rewards, advantages, what the best did and the worst did not.

Leaves out estimating advantages, log-probabilities (training) and reading trajectories (runs).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from agentkit.records import Task, Trajectory
from agentkit.trajectories import results_of
from agentkit.views.widgets.base import View, number, task_fields, trajectory_fields
from agentkit.views.widgets.states import States


def group_view(
    trajectories: Sequence[Trajectory],
    tasks: Iterable[Task] = (),
    *,
    environments: Mapping[str, Callable[[], object]] | None = None,
) -> View:
    """Look at groups, as of one training step: ``group_view(run.trajectories(step), run.tasks)``.

    Trajectories of one task, step and policy make a group. The best has the highest reward, the worst the
    lowest; of equals, the first sample.

    Args:
        trajectories: of one or several groups, in the order to page.
        tasks: holds prompts and gold answers; without a task its group shows the id only.
        environments: by family, for the states they show, as in ``compare_trajectories``.

    Raises:
        ValueError: there is no trajectory.
    """
    if not trajectories:
        raise ValueError(
            "there is no trajectory to show. Pass those of a training step, as run.trajectories(step) gives "
            "them."
        )
    tasks = {task.id: task for task in tasks}
    groups: dict[tuple, list[Trajectory]] = {}
    for t in trajectories:
        groups.setdefault((t.task_id, t.step, t.policy), []).append(t)
    states = States(environments)
    fields = [_group(group, tasks.get(task_id), states) for (task_id, *_), group in groups.items()]
    return View("group", "The group of one task", {"groups": fields}, 720)


def _group(group: list[Trajectory], task: Task | None, states: States) -> dict[str, Any]:
    first = group[0]
    rewards = [t.reward for t in group if number(t.reward) is not None]
    fields = task_fields(task) if task else {"id": first.task_id}
    return fields | {
        "step": first.step,
        "policy": first.policy,
        "mean": number(fmean(rewards), 9) if rewards else None,
        "std": number(stdev(rewards), 9) if len(rewards) > 1 else None,
        "rollouts": [_rollout(t, states.after_turns(task, t)) for t in sorted(group, key=lambda t: t.sample)],
    }


def _rollout(trajectory: Trajectory, states: Sequence[dict | None]) -> dict[str, Any]:
    calls = [result.ok for result in results_of(trajectory)]
    return trajectory_fields(trajectory, states) | {"calls": len(calls), "failed": calls.count(False)}
