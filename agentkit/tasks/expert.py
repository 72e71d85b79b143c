"""The faultless expert: follows a task's plan through the real tools, to validate suites and measure
difficulty.

The plan is gold data; no policy ever sees it. Leaves out the expert that errs on purpose
(policies/scripted.py).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentkit.records import StopReason, SuiteError, Task, ToolCall, Trajectory, Turn
from agentkit.runs import parse_json, with_progress
from agentkit.tools.runtime import example, reset, run_blocking, run_call, state_of
from agentkit.trajectories import verifier_kind
from agentkit.verifiers import verify

_SUBJECT = re.compile(r"\A(?>\[1\] The .+? is )(?=.+\.\Z)")  # of a passage of the shipped corpus
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
    values: list[Any] = []
    turns: list[Turn] = []
    for step in plan:
        arguments, expected = fill(step["arguments"], values), step.get("expect")
        result = await run_call(ToolCall(step["tool"], arguments), environment, timeout_s=PATIENCE_S)
        called = f"{task.prompt!r}: {step['tool']}({arguments})"
        if not result.ok:
            raise PlanError(f"{called} failed: {result.observation.removeprefix('Error: ')}")
        value = value_of(step, result.observation)
        if value is None:
            raise PlanError(
                f"{called} does not find {expected!r} in {result.observation!r:.160}: a value must stand "
                "alone there, in no longer word or number (of numbered passages, in the first); where it "
                'varies, expect {"pattern": ...} or {"path": "rooms[0].price"}, a place in JSON'
            )
        values.append(value)
        turns.append(Turn("", (0, 0), (result,)))
    answer = answer_of(task, values[-1]) if values else task.answer
    state = await state_of(environment, PATIENCE_S)
    return replace(unsolved(task), turns=(*turns, Turn(answer, (0, 0))), answer=answer, state=state)


async def replay(task: Task, environment: object, calls: Iterable[ToolCall]) -> Trajectory:
    """These calls in the environment after a reset, whatever they reply: a trajectory without an answer."""
    await reset(environment, task, PATIENCE_S)
    results = [await run_call(call, environment, timeout_s=PATIENCE_S) for call in calls]
    turns = tuple(Turn("", (0, 0), (result,)) for result in results)
    return replace(unsolved(task), turns=turns, state=await state_of(environment, PATIENCE_S))


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


def fill(arguments: dict[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    """Arguments with {0}, {1} ... in their texts, also within lists and objects, replaced by earlier values.

    A text that is nothing but {0} becomes the value as it is, such as a number of JSON. Other braces stay, as
    those of r"[0-9]{3}" where there are fewer values. Raises KeyError where the value of an earlier step is
    None, not known.
    """

    def earlier(found: re.Match[str]) -> Any:
        number = int(found[1])
        if number < len(values) and values[number] is None:
            raise KeyError(number)
        return found[0] if number >= len(values) else values[number]

    def filled(value: Any) -> Any:
        match value:
            case str() if whole := re.fullmatch(r"\{(\d+)\}", value):
                return earlier(whole)
            case str():
                return re.sub(r"\{(\d+)\}", lambda found: as_text(earlier(found)), value)
            case list():
                return [filled(each) for each in value]
            case dict():
                return {name: filled(each) for name, each in value.items()}
        return value

    return {name: filled(value) for name, value in arguments.items()}


# ---- what a step finds
def value_of(step: Mapping[str, Any], observation: str) -> Any:
    """The value that {0} stands for after a step: what it expects, else all of the observation."""
    expected = step.get("expect")
    return observation if expected is None else shown(observation, expected)


def shown(observation: str, expected: Any) -> Any:
    """What a step finds in an observation, by what it expects; None where it is not there.

    A text or a number is found where it stands alone. ``{"pattern": "price: (.+)"}`` gives the first group of
    its first match, or all of that, and ``{"path": "rooms[0].price"}`` the value there in JSON. Of numbered
    passages only the first counts, since a reader takes what comes first; of "The capital of X is Y.", as the
    shipped corpus has them, only what follows "is".

    A value stands alone where neither of its ends is part of a longer word or number: two characters belong
    together that are digits, underscores or letters with a capital; and two digits with one of ``.,:/-``
    between them, or a digit and the sign before it. Letters without capitals (中, か, ไ, ع) do not bind: they
    stand next to each other, and to what a sentence adds to a word.
    """
    text = _SUBJECT.sub("", observation.partition("\n[2] ")[0])
    match expected:
        case {"path": str(path)}:
            return _at(path, observation)
        case {"pattern": str(pattern)}:
            try:
                found = re.search(pattern, text)
            except re.error as error:
                raise PlanError(f"the pattern {pattern!r:.80} of a plan is none: {error}") from None
            return found and found[min(1, len(found.groups()))]
    value = as_text(expected)
    if "\\" in text:  # where it is JSON, escapes hide letters
        text = as_text(_at("", text) or text)
    return expected if text.strip() == value or (value and _stands_alone(value, text)) else None


def _stands_alone(value: str, text: str) -> bool:
    for found in re.finditer(re.escape(value), text):
        start, end = found.span()
        before, after = text[max(0, start - 2) : start][::-1], text[end : end + 2]
        is_signed = value[0].isdigit() and before[:1] in ("-", "\N{MINUS SIGN}")
        if not (is_signed or _joined(value[0], before) or _joined(value[-1], after)):
            return True
    return False


def _joined(end: str, beyond: str) -> bool:
    """Whether a value's end and the two characters beyond it, from there outwards, are one word or number."""
    if all(c.isdigit() or c == "_" or c.lower() != c.upper() for c in (end, beyond[:1] or " ")):
        return True
    return end.isdigit() and beyond[:1] in ".,:/-" and beyond[1:].isdigit()


def _at(path: str, observation: str) -> Any:
    """The value at a path of JSON; None where there is none."""
    try:
        value = parse_json(observation)
        for key in re.findall(r"[^.\[\]]+", path.removeprefix("$")):
            value = value[int(key)] if isinstance(value, list) else value[key]
    except (LookupError, TypeError, ValueError):
        return None
    return value


def as_text(value: Any) -> str:
    """A value as a text: as JSON, where it is none."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def answer_of(task: Task, last: Any) -> str:
    return task.meta.get("answer_if", {}).get(as_text(last), as_text(last))


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
