"""A messages data set as transcripts that the cold start can imitate: the same tokens a rollout would hold.

Rows have ``messages`` (roles system, user, assistant with tool_calls, tool) and may have ``tools`` (JSON
schemas) and ``family``; without ``tools`` those of the family's environment are shown, and without
``family`` it is the tasks'. Leaves out judging whether they are right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkit.records import DataError, RunError, StopReason, Task, Trajectory, Turn
from agentkit.rollouts.call_formats import THINK, THOUGHT, format_call, parse_stored, parse_turn, with_thought
from agentkit.rollouts.chat import ChatCodec, turn_ids
from agentkit.rollouts.mask import Completion
from agentkit.runs import read_rows
from agentkit.tools.environments import SYSTEM_PROMPT
from agentkit.tools.runtime import example, tool_schemas, tools_of
from agentkit.training.conversation import SYSTEM, checked_messages, content_of, turns_of, utf8

if TYPE_CHECKING:
    from agentkit.lab import Lab

_OF_TURNS = ("assistant", "tool", "function")
_THOUGHT = re.compile(rf"\s*{THINK}(.*?){THOUGHT}", re.DOTALL)  # that a turn begins with


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
        if not isinstance(row.get("messages"), list):
            raise RunError(f"{place} has no list of messages: give rows such as {{'messages': [..]}}")
        if not isinstance(row.get("family"), str | None):
            raise RunError(f"{place}: its family is {row['family']!a:.60}; it must be text")
        row |= {"messages": checked_messages(row["messages"], place), "family": row.get("family") or usual}
        if utf8(said := [row["messages"], row.get("tools")]) != said:
            raise RunError(
                f"{place} holds half a character (a lone surrogate): mend it, or leave the row out"
            )
        codec = _codec(row, tokenizer, lab, place)
        transcripts.append(_encoded(row, place, codec))
    if not transcripts:
        raise RunError(f"{path} holds no row: give transcripts, such as {{'messages': [..]}}, a row each")
    return transcripts


def _codec(row: Mapping[str, Any], tokenizer: Any, lab: Lab, place: str) -> ChatCodec:
    """The chat format with the row's own tools and system prompt, else with its family's."""
    if not row["family"]:
        raise RunError(f"{place} names no family, and those of the tasks have different tools: name one")
    environment = example(lab.environments[row["family"]])
    tools = row.get("tools") or tool_schemas(environment)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RunError(f"{place}: tools must be a list of JSON schemas")
    tools = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
    if not all(isinstance(t["function"], dict) and isinstance(t["function"].get("name"), str) for t in tools):
        raise RunError(f"{place}: a tool has no name")
    said = [content_of(m, Counter()) for m in row["messages"] if m["role"] in ("system", "developer")]
    system = "\n\n".join(said) if said else getattr(environment, "system_prompt", SYSTEM_PROMPT)
    return ChatCodec(tokenizer, system, tools)


def _encoded(row: Mapping[str, Any], place: str, codec: ChatCodec) -> Trajectory:
    """The row as a trajectory: 1 in the mask on what the assistant wrote, 0 on what tools replied.

    What a reader of logs would drop or change is refused: the agent would learn it so.
    """
    _check_order([message["role"] for message in row["messages"]], place)
    dropped: Counter = Counter()
    prompt, written = turns_of(row["messages"], place, dropped)
    if lost := [phrase for phrase, n in dropped.items() if n and phrase != SYSTEM]:
        raise RunError(f"{place} has {lost[0]}: give a question, its turns and replies as text, a row each")
    prompt_ids = codec.prompt_ids(prompt)
    completion, turns = Completion(), []
    for turn in written:
        before = [*prompt_ids, *completion.ids]
        try:
            said = turn_ids(codec.tokenizer, before, _in_format(turn, codec, place), bool(turn.results))
        except DataError as error:
            raise RunError(f"{place}: {error}") from None
        turns.append(Turn(codec.decode(said), completion.sampled(said, [0.0] * len(said)), turn.results))
        if turn.results:
            completion.observed(_replies(codec, turn))
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
        answer=parse_stored(written[-1].text).text,
    )


def _check_order(roles: list[str], place: str) -> None:
    """Raise RunError where messages do not stand as in a rollout: a reader would move, join or drop them."""
    begun, wrong = next((i for i, role in enumerate(roles) if role in _OF_TURNS), len(roles)), ""
    if "user" not in roles[:begun]:
        wrong = "has no user message before the first assistant message"
    elif roles[begun:] and roles[begun] != "assistant":
        wrong = "has a tool's reply before the first assistant message"
    elif {"system", "developer"} & set(roles[begun:]):
        wrong = "has a system message after the first assistant message"
    elif ("assistant", "assistant") in pairwise(roles):
        wrong = "has two assistant messages in a row"
    if wrong:
        raise RunError(f"{place} {wrong}: give system, user, then assistant and tool messages in turn")


def _replies(codec: ChatCodec, turn: Turn) -> list[int]:
    return codec.observation_ids([r.observation for r in turn.results])


def _unmarked(text: str) -> str:
    """The text with the marks of thoughts as plain words."""
    return reduce(lambda left, mark: left.replace(mark, mark[1:]), (THINK, THOUGHT), text)


def _in_format(turn: Turn, codec: ChatCodec, place: str) -> str:
    """A turn whose calls were read in Hermes form, with thought and calls as this agent writes them; what it
    quotes of the chat's own marks is broken up, as it is where a tool says it.
    """
    inert = codec.marks.inert_value
    parsed, thought = parse_stored(turn.text), _THOUGHT.match(turn.text)
    if parsed.errors:
        raise RunError(f"{place}: an assistant's calls cannot be read again: {parsed.errors[0]}")
    after = turn.text[thought.end() :] if thought else turn.text
    if parse_stored(_unmarked(after)).text != _unmarked(parsed.text):
        raise RunError(f"{place}: a thought that an assistant's message does not begin with would be lost")
    asked = [(call.name, call.arguments) for call in parsed.calls]
    told = [pair for r in turn.results if (pair := (r.name, r.arguments)) in asked]
    if len(turn.results) != len(asked) or told != sorted(told, key=asked.index):
        raise RunError(f"{place}: the {len(asked)} calls of a turn need a reply each, in order or by id")
    try:
        calls = [format_call(name, inert(given), codec.format, codec.tools) for name, given in asked]
    except ValueError as error:
        raise RunError(f"{place}: {error}") from None
    text = "\n".join([inert(parsed.text), *calls] if parsed.text else calls)
    if not text:
        raise RunError(f"{place}: an assistant's message has neither text nor tool_calls")
    if parsed.text and len(parse_turn(text, codec.format, codec.tools).calls) != len(asked):
        raise RunError(f"{place}: in {codec.format}'s form no text stands before a call: leave it out")
    return with_thought(inert(thought[1].strip()), text) if thought else text
