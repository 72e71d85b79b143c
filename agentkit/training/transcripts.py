"""A messages data set as transcripts that the cold start can imitate: the same tokens a rollout would hold.

Rows have ``messages`` (roles system, user, assistant with tool_calls, tool) and may have ``tools`` (JSON
schemas) and ``family``; without ``tools`` those of the family's environment are shown, and without
``family`` it is the tasks'. Leaves out judging whether they are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkit.records import DataError, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.rollouts.call_formats import THINK, THOUGHT, format_call, parse_stored, parse_turn
from agentkit.rollouts.chat import ChatCodec, turn_ids
from agentkit.rollouts.mask import Completion
from agentkit.rows import Call, Message, messages_of, read_rows, tools_of
from agentkit.tools import runtime
from agentkit.tools.environments import SYSTEM_PROMPT
from agentkit.training.conversation import asked_in, in_turns, paired, thoughtful

if TYPE_CHECKING:
    from agentkit.lab import Lab

_THOUGHT = re.compile(rf"\s*{THINK}(.*?){THOUGHT}", re.DOTALL)  # that a turn begins with


def read_transcripts(path: Path, tokenizer: Any, lab: Lab, tasks: Iterable[Task]) -> list[Trajectory]:
    """Transcripts of a .jsonl, .json or .parquet file in the tokenizer's chat format, for what is trained on
    these tasks; RunError names a bad row, or a file without any.
    """
    families = sorted({task.family for task in tasks})
    toolsets = {tuple(runtime.tools_of(runtime.example(lab.environments[family]))) for family in families}
    usual = families[0] if len(toolsets) == 1 else ""
    return read_rows(path, lambda row, place: _transcript(row, place, tokenizer, lab, usual))


def _transcript(row: Mapping[str, Any], place: str, tokenizer: Any, lab: Lab, usual: str) -> Trajectory:
    """The row as a trajectory: 1 in the mask on what the assistant wrote, 0 on what tools replied.

    Raises DataError where a rollout could not hold it as it is: the agent would learn it so.
    """
    before, said = in_turns(messages_of(row))
    completion, turns = Completion(), []
    system = [message.content for message in before if message.role != "user"]
    question = [message.content for message in before if message.role == "user"]
    codec = _codec(row, system, tokenizer, lab, usual)
    prompt_ids = codec.prompt_ids("\n\n".join(question))
    for message, replies in said:
        text, results = _turn(message, replies, codec)
        ids = turn_ids(codec.tokenizer, [*prompt_ids, *completion.ids], text, bool(results))
        turns.append(Turn(codec.decode(ids), completion.sampled(ids, [0.0] * len(ids)), results))
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


def _codec(row: Mapping[str, Any], said: list[str], tokenizer: Any, lab: Lab, usual: str) -> ChatCodec:
    """The chat format with the row's own tools and system prompt, else with its family's."""
    family = row.get("family") or usual
    if not family or not isinstance(family, str):
        raise DataError(f"its family is {family!a:.60}: name one, as those of the tasks have different tools")
    environment = runtime.example(lab.environments[family])
    system = "\n\n".join(said) if said else getattr(environment, "system_prompt", SYSTEM_PROMPT)
    return ChatCodec(tokenizer, system, tools_of(row) or runtime.tool_schemas(environment))


def _turn(
    message: Message, replies: Sequence[Message], codec: ChatCodec
) -> tuple[str, tuple[ToolResult, ...]]:
    """An assistant's message as this agent writes it, with the replies to its calls in their order; what it
    quotes of the chat's own marks is broken up, as it is where a tool says it.
    """
    content, parsed, asked = asked_in(message)
    inline = None if message.thought else _THOUGHT.match(content)
    if parsed.errors:
        raise DataError(f"an assistant's calls cannot be read again: {parsed.errors[0]}")
    rest = content[inline.end() :] if inline else content
    if parse_stored(_unmarked(rest)).text != _unmarked(parsed.text):
        raise DataError("a thought that an assistant's message does not begin with would be lost")
    if len(replies) != len(asked):
        raise DataError(f"the {len(asked)} calls of a turn need a reply each, in order, by name or by id")
    thought = codec.marks.inert_value(inline[1] if inline else message.thought)
    return thoughtful(thought, _written(parsed.text, asked, codec)), paired(asked, replies)


def _written(text: str, asked: Sequence[Call], codec: ChatCodec) -> str:
    """A turn's text and calls in the agent's own form, which it must be able to hold."""
    inert = codec.marks.inert_value
    calls = [format_call(c.name, inert(c.arguments), codec.format, codec.tools) for c in asked]
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
