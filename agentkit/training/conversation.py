"""Conversations in OpenAI's form from trajectories, and turns from the conversations of others.

Leaves out files and their formats (training.transcripts reads them, views.export writes them).
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentkit.records import DataError, ParsedTurn, StopReason, ToolResult, Trajectory, Turn
from agentkit.rollouts.call_formats import THINK, THOUGHT, parse_stored, parse_turn
from agentkit.rollouts.call_json import ARGUMENTS
from agentkit.runs import parse_json

SYSTEM = "system prompts"
_END = re.compile(
    r"(?:<[|｜][^|<>\s]{1,40}[|｜]>|<(?:/s|eos|end_of_turn|turn\||\|tool_response)>)\s*$"
)  # the end token of a turn
_RESPONSE = re.compile(r"<tool_response>((?:(?!</tool_response>).)*+)</tool_response>", re.DOTALL)
_RESPONSES = re.compile(rf"\s*(?:{_RESPONSE.pattern}\s*)++", re.DOTALL)  # a user message of Qwen's
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "summary", "content", "text")  # where they stand
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


# ---- a trajectory as messages
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
    text = _END.sub("", turn.text)
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


# ---- messages as turns
def turns_of(messages: Sequence[Mapping[str, Any]], where: str, dropped: Counter) -> tuple[str, list[Turn]]:
    """Prompt and turns, calls in Hermes form; ``dropped`` counts what was left out or changed."""
    prompt, turns, open_calls = [], [], {}
    for message in _in_order(messages):
        role, content = message["role"], content_of(message, dropped)
        if role == "assistant":
            if message.get("tool_calls") and content.rfind(THINK) > content.rfind(THOUGHT):
                content += THOUGHT
            inline = "<tool_response>" in content
            dropped["where turns end in text that holds tool replies itself (each is one turn)"] += inline
            open_calls, blocks = {}, [content] if content else []
            if not inline and not message.get("tool_calls"):
                calls = parse_stored(_END.sub("", content)).calls  # of models whose calls stand in the text
                open_calls = {str(i): (call.name, call.arguments) for i, call in enumerate(calls)}
            for number, call in enumerate(message.get("tool_calls") or []):
                name, arguments = _asked_of(call, where, dropped)
                open_calls[str(call.get("id") or number)] = name, arguments
                text = json.dumps({"name": name, "arguments": arguments})
                blocks.append(f"<tool_call>\n{text}\n</tool_call>")
            turns.append(Turn("\n".join(blocks), (0, 0)))
        elif turns:
            framed = open_calls and _RESPONSES.fullmatch(content)
            replies = [*map(str.strip, _RESPONSE.findall(content))] if framed else [content]
            user = role == "user" and not framed
            dropped["user messages inside a trajectory (kept as observations)"] += user
            results = [_reply(message, reply, {} if user else open_calls) for reply in replies]
            turns[-1] = replace(turns[-1], results=(*turns[-1].results, *results))
        elif role == "user":
            prompt.append(content)
        else:
            dropped[SYSTEM] += 1
    if not turns:
        raise DataError(f"{where} has no assistant message, so there is no trajectory in it. Remove the row.")
    return "\n\n".join(prompt), turns


def _in_order(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, the replies that name a turn's calls by their ids in the order of these calls."""
    turns: list[dict[str, int | None]] = [{}]  # the place of the reply to each of their calls
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or []
            turns.append({str(c["id"]): None for c in calls if isinstance(c, dict) and c.get("id")})
        elif turns[-1].get(identity := str(message.get("tool_call_id")), 0) is None:
            turns[-1][identity] = place
    ordered = list(messages)
    for turn in turns:
        places = [place for place in turn.values() if place is not None]
        for place, reply in zip(sorted(places), places, strict=True):
            ordered[place] = messages[reply]
    return ordered


def _reply(message: Mapping[str, Any], content: str, open_calls: dict[str, tuple[str, dict]]) -> ToolResult:
    """A tool's reply, matched with its call by id, name or order; the call is then no longer open."""
    name, arguments = str(message.get("name") or ""), {}
    identity = str(message.get("tool_call_id"))
    if message["role"] == "user" and not open_calls:
        name = "user"
    elif open_calls:  # where none is left, a reply without a name is to a malformed call
        same = [key for key, (called, _) in open_calls.items() if key == identity or called == name]
        key = identity if identity in same else next(iter(same or open_calls))
        name, arguments = open_calls.pop(key)
    return ToolResult(name, arguments, content, ok=not content.startswith("Error"))


def _asked_of(call: Any, where: str, dropped: Counter) -> tuple[str, dict]:
    """Name and arguments of one entry of tool_calls, in OpenAI's form or flat."""
    inner = call.get("function") if isinstance(call, dict) else None
    if not isinstance(inner, dict):
        inner = call if isinstance(call, dict) else {}
    name = inner.get("name")
    arguments = next((inner[key] for key in ARGUMENTS if inner.get(key) is not None), None)
    if not isinstance(name, str):
        raise DataError(
            f"{where}: a tool call has no name ({str(call)[:80]}). Give it one, or remove the row."
        )
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError:
            arguments = {"unparsed": arguments}
            dropped["arguments of calls that are no JSON (kept as text)"] += 1
    elif isinstance(arguments, dict):  # a table fills absent arguments with null
        arguments = {key: value for key, value in arguments.items() if value is not None}
    return name, arguments if isinstance(arguments, dict) else {}


def content_of(message: Mapping[str, Any], dropped: Counter) -> str:
    """The text of a message; thoughts, which logs keep apart from it or among its parts, in <think>."""
    content = message.get("content") or ""
    apart = (
        _thought({key: message.get(key) for key in _THOUGHTS[:3]}) if message["role"] == "assistant" else ""
    )
    texts = [apart] if apart else []
    for part in [content] if isinstance(content, str) else content:
        match part:
            case str():
                texts.append(part)
            case {"type": "reasoning" | "thinking" | "redacted_thinking"} | {"thought": True}:
                texts.append(_thought(part))
            case {"type": "text" | "output_text" | "input_text"}:
                texts.append(str(part.get("text") or ""))
            case _:
                dropped["parts of messages that are no text (images, sound, data)"] += 1
    return "\n".join(filter(None, texts))


def _thought(held: Mapping[str, Any]) -> str:
    """What stands under the first of _THOUGHTS, a text or parts with a text, in <think>."""
    value = next((held[key] for key in _THOUGHTS if held.get(key)), "")
    parts = value if isinstance(value, list) else [value]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    text = "\n".join(text for text in texts if isinstance(text, str))
    return f"{THINK}{text.replace(THOUGHT, '< /think>')}{THOUGHT}" if text else ""


def checked_messages(messages: Any, where: str) -> list[dict[str, Any]]:
    """A list of messages, checked. Raises DataError naming the place and what is wrong."""
    if not isinstance(messages, list):
        raise DataError(
            f"{where} is {type(messages).__name__}, not a list of messages [{{'role', 'content'}}, ...]."
        )
    for number, message in enumerate(messages, start=1):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            roles = ", ".join(_ROLES)
            raise DataError(f"{where}, message {number} has the role {str(role)[:40]!r}. Use one of {roles}.")
        content, calls = message.get("content"), message.get("tool_calls")
        if not isinstance(content, str | list | None) or not isinstance(calls, list | None):
            raise DataError(
                f"{where}, message {number}: content must be text or a list of parts, tool_calls a list."
            )
    return [_with_tool_calls(message) for message in messages]


def _with_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose call stands under OpenAI's older ``function_call`` as one with ``tool_calls``."""
    older = message.get("function_call")
    is_older = isinstance(older, dict) and older.get("name") and not message.get("tool_calls")
    return message | {"tool_calls": [{"type": "function", "function": older}]} if is_older else message


def utf8(value: Any) -> Any:
    """The same JSON-like value with what UTF-8 lacks (lone surrogates) replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {utf8(key): utf8(item) for key, item in value.items()}
    return [utf8(item) for item in value] if isinstance(value, list) else value
