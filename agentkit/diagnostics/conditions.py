"""When an alarm's fault is there: conditions, pure functions of the steps so far.

A condition returns the numbers that its rule's sentence needs, ``value`` among them, or None. It compares the
last WINDOW steps with the first ones, because what is normal differs between tasks and models; where a limit
is absolute, its reason stands beside it. What is not known is NaN, which is above and below no limit. Leaves
out what is said about a fault (rules), and faults that creep in over hundreds of steps.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from agentkit.diagnostics.measures import StepMeasures

History = Sequence[StepMeasures]
Numbers = dict[str, Any]

WINDOW = 5  # steps averaged: one step's mean of a few groups is mostly which tasks were drawn
PAST = 20  # steps that show what is normal just before a spike, and whether it is still learning
Z = 3.0  # standard errors between two windows before a difference counts
GAIN = 0.08  # success that is learning, and pays for a change of habit, such as more calls
SOLVED = 0.9  # success above which there is little left to learn


# ---- windows of a history
def known(steps: History, name: str) -> np.ndarray:
    """The finite values of a measure, (up to len(steps),)."""
    values = np.array([step[name] for step in steps], dtype=float)
    return values[np.isfinite(values)]


def last(history: History, name: str, n: int = WINDOW) -> np.ndarray:
    return known(history[-n:], name)


def first(history: History, name: str) -> np.ndarray:
    """The first WINDOW known values of a measure, from the first 4 WINDOW steps."""
    return known(history[: 4 * WINDOW], name)[:WINDOW]


def mean(values: np.ndarray) -> float:
    """Their mean, NaN where there are fewer than 3."""
    return float(values.mean()) if len(values) >= 3 else math.nan


class Change(NamedTuple):
    """How the mean of a measure moved from the first window to the last."""

    then: float
    now: float
    errors: float  # the difference in standard errors


def change(history: History, name: str) -> Change | None:
    """None before there are two windows."""
    then, now = first(history, name), last(history, name)
    if len(history) < 2 * WINDOW or min(len(then), len(now)) < 3:
        return None
    error = math.sqrt(then.var(ddof=1) / len(then) + now.var(ddof=1) / len(now))
    return Change(float(then.mean()), float(now.mean()), float(now.mean() - then.mean()) / max(error, 1e-9))


def is_paid(history: History) -> bool:
    """Whether success rose over the last PAST steps, which pays for a change of habit."""
    success = change(history[-PAST - WINDOW :], "success")
    return success is not None and success.now - success.then >= GAIN


# ---- conditions that several rules share
def high(history: History, measure: str, least: float, n: int = WINDOW) -> Numbers | None:
    """The mean of a measure over the last ``n`` steps is at least ``least``."""
    values = last(history, measure, n)
    if len(values) < (n + 1) // 2 or values.mean() < least:
        return None
    return {"value": float(values.mean()), "steps": len(values)}


def risen(history: History, measure: str, least: float, by: float) -> Numbers | None:
    """A measure is at least ``least``, and ``by`` above its start or so from the start."""
    numbers, start = high(history, measure, least), first(history, measure)
    if numbers is None or len(start) < 3:
        return None
    then = float(start.mean())
    young = len(history) <= 2 * WINDOW
    return numbers | {"then": then} if young or numbers["value"] >= then + by else None


def grown(
    history: History, measure: str, least: float, by: float = 0.0, times: float = 1.0, excused: bool = True
) -> Numbers | None:
    """A habit has grown beyond noise: to ``least``, ``by`` above what it was and ``times`` that.

    Where it is ``excused``, success that rose makes it no fault.
    """
    moved = change(history, measure)
    if moved is None or (excused and is_paid(history)):
        return None
    if moved.now < max(least, moved.then + by, times * moved.then) or moved.errors < Z:
        return None
    return {"value": moved.now, "then": moved.then}


# ---- the reward
def no_spread(history: History) -> Numbers | None:
    """Nearly all groups have equal rewards, most of them since they are solved."""
    value, solved = mean(last(history, "zero_variance")), mean(last(history, "solved"))
    return {"value": value, "solved": solved} if value >= 0.95 and solved >= 0.5 else None


def dead_component(history: History) -> Numbers | None:
    """A component has had one value on every trajectory of the last two windows: 0, or not its best."""
    recent, found = history[-2 * WINDOW :], None
    if len(recent) < 2 * WINDOW:
        return None
    for name in [key.removeprefix("scored/") for key in history[-1].values if key.startswith("scored/")]:
        low, high = known(recent, f"low/{name}"), known(recent, f"high/{name}")
        if not len(low):
            return {"name": name, "value": math.nan, "what": "was scored on no trajectory"}
        value, best = float(low.min()), known(history, f"high/{name}").max()
        varies, rose = high.max() - low.min() > 1e-9, known(history, f"low/{name}").min() < value == best
        if not varies and not rose and (value < best or value <= 0):
            severity = "info" if value == best == 0 else "warning"  # a penalty that never strikes
            found = {"name": name, "value": value, "severity": severity}
            found |= {"what": f"was {value:g} on every trajectory"}
            if severity == "warning":
                return found
    return found


def audit_refuses(history: History) -> Numbers | None:
    """The auditor refuses many answers that the reward likes, and more than at the start."""
    n = 2 * WINDOW  # a step's sample is small
    share, start = mean(last(history, "audit_disagreement", n)), mean(first(history, "audit_disagreement"))
    liked = float(last(history, "audited", n).sum() * mean(last(history, "success", n)))
    noise = math.sqrt(max(share * (1 - share), 0.0) / max(liked, 1.0))  # of a share of ``liked`` answers
    # a quarter is above what guessing right by luck gives; from the start on, twice that
    rose = share >= 0.25 and share - start >= max(0.1, Z * noise)
    if len(history) >= n and (rose or min(share, start) - 2 * noise >= 0.4):
        return {"value": share, "start": start}
    return None


def wrong_is_paid(history: History) -> Numbers | None:
    """Being wrong is paid better and better: by a good part of what being right earned at the start."""
    gap, moved = first(history, "reward_gap"), change(history, "reward_wrong")
    if not len(gap) or moved is None or is_paid(history):
        return None
    rise = moved.now - moved.then
    if moved.errors < Z or rise < 0.3 * max(float(gap.mean()), 0.1):
        return None
    return {"value": rise, "then": moved.then, "now": moved.now}


# ---- behaviour
def tool_abandonment(history: History) -> Numbers | None:
    """The policy has stopped calling tools, and success did not rise for it."""
    calls, silent = change(history, "calls"), change(history, "no_tool")
    if calls is None or is_paid(history):
        return None
    halved = calls.then >= 0.2 and calls.now <= 0.5 * calls.then and calls.errors <= -Z
    mute = silent is not None and silent.now >= 0.4 and silent.now - silent.then >= 0.25
    numbers = {"value": calls.now, "then": calls.then, "silent": mean(last(history, "no_tool"))}
    return numbers if halved or mute else None


# ---- optimisation
def entropy_collapse(history: History) -> Numbers | None:
    """The entropy has fallen to a fifth of what it was, tasks are left to learn, and success did not rise.

    A policy that learns grows sure of itself where it is right: that fall is paid for.
    """
    moved, success = change(history, "entropy"), mean(last(history, "success"))
    if moved is None or moved.now > 0.2 * moved.then or success >= SOLVED or is_paid(history):
        return None
    return {"value": moved.now, "then": moved.then, "success": success}


def kl_spike(history: History) -> Numbers | None:
    """The distance to the reference is far above what it was in the steps before, or large for three steps.

    The median over trajectories where it is known: one token in thousands can make most of a mean k3, so a
    mean alone counts from its second step on.
    """
    robust = math.isfinite(history[-1]["kl_median"])
    recent = known(history[-PAST - 2 :], "kl_median" if robust else "kl")
    if len(recent) < WINDOW or not math.isfinite(history[-1]["kl"]):
        return None
    usual = float(recent[:-2].max())
    now = float(recent[-1] if robust else recent[-2:].min())
    least = 0.09 if robust else 0.15  # nats a token; medians are lower
    if now >= max(least, 3 * usual) or np.median(recent[-3:]) >= 0.5:
        return {"value": float(recent[-1]), "usual": usual}
    return None


def gradient_spike(history: History) -> Numbers | None:
    """The gradient norm is ten times the usual and three times the largest of the steps before."""
    now, past = last(history, "grad_norm", 1), known(history[-PAST - 1 : -1], "grad_norm")
    moving = past[past > 0]  # a batch of dead groups has no gradient at all
    if not len(now) or len(moving) < WINDOW:
        return None
    value, usual = float(now[0]), float(np.median(moving))
    if value < max(10 * usual, 3 * past.max()):
        return None
    return {"value": value, "times": value / max(usual, 1e-12), "steps": len(past)}


def overfitting(history: History) -> Numbers | None:
    """Validation fell from its best beyond noise, and success in training did not.

    Pairs of validations are compared: one alone is luck.
    """
    validated = [i for i, step in enumerate(history) if math.isfinite(step["val_success"])]
    if len(validated) < 4 or validated[-1] != len(history) - 1:
        return None
    pairs = list(pairwise(validated))
    values = [float(np.mean([history[i]["val_success"] for i in pair])) for pair in pairs]
    training = [mean(known(history[max(0, a - WINDOW) : b + WINDOW + 1], "success")) for a, b in pairs]
    best = values.index(max(values[:-2]))
    fell, rose = values[best] - values[-1], training[-1] - training[best]
    error = math.hypot(*(_error(history[i]) / 2 for i in (*pairs[best], *pairs[-1])))
    if not (rose >= 0 and fell >= Z * error):
        return None
    step = max((history[i] for i in pairs[best]), key=lambda step: step["val_success"])
    return {"value": values[-1], "top": values[best], "best": step.number, "training": training[-1]}


def _error(step: StepMeasures) -> float:
    """Standard error of a validation: from its 95 % interval, else as of 60 tasks."""
    width, success = step["val_ci_high"] - step["val_ci_low"], step["val_success"]
    return width / 3.92 if math.isfinite(width) else math.sqrt(max(success * (1 - success), 0.01) / 60)
