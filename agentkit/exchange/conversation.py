"""Conversations in OpenAI's form from trajectories, and back; exactly, by the record that goes with them.

Leaves out files and their formats (tables, inspect_log).
"""

import dataclasses
import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentkit.records import DataError, ParsedTurn, Score, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.rollouts.call_formats import THINK, THOUGHT, parse_stored, parse_turn
from agentkit.rollouts.call_json import ARGUMENTS
from agentkit.runs import parse_json, trajectory_from
from agentkit.trajectories import verifier_kind
from agentkit.verifiers import answer_limit, verify
from agentkit.verifiers.extraction import MAX_CODE, final_answer

RECORD = "trajectory"  # the column that holds a whole record as JSON
SYSTEM = "system prompts"
_UNKNOWN = "token ids, masks and log-probabilities (the rows hold text, which has no length in tokens)"
_END = re.compile(
    r"(?:<[|｜][^|<>\s]{1,40}[|｜]>|<(?:/s|eos|end_of_turn|turn\||\|tool_response)>)\s*$"
)  # the end token of a turn
_RESPONSE = re.compile(r"<tool_response>((?:(?!</tool_response>).)*+)</tool_response>", re.DOTALL)
_RESPONSES = re.compile(rf"\s*(?:{_RESPONSE.pattern}\s*)++", re.DOTALL)  # a user message of Qwen's
_FAILED = re.compile(r"""\{\s*['"]error['"]\s*:\s*(?:'[^']|"[^"])""")  # as TRL writes a call that raised
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "summary", "content", "text")  # where they stand
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True, slots=True)
class Imported:
    """What was read."""

    trajectories: list[Trajectory]
    tasks: list[Task]  # those given, else made from the rows, with the gold answer where they hold it
    dropped: tuple[str, ...]  # what was left out or could not be known, a phrase each


@dataclass(frozen=True, slots=True)
class Row:
    """One row of any of the formats, as far as they agree."""

    where: str  # for error messages
    messages: list[dict[str, Any]]  # prompt and completion, checked
    record: str | None = None  # the whole trajectory as JSON, where we wrote the row
    gold: str = ""
    fields: dict[str, Any] = field(default_factory=dict)  # of the trajectory; None is not known


# ---- a trajectory as messages
def prompt_of(trajectory: Trajectory, tasks: Mapping[str, Task]) -> str:
    """The text of a trajectory's task. Raises DataError where the task is not given."""
    if trajectory.task_id not in tasks:
        raise DataError(
            f"task {trajectory.task_id[:80]!r} of a trajectory is not among the tasks. Pass its suite."
        )
    return tasks[trajectory.task_id].prompt


def as_messages(trajectory: Trajectory, prompt: str, apart: bool = True) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form: user, then assistant and tool in turn; arguments as JSON text, and
    thoughts ``apart`` as vLLM has them, else as earlier versions wrote turns.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for number, turn in enumerate(trajectory.turns):
        thought, parsed = _said(turn) if apart else ("", parse_stored(_END.sub("", turn.text)))
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


def encode_record(trajectory: Trajectory) -> str:
    """The whole trajectory as ASCII JSON: exact for floats, and for text that UTF-8 lacks."""
    return json.dumps(dataclasses.asdict(trajectory), default=list)  # or RunError, where tokens were not read


def decode_record(text: str, where: str) -> Trajectory:
    """The trajectory that ``encode_record`` wrote. Raises DataError where it is damaged."""
    try:
        return trajectory_from(parse_json(text))
    except ValueError as error:
        raise DataError(
            f"{where}: the record in {RECORD!r} is damaged ({error}). "
            "Restore it, or drop it to read the messages alone."
        ) from None


# ---- rows as trajectories
def read_conversations(rows: Iterable[Row], policy: str, tasks: Iterable[Task], dropped: Counter) -> Imported:
    """Trajectories of rows; with ``tasks`` every answer is scored against them.

    Raises:
        DataError: a row is broken, its record does not fit its messages, or its task is not among ``tasks``.
    """
    given = list(tasks)
    by_id = {task.id: task for task in given}
    asked = Counter(task.prompt.strip() for task in by_id.values())
    by_prompt = {task.prompt.strip(): task for task in given if asked[task.prompt.strip()] == 1}
    trajectories: list[Trajectory] = []
    made: dict[str, Task] = {}
    for row in rows:
        trajectory, prompt = _trajectory(row, policy, dropped)
        if given:
            task = by_id.get(trajectory.task_id) or by_prompt.get(prompt.strip())
            if task is None:
                identity = trajectory.task_id[:60]
                raise DataError(
                    f"{row.where}: its task {identity!r} is not among the tasks given, or its question is "
                    "that of several. Pass its suite, or give its task_id."
                )
            failed = trajectory.stop_reason in (StopReason.ERROR, StopReason.TIME_LIMIT)  # not by the policy
            verdict = Score(None, "it failed") if failed else verify(task, trajectory)
            trajectory = replace(trajectory, task_id=task.id, success=verdict.value, why=verdict.why)
        else:
            dropped["unscored rows (no success, and no tasks given to score them)"] += (
                trajectory.success is None and row.record is None
            )
            if trajectory.success is not None and not 0.0 <= trajectory.success <= 1.0:
                raise DataError(
                    f"{row.where}: success is {trajectory.success}, which is not in [0, 1]. Name another "
                    "column or scorer, or pass tasks."
                )
            own = Task(trajectory.task_id, prompt, row.gold, family="imported")
            task = made.setdefault(trajectory.task_id, own)
        limit = answer_limit(verifier_kind(task))
        if row.record is None and final_answer(trajectory.answer or "", limit) is None:  # as of a rollout
            trajectory = replace(trajectory, answer=None)
        trajectories.append(trajectory)
    if not trajectories:
        raise DataError("there is no row to read. Name a file that holds some.")
    used = {trajectory.task_id for trajectory in trajectories}
    kept = [task for task in given if task.id in used] or list(made.values())
    phrases = tuple(f"{phrase} ({n})" if n > 1 else phrase for phrase, n in dropped.items() if n)
    return Imported(_numbered(trajectories), kept, phrases)


def _trajectory(row: Row, policy: str, dropped: Counter) -> tuple[Trajectory, str]:
    """The trajectory of one row, and its prompt; its sample is -1 where the row has none."""
    prompt, turns, answered = turns_of(row.messages, row.where, dropped)
    if row.record is not None:
        trajectory = decode_record(row.record, row.where)
        ways = (_comparable(as_messages(trajectory, prompt, apart)) for apart in (True, False))
        if _comparable(row.messages) not in ways:
            raise DataError(
                f"{row.where}: its messages are not those of its record in {RECORD!r}, so one of them was "
                "changed. Drop the record to read the messages as they are."
            )
        return trajectory, prompt
    known = {name: value for name, value in row.fields.items() if value is not None}
    dropped[_UNKNOWN] = 1
    said = parse_stored(_END.sub("", turns[-1].text)).text if answered else ""
    values = {
        "task_id": f"prompt-{hashlib.sha256(prompt.encode('utf-8', 'replace')).hexdigest()[:12]}",
        "policy": policy or "imported",
        "sample": -1,
        "stop_reason": StopReason.ANSWER if answered else StopReason.TURN_LIMIT,
        "answer": final_answer(said, MAX_CODE),  # kinds of verifiers have limits of their own
    } | known
    tokens = dict.fromkeys(("prompt_ids", "completion_ids", "action_mask", "old_logprobs"), ())
    return Trajectory(seed=0, turns=tuple(turns), **tokens, **values), prompt


def _numbered(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Samples that no row numbers (-1) numbered in order, within their policy, task and step."""
    following: dict[tuple, int] = defaultdict(int)
    numbered = []
    for trajectory in trajectories:
        key = trajectory.policy, trajectory.task_id, trajectory.step
        if trajectory.sample < 0:
            trajectory = replace(trajectory, sample=following[key])
        following[key] = max(following[key], trajectory.sample + 1)
        numbered.append(trajectory)
    return numbered


def turns_of(
    messages: Sequence[Mapping[str, Any]], where: str, dropped: Counter
) -> tuple[str, list[Turn], bool]:
    """Prompt, turns, and whether the last turn answers."""
    prompt, turns, open_calls = [], [], {}
    for message in _in_order(messages):
        role, content = message["role"], content_of(message, dropped)
        if role == "assistant":
            opened = not turns and prompt and prompt[-1].rstrip().endswith(THINK)  # as its template left it
            if opened and not content.startswith(THINK):
                content = THINK + content
            if message.get("tool_calls") and content.rfind(THINK) > content.rfind(THOUGHT):
                content += THOUGHT
            inline = "<tool_response>" in content
            dropped["where turns end in text that holds tool replies itself (each is one turn)"] += inline
            open_calls, blocks = {}, [content] if content else []
            if not inline and not message.get("tool_calls"):
                calls = parse_stored(_END.sub("", content)).calls  # of models whose calls stand in the text
                open_calls = {str(i): (call.name, call.arguments) for i, call in enumerate(calls)}
            for number, call in enumerate(message.get("tool_calls") or []):
                name, arguments = asked_of(call, where, dropped)
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
    replies = [result for result in turns[-1].results if result.name != "user"]
    return "\n\n".join(prompt), turns, not (open_calls or replies)


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
    name, arguments = str(message.get("name") or message.get("function") or ""), {}
    identity = str(message.get("tool_call_id"))
    if message["role"] == "user" and not open_calls:
        name = "user"
    elif open_calls:  # where none is left, a reply without a name is to a malformed call
        same = [key for key, (called, _) in open_calls.items() if key == identity or called == name]
        key = identity if identity in same else next(iter(same or open_calls))
        name, arguments = open_calls.pop(key)
    failed = message.get("error") or content.startswith("Error") or _FAILED.match(content)
    return ToolResult(name, arguments, content, ok=not failed)


def asked_of(call: Any, where: str, dropped: Counter) -> tuple[str, dict]:
    """Name and arguments of one entry of tool_calls, OpenAI's form or inspect_ai's flat one."""
    inner = call.get("function") if isinstance(call, dict) else None
    if isinstance(inner, str):
        inner = call | {"name": inner}
    elif not isinstance(inner, dict):
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
    if hasattr(messages, "tolist"):
        messages = _without_arrays(messages)
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


def _without_arrays(value: Any) -> Any:
    """The same value with lists where pandas has arrays for those of Parquet, within others too."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, dict):
        return {key: _without_arrays(item) for key, item in value.items()}
    return [_without_arrays(item) for item in value] if isinstance(value, list) else value


def _with_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose call stands under OpenAI's older ``function_call`` as one with ``tool_calls``."""
    older = message.get("function_call")
    is_older = isinstance(older, dict) and older.get("name") and not message.get("tool_calls")
    return message | {"tool_calls": [{"type": "function", "function": older}]} if is_older else message


def _comparable(messages: Sequence[Mapping[str, Any]]) -> list[tuple]:
    """What stores neither add nor change: role, text with its thought, calls, and whose reply it is."""
    parts = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or []:
            name, arguments = asked_of(call, "", Counter())
            kept = {key: value for key, value in arguments.items() if value is not None}
            calls.append(utf8(json.dumps([name, kept], sort_keys=True)))
        tool = message.get("name") or message.get("function") or ""
        parts.append((message["role"], utf8(content_of(message, Counter())), calls, utf8(tool)))
    return parts


def utf8(value: Any) -> Any:
    """The same JSON-like value with what UTF-8 lacks (lone surrogates) replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {utf8(key): utf8(item) for key, item in value.items()}
    return [utf8(item) for item in value] if isinstance(value, list) else value


def number(value: Any) -> float | None:
    """A number as float; None for anything else, NaN and what is beyond any float included."""
    is_number = isinstance(value, bool | int | float) and abs(value) <= sys.float_info.max
    return float(value) if is_number else None
