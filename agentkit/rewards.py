"""Rewards: named components of a trajectory, weighted and summed. A component that cannot be scored is None, never 0.

``plan`` is the additive reward of "RLVR for Agents", phase 2: correctness + 0.1 * format - 0.02 a turn when correct.
A component is any function (task, trajectory) -> float | None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from agentkit.records import Task, Trajectory

Component = Callable[[Task, Trajectory], float | None]
Reward = Mapping[str, tuple[Component, float]]  # each component with its weight
TURN_PENALTY = 0.02


def correctness(task: Task, trajectory: Trajectory) -> float | None:
    """The verifier's value: 1 right, 0 wrong, None not scored."""
    return trajectory.success


def format_score(task: Task, trajectory: Trajectory) -> float | None:
    """Share of attempted tool calls that were valid and ran; 0 where none was attempted."""
    results = [result for turn in trajectory.turns for result in turn.results]
    return sum(result.ok for result in results) / max(len(results), 1)


def efficiency(task: Task, trajectory: Trajectory) -> float | None:
    """-0.02 a turn for a correct trajectory, 0 otherwise: a fast wrong answer earns nothing."""
    if trajectory.success is None:
        return None
    return -TURN_PENALTY * len(trajectory.turns) if trajectory.success == 1.0 else 0.0


def plan(correctness_weight: float = 1.0, format_weight: float = 0.1, efficiency_weight: float = 1.0) -> Reward:
    """The additive reward of the plan: 1 when right, 0.1 * share of valid calls, -0.02 a turn when right."""
    return {
        "correctness": (correctness, correctness_weight),
        "format": (format_score, format_weight),
        "efficiency": (efficiency, efficiency_weight),
    }


def score(task: Task, trajectory: Trajectory, reward: Reward) -> Trajectory:
    """The trajectory with its components and their weighted sum.

    A component that raises, or is not finite, is None. The reward is None when correctness is not scored or no component is.
    """
    values = {name: _guarded(component, task, trajectory) for name, (component, _) in reward.items()}
    scored = {name: value for name, value in values.items() if value is not None}
    total = sum(reward[name][1] * value for name, value in scored.items()) if scored else None
    return replace(trajectory, components=values, reward=None if trajectory.success is None else total)


def score_all(tasks: Iterable[Task], trajectories: Iterable[Trajectory], reward: Reward) -> list[Trajectory]:
    """``score`` for many trajectories of known tasks."""
    by_id = {task.id: task for task in tasks}
    return [score(by_id[t.task_id], t, reward) for t in trajectories]


def _guarded(component: Component, task: Task, trajectory: Trajectory) -> float | None:
    try:
        value = component(task, trajectory)
    except Exception:  # a reward is user code; one bad trajectory must not end a run
        return None
    return value if value is None or abs(value) < float("inf") else None
