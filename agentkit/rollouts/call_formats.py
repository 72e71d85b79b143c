"""Tool calls out of a turn's text, in the ways models write them, and how each is written.

- hermes: Hermes and Qwen, ``<tool_call>{"name": .., "arguments": {..}}</tool_call>``
- qwen3_coder: ``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``
- glm: GLM-4, ``<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>``
- llama3: Llama 3.1 and later, the whole turn is ``{"name": .., "parameters": {..}}``, several parted by ";"

What a model wrote is hostile: every text gives calls, and one sentence for each malformed one, in time
linear in its length. Calls in ``<think>`` do not count, a thought ends at ``</think>`` or with the text,
and code fences mean nothing. A call whose arguments stand in several places, or beside its name, is
malformed: none runs without what it was asked with. Leaves out running the calls (tools) and their tokens
(chat.py).
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentkit.records import ParsedTurn, ToolCall
from agentkit.rollouts.call_json import DECODER, checked_call

FORMATS = ("hermes", "qwen3_coder", "llama3", "glm")
MAX_CALLS = 16  # parsed in one turn; the rest is reported as an error
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
_MARK = re.compile(f"{THINK}|{_OPEN}")
_A_THOUGHT = re.compile(f"{THINK}.*?(?:{THOUGHT}|\\Z)", re.DOTALL)
_LEADING_THOUGHTS = re.compile(rf"\s*(?:{_A_THOUGHT.pattern}\s*)*", re.DOTALL)
_TOO_MANY = f"more than {MAX_CALLS} tool calls in one turn; the rest was ignored"


def parse_turn(
    text: str, format: str = "hermes", tools: Sequence[Mapping[str, Any]] = (), thought: bool = False
) -> ParsedTurn:
    """Read the tool calls out of one turn's text, the end token already removed.

    The structure decides where a call ends, so a tag inside a string does no harm. Each malformed call adds
    one sentence to ``errors``. ``arguments`` may be a string that holds a JSON object.

    Args:
        text: what the policy sampled.
        format: one of FORMATS.
        tools: the tools' JSON schemas, by which texts of qwen3_coder and glm become numbers, lists and so on;
            without, they stay texts.
        thought: what stood before the text, as the end of the prompt, has opened a thought.

    Raises:
        ValueError: unknown format.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown tool-call format {format!r}: use one of {', '.join(map(repr, FORMATS))}")
    text = THINK * thought + text
    if format == "llama3":
        return _llama3(text, _types(tools))
    types = {} if format == "hermes" else _types(tools)
    prose, calls, errors, position = [], [], [], 0
    while mark := _MARK.search(text, position):
        prose.append(text[position : mark.start()])
        if mark[0] == THINK:
            position = _after(THOUGHT, text, mark.end())
            continue
        if len(calls) + len(errors) >= MAX_CALLS:
            errors.append(_TOO_MANY)
            position = len(text)
            break
        try:
            call, position = _READ[format](text, mark.end(), types)
            calls.append(call)
        except (ValueError, RecursionError) as error:
            errors.append(_malformed(error))
            position = _resume(text, mark.end())
    prose.append(text[position:])
    return ParsedTurn("".join(prose).strip(), tuple(calls), tuple(errors))


def prose_of(text: str, thought: bool = False) -> ParsedTurn:
    """A turn in which nothing is a call; ``thought`` as parse_turn's."""
    return ParsedTurn(_without_thoughts(THINK * thought + text))


def parse_stored(text: str) -> ParsedTurn:
    """A turn of a log without its prompt: a thought that ends there and begins nowhere began in the prompt.

    Marks in code fences and calls are no thought's.
    """
    parsed = parse_turn(text)
    before, ends, _ = parsed.text.partition(THOUGHT)
    return parse_turn(text, thought=True) if ends and before.count("```") % 2 == 0 else parsed


def with_thought(thought: str, text: str) -> str:
    """A turn that begins with a thought."""
    return f"{THINK}\n{thought}\n{THOUGHT}\n\n{text}"


def format_call(
    name: str, arguments: dict[str, Any], format: str = "hermes", tools: Sequence[Mapping[str, Any]] = ()
) -> str:
    """A call as the models of a format write it.

    Raises:
        ValueError: the format cannot say this call.
    """
    if format == "hermes":
        return f"{_OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{_CLOSE}"
    if format == "llama3":
        return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)
    if format in _WRITTEN:
        call = _WRITTEN[format](name, arguments, _types(tools).get(name, {}))
        with suppress(ValueError):
            if parse_turn(call, format, tools).calls == (
                checked_call({"name": name, "arguments": arguments}),
            ):
                return call
    raise ValueError(
        f"the format {format!r} cannot say a call of {name!r} with {', '.join(arguments) or 'no arguments'}"
    )


def detect_format(chat_template: str | None) -> str:
    """The format of the models that a chat template was written for: hermes where nothing tells."""
    for sign, format in _SIGNS.items():
        if sign in (chat_template or ""):
            return format
    return "hermes"


def _after(end: str, text: str, start: int) -> int:
    """Behind the next end of a thought or call, or of the text."""
    close = text.find(end, start)
    return len(text) if close < 0 else close + len(end)


def _hermes(text: str, start: int, types: dict[str, dict]) -> tuple[ToolCall, int]:
    """One call from just after its <tool_call>, and where it ends. Raises ValueError for a malformed one."""
    begin = _SPACE.match(text, start).end()
    value, end = DECODER.raw_decode(text, begin)
    close = _SPACE.match(text, end).end()
    if not text.startswith(_CLOSE, close):
        more = close < len(text)
        raise ValueError(f"expected {_CLOSE} after the JSON object" if more else f"{_CLOSE} is missing")
    return checked_call(value), close + len(_CLOSE)


def _resume(text: str, start: int) -> int:
    """Where reading goes on after a malformed call: behind its end, or at the next call."""
    again = text.find(_OPEN, start)
    end = _after(_CLOSE, text, start)
    return min(end, again) if again >= 0 else end


def _malformed(error: Exception) -> str:
    message = error.msg if isinstance(error, json.JSONDecodeError) else str(error)[:200]
    return f"malformed tool call: {message}"


# ---- qwen3_coder and glm: tagged parameters
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class _Tags:
    """How a call names its function and parameters.

    A value ends at the first closing tag that another parameter or the call's end follows; no value holds the
    end of a call.
    """

    function: re.Pattern
    parameter: re.Pattern  # its name and value
    end: re.Pattern  # of the call
    named: str  # what is expected first
    expected: str  # and then

    def call(self, text: str, start: int, types: dict[str, dict]) -> tuple[ToolCall, int]:
        """One call from just after its <tool_call>, and where it ends. ValueError for a malformed one."""
        opened = self.function.match(text, _SPACE.match(text, start).end())
        if not opened:
            raise ValueError(f"expected {self.named} after {_OPEN}")
        name, position, arguments = opened[1].strip(), opened.end(), {}
        kinds, end = types.get(name, {}), self.end.search(text, position)
        stop = end.end() if end else position
        while parameter := self.parameter.match(text, position, stop):
            key, value = parameter[1].strip(), parameter[2].removeprefix("\n").removesuffix("\n")
            if key in arguments:
                raise ValueError(f"the parameter {key[:60]!r} occurs twice")
            arguments[key] = _typed(value, kinds.get(key, _TEXT))
            position = parameter.end()
        if not end or _SPACE.match(text, position).end() != end.start():
            raise ValueError(f"expected {self.expected}")
        return checked_call({"name": name, "arguments": arguments}), stop


_QWEN = _Tags(
    re.compile(r"<function=([^<>\n]{1,200})>"),
    re.compile(
        r"\s*<parameter=([^<>\n]{1,200})>(.*?)</parameter>"
        r"(?=\s*(?:<parameter=[^<>\n]{1,200}>|</function>|</tool_call>))",
        re.DOTALL,
    ),
    re.compile(r"</function>\s*</tool_call>"),
    "<function=NAME>",
    "<parameter=NAME>VALUE</parameter>, or </function> and </tool_call>",
)
_GLM = _Tags(
    re.compile(r"([^<>\n]{1,200})"),
    re.compile(
        r"\s*<arg_key>([^<>\n]{1,200})</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|</tool_call>))",
        re.DOTALL,
    ),
    re.compile(r"</tool_call>"),
    "NAME",
    "<arg_key> and <arg_value>, or </tool_call>",
)


def _tagged(
    call: str, parameter: str, name: str, arguments: dict[str, Any], types: dict[str, frozenset[str]]
) -> str:
    """A call as a model's template writes it, with its parameters one after the other."""
    texts = {key: _written(value, types.get(key, _TEXT)) for key, value in arguments.items()}
    return call.format(name, "".join(parameter.format(key, text) for key, text in texts.items()))


_qwen_text = partial(
    _tagged, f"{_OPEN}\n<function={{}}>\n{{}}</function>\n{_CLOSE}", "<parameter={}>\n{}\n</parameter>\n"
)
_glm_text = partial(
    _tagged, f"{_OPEN}{{}}\n{{}}{_CLOSE}", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"
)


_TEXT = frozenset({"string"})
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def _types(tools: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, frozenset[str]]]:
    """Of each tool's parameters the JSON types that its schema allows; a text where it names none."""
    functions = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return {
        name: {key: _kinds(schema) or _TEXT for key, schema in (parameters.get("properties") or {}).items()}
        for name, parameters in functions.items()
    }


def _kinds(schema: Any) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return frozenset()
    named, *others = (_listed(schema.get(key)) for key in ("type", "anyOf", "oneOf", "allOf"))
    kinds = {name for name in named if isinstance(name, str)}
    kinds |= {_KINDS.get(type(value), "null") for value in _listed(schema.get("enum"))}
    kinds |= {"null"} if schema.get("nullable") else set()
    inner = [_kinds(one) for ones in others for one in ones]
    return frozenset(kinds).union(*inner)


def _listed(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value] * (value is not None)


def _typed(text: str, kinds: frozenset[str]) -> Any:
    """A text as what its schema allows; one that is no such thing stays a text.

    A text that would be read as something else is written, and read, as a JSON string.
    """
    if kinds == _TEXT:
        return text
    word = text.strip()
    known = word if "string" in kinds else word.lower().replace("none", "null")
    try:
        value = _WORDS[known] if known in _WORDS else DECODER.decode(word)
    except (ValueError, RecursionError):
        return text
    if "string" not in kinds:
        return value
    if isinstance(value, str):
        return text if _typed(value, kinds) == value else value
    kind = _KINDS.get(type(value), "null")
    return value if kind in kinds or (kind == "integer" and "number" in kinds) else text


def _written(value: Any, kinds: frozenset[str]) -> str:
    """A value as the text that ``_typed`` reads as this value."""
    if isinstance(value, str) and _typed(value, kinds) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


# ---- llama3
_TAG = "<|python_tag|>"
_OBJECT = re.compile(r"""\{\s*["']""")  # as a call begins; {1, 2} does not


def _llama3(text: str, tools: Mapping[str, Any]) -> ParsedTurn:
    """A turn that begins with an object or with <|python_tag|> is calls to its end; any other is prose, and
    so is an object without a name that speaks of none of the tools: an answer in JSON.
    """
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
            value, end = DECODER.raw_decode(text, position)
            unnamed = tools and not any(f'"{name}"' in text for name in tools)
            if unnamed and not (tagged or calls or isinstance(value.get("name"), str)):
                return ParsedTurn(_without_thoughts(text))
            position = _SPACE.match(text, end).end()
            if position < len(text) and text[position] not in ";{":
                raise ValueError("expected ; or the end of the turn after the JSON object")
            calls.append(checked_call(value, "parameters"))
            if text.startswith(";", position):
                position = _SPACE.match(text, position + 1).end()
        except (ValueError, RecursionError) as error:
            errors.append(_malformed(error))
            break  # nothing tells where the next call would begin
    return ParsedTurn("", tuple(calls), tuple(errors))


def _without_thoughts(text: str) -> str:
    return _A_THOUGHT.sub("", text).strip()


# how calls are read from just after their mark, and written; llama3's have none
_READ = {"hermes": _hermes, "qwen3_coder": _QWEN.call, "glm": _GLM.call}
_WRITTEN = {"qwen3_coder": _qwen_text, "glm": _glm_text}
# in the template of the models that write so; what comes first decides
_SIGNS = {"<function=": "qwen3_coder", "<arg_key>": "glm", _OPEN: "hermes", "<|python_tag|>": "llama3"}
_SIGNS |= {"ipython": "llama3"}
