"""A conversation in OpenAI's form and a trajectory, one made from the other; the record that makes the way
back exact.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.rollouts.chat import parse_turn
from agentkit.runs import RunError, trajectory_from
from agentkit.verifiers import final_answer, verify

RECORD = "trajectory"  # the column that holds a whole record as JSON
UNSEEN = (  # what readers other than agentkit cannot see in what we write
    "token ids, action masks and log-probabilities (only in the column 'trajectory')",
    "times, cache hits and the exact text of malformed calls (only in the column 'trajectory')",
    "the system prompt and the tools' schemas (a trajectory holds them as token ids)",
)
_UNKNOWN = "token ids, masks and log-probabilities (the rows hold text: lengths in tokens read 0)"
_END = re.compile(r"(?:<\|[^|<>\s]{1,40}\|>|</s>)\s*$")  # the end token of a turn
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class ExchangeError(RunError):
    """A file or a row of it cannot be read or written. The message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What was read."""

    trajectories: list[Trajectory]
    tasks: list[
        Task
    ]  # one a task: those that were given, else made from the rows, with the gold answer where they hold it
    dropped: tuple[str, ...]  # what was left out or could not be known, a phrase each


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    rows: list[dict[str, Any]]
    dropped: tuple[str, ...]  # what readers other than agentkit cannot see, a phrase each


@dataclass(frozen=True, slots=True)
class Row:
    """One row of any of the formats, as far as they agree."""

    place: str  # for error messages
    messages: list[Any]  # prompt and completion
    record: str | None = None  # the whole trajectory as JSON, where we wrote the row
    task_id: str | None = None
    policy: str | None = None
    sample: int | None = None
    step: int | None = None
    gold: str = ""
    success: float | None = None
    why: str = ""
    stop: StopReason | None = None
    reward: float | None = None
    advantage: float | None = None
    components: dict[str, float | None] = dataclasses.field(default_factory=dict)


# ---- a trajectory as messages
# ----------------------------------------------------------------------------------------
def prompt_of(trajectory: Trajectory, tasks: Mapping[str, Task]) -> str:
    """The text of a trajectory's task. Raises ExchangeError where the task is not given."""
    if trajectory.task_id not in tasks:
        raise ExchangeError(
            f"task {trajectory.task_id[:80]!r} of a trajectory is not among the tasks. Pass the suite it is "
            "from."
        )
    return tasks[trajectory.task_id].prompt


def as_messages(trajectory: Trajectory, prompt: str) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form: user, then assistant and tool in turn; arguments of calls are JSON
    text.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for number, turn in enumerate(trajectory.turns):
        parsed = parse_turn(_END.sub("", turn.text))
        asked = [(r.name, r.arguments) for r in turn.results if r.name] or [
            (c.name, c.arguments) for c in parsed.calls
        ]
        calls = [_call(f"call_{number}_{i}", name, arguments) for i, (name, arguments) in enumerate(asked)]
        messages.append(
            {"role": "assistant", "content": parsed.text} | ({"tool_calls": calls} if calls else {})
        )
        ids = iter(call["id"] for call in calls)
        for result in turn.results:  # a malformed call has a reply and no call
            reply = {"role": "tool", "name": result.name, "content": result.observation}
            messages.append(reply | ({"tool_call_id": next(ids)} if result.name else {}))
    return messages


def _call(identity: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def encode_record(trajectory: Trajectory) -> str:
    """The whole trajectory as ASCII JSON: exact for floats, and for text that UTF-8 lacks."""
    return json.dumps(dataclasses.asdict(trajectory))


def decode_record(text: str, place: str) -> Trajectory:
    """The trajectory that ``encode_record`` wrote. Raises ExchangeError where it is damaged."""
    try:
        found = trajectory_from(json.loads(text))
        if len({len(found.completion_ids), len(found.action_mask), len(found.old_logprobs)}) > 1:
            raise ValueError("its token fields differ in length")
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExchangeError(
            f"{place}: the record in {RECORD!r} is damaged ({type(error).__name__}: {error}). "
            "Restore it, or drop it to read the messages alone."
        ) from None


# ---- rows as trajectories
# --------------------------------------------------------------------------------------------
def read_conversations(rows: Iterable[Row], policy: str, tasks: Iterable[Task], dropped: Counter) -> Imported:
    """Trajectories of rows; with ``tasks`` every answer is scored against them.

    Raises:
        ExchangeError: a row is broken, its record does not fit its messages, or its task is not among
            ``tasks``.
    """
    given = list(tasks)
    by_id, by_prompt = ({task.id: task for task in given}, {task.prompt.strip(): task for task in given})
    found: list[Trajectory] = []
    made: dict[str, Task] = {}
    for row in rows:
        trajectory, prompt = _trajectory(row, policy, dropped)
        if given:
            task = by_id.get(trajectory.task_id) or by_prompt.get(prompt.strip())
            if task is None:
                raise ExchangeError(
                    f"{row.place}: its task {trajectory.task_id[:60]!r} is not among the tasks given. Pass "
                    "its suite."
                )
            verdict = verify(task, trajectory)
            trajectory = replace(trajectory, task_id=task.id, success=verdict.value, why=verdict.why)
        else:
            made.setdefault(trajectory.task_id, Task(trajectory.task_id, prompt, row.gold, family="imported"))
        found.append(trajectory)
    if not found:
        raise ExchangeError("there is no row to read. Name a file that holds some.")
    used = {t.task_id for t in found}
    return Imported(
        numbered(found), [t for t in given if t.id in used] or list(made.values()), phrases(dropped)
    )


def _trajectory(row: Row, policy: str, dropped: Counter) -> tuple[Trajectory, str]:
    prompt, turns, answered = _turns(checked_messages(row.messages, row.place), row.place, dropped)
    if row.record is not None:
        trajectory = decode_record(row.record, row.place)
        if _plain(as_messages(trajectory, prompt)) != _plain(row.messages):
            raise ExchangeError(
                f"{row.place}: its messages are not those of its record in {RECORD!r}, so one of them was "
                "changed. "
                "Drop the record to read the messages as they are."
            )
        return trajectory, prompt
    dropped[_UNKNOWN] = 1
    dropped["unscored rows (no success, and no tasks given to score them)"] += row.success is None
    name = hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:12]
    trajectory = Trajectory(
        task_id=str(row.task_id) if row.task_id not in (None, "") else f"prompt-{name}",
        policy=row.policy or policy or "imported",
        sample=-1 if row.sample is None else row.sample,
        seed=0,
        prompt_ids=(),
        completion_ids=(),
        action_mask=(),
        old_logprobs=(),
        turns=tuple(turns),
        stop_reason=row.stop or (StopReason.ANSWER if answered else StopReason.TURN_LIMIT),
        answer=final_answer(_END.sub("", turns[-1].text)) if answered else None,
        success=row.success,
        why=row.why,
        components=row.components,
        reward=row.reward,
        advantage=row.advantage,
        step=row.step,
    )
    return trajectory, prompt


def numbered(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The same with samples that no row numbers (-1) numbered in order, within their policy, task and step."""
    seen: dict[tuple, int] = defaultdict(int)
    done = []
    for t in trajectories:
        key = t.policy, t.task_id, t.step
        done.append(replace(t, sample=seen[key]) if t.sample < 0 else t)
        seen[key] = max(seen[key], done[-1].sample) + 1
    return done


def _turns(
    messages: Sequence[Mapping[str, Any]], place: str, dropped: Counter
) -> tuple[str, list[Turn], bool]:
    """Prompt, turns, and whether the last turn answers."""
    asked, turns, open_calls = [], [], {}
    for message in messages:
        role, content = message["role"], _content(message, dropped)
        if role == "assistant":
            dropped["where turns end in text that holds tool replies itself (each is one turn)"] += (
                "<tool_response>" in content
            )
            calls = message.get("tool_calls") or []
            asked_for = [_asked(call, place) for call in calls]
            open_calls = {
                str(call.get("id") or i): a for i, (call, a) in enumerate(zip(calls, asked_for, strict=True))
            }
            blocks = [
                f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>"
                for n, a in open_calls.values()
            ]
            turns.append(Turn("\n".join([content, *blocks] if content else blocks), (0, 0)))
        elif not turns:
            dropped["system prompts"] += role != "user"
            asked += [content] if role == "user" else []
        else:
            dropped["user messages inside a trajectory (kept as observations)"] += role == "user"
            result = _reply(message, content, open_calls)
            turns[-1] = replace(turns[-1], results=(*turns[-1].results, result))
    if not turns:
        raise ExchangeError(
            f"{place} has no assistant message, so there is no trajectory in it. Remove the row."
        )
    return "\n\n".join(asked), turns, not (open_calls or turns[-1].results)


def _reply(message: Mapping[str, Any], content: str, open_calls: dict[str, tuple[str, dict]]) -> ToolResult:
    """A tool's reply, matched with its call by id, else by order; the call is then no longer open."""
    name, arguments = str(message.get("name") or message.get("function") or ""), {}
    identity = message.get("tool_call_id")
    if message["role"] == "user":
        name = "user"
    elif open_calls and (identity in open_calls or name):  # a reply without either is to a malformed call
        name, arguments = open_calls.pop(identity if identity in open_calls else next(iter(open_calls)))
    return ToolResult(name, arguments, content, ok=not (message.get("error") or content.startswith("Error")))


def _asked(call: Any, place: str) -> tuple[str, dict]:
    """Name and arguments of one entry of tool_calls, OpenAI's form or inspect_ai's flat one."""
    function = call.get("function") if isinstance(call, dict) else None
    inner = (
        function
        if isinstance(function, dict)
        else call | {"name": function}
        if isinstance(function, str)
        else call
    )
    name, arguments = (inner.get("name"), inner.get("arguments")) if isinstance(inner, dict) else (None, None)
    if not isinstance(name, str):
        raise ExchangeError(
            f"{place}: a tool call has no name ({str(call)[:80]}). Give it one, or remove the row."
        )
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {"unparsed": arguments}
    elif isinstance(arguments, dict):  # a table fills absent arguments with null
        arguments = {k: v for k, v in arguments.items() if v is not None}
    return name, arguments if isinstance(arguments, dict) else {}


def _content(message: Mapping[str, Any], dropped: Counter) -> str:
    """The text of a message; of a list of parts its texts, and thoughts in <think>."""
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return content or ""
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(str(part.get("text") or ""))
        elif kind == "reasoning":
            texts.append(f"<think>{part.get('reasoning') or ''}</think>")
        else:
            dropped["parts of messages that are no text (images, sound, data)"] += 1
    return "\n".join(texts)


def checked_messages(messages: Any, place: str) -> list[dict[str, Any]]:
    """A list of messages, checked. Raises ExchangeError naming the place and what is wrong."""
    if hasattr(messages, "tolist"):  # Parquet lists come as arrays
        messages = messages.tolist()
    if not isinstance(messages, list):
        raise ExchangeError(
            f"{place} is {type(messages).__name__}, not a list of messages. Give [{{'role', 'content'}}, "
            f"...]."
        )
    for number, message in enumerate(messages, start=1):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            raise ExchangeError(
                f"{place}, message {number} has the role {str(role)[:40]!r}. Use one of {', '.join(_ROLES)}."
            )
        if not isinstance(message.get("content"), str | list | None) or not isinstance(
            message.get("tool_calls"), list | None
        ):
            raise ExchangeError(
                f"{place}, message {number}: content must be text or a list of parts, tool_calls a list."
            )
    return messages


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[tuple]:
    """What stores neither add nor change: role, text, calls, and the name of the tool that replies."""
    return [
        (
            m["role"],
            utf8(m.get("content") or ""),
            [_plain_call(*_asked(call, "")) for call in m.get("tool_calls") or []],
            utf8(m.get("name") or m.get("function") or ""),
        )
        for m in messages
    ]


def _plain_call(name: str, arguments: dict[str, Any]) -> str:
    return utf8(json.dumps([name, {k: v for k, v in arguments.items() if v is not None}], sort_keys=True))


def utf8(value: Any) -> Any:
    """The same JSON-like value with what UTF-8 lacks (lone surrogates) replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {utf8(k): utf8(v) for k, v in value.items()}
    return [utf8(item) for item in value] if isinstance(value, list) else value


def number(value: Any) -> float | None:
    """A number as float; None for anything else, NaN and infinity included."""
    return float(value) if isinstance(value, bool | int | float) and math.isfinite(value) else None


def phrases(dropped: Counter) -> tuple[str, ...]:
    """What was dropped, each with how often."""
    return tuple(f"{what} ({n})" if n > 1 else what for what, n in dropped.items() if n)
