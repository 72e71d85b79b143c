"""Trajectories as conversations in OpenAI's form, and the conversations of others as trajectories of text.

Leaves out files and their formats (rows reads them, views.export writes them), and tokens (transcripts).
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentkit.records import DataError, ParsedTurn, StopReason, ToolResult, Trajectory, Turn
from agentkit.rollouts.call_formats import THINK, THOUGHT, format_call, parse_stored, parse_turn, with_thought
from agentkit.rows import Call, Message, messages_of, read_rows
from agentkit.runs.schemas import read_as
from agentkit.verifiers import final_answer

_NO_TOKENS = dict.fromkeys(("prompt_ids", "completion_ids", "action_mask", "old_logprobs"), ())
_ORDER = "[sd]*u[sdu]*a([tfu]+a)*[tfu]*"  # first letters of roles; a user's message may hold framed replies
_RESPONSE = re.compile(r"<tool_response>((?:(?!</tool_response>).)*+)</tool_response>", re.DOTALL)
_RESPONSES = re.compile(rf"\s*(?:{_RESPONSE.pattern}\s*)++", re.DOTALL)  # a user message of Qwen's

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


# ---- conversations of others
def read_conversations(path: str | Path, success: str = "success") -> list[Trajectory]:
    """The conversations in a .jsonl, .json or .parquet file as trajectories of text, without tokens.

    A row has messages, and may have ``task_id``, ``policy``, ``sample`` and ``reward``. ``success`` names the
    field that holds the verdict. Raises RunError, which names a row that cannot be read.
    """
    return read_rows(path, partial(_trajectory, success))


def _trajectory(success: str, row: Mapping[str, Any], place: str) -> Trajectory:
    _, said = in_turns(messages_of(row))
    turns, (last, replies) = tuple(_said_by(*turn) for turn in said), said[-1]
    _, parsed, asked = asked_in(last)
    stop = StopReason.TURN_LIMIT if replies or asked else StopReason.ANSWER
    answer, why = (None, "") if replies or asked else final_answer(parsed.text)
    fields = {"task_id": place, "policy": Path(place).stem, "sample": 0, "success": row.get(success)}
    fields |= {name: row[name] for name in ("task_id", "policy", "sample", "reward") if name in row}
    fields |= {"turns": turns, "stop_reason": stop, "answer": answer, "why": why, "seed": 0}
    return read_as(Trajectory, _NO_TOKENS | fields)


def _said_by(message: Message, replies: Sequence[Message]) -> Turn:
    content, _, asked = asked_in(message)
    calls = [format_call(call.name, call.arguments) for call in message.calls]
    text = "\n".join(filter(None, [content, *calls]))
    return Turn(thoughtful(message.thought, text), (0, 0), paired(asked, replies))


def thoughtful(thought: str, text: str) -> str:
    """A turn's text behind its thought, if it has one; what would end the thought is broken up."""
    return with_thought(thought.strip().replace(THOUGHT, "< /think>"), text) if thought else text


def in_turns(messages: Sequence[Message]) -> tuple[list[Message], list[tuple[Message, list[Message]]]]:
    """What stands before the first turn, and each assistant's message with the replies to it. Raises
    DataError where a rollout has another order.
    """
    roles = "".join(message.role[0] for message in messages)
    if not re.fullmatch(_ORDER, roles):
        raise DataError(
            "its messages are in another order than those of a rollout: give system and user messages, then "
            "assistant messages, between them the replies of the tools"
        )
    starts = [place for place, role in enumerate(roles) if role == "a"]
    turns = []
    for start, stop in pairwise([*starts, len(roles)]):
        replies = [reply for each in messages[start + 1 : stop] for reply in _replies(each)]
        turns.append((messages[start], replies))
    return list(messages[: starts[0]]), turns


def _replies(message: Message) -> list[Message]:
    """A reply, or those that are framed in one message."""
    if _RESPONSES.fullmatch(message.content):
        return [Message("tool", text.strip()) for text in _RESPONSE.findall(message.content)]
    if message.role == "user":
        raise DataError("it has user messages inside a trajectory: give one question a row")
    return [message]


def asked_in(message: Message) -> tuple[str, ParsedTurn, list[Call]]:
    """An assistant's text without an end token, what it says, and the calls in it and beside it."""
    content = END.sub("", message.content)
    if message.calls and content.rfind(THINK) > content.rfind(THOUGHT):
        content += THOUGHT
    parsed = parse_stored(content)
    return content, parsed, [*(Call("", call.name, call.arguments) for call in parsed.calls), *message.calls]


def paired(asked: Sequence[Call], replies: Sequence[Message]) -> tuple[ToolResult, ...]:
    """The replies in the order of the calls that they name by id or by name, else in their own; those of no
    call, as to a malformed one, come last.
    """
    found: dict[int, ToolResult] = {}
    for reply in replies:
        left = [i for i in range(len(asked)) if i not in found]
        by_id = [i for i in left if asked[i].id and asked[i].id == reply.call_id]
        by_name = [i for i in left if asked[i].name == reply.name]
        place = (by_id or by_name or left or [len(asked) + len(found)])[0]
        call = asked[place] if place < len(asked) else Call("", "", {})
        failed = reply.failed or reply.content.startswith("Error") or not call.name
        found[place] = ToolResult(call.name, call.arguments, reply.content, ok=not failed)
    return tuple(found[place] for place in sorted(found))


def utf8(value: Any) -> Any:
    """The same JSON-like value with what UTF-8 lacks (lone surrogates) replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {utf8(key): utf8(item) for key, item in value.items()}
    return [utf8(item) for item in value] if isinstance(value, list) else value
