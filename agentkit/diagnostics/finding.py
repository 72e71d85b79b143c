"""What a rule finds, and the windows of a history that rules compare.

A rule compares the last WINDOW steps with the first ones or with those shortly before, because what is normal
differs between tasks and models; where a limit is absolute, its reason stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentkit.diagnostics.measures import Step

History = Sequence[Step]

WINDOW = 5  # steps averaged: one step's mean of a few groups is mostly which tasks were drawn
START = 5  # steps that show what was normal
PAST = 20  # steps that show what is normal just before a spike
Z = 3.0  # standard errors between two windows before a difference counts: one false alarm in 700 looks
GAIN = 0.08  # success that pays for a change of habit, such as more calls


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule saw at the last step."""

    value: float  # the measured figure
    severity: str  # info: nothing to mend; warning: look; critical: stop and mend
    cause: str  # what it is and what usually causes it
    advice: str  # what to change
    shows: str = ""  # the measure whose trajectories are the evidence


def last(history: History, name: str, n: int = WINDOW) -> np.ndarray:
    """The known values of a measure in the last ``n`` steps, (up to n,)."""
    return known(history[-n:], name)


def first(history: History, name: str, n: int = START) -> np.ndarray:
    """The first ``n`` known values of a measure, (up to n,), from the first 4 n steps."""
    return known(history[: 4 * n], name)[:n]


def known(steps: History, name: str) -> np.ndarray:
    """The known values of a measure, in order."""
    values = np.array([step[name] for step in steps], dtype=float)
    return values[np.isfinite(values)]


def change(
    history: History, name: str, n: int = WINDOW, base: History | None = None
) -> tuple[float, float, float] | None:
    """How the mean of a measure moved.

    Args:
        history: the steps so far.
        name: the measure.
        n: steps in either window.
        base: the steps to compare with, by default the first ones.

    Returns:
        Mean then, mean now, and their difference in standard errors; None before there are two windows of it.
    """
    then, now = first(history if base is None else base, name, n), last(history, name, n)
    if len(history) < 2 * n or len(then) < max(2, (n + 1) // 2) or len(now) < max(2, (n + 1) // 2):
        return None
    error = math.sqrt(then.var(ddof=1) / len(then) + now.var(ddof=1) / len(now))
    return float(then.mean()), float(now.mean()), float(now.mean() - then.mean()) / max(error, 1e-9)


def unpaid(history: History, name: str) -> list[tuple[float, float, float]]:
    """``change`` of a habit that success did not pay for, since the start and since shortly before."""
    found = []
    for base in (history[: 4 * START], history[-4 * WINDOW : -2 * WINDOW]):
        moved, success = change(history, name, base=base), change(history, "success", base=base)
        if moved is not None and (success is None or success[1] - success[0] < GAIN):
            found.append(moved)
    return found
