"""Rewards: named components of a trajectory, weighted and summed. A component that cannot be scored is None, never 0.

The preset ``plan`` is the additive reward of "RLVR for Agents", phase 2: correctness + 0.1 * format - 0.02 a turn when
correct. A component is any function (task, trajectory) -> float | None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from agentkit.records import Task, Trajectory

Component = Callable[[Task, Trajectory], float | None]
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


COMPONENTS: dict[str, Component] = {"correctness": correctness, "format": format_score, "efficiency": efficiency}
PLAN = {"correctness": 1.0, "format": 0.1, "efficiency": 1.0}


def score(
    task: Task, trajectory: Trajectory, weights: Mapping[str, float], components: Mapping[str, Component] = COMPONENTS
) -> Trajectory:
    """The trajectory with its components and their weighted sum.

    A component that raises is None. The reward is None when correctness is not scored or no component is.

    Raises:
        KeyError: a weight names no component.
    """
    values = {name: _guarded(components[name], task, trajectory) for name in weights}
    scored = {name: value for name, value in values.items() if value is not None}
    reward = sum(weights[name] * value for name, value in scored.items()) if scored else None
    return replace(trajectory, components=values, reward=None if trajectory.success is None else reward)


def score_all(tasks: Iterable[Task], trajectories: Iterable[Trajectory], weights: Mapping[str, float]) -> list[Trajectory]:
    """``score`` for many trajectories of known tasks."""
    by_id = {task.id: task for task in tasks}
    return [score(by_id[t.task_id], t, weights) for t in trajectories]


def _guarded(component: Component, task: Task, trajectory: Trajectory) -> float | None:
    try:
        value = component(task, trajectory)
    except Exception:  # a reward is user code; one bad trajectory must not end a run
        return None
    return value if value is None or abs(value) < float("inf") else None
