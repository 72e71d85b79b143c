"""The scripted policy: an expert with stated flaw rates that plays its plan through the real tools.

It needs no model. Its transcripts are the demonstrations of the SFT cold start, and it drives tests and
examples.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from agentkit.records import Task, ToolResult
from agentkit.rollouts.chat import format_call
from agentkit.rollouts.policy import Policy, Request, Sample
from agentkit.tasks.expert import answer_of, fill

Script = Generator[str, tuple[ToolResult, ...], None]


@dataclass(frozen=True, slots=True)
class Flaws:
    """How often the demonstrating expert errs; each rate is a probability per occasion."""

    skip_lookup: float = 0.0  # per lookup after the first: makes a value up, or stops a hop short
    wrong_operation: float = (
        0.0  # per calculation: adds where it should divide, and the like; per function: nearly right code
    )
    in_head: float = (
        0.0  # per calculation: states a result without the calculator; per function: submits it untested
    )
    give_up: float = 0.0  # per lookup after the first: says that it could not find out
    malformed: float = 0.0  # per call: writes it wrong first, reads the error, and repeats it

    def __post_init__(self) -> None:
        for name, rate in asdict(self).items():
            if not 0 <= rate <= 1:
                raise ValueError(f"flaw rate {name} is {rate}; it must lie between 0 and 1")


class ScriptedPolicy(Policy):
    """Plays a script per trajectory, encoded with a tokenizer; log-probabilities are 0.

    Args:
        tokenizer: encodes the script's turns.
        flaws: the rates, or several sets of which each trajectory draws one.
        name: recorded in trajectories.
    """

    def __init__(self, tokenizer: Any, flaws: Flaws | Iterable[Flaws] = (), name: str = "scripted"):
        self.tokenizer = tokenizer
        self.name = name
        self._flaws = [flaws] if isinstance(flaws, Flaws) else list(flaws) or [Flaws()]
        self._scripts: dict[int, Script] = {}  # by trajectory

    async def sample(self, request: Request) -> Sample:
        """The script's next turn."""
        if request.turn == 0:
            rng = random.Random(repr(request.seed))
            flaws = rng.choice(self._flaws)
            script = self._scripts[request.trajectory] = play(request.task, flaws, rng, request.tool_format)
            text = next(script)
        else:
            text = self._scripts[request.trajectory].send(request.results)
        ids = self.tokenizer(text + self.tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        return Sample(ids[: request.max_new_tokens], [0.0] * min(len(ids), request.max_new_tokens))

    def end(self, trajectory: int) -> None:
        """Drop the script."""
        self._scripts.pop(trajectory, None)


def play(task: Task, flaws: Flaws, rng: random.Random, tool_format: str) -> Script:
    """One trajectory of the flawed expert: yields each turn's text and is sent the results of its calls."""
    say = partial(_say, tool_format=tool_format)
    chain = all(step["tool"] == "search" for step in task.meta["plan"])
    values: list[str] = []
    mistake = (
        rng.choice(task.meta["near_misses"])
        if _writes_code(task) and rng.random() < flaws.wrong_operation
        else None
    )
    for number, step in enumerate(task.meta["plan"]):
        arguments = dict(step["arguments"])
        if step["tool"] == "python":
            if number == 0 and rng.random() < flaws.in_head:
                yield say(_guess(task, rng))
                return
            if mistake is not None:
                arguments["code"] = arguments["code"].replace(task.meta["solution"], mistake)
        elif step["tool"] == "search":
            if number > 0 and rng.random() < flaws.give_up:
                yield say("I could not find this.")
                return
            if number > 0 and rng.random() < flaws.skip_lookup:
                if chain:
                    break
                values.append(_made_up(str(step.get("expect", "")), rng))
                continue
        elif rng.random() < flaws.in_head:
            yield say(_guess(task, rng))
            return
        elif rng.random() < flaws.wrong_operation:
            arguments["expression"] = _wrong(arguments["expression"], rng)
        arguments = fill(arguments, values)
        if rng.random() < flaws.malformed:
            yield _slip(step["tool"], arguments, rng, tool_format)
        (result,) = yield format_call(step["tool"], arguments, tool_format)
        values.append(
            step.get("expect", result.observation) if mistake is None else result.observation.strip()
        )
        if not result.ok:
            break
    yield say(mistake if mistake is not None and "answer_if" in task.meta else answer_of(task, values[-1]))


def _writes_code(task: Task) -> bool:
    return bool(task.meta.get("near_misses"))


def _say(answer: str, tool_format: str) -> str:
    """The final turn's text. Code of several lines is fenced, since the line after "Answer:" holds one line
    only.
    """
    if tool_format == "search_r1":
        return f"<answer> {answer} </answer>"
    return f"```python\n{answer}\n```" if "\n" in answer else f"Answer: {answer}"


def _made_up(value: str, rng: random.Random) -> str:
    """A number of about the same length, as stated from memory: two digits, then zeros."""
    digits = len(value.split(".")[0])
    return str(rng.randint(10, 99) * 10 ** max(0, digits - 2))


def _guess(task: Task, rng: random.Random) -> str:
    """The answer somebody states without calculating: any of the names or codes it may be, or a number of the
    right size.
    """
    if "answer_if" in task.meta and _writes_code(task):
        return rng.choice([task.answer, *task.meta["near_misses"]])
    if "answer_if" in task.meta:
        return rng.choice(list(task.meta["answer_if"].values()))
    return _made_up(task.answer.lstrip("-"), rng)


def _wrong(expression: str, rng: random.Random) -> str:
    """The expression with another operation."""
    if ">" in expression:
        return expression.replace(">", "<")
    operations = (" / ", " * ", " - ", " + ")
    present = next((op for op in operations if op in expression), None)
    if present is None:
        return f"{expression} + 1"
    return expression.replace(present, rng.choice([op for op in operations if op != present]))


def _slip(name: str, arguments: dict, rng: random.Random, tool_format: str) -> str:
    """A call gone wrong: a tool that does not exist, where the format can name one, or an end that is
    missing.
    """
    if rng.random() < 0.5 and tool_format != "search_r1":
        return format_call(
            {"search": "lookup", "calculator": "compute"}.get(name, f"my_{name}"), arguments, tool_format
        )
    text = format_call(name, arguments, tool_format)
    for whole, cut in (('"}}', '"}'), ("</function>", ""), ("</search>", "")):
        text = text.replace(whole, cut)
    return text
