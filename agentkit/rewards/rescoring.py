"""Stored trajectories under another reward, without a model: which ranks change, and which groups would teach
something.

Advantages only compare the rewards of a group, so what a reward does is which of two trajectories it prefers.
Says nothing about
what training with the other reward would have sampled: these are the rollouts of the reward that was used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from agentkit.records import Group, Task, Trajectory
from agentkit.rewards import Reward, score_all
from agentkit.runs import Run, RunError
from agentkit.trajectories import is_dead

DIFFICULTIES = ("easy", "medium", "hard")
PAIRS = ("same order", "reversed", "told apart now", "tied now")


@dataclass(frozen=True, slots=True)
class Rescoring:
    """One row a group: step, task, whether it was and is dead, how its pairs of trajectories changed, whether
    its best did.
    """

    reward: str
    groups: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """The whole and each difficulty: groups, dead before and now, revived, died, changed best, and pairs
        by what changed.
        """
        own = self.groups
        parts = {"all": own} | {
            name: own[own["difficulty"] == name] for name in DIFFICULTIES if name in set(own["difficulty"])
        }
        return pd.DataFrame({name: _counted(part) for name, part in parts.items()}).T

    def sentences(self) -> list[str]:
        """What changed, in words."""
        n = _counted(self.groups)
        pairs = sum(n[kind] for kind in PAIRS)
        return [
            f"Under {self.reward}, {n['dead now']} of {n['groups']} groups are dead instead of "
            f"{n['dead before']}: "
            f"{n['revived']} would teach something again and {n['died']} no longer.",
            f"{pairs - n['same order']} of {pairs} pairs of trajectories stand differently: {n['reversed']} "
            "reversed, "
            f"{n['told apart now']} told apart now, {n['tied now']} tied now. In {n['best changed']} groups "
            "another is best.",
        ]


def _counted(groups: pd.DataFrame) -> dict[str, int]:
    before, now = groups["dead before"].astype(bool), groups["dead now"].astype(bool)
    found = {"groups": len(groups), "dead before": before.sum(), "dead now": now.sum()}
    found |= {
        "revived": (before & ~now).sum(),
        "died": (~before & now).sum(),
        "best changed": groups["best changed"].sum(),
    }
    return {
        name: int(value) for name, value in (found | {kind: groups[kind].sum() for kind in PAIRS}).items()
    }


def rescore(run: Run, reward: Reward, name: str, steps: Iterable[int] | None = None) -> Rescoring:
    """Score a run's stored training trajectories again.

    Args:
        run: with tasks and train/trajectories.
        reward: the other reward.
        name: what to call it.
        steps: which steps; all that are stored by default.

    Raises:
        RunError: the run stores no training trajectories.
    """
    steps = run.steps if steps is None else list(steps)
    if not steps:
        raise RunError(
            f"{run.path} stores no training trajectories. Run notebook 03_grpo for this run first."
        )
    rows = [row for number in steps for row in compare_step(run.trajectories(number), run.tasks, reward)]
    return Rescoring(name, pd.DataFrame(rows))


def compare_step(stored: Sequence[Trajectory], tasks: Iterable[Task], reward: Reward) -> list[dict]:
    """One row a group for the trajectories of one step, in the order they were stored."""
    by_id = {task.id: task for task in tasks}
    unknown = {t.task_id for t in stored} - by_id.keys()
    if unknown:
        raise RunError(
            f"the run's tasks.jsonl lacks task {min(unknown)!r}, which it trained on: restore the file"
        )
    rows = []
    for before in _groups(stored):
        now = Group(before.task_id, tuple(score_all([by_id[before.task_id]], before.trajectories, reward)))
        row = {
            "step": before.trajectories[0].step,
            "task": before.task_id,
            "difficulty": by_id[before.task_id].difficulty,
        }
        row |= {"dead before": is_dead(before), "dead now": is_dead(now)}
        rows.append(
            row | changes([t.reward for t in before.trajectories], [t.reward for t in now.trajectories])
        )
    return rows


def changes(before: Sequence[float | None], now: Sequence[float | None]) -> dict[str, Any]:
    """How a group's ranks differ between two rewards: pairs by kind, over those scored by both, and whether
    the best differs.

    The best differs where no trajectory that was best still is.
    """
    scored = [(a, b) for a, b in zip(before, now, strict=True) if a is not None and b is not None]
    found = dict.fromkeys(PAIRS, 0)
    for (a, b), (c, d) in combinations(scored, 2):
        old, new = (0 if math.isclose(x, y, abs_tol=1e-9) else (x > y) - (x < y) for x, y in ((a, c), (b, d)))
        kind = (
            "same order"
            if old == new
            else "told apart now"
            if not old
            else "tied now"
            if not new
            else "reversed"
        )
        found[kind] += 1
    best = [
        {i for i, rewards in enumerate(scored) if rewards[k] == max(r[k] for r in scored)} for k in (0, 1)
    ]
    return found | {"best changed": bool(scored) and best[0].isdisjoint(best[1])}


def _groups(stored: Sequence[Trajectory]) -> list[Group]:
    """Consecutive trajectories of one task; a sample number that does not rise begins another group."""
    found: list[list[Trajectory]] = []
    for t in stored:
        if found and t.task_id == found[-1][-1].task_id and t.sample > found[-1][-1].sample:
            found[-1].append(t)
        else:
            found.append([t])
    return [Group(own[0].task_id, tuple(own)) for own in found]
