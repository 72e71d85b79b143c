"""The scripted policy: an expert with stated flaw rates that plays its plan through the real tools.

It needs no model. Its transcripts are the demonstrations of the SFT cold start, it is the stand-in that
``model: scripted`` names, and it drives tests and examples. A flaw strikes where it makes sense: on the
shipped tools, and on any step of a plan that lists ``wrong`` variants of its arguments. Leaves out solving
without flaws, which is tasks/expert.py.
"""

import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkit.records import Task, ToolResult
from agentkit.rollouts.chat import format_call, marks_of, parse_turn, turn_ids
from agentkit.rollouts.policy import Policy, Request, Sample
from agentkit.tasks.expert import PlanError, answer_of, fill, shown
from agentkit.tools.outages import momentary
from agentkit.trajectories import expected_of

TRIES = 8  # of a call that fails for the moment

Tools = Sequence[Mapping[str, Any]]
Script = Generator[str, tuple[ToolResult, ...], None]


@dataclass(frozen=True, slots=True)
class Flaws:
    """How often the demonstrating expert errs; each rate is a probability per occasion."""

    skip_lookup: float = 0.0  # per search after the first: makes a value up, or stops a hop short
    wrong_operation: float = 0.0  # per calculation, function or step with wrong variants: plays a wrong one
    in_head: float = 0.0  # per calculation: states a result without it; per function: submits it untested
    give_up: float = 0.0  # per search after the first: says that it could not find out
    malformed: float = 0.0  # per call: writes it wrong first, reads the error, and repeats it


class ScriptedPolicy(Policy):
    """Plays a script per trajectory, encoded with a tokenizer; log-probabilities are 0.

    Args:
        tokenizer: encodes the script's turns.
        flaws: the rates, or several sets of which each trajectory draws one.
        name: recorded in trajectories.
        skill: chance that a trajectory plays its plan to the end; else it stops short, and answers wrongly.
    """

    in_flight = 128  # environments that are made at once

    def __init__(
        self, tokenizer: Any, flaws: Flaws | Iterable[Flaws] = (), name: str = "scripted", skill: float = 1.0
    ):
        self.tokenizer, self.name, self._skill = tokenizer, name, skill
        self._flaws = [flaws] if isinstance(flaws, Flaws) else list(flaws) or [Flaws()]
        self._scripts: dict[int, Script] = {}  # by trajectory

    async def sample(self, request: Request) -> Sample:
        ids = self._turn(request)[: request.max_new_tokens]
        return Sample(ids, [0.0] * len(ids))

    def _turn(self, request: Request) -> list[int]:
        if request.turn == 0:
            rng = random.Random(repr(request.seed))
            flaws = rng.choice(self._flaws)
            clean = marks_of(self.tokenizer).inert_value  # what it quotes of a tool's reply steers nothing
            short = random.Random(f"skill {request.seed}").random() >= self._skill
            script = play(request.task, flaws, rng, request.tool_format, request.tools, clean, short)
            self._scripts[request.trajectory], text = script, next(script)
        else:
            text = self._scripts[request.trajectory].send(request.results)
        parsed = parse_turn(text, request.tool_format, request.tools)
        return turn_ids(self.tokenizer, request.ids, text, bool(parsed.calls or parsed.errors))

    def end(self, trajectory: int) -> None:
        self._scripts.pop(trajectory, None)


def play(
    task: Task,
    flaws: Flaws,
    rng: random.Random,
    tool_format: str,
    tools: Tools = (),
    clean: Callable[[Any], Any] = lambda value: value,
    short: bool = False,
) -> Script:
    """One trajectory of the flawed expert: yields each turn's text and is sent the results of its calls.
    ``tools`` are their JSON schemas, by which some formats write numbers and lists; ``clean`` is given what
    calls and answers say. One that is ``short`` leaves out the last calls at least, and answers wrongly.

    Raises:
        PlanError: the task's plan cannot be played; the message names the step.
    """
    plan = _plan(task, tool_format, tools)
    if short:
        plan, flaws = plan[: int(rng.random() * len(plan))], Flaws(malformed=flaws.malformed)
    bug = None  # the nearly right code that this trajectory tests and submits
    if _near_misses(task) and rng.random() < flaws.wrong_operation:
        bug = rng.choice(_near_misses(task))
    values: list[Any] = []
    for number, step in enumerate(plan):
        flaw = _flaw(task, step, number == 0, flaws, rng)
        if flaw == "in_head":
            yield _answer(clean(_guess(task, rng)))
            return
        if flaw == "give_up":
            yield _answer("I could not find this.")
            return
        if flaw == "skip_lookup":
            if all(other["tool"] == "search" for other in plan):
                break
            values.append(_made_up(str(expected_of(step) or ""), rng))
            continue
        arguments = clean(fill(_played(task, step, flaw, bug, rng), values))
        if rng.random() < flaws.malformed:
            yield _slip(task, step["tool"], arguments, rng, tool_format, tools)
        for _ in range(TRIES):
            result, *_ = yield format_call(step["tool"], arguments, tool_format, tools)
            if not momentary(result):
                break
        expected = step.get("expect") if flaw is None and bug is None else None
        read = shown(result.observation, expected)  # never what no tool has said
        values.append(result.observation.strip() if read is None else read)
        if not result.ok:
            break
    yield _answer(clean(_missed(task, rng) if short else _concluded(task, values, bug)))


def _played(task: Task, step: dict, flaw: str | None, bug: str | None, rng: random.Random) -> dict[str, Any]:
    """A step's arguments as they are played, its flaw or bug in them."""
    arguments = step["arguments"]
    if flaw == "wrong_operation" and step.get("wrong"):
        return rng.choice(step["wrong"])
    if flaw == "wrong_operation":
        return arguments | {"expression": _wrong(arguments["expression"], rng)}
    if bug is not None and "code" in arguments:
        return arguments | {"code": arguments["code"].replace(task.meta["solution"], bug)}
    return arguments


def _plan(task: Task, tool_format: str, tools: Tools) -> list[dict]:
    """The task's plan, every call of which can be written; an empty one answers at once."""
    plan = task.meta.get("plan")
    if not isinstance(plan, list | tuple):
        raise PlanError(f"{task.prompt!r} has no plan: meta['plan'] lists the calls that lead to the answer")
    for number, step in enumerate(plan):
        try:
            for arguments in (step["arguments"], *(step.get("wrong") or ())):
                format_call("" + step["tool"], fill(arguments, [""] * number), tool_format, tools)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise PlanError(
                f"{task.prompt!r}: step {number + 1} of the plan cannot be played: {step!r:.200} "
                f"({type(error).__name__}: {error}). A step is {{'tool': name, 'arguments': {{..}}}}, with "
                "'expect' (a value, {'pattern': ..} or {'path': ..}) and 'wrong' (a list of arguments) if "
                "wanted; {0} is the first step's value"
            ) from None
    return list(plan)


def _flaw(task: Task, step: dict, first: bool, flaws: Flaws, rng: random.Random) -> str | None:
    if step["tool"] == "search" and not first:
        if rng.random() < flaws.give_up:
            return "give_up"
        if rng.random() < flaws.skip_lookup:
            return "skip_lookup"
    computes = step["tool"] == "calculator" or (first and "code" in step["arguments"])
    can_guess = _is_number(task.answer) or bool(task.meta.get("answer_if"))  # what looks like a right answer
    if computes and can_guess and rng.random() < flaws.in_head:
        return "in_head"
    calculates = step["tool"] == "calculator" and "expression" in step["arguments"]
    if (calculates or step.get("wrong")) and rng.random() < flaws.wrong_operation:
        return "wrong_operation"
    return None


def _is_number(answer: str) -> bool:
    return answer.lstrip("-").replace(".", "", 1).isdecimal()


def _near_misses(task: Task) -> list[str]:
    return task.meta.get("near_misses", []) if "solution" in task.meta else []


def _answer(answer: str) -> str:
    """The final turn's text. Several lines of code are fenced: what follows "Answer:" is one line only."""
    return f"```python\n{answer}\n```" if "\n" in answer else f"Answer: {answer}"


def _made_up(value: str, rng: random.Random) -> str:
    """A number of about the same length, as stated from memory: two digits, then zeros."""
    digits = len(value.split(".")[0])
    return str(rng.randint(10, 99) * 10 ** max(0, digits - 2))


def _guess(task: Task, rng: random.Random) -> str:
    """What is answered without calculating: a name or code that it may be, or a number of the right size."""
    answers = task.meta.get("answer_if")
    if not answers:
        return _made_up(task.answer.lstrip("-"), rng)
    if _near_misses(task):
        return rng.choice([task.answer, *_near_misses(task)])
    return rng.choice(list(answers.values()))


def _concluded(task: Task, values: Sequence[str], bug: str | None) -> str:
    """What is answered after the last call."""
    if bug is not None and "answer_if" in task.meta:
        return bug
    return answer_of(task, values[-1]) if values else task.answer


def _missed(task: Task, rng: random.Random) -> str:
    """A wrong answer: a near miss, another name that it may be, another number, or that nothing was found."""
    others = [*_near_misses(task), *task.meta.get("answer_if", {}).values()]
    if others := [other for other in others if other != task.answer]:
        return rng.choice(others)
    made = _made_up(task.answer.lstrip("-"), rng) if _is_number(task.answer) else ""
    return made if made and float(made) != abs(float(task.answer)) else "I could not find this."


def _wrong(expression: str, rng: random.Random) -> str:
    if ">" in expression:
        return expression.replace(">", "<")
    operations = (" / ", " * ", " - ", " + ")
    present = next((op for op in operations if op in expression), None)
    if present is None:
        return f"{expression} + 1"
    return expression.replace(present, rng.choice([op for op in operations if op != present]))


def _slip(task: Task, name: str, arguments: dict, rng: random.Random, tool_format: str, tools: Tools) -> str:
    """A call gone wrong: a tool that does not exist, or no proper end."""
    if rng.random() < 0.5:
        wrong_name = {"search": "lookup", "calculator": "compute"}.get(name, f"my_{name}")
        while wrong_name in task.tools:
            wrong_name = f"my_{wrong_name}"
        own = (tool["function"] for tool in tools if tool["function"]["name"] == name)
        renamed = [{"type": "function", "function": each | {"name": wrong_name}} for each in own]
        return format_call(wrong_name, arguments, tool_format, renamed)
    end = {"qwen3_coder": "</function>", "glm": "</tool_call>"}.get(tool_format, "}")
    before, _, after = format_call(name, arguments, tool_format, tools).rpartition(end)
    return before + after
