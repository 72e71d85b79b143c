"""Alarms as they fire: a watch over a running training, and the alarms of a stored one.

An alarm fires when its rule begins to hold, and again only after the rule has been silent for QUIET steps.
Leaves out the rules and what they read (rules, measures).
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.diagnostics.conditions import WINDOW
from agentkit.diagnostics.measures import StepMeasures, observe
from agentkit.diagnostics.rules import RULES, Alarm, Rule, holding, lacks
from agentkit.records import Trajectory
from agentkit.runs import Run, RunError, append_jsonl, read_jsonl, write_jsonl

QUIET = 10  # steps without it before an alarm may fire again
FILE = ("train", "alarms.jsonl")


class Watch:
    """Judges a training step by step."""

    def __init__(self, own: tuple[Rule, ...] = ()) -> None:
        self._own = own  # rules of a lab
        self.history: list[StepMeasures] = []
        self.alarms: list[Alarm] = []
        self._path: Path | None = None  # of a run, to which alarms are appended as they fire
        self._held: dict[tuple[str, str], int] = {}  # the last step at which each held with this severity

    @classmethod
    def over(cls, run: Run, own: tuple[Rule, ...] = ()) -> Watch:
        """A watch that goes on from what a run has stored; alarms of steps that were cut are dropped."""
        watch = cls(own)
        try:
            for step in read_steps(run):
                watch.take(step)
        except RunError as error:  # no reason to stop a training
            warnings.warn(f"alarms look at the steps from here on only: {error}", stacklevel=2)
        watch._path = write_jsonl(run.file(*FILE), map(dataclasses.asdict, watch.alarms))
        return watch

    def add(self, row: Mapping[str, Any], trajectories: Sequence[Trajectory] = ()) -> list[Alarm]:
        """Take a step's metrics row and rollouts and return the alarms that fire at it."""
        return self.take(observe(row, trajectories))

    def take(self, step: StepMeasures) -> list[Alarm]:
        """``add`` for a step in numbers. Step 0, which is a validation only, raises no alarm.

        Several optimiser steps on one batch are one entry of the history, with the latest of each measure.
        """
        previous = self.history[-1].number if self.history else step.number  # other logs leave steps out
        if self.history and _sampled(self.history[-1]) and not _sampled(step):
            before = self.history.pop()
            step = StepMeasures(step.number, before.values | step.values, before.evidence | step.evidence)
        self.history.append(step)
        alarms = holding(self.history, self._own).values() if step.number > 0 else ()
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


def scan(steps: Iterable[StepMeasures], own: tuple[Rule, ...] = ()) -> list[Alarm]:
    """The alarms of a whole history, a lab's ``own`` rules among them, in the order they fire."""
    watch = Watch(own)
    for step in steps:
        watch.take(step)
    return watch.alarms


def read_steps(run: Run) -> list[StepMeasures]:
    """A stored training in numbers: train/metrics.jsonl and train/trajectories/, by step."""
    if not run.file("train", "metrics.jsonl").exists():
        return []
    rows = {row["step"]: row for row in run.metric_rows()}
    stored = sorted(rows.keys() & set(run.steps))
    observed = {n: observe(rows[n], rollouts) for n, rollouts in run.rollouts(stored)}
    return [observed.get(number) or observe(row) for number, row in sorted(rows.items())]


def trained_steps(run: Run) -> list[StepMeasures]:
    """``read_steps`` of a training. Raises RunError where no alarm could look at anything that is stored."""
    steps = read_steps(run)
    if not steps or steps[-1].number == 0 or len(lacks(steps)) == len(RULES):
        raise RunError(
            f"{run.file('train', 'metrics.jsonl')} holds no training step that an alarm could look at: a row "
            "needs 'step' from 1 on and numbers such as success, reward or grad_norm. Run notebook 03 for it."
        )
    return steps


def coverage(steps: Sequence[StepMeasures]) -> str:
    """How many steps were looked at, and which alarms could not look, as they lack what they need."""
    looked = f"in {sum(step.number > 0 for step in steps)} steps"
    if len(steps) < 2 * WINDOW:
        looked += f"; the rules that compare with the start need {2 * WINDOW} or more"
    if lacking := lacks(steps):
        looked += f"; {len(lacking)} of the {len(RULES)} rules could not look: {', '.join(lacking)}"
    return looked


def read_alarms(run: Run) -> list[Alarm]:
    """train/alarms.jsonl; an empty list where no alarm has fired, or nothing was trained."""
    path = run.file(*FILE)
    rows = read_jsonl(path) if path.exists() else []
    return [Alarm(**row | {"evidence": tuple(row["evidence"])}) for row in rows]
