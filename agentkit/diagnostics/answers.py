"""The questions a training leaves, each answered in one sentence computed from what is stored.

Leaves out the held-out comparison, which alone says whether the agent became better (evaluation).
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import pandas as pd

from agentkit.diagnostics.rules import Alarm
from agentkit.evaluation import task_success
from agentkit.evaluation.summary import easy_first
from agentkit.records import Task, Trajectory

ENDS = 5  # steps at either end that are compared
TRADES = {"turns": "turns", "completion_tokens": "tokens", "entropy": "nats of entropy a token"}
STABILITY = ("kl_spike", "gradient_spike", "engine_mismatch", "mode_collapse")


def answers(
    metrics: pd.DataFrame, alarms: Sequence[Alarm] = (), by_kind: pd.DataFrame | None = None
) -> dict[str, str]:
    """Did it learn, when, where, at what cost; what did it trade, is it hacking, stable; what to change.

    Args:
        metrics: train/metrics.jsonl, one row a step.
        alarms: of the run.
        by_kind: as ``success_by_kind``.
    """
    metrics = metrics.apply(pd.to_numeric, errors="coerce")
    metrics = metrics.drop_duplicates("step", keep="last").sort_values("step")
    steps = metrics[metrics["step"] > 0]
    if "val_success" not in metrics:
        metrics = metrics.assign(val_success=float("nan"))
    validated = metrics.dropna(subset="val_success")
    sentences = {"Did it learn?": _learnt(validated), "When?": _when(validated)}
    if by_kind is not None and len(by_kind):
        points = (100 * by_kind["change"]).map("{:+z.0f}".format)
        best, worst = by_kind["change"].idxmax(), by_kind["change"].idxmin()
        sentences["On which tasks?"] = (
            f"Most on {best} ({points[best]} points), least on {worst} ({points[worst]} points)."
        )
    if "seconds" in steps:
        minutes, each = steps["seconds"].sum() / 60, steps["seconds"].sum() / max(len(steps), 1)
        sentences["At what cost?"] = f"{minutes:.1f} minutes of training, {each:.1f} s a step."
    sentences["What did it trade?"] = _trades(steps)
    sentences["Is it hacking the reward?"] = _hacking(steps, alarms)
    unstable = [f"{a.alarm} at step {a.step}" for a in alarms if a.alarm in STABILITY][:4]
    sentences["Is it stable?"] = (
        f"No: {', '.join(unstable).replace('_', ' ')}." if unstable else "No alarm says otherwise."
    )
    advice = list(dict.fromkeys(a.advice for a in alarms if a.severity != "info"))[:3]
    nothing = "Nothing that an alarm names; compare on the held-out test."
    sentences["What to change?"] = " ".join(advice) or nothing
    return sentences


def success_by_kind(
    early: Iterable[Trajectory], late: Iterable[Trajectory], tasks: Mapping[str, Task]
) -> pd.DataFrame:
    """Success in the first and in the last steps, by family and by difficulty; tasks count alike.

    Returns:
        Indexed by kind; ``before``, ``after`` and ``change`` in success, and the tasks behind each.
    """
    known = ([t for t in end if t.success is not None and t.task_id in tasks] for end in (early, late))
    ends = [task_success(scored) if scored else {} for scored in known]
    families = sorted({t.family for t in tasks.values()})
    levels = easy_first({t.difficulty for t in tasks.values()})
    kinds = {f"family {name}": [i for i, t in tasks.items() if t.family == name] for name in families}
    kinds |= {name: [i for i, t in tasks.items() if t.difficulty == name] for name in levels}
    rows = {}
    for kind, ids in kinds.items():
        before, after = ([end[i] for i in ids if i in end] for end in ends)
        if before and after:
            means = {"before": fmean(before), "after": fmean(after), "change": fmean(after) - fmean(before)}
            rows[kind] = means | {"tasks": len(before) + len(after)}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["before", "after", "change", "tasks"])
    return table.astype({"tasks": int})


def _learnt(validated: pd.DataFrame) -> str:
    if len(validated) < 2:
        return "Unknown: there are not two validations to compare."
    first, best = validated.iloc[0], validated.loc[validated["val_success"][::-1].idxmax()]
    before = f"Validation success was {first['val_success']:.1%} before"
    if best["val_success"] <= first["val_success"]:
        return f"{before}, and never higher."
    separate = best.get("val_ci_low", -1.0) > first.get("val_ci_high", 2.0)
    sure = "their intervals lie apart" if separate else "their intervals overlap, so it may be chance"
    return f"{before} and {best['val_success']:.1%} at its best{fresh_half(validated)}; {sure}."


def fresh_half(metrics: pd.DataFrame) -> str:
    """What the best validation amounts to on tasks that did not choose it, as part of a sentence.

    The best of many validations is too high by the luck that made it the best. Each half of the tasks chooses
    a step, the other half measures it, and the two are averaged: cross-validation over steps.
    """
    halves = ["val_odd", "val_even"]
    rows = metrics.dropna(subset=halves) if set(halves) <= set(metrics) else metrics.head(0)
    if len(rows) < 2:
        return ""
    chosen = [rows.loc[rows[half][::-1].idxmax()] for half in halves]  # of equals the last, as in training
    fresh = fmean([chosen[0][halves[1]], chosen[1][halves[0]]])
    return f" ({fresh:.1%} on a half of the tasks that did not choose the step)"


def _when(validated: pd.DataFrame) -> str:
    success = validated["val_success"]
    if len(success) < 2:
        return "Unknown: there are not two validations to compare."
    if success.max() <= success.iloc[0]:
        return "Validation never rose above where it began."
    half, top = validated[success >= (success.iloc[0] + success.max()) / 2].iloc[0], success[::-1].idxmax()
    best = int(validated["step"][top])
    return f"Half of the gain was there at step {int(half['step'])}, the best at step {best}."


def _trades(steps: pd.DataFrame) -> str:
    """What an agent may give up for success, or for its reward."""
    changes = []
    for name, unit in TRADES.items():
        if name in steps and len(known := steps[name].dropna()):
            early, late = _ends(known)
            changes.append(f"{early:.3g} to {late:.3g} {unit}")
    if not changes:
        return "Nothing was recorded."
    return f"From the first steps to the last, {ENDS} at most: {'; '.join(changes)}."


def _ends(known: pd.Series) -> tuple[float, float]:
    """The means of its first and last ENDS values, of fewer where they would overlap."""
    n = min(ENDS, max(1, len(known) // 2))
    return known.head(n).mean(), known.tail(n).mean()


def _hacking(steps: pd.DataFrame, alarms: Sequence[Alarm]) -> str:
    causes = [a.cause for a in alarms if a.alarm == "reward_hacking"]
    if causes:
        return causes[0]
    if "audit_disagreement" not in steps or not len(refused := steps["audit_disagreement"].dropna()):
        return "Unknown: no trajectory was audited."
    early, late = _ends(refused)
    return (
        f"The auditor refuses {late:.0%} of the answers that the reward likes in the last steps, {ENDS} at "
        f"most, and {early:.0%} in the first."
    )
