"""The G rollouts of one training task at one step: rewards, advantages, and what tells the best from the
worst.

Leaves out: estimating advantages (advantages) and reading trajectories (runs).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from agentkit.records import Task, Trajectory
from agentkit.views.widgets.payload import number, task_fields, trajectory_fields
from agentkit.views.widgets.view import View


class GroupWidget(View):
    """Groups of rollouts, one at a time: static by itself, ``live()`` with a kernel."""

    name = "group"
    title = "Rollouts of one task"

    def __repr__(self) -> str:
        return f"GroupWidget({len(self.payload['groups'])} groups)"


def group_view(
    trajectories: Sequence[Trajectory], tasks: Iterable[Task] = (), *, height: int = 720
) -> GroupWidget:
    """Look at groups of rollouts, as of one training step: ``group_view(run.trajectories(step), run.tasks)``.

    Trajectories of one task, step and policy make a group. The best has the highest reward, the worst the
    lowest; of equals, the first sample.

    Args:
        trajectories: of one or several groups, in the order to page.
        tasks: holds prompts and gold answers; without a task its group shows the id only.
        height: of the view in a notebook, in pixels.

    Raises:
        ValueError: there is no trajectory.
    """
    if not trajectories:
        raise ValueError(
            "there is no trajectory to show. Pass those of a training step, as run.trajectories(step) gives "
            "them."
        )
    known = {task.id: task for task in tasks}
    groups: dict[tuple, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault((trajectory.task_id, trajectory.step, trajectory.policy), []).append(trajectory)
    return GroupWidget(
        {"groups": [_group(own, known.get(own[0].task_id)) for own in groups.values()]}, height
    )


def _group(own: list[Trajectory], task: Task | None) -> dict[str, Any]:
    own = sorted(own, key=lambda t: t.sample)
    rewards = [t.reward for t in own if number(t.reward) is not None]
    fields = task_fields(task) if task else {"id": own[0].task_id}
    return fields | {
        "step": own[0].step,
        "policy": own[0].policy,
        "mean": number(fmean(rewards), 9) if rewards else None,
        "std": number(stdev(rewards), 9) if len(rewards) > 1 else None,
        "rollouts": [_rollout(t) for t in own],
    }


def _rollout(trajectory: Trajectory) -> dict[str, Any]:
    results = [result for turn in trajectory.turns for result in turn.results]
    counts = {"calls": len(results), "failed": sum(not result.ok for result in results)}
    return trajectory_fields(trajectory) | counts
