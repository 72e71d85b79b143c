"""Can a verifier of the state be trusted? Calls are changed where an audit of answers changes words.

A task's plan is made in its own environment, as it is and with calls left out, repeated, changed or swapped.
Where that leads to the plan's state the verifier must give 1, whatever was called or answered, and elsewhere
0. States are compared without the order of their lists. Leaves out scoring and the table (audit).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from agentkit.records import Task, ToolCall, Trajectory
from agentkit.tasks.expert import fill, replay, solve, unsolved, value_of
from agentkit.trajectories import plan_of, results_of

CHECKS = ("no answer", "state alone", "calls alone", "no calls", "call dropped", "call repeated",
          "another argument", "another order")  # fmt: skip
SAME = "this leads to the plan's state and must score 1"
ORDER = f"{SAME}; lists count without their order: where it matters, let state() number the entries"
OTHER = "this leads to another state and must score 0 (state() gives only what counts)"
ARGUMENT = f"{OTHER}; where that is right too, name arguments that are not in the step's 'wrong'"


class Case(NamedTuple):
    """A trajectory whose verdict is known."""

    check: str
    trajectory: Trajectory
    right: bool
    why: str  # it must be so


def cases(task: Task, environment: object) -> Iterator[Case]:
    """The trajectories that a verifier of the state is tried on. Raises ValueError where the plan, the
    environment or its state cannot be used.
    """
    nothing = replay(task, environment, ())
    if nothing.state is None:
        raise ValueError("its verifier judges the state, and its environment has no method state")
    if task.meta.get("plan") is None:
        yield Case("no calls", nothing, False, "without a plan it is not known, and nothing was done")
        return
    gold = solve(task, environment)
    calls = [ToolCall(result.name, result.arguments) for result in results_of(gold)]
    again = replay(task, environment, calls)
    if not alike(again.state, gold.state):
        raise ValueError(
            "its plan leads to another state each time: state() must leave out times and the like"
        )
    yield Case("gold", gold, True, SAME)
    yield Case("no answer", again, True, SAME)
    yield Case("state alone", replace(unsolved(task), state=gold.state), True, SAME)
    if not alike(nothing.state, gold.state):
        yield Case("calls alone", replace(gold, state=nothing.state), False, OTHER)
    for check, changed in _changed(calls, _wrong(task, gold)):
        done = replay(task, environment, changed)
        same = alike(done.state, gold.state)
        if same or check != "another order":
            yield Case(check, done, same, _reason(check, same))


def _reason(check: str, same: bool) -> str:
    if same:
        return ORDER if check == "another order" else SAME
    return ARGUMENT if check == "another argument" else OTHER


def described(trajectory: Trajectory) -> str:
    """A trajectory's calls in one line."""
    calls = (f"{call.name}({json.dumps(call.arguments)})" for call in results_of(trajectory))
    return ", ".join(calls) or "no calls"


def alike(one: Any, other: Any) -> bool:
    """Whether two states are the same, but for the order of their lists."""
    return _unordered(one) == _unordered(other)


def _unordered(state: Any) -> Any:
    match state:
        case dict():
            return {name: _unordered(value) for name, value in state.items()}
        case list():
            return sorted(map(_unordered, state), key=partial(json.dumps, sort_keys=True))
    return state


def _changed(
    calls: Sequence[ToolCall], wrong: Sequence[Sequence[dict[str, Any]]]
) -> Iterator[tuple[str, list[ToolCall]]]:
    """The plan's calls, changed in one respect each."""
    yield "no calls", []
    for number, call in enumerate(calls):
        before, after = list(calls[:number]), list(calls[number + 1 :])
        yield "call dropped", [*before, *after]
        yield "call repeated", [*before, call, call, *after]
        for arguments in wrong[number]:
            yield "another argument", [*before, replace(call, arguments=arguments), *after]
        if after:
            yield "another order", [*before, after[0], call, *after[1:]]


def _wrong(task: Task, gold: Trajectory) -> list[list[dict[str, Any]]]:
    """Other arguments for each of the plan's calls: those that a step calls wrong, else each one changed."""
    values: list[Any] = []
    found = []
    for step, result in zip(plan_of(task), results_of(gold), strict=True):
        own = result.arguments
        each = ({**own, name: _other(value)} for name, value in own.items())
        found.append([fill(given, values) for given in step["wrong"]] if "wrong" in step else list(each))
        values.append(value_of(step, result.observation))
    return found


def perturb(answer: str) -> str:
    """Another answer of the same look: the first digit raised, or another word in front."""
    for position, character in enumerate(answer):
        if character.isdecimal():
            return f"{answer[:position]}{(int(character) + 1) % 10}{answer[position + 1 :]}"
    return f"New {answer}"


def _other(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return perturb(value)
        case list():
            return value[:-1]
    return value
