"""A messages data set as transcripts that the cold start can imitate: the same tokens a rollout would hold.

Rows have ``messages`` (roles system, user, assistant with tool_calls, tool) and may have ``tools`` (JSON
schemas) and ``family``; without ``tools`` those of the family's environment are shown, and without
``family`` it is the tasks'. Leaves out judging whether they are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkit.records import DataError, RunError, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.rollouts.call_formats import THINK, THOUGHT, format_call, parse_stored, parse_turn, with_thought
from agentkit.rollouts.call_json import ARGUMENTS
from agentkit.rollouts.chat import ChatCodec, turn_ids
from agentkit.rollouts.mask import Completion
from agentkit.runs import parse_json, read_rows
from agentkit.tools.environments import SYSTEM_PROMPT
from agentkit.tools.runtime import example, tool_schemas, tools_of
from agentkit.training.conversation import END, utf8

if TYPE_CHECKING:
    from agentkit.lab import Lab

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_ORDER = "[sdu]*u[sdu]*a([tfu]+a)*[tfu]*"  # their first letters; a user's message may hold framed replies
_RESPONSE = re.compile(r"<tool_response>((?:(?!</tool_response>).)*+)</tool_response>", re.DOTALL)
_RESPONSES = re.compile(rf"\s*(?:{_RESPONSE.pattern}\s*)++", re.DOTALL)  # a user message of Qwen's
_THOUGHT = re.compile(rf"\s*{THINK}(.*?){THOUGHT}", re.DOTALL)  # that a turn begins with
_APART = ("reasoning_content", "reasoning", "thinking")  # keys of a message that hold its thought


def read_transcripts(path: Path, tokenizer: Any, lab: Lab, tasks: Iterable[Task]) -> list[Trajectory]:
    """Transcripts of a .jsonl, .json or .parquet file in the tokenizer's chat format, for what is trained on
    these tasks; RunError names a bad row, or a file without any.
    """
    families = sorted({task.family for task in tasks})
    toolsets = {tuple(tools_of(example(lab.environments[family]))) for family in families}
    usual = families[0] if len(toolsets) == 1 else ""
    transcripts = []
    for number, row in enumerate(read_rows(path), start=1):
        place = f"{path}, row {number}"
        try:
            transcripts.append(_transcript(row, place, tokenizer, lab, usual))
        except DataError as error:
            raise RunError(f"{place}: {error}") from None
    if not transcripts:
        raise RunError(f"{path} holds no row: give transcripts, such as {{'messages': [..]}}, a row each")
    return transcripts


def _transcript(row: Mapping[str, Any], place: str, tokenizer: Any, lab: Lab, usual: str) -> Trajectory:
    """The row as a trajectory: 1 in the mask on what the assistant wrote, 0 on what tools replied.

    Raises DataError where a rollout could not hold it as it is: the agent would learn it so.
    """
    messages = _checked(row)
    roles = [message["role"] for message in messages]
    starts = [i for i, role in enumerate(roles) if role == "assistant"]
    before, completion, turns = messages[: starts[0]], Completion(), []
    system = [_content(message)[1] for message in before if message["role"] != "user"]
    question = [_content(message)[1] for message in before if message["role"] == "user"]
    codec = _codec(row, system, tokenizer, lab, usual)
    prompt_ids = codec.prompt_ids("\n\n".join(question))
    for start, stop in pairwise([*starts, len(roles)]):
        text, results = _turn(messages[start], messages[start + 1 : stop], codec)
        said = turn_ids(codec.tokenizer, [*prompt_ids, *completion.ids], text, bool(results))
        turns.append(Turn(codec.decode(said), completion.sampled(said, [0.0] * len(said)), results))
        if results:
            completion.observed(codec.observation_ids([result.observation for result in results]))
    return Trajectory(
        task_id=place,
        policy="transcripts",
        sample=0,
        seed=0,
        prompt_ids=prompt_ids,
        completion_ids=tuple(completion.ids),
        action_mask=tuple(completion.mask),
        old_logprobs=tuple(completion.logprobs),
        turns=tuple(turns),
        stop_reason=StopReason.ANSWER,
        answer=parse_stored(text).text,
    )


def _checked(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The row's messages, as a rollout could hold them."""
    messages = row.get("messages")
    if not isinstance(messages, list):
        raise DataError("it has no list of messages: give rows such as {'messages': [..]}")
    for message in messages:
        well_formed = (
            isinstance(message, dict)
            and message.get("role") in _ROLES
            and isinstance(message.get("content"), str | list | None)
            and isinstance(message.get("tool_calls"), list | None)
            and not message.get("function_call")
        )
        if not well_formed:
            raise DataError(
                f"the message {message!a:.80} needs a role ({', '.join(_ROLES)}), content that is text or a "
                "list of parts, and its calls in a list of tool_calls"
            )
    if not re.fullmatch(_ORDER, "".join(message["role"][0] for message in messages)):
        raise DataError(
            "its messages are in another order than those of a rollout: give system and user messages, then "
            "assistant messages, between them the replies of the tools"
        )
    if utf8(said := [messages, row.get("tools")]) != said:
        raise DataError("it holds half a character (a lone surrogate): mend it, or leave the row out")
    return messages


def _codec(row: Mapping[str, Any], said: list[str], tokenizer: Any, lab: Lab, usual: str) -> ChatCodec:
    """The chat format with the row's own tools and system prompt, else with its family's."""
    family = row.get("family") or usual
    if not family or not isinstance(family, str):
        raise DataError(f"its family is {family!a:.60}: name one, as those of the tasks have different tools")
    environment = example(lab.environments[family])
    tools = row.get("tools") or tool_schemas(environment)
    try:
        tools = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
        "".join(tool["function"]["name"] for tool in tools)  # a TypeError where one is no text
    except (TypeError, KeyError):
        raise DataError("its tools must be a list of JSON schemas, each with a name") from None
    system = "\n\n".join(said) if said else getattr(environment, "system_prompt", SYSTEM_PROMPT)
    return ChatCodec(tokenizer, system, tools)


def _turn(
    message: Mapping[str, Any], replies: Sequence[Mapping[str, Any]], codec: ChatCodec
) -> tuple[str, tuple[ToolResult, ...]]:
    """An assistant's message as this agent writes it, with the replies to its calls in their order; what it
    quotes of the chat's own marks is broken up, as it is where a tool says it.
    """
    thought, content = _content(message)
    content, asked = END.sub("", content), [_asked(call) for call in message.get("tool_calls") or []]
    if asked and content.rfind(THINK) > content.rfind(THOUGHT):
        content += THOUGHT
    parsed, inline = parse_stored(content), None if thought else _THOUGHT.match(content)
    if parsed.errors:
        raise DataError(f"an assistant's calls cannot be read again: {parsed.errors[0]}")
    rest = content[inline.end() :] if inline else content
    if parse_stored(_unmarked(rest)).text != _unmarked(parsed.text):
        raise DataError("a thought that an assistant's message does not begin with would be lost")
    thought = inline[1] if inline else thought
    asked = [*(("", call.name, call.arguments) for call in parsed.calls), *asked]
    text = _written(parsed.text, asked, codec)
    results = _results(asked, [reply for each in replies for reply in _replies(each)])
    return with_thought(codec.marks.inert_value(thought.strip()), text) if thought else text, results


def _written(text: str, asked: Sequence[tuple[str, str, dict]], codec: ChatCodec) -> str:
    """A turn's text and calls in the agent's own form, which it must be able to hold."""
    inert = codec.marks.inert_value
    try:
        calls = [format_call(name, inert(given), codec.format, codec.tools) for _, name, given in asked]
    except ValueError as error:
        raise DataError(str(error)) from None
    written = "\n".join([inert(text), *calls] if text else calls)
    if not written:
        raise DataError("an assistant's message has neither text nor tool_calls")
    read = parse_turn(written, codec.format, codec.tools)
    if len(read.calls) != len(asked):
        why = read.errors[0] if read.errors else "no text stands before a call there"
        raise DataError(f"{codec.format}'s form does not hold a turn of it: {why}")
    return written


def _unmarked(text: str) -> str:
    """The text with the marks of thoughts as plain words."""
    return reduce(lambda left, mark: left.replace(mark, mark[1:]), (THINK, THOUGHT), text)


def _results(
    asked: Sequence[tuple[str, str, dict]], replies: Sequence[Mapping[str, Any]]
) -> tuple[ToolResult, ...]:
    """The replies in the order of the calls that they name by id or by name, else in their own."""
    if len(replies) != len(asked):
        raise DataError(f"the {len(asked)} calls of a turn need a reply each, in order, by name or by id")
    found: dict[int, ToolResult] = {}
    for reply in replies:
        left = [i for i in range(len(asked)) if i not in found]
        by_id = [i for i in left if asked[i][0] and asked[i][0] == str(reply.get("tool_call_id"))]
        by_name = [i for i in left if asked[i][1] == reply.get("name")]
        place = (by_id or by_name or left)[0]
        _, name, arguments = asked[place]
        content = _content(reply)[1]
        found[place] = ToolResult(name, arguments, content, ok=not content.startswith("Error"))
    return tuple(found[i] for i in range(len(asked)))


def _replies(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A reply, or those that are framed in one message."""
    content = _content(message)[1]
    if _RESPONSES.fullmatch(content):
        return [{"content": text.strip()} for text in _RESPONSE.findall(content)]
    if message["role"] == "user":
        raise DataError("it has user messages inside a trajectory: give one question a row")
    return [message]


def _asked(call: Any) -> tuple[str, str, dict[str, Any]]:
    """Id, name and arguments of one entry of tool_calls, in OpenAI's form or flat."""
    inner = call.get("function") or call if isinstance(call, dict) else {}
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise DataError(f"a tool call has no name ({call!a:.80})")
    given = next((inner[key] for key in ARGUMENTS if inner.get(key) is not None), {})
    try:
        held = parse_json(given) if isinstance(given, str) else given
        # a table fills absent arguments with null
        arguments = {key: value for key, value in held.items() if value is not None or held is not given}
    except (ValueError, AttributeError):
        raise DataError(f"the arguments of a call are no JSON object ({given!a:.80})") from None
    return str(call.get("id") or ""), inner["name"], arguments


def _content(message: Mapping[str, Any]) -> tuple[str, str]:
    """Thought and text of a message."""
    thought = next((said for key in _APART if isinstance(said := message.get(key), str) and said), "")
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else content
    texts = [p.get("text") if isinstance(p, dict) and p.get("type") == "text" else p for p in parts]
    if not all(isinstance(text, str) for text in texts):
        raise DataError("it has parts of messages that are no text: thoughts go into reasoning_content")
    return thought.replace(THOUGHT, "< /think>"), "\n".join(filter(None, texts))  # it would end the thought
