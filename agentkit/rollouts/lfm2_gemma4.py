"""Calls of the models that frame them by tokens and write neither JSON nor tags: LFM2 and Gemma 4.

- lfm2: ``<|tool_call_start|>[name(key='text', n=3), other()]<|tool_call_end|>`` - gemma4:
``<|tool_call>call:name{key:<|"|>text<|"|>,n:3}<tool_call|>``. Both are translated token by token, in one
pass, into the JSON that they stand for, which then is read as any other call. Leaves out prose, thoughts
and how many calls a turn may have (call_formats).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentkit.records import ToolCall
from agentkit.rollouts.call_json import DECODER, checked_call

LFM2 = ("<|tool_call_start|>", "<|tool_call_end|>")
GEMMA4 = ("<|tool_call>", "<tool_call|>")
QUOTE = '<|"|>'
MOST = 5_000  # tokens of a call, of which a text is one
_WORDS = {"True": "true", "False": "false", "None": "null"}
_NUMBER = r"-?\d[\w.+-]*"
_LFM2 = re.compile(
    rf"""(?P<end>{re.escape(LFM2[1])})|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<call>[A-Za-z_][\w.-]*)\("""
    rf"""|(?P<key>[A-Za-z_]\w*)\s*=|(?P<close>\))|(?P<word>[A-Za-z]+|{_NUMBER})|(?P<rest>[][{{}},:]|\s+)""",
    re.DOTALL,
)
_GEMMA4 = re.compile(
    rf"""(?P<end>{re.escape(GEMMA4[1])})|(?P<text>{re.escape(QUOTE)}.*?{re.escape(QUOTE)})"""
    rf"""|(?P<key>[\w.-]+)\s*:|(?P<word>[A-Za-z]+|{_NUMBER})|(?P<rest>[][{{}},:]|\s+)""",
    re.DOTALL,
)
_GEMMA4_NAME = re.compile(r"\s*call:([\w.-]{1,200})\s*(?=\{)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


def lfm2_calls(text: str, start: int, types: Any) -> tuple[list[ToolCall], int]:
    """The calls of one block from just after its mark, and where it ends. Raises ValueError."""
    expected = f"expected [name(key=value, ..)]{LFM2[1]}"
    values, end = _decoded(_LFM2, text, start, expected, _unescaped)
    if not isinstance(values, list) or not values:
        raise ValueError(expected)
    return [checked_call(value) for value in values], end


def gemma4_calls(text: str, start: int, types: Any) -> tuple[list[ToolCall], int]:
    """One call from just after its mark, and where it ends. Raises ValueError."""
    expected = f"expected call:NAME{{key:value,..}}{GEMMA4[1]}"
    name = _GEMMA4_NAME.match(text, start)
    if not name:
        raise ValueError(expected)
    quoted = lambda found: found.removeprefix(QUOTE).removesuffix(QUOTE)  # noqa: E731
    arguments, end = _decoded(_GEMMA4, text, name.end(), expected, quoted)
    return [checked_call({"name": name[1], "arguments": arguments})], end


def _decoded(
    tokens: re.Pattern, text: str, start: int, expected: str, unquoted: Callable[[str], str]
) -> tuple[Any, int]:
    """What the tokens up to the end of a call stand for, and where it ends."""
    written, position = [], start
    while token := tokens.match(text, position):
        position, kind, said = token.end(), token.lastgroup, token[token.lastgroup]
        if kind == "end":
            try:
                return DECODER.decode("".join(written)), position
            except json.JSONDecodeError:
                raise ValueError(expected) from None
        if len(written) >= MOST:
            raise ValueError(f"a call has at most {MOST:,} names, values and marks")
        written.append(
            {
                "text": lambda said: json.dumps(unquoted(said)),
                "call": lambda said: f'{{"name": {json.dumps(said)}, "arguments": {{',
                "key": lambda said: f"{json.dumps(said)}:",
                "close": lambda said: "}}",
                "word": lambda said: _WORDS.get(said, said),
                "rest": lambda said: said,
            }[kind](said)
        )
    raise ValueError(expected)


def _unescaped(text: str) -> str:
    """A text in single or double quotes as Python and JSON mean it."""

    def meant(escape: re.Match) -> str:
        sign = escape[1]
        if len(sign) > 1:
            return chr(int(sign[1:], 16))
        return _ESCAPED.get(sign) or (sign if sign in "\\'\"/" else escape[0])

    return _ESCAPE.sub(meant, text[1:-1])


def lfm2_text(name: str, arguments: Mapping[str, Any], types: Any) -> str:
    """A call as LFM2's template writes it."""
    said = ", ".join(f"{key}={_lfm2_value(value)}" for key, value in arguments.items())
    return f"{LFM2[0]}[{name}({said})]{LFM2[1]}"


def _lfm2_value(value: Any) -> str:
    if isinstance(value, str):
        for sign, escape in {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r"}.items():
            value = value.replace(sign, escape)
        return f"'{value}'"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def gemma4_text(name: str, arguments: Mapping[str, Any], types: Any) -> str:
    """A call as Gemma 4's template writes it."""
    return f"{GEMMA4[0]}call:{name}{_gemma4_value(arguments)}{GEMMA4[1]}"


def _gemma4_value(value: Any) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, Mapping):
        pairs = sorted(value.items(), key=lambda pair: pair[0].lower())
        return f"{{{','.join(f'{key}:{_gemma4_value(held)}' for key, held in pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_gemma4_value, value))}]"
    return json.dumps(value)
