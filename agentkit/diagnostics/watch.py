"""Alarms as they fire: a watch over a running training, and the alarms of a stored one.

An alarm fires when its rule begins to hold, and again only after the rule has been silent for QUIET steps.
Leaves out the rules and what they read (rules, measures).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.diagnostics.measures import StepMeasures, observe
from agentkit.diagnostics.rules import Alarm, holding
from agentkit.records import Trajectory
from agentkit.runs import Run, append_jsonl, read_jsonl, read_trajectories, write_jsonl

QUIET = 10  # steps without it before an alarm may fire again
FILE = ("train", "alarms.jsonl")


class Watch:
    """Judges a training step by step.

    Args:
        path: file to which alarms are appended as they fire; None writes nothing.
    """

    def __init__(self, path: Path | None = None):
        self.history: list[StepMeasures] = []
        self.alarms: list[Alarm] = []
        self._path = path
        self._held: dict[str, int] = {}  # the last step at which each rule held

    @classmethod
    def over(cls, run: Run) -> Watch:
        """A watch that goes on from what a run has stored; alarms of steps that were cut are dropped."""
        watch = cls()
        if run.file("train", "metrics.jsonl").exists():
            for step in read_steps(run.file("train")):
                watch.take(step)
        watch._path = run.file(*FILE)
        if watch.alarms or watch._path.exists():
            write_jsonl(watch._path, map(dataclasses.asdict, watch.alarms))
        return watch

    def add(self, row: Mapping[str, Any], trajectories: Sequence[Trajectory] = ()) -> list[Alarm]:
        """Take a step's metrics row and rollouts and return the alarms that fire at it."""
        return self.take(observe(row, trajectories))

    def take(self, step: StepMeasures) -> list[Alarm]:
        """``add`` for a step in numbers. Step 0, which is a validation only, raises no alarm."""
        self.history.append(step)
        held = holding(self.history) if step.number > 0 else {}
        silent_for = {name: step.number - self._held.get(name, -QUIET - 1) for name in held}
        fired = [alarm for name, alarm in held.items() if silent_for[name] > QUIET]
        self._held |= dict.fromkeys(held, step.number)
        self.alarms += fired
        if self._path is not None:
            for alarm in fired:
                append_jsonl(self._path, dataclasses.asdict(alarm))
        return fired


def scan(steps: Iterable[StepMeasures]) -> list[Alarm]:
    """The alarms of a whole history, in the order they fire."""
    watch = Watch()
    for step in steps:
        watch.take(step)
    return watch.alarms


def read_steps(folder: Path) -> list[StepMeasures]:
    """A stored training in numbers: metrics.jsonl and trajectories/ of a run's train/."""
    rows = read_jsonl(folder / "metrics.jsonl")
    latest = {row["step"]: row for row in rows if isinstance(row.get("step"), int)}
    steps = []
    for number, row in sorted(latest.items()):
        path = folder / "trajectories" / f"step_{number:05d}.parquet"
        steps.append(observe(row, read_trajectories(path) if path.exists() else ()))
    return steps


def stored_alarms(run: Run) -> list[Alarm]:
    """The alarms of a run, judged again from what is stored."""
    return scan(read_steps(run.file("train")))


def read_alarms(run: Run) -> list[Alarm]:
    """train/alarms.jsonl; an empty list where no alarm has fired."""
    path = run.file(*FILE)
    fields = {field.name for field in dataclasses.fields(Alarm)}
    rows = read_jsonl(path) if path.exists() else []
    return [Alarm(**row | {"evidence": tuple(row["evidence"])}) for row in rows if row.keys() == fields]
