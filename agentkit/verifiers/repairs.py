"""Is an infeasible program repaired? Calls are replayed on it, and what was submitted last is solved anew.

It must be feasible and have the known optimum, and nothing may be changed but what was wrong. Nothing that a
tool replied is believed. Leaves out the solver (tools.linear).
"""

from collections.abc import Sequence

from agentkit.records import Score, ToolResult, Trajectory, Unscored
from agentkit.tools import linear
from agentkit.trajectories import results_of
from agentkit.verifiers.numbers import numeric


def repair(
    answer: str,
    gold: str,
    *,
    trajectory: Trajectory | None = None,
    question: str = "",
    planted: Sequence[str] = (),
) -> Score:
    """1 when the last submission is a repair that keeps the optimum, and the answer names that.

    Args:
        answer: the optimum of the repaired program.
        gold: the known optimum.
        trajectory: with calls of drop_constraint, relax_constraint and submit; each submission begins anew.
        question: the text that holds the program (tools.linear.read).
        planted: names of the constraints that are wrong; without them any that had to be changed may be.
    """
    program = linear.read(question)
    _, submitted = replayed(program.names, results_of(trajectory) if trajectory else ())
    if submitted is None:
        return Score(0.0, "nothing was submitted")
    try:
        arguments = question, linear.frozen(submitted), float(gold), tuple(planted)
        reply = linear.verdict_in(linear.apart(linear.outcome_of, *arguments))
    except linear.Unsolved as error:
        raise Unscored(str(error)) from None
    if reply["status"] == "overdone":
        return Score(0.0, f"more was changed than was wrong: {', '.join(submitted)}")
    if reply["status"] != "optimal":
        return Score(0.0, f"the repaired program is {reply['status']}")
    return numeric(answer, gold, rel_tol=linear.TOLERANCE)


def replayed(
    names: Sequence[str], results: Sequence[ToolResult]
) -> tuple[linear.Repairs, linear.Repairs | None]:
    """The repairs under way after these calls, and those that were submitted last; None where none were."""
    repairs, submitted = {}, None
    for result in filter(lambda r: r.ok, results):
        if result.name == "submit":
            repairs, submitted = {}, repairs
        elif result.name in ("drop_constraint", "relax_constraint"):
            amount = result.arguments["amount"] if result.name == "relax_constraint" else None
            repairs = linear.changed(names, repairs, result.arguments["name"], amount)
    return repairs, submitted
