"""Rewards that compare the calls a trajectory made with the calls its task needs: ToolRL and ToolRLA.

The needed calls are the task's plan (gold data that no policy sees), with earlier results filled in. A task
without a plan is not scored by these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentkit.records import StopReason, Task, ToolCall, ToolResult, Trajectory
from agentkit.tasks.expert import fill, shows
from agentkit.tools import calculate

COMPLIANCE_PENALTY = -10.0


def attempts(trajectory: Trajectory) -> list[ToolResult]:
    """Every attempted call, malformed ones (whose name is empty) included."""
    return [result for turn in trajectory.turns for result in turn.results]


def calls(trajectory: Trajectory) -> list[ToolCall]:
    """The calls that could be parsed, in order."""
    return [ToolCall(result.name, result.arguments) for result in attempts(trajectory) if result.name]


def gold_calls(task: Task) -> list[ToolCall] | None:
    """The calls of the task's plan with earlier values filled in; None for a task without a plan."""
    if "plan" not in task.meta:
        return None
    found, values = [], []
    for step in task.meta["plan"]:
        arguments = fill(step["arguments"], values)
        found.append(ToolCall(step["tool"], arguments))
        computed = calculate(arguments["expression"]) if step["tool"] == "calculator" else ""
        values.append(step.get("expect", computed))
    return found


def subgoals(task: Task, trajectory: Trajectory) -> list[int] | None:
    """How many steps of the plan each turn reached first, by an observation that shows the expected value;
    one number a turn.

    A step is reached by a call of its tool; steps that expect nothing (calculations, whose value follows) by
    the filled-in call itself. None for a task without a plan.
    """
    gold = gold_calls(task)
    if gold is None:
        return None
    left = list(zip(gold, [step.get("expect") for step in task.meta["plan"]], strict=True))
    reached = []
    for turn in trajectory.turns:
        before = len(left)
        for result in turn.results:
            hit = next((step for step in left if result.ok and _reaches(result, *step)), None)
            left = [step for step in left if step is not hit]
        reached.append(before - len(left))
    return reached


def _reaches(result: ToolResult, call: ToolCall, expected: str | None) -> bool:
    if result.name != call.name:
        return False
    if expected is None:
        same = result.arguments == call.arguments
        return same or (
            call.name == "calculator"
            and result.observation.strip() == calculate(call.arguments["expression"])
        )
    return shows(call.name, result.observation, expected)


# ---- ToolRL
# ----------------------------------------------------------------------------------------------------------
def match(a: Sequence[str], b: Sequence[str]) -> float:
    """Multiset overlap |A and B| / (|A| + |B| - |A and B|); 1 for two empty ones."""
    common = (Counter(a) & Counter(b)).total()
    return common / union if (union := len(a) + len(b) - common) else 1.0


def best_matches(
    called: Sequence[ToolCall], gold: Sequence[ToolCall]
) -> list[tuple[ToolCall, ToolCall | None]]:
    """Each gold call, in order, with the best unused call of the same name, or None where there is none.

    Choices fall in the order of the gold calls, as in ToolRL; one that agrees in nothing but the name is made
    last of all.
    """
    unused, found = list(called), [None] * len(gold)
    for least in (1e-9, 0.0):
        for i, call in enumerate(gold):
            same = [c for c in unused if c.name == call.name and _agreement(c, call) >= least]
            if found[i] is None and same:
                found[i] = max(same, key=lambda c: _agreement(c, call))
                unused = [c for c in unused if c is not found[i]]
    return list(zip(gold, found, strict=True))


def _equal_values(call: ToolCall, gold: ToolCall) -> int:
    return sum(
        name in call.arguments and call.arguments[name] == value for name, value in gold.arguments.items()
    )


def _agreement(call: ToolCall, gold: ToolCall) -> float:
    return match([*gold.arguments], [*call.arguments]) + _equal_values(call, gold)


def toolrl_match(called: Sequence[ToolCall], gold: Sequence[ToolCall]) -> float:
    """R_correct of ToolRL in [-3, 3] (arXiv 2504.13958): 6 * score / max - 3.

    score = match(tool names) + for each gold call the best unused call of its name: match(parameter names) +
    number of exactly equal values; max = 1 + sum over gold calls of (1 + number of parameters).
    """
    total = match([c.name for c in gold], [c.name for c in called])
    total += sum(_agreement(best, call) for call, best in best_matches(called, gold) if best)
    return 6 * total / (1 + sum(1 + len(call.arguments) for call in gold)) - 3


def toolrl_correctness(task: Task, trajectory: Trajectory) -> float | None:
    """``toolrl_match`` of the trajectory's calls against the plan's."""
    gold = gold_calls(task)
    return None if gold is None else toolrl_match(calls(trajectory), gold)


def whole_format(task: Task, trajectory: Trajectory) -> float | None:
    """R_format of ToolRL and R_fmt of ToolRLA, in {0, 1}: every call could be parsed, and the trajectory
    ended with an answer.
    """
    parsed = all(result.name for result in attempts(trajectory))
    return float(parsed and trajectory.stop_reason is StopReason.ANSWER and trajectory.answer is not None)


# ---- ToolRLA (arXiv 2603.01620)
# --------------------------------------------------------------------------------------
def tool_names(task: Task, trajectory: Trajectory) -> float | None:
    """S_name of ToolRLA: 0 when any called tool is invented (the task does not list it and it did not run),
    else 1.
    """
    return float(not any(r.name and not r.ok and r.name not in task.tools for r in attempts(trajectory)))


def completeness(task: Task, trajectory: Trajectory) -> float | None:
    """S_comp of ToolRLA: |invoked and required| / |required|, as multisets of tool names; 1 where nothing is
    required.
    """
    gold = gold_calls(task)
    if gold is None:
        return None
    invoked, required = Counter(c.name for c in calls(trajectory)), Counter(c.name for c in gold)
    return (invoked & required).total() / len(gold) if gold else 1.0


def argument_accuracy(task: Task, trajectory: Trajectory) -> float | None:
    """S_acc of ToolRLA in [0, 1]: share of exactly equal parameter values over the required calls that were
    made.

    Calls left out count in S_comp alone. 1 where the calls made have no parameters.
    """
    gold = gold_calls(task)
    if gold is None:
        return None
    pairs = [(best, call) for call, best in best_matches(calls(trajectory), gold) if best]
    expected = sum(len(call.arguments) for _, call in pairs)
    return sum(_equal_values(best, call) for best, call in pairs) / expected if expected else 1.0


def plan_efficiency(task: Task, trajectory: Trajectory) -> float | None:
    """R_eff of ToolRLA: max(0, 1 - (|tau| - |tau*|) / |tau*|), lengths in tool calls, tau* the plan.

    As published it exceeds 1 for a trajectory shorter than the plan: what a left-out call loses in S_comp it
    wins here. Without a required call it is 1 for no call and 0 otherwise.
    """
    gold = gold_calls(task)
    if gold is None:
        return None
    length = len(attempts(trajectory))
    return max(0.0, 1 - (length - len(gold)) / len(gold)) if gold else float(length == 0)


def compliance(task: Task, trajectory: Trajectory) -> float | None:
    """R_cpl of ToolRLA in {-10, 0}: -10 when a tool in the task's ``meta["forbidden_tools"]`` was called."""
    forbidden = set(task.meta.get("forbidden_tools", ()))
    return COMPLIANCE_PENALTY if any(c.name in forbidden for c in calls(trajectory)) else 0.0
