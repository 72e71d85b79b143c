"""Rewards of OR-debug (arXiv 2601.21008): repairing an infeasible linear program from its irreducible
infeasible subset (IIS).

The actions are tools, in lower or upper case: get_iis(), drop_constraint(name), relax_constraint(name,
amount), submit(). Everything is read from parsed calls and their replies, never by a pattern over prose: in
the published run an unanchored pattern took 20 from almost every text, so that each rollout had 20 - 1 + 10
- 20 = 9.0 where a perfect one has 29. A task gives ``meta["constraints"]``, all names, and ``meta["iis"]``,
those in conflict; a task without them is not scored. What the natural way earns, in a turn each: get_iis(),
one right repair whose reply is the conflict that is left, submit(): 100 + 10 - 3 + 5 = 112 with the solver,
and 20 - 3 + 10 = 27 without it, of which the published fault takes 20. Leaves out the solver, which stands
behind the tools (tasks.families.ordebug, or your own).
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from agentkit.records import Task, ToolResult, Trajectory
from agentkit.runs import parse_json
from agentkit.trajectories import results_of

REPAIRS = ("drop_constraint", "relax_constraint")


def of_problem(component: Callable[[Task, Trajectory], float]) -> Callable[[Task, Trajectory], float | None]:
    """A component that is None for tasks without a problem to repair."""

    @wraps(component)
    def scored(task: Task, trajectory: Trajectory) -> float | None:
        return component(task, trajectory) if {"constraints", "iis"} <= task.meta.keys() else None

    return scored


def _named(trajectory: Trajectory, *names: str) -> list[ToolResult]:
    return [result for result in results_of(trajectory) if result.name.lower() in names]


def _valid(task: Task, call: ToolResult) -> bool:
    """A repair of a constraint that the problem has; a relaxation by a finite amount above 0."""
    amount = call.arguments.get("amount")
    fits = call.name.lower() == "drop_constraint" or (type(amount) in (int, float) and 0 < amount < math.inf)
    return fits and call.arguments.get("name") in task.meta["constraints"]


# ---- without a solver (the seed's GRPO v1)
@of_problem
def repair(task: Task, trajectory: Trajectory) -> float:
    """+20 for a valid targeted repair, +5 for only asking for the IIS, else 0."""
    repairs = _named(trajectory, *REPAIRS)
    if any(_valid(task, call) for call in repairs):
        return 20.0
    return 5.0 if not repairs and _named(trajectory, "get_iis") else 0.0


@of_problem
def step(task: Task, trajectory: Trajectory) -> float:
    """-1 for each attempted call, not for each turn, and -1 for a trajectory without one."""
    return -1.0 * max(len(results_of(trajectory)), 1)


@of_problem
def target(task: Task, trajectory: Trajectory) -> float:
    """+10 when there is a valid repair and each one is of a constraint in the IIS."""
    targets = {call.arguments["name"] for call in _named(trajectory, *REPAIRS) if _valid(task, call)}
    return 10.0 if targets and targets <= set(task.meta["iis"]) else 0.0


@of_problem
def faithfulness(task: Task, trajectory: Trajectory) -> float:
    """-20 when a repair names a constraint that the problem does not have."""
    names = [call.arguments.get("name") for call in _named(trajectory, *REPAIRS)]
    return -20.0 if any(name not in task.meta["constraints"] for name in names) else 0.0


# ---- with a solver behind the tools
def _reply(result: ToolResult) -> Any:
    """The JSON in a reply's first line, which may be anybody's tool's; None where there is none."""
    try:
        return parse_json(result.observation.partition("\n")[0])
    except ValueError:
        return None


def _last_submit(trajectory: Trajectory) -> dict:
    """The JSON object that the last submit() replied; empty where there is none."""
    submitted = _named(trajectory, "submit")
    reply = _reply(submitted[-1]) if submitted else None
    return reply if isinstance(reply, dict) else {}


@of_problem
def solved(task: Task, trajectory: Trajectory) -> float:
    """+100 when the last submit() replies {"status": "optimal"}, else -50: also where there is none.

    The shipped tool says so of the known optimum only; another one is "changed", and one for which more was
    changed than was wrong "overdone". The published -50 for syntax has no component of its own: a call
    that cannot be read costs its step, and a trajectory that submits nothing has this -50 already.
    """
    return 100.0 if _last_submit(trajectory).get("status") == "optimal" else -50.0


@of_problem
def preserved(task: Task, trajectory: Trajectory) -> float:
    """+5 when the last submit() replies that the model's meaning was preserved: "preserved": true."""
    return 5.0 if _last_submit(trajectory).get("preserved") is True else 0.0


@of_problem
def iis_shrinks(task: Task, trajectory: Trajectory) -> float:
    """+10 each time get_iis() or a repair replies with a shorter list than any before, the task's too.

    Than any: a submission puts the program back, and whoever begins anew should not earn it again.
    """
    shortest, shrunk = len(task.meta["iis"]), 0
    for result in _named(trajectory, "get_iis", *REPAIRS):
        reply = _reply(result)
        if isinstance(reply, list) and len(reply) < shortest:
            shortest, shrunk = len(reply), shrunk + 1
    return 10.0 * shrunk


@of_problem
def contradiction(task: Task, trajectory: Trajectory) -> float:
    """-20 for each repair of what the IIS replied last does not hold; a submission begins anew."""
    iis, contradictions = None, 0
    for result in _named(trajectory, "get_iis", *REPAIRS, "submit"):
        name, reply = result.name.lower(), _reply(result)
        if name in REPAIRS and iis is not None and result.arguments.get("name") not in iis:
            contradictions += 1
        if name == "submit":
            iis = None
        elif isinstance(reply, list):
            iis = reply
    return -20.0 * contradictions
