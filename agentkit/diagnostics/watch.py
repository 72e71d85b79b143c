"""Alarms as they fire: a watch over a running training, and the alarms of a stored one.

An alarm fires when its rule begins to hold, and again only after the rule has been silent for QUIET steps.
Leaves out the rules and what they read (rules, measures).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.diagnostics.conditions import WINDOW
from agentkit.diagnostics.measures import StepMeasures, observe
from agentkit.diagnostics.rules import LEAST, RULES, Alarm, holding, lacks
from agentkit.records import Trajectory
from agentkit.runs import Run, RunError, append_jsonl, fault, read_jsonl, write_jsonl

QUIET = 10  # steps without it before an alarm may fire again
FILE = ("train", "alarms.jsonl")
MEASURES = ("train", "measures.jsonl")  # of the steps looked at: no rollouts are then read again


class Watch:
    """Judges a training step by step.

    Args:
        path: file to which alarms are appended as they fire, with the steps in numbers beside it; None writes
            nothing.
    """

    def __init__(self, path: Path | None = None):
        self.history: list[StepMeasures] = []
        self.alarms: list[Alarm] = []
        self._path = path
        self._held: dict[tuple[str, str], int] = {}  # the last step at which each held with this severity

    @classmethod
    def over(cls, run: Run) -> Watch:
        """A watch that goes on from what a run has stored.

        Alarms of steps that were cut are dropped, those of steps whose metrics are lost are kept.
        """
        watch, steps, alarms = cls(), [], []
        try:
            alarms = read_alarms(run)
            metrics = run.file("train", "metrics.jsonl")
            steps = read_steps(run, _looked_at(run)) if metrics.exists() else []
        except RunError as error:  # no reason to stop a training
            warnings.warn(f"alarms look at the steps from here on only: {error}", stacklevel=2)
        for step in steps:
            watch.take(step)
        judged = {step.number for step in steps}
        lost = [a for a in alarms if a.step not in judged and (not steps or a.step < steps[-1].number)]
        watch.alarms = lost + watch.alarms
        watch._path = write_jsonl(run.file(*FILE), map(dataclasses.asdict, watch.alarms))
        return watch

    def add(self, row: Mapping[str, Any], trajectories: Sequence[Trajectory] = ()) -> list[Alarm]:
        """Take a step's metrics row and rollouts and return the alarms that fire at it."""
        step = observe(row, trajectories)
        if self._path is not None:
            shown = {"step": step.number, "values": step.values, "evidence": step.evidence}
            with contextlib.suppress(RunError):  # a full disk: rollouts say the same
                append_jsonl(self._path.with_name(MEASURES[-1]), shown)
        return self.take(step)

    def take(self, step: StepMeasures) -> list[Alarm]:
        """``add`` for a step in numbers. Step 0, which is a validation only, raises no alarm.

        Several optimiser steps on one batch are one entry of the history, with the latest of each measure.
        """
        previous = self.history[-1].number if self.history else step.number  # other logs leave steps out
        if self.history and _sampled(self.history[-1]) and not _sampled(step):
            before = self.history.pop()
            step = StepMeasures(step.number, before.values | step.values, before.evidence | step.evidence)
        self.history.append(step)
        alarms = holding(self.history).values() if step.number > 0 else ()
        held = {(alarm.alarm, alarm.severity): alarm for alarm in alarms}
        since = min(previous, step.number - QUIET)
        went_on = {name for name, number in self._held.items() if number >= since}
        fired = [alarm for name, alarm in held.items() if name not in went_on]
        self._held |= dict.fromkeys(held, step.number)
        self.alarms += fired
        if self._path is not None:
            for alarm in fired:
                append_jsonl(self._path, dataclasses.asdict(alarm))
        return fired


def _sampled(step: StepMeasures) -> bool:
    """Whether a batch of rollouts begins with this step: its reward or success is known."""
    return any(math.isfinite(step[name]) for name in ("reward", "success"))


def scan(steps: Iterable[StepMeasures]) -> list[Alarm]:
    """The alarms of a whole history, in the order they fire."""
    watch = Watch()
    for step in steps:
        watch.take(step)
    return watch.alarms


def read_steps(run: Run, observed: Mapping[int, StepMeasures] | None = None) -> list[StepMeasures]:
    """A stored training in numbers: train/metrics.jsonl and train/trajectories/, by step; those that were
    ``observed`` before are taken as they are.
    """
    rows, observed = {row["step"]: row for row in run.metric_rows()}, dict(observed or {})
    stored = sorted(rows.keys() & set(run.steps))
    unread = run.rollouts([number for number in stored if number not in observed], tokens=False)
    observed |= {number: observe(rows[number], rollouts) for number, rollouts in unread}
    lost = [str(number) for number in sorted(rows) if number > 0 and number not in stored]
    if stored and lost:
        folder, named = run.file("train", "trajectories"), ", ".join(lost[:5])
        warnings.warn(f"{folder} holds no rollouts of step {named} ({len(lost)} in all).", stacklevel=2)
    return [observed.get(number) or observe(row) for number, row in sorted(rows.items())]


def _looked_at(run: Run) -> dict[int, StepMeasures]:
    path, rows, steps = run.file(*MEASURES), [], {}
    with contextlib.suppress(RunError):  # rollouts say the same
        rows = read_jsonl(path) if path.exists() else []
    for row in rows:
        if not fault("measures", row) and "step" in row["values"]:
            known = {name: value for name, value in row["values"].items() if value is not None}
            evidence = {name: tuple(shown) for name, shown in row["evidence"].items()}
            steps[row["step"]] = StepMeasures(row["step"], known, evidence)
    return steps


def trained_steps(run: Run) -> list[StepMeasures]:
    """``read_steps`` of a training, which reads rollouts of those steps only that no watch has looked at.

    Raises RunError where no alarm could look at anything that is stored.
    """
    steps = read_steps(run, _looked_at(run))
    if len(steps) > 0 == steps[-1].number or len(lacks(steps)) == len(RULES):
        needed = ", ".join(
            dict.fromkeys(_needs(alarm, [need]) for alarm, n in lacks([]).items() for need in n)
        )
        number = sum(step.number > 0 for step in steps) or "no"
        raise RunError(
            f"{run.file('train', 'metrics.jsonl')} holds {number} training step{'s' * (number != 1)}, at "
            "which no alarm could look: a row needs 'step' from 1 on and, in it or in the trajectories of "
            f"its step, one of {needed}. Log one of them, or go on with notebook 03_grpo for this run."
        )
    return steps


def stored_alarms(run: Run) -> list[Alarm]:
    """The alarms of a run, judged again from what is stored. Raises RunError where none could look."""
    return scan(trained_steps(run))


def coverage(steps: Sequence[StepMeasures]) -> str:
    """How many steps were looked at, and which alarms could not look, as they lack what they need."""
    number = sum(step.number > 0 for step in steps)
    batches = sum(map(_sampled, steps)) or number
    looked = f"in {number} step{'s' * (number != 1)}"
    if batches < 2 * WINDOW:
        looked += f" on {batches} batch{'es' * (batches > 1)} of rollouts" * (batches < number)
        looked += f"; the rules that compare with the start need {2 * WINDOW} or more"
    if not (lacking := lacks(steps)):
        return looked
    listed = "; ".join(f"{alarm} needs {_needs(alarm, needs)}" for alarm, needs in lacking.items())
    return f"{looked}; {len(lacking)} of the {len(RULES)} rules could not look: {listed}"


def _needs(alarm: str, measures: Sequence[str]) -> str:
    return " or ".join(measures) + (f" in {LEAST[alarm]} steps" if alarm in LEAST else "")


def read_alarms(run: Run) -> list[Alarm]:
    """train/alarms.jsonl; an empty list where no alarm has fired, or nothing was trained."""
    path = run.file(*FILE)
    alarms = []
    for row in read_jsonl(path) if path.exists() else []:
        if problem := fault("alarm", row):
            warnings.warn(f"{path}: an alarm was left out, for {problem}.", stacklevel=2)
        else:
            alarms.append(Alarm(**row | {"evidence": tuple(row["evidence"])}))
    return alarms
