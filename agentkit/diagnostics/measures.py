"""What one optimiser step shows: its metrics row and what its trajectories show, as numbers with evidence.

``observe`` is pure. Alarms read these records only, so a stored run and a running one are judged by the same
code. Leaves out what is a fault (conditions, rules) and reading files (watch).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentkit.records import Group, Trajectory
from agentkit.trajectories import groups_by_task, is_dead, members, met_limit, results_of, trajectory_id

EVIDENCE = 8  # trajectories kept as evidence for one measure
FINITE = ("loss", "grad_norm", "kl", "entropy")  # metrics that are finite in any step that was no accident

Values = dict[str, float]
Evidence = dict[str, list[Trajectory]]


@dataclass(frozen=True, slots=True)
class StepMeasures:
    """One optimiser step in numbers."""

    number: int
    values: Mapping[str, float]  # the metrics row's and the measures of ``observe``; NaN is "not known"
    evidence: Mapping[str, tuple[str, ...]]  # for a measure, ids of trajectories that show it

    def __getitem__(self, name: str) -> float:
        return self.values.get(name, math.nan)


def observe(row: Mapping[str, Any], trajectories: Sequence[Trajectory] = ()) -> StepMeasures:
    """One step's record.

    Args:
        row: of train/metrics.jsonl. None, which JSON has for NaN and infinity, counts as not finite.
        trajectories: the step's rollouts, P groups of G, distinguished by their task; their tokens may be
            left unread.

    Returns:
        The row's numbers, which come first where a measure has the same name; and of the trajectories
        ``success``, ``reward``, ``completion_tokens``, ``truncated`` (share that met a limit),
        ``reward_wrong`` and ``reward_gap`` (what wrong trajectories earn, and how much more right ones do);
        ``zero_variance``, ``solved`` and ``stuck`` (shares of groups with equal rewards: all, those all
        right, the others; the first and the last at most the row's ``dead_groups``), ``identical`` (share of
        repeats in groups that are not all right); ``low/c``, ``high/c`` and ``scored/c`` (range of component
        c, share scored); ``calls`` and ``no_tool``.
    """
    values = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    finite = [math.isfinite(values.get(name, math.nan)) for name in FINITE if name in row]
    values |= {"not_finite": float(finite.count(False))} if finite else {}
    evidence: dict[str, tuple[str, ...]] = {}
    if trajectories:
        groups = groups_by_task(trajectories)
        for part in (_outcomes, _groups, _components, _tools):
            measures, shown_by = part(groups)
            values = measures | values
            shown = {name: some[:EVIDENCE] for name, some in shown_by.items() if some}
            evidence |= {name: tuple(map(trajectory_id, some)) for name, some in shown.items()}
        for name in ("zero_variance", "stuck"):  # of equal rewards some estimators still make advantages
            values[name] = min(values[name], values.get("dead_groups", math.inf))
    if "stuck" not in values and {"zero_variance", "success"} <= values.keys():
        # of a log without groups: the share of solved groups is at most the mean success
        values["stuck"] = max(0.0, values["zero_variance"] - values["success"])
    return StepMeasures(int(row["step"]), values, evidence)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _outcomes(groups: Sequence[Group]) -> tuple[Values, Evidence]:
    trajectories = members(groups)
    limited = [t for t in trajectories if met_limit(t)]
    paid = [t for t in trajectories if t.reward is not None]
    wrong_pays, right_pays = (_mean([t.reward for t in paid if t.success == k]) for k in (0.0, 1.0))
    values = {
        "trajectories": float(len(trajectories)),
        "success": _mean([t.success for t in trajectories if t.success is not None]),
        "reward": _mean([t.reward for t in paid]),
        "completion_tokens": _mean([len(t.completion_ids) for t in trajectories]),
        "truncated": len(limited) / len(trajectories),
        "reward_wrong": wrong_pays,
        "reward_gap": right_pays - wrong_pays,
    }
    return values, {
        "truncated": limited,
        "completion_tokens": sorted(trajectories, key=lambda t: -len(t.completion_ids)),
        "reward": sorted(paid, key=lambda t: -t.reward),
        "success": [t for t in trajectories if t.success is not None and t.success < 1.0],
    }


def _groups(groups: Sequence[Group]) -> tuple[Values, Evidence]:
    """Groups whose rewards are all equal, and how alike the rollouts of a group are."""
    scored = [g for g in groups if sum(t.reward is not None for t in g.trajectories) > 1]
    dead = [g for g in scored if is_dead(g)]
    stuck = [g for g in dead if not _solved(g)]
    repeats, repeated = [], []
    for group in groups:
        size, counts = len(group.trajectories), Counter(map(_said, group.trajectories))
        if size > 1 and not _solved(group):
            repeats.append((size - len(counts)) / (size - 1))
            repeated += [t for t in group.trajectories if counts[_said(t)] > 1]
    shares = {"zero_variance": len(dead), "solved": len(dead) - len(stuck), "stuck": len(stuck)}
    values = {name: count / len(scored) if scored else math.nan for name, count in shares.items()}
    return values | {"identical": _mean(repeats)}, {"stuck": members(stuck), "identical": repeated}


def _said(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(turn.text for turn in trajectory.turns)


def _solved(group: Group) -> bool:
    return all(t.success == 1.0 for t in group.trajectories)


def _components(groups: Sequence[Group]) -> tuple[Values, Evidence]:
    """The share of trajectories that each component scores, and its range."""
    trajectories = [t for t in members(groups) if t.reward is not None]
    values: Values = {}
    for name in dict.fromkeys(name for t in trajectories for name in t.components):
        scored = [t.components[name] for t in trajectories if t.components.get(name) is not None]
        values[f"scored/{name}"] = len(scored) / len(trajectories)
        if scored:
            values |= {f"low/{name}": min(scored), f"high/{name}": max(scored)}
    return values, {"components": trajectories}


def _tools(groups: Sequence[Group]) -> tuple[Values, Evidence]:
    """How many calls a trajectory makes, and how many make none."""
    trajectories = members(groups)
    calls = [len(results_of(t)) for t in trajectories]
    silent = [t for t, n in zip(trajectories, calls, strict=True) if not n]
    values = {"calls": _mean(calls), "no_tool": len(silent) / len(trajectories)}
    busy = sorted(trajectories, key=lambda t: -len(results_of(t)))
    return values, {"no_tool": silent, "calls": busy}
