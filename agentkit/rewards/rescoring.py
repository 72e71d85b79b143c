"""Stored trajectories under another reward: which ranks change, and which groups would teach something.

Advantages only compare the rewards of a group, so what a reward does is which of two trajectories it
prefers. Leaves out what training with the other reward would have sampled: these are the trajectories of the
reward used.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from agentkit.records import Group, Task, Trajectory
from agentkit.rewards import Reward, score_all
from agentkit.runs import Run, RunError
from agentkit.trajectories import is_dead

DIFFICULTIES = ("easy", "medium", "hard")
PAIRS = ("same order", "reversed", "distinguished now", "tied now")
COUNTS = ["groups", "dead before", "dead now", "revived", "died", "best changed", *PAIRS]


@dataclass(frozen=True, slots=True)
class Rescoring:
    """One row a group: was and is it dead, how did its pairs of trajectories change, did its best."""

    reward: str
    groups: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """Counts over all groups and those of each difficulty."""
        parts = self.groups.groupby("difficulty")[COUNTS].sum()
        parts.loc["all"] = parts.sum()
        return parts.loc[[name for name in ("all", *DIFFICULTIES) if name in parts.index]].astype(int)


def rescore_each(
    run: Run, others: Mapping[str, Reward], steps: Iterable[int] | None = None
) -> dict[str, Rescoring]:
    """Score a run's stored training trajectories again, under other rewards by name.

    Args:
        run: with tasks and train/trajectories.
        others: the rewards.
        steps: which steps; all that are stored by default.

    Raises:
        RunError: the run stores no training trajectories.
    """
    rows: dict[str, list[dict]] = {name: [] for name in others}
    for _, stored in run.rollouts(steps):
        for name, reward in others.items():
            rows[name] += compare_step(stored, run.tasks, reward)
    if not all(rows.values()):
        raise RunError(
            f"{run.path} stores no training trajectories. Run notebook 03_grpo for this run first."
        )
    return {name: Rescoring(name, pd.DataFrame(own)) for name, own in rows.items()}


def compare_step(stored: Sequence[Trajectory], tasks: Iterable[Task], reward: Reward) -> list[dict]:
    """One row a group for the trajectories of one step, in the order they were stored."""
    by_id = {task.id: task for task in tasks}
    return [_compared(group, by_id[group.task_id], reward) for group in _groups(stored)]


def _compared(before: Group, task: Task, reward: Reward) -> dict[str, Any]:
    now = Group(task.id, tuple(score_all([task], before.trajectories, reward)))
    was, is_now = is_dead(before), is_dead(now)
    row = {"step": before.trajectories[0].step, "task": task.id, "difficulty": task.difficulty, "groups": 1}
    row |= {"dead before": was, "dead now": is_now, "revived": was > is_now, "died": is_now > was}
    return row | changes([t.reward for t in before.trajectories], [t.reward for t in now.trajectories])


def changes(before: Sequence[float | None], now: Sequence[float | None]) -> dict[str, Any]:
    """How a group's ranks differ between two rewards: pairs by kind, over those scored by both, and its best.

    The best changed where no trajectory that was best still is.
    """
    scored = [(a, b) for a, b in zip(before, now, strict=True) if a is not None and b is not None]
    result: dict[str, Any] = dict.fromkeys(PAIRS, 0)
    for (before_a, now_a), (before_b, now_b) in combinations(scored, 2):
        was, is_now = _order(before_a, before_b), _order(now_a, now_b)
        kind = "same order" if was == is_now else "reversed" if was and is_now else PAIRS[2 + bool(was)]
        result[kind] += 1
    return result | {"best changed": bool(scored) and _best(scored, 0).isdisjoint(_best(scored, 1))}


def _order(x: float, y: float) -> int:
    """1 where x is larger, -1 where y is, 0 where they are equal but for rounding."""
    if math.isclose(x, y, abs_tol=1e-9):
        return 0
    return 1 if x > y else -1


def _best(scored: Sequence[tuple[float, float]], which: int) -> set[int]:
    """The trajectories with the highest of their two rewards that is meant."""
    highest = max(rewards[which] for rewards in scored)
    return {i for i, rewards in enumerate(scored) if rewards[which] == highest}


def _groups(stored: Sequence[Trajectory]) -> list[Group]:
    """Trajectories by task, in whatever order; a sample that is there again belongs to another group."""
    groups: dict[tuple[str, int], list[Trajectory]] = {}
    seen = Counter[tuple[str, int]]()
    for t in stored:
        groups.setdefault((t.task_id, seen[t.task_id, t.sample]), []).append(t)
        seen[t.task_id, t.sample] += 1
    return [Group(task_id, tuple(members)) for (task_id, _), members in groups.items()]
