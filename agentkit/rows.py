"""Rows that anybody wrote, as JSON lines, JSON or Parquet: the one reader, of tasks and of conversations.

Messages are OpenAI's or Anthropic's. Calls, tools, messages and whole lists may be JSON text, as tables store
them. A null field is missing. A null argument of a call is kept, but not in Parquet, which pads calls with
them. What cannot be read is told in one sentence. Leaves out calls and thoughts within a text
(training.conversation), and what a row is good for.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkit.records import DataError, RunError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
ARGUMENTS = ("arguments", "parameters", "args", "input")  # where a call has them; one of them holds all
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # keys of a message that hold its thought
_TOOL = "{'type': 'function', 'function': {'name': .., 'parameters': {'type': 'object', 'properties': {..}}}}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a message asks for."""

    id: str  # "" where it has none
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, whoever's form it had."""

    role: str  # one of ROLES
    content: str
    thought: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""  # of the call that a reply answers
    name: str = ""  # of the tool that replies
    failed: bool = False  # a reply that is marked as an error


# ---- files
def read_bytes(path: Path) -> bytes:
    """What a file holds. Raises RunError, which says what to do."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path} does not exist. Run the notebook or sweep that writes it first.") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        why = getattr(error, "strerror", None) or error
        raise RunError(
            f"{path} cannot be read ({why}). Restore it or run the stage that writes it."
        ) from None


def parse_json(text: str | bytes) -> Any:
    """The value of JSON that anybody may have written. Raises ValueError where it is broken or too deep."""
    try:
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: str | Path) -> Any:
    """Read one JSON file. Raises RunError naming the file when it is missing or damaged."""
    path = Path(path)
    try:
        return parse_json(read_bytes(path))
    except ValueError as error:
        raise RunError(
            f"{path} is not valid JSON ({error}). Restore it or run the stage that writes it."
        ) from None


def json_lines(path: Path) -> Iterator[tuple[int, dict | ValueError]]:
    """The object on each line that is not blank, with the line's number, or why there is none."""
    for number, line in enumerate(
        read_bytes(path).split(b"\n"), start=1
    ):  # bytes: a kill may cut a character
        if not line.strip():
            continue
        try:
            yield number, _object(parse_json(line))
        except ValueError as error:
            yield number, ValueError(f"it is not valid JSON ({error})")


def read_jsonl(path: str | Path) -> list[dict]:
    """Read JSON objects, one a line; torn ones, such as a killed writer leaves, are left out with a warning.

    Raises RunError where the file cannot be read.
    """
    rows = list(json_lines(Path(path)))
    if torn := [(number, row) for number, row in rows if not isinstance(row, dict)]:
        number, why = torn[0]
        more = f"; and {len(torn) - 1} more" if len(torn) > 1 else ""
        warnings.warn(f"{path}, line {number} is torn and was left out ({why}){more}.", stacklevel=2)
    return [row for _, row in rows if isinstance(row, dict)]


def _object(value: Any) -> dict | ValueError:
    return value if isinstance(value, dict) else ValueError(f"it is {type(value).__name__}, not an object")


def parquet_rows(path: Path, part: Callable[[Any], Any] = lambda table: table) -> list[dict]:
    """The rows of a Parquet file, or of what ``part`` takes of its table. Raises RunError where it is missing
    or damaged, checksums included.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = pa.BufferReader(read_bytes(path))
    try:
        return part(pq.read_table(source, page_checksum_verification=True)).to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())[:160]
        raise RunError(
            f"{path} is not a readable Parquet file ({why}). Restore it, or make it again."
        ) from None


def numbered_rows(path: str | Path) -> Iterator[tuple[int, dict | ValueError]]:
    """Rows of a .jsonl, .json or .parquet file, numbered from 1; a broken one as its fault.

    Raises:
        RunError: the file as a whole is missing, damaged or of another form.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        yield from json_lines(path)
        return
    if path.suffix == ".json":
        rows = read_json(path)
        rows = rows.get("data") if isinstance(rows, dict) else rows
    elif path.suffix == ".parquet":
        rows = [{name: _present(value) for name, value in row.items()} for row in parquet_rows(path)]
    else:
        raise RunError(f"{path} is no .jsonl, .json or .parquet file. Name another one.")
    if not isinstance(rows, list):
        raise RunError(f"{path} must hold a list of objects. Name another file.")
    yield from enumerate(map(_object, rows), start=1)


def _present(value: Any) -> Any:
    """Without the nulls by which a table gives each inner object all fields of the others."""
    if isinstance(value, dict):
        return {name: _present(inner) for name, inner in value.items() if inner is not None}
    return [_present(inner) for inner in value] if isinstance(value, list) else value


def read_rows(path: str | Path, make: Callable[[dict, str], Any]) -> list[Any]:
    """What ``make`` makes of every row and its place. Raises RunError, which names the place, where a row is
    broken or ``make`` raises ValueError; and where the file holds no row.
    """
    made, word = [], "line" if Path(path).suffix == ".jsonl" else "row"
    for number, row in numbered_rows(path):
        place = f"{path}, {word} {number}"
        try:
            if isinstance(row, ValueError):
                raise DataError(f"{row}. Mend it, or remove it.")
            made.append(make({key: value for key, value in row.items() if value is not None}, place))
        except ValueError as error:
            raise RunError(f"{place}: {error}") from None
        except RecursionError:
            raise RunError(f"{place}: it is nested too deeply. Mend it, or remove it.") from None
    if not made:
        raise RunError(f"{path} holds no row: give one object a row, or name another file")
    return made


# ---- rows
def decoded(value: Any) -> Any:
    """The list or object that JSON text holds; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        _encoded(held := parse_json(value))
        return held
    except ValueError:
        return value


def _encoded(value: Any) -> bytes:
    """Raises ValueError for half a character, and TypeError for what JSON has not."""
    return json.dumps(value, ensure_ascii=False).encode()


def prompt_of(prompt: Any) -> Any:
    """A task's prompt that is text, or one user message in a list, as text. Raises DataError."""
    held = decoded(prompt)
    if not _is_chat(held):
        return prompt
    messages = _messages(held)
    if (roles := [message.role for message in messages[:9]]) != ["user"]:
        raise DataError(
            f"its prompt has messages of {', '.join(roles)}: give text, or one user message; "
            "a system message belongs into the environment's system_prompt"
        )
    return messages[0].content


def messages_of(row: Mapping[str, Any]) -> list[Message]:
    """The conversation of a row: its ``messages``, or ``prompt`` and ``completion``, which may begin with the
    prompt again; behind its ``system``. Raises DataError where it cannot be read.
    """
    if row.get("messages") is None and row.get("completion") is None:
        raise DataError(
            f"it has no list of messages, but {', '.join(map(ascii, row))!s:.100}: give rows such as "
            "{'messages': [{'role': 'user', 'content': ..}, {'role': 'assistant', 'content': ..}]}"
        )
    try:
        _encoded([row.get(key) for key in ("system", "messages", "prompt", "completion", "tools")])
    except (TypeError, ValueError) as error:  # such as half a character, or a date in a table
        raise DataError(f"it holds what JSON cannot ({error!s:.100}): mend it, or leave it out") from None
    said, prompt = _chat(row, "messages", ""), _chat(row, "prompt", "user")
    if row.get("messages") is None:
        said = _chat(row, "completion", "assistant")
        said = said if said[: len(prompt)] == prompt else prompt + said
    return _chat(row, "system", "system") + said


def _chat(row: Mapping[str, Any], key: str, role: str) -> list[Message]:
    """The messages under a key; what is no list of them is one, where a ``role`` says whose."""
    held = decoded(row.get(key) or [])
    return _messages([{"role": role, "content": row[key]}] if role and held and not _is_chat(held) else held)


def _is_chat(held: Any) -> bool:
    found = [decoded(said) for said in held] if isinstance(held, list) else []
    return bool(found) and all(isinstance(said, dict) and "role" in said for said in found)


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list):
        raise DataError(f"it has no list of messages, but {value!a:.80}: give {{'messages': [..]}}")
    return [message for said in value for message in _read(decoded(said))]


def _read(said: Any) -> list[Message]:
    """A message; replies that stand among a user's parts, as Anthropic has them, as messages before it."""
    well_formed = (
        isinstance(said, dict)
        and said.get("role") in ROLES
        and isinstance(said.get("content"), str | list | None)
        and isinstance(asked := decoded(said.get("tool_calls") or []), list)
        and not said.get("function_call")
    )
    if not well_formed:
        raise DataError(
            f"the message {said!a:.80} needs a role ({', '.join(ROLES)}), content that is text or a list of "
            "parts, and its calls in a list of tool_calls"
        )
    role, content = said["role"], said.get("content") or ""
    thoughts = [text for key in _THOUGHTS if isinstance(text := said.get(key), str) and text][:1]
    texts, calls, replies = [], [_call(call) for call in asked], []
    for part in [content] if isinstance(content, str) else content:
        match role, part:
            case (_, str(text)) | (_, {"type": "text", "text": str(text)}):
                texts.append(text)
            case "assistant", {"type": "thinking", "thinking": str(text)}:
                thoughts.append(text)
            case "assistant", {"type": "tool_use"}:
                calls.append(_call(part))
            case "user", {"type": "tool_result"}:
                replies += _read(part | {"role": "tool", "tool_call_id": part.get("tool_use_id")})
            case _:
                raise DataError(
                    f"it has parts of messages that are no text ({part!a:.60}): give text, thinking, "
                    "tool_use and tool_result"
                )
    why = said.get("error") or said.get("is_error") or said.get("status") == "error"
    why = why.get("message") or True if isinstance(why, dict) else why
    text = "\n".join(filter(None, texts)) or (why if isinstance(why, str) else "")
    call_id, name = ("" if said.get(key) is None else str(said[key]) for key in ("tool_call_id", "name"))
    if replies and not text:
        return replies
    return [*replies, Message(role, text, "\n".join(thoughts), tuple(calls), call_id, name, bool(why))]


def _call(call: Any) -> Call:
    """A call in OpenAI's form, flat, or as Anthropic's part of a message."""
    call = decoded(call)
    inner = decoded(call.get("function") or call) if isinstance(call, dict) else {}
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise DataError(f"a tool call has no name ({call!a:.80}): give {{'name': .., 'arguments': {{..}}}}")
    given = next((inner[key] for key in ARGUMENTS if inner.get(key) is not None), {})
    held = {} if isinstance(given, str) and given.strip() in ("", "null") else decoded(given)
    if not isinstance(held, dict):
        raise DataError(f"the arguments of a call are no JSON object ({given!a:.80}): give {{'name': value}}")
    return Call("" if call.get("id") is None else str(call["id"]), inner["name"], held)


def tools_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The JSON schemas under a row's ``tools``, as a chat template takes them; none where it names none."""
    tools = decoded(row.get("tools") or [])
    if not isinstance(tools, list):
        raise DataError(f"its tools must be a list of JSON schemas, not {tools!a:.80}: give [{_TOOL}]")
    return [_tool(decoded(tool)) for tool in tools]


def _tool(tool: Any) -> dict[str, Any]:
    inner = tool.get("function") or tool if isinstance(tool, dict) else None
    if isinstance(inner, dict) and "input_schema" in inner:  # Anthropic's
        inner = {("parameters" if key == "input_schema" else key): value for key, value in inner.items()}
    schema = (inner.get("parameters") or {}) if isinstance(inner, dict) else None
    properties = (schema.get("properties") or {}) if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not isinstance(inner.get("name"), str):
        raise DataError(f"its tools must be a list of JSON schemas, each with a name: give {_TOOL}")
    return tool if tool.get("function") else {"type": "function", "function": inner}
