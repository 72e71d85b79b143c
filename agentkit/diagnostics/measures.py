"""What one optimiser step tells: its metrics row and what its trajectories show, as plain numbers with
evidence.

``observe`` is pure. Alarms read these records only, so a stored run and a running one are judged by the same
code. Leaves
out: what is a fault (rules) and reading files (watch).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentkit.records import StopReason, Trajectory
from agentkit.trajectories import call_key
from agentkit.verifiers import normalize

CUT = frozenset(
    {StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.TRUNCATED_TURN, StopReason.TIME_LIMIT}
)
EQUAL = 1e-9  # rewards closer than this are the same
SHOWN = 8  # evidence trajectories kept for one measure
FINITE = ("loss", "grad_norm", "kl", "entropy")  # metrics that are finite in any step that was no accident
TIMED_OUT = "did not answer within"  # what the tool runtime says


@dataclass(frozen=True, slots=True)
class Step:
    """One optimiser step."""

    number: int
    values: Mapping[
        str, float
    ]  # the metrics row's numbers and the measures of ``observe``; NaN is "not known"
    evidence: Mapping[str, tuple[str, ...]]  # for a measure, ids of trajectories that show it

    def __getitem__(self, name: str) -> float:
        return self.values.get(name, math.nan)


def trajectory_id(trajectory: Trajectory) -> str:
    """Where a trajectory is found: step, task and sample, as in "12:A-00031#4"."""
    return f"{trajectory.step}:{trajectory.task_id}#{trajectory.sample}"


def observe(row: Mapping[str, Any], trajectories: Sequence[Trajectory] = ()) -> Step:
    """One step's record.

    Args:
        row: of train/metrics.jsonl. None, which JSON has for NaN and infinity, counts as not finite.
        trajectories: the step's rollouts, P groups of G, told apart by their task.

    Returns:
        The row's numbers, and of the trajectories these measures: ``zero_variance``, ``solved`` and ``stuck``
        (shares of groups
        with equal rewards: all, those all right, the others), ``reward_wrong`` and ``reward_gap`` (what wrong
            trajectories earn,
        and how much more right ones do), ``low/c`` and ``high/c`` (range of component c), ``scored/c``,
        ``explains/c`` and ``explains/success`` (share of the reward's variance within groups, a squared
        correlation), ``calls`` and ``no_tool``, ``answer_top`` (share of the commonest answer), ``identical``
        (share of repeats in groups that are not all right), ``template`` (share whose first action another
        task's trajectories took too), ``truncated``, ``call_seconds`` (90th percentile), ``timeouts``,
        ``cache_conflicts``.
    """
    values = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    values["not_finite"] = float(
        sum(name in row and not math.isfinite(values.get(name, math.nan)) for name in FINITE)
    )
    if not trajectories:
        return Step(int(row["step"]), values, {})
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.task_id].append(trajectory)
    parts = (
        _outcomes(trajectories),
        _groups(groups.values()),
        _components(groups.values()),
        _actions(groups),
        _tools(trajectories),
    )
    evidence: dict[str, tuple[str, ...]] = {}
    for measures, shown in parts:
        values = measures | values  # what training itself wrote down stands
        evidence |= {name: tuple(map(trajectory_id, found[:SHOWN])) for name, found in shown.items() if found}
    return Step(int(row["step"]), values, evidence)


Part = tuple[dict[str, float], dict[str, list[Trajectory]]]


def _outcomes(trajectories: Sequence[Trajectory]) -> Part:
    scored = [t.success for t in trajectories if t.success is not None]
    rewards = [t.reward for t in trajectories if t.reward is not None]
    cut = [t for t in trajectories if t.stop_reason in CUT]
    lengths = [len(t.completion_ids) for t in trajectories]
    values = {
        "trajectories": float(len(trajectories)),
        "success": float(np.mean(scored)) if scored else math.nan,
        "reward": float(np.mean(rewards)) if rewards else math.nan,
        "completion_tokens": float(np.mean(lengths)),
        "truncated": len(cut) / len(trajectories),
    }
    longest = sorted(trajectories, key=lambda t: -len(t.completion_ids))
    paid = {
        k: [t.reward for t in trajectories if t.reward is not None and t.success == k] for k in (0.0, 1.0)
    }
    wrong_pays, right_pays = (float(np.mean(found)) if found else math.nan for found in paid.values())
    values |= {"reward_wrong": wrong_pays, "reward_gap": right_pays - wrong_pays}
    best = sorted((t for t in trajectories if t.reward is not None), key=lambda t: -t.reward)
    wrong = [t for t in trajectories if t.success is not None and t.success < 1.0]
    return values, {"truncated": cut, "completion_tokens": longest, "reward": best, "success": wrong}


def _groups(groups: Iterable[list[Trajectory]]) -> Part:
    """Groups whose rewards are all equal, and how alike the rollouts of a group are."""
    known, solved, stuck, stuck_in, repeats, repeated = 0, 0, 0, [], [], []
    for group in groups:
        rewards = [t.reward for t in group if t.reward is not None]
        right = all(t.success == 1.0 for t in group)
        if len(rewards) > 1:
            known += 1
            if max(rewards) - min(rewards) < EQUAL:
                solved, stuck = solved + right, stuck + (not right)
                stuck_in += [] if right else group
        if len(group) > 1 and not right:
            counts = Counter(t.completion_ids for t in group)
            repeats.append((len(group) - len(counts)) / (len(group) - 1))
            repeated += [t for t in group if counts[t.completion_ids] > 1]
    shares = {"zero_variance": solved + stuck, "solved": solved, "stuck": stuck}
    values = {name: count / known if known else math.nan for name, count in shares.items()}
    return values | {"identical": float(np.mean(repeats)) if repeats else math.nan}, {
        "stuck": stuck_in,
        "identical": repeated,
    }


def _components(groups: Iterable[list[Trajectory]]) -> Part:
    """Ranges of the components, and how much of the reward's variance within groups each explains."""
    groups = [[t for t in group if t.reward is not None] for group in groups]
    trajectories = [t for group in groups for t in group]
    values: dict[str, float] = {}
    for name in dict.fromkeys(name for t in trajectories for name in t.components):
        found = [t.components[name] for t in trajectories if t.components.get(name) is not None]
        values |= {f"low/{name}": min(found), f"high/{name}": max(found)} if found else {}
        values[f"scored/{name}"] = len(found) / len(trajectories)
        values[f"explains/{name}"] = explained(groups, lambda t, name=name: t.components.get(name))
    values["explains/success"] = explained(groups, lambda t: t.success)
    return values, {"components": trajectories}


def explained(groups: Iterable[Sequence[Trajectory]], measure: Any) -> float:
    """Share of the rewards' variance within groups that a measure explains: their squared correlation about
    group means.

    Args:
        groups: trajectories with a reward.
        measure: a number of a trajectory; None leaves it out.

    Returns:
        0 to 1; 0 where the measure never varies, NaN where the rewards never do.
    """
    x, y = [], []
    for group in groups:
        pairs = [(measure(t), t.reward) for t in group if measure(t) is not None]
        if len(pairs) > 1:
            both = np.array(pairs, dtype=float)
            both -= both.mean(0)
            x, y = [*x, *both[:, 0]], [*y, *both[:, 1]]
    xx, yy, xy = (float(np.dot(a, b)) for a, b in ((x, x), (y, y), (x, y)))
    if yy < EQUAL:
        return math.nan
    return xy * xy / (xx * yy) if xx > EQUAL else 0.0


def _actions(groups: Mapping[str, list[Trajectory]]) -> Part:
    """Do answers and actions still depend on the task?"""
    everyone = [t for group in groups.values() for t in group]
    answered = [(normalize(t.answer), t) for t in everyone if t.answer is not None]
    counts = Counter(answer for answer, _ in answered)
    top, times = counts.most_common(1)[0] if counts else ("", 0)
    acting = [(t.turns[0].text, t) for t in everyone if t.turns and t.turns[0].results]
    tasks = defaultdict(set)
    for action, t in acting:
        tasks[action].add(t.task_id)
    shared = [t for action, t in acting if len(tasks[action]) > 1]
    several = len(groups) > 2
    values = {
        "answer_top": times / len(everyone) if several else math.nan,
        "template": len(shared) / len(everyone) if several else math.nan,
    }
    return values, {"answer_top": [t for answer, t in answered if answer == top], "template": shared}


def _tools(trajectories: Sequence[Trajectory]) -> Part:
    """Calls, how long they took, and cached replies that differ from fresh ones to the same call in this
    step.
    """
    calls = [(r, t) for t in trajectories for turn in t.turns for r in turn.results]
    fresh = [r.seconds for r, _ in calls if not r.cached and r.name]
    late = [t for r, t in calls if not r.ok and TIMED_OUT in r.observation]
    silent = [t for t in trajectories if not any(turn.results for turn in t.turns)]
    replies = {call_key(r): r.observation for r, _ in calls if not r.cached and r.ok}
    stale = [
        t for r, t in calls if r.cached and r.ok and replies.get(call_key(r), r.observation) != r.observation
    ]
    values = {
        "calls": len(calls) / len(trajectories),
        "no_tool": len(silent) / len(trajectories),
        "call_seconds": float(np.percentile(fresh, 90)) if fresh else math.nan,
        "timeouts": len(late) / len(calls) if calls else 0.0,
        "cache_conflicts": float(len(stale)),
    }
    busiest = sorted(trajectories, key=lambda t: -sum(len(turn.results) for turn in t.turns))
    slowest = sorted(trajectories, key=lambda t: -sum(r.seconds for turn in t.turns for r in turn.results))
    return values, {
        "no_tool": silent,
        "calls": busiest,
        "call_seconds": slowest,
        "timeouts": late,
        "cache_conflicts": stale,
    }
