"""Can a verifier of the state be trusted? Calls are changed where an audit of answers changes words.

A task's plan is made in its own environment, as it is and with calls left out, repeated, changed or swapped.
Where that leads to the plan's state the verifier must give 1, whatever was called or answered, and elsewhere
0. States are compared without the order of their lists. Leaves out scoring and the table (audit).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agentkit.records import Task, ToolCall, Trajectory
from agentkit.tasks.expert import fill, replay, solve, value_of
from agentkit.tools.runtime import run_blocking
from agentkit.trajectories import plan_of, results_of

CHECKS = ("no answer", "state alone", "calls alone", "no calls", "call dropped", "call repeated",
          "another argument", "another order")  # fmt: skip
WHY = {  # by what must be said
    True: "this leads to the plan's state and must score 1",
    False: "this does not lead to the plan's state and must score 0 (state() gives only what counts)",
}
WAY_OUT = {
    ("another order", True): "; lists count without order: where it matters, let state() number the entries",
    ("another argument", False): "; if that is right too, name arguments that are not in the step's 'wrong'",
}
Case = tuple[str, str, Trajectory, bool, str]  # check, calls, what is judged, whether it must pass, and why


def cases(task: Task, environment: object) -> Iterator[Case]:
    """What a verifier of the state is tried on. Raises ValueError where plan or environment are of no use."""

    def made(calls: Sequence[ToolCall]) -> Trajectory:
        return run_blocking(replay(task, environment, calls))

    nothing = made(())
    if nothing.state is None:
        raise ValueError("its verifier judges the state, and its environment has no method state")
    if task.meta.get("plan") is None:
        yield "no calls", "", nothing, False, "nothing was done"
        return
    gold = solve(task, environment)
    aim = _unordered(gold.state)
    for check, tried in _tries(task, gold, nothing, made):
        right = _unordered(tried.state) == aim
        if check == "no answer" and not right:
            raise ValueError(
                "the same calls lead to another state: state() must leave out times and the like"
            )
        if right or check != "another order":
            calls = [f"{call.name}({json.dumps(call.arguments)})" for call in results_of(tried)]
            why = WHY[right] + WAY_OUT.get((check, right), "")
            yield check, ", ".join(calls) or "no calls", tried, right, why


def _tries(
    task: Task, gold: Trajectory, nothing: Trajectory, made: Callable[[Sequence[ToolCall]], Trajectory]
) -> Iterator[tuple[str, Trajectory]]:
    """The plan's trajectory and others, which differ from it in one respect each."""
    calls = [ToolCall(result.name, result.arguments) for result in results_of(gold)]
    yield "gold", gold
    yield "no answer", made(calls)
    yield "state alone", replace(nothing, state=gold.state)
    yield "calls alone", replace(gold, state=nothing.state)
    yield "no calls", nothing
    values: list[Any] = []
    for number, (step, result) in enumerate(zip(plan_of(task), results_of(gold), strict=True)):
        before, call, after = calls[:number], calls[number], calls[number + 1 :]
        yield "call dropped", made([*before, *after])
        yield "call repeated", made([*before, call, call, *after])
        for arguments in _wrong(step, call.arguments, values):
            yield "another argument", made([*before, ToolCall(call.name, arguments), *after])
        if after:
            yield "another order", made([*before, after[0], call, *after[1:]])
        values.append(value_of(step, result.observation))


def _wrong(step: dict[str, Any], arguments: dict[str, Any], values: Sequence[Any]) -> list[dict[str, Any]]:
    """Other arguments for a step's call: those that it calls wrong, else each one changed."""
    if step.get("wrong") is not None:
        return [fill(given, values) for given in step["wrong"]]
    return [arguments | {name: _other(value)} for name, value in arguments.items()]


def _unordered(state: Any) -> Any:
    match state:
        case dict():
            return {name: _unordered(value) for name, value in state.items()}
        case list():
            return sorted(map(_unordered, state), key=partial(json.dumps, sort_keys=True))
    return state


def perturb(answer: str) -> str:
    """Another answer of the same look: the first digit raised, or another word in front."""
    for position, character in enumerate(answer):
        if character.isdecimal():
            return f"{answer[:position]}{(int(character) + 1) % 10}{answer[position + 1 :]}"
    return f"New {answer}"


def _other(value: Any) -> Any:
    """Another value of the same kind, where there is one."""
    match value:
        case str():
            return perturb(value)
        case bool():
            return not value
        case int() | float():
            return value + 1
    return value
