"""The questions a training leaves, each answered in one sentence computed from what is stored.

Leaves out the held-out comparison, which alone says whether the agent became better (evaluation).
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import pandas as pd

from agentkit.diagnostics.rules import Alarm
from agentkit.evaluation.summary import easy_first
from agentkit.records import Task, Trajectory

ENDS = 5  # steps at either end that are compared
STABILITY = ("kl_spike", "gradient_spike", "engine_mismatch", "mode_collapse")


def answers(
    metrics: pd.DataFrame, alarms: Sequence[Alarm] = (), by_kind: pd.DataFrame | None = None
) -> dict[str, str]:
    """Did it learn, and where; is it hacking, is it stable; what to change.

    Args:
        metrics: train/metrics.jsonl, one row a step.
        alarms: of the run.
        by_kind: as ``success_by_kind``.
    """
    metrics = metrics.apply(pd.to_numeric, errors="coerce")
    metrics = metrics.drop_duplicates("step", keep="last").sort_values("step")
    steps = metrics[metrics["step"] > 0]
    sentences = {"Did it learn?": _learnt(metrics)}
    if by_kind is not None and len(by_kind):
        points = (100 * by_kind["change"]).map("{:+z.0f}".format)
        best, worst = by_kind["change"].idxmax(), by_kind["change"].idxmin()
        sentences["On which tasks?"] = (
            f"Most on {best} ({points[best]} points), least on {worst} ({points[worst]} points)."
        )
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
    rows = [(column, t) for column, end in (("before", early), ("after", late)) for t in end]
    rows = [(c, t.task_id, tasks[t.task_id], t.success) for c, t in rows if t.task_id in tasks]
    found = pd.DataFrame(
        [(c, name, f"family {task.family}", task.difficulty, success) for c, name, task, success in rows],
        columns=["end", "task", "family", "difficulty", "success"],
    ).astype({"success": float})
    levels = easy_first(set(found["difficulty"]))
    kinds = [found.assign(kind=found[name]) for name in ("family", "difficulty")]
    means = pd.concat(kinds).groupby(["kind", "end", "task"])["success"].mean().dropna()
    table = means.groupby(["kind", "end"]).mean().unstack().reindex(columns=["before", "after"])
    table = table.reindex([*sorted(set(found["family"])), *levels]).assign(
        change=table["after"] - table["before"], tasks=means.groupby("kind").count()
    )
    return table.dropna().astype({"tasks": int})


def _learnt(metrics: pd.DataFrame) -> str:
    validated = metrics.dropna(subset="val_success") if "val_success" in metrics else metrics.head(0)
    if len(validated) < 2:
        return "Unknown: there are not two validations to compare."
    first, best = validated.iloc[0], validated.loc[validated["val_success"][::-1].idxmax()]
    before = f"Validation success was {first['val_success']:.1%} before"
    if best["val_success"] <= first["val_success"]:
        return f"{before}, and never higher."
    separate = best.get("val_ci_low", -1.0) > first.get("val_ci_high", 2.0)
    sure = "their intervals lie apart" if separate else "their intervals overlap, so it may be chance"
    after = f"{best['val_success']:.1%} at its best, step {best['step']:.0f}{fresh_half(validated)}"
    return f"{before} and {after}; {sure}."


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
    return f" ({fresh:.1%} on tasks that did not choose the step)"


def _ends(known: pd.Series) -> tuple[float, float]:
    """The means of its first and last ENDS values, of fewer where they would overlap."""
    n = min(ENDS, max(1, len(known) // 2))
    return known.head(n).mean(), known.tail(n).mean()


def _hacking(steps: pd.DataFrame, alarms: Sequence[Alarm]) -> str:
    causes = [a.cause for a in alarms if a.alarm == "reward_hacking"]
    refused = steps["audit_disagreement"].dropna() if "audit_disagreement" in steps else []
    if causes or not len(refused):
        return causes[0] if causes else "Unknown: no trajectory was audited."
    early, late = _ends(refused)
    return f"The auditor refuses {late:.0%} of the answers that the reward likes, and {early:.0%} at first."
