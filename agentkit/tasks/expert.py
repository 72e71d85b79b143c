"""The scripted expert: follows a task's plan through the real tools. It validates suites and measures
difficulty.

The plan is gold data; no policy ever sees it. The expert that errs on purpose is a policy:
policies/scripted.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentkit.records import Task

Tools = Mapping[str, Callable[..., str]]


class PlanError(ValueError):
    """The plan does not lead to an answer through these tools."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What the expert did: calls as (tool, arguments, observation), and the answer."""

    calls: tuple[tuple[str, dict, str], ...]
    answer: str


def solve(task: Task, tools: Tools) -> Solution:
    """Follow a task's plan through the tools.

    Raises:
        PlanError: there is no plan, a search does not return the expected value, or a tool refuses its
            arguments.
    """
    values: list[str] = []
    calls = []
    if not task.meta.get("plan"):
        raise PlanError(
            f"{task.prompt!r} has no plan: meta['plan'] lists the tool calls that lead to the answer"
        )
    for step in task.meta["plan"]:
        if step["tool"] not in tools:
            raise PlanError(
                f"{task.prompt!r}: there is no tool {step['tool']!r}; there are {', '.join(tools)}"
            )
        try:
            arguments = fill(step["arguments"], values)
            observation = tools[step["tool"]](**arguments)
        except (ValueError, TypeError, IndexError) as error:
            raise PlanError(f"{task.prompt!r}: {step['tool']}({step['arguments']}) failed: {error}") from None
        expected = step.get("expect")
        if expected is not None and not shows(step["tool"], observation, expected):
            raise PlanError(f"{task.prompt!r}: {arguments} does not find {expected!r}")
        values.append(observation if expected is None else expected)
        calls.append((step["tool"], arguments, observation))
    return Solution(tuple(calls), answer_of(task, values[-1]))


def fill(arguments: dict[str, Any], values: list[str]) -> dict[str, Any]:
    """Arguments with {0}, {1} ... in their text replaced by earlier values. Other braces stay."""

    def filled(value: Any) -> Any:
        return re.sub(r"\{(\d+)\}", lambda m: values[int(m[1])], value) if isinstance(value, str) else value

    return {name: filled(value) for name, value in arguments.items()}


def shows(tool: str, observation: str, value: str) -> bool:
    """Whether an observation gives the value that a plan expects: a search states it, any other tool returns
    just that.
    """
    return states(observation, value) if tool == "search" else observation.strip() == value


def states(observation: str, value: str) -> bool:
    """Whether the first passage of an observation states this value: a reader takes what comes first."""
    return re.search(rf" is {re.escape(value)}(?: [a-z ]+)?\.$", observation.split("\n")[0]) is not None


def answer_of(task: Task, last: str) -> str:
    """The answer that follows from the last step's value."""
    return task.meta.get("answer_if", {}).get(last, last)
