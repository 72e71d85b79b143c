"""The questions a training leaves, each answered in one sentence computed from what is stored.

Leaves out: the held-out comparison, which alone says whether the agent became better (evaluation).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from agentkit.diagnostics.rules import Alarm
from agentkit.evaluation import task_success
from agentkit.records import Task, Trajectory

ENDS = 5  # steps at either end that are compared
TRADES = {
    "turns": "turns",
    "completion_tokens": "tokens",
    "entropy": "nats of entropy a token",
    "tool_failure_rate": "failed calls",
}
STABILITY = ("kl_spike", "gradient_spike", "clip_drift", "engine_mismatch", "entropy_collapse")


def answers(
    metrics: pd.DataFrame, alarms: Sequence[Alarm] = (), by_kind: pd.DataFrame | None = None
) -> dict[str, str]:
    """Did it learn, when, where, at what cost, what did it trade, is it hacking, is it stable, what to
    change.

    Args:
        metrics: train/metrics.jsonl, one row a step.
        alarms: of the run.
        by_kind: as ``success_by_kind``.
    """
    metrics = metrics.drop_duplicates("step", keep="last").sort_values("step")
    steps = metrics[metrics["step"] > 0]
    found = {"Did it learn?": _learnt(metrics), "When?": _when(metrics)}
    if by_kind is not None and len(by_kind):
        best, worst = by_kind["change"].idxmax(), by_kind["change"].idxmin()
        found["On which tasks?"] = (
            f"Most on {best} ({_points(by_kind['change'][best])} points), least on {worst} "
            f"({_points(by_kind['change'][worst])} points)."
        )
    if "seconds" in steps:
        seconds = float(steps["seconds"].sum())
        found["At what cost?"] = (
            f"{seconds / 60:.1f} minutes of training, {seconds / max(len(steps), 1):.1f} s a step."
        )
    changes = [
        f"{_mean(steps[name].head(ENDS)):.3g} to {_mean(steps[name].tail(ENDS)):.3g} {unit}"
        for name, unit in TRADES.items()
        if name in steps and steps[name].notna().any()
    ]
    found["What did it trade?"] = (
        f"From the first {ENDS} steps to the last: {'; '.join(changes)}."
        if changes
        else "Nothing was recorded."
    )
    found["Is it hacking the reward?"] = _hacking(steps, alarms)
    shaky = [a for a in alarms if a.alarm in STABILITY]
    named = ", ".join(f"{a.alarm} at step {a.step}" for a in shaky[:4]).replace("_", " ")
    found["Is it stable?"] = f"No: {named}." if shaky else "No alarm says otherwise."
    advice = list(dict.fromkeys(a.advice for a in alarms if a.severity != "info"))
    found["What to change?"] = (
        " ".join(advice[:3]) if advice else "Nothing that an alarm names; compare on the held-out test."
    )
    return found


def success_by_kind(
    early: Iterable[Trajectory], late: Iterable[Trajectory], tasks: Mapping[str, Task]
) -> pd.DataFrame:
    """Success in the first and in the last steps, by family and by difficulty; tasks count alike.

    Returns:
        Indexed by kind; ``before``, ``after`` and ``change`` in success, and the tasks behind each.
    """
    known = [[t for t in end if t.success is not None and t.task_id in tasks] for end in (early, late)]
    ends = [task_success(found) if found else {} for found in known]
    families = sorted({f"family {t.family}" for t in tasks.values()})
    kinds = [
        *families,
        *(d for d in ("easy", "medium", "hard") if d in {t.difficulty for t in tasks.values()}),
    ]
    rows = {}
    for kind in kinds:
        own = [
            [v for i, v in end.items() if kind in (f"family {tasks[i].family}", tasks[i].difficulty)]
            for end in ends
        ]
        if all(own):
            before, after = (float(np.mean(values)) for values in own)
            rows[kind] = {
                "before": before,
                "after": after,
                "change": after - before,
                "tasks": len(own[0]) + len(own[1]),
            }
    found = pd.DataFrame.from_dict(rows, orient="index", columns=["before", "after", "change", "tasks"])
    return found.astype({"tasks": int})


def _learnt(metrics: pd.DataFrame) -> str:
    seen = metrics.dropna(subset=["val_success"]) if "val_success" in metrics else metrics.iloc[:0]
    if len(seen) < 2:
        return "Unknown: there are not two validations to compare."
    first, best = seen.iloc[0], seen.loc[seen["val_success"].idxmax()]
    if best["val_success"] <= first["val_success"]:
        return f"Validation success was {first['val_success']:.1%} before, and never higher."
    apart = best.get("val_ci_low", -1.0) > first.get("val_ci_high", 2.0)
    sure = "their intervals lie apart" if apart else "their intervals overlap, so it may be chance"
    return f"Validation success was {first['val_success']:.1%} before and {best['val_success']:.1%} at its best; {sure}."


def _when(metrics: pd.DataFrame) -> str:
    seen = metrics.dropna(subset=["val_success"]) if "val_success" in metrics else metrics.iloc[:0]
    if len(seen) < 2 or seen["val_success"].max() <= seen["val_success"].iloc[0]:
        return "Validation never rose above where it began."
    first, best = seen["val_success"].iloc[0], seen["val_success"].max()
    half, top = (
        seen[seen["val_success"] >= (first + best) / 2].iloc[0],
        seen.loc[seen["val_success"].idxmax()],
    )
    return f"Half of the gain was there at step {int(half['step'])}, the best at step {int(top['step'])}."


def _hacking(steps: pd.DataFrame, alarms: Sequence[Alarm]) -> str:
    if any(a.alarm == "reward_hacking" for a in alarms):
        return next(a.cause for a in alarms if a.alarm == "reward_hacking")
    if "audit_disagreement" not in steps or not steps["audit_disagreement"].notna().any():
        return "Unknown: no trajectory was audited."
    refused = steps["audit_disagreement"]
    early, late = f"{_mean(refused.head(ENDS)):.0%}", f"{_mean(refused.tail(ENDS)):.0%}"
    return f"The auditor refuses {late} of the answers that the reward likes in the last {ENDS} steps, and {early} in the first."


def _mean(values: pd.Series) -> float:
    return float(pd.to_numeric(values, errors="coerce").mean())


def _points(share: float) -> str:
    return f"{100 * share:+.0f}"
