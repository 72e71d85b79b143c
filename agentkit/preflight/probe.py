"""What a reward component reads, and what moves it: found by trying, without reading its documentation.

A component is somebody's function. Here it meets gold trajectories that are changed in one respect each (a
wrong answer, no answer, no tool calls, failed calls, more turns), through records that note which fields and
keys it asks for in vain; and the patterns its code holds are tried on texts they should not match. Leaves
out: judging (checks).
"""

from __future__ import annotations

import inspect
import re
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from agentkit.records import StopReason, Task, Trajectory
from agentkit.rewards import Component

UNRELATED = "The weather was fine and nobody said anything about it."
_META = re.compile(r"[\\^$.|?*+()\[\]{}]")


@dataclass(frozen=True, slots=True)
class Probed:
    """What was found about one component."""

    missing: tuple[str, ...]  # fields and keys it asked for that no record holds
    failures: tuple[str, ...]  # what it raised
    moved_by: tuple[str, ...]  # names of the changes that changed its value
    patterns: tuple[str, ...]  # patterns in its code that match even unrelated text


def probe(component: Component, gold: Sequence[tuple[Task, Trajectory]]) -> Probed:
    """Try a component on gold trajectories and their variants.

    Args:
        component: (task, trajectory) -> float | None; it may raise.
        gold: some tasks with trajectories that solve them.
    """
    missing, failures, moved, present = [], [], [], set()
    for task, trajectory in gold:
        values = {}
        for name, changed in variants(trajectory):
            asked, held = _lookups(
                component, task, changed
            )  # a branch may be taken by wrong trajectories only
            missing += asked
            present |= held
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    values[name] = component(task, changed)
            except Exception as error:  # the component is the user's
                failures.append(f"{type(error).__name__}: {error}"[:160])
        moved += [name for name, value in values.items() if value != values.get("gold", value)]
    never = tuple(dict.fromkeys(name for name in missing if name not in present))
    texts = [t.text for _, trajectory in gold for t in trajectory.turns]
    return Probed(
        never, tuple(dict.fromkeys(failures)), tuple(dict.fromkeys(moved)), tuple(careless(component, texts))
    )


def variants(trajectory: Trajectory) -> Iterator[tuple[str, Trajectory]]:
    """The trajectory and changed ones, each with a name. Tokens are kept, so that lengths change only where
    said.
    """
    quiet = tuple(replace(turn, results=()) for turn in trajectory.turns)
    failed = tuple(
        replace(t, results=tuple(replace(r, ok=False, observation="Error: it failed.") for r in t.results))
        for t in trajectory.turns
    )
    yield "gold", trajectory
    yield "a wrong answer", replace(trajectory, answer="no such thing", success=0.0)
    yield ("no answer", replace(trajectory, answer=None, success=0.0, stop_reason=StopReason.TURN_LIMIT))
    yield "no tool calls", replace(trajectory, turns=quiet)
    yield (
        "a wrong answer without tool calls",
        replace(trajectory, answer="no such thing", success=0.0, turns=quiet),
    )
    yield "failed calls", replace(trajectory, turns=failed)
    longer = {
        name: getattr(trajectory, name) * 200 for name in ("completion_ids", "action_mask", "old_logprobs")
    }
    yield "many more tokens", replace(trajectory, turns=trajectory.turns * 5, **longer)


# ---- what it asks for
# ------------------------------------------------------------------------------------------------
class _Noting(dict):
    """A dictionary that notes the keys it was asked for and lacks."""

    def __init__(self, values: Mapping, place: str, missing: list[str], present: set[str]):
        super().__init__(values)
        self._place, self._missing, self._present = place, missing, present

    def _note(self, key: Any) -> None:
        name = f"{self._place}[{key!r}]"
        if dict.__contains__(self, key):
            self._present.add(name)
        else:
            self._missing.append(name)

    def __getitem__(self, key: Any) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(key)
        return super().__contains__(key)


class _Record:
    """Stands for a record and notes the fields it was asked for and lacks."""

    def __init__(self, record: Any, place: str, missing: list[str], present: set[str]):
        own = {f.name: getattr(record, f.name) for f in fields(record)}
        wrapped = {
            n: _Noting(v, f"{place}.{n}", missing, present) if isinstance(v, dict) else v
            for n, v in own.items()
        }
        self.__dict__.update(wrapped, _probe=(place, missing))

    def __getattr__(self, name: str) -> Any:
        place, missing = self.__dict__["_probe"]
        if not name.startswith("__"):
            missing.append(f"{place}.{name}")
        raise AttributeError(f"{place} has no field {name!r}")


def _lookups(component: Component, task: Task, trajectory: Trajectory) -> tuple[list[str], set[str]]:
    """Fields and keys a component asked for in vain, and those it found."""
    missing: list[str] = []
    present: set[str] = set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            component(
                _Record(task, "task", missing, present), _Record(trajectory, "trajectory", missing, present)
            )  # type: ignore[arg-type]
    except Exception:  # it may check types; what it asked for until then counts
        return missing, present
    return missing, present


# ---- patterns
# --------------------------------------------------------------------------------------------------------
def careless(component: Component, texts: Sequence[str]) -> list[str]:
    """Patterns in a component's code that are found in every one of these texts and in an unrelated one."""
    found = []
    for pattern in dict.fromkeys(_patterns(component)):
        if texts and all(pattern.search(text) for text in [*texts[:50], UNRELATED]):
            found.append(pattern.pattern if isinstance(pattern.pattern, str) else repr(pattern.pattern))
    return found


def _patterns(function: Any, depth: int = 2) -> Iterator[re.Pattern]:
    """Compiled patterns a function can reach, and text constants it may compile: its own and those of its
    helpers.
    """
    function = inspect.unwrap(getattr(function, "func", function))
    code = getattr(function, "__code__", None)
    if code is None:
        return
    codes = list(_codes(code))
    names, constants = (
        {n for c in codes for n in c.co_names},
        [value for c in codes for value in c.co_consts],
    )
    cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    reached = [value for name, value in function.__globals__.items() if name in names]
    for value in _flat([*cells, *reached]):
        if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
            yield value
        elif isinstance(value, types.FunctionType) and depth and value.__module__ == function.__module__:
            yield from _patterns(value, depth - 1)
    if re in reached or {"search", "findall", "match", "finditer"} & names:
        for text in (
            c for c in _flat(constants) if isinstance(c, str) and _META.search(c) and c != function.__doc__
        ):
            try:
                yield re.compile(text)
            except (re.error, OverflowError, RecursionError):
                continue


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the generators and lambdas in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list | frozenset | set):
            yield from _flat(value)
        else:
            yield value
