"""What a reward component reads, and what moves it: found by calling it, without reading its code.

A component is somebody's function. Here it meets gold trajectories that are changed in one respect each (a wrong
answer, no answer, no tool calls, failed calls, more turns), as records that note which fields and keys it asks for
in vain. Leaves out judging (reward_checks).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from agentkit.records import StopReason, Task, Trajectory
from agentkit.rewards import Component


@dataclass(frozen=True, slots=True)
class Probed:
    """What was observed of one component."""

    missing: tuple[str, ...]  # fields and keys it asked for that no record holds
    failures: tuple[str, ...]  # what it raised
    moved_by: tuple[str, ...]  # names of the changes that changed its value


def probe(component: Component, gold: Sequence[tuple[Task, Trajectory]]) -> Probed:
    """Call a component on gold trajectories and their variants.

    Args:
        component: (task, trajectory) -> float | None; it may raise.
        gold: some tasks with trajectories that solve them.
    """
    lookups, failures, moved_by = _Lookups([], set()), [], []
    for task, trajectory in gold:
        values = {}
        for name, variant in variants(trajectory):
            noted = _noting(task, "task", lookups), _noting(variant, "trajectory", lookups)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    values[name] = component(*noted)
            except Exception as error:  # the component is the user's
                failures.append(f"{type(error).__name__}: {error}"[:160])
        moved_by += [name for name, value in values.items() if value != values.get("gold", value)]
    missing = [name for name in lookups.missing if name not in lookups.present]
    return Probed(_unique(missing), _unique(failures), _unique(moved_by))


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def variants(trajectory: Trajectory) -> Iterator[tuple[str, Trajectory]]:
    """The trajectory and changed ones, each with a name; the number of tokens changes only in the last."""
    silent = tuple(replace(turn, results=()) for turn in trajectory.turns)
    wrong = replace(trajectory, answer="no such thing", success=0.0)
    yield "gold", trajectory
    yield "a wrong answer", wrong
    yield "no answer", replace(wrong, answer=None, stop_reason=StopReason.TURN_LIMIT)
    yield "no tool calls", replace(trajectory, turns=silent)
    yield "a wrong answer without tool calls", replace(wrong, turns=silent)
    failed = tuple(
        replace(t, results=tuple(replace(r, ok=False, observation="Error: it failed.") for r in t.results))
        for t in trajectory.turns
    )
    yield "failed calls", replace(trajectory, turns=failed)
    tokens = {n: getattr(trajectory, n) * 200 for n in ("completion_ids", "action_mask", "old_logprobs")}
    yield "many more tokens", replace(trajectory, turns=trajectory.turns * 5, **tokens)


# ---- records that note what they are asked for
@dataclass(frozen=True, slots=True)
class _Lookups:
    missing: list[str]  # asked for in vain, at least once
    present: set[str]  # held by some record


class _NotingDict(dict):
    """A dictionary that notes the keys it was asked for."""

    def __init__(self, values: Mapping, path: str, lookups: _Lookups):
        super().__init__(values)
        self._path, self._lookups = path, lookups

    def _note(self, key: Any) -> None:
        name = f"{self._path}[{key!r}]"
        if dict.__contains__(self, key):
            self._lookups.present.add(name)
        else:
            self._lookups.missing.append(name)

    def __getitem__(self, key: Any) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(key)
        return super().__contains__(key)


def _noting(record: Any, name: str, lookups: _Lookups) -> Any:
    """A record of the same class and values that notes the fields it lacks, and the keys its dictionaries lack."""

    class Noting(type(record)):
        __slots__ = ()

        def __getattr__(self, field: str) -> Any:
            if not field.startswith("__"):
                lookups.missing.append(f"{name}.{field}")
            raise AttributeError(f"{name} has no field {field!r}")

    values = {field.name: getattr(record, field.name) for field in fields(record)}
    for field, value in values.items():
        if isinstance(value, dict):
            values[field] = _NotingDict(value, f"{name}.{field}", lookups)
    return Noting(**values)
