"""Tool calls out of a turn's text, in the four ways models write them, and how each is written.

- hermes: Hermes and Qwen, ``<tool_call>{"name": .., "arguments": {..}}</tool_call>`` - qwen3_coder:
``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`` - llama3: Llama 3.1
and later, the whole turn is ``{"name": .., "parameters": {..}}``, several separated by ";" - search_r1:
arXiv 2503.09516, ``<search>query</search>`` or ``<answer>text</answer>``

What a model wrote is hostile: every text gives calls, and one sentence for each malformed one, in time
linear in its length. Calls in ``<think>`` do not count, a thought ends at ``</think>`` or with the text,
and code fences mean nothing. Leaves out running the calls (tools) and their tokens (chat.py).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentkit.records import ParsedTurn, ToolCall

FORMATS = ("hermes", "qwen3_coder", "llama3", "search_r1")
MAX_CALLS = 16  # parsed in one turn; the rest is reported as an error
MAX_DEPTH = 100  # of lists and objects in the arguments
MAX_BRACKETS = 50_000  # that open from there to the end of the turn, in texts as well
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"
_MARK = re.compile(f"{_OPEN}|{_THINK}")
_A_THOUGHT = re.compile(f"{_THINK}.*?(?:{_THOUGHT}|\\Z)", re.DOTALL)
_LEADING_THOUGHTS = re.compile(rf"\s*(?:{_A_THOUGHT.pattern}\s*)*", re.DOTALL)
_TOO_MANY = f"more than {MAX_CALLS} tool calls in one turn; the rest was ignored"
NEITHER = (
    "neither a search nor an answer was found; write <search> query </search>, or <answer> answer </answer>"
)


def check_format(format: str) -> None:
    """Raises ValueError for a format that is none of FORMATS."""
    if format not in FORMATS:
        raise ValueError(f"unknown tool-call format {format!r}: use one of {', '.join(map(repr, FORMATS))}")


def parse_turn(text: str, format: str = "hermes", tools: Sequence[Mapping[str, Any]] = ()) -> ParsedTurn:
    """Read the tool calls out of one turn's text, the end token already removed.

    The structure decides where a call ends, so a tag inside a string does no harm. Each malformed call adds
    one sentence to ``errors``. ``arguments`` may be a string that holds a JSON object.

    Args:
        text: what the policy sampled.
        format: one of FORMATS.
        tools: the tools' JSON schemas, by which qwen3_coder's texts become numbers, lists and so on; without,
            they stay texts.

    Raises:
        ValueError: unknown format.
    """
    check_format(format)
    if format == "llama3":
        return _llama3(text)
    if format == "search_r1":
        return _search_r1(text)
    types = {t["function"]["name"]: _types(t) for t in tools} if format == "qwen3_coder" else None
    prose, calls, errors, position = [], [], [], 0
    while mark := _MARK.search(text, position):
        prose.append(text[position : mark.start()])
        if mark[0] == _THINK:
            position = _after(_THOUGHT, text, mark.end())
            continue
        if len(calls) + len(errors) >= MAX_CALLS:
            errors.append(_TOO_MANY)
            position = len(text)
            break
        try:
            call, position = _tagged(text, mark.end(), types)
            calls.append(call)
        except (ValueError, RecursionError) as error:
            errors.append(_malformed(error))
            position = _resume(text, mark.end())
    prose.append(text[position:])
    return ParsedTurn("".join(prose).strip(), tuple(calls), tuple(errors))


def format_call(name: str, arguments: dict[str, Any], format: str = "hermes") -> str:
    """A call as the models of a format write it. Search-R1 has one tool: the query of a search.

    Raises:
        ValueError: the format cannot say this call.
    """
    if format == "hermes":
        return f"{_OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{_CLOSE}"
    if format == "llama3":
        return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)
    query = arguments.get("query")
    if format == "search_r1" and name == "search" and isinstance(query, str) and len(arguments) == 1:
        return f"<search> {query} </search>"
    if format == "qwen3_coder":
        parameters = ""
        for key, value in arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            parameters += f"<parameter={key}>\n{text}\n</parameter>\n"
        return f"{_OPEN}\n<function={name}>\n{parameters}</function>\n{_CLOSE}"
    raise ValueError(
        f"the format {format!r} cannot say a call of {name!r} with {', '.join(arguments) or 'no arguments'}"
    )


def detect_format(chat_template: str | None) -> str:
    """The format of the models that a chat template was written for: hermes where nothing tells."""
    template = chat_template or ""
    if "<function=" in template:
        return "qwen3_coder"
    if _OPEN not in template and ("<|python_tag|>" in template or "ipython" in template):
        return "llama3"
    return "hermes"


def _after(end: str, text: str, start: int) -> int:
    """Behind the next end of a thought or call, or of the text."""
    close = text.find(end, start)
    return len(text) if close < 0 else close + len(end)


def _tagged(text: str, start: int, types: dict[str, dict] | None) -> tuple[ToolCall, int]:
    """One call from just after its <tool_call>, and where it ends. Raises ValueError for a malformed one."""
    begin = _SPACE.match(text, start).end()
    if types is not None:
        name, arguments, end = _function(text, begin)
        return _checked_call({"name": name, "arguments": _typed(arguments, types.get(name, {}))}), end
    value, end = _DECODER.raw_decode(text, begin)
    close = _SPACE.match(text, end).end()
    if not text.startswith(_CLOSE, close):
        more = close < len(text)
        raise ValueError(f"expected {_CLOSE} after the JSON object" if more else f"{_CLOSE} is missing")
    return _checked_call(value), close + len(_CLOSE)


def _resume(text: str, start: int) -> int:
    """Where reading goes on after a malformed call: behind its end, or at the next call."""
    again = text.find(_OPEN, start)
    end = _after(_CLOSE, text, start)
    return min(end, again) if again >= 0 else end


def _malformed(error: Exception) -> str:
    message = error.msg if isinstance(error, json.JSONDecodeError) else str(error)[:200]
    return f"malformed tool call: {message}"


# ---- qwen3_coder
_SPACE = re.compile(r"\s*")
_FUNCTION = re.compile(r"<function=([^<>\n]{1,200})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,200})>")
_NEXT = re.compile(r"\s*(?:<parameter=[^<>\n]{1,200}>|</function>|</tool_call>)")
_END = re.compile(r"</function>\s*</tool_call>")


def _function(text: str, begin: int) -> tuple[str, dict[str, str], int]:
    """Name, arguments as texts, and where the call ends.

    A value ends at the first </parameter> that another parameter or the function's end follows; no value
    holds the end of a call.
    """
    opened = _FUNCTION.match(text, begin)
    if not opened:
        raise ValueError("expected <function=NAME> after <tool_call>")
    position, arguments = opened.end(), {}
    end = _END.search(text, position)
    last = end.start() if end else len(text)
    while parameter := _PARAMETER.match(text, position):
        name = parameter[1].strip()
        close = text.find("</parameter>", parameter.end())
        while close >= 0 and not _NEXT.match(text, close + len("</parameter>")):
            close = text.find("</parameter>", close + 1)
        if not 0 <= close < last:
            raise ValueError(f"</parameter> is missing after {name[:60]!r}")
        if name in arguments:
            raise ValueError(f"the parameter {name[:60]!r} occurs twice")
        arguments[name] = text[parameter.end() : close].removeprefix("\n").removesuffix("\n")
        position = close + len("</parameter>")
    if not end or _SPACE.match(text, position).end() != last:
        raise ValueError("expected <parameter=NAME>, or </function> and </tool_call>")
    return opened[1].strip(), arguments, end.end()


def _types(tool: Mapping[str, Any]) -> dict[str, Any]:
    properties = (tool["function"].get("parameters") or {}).get("properties") or {}
    return {
        name: schema.get("type") or "string"
        for name, schema in properties.items()
        if isinstance(schema, Mapping)
    }


_WORDS = {"true": True, "false": False, "null": None, "none": None}


def _typed(arguments: dict[str, str], types: dict[str, Any]) -> dict[str, Any]:
    """Texts as what the schema says they are; one that is no such thing stays a text."""
    typed: dict[str, Any] = dict(arguments)
    for name, text in arguments.items():
        word = text.strip()
        if "string" in types.get(name, "string"):  # a name, or a list of them
            continue
        if word.lower() in _WORDS:
            typed[name] = _WORDS[word.lower()]
        else:
            with suppress(ValueError, RecursionError):
                typed[name] = _DECODER.decode(word)
    return typed


# ---- llama3
_TAG = "<|python_tag|>"
_OBJECT = re.compile(r"""\{\s*["']""")  # as a call begins; {1, 2} does not


def _llama3(text: str) -> ParsedTurn:
    """A turn that begins with an object or with <|python_tag|> is calls to its end; any other is prose."""
    start = _LEADING_THOUGHTS.match(text).end()
    tagged = text.startswith(_TAG, start)
    position = _SPACE.match(text, start + len(_TAG)).end() if tagged else start
    if not tagged and not _OBJECT.match(text, position):
        return ParsedTurn(_without_thoughts(text))
    calls: list[ToolCall] = []
    errors: list[str] = []
    while position < len(text) or not calls:
        if len(calls) >= MAX_CALLS:
            errors.append(_TOO_MANY)
            break
        try:
            value, end = _DECODER.raw_decode(text, position)
            position = _SPACE.match(text, end).end()
            if position < len(text) and text[position] not in ";{":
                raise ValueError("expected ; or the end of the turn after the JSON object")
            calls.append(_checked_call(value, "parameters"))
            if text.startswith(";", position):
                position = _SPACE.match(text, position + 1).end()
        except (ValueError, RecursionError) as error:
            errors.append(_malformed(error))
            break  # nothing tells where the next call would begin
    return ParsedTurn("", tuple(calls), tuple(errors))


def _without_thoughts(text: str) -> str:
    return _A_THOUGHT.sub("", text).strip()


# ---- search_r1
_ACTION = re.compile(r"<(search|answer)>")


def _search_r1(text: str) -> ParsedTurn:
    """The first search or answer outside thoughts; what follows it has not happened."""
    text = _without_thoughts(text)
    action = _ACTION.search(text)
    if not action:
        return ParsedTurn(text, (), (NEITHER,))
    before, tag = text[: action.start()].strip(), action[1]
    inside, close, _ = text[action.end() :].partition(f"</{tag}>")
    try:
        if not close:
            raise ValueError(f"</{tag}> is missing")
        if tag == "answer":
            return ParsedTurn(inside.strip())
        call = _checked_call({"name": "search", "arguments": {"query": inside.strip()}})
    except ValueError as error:
        return ParsedTurn(before, (), (_malformed(error),))
    return ParsedTurn(before, (call,))


# ---- JSON
def _checked_call(value: Any, key: str = "arguments") -> ToolCall:
    """A call from its object, whose arguments lie under ``key`` ("parameters": or under "arguments")."""
    if not isinstance(value, dict):
        raise ValueError("a tool call must be a JSON object")
    key = key if key in value else "arguments"
    name, arguments = value.get("name"), value.get(key, {})
    if not isinstance(name, str) or not name:
        raise ValueError('"name" is missing or no string')
    if isinstance(arguments, str):
        arguments = _DECODER.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f'"{key}" must be an object')
    if _deeper(arguments, MAX_DEPTH):
        raise ValueError(f"the arguments nest deeper than {MAX_DEPTH} levels")
    json.dumps([name, arguments], ensure_ascii=False).encode()  # lone surrogates raise a ValueError
    return ToolCall(name, arguments)


def _deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects nest deeper: parsers read that, but records are copied by recursion."""
    level = [value]  # the lists and objects there, as the JSON module makes them; empty ones hold nothing
    for _ in range(levels):
        members = [x for v in level for x in (v.values() if type(v) is dict else v)]
        level = [x for x in members if x and type(x) in (list, dict)]
    return any(level)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key occurs twice")
    return members


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


class _Decoder(json.JSONDecoder):
    """Strict, with a bounded number of lists and objects, which take far longer to make than text does."""

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        if s.count("[", idx) + s.count("{", idx) > MAX_BRACKETS:
            raise ValueError(f"more than {MAX_BRACKETS} brackets")
        return super().raw_decode(s, idx)


_DECODER = _Decoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite_float)
