"""Rewards of OR-debug (arXiv 2601.21008): repairing an infeasible linear program from its irreducible
infeasible subset (IIS).

The actions are tools: get_iis(), drop_constraint(name), relax_constraint(name, amount), submit(); upper case
does as well.
Everything is read from parsed calls and their replies, never by a pattern over prose: in the published run an
unanchored pattern took 20 from almost every text, so that each rollout had 20 - 1 + 10 - 20 = 9.0 where a
perfect one has 29. A task gives ``meta["constraints"]``, all names, and ``meta["iis"]``, those in conflict; a
task without them is not scored.
"""

from __future__ import annotations

import json
import math
from typing import Any

from agentkit.records import Task, ToolResult, Trajectory
from agentkit.rewards.calls import attempts

REPAIRS = ("drop_constraint", "relax_constraint")


def _named(trajectory: Trajectory, *names: str) -> list[ToolResult]:
    return [r for r in attempts(trajectory) if r.name.lower() in names]


def _valid(task: Task, call: ToolResult) -> bool:
    """A repair of a constraint that the problem has; a relaxation by a finite amount above 0."""
    amount = call.arguments.get("amount")
    fits = call.name.lower() == "drop_constraint" or (type(amount) in (int, float) and 0 < amount < math.inf)
    return fits and call.arguments.get("name") in task.meta["constraints"]


def _has_problem(task: Task) -> bool:
    return {"constraints", "iis"} <= task.meta.keys()


# ---- without a solver (the seed's GRPO v1)
# ---------------------------------------------------------------------------
def repair(task: Task, trajectory: Trajectory) -> float | None:
    """+20 for a valid targeted repair, +5 for only asking for the IIS, else 0."""
    if not _has_problem(task):
        return None
    tried = _named(trajectory, *REPAIRS)
    return (
        20.0
        if any(_valid(task, r) for r in tried)
        else 5.0
        if not tried and _named(trajectory, "get_iis")
        else 0.0
    )


def step(task: Task, trajectory: Trajectory) -> float | None:
    """-1 for each attempted call, and for a trajectory without one."""
    return -1.0 * max(len(attempts(trajectory)), 1) if _has_problem(task) else None


def target(task: Task, trajectory: Trajectory) -> float | None:
    """+10 when there is a valid repair and each one is of a constraint in the IIS."""
    if not _has_problem(task):
        return None
    targets = [r.arguments["name"] for r in _named(trajectory, *REPAIRS) if _valid(task, r)]
    return 10.0 if targets and set(targets) <= set(task.meta["iis"]) else 0.0


def faithfulness(task: Task, trajectory: Trajectory) -> float | None:
    """-20 when a repair names a constraint that the problem does not have."""
    if not _has_problem(task):
        return None
    names = [r.arguments.get("name") for r in _named(trajectory, *REPAIRS)]
    return -20.0 if any(name not in task.meta["constraints"] for name in names) else 0.0


# ---- with a solver behind the tools
# ----------------------------------------------------------------------------------
def _reply(result: ToolResult) -> Any:
    try:
        return json.loads(result.observation)
    except (ValueError, RecursionError):
        return None


def solved(task: Task, trajectory: Trajectory) -> float | None:
    """+100 when the submitted model is optimal, else -50: infeasible, a syntax error, or nothing submitted.

    The last submit() replies with a JSON object whose "status" is "optimal" or something else.
    """
    submitted = _named(trajectory, "submit")
    reply = _reply(submitted[-1]) if submitted else None
    if not _has_problem(task):
        return None
    return 100.0 if isinstance(reply, dict) and reply.get("status") == "optimal" else -50.0


def iis_shrinks(task: Task, trajectory: Trajectory) -> float | None:
    """+10 each time get_iis() replies with a shorter JSON list than before; the first is compared with the
    task's own.
    """
    if not _has_problem(task):
        return None
    lists = [
        task.meta["iis"],
        *(found for r in _named(trajectory, "get_iis") if isinstance(found := _reply(r), list)),
    ]
    return 10.0 * sum(len(b) < len(a) for a, b in zip(lists, lists[1:], strict=False))


def contradiction(task: Task, trajectory: Trajectory) -> float | None:
    """-20 for each repair of a constraint that the IIS shown last does not hold."""
    if not _has_problem(task):
        return None
    shown, count = None, 0
    for result in _named(trajectory, "get_iis", *REPAIRS):
        if result.name.lower() == "get_iis":
            shown = found if isinstance(found := _reply(result), list) else shown
        else:
            count += shown is not None and result.arguments.get("name") not in shown
    return -20.0 * count


def preserved(task: Task, trajectory: Trajectory) -> float | None:
    """+5 when the last submit() replies that the model's meaning was preserved: "preserved": true."""
    submitted = _named(trajectory, "submit")
    reply = _reply(submitted[-1]) if submitted else None
    if not _has_problem(task):
        return None
    return 5.0 if isinstance(reply, dict) and reply.get("preserved") is True else 0.0
