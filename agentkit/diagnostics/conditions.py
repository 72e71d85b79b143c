"""When an alarm's fault is there: conditions, pure functions of the steps so far.

A condition returns the numbers that its rule's sentence needs, ``value`` among them, or None. It compares the last
WINDOW steps with the first ones or with those shortly before, because what is normal differs between tasks and
models; where a limit is absolute, its reason stands beside it. Leaves out what is said about a fault (rules).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
# reward
NOTHING_LEFT = 0.95  # share of groups without advantage, solved ones included
DEAD_STEPS = 3
DEAD_VALUES = 64  # a component that varies at all hardly gives 64 equal values in three batches
PAID_BESIDE = 0.3  # rise of what wrong trajectories earn, as a share of what being right earned at the start
DISAGREES = 0.25  # share of rewarded answers the auditor refuses: above what guessing right by luck gives
BESIDES = (
    0.3  # variance of the reward within groups that success explains, below which something else is trained
)
DOMINANT = 0.7  # and that one other component explains
# behaviour
ABANDONED = 0.5  # calls, as a share of those at the start
SILENT = 0.4  # share of trajectories without any call
CUT_OFF = 0.2  # share of trajectories that met a limit, above that at the start
SLOW = 1.0  # seconds of a call (90th percentile) that hurt
SLOWER = 4.0  # times those at the start
# optimisation
ENTROPY_LEFT = 0.2  # of the entropy at the start; a healthy fall is to a third
KL_SPIKE = 6.0  # times the largest of the steps before, in one step
KL_STEP = 2.5  # the same in two steps in a row, which noise seldom gives
KL_COSTLY = 0.1  # nats a token: a jump to it counts where success fell,
KL_LARGE = 0.18  # to this one always,
KL_FAR = 0.5  # and at this one no jump is needed
KL_HARM = 0.1  # fall in success that shows that an update went too far
GRAD_SPIKE = 8.0  # times the usual,
GRAD_NEW = 3.0  # and times the largest: batches of dead groups have small norms
MISMATCH = 0.1  # nats: bf16 engines differ by 0.01 to 0.03 on average, stale weights or caches by 1
FALLEN = 1.5  # standard errors of validation below its best, which was picked
OPENED = 3.3  # standard errors of its gap to training above that at the best
LEARNT = 0.05  # a gain in success between the first and the last third that is a sign of learning
STALLED_STEPS = 28  # steps without any sign of learning; the small agent shows one within ten


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


class Change(NamedTuple):
    """How the mean of a measure moved between two windows."""

    then: float
    now: float
    errors: float  # the difference in standard errors


def change(history: History, name: str, n: int = WINDOW, base: History | None = None) -> Change | None:
    """How a measure's mean over ``n`` steps moved since ``base``, by default the first steps; None before there
    are two windows of it.
    """
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
def high(history: History, measure: str, least: float) -> Numbers | None:
    """The mean of a measure over the last steps is at least ``least``."""
    values = last(history, measure)
    if len(values) < 3 or values.mean() < least:
        return None
    return {"value": float(values.mean()), "steps": len(values)}


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

    Its mean is now at least ``least``, ``by`` above the mean then, ``times`` that, and ``errors`` standard errors
    above it. Where it is ``excused``, success that rose with it makes it no fault.
    """
    changes = unpaid(history, measure) if excused else [change(history, measure)]
    for moved in filter(None, changes):
        if moved.now >= max(least, moved.then + by, times * moved.then) and moved.errors >= errors:
            return {"value": moved.now, "then": moved.then}
    return None


# ---- the reward
def no_spread(history: History) -> Numbers | None:
    """Nearly all groups have equal rewards, solved ones included."""
    dead, solved = last(history, "zero_variance"), last(history, "solved")
    if len(dead) < 3 or dead.mean() < NOTHING_LEFT:
        return None
    return {"value": float(dead.mean()), "solved": float(solved.mean())}


def dead_component(history: History) -> Numbers | None:
    """A component has had one value ever since training began, or has stopped varying below its best."""
    if len(history) < DEAD_STEPS or history[-1]["trajectories"] * DEAD_STEPS < DEAD_VALUES:
        return None
    for name in _names(history, "scored/"):
        scored, low, high = (last(history, f"{what}/{name}") for what in ("scored", "low", "high"))
        if scored[-DEAD_STEPS:].any() and (len(low) < DEAD_STEPS or high.max() - low.min() > 1e-9):
            continue
        if not len(low):
            return {
                "value": math.nan,
                "name": name,
                "what": "was scored on no trajectory",
                "steps": len(scored),
            }
        value = float(low.min())
        if value >= known(history, f"high/{name}").max() and known(history, f"low/{name}").min() < value:
            continue  # it varied before and is at its best now: learnt, not dead
        what, severity = f"was {value:g} on every trajectory", "info" if value > 0 else "warning"
        return {"value": value, "name": name, "what": what, "steps": len(scored), "severity": severity}
    return None


def _names(history: History, prefix: str) -> list[str]:
    return [key.removeprefix(prefix) for key in history[-1].values if key.startswith(prefix)]


def audit_refuses(history: History) -> Numbers | None:
    """The auditor refuses many answers that the reward likes, and more than at the start."""
    disagreement, before = last(history, "audit_disagreement"), first(history, "audit_disagreement")
    if len(disagreement) < 3 or len(before) < 3 or len(history) < 2 * WINDOW:
        return None
    share, start, audited = float(disagreement.mean()), float(before.mean()), last(history, "audited")
    liked = float((audited.mean() if len(audited) else 1.0) * last(history, "success").sum())
    noise = math.sqrt(share * (1 - share) / max(liked, 1.0))  # of the share of ``liked`` audited answers
    if share < DISAGREES or share - start < max(0.1, Z * noise):
        return None
    return {"value": share, "start": start}


def wrong_is_paid(history: History) -> Numbers | None:
    """Being wrong is paid better and better."""
    gap, rewards = first(history, "reward_gap"), change(history, "reward")
    if not len(gap) or rewards is None:
        return None
    for moved in unpaid(history, "reward_wrong"):
        rise = moved.now - moved.then
        if moved.errors >= Z and rise >= PAID_BESIDE * max(float(gap.mean()), 0.1):
            return {"value": rise, "then": moved.then, "now": moved.now}
    return None


def dominance(history: History) -> Numbers | None:
    """One component other than success explains the advantages."""
    success = last(history, "explains/success")
    if len(success) < 3 or success.mean() > BESIDES:
        return None
    explains = {name: last(history, f"explains/{name}") for name in _names(history, "explains/")}
    shares = {n: float(v.mean()) for n, v in explains.items() if n != "success" and len(v) >= 3}
    name = max(shares, key=shares.get, default=None)
    if name is None or shares[name] < DOMINANT:
        return None
    return {"value": shares[name], "name": name, "success": float(success.mean())}


# ---- behaviour and tools
def tool_abandonment(history: History) -> Numbers | None:
    """The policy has stopped calling tools, and success did not rise for it."""
    calls = change(history, "calls")
    fewer = [m for m in unpaid(history, "calls") if m.then >= 0.2 and m.errors <= -Z]
    gone = any(moved.now <= ABANDONED * moved.then for moved in fewer)
    mute = any(m.now >= SILENT and m.now - m.then >= 0.25 for m in unpaid(history, "no_tool"))
    if calls is None or not (gone or mute):
        return None
    return {"value": calls.now, "then": calls.then, "silent": float(last(history, "no_tool").mean())}


def truncation(history: History) -> Numbers | None:
    """Many trajectories end at a limit, and not because they always did."""
    cut, start = last(history, "truncated"), first(history, "truncated")
    if len(cut) < 3 or len(start) < 3:
        return None
    usual = float(start.mean()) if len(history) > 2 * START else 0.0
    if cut.mean() < CUT_OFF + usual:
        return None
    return {"value": float(cut.mean()), "start": float(start.mean())}


def slow_calls(history: History) -> Numbers | None:
    """Tool calls have become slow."""
    seconds, start = last(history, "call_seconds"), first(history, "call_seconds")
    if len(seconds) < 3 or len(start) < 3:
        return None
    now, then = float(np.median(seconds)), float(np.median(start))
    usual = then if len(history) > 2 * START else 0.0
    return {"value": now, "then": then} if now >= max(SLOW, SLOWER * usual) else None


def stale_cache(history: History) -> Numbers | None:
    """A cached reply differs from a fresh one to the same call."""
    stale = float(np.nansum([history[-1]["cache_conflicts"], history[-1]["cache_mismatches"]]))
    return {"value": stale} if stale > 0 else None


# ---- optimisation
def entropy_collapse(history: History) -> Numbers | None:
    """The entropy has fallen to a small part of what it was, tasks are left to learn, and success did not rise.

    A policy that learns grows sure of itself where it is right: that fall is paid for.
    """
    values = last(history, "success")
    success = float(values.mean()) if len(values) else math.nan
    fallen = [moved for moved in unpaid(history, "entropy") if moved.now <= ENTROPY_LEFT * moved.then]
    if not fallen or success >= SOLVED:
        return None
    return {"value": fallen[0].now, "then": fallen[0].then, "success": success}


def kl_spike(history: History) -> Numbers | None:
    """The distance to the reference jumped, or is large. A small jump counts only where success fell with it."""
    recent = known(history[-PAST - 2 :], "kl")
    if len(recent) < 3 or not math.isfinite(history[-1]["kl"]):
        return None
    (before, now), usual = recent[-2:], float(recent[:-2].max())
    success, earlier = last(history, "success", 3), last(history[:-3], "success", 2 * WINDOW)
    harmed = len(success) and len(earlier) and success.mean() < earlier.mean() - KL_HARM
    least = KL_COSTLY if harmed else KL_LARGE
    leapt = now >= max(least, KL_SPIKE * max(usual, before))
    climbed = now >= least and min(before, now) >= max(KL_COSTLY, KL_STEP * usual)
    jumped = len(recent) >= START and (leapt or climbed)
    if not jumped and float(np.median(recent[-3:])) < KL_FAR:
        return None
    return {"value": float(now), "usual": usual}


def not_finite(history: History) -> Numbers | None:
    """Loss, gradient norm, KL or entropy of the last step is not finite."""
    broken = history[-1]["not_finite"]
    return {"value": broken} if broken > 0 else None


def gradient_spike(history: History) -> Numbers | None:
    """The gradient norm jumped."""
    now, past = last(history, "grad_norm", 1), known(history[-PAST - 1 : -1], "grad_norm")
    if not len(now) or len(past) < START:
        return None
    usual = float(np.median(past))
    if now[0] < max(GRAD_SPIKE * usual, GRAD_NEW * past.max()):
        return None
    return {"value": float(now[0]), "times": now[0] / usual, "steps": len(past)}


def engine_mismatch(history: History) -> Numbers | None:
    """The engine that samples and the trainer disagree about the same tokens."""
    nats = last(history, "mismatch", 3)
    if len(nats) < 2 or np.median(nats) < MISMATCH:
        return None
    return {"value": float(np.median(nats))}


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
    whole = math.hypot(error, top.training_error, now.training_error)
    if not (rose >= 0 and fell >= FALLEN * error and fell + rose >= OPENED * whole):
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
    """Many steps, and no sign that anything was learnt."""
    third = len(history) // 3
    success = change([*history[:third], *history[-third:]], "success", third)
    if len(history) < STALLED_STEPS or success is None:
        return None
    if success.now >= SOLVED or success.errors >= 2.0 or success.now - success.then >= LEARNT:
        return None
    validated = known(history, "val_success")
    if len(validated) >= 2 and validated[(len(validated) + 1) // 2 :].mean() - validated[0] >= GAIN:
        return None
    gain = success.now - success.then
    return {
        "value": gain,
        "now": success.now,
        "then": success.then,
        "step": history[-1].number,
        "steps": third,
    }
