"""What a reward component reads, and what moves it: found by calling it, without reading its code.

A component is somebody's function. Here it meets gold trajectories that are changed in one respect each (a
wrong answer, no answer, no tool calls, failed calls, other arguments, other texts, more turns), as records
that note which fields and keys it asks for in vain. Leaves out judging (reward_checks).
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.rewards import Component
from agentkit.verifiers import verify

SLOWER = "a second more for each turn"
OTHER = "no such thing"  # an answer that is right for no task
TOKENS = "completion_ids", "action_mask", "old_logprobs"
PARTS = "meta", "verifier"  # of a task: dictionaries with keys of anybody's
OPTIONAL = ("task.meta['forbidden_tools']", "task.meta['required_tools']")  # no fault where no task has them


@dataclass(frozen=True, slots=True)
class Probed:
    missing: tuple[str, ...]  # fields and keys it asked for that no record holds
    failures: tuple[str, ...]  # what it raised
    moved_by: tuple[str, ...]  # names of the changes that changed its value
    absent: tuple[str, ...] = ()  # optional keys it asked for that no task holds
    right: bool = True  # whether a trajectory it was tried on is right


def probe(
    component: Component, gold: Sequence[tuple[Task, Trajectory]], tasks: Iterable[Task] = ()
) -> Probed:
    """Call a component, which may raise, on gold trajectories and their variants; ``tasks`` hold what keys
    there are besides.
    """
    lookups: Lookups = {
        f"task.{part}[{key!r}]": True for t in tasks for part in PARTS for key in getattr(t, part)
    }
    failures, moved_by = {}, {}
    for task, trajectory in gold:
        values = {}
        for name, variant in variants(trajectory, task.meta.get("forbidden_tools", ())):
            noted = _noting(task, "task", lookups), _noting(variant, "trajectory", lookups)
            try:
                with warnings.catch_warnings(action="ignore"):
                    values[name] = component(*noted)
            except Exception as error:  # the component is the user's
                failures[f"{type(error).__name__}: {error}"[:160]] = None
        moved_by |= {name: None for name, value in values.items() if value != values.get("gold", value)}
    unheld = [name for name, held in lookups.items() if not held]
    return Probed(
        missing=tuple(name for name in unheld if name not in OPTIONAL),
        failures=tuple(failures),
        moved_by=tuple(moved_by),
        absent=tuple(name for name in unheld if name in OPTIONAL),
        right=any(t.success == 1.0 for _, t in gold),
    )


def variants(trajectory: Trajectory, forbidden: Sequence[str] = ()) -> Iterator[tuple[str, Trajectory]]:
    """The trajectory and changed ones, each with a name; the number of tokens changes only in the last."""
    wrong = saying(trajectory, OTHER)
    yield "gold", trajectory
    yield "a wrong answer", wrong
    yield "no answer", replace(saying(trajectory, None), stop_reason=StopReason.TURN_LIMIT)
    yield "no tool calls", silent(trajectory)
    yield "a wrong answer at once", _at_once(silent(wrong))
    failed = tuple(
        replace(t, results=tuple(replace(r, ok=False, observation="Error: it failed.") for r in t.results))
        for t in trajectory.turns
    )
    yield "failed calls", replace(trajectory, turns=failed)
    calls = (
        *(ToolResult(tool, {}, "", ok=True) for tool in ("", *forbidden)),
        ToolResult("", {}, "Error", ok=False),
    )
    yield "more calls", replace(trajectory, turns=(Turn("", (0, 0), calls), *trajectory.turns))
    yield (
        SLOWER,
        replace(trajectory, turns=tuple(replace(t, seconds=t.seconds + 1.0) for t in trajectory.turns)),
    )
    other = tuple(replace(t, results=tuple(map(_otherwise, t.results))) for t in trajectory.turns)
    yield "other arguments", replace(trajectory, turns=other)
    worded = tuple(replace(t, text=f"{OTHER} " * 50) for t in trajectory.turns)  # of other lengths
    yield "other texts", replace(trajectory, turns=worded)
    tokens = {n: getattr(trajectory, n) * 200 for n in TOKENS}
    yield "many more tokens", replace(trajectory, turns=trajectory.turns * 5, **tokens)


def saying(trajectory: Trajectory, answer: str | None) -> Trajectory:
    """The trajectory with another answer, and in its last turn's text, as rewards read either."""
    turns, said = trajectory.turns, answer or ""
    if turns:
        own = rf"(?<!\w){re.escape(trajectory.answer or chr(0))}(?!\w)"
        text, times = re.subn(own, lambda _: said, turns[-1].text)
        turns = (*turns[:-1], replace(turns[-1], text=text if times else said))
    # ``why`` may hold what the gold one gave
    return replace(trajectory, turns=turns, answer=answer, success=0.0, why="")


def righted(task: Task, trajectory: Trajectory) -> Trajectory:
    """The trajectory with the gold answer, where that is right at its end; else as it is."""
    changed = saying(trajectory, str(task.meta.get("right_answer", task.answer)))
    try:
        verdict = verify(task, changed)
    except (TypeError, ValueError):  # an option that is none, which the audit names
        return trajectory
    return replace(changed, success=1.0, why=verdict.why) if verdict.value == 1.0 else trajectory


def silent(trajectory: Trajectory) -> Trajectory:
    """The trajectory without its calls."""
    return replace(trajectory, turns=tuple(replace(turn, results=()) for turn in trajectory.turns))


def _at_once(trajectory: Trajectory) -> Trajectory:
    """Its last turn alone."""
    if not trajectory.turns:
        return trajectory
    turn = trajectory.turns[-1]
    start, end = turn.span
    tokens = {n: getattr(trajectory, n)[start:end] for n in TOKENS}
    return replace(trajectory, turns=(replace(turn, span=(0, end - start)),), **tokens)


def _otherwise(result: ToolResult) -> ToolResult:
    texts = {name for name, value in result.arguments.items() if isinstance(value, str)}
    return replace(result, arguments=result.arguments | dict.fromkeys(texts, OTHER))


# ---- records that note what they are asked for
Lookups = dict[str, bool]  # field or key -> whether some record holds it


class _NotingDict(dict):
    get, __contains__ = Mapping.get, Mapping.__contains__  # both ask __getitem__

    def __init__(self, values: Mapping, path: str, lookups: Lookups):
        super().__init__(values)
        self._path, self._lookups = path, lookups

    def __getitem__(self, key: Any) -> Any:
        name = f"{self._path}[{key!r}]"
        self._lookups[name] = self._lookups.get(name, False) or dict.__contains__(self, key)
        return super().__getitem__(key)


def _noting(record: Any, name: str, lookups: Lookups) -> Any:
    """The same record, noting which fields, and which keys of its dictionaries, it was asked for in vain."""

    class Noting(type(record)):
        __slots__ = ()

        def __getattr__(self, field: str) -> Any:
            if not field.startswith("__"):
                lookups[f"{name}.{field}"] = False
            raise AttributeError(f"{name} has no field {field!r}")

        def __reduce__(self) -> tuple:  # no other process can import this class
            return type(record), tuple(values.values())

    values = {field.name: getattr(record, field.name) for field in fields(record)}
    noted = {
        field: _NotingDict(value, f"{name}.{field}", lookups)
        for field, value in values.items()
        if isinstance(value, dict)
    }
    return Noting(**values | noted)
