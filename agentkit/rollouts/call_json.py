"""A tool call from the JSON that a model wrote: strict, bounded in depth, and nothing left out.

Leaves out where a call begins and ends (call_formats).
"""

import json
import math
from typing import Any

from agentkit.records import ToolCall
from agentkit.rows import ARGUMENTS

MAX_DEPTH = 100  # of lists and objects in the arguments


def checked_call(value: Any, key: str = "arguments") -> ToolCall:
    """A call from its object, which holds a name and, under one of ARGUMENTS, all that it is called with."""
    if not isinstance(value, dict):
        raise ValueError("a tool call must be a JSON object")
    name, held = value.get("name"), [other for other in ARGUMENTS if other in value]
    if not isinstance(name, str) or not name:
        raise ValueError('"name" is missing or no string')
    key, arguments = (held[0], value[held[0]]) if held else (key, {})
    expected = {"name", *held[:1], *(("id", "type") if arguments or value.get("type") == "function" else ())}
    if not expected >= value.keys():
        others = ", ".join(f'"{other[:40]}"' for other in value if other != "name")
        raise ValueError(
            f'all arguments must stand in one object under "{key}"; beside "name" stand {others}'
        )
    if isinstance(arguments, str):
        arguments = DECODER.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f'"{key}" must be an object')
    if _deeper(arguments, MAX_DEPTH):
        raise ValueError(f"the arguments nest deeper than {MAX_DEPTH} levels")
    json.dumps([name, arguments], ensure_ascii=False).encode()  # lone surrogates raise a ValueError
    return ToolCall(name, arguments)


def _deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects nest deeper: parsers read that, but records are copied by recursion."""
    if not isinstance(value, list | dict) or not value:
        return False
    return levels == 0 or any(
        _deeper(x, levels - 1) for x in (value.values() if isinstance(value, dict) else value)
    )


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


DECODER = json.JSONDecoder(  # strict
    object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite_float
)
