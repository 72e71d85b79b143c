"""When an alarm's fault is there: conditions, pure functions of the steps so far.

A condition returns the numbers that its rule's sentence needs, ``value`` among them, or None. It compares the
last WINDOW steps with the first ones or with those shortly before, because what is normal differs between
tasks and models; where a limit is absolute, its reason stands beside it. What is not known is NaN, which is
above and below no limit. Leaves out what is said about a fault (rules).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from agentkit.diagnostics.measures import StepMeasures

History = Sequence[StepMeasures]
Numbers = dict[str, Any]

WINDOW = 5  # steps averaged: one step's mean of a few groups is mostly which tasks were drawn
START = 5  # steps that show what was normal
PAST = 20  # steps that show what is normal just before a spike
Z = 3.0  # standard errors between two windows before a difference counts: one false alarm in 700 looks
GAIN = 0.08  # success that pays for a change of habit, such as more calls
SOLVED = 0.9  # success above which there is little left to learn


# ---- windows of a history
def known(steps: History, name: str) -> np.ndarray:
    """The known values of a measure, in order."""
    values = np.array([step[name] for step in steps], dtype=float)
    return values[np.isfinite(values)]


def last(history: History, name: str, n: int = WINDOW) -> np.ndarray:
    """The known values of a measure in the last ``n`` steps, (up to n,)."""
    return known(history[-n:], name)


def first(history: History, name: str, n: int = START) -> np.ndarray:
    """The first ``n`` known values of a measure, (up to n,), from the first 4 n steps."""
    return known(history[: 4 * n], name)[:n]


def mean(values: np.ndarray) -> float:
    """Their mean, NaN where there are fewer than 3."""
    return float(values.mean()) if len(values) >= 3 else math.nan


class Change(NamedTuple):
    """How the mean of a measure moved between two windows."""

    then: float
    now: float
    errors: float  # the difference in standard errors


def change(history: History, name: str, n: int = WINDOW, base: History | None = None) -> Change | None:
    """How a measure's mean over ``n`` steps moved since ``base`` or the start; None before two windows."""
    then, now = first(history if base is None else base, name, n), last(history, name, n)
    least = max(2, (n + 1) // 2)
    if len(history) < 2 * n or len(then) < least or len(now) < least:
        return None
    error = math.sqrt(then.var(ddof=1) / len(then) + now.var(ddof=1) / len(now))
    difference = float(now.mean() - then.mean())
    return Change(float(then.mean()), float(now.mean()), difference / max(error, 1e-9))


def unpaid(history: History, name: str) -> list[Change]:
    """``change`` of a habit that success did not pay for, since the start and since shortly before."""
    changes = []
    for base in (history[: 4 * START], history[-4 * WINDOW : -2 * WINDOW]):
        moved, success = change(history, name, base=base), change(history, "success", base=base)
        if moved is not None and (success is None or success.now - success.then < GAIN):
            changes.append(moved)
    return changes


# ---- conditions that several rules share
def high(
    history: History, measure: str, least: float, n: int = WINDOW, middle: Callable = np.mean
) -> Numbers | None:
    """The mean, or another ``middle``, of a measure over the last ``n`` steps is at least ``least``."""
    values = last(history, measure, n)
    if len(values) < (n + 1) // 2 or middle(values) < least:
        return None
    return {"value": float(middle(values)), "steps": len(values)}


def risen(
    history: History, measure: str, least: float, *, by: float = 0.0, times: float = 1.0, middle: Callable
) -> Numbers | None:
    """A measure is ``high`` and, once it has a past, ``by`` above ``times`` what it was at the start."""
    numbers, start = high(history, measure, least, middle=middle), first(history, measure)
    if numbers is None or len(start) < 3:
        return None
    then = float(middle(start))
    if len(history) > 2 * START and numbers["value"] < times * then + by:
        return None
    return numbers | {"then": then}


def grown(
    history: History,
    measure: str,
    least: float,
    *,
    by: float = 0.0,
    times: float = 1.0,
    errors: float = 0.0,
    excused: bool = True,
) -> Numbers | None:
    """A habit has grown beyond what is healthy.

    Its mean is now at least ``least``, ``by`` above the mean then, ``times`` that, and ``errors`` standard
    errors above it. Where it is ``excused``, success that rose with it makes it no fault.
    """
    changes = unpaid(history, measure) if excused else [change(history, measure)]
    for moved in filter(None, changes):
        if moved.now >= max(least, moved.then + by, times * moved.then) and moved.errors >= errors:
            return {"value": moved.now, "then": moved.then}
    return None


# ---- the reward
def no_spread(history: History) -> Numbers | None:
    """Nearly all groups have equal rewards, solved ones included."""
    value = mean(last(history, "zero_variance"))
    return {"value": value, "solved": mean(last(history, "solved"))} if value >= 0.95 else None


def dead_component(history: History) -> Numbers | None:
    """A component has had one value ever since training began, or has stopped varying below its best."""
    steps, values = 3, 64  # one that varies at all hardly gives 64 equal values in three batches
    if len(history) < steps or history[-1]["trajectories"] * steps < values:
        return None
    for name in _names(history, "scored/"):
        scored, low, high = (last(history, f"{what}/{name}") for what in ("scored", "low", "high"))
        if scored[-steps:].any() and (len(low) < steps or high.max() - low.min() > 1e-9):
            continue
        numbers = {"name": name, "steps": len(scored)}
        if not len(low):
            return numbers | {"value": math.nan, "what": "was scored on no trajectory"}
        value = float(low.min())
        learnt = known(history, f"low/{name}").min() < value >= known(history, f"high/{name}").max()
        if not learnt:  # it did not vary before to be at its best now
            severity = "info" if value > 0 else "warning"
            return numbers | {
                "value": value,
                "what": f"was {value:g} on every trajectory",
                "severity": severity,
            }
    return None


def _names(history: History, prefix: str) -> list[str]:
    return [key.removeprefix(prefix) for key in history[-1].values if key.startswith(prefix)]


def audit_refuses(history: History) -> Numbers | None:
    """The auditor refuses many answers that the reward likes, and more than at the start."""
    share, start = mean(last(history, "audit_disagreement")), mean(first(history, "audit_disagreement"))
    audited = last(history, "audited")
    liked = float((audited.mean() if len(audited) else 1.0) * last(history, "success").sum())
    noise = math.sqrt(max(share * (1 - share), 0.0) / max(liked, 1.0))  # of a share of ``liked`` answers
    # a quarter is above what guessing right by luck gives
    if len(history) >= 2 * WINDOW and share >= 0.25 and share - start >= max(0.1, Z * noise):
        return {"value": share, "start": start}
    return None


def wrong_is_paid(history: History) -> Numbers | None:
    """Being wrong is paid better and better: by a good part of what being right earned at the start."""
    gap = first(history, "reward_gap")
    if not len(gap) or change(history, "reward") is None:
        return None
    for moved in unpaid(history, "reward_wrong"):
        rise = moved.now - moved.then
        if moved.errors >= Z and rise >= 0.3 * max(float(gap.mean()), 0.1):
            return {"value": rise, "then": moved.then, "now": moved.now}
    return None


def dominance(history: History) -> Numbers | None:
    """One component other than success explains the advantages, and success hardly any of them."""
    names = [name for name in _names(history, "explains/") if name != "success"]
    shares = {name: mean(last(history, f"explains/{name}")) for name in names}
    large = {name: share for name, share in shares.items() if share >= 0.7}
    success = mean(last(history, "explains/success"))
    if not large or not success <= 0.3:
        return None
    name = max(large, key=large.get)
    return {"value": large[name], "name": name, "success": success}


# ---- behaviour and tools
def tool_abandonment(history: History) -> Numbers | None:
    """The policy has stopped calling tools, and success did not rise for it."""
    calls, silent = unpaid(history, "calls"), unpaid(history, "no_tool")
    halved = any(m.then >= 0.2 and m.now <= 0.5 * m.then and m.errors <= -Z for m in calls)
    mute = any(m.now >= 0.4 and m.now - m.then >= 0.25 for m in silent)
    moved = change(history, "calls")
    if moved is None or not (halved or mute):
        return None
    return {"value": moved.now, "then": moved.then, "silent": float(last(history, "no_tool").mean())}


def stale_cache(history: History) -> Numbers | None:
    """A cached reply differs from a fresh one to the same call."""
    stale = float(np.nansum([history[-1]["cache_conflicts"], history[-1]["cache_mismatches"]]))
    return {"value": stale} if stale > 0 else None


# ---- optimisation
def entropy_collapse(history: History) -> Numbers | None:
    """The entropy has fallen to a fifth of what it was, tasks are left to learn, and success did not rise.

    A policy that learns grows sure of itself where it is right: that fall is paid for.
    """
    success = mean(last(history, "success"))
    fallen = [moved for moved in unpaid(history, "entropy") if moved.now <= 0.2 * moved.then]
    if not fallen or success >= SOLVED:
        return None
    return {"value": fallen[0].now, "then": fallen[0].then, "success": success}


def kl_spike(history: History) -> Numbers | None:
    """The distance to the reference is large or jumped; a small jump counts where success fell with it."""
    recent = known(history[-PAST - 2 :], "kl")
    if len(recent) < 3 or not math.isfinite(history[-1]["kl"]):
        return None
    (before, now), usual = recent[-2:], float(recent[:-2].max())
    success, earlier = last(history, "success", 3), last(history[:-3], "success", 2 * WINDOW)
    harmed = len(success) and len(earlier) and success.mean() < earlier.mean() - 0.1
    least = 0.1 if harmed else 0.18  # nats a token
    leapt = now >= max(least, 6 * max(usual, before))
    climbed = now >= least and min(before, now) >= max(
        0.1, 2.5 * usual
    )  # twice in a row, as noise seldom does
    jumped = len(recent) >= START and (leapt or climbed)
    return {"value": float(now), "usual": usual} if jumped or np.median(recent[-3:]) >= 0.5 else None


def gradient_spike(history: History) -> Numbers | None:
    """The gradient norm jumped above the usual and the largest: batches of dead groups have small norms."""
    now, past = last(history, "grad_norm", 1), known(history[-PAST - 1 : -1], "grad_norm")
    if not len(now) or len(past) < START:
        return None
    value, usual = float(now[0]), float(np.median(past))
    if value < max(8 * usual, 3 * past.max()):
        return None
    return {"value": value, "times": value / max(usual, 1e-12), "steps": len(past)}


def overfitting(history: History) -> Numbers | None:
    """Validation fell from its best and training did not; either alone shows too late that the gap opened.

    Pairs of validations are compared: one alone is luck.
    """
    validated = [i for i, step in enumerate(history) if math.isfinite(step["val_success"])]
    if len(validated) < 4 or validated[-1] != len(history) - 1:
        return None
    pairs = [_validation_pair(history, a, b) for a, b in pairwise(validated)]
    top, now = max(pairs[:-2], key=lambda pair: pair.validation), pairs[-1]
    fell, rose = top.validation - now.validation, now.training - top.training
    error = math.hypot(top.error, now.error)
    gap_error = math.hypot(error, top.training_error, now.training_error)
    if not (rose >= 0 and fell >= 1.5 * error and fell + rose >= 3.3 * gap_error):
        return None
    return {"value": now.validation, "top": top.validation, "best": top.best, "training": now.training}


class _ValidationPair(NamedTuple):
    """Two validations in a row and the training around them: means with their standard errors."""

    validation: float
    error: float
    training: float
    training_error: float
    best: int  # the step of the better validation


def _validation_pair(history: History, a: int, b: int) -> _ValidationPair:
    """Of the validations at indices ``a`` and ``b``."""
    two = history[a], history[b]
    training = known(history[max(0, a - WINDOW) : b + WINDOW + 1], "success")
    enough = len(training) > 1
    return _ValidationPair(
        validation=fmean(step["val_success"] for step in two),
        error=math.hypot(*map(_validation_error, two)) / 2,
        training=float(training.mean()) if len(training) else math.nan,
        training_error=float(training.std(ddof=1)) / math.sqrt(len(training)) if enough else math.nan,
        best=max(two, key=lambda step: step["val_success"]).number,
    )


def _validation_error(step: StepMeasures) -> float:
    """Standard error of a validation, from its 95 % interval; of 60 tasks where it has none."""
    width, success = step["val_ci_high"] - step["val_ci_low"], step["val_success"]
    if math.isfinite(width):
        return width / 3.92
    return math.sqrt(max(success * (1 - success), 0.01) / 60)


def stalled_learning(history: History) -> Numbers | None:
    """28 steps, and no sign that anything was learnt; the small agent shows one within ten."""
    third = len(history) // 3
    success = change([*history[:third], *history[-third:]], "success", third)
    if len(history) < 28 or success is None:
        return None
    gain, validated = success.now - success.then, known(history, "val_success")
    if success.now >= SOLVED or success.errors >= 2.0 or gain >= 0.05:
        return None
    if len(validated) >= 2 and validated[(len(validated) + 1) // 2 :].mean() - validated[0] >= GAIN:
        return None
    return {
        "value": gain,
        "now": success.now,
        "then": success.then,
        "step": history[-1].number,
        "steps": third,
    }
