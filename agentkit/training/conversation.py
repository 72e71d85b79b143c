"""Trajectories as conversations in OpenAI's form.

Leaves out files and their formats (views.export writes them), and reading messages (training.transcripts).
"""

import json
import re
from typing import Any

from agentkit.records import ParsedTurn, StopReason, Trajectory, Turn
from agentkit.rollouts.call_formats import THINK, THOUGHT, parse_stored, parse_turn

END = re.compile(
    r"(?:<[|｜][^|<>\s]{1,40}[|｜]>|<(?:/s|eos|end_of_turn|turn\||\|tool_response)>)\s*$"
)  # the end token of a turn


def as_messages(trajectory: Trajectory, prompt: str) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form: user, then assistant and tool in turn; arguments as JSON text, and
    thoughts apart as vLLM has them.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for number, turn in enumerate(trajectory.turns):
        thought, parsed = _said(turn)
        answers = trajectory.stop_reason is StopReason.ANSWER and number == len(trajectory.turns) - 1
        asked = [result for result in turn.results if result.name] or (() if answers else parsed.calls)
        functions = ({"name": call.name, "arguments": json.dumps(call.arguments)} for call in asked)
        calls = [
            {"id": f"call_{number}_{i}", "type": "function", "function": function}
            for i, function in enumerate(functions)
        ]
        message = {"role": "assistant", "content": parsed.text}
        message |= {"reasoning_content": thought} if thought else {}
        messages.append(message | {"tool_calls": calls} if calls else message)
        ids = iter(call["id"] for call in calls)
        for result in turn.results:
            reply = {"role": "tool", "name": result.name, "content": result.observation}
            if result.name:  # a malformed call has a reply and no call
                reply["tool_call_id"] = next(ids)
            messages.append(reply)
    return messages


def _said(turn: Turn) -> tuple[str, ParsedTurn]:
    """The closed thought that a turn begins with, and what it says; Llama's calls, which only their
    results tell from prose, are read as such.
    """
    text = END.sub("", turn.text)
    parsed = parse_stored(text)
    thought, ends, rest = text.partition(THOUGHT)
    after = parse_stored(rest)
    if not ends or after != parsed:  # the mark stands in code or in a call
        thought, rest, after = "", text, parsed
    named = [(result.name, result.arguments) for result in turn.results if result.name]
    for part in (rest, text) if named and not after.calls else ():
        found = parse_turn(part, "llama3")
        if [(call.name, call.arguments) for call in found.calls] == named:
            thought, after = thought if part == rest else "", found
            break
    return thought.strip().removeprefix(THINK).strip(), after


def utf8(value: Any) -> Any:
    """The same JSON-like value with what UTF-8 lacks (lone surrogates) replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {utf8(key): utf8(item) for key, item in value.items()}
    return [utf8(item) for item in value] if isinstance(value, list) else value
