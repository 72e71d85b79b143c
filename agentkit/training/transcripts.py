"""A messages data set as transcripts that the cold start can imitate: the same tokens a rollout would hold.

Rows have ``messages`` (roles system, user, assistant with tool_calls, tool) and may have ``tools`` (JSON
schemas) and ``family``; without ``tools`` those of the family's environment are shown, and without
``family`` it is the tasks'. Leaves out judging whether they are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkit.exchange.conversation import Row, checked_messages, read_conversations
from agentkit.records import RunError, StopReason, Task, Trajectory, Turn
from agentkit.rollouts.call_formats import format_call, parse_stored
from agentkit.rollouts.chat import ChatCodec, turn_after
from agentkit.rollouts.templates import end_of_turn
from agentkit.runs import read_rows
from agentkit.tools.environments import SYSTEM_PROMPT
from agentkit.tools.runtime import tool_schemas, tools_of

if TYPE_CHECKING:
    from agentkit.lab import Lab


def read_transcripts(path: Path, tokenizer: Any, lab: Lab, tasks: Iterable[Task]) -> list[Trajectory]:
    """Transcripts of a .jsonl, .json or .parquet file in the tokenizer's chat format, for what is trained on
    these tasks; RunError names a bad row.
    """
    families = sorted({task.family for task in tasks})
    toolsets = {tuple(tools_of(lab.environments[family]())) for family in families}
    usual = families[0] if len(toolsets) == 1 else ""
    transcripts = []
    for number, row in enumerate(read_rows(path), start=1):
        place = f"{path}, row {number}"
        if not isinstance(row.get("messages"), list):
            raise RunError(f"{place} has no list of messages: give rows such as {{'messages': [..]}}")
        codec = _codec(row | {"family": row.get("family") or usual}, tokenizer, lab, place)
        transcripts.append(_encoded(row, place, codec))
    return transcripts


def _codec(row: Mapping[str, Any], tokenizer: Any, lab: Lab, place: str) -> ChatCodec:
    """The chat format with the row's own tools and system prompt, else with its family's."""
    if not row["family"]:
        raise RunError(f"{place} names no family, and those of the tasks have different tools: name one")
    environment = lab.environments[row["family"]]()
    tools = row.get("tools") or tool_schemas(environment)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RunError(f"{place}: tools must be a list of JSON schemas")
    said = [m["content"] for m in row["messages"] if isinstance(m, dict) and m.get("role") == "system"]
    system = said[0] if said else getattr(environment, "system_prompt", SYSTEM_PROMPT)
    return ChatCodec(tokenizer, str(system), tools, lab.options()["tool_format"])


def _encoded(row: Mapping[str, Any], place: str, codec: ChatCodec) -> Trajectory:
    """The row as a trajectory: 1 in the mask on what the assistant wrote, 0 on what tools replied."""
    messages = checked_messages(row["messages"], place)
    (conversation,) = read_conversations([Row(place, messages)], "transcripts", [], Counter()).trajectories
    prompt = "\n\n".join(str(m["content"]) for m in messages if m["role"] == "user")
    prompt_ids = codec.prompt_ids(prompt)
    ids: list[int] = []
    mask: list[int] = []
    turns = []
    for turn in conversation.turns:
        text = turn_after(codec.tokenizer, [*prompt_ids, *ids], _in_format(turn.text, codec))
        end = end_of_turn(codec.tokenizer, called=bool(turn.results))
        sampled = codec.tokenizer(text + end, add_special_tokens=False)["input_ids"]
        turns.append(Turn(text, (len(ids), len(ids) + len(sampled)), turn.results))
        replies = _replies(codec, turn) if turn.results else []
        ids += [*sampled, *replies]
        mask += [1] * len(sampled) + [0] * len(replies)
    return Trajectory(
        task_id=conversation.task_id,
        policy="transcripts",
        sample=0,
        seed=0,
        prompt_ids=prompt_ids,
        completion_ids=tuple(ids),
        action_mask=tuple(mask),
        old_logprobs=(0.0,) * len(ids),
        turns=tuple(turns),
        stop_reason=StopReason.ANSWER,
        answer=conversation.answer,
    )


def _replies(codec: ChatCodec, turn: Turn) -> list[int]:
    return codec.observation_ids([r.observation for r in turn.results], (), [r.name for r in turn.results])


def _in_format(text: str, codec: ChatCodec) -> str:
    """A turn whose calls were read in Hermes form, with its calls as this agent writes them."""
    turn = parse_stored(text)
    calls = [format_call(call.name, call.arguments, codec.format, codec.tools) for call in turn.calls]
    return "\n".join([turn.text, *calls] if turn.text else calls)
