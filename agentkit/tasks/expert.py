"""The faultless expert: follows a task's plan through the real tools, to validate suites and measure
difficulty.

The plan is gold data; no policy ever sees it. Leaves out the expert that errs on purpose
(policies/scripted.py).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentkit.records import StopReason, SuiteError, Task, ToolCall, Trajectory, Turn
from agentkit.runs import with_progress
from agentkit.tools.runtime import example, reset, run_blocking, run_call
from agentkit.trajectories import verifier_kind
from agentkit.verifiers import verify

PATIENCE_S = 120.0  # for a tool or a reset: what rollouts wait for is the recipe's


class PlanError(SuiteError):
    """The plan does not lead to an answer through these tools."""


def solve(task: Task, environment: object) -> Trajectory:
    """Follow a task's plan, which may be empty, in a fresh environment, through the calls a policy's go
    through: a trajectory without tokens, a call a turn and then the answer.

    Raises PlanError: there is no plan, an observation does not show the expected value, or a tool fails.
    """
    return run_blocking(_solve(task, environment))


async def _solve(task: Task, environment: object) -> Trajectory:
    plan = task.meta.get("plan")
    if plan is None:
        raise PlanError(
            f"{task.prompt!r} has no plan: meta['plan'] lists the tool calls that "
            "lead to the answer, [] where it takes none"
        )
    await reset(environment, task, PATIENCE_S)
    values: list[str] = []
    turns: list[Turn] = []
    for step in plan:
        arguments, expected = fill(step["arguments"], values), step.get("expect")
        result = await run_call(ToolCall(step["tool"], arguments), environment, timeout_s=PATIENCE_S)
        called = f"{task.prompt!r}: {step['tool']}({arguments})"
        if not result.ok:
            raise PlanError(f"{called} failed: {result.observation.removeprefix('Error: ')}")
        if expected is not None and not shows(step["tool"], result.observation, expected):
            raise PlanError(
                f"{called} does not find {expected!r} in {result.observation!r:.160}: what a step expects is "
                f"the whole reply, or ends it (of a tool named search, its first line) as in '... is "
                f"{expected}.', maybe with a unit"
            )
        values.append(result.observation if expected is None else expected)
        turns.append(Turn("", (0, 0), (result,)))
    answer = answer_of(task, values[-1]) if values else task.answer
    return replace(unsolved(task), turns=(*turns, Turn(answer, (0, 0))), answer=answer)


def unsolved(task: Task) -> Trajectory:
    """A trajectory without calls, tokens and answer."""
    return Trajectory(
        task.id,
        policy="expert",
        sample=0,
        seed=0,
        prompt_ids=(),
        completion_ids=(),
        action_mask=(),
        old_logprobs=(),
        turns=(),
        stop_reason=StopReason.ANSWER,
        answer=None,
    )


def fill(arguments: dict[str, Any], values: Sequence[str | None]) -> dict[str, Any]:
    """Arguments with {0}, {1} ... in their texts, also within lists and objects, replaced by earlier values.

    Other braces stay, as those of r"[0-9]{3}" where there are fewer values. Raises KeyError where the value
    of an earlier step is None, not known.
    """

    def earlier(found: re.Match[str]) -> str:
        number = int(found[1])
        if number < len(values) and values[number] is None:
            raise KeyError(number)
        return found[0] if number >= len(values) else values[number]

    def filled(value: Any) -> Any:
        match value:
            case str():
                return re.sub(r"\{(\d+)\}", earlier, value)
            case list():
                return [filled(each) for each in value]
            case dict():
                return {name: filled(each) for name, each in value.items()}
        return value

    return {name: filled(value) for name, value in arguments.items()}


def shows(tool: str, observation: str, value: str) -> bool:
    """Whether an observation gives the expected value.

    It is all that a tool returns, or ends its sentence ("... is 65 euros."); that of a search is its first
    passage, since a reader takes what comes first. Elsewhere in a reply it counts for nothing: a tool that
    repeats what it was asked, or lists all it has, would show any value.
    """
    said = observation.split("\n")[0] if tool == "search" else observation.strip()
    stated = rf" is {re.escape(value)}(?: [a-z ]{{1,80}})?\.$"
    return observation.strip() == value or bool(re.search(stated, said))


def answer_of(task: Task, last: str) -> str:
    return task.meta.get("answer_if", {}).get(last, last)


def wrong_plans(tasks: Iterable[Task], environments: Mapping[str, Callable[[], object]]) -> list[dict]:
    """Rows as of an audit, one for each task whose plan does not lead to a right answer."""
    rows = []
    for task in with_progress(list(tasks), "plans", "task"):
        kind = verifier_kind(task)
        if not task.meta.get("plan") or kind == "judge" or task.family not in environments:
            continue
        answer, value = "", None
        try:
            solution = solve(task, example(environments[task.family]))
            answer, value = solution.answer, verify(task, solution).value
            why = f"{task.prompt!r} has the answer {task.answer!r}; its plan gives {answer!r}"
        except (PlanError, TypeError, ValueError) as error:  # of a verifier, what an audit says too
            why = str(error)
        if value == 0.0 or not answer:
            rows.append({"check": "plan", "verifier": kind, "passed": False, "task": task.id,
                         "answer": answer, "value": value, "why": why})  # fmt: skip
    return rows
