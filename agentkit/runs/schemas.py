"""The form of rows, manifests and files that others may have written, checked by pydantic.

Leaves out how fields fit together (trajectory_files), and recipes (recipe).
"""

from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic asks for it before Python 3.12
)

from annotated_types import MaxLen
from pydantic import AllowInfNan, ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from agentkit.recipe import sentence

SPLITS = ("train", "validation", "test")
SECTIONS = ("recipe", "stages", "hashes", "versions", "git")  # of a run's manifest, each a mapping
NOTE_FIELDS, NOTE_LIMIT = ("task_id", "text", "at"), 20_000  # characters of each


def _form(others: bool = True, all_needed: bool = True, **fields: Any) -> Any:
    """An object with these fields, and perhaps ``others``."""
    made = TypedDict("Row", fields, total=all_needed)
    return with_config(ConfigDict(extra="allow" if others else "forbid", strict=True))(made)


_FOUND = _form(False, False, pattern=str, path=str)  # in the reply: by a pattern, or a path in its JSON
_STEP = _form(tool=str, arguments=dict, expect=NotRequired[_FOUND | str | int | float | bool | None],
              wrong=NotRequired[list[dict] | tuple[dict, ...] | None])  # fmt: skip
_NAMES = dict.fromkeys(("entities", "required_tools", "forbidden_tools"), list[str] | tuple[str, ...])
_STAGE = _form(all_needed=False, parameters=dict, measured=dict[str, float], seconds=float, devices=float,
               controls=dict[str, dict], files=dict)  # fmt: skip
_CELL = _form(arm=str, seed=int, run=str, status=str, seconds=float, error=str)
FORMS = {
    "manifest": _form(all_needed=False, **dict.fromkeys(SECTIONS, dict) | {"stages": dict[str, _STAGE]}),
    "note": _form(**dict.fromkeys(NOTE_FIELDS, Annotated[str, MaxLen(NOTE_LIMIT)])),
    "sweep": _form(cells=list[_CELL], arms=dict[str, _form(policy=str)], file=dict, versions=dict,
                   against=str, question=str),
    "metrics": dict[str, Annotated[float, AllowInfNan(False)] | None],
    "task": _form(False, False, **dict.fromkeys(("id", "prompt", "answer", "family", "difficulty"), str),
                  split=Literal[SPLITS], verifier=str | _form(kind=str), tools=list[str] | tuple[str, ...],
                  meta=_form(all_needed=False, plan=list[_STEP] | tuple[_STEP, ...], **_NAMES)),
}  # fmt: skip


@cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)


def read_as(kind: Any, value: Any) -> Any:
    """A value as an object of a dataclass or type. Raises ValueError naming the first part that is wrong."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(sentence(error)) from None


def fault(kind: str, row: Any) -> str | None:
    """What is wrong with a value of one of FORMS, by place and value, or None."""
    try:
        _adapter(FORMS[kind]).validate_python(row, strict=True)
    except ValidationError as error:
        return sentence(error)
    return None
