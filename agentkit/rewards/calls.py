"""Rewards that compare the calls a trajectory made with the calls its task needs: ToolRL and ToolRLA.

The needed calls are the task's plan (gold data that no policy sees), with earlier results filled in. Leaves
out tasks without a plan: these components do not apply to them.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps

from agentkit.records import StopReason, Task, ToolCall, ToolResult, Trajectory
from agentkit.tasks.expert import fill, shown
from agentkit.tools import calculate
from agentkit.trajectories import expected_of, failure_of, results_of

COMPLIANCE_PENALTY = -10.0


def calls_of(trajectory: Trajectory) -> list[ToolCall]:
    """The calls that could be parsed, in order."""
    return [ToolCall(result.name, result.arguments) for result in results_of(trajectory) if result.name]


def gold_calls(task: Task) -> list[ToolCall] | None:
    """The calls of the task's plan with earlier values filled in; None for a task without a plan, and where a
    step needs a value that no earlier one says it expects.
    """
    if task.meta.get("plan") is None:
        return None
    calls: list[ToolCall] = []
    values: list[str | float | None] = []
    for step in task.meta["plan"]:
        try:
            call = ToolCall(step["tool"], fill(step["arguments"], values))
        except KeyError:
            return None
        calls.append(call)
        value = expected_of(step)
        values.append(_computed(call) if value is None else value)
    return calls


def _computed(call: ToolCall) -> str | None:
    """What the calculator gives for a call of it; None for any other call."""
    expression = call.arguments.get("expression")
    if call.name != "calculator" or not isinstance(expression, str):
        return None
    try:
        return calculate(expression)
    except ValueError:  # another calculator's language
        return None


def against_plan(
    component: Callable[[list[ToolCall], Trajectory], float],
) -> Callable[[Task, Trajectory], float | None]:
    """A component (task, trajectory) that gets the plan's calls in place of the task; None without a plan."""

    @wraps(component)
    def scored(task: Task, trajectory: Trajectory) -> float | None:
        gold = gold_calls(task)
        return None if gold is None else component(gold, trajectory)

    return scored


def subgoals(task: Task, trajectory: Trajectory) -> list[int] | None:
    """How many steps of the plan each turn reached first, one number a turn; None for a task without a plan.

    A step is reached by a call of its tool whose observation shows the expected value, if the call does not
    name it itself; one whose value is not known beforehand (a calculation's follows) by the filled-in call.
    """
    gold = gold_calls(task)
    if gold is None:
        return None
    left = [(call, expected_of(step)) for call, step in zip(gold, task.meta["plan"], strict=True)]
    reached = []
    for turn in trajectory.turns:
        before = len(left)
        for result in turn.results:
            hit = next((step for step in left if result.ok and _reaches(result, *step)), None)
            left = [step for step in left if step is not hit]
        reached.append(before - len(left))
    return reached


def _reaches(result: ToolResult, call: ToolCall, expected: str | float | None) -> bool:
    if result.name != call.name:
        return False
    is_planned = result.arguments == call.arguments
    if expected is not None and shown(result.observation, expected) is None:
        return False
    if expected is not None:  # a tool may repeat what it was asked
        return is_planned or shown(json.dumps(result.arguments, default=str), expected) is None
    if is_planned:
        return True
    return call.name == "calculator" and result.observation.strip() == _computed(call)


# ---- ToolRL (arXiv 2504.13958)
def match(a: Sequence[str], b: Sequence[str]) -> float:
    """Multiset overlap |A and B| / (|A| + |B| - |A and B|); 1 for two empty ones."""
    common = (Counter(a) & Counter(b)).total()
    union = len(a) + len(b) - common
    return common / union if union else 1.0


def best_matches(
    called: Sequence[ToolCall], gold: Sequence[ToolCall]
) -> list[tuple[ToolCall, ToolCall | None]]:
    """Each gold call, in order, with the best unused call of the same name, or None where there is none.

    Choices fall in the order of the gold calls, as in ToolRL; one that agrees in nothing but the name is made
    last of all.
    """
    unused = list(called)
    best: list[ToolCall | None] = [None] * len(gold)
    for least in (1e-9, 0.0):
        for i, call in enumerate(gold):
            same = [c for c in unused if c.name == call.name and _agreement(c, call) >= least]
            if best[i] is None and same:
                best[i] = max(same, key=lambda c: _agreement(c, call))
                unused = [c for c in unused if c is not best[i]]
    return list(zip(gold, best, strict=True))


def _equal_values(call: ToolCall, gold: ToolCall) -> int:
    given = call.arguments
    return sum(name in given and given[name] == value for name, value in gold.arguments.items())


def _agreement(call: ToolCall, gold: ToolCall) -> float:
    return match([*gold.arguments], [*call.arguments]) + _equal_values(call, gold)


def toolrl_match(called: Sequence[ToolCall], gold: Sequence[ToolCall]) -> float:
    """R_correct of ToolRL in [-3, 3]: 6 * score / max - 3.

    score = match(tool names) + for each gold call the best unused call of its name: match(parameter names) +
    number of exactly equal values; max = 1 + sum over gold calls of (1 + number of parameters).
    """
    total = match([c.name for c in gold], [c.name for c in called])
    total += sum(_agreement(best, call) for call, best in best_matches(called, gold) if best)
    return 6 * total / (1 + sum(1 + len(call.arguments) for call in gold)) - 3


@against_plan
def toolrl_correctness(gold: list[ToolCall], trajectory: Trajectory) -> float:
    return toolrl_match(calls_of(trajectory), gold)


def whole_format(task: Task, trajectory: Trajectory) -> float | None:
    """R_format of ToolRL, R_fmt of ToolRLA: 1 when all calls could be parsed and an answer ended it, or 0."""
    parsed = all(result.name for result in results_of(trajectory))
    return float(parsed and trajectory.stop_reason is StopReason.ANSWER and trajectory.answer is not None)


# ---- ToolRLA (arXiv 2603.01620)
def tool_names(task: Task, trajectory: Trajectory) -> float | None:
    """S_name of ToolRLA: 0 when a called tool is invented, else 1."""
    return float(all(failure_of(result) != "unknown tool" for result in results_of(trajectory)))


@against_plan
def completeness(gold: list[ToolCall], trajectory: Trajectory) -> float:
    """S_comp of ToolRLA: |invoked and required| / |required|, multisets of names; 1 with none required."""
    invoked, required = Counter(c.name for c in calls_of(trajectory)), Counter(c.name for c in gold)
    return (invoked & required).total() / len(gold) if gold else 1.0


@against_plan
def argument_accuracy(gold: list[ToolCall], trajectory: Trajectory) -> float:
    """S_acc of ToolRLA: share of exactly equal parameter values over the required calls that were made.

    Calls left out count in S_comp alone. 1 where the calls made have no parameters.
    """
    pairs = [(best, call) for call, best in best_matches(calls_of(trajectory), gold) if best]
    expected = sum(len(call.arguments) for _, call in pairs)
    return sum(_equal_values(best, call) for best, call in pairs) / expected if expected else 1.0


@against_plan
def plan_efficiency(gold: list[ToolCall], trajectory: Trajectory) -> float:
    """R_eff of ToolRLA: max(0, 1 - (|tau| - |tau*|) / |tau*|), lengths in tool calls, tau* the plan.

    As published it exceeds 1 for a trajectory shorter than the plan: what a left-out call loses in S_comp it
    wins here. Without a required call it is 1 for no call and 0 otherwise.
    """
    length = len(results_of(trajectory))
    return max(0.0, 1 - (length - len(gold)) / len(gold)) if gold else float(length == 0)


def compliance(task: Task, trajectory: Trajectory) -> float | None:
    """R_cpl of ToolRLA: -10 when a tool in the task's ``meta["forbidden_tools"]`` was called, else 0; None
    where it names none.
    """
    if not (forbidden := set(task.meta.get("forbidden_tools", ()))):
        return None
    return COMPLIANCE_PENALTY if any(c.name in forbidden for c in calls_of(trajectory)) else 0.0
