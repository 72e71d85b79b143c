"""Facts about trajectories and groups, each computed here and nowhere else.

Pure functions on records. Leaves out scoring (verifiers, rewards) and statistics over tasks (evaluation).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentkit.records import Group, StopReason, Task, ToolResult, Trajectory

TRUNCATED = (StopReason.TOKEN_LIMIT, StopReason.TRUNCATED_TURN, StopReason.TIME_LIMIT)
LIMITS = {  # what ends a trajectory before its answer, and the recipe's key of it
    StopReason.TURN_LIMIT: "max_turns",
    StopReason.TOKEN_LIMIT: "max_tokens",
    StopReason.TRUNCATED_TURN: "max_turn_tokens",
    StopReason.TIME_LIMIT: "trajectory_timeout_s",
}
EQUAL = 1e-9  # rewards closer than this are the same
UNKNOWN_TOOL = "Error: there is no tool "  # how the reply to a call of a tool that does not exist begins


def results_of(trajectory: Trajectory) -> list[ToolResult]:
    """Every attempted call with its reply, in order; malformed calls have no name."""
    return [result for turn in trajectory.turns for result in turn.results]


def call_key(result: ToolResult) -> tuple[str, str]:
    """What two equal calls share: tool and arguments, whatever the order of the arguments."""
    return result.name, json.dumps(result.arguments, sort_keys=True, default=str)


def failure_of(result: ToolResult) -> str | None:
    """How a call failed: "malformed", "unknown tool" or "failed"; None where it worked."""
    if result.ok:
        return None
    if not result.name:
        return "malformed"
    return "unknown tool" if result.observation.startswith(UNKNOWN_TOOL) else "failed"


def wholly_right(trajectory: Trajectory) -> float | None:
    """1 for success and 0 for less, such as a share of a program's tests; None where it is not scored."""
    return None if trajectory.success is None else float(trajectory.success == 1.0)


def by_task(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Trajectories by the id of their task, in order of first appearance."""
    tasks: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        tasks.setdefault(trajectory.task_id, []).append(trajectory)
    return tasks


def plan_of(task: Task) -> list[dict]:
    """The steps of a task's plan; none where it has no plan."""
    return list(task.meta.get("plan") or ())


def expected_of(step: Mapping[str, Any]) -> str | float | None:
    """The value that a plan's step is known to give before it is made; None where a pattern or a path finds
    it, or nothing is expected.
    """
    expected = step.get("expect")
    return None if isinstance(expected, dict) else expected


def needs_tools(task: Task) -> bool:
    """Whether a task cannot be answered without a tool."""
    return bool(task.tools) and task.meta.get("plan") != []


def verifier_kind(task: Task) -> str:
    """The kind of a task's verifier; "" where its gold data names none."""
    return str(task.verifier.get("kind", ""))


def groups_of(trajectories: Sequence[Trajectory], size: int) -> list[Group]:
    """Consecutive trajectories as groups of ``size``. Raises ValueError where they are not whole groups."""
    found = [tuple(trajectories[i : i + size]) for i in range(0, len(trajectories), size)]
    if any(len(own) < size or len({t.task_id for t in own}) > 1 for own in found):
        raise ValueError(f"{len(trajectories)} trajectories are not whole groups of {size}, each of one task")
    return [Group(own[0].task_id, own) for own in found]


def members(groups: Iterable[Group]) -> list[Trajectory]:
    """The trajectories of several groups."""
    return [t for group in groups for t in group.trajectories]


def is_dead(group: Group) -> bool:
    """Whether a group teaches nothing: fewer than two rewards, or all of them equal.

    With pass rate p and a reward of 0 or 1 the chance of it is p^G + (1-p)^G.
    """
    return reward_range(group) < EQUAL


def reward_range(group: Group) -> float:
    """The best reward of a group less its worst; 0 where fewer than two are known."""
    rewards = [t.reward for t in group.trajectories if t.reward is not None]
    return max(rewards) - min(rewards) if rewards else 0.0


def is_truncated(trajectory: Trajectory) -> bool:
    """Whether a limit on tokens or time cut it off (overlong filtering, DAPO, arXiv 2503.14476)."""
    return trajectory.stop_reason in TRUNCATED


def met_limit(trajectory: Trajectory) -> bool:
    """Whether any limit ended it: of turns, tokens or time."""
    return trajectory.stop_reason in LIMITS


def trajectory_id(trajectory: Trajectory) -> str:
    """Where a trajectory is found: step (in training), task and sample, as in "12:A-00031#4"."""
    name = f"{trajectory.task_id}#{trajectory.sample}"
    return name if trajectory.step is None else f"{trajectory.step}:{name}"


def groups_by_task(trajectories: Iterable[Trajectory]) -> list[Group]:
    """Trajectories as groups, one a task, of whatever size and in whatever order."""
    return [Group(task, tuple(group)) for task, group in by_task(trajectories).items()]
