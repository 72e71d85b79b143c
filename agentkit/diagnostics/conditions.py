"""When an alarm's fault is there: conditions, pure functions of the steps so far.

A condition returns the numbers that its rule's sentence needs, ``value`` among them, or None. It compares the
last WINDOW steps with the first ones or with those shortly before, because what is normal differs between
tasks and models; where a limit is absolute, its reason stands beside it. What is not known is NaN, which is
above and below no limit. Leaves out what is said about a fault (rules).
"""

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
LAGS = (10, 40, 80, 160)  # steps back to which a habit is compared, so that a slow fault has no excuse
Z = 3.0  # standard errors between two windows before a difference counts: one false alarm in 700 looks
GAIN = 0.08  # success that is learning, and pays for a change of habit, such as more calls
MIDDLE = {"mean": np.mean, "median": np.median}
SOLVED = 0.9  # success above which there is little left to learn
ENOUGH = 2_000  # trajectories, below which hardly any standstill can be told from luck
SURE = 2.5  # standard errors of a line's slope


# ---- windows of a history
def known(steps: History, name: str) -> np.ndarray:
    values = np.array([step[name] for step in steps], dtype=float)
    return values[np.isfinite(values)]


def last(history: History, name: str, n: int = WINDOW) -> np.ndarray:
    """The known values of a measure in the last ``n`` steps, (up to n,)."""
    return known(history[-n:], name)


def first(history: History, name: str) -> np.ndarray:
    """The first START known values of a measure, (up to START,), from the first 4 START steps."""
    return known(history[: 4 * START], name)[:START]


def mean(values: np.ndarray) -> float:
    """Their mean, NaN where there are fewer than 3."""
    return float(values.mean()) if len(values) >= 3 else math.nan


class Change(NamedTuple):
    """How the mean of a measure moved between two windows."""

    then: float
    now: float
    errors: float  # the difference in standard errors


def change(history: History, name: str, base: History | None = None) -> Change | None:
    """How a measure's mean over a window moved since ``base`` or the start; None before two windows."""
    then, now = first(history if base is None else base, name), last(history, name)
    if len(history) < 2 * WINDOW or min(len(then), len(now)) < (WINDOW + 1) // 2:
        return None
    error = math.sqrt(then.var(ddof=1) / len(then) + now.var(ddof=1) / len(now))
    difference = float(now.mean() - then.mean())
    if abs(difference) > 2 * error:  # else it does not count in any case
        error = max(error, drift(history, name, WINDOW))
    return Change(float(then.mean()), float(now.mean()), difference / max(error, 1e-9))


def drift(history: History, name: str, n: int) -> float:
    """What two means over n steps usually differ by, from one block of the history to the next, as a spread.

    Noise that hangs together over steps is larger than the spread within a window says; 0 before 6 blocks.
    """
    values = known(history[-PAST * n :], name)
    blocks = values[len(values) % n :].reshape(-1, n).mean(axis=1)
    return 1.48 * float(np.median(np.abs(np.diff(blocks)))) if len(blocks) >= 6 else 0.0


def looks(history: History) -> float:
    """Standard errors before a difference counts: more where a longer run has been looked at more often."""
    return math.sqrt(Z**2 + 2 * math.log(max(len(history) / 45, 1.0)))


def wide(history: History, n: int) -> int:
    """So many steps of a small batch say as much as n of one of 64 trajectories; at most 4 n."""
    batch = history[-1]["trajectories"] if history else math.nan
    return n if n == 1 or not batch < 64 else min(math.ceil(n * 64 / max(batch, 1)), 4 * n)


def unpaid(history: History, name: str) -> list[Change]:
    """``change`` of a habit that success did not pay for, since the start and since other times before.

    Success that rose once, long ago, pays for nothing that comes after it.
    """
    changes, bases = [], [history[: 4 * START]]
    bases += [history[-lag - 2 * WINDOW : -lag] for lag in LAGS if len(history) >= lag + 4 * START]
    for base in bases:
        moved = change(history, name, base=base)
        if moved is None or abs(moved.errors) <= 1:
            continue
        success = change(history, "success", base=base)
        if success is None or success.now - success.then < GAIN:
            changes.append(moved)
    return changes


# ---- conditions that several rules share
def high(
    history: History, measure: str, least: float, n: int = WINDOW, middle: str = "mean"
) -> Numbers | None:
    """The mean, or another ``middle``, of a measure over the last ``n`` steps is at least ``least``."""
    n = wide(history, n)
    values = last(history, measure, n)
    value = MIDDLE[middle](values) if len(values) >= (n + 1) // 2 else -math.inf
    return {"value": float(value), "steps": len(values)} if value >= least else None


def risen(
    history: History,
    measure: str,
    least: float,
    *,
    by: float = 0.0,
    times: float = 1.0,
    middle: str,
    early: bool = False,
) -> Numbers | None:
    """A measure is ``high`` and ``by`` above ``times`` its start; ``early``: or was so there."""
    numbers, start = high(history, measure, least, middle=middle), first(history, measure)
    if numbers is None or len(start) < 3:
        return None
    then = float(MIDDLE[middle](start))
    young = len(history) <= 2 * START
    if not (early and young) and (young or numbers["value"] < times * then + by):
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
    """Nearly all groups have equal rewards, most of them since they are solved."""
    value, solved = mean(last(history, "zero_variance", wide(history, WINDOW))), mean(last(history, "solved"))
    return {"value": value, "solved": solved} if value >= 0.95 and solved >= 0.5 else None


def wasted(history: History) -> Numbers | None:
    """Two thirds of the groups have equal rewards, solved ones or not, and the reward did not rise."""
    if math.isfinite(history[-1]["stuck"]):
        return None
    moved, numbers = change(history, "reward"), high(history, "zero_variance", 0.65)
    return None if moved is None or moved.errors >= looks(history) else numbers


def dead_component(history: History) -> Numbers | None:
    """A component has had one value ever since training began, or has stopped varying below its best."""
    batch = history[-1]["trajectories"] if history else math.nan
    # one that varies at all hardly gives 64 equal values
    steps = max(3, math.ceil(64 / batch)) if batch > 0 else 2 * WINDOW
    if len(history) < steps:
        return None
    found = []
    for name in _names(history, "scored/"):
        scored, low, high = (last(history, f"{what}/{name}", steps) for what in ("scored", "low", "high"))
        if scored[-steps:].any() and (len(low) < steps or high.max() - low.min() > 1e-9):
            continue
        numbers = {"name": name, "steps": len(scored)}
        if not len(low):
            return numbers | {"value": math.nan, "what": "was scored on no trajectory"}
        value, lowest = float(low.min()), known(history, f"low/{name}").min()
        highest = known(history, f"high/{name}").max()
        if not lowest < value >= highest:  # it did not vary before to be at its best now
            # always full, or 0 ever since: a penalty that never strikes, or a bonus that nothing earns
            severity = "info" if value > 0 or value == lowest == highest == 0 else "warning"
            what = f"was {value:g} on every trajectory"
            found.append(numbers | {"value": value, "what": what, "severity": severity})
    return min(found, key=lambda numbers: numbers["severity"] == "info", default=None)


def _names(history: History, prefix: str) -> list[str]:
    return [key.removeprefix(prefix) for key in history[-1].values if key.startswith(prefix)]


def audit_refuses(history: History) -> Numbers | None:
    """The auditor refuses many answers that the reward likes, and more than at the start."""
    n = 2 * WINDOW  # a step's sample is small
    share, start = mean(last(history, "audit_disagreement", n)), mean(first(history, "audit_disagreement"))
    audited = last(history, "audited", n)
    liked = float((audited.mean() if len(audited) else 1.0) * last(history, "success", n).sum())
    noise = math.sqrt(max(share * (1 - share), 0.0) / max(liked, 1.0))  # of a share of ``liked`` answers
    # a quarter is above what guessing right by luck gives; from the start on, twice that
    rose = share >= 0.25 and share - start >= max(0.1, looks(history) * noise)
    if len(history) >= n and (rose or min(share, start) - 2 * noise >= 0.4):
        return {"value": share, "start": start}
    return None


def wrong_is_paid(history: History) -> Numbers | None:
    """Being wrong is paid better and better: by a good part of what being right earned at the start."""
    gap = first(history, "reward_gap")
    if not len(gap) or change(history, "reward") is None:
        return None
    for moved in unpaid(history, "reward_wrong"):
        rise = moved.now - moved.then
        if moved.errors >= looks(history) and rise >= 0.3 * max(float(gap.mean()), 0.1):
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
    halved = any(m.then >= 0.2 and m.now <= 0.5 * m.then and m.errors <= -looks(history) for m in calls)
    mute = any(m.now >= 0.4 and m.now - m.then >= 0.25 for m in silent)
    moved = change(history, "calls")
    if moved is None or not (halved or mute):
        return None
    return {"value": moved.now, "then": moved.then, "silent": mean(last(history, "no_tool"))}


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
    """The distance to the reference is large or jumped; a small jump counts where success fell with it.

    The median over trajectories where it is known: one token in thousands can make most of a mean k3, so a
    mean alone counts from its second step on.
    """
    robust = math.isfinite(history[-1]["kl_median"])
    recent = known(history[-PAST - 2 :], "kl_median" if robust else "kl")
    if len(recent) < 3 or not math.isfinite(history[-1]["kl"]):
        return None
    (before, now), usual = recent[-2:], float(recent[:-2].max())
    success, earlier = last(history, "success", 3), last(history[:-3], "success", 2 * WINDOW)
    harmed = len(success) and len(earlier) and success.mean() < earlier.mean() - 0.1
    least = (0.1 if harmed else 0.18) * (0.5 if robust else 1.0)  # nats a token; medians are lower
    leapt = robust and now >= max(least, 6 * max(usual, before))
    climbed = now >= least and min(before, now) >= max(least / 2, 2.5 * usual)  # as noise seldom does twice
    jumped = len(recent) >= START and (leapt or climbed)
    return {"value": float(now), "usual": usual} if jumped or np.median(recent[-3:]) >= 0.5 else None


def gradient_spike(history: History) -> Numbers | None:
    """The gradient norm jumped above the usual and the largest: batches of dead groups have small norms."""
    now, past = last(history, "grad_norm", 1), known(history[-PAST - 1 : -1], "grad_norm")
    if not len(now) or len(past) < START:
        return None
    moving = past[past > 0]  # a batch of dead groups has no gradient at all
    if len(moving) < START:
        return None
    value, usual = float(now[0]), float(np.median(moving))
    rare = 8 * math.sqrt(max(len(history) / 45, 1.0))  # a longer run has more chances of a large one
    if value < max(rare * usual, 3 * past.max()):
        return None
    return {"value": value, "times": value / max(usual, 1e-12), "steps": len(past)}


def overfitting(history: History) -> Numbers | None:
    """Validation fell from its best and training did not; either alone shows too late that the gap opened.

    Pairs of validations are compared: one alone is luck. Where success in training is not known, the reward
    must not have fallen, and the fall of validation alone must be beyond noise.
    """
    validated = [i for i, step in enumerate(history) if math.isfinite(step["val_success"])]
    if len(validated) < 4 or validated[-1] != len(history) - 1:
        return None
    trained = "success" if len(known(history, "success")) else "reward"
    pairs = [(history[a], history[b]) for a, b in pairwise(validated)]
    around = [known(history[max(0, a - WINDOW) : b + WINDOW + 1], trained) for a, b in pairwise(validated)]
    validation = [fmean(step["val_success"] for step in two) for two in pairs]
    errors = [
        fmean(two) / math.sqrt(2) for two in pairwise(_validation_errors([history[i] for i in validated]))
    ]
    best, now = validation.index(max(validation[:-2])), -1
    training = {i: float(around[i].mean()) if len(around[i]) else math.nan for i in (best, now)}
    fell, rose = validation[best] - validation[now], training[now] - training[best]
    error = math.hypot(errors[best], errors[now])
    noise = [standard_error(around[i]) for i in (best, now)] + [drift(history, trained, 2 * WINDOW)]
    gap, noise = (fell + rose, math.hypot(error, *noise)) if trained == "success" else (fell, error)
    best_of = math.sqrt(2 * math.log(max(len(pairs) / 3, 1.0)))  # the best of many pairs is luck in part
    enough = fell >= (1.5 + best_of / 2) * error and gap >= (3.3 + best_of / 2) * noise
    if not (rose >= 0 and enough):
        return None
    step = max(pairs[best], key=lambda step: step["val_success"]).number
    shown = (
        f"success in training is {training[now]:.1%}" if trained == "success" else "the reward did not fall"
    )
    return {"value": validation[now], "top": validation[best], "best": step, "training": shown}


def standard_error(values: np.ndarray) -> float:
    """Of their mean; NaN where there are fewer than 2."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _validation_errors(validated: History) -> list[float]:
    """Standard errors: from 95 % intervals, else from how the validations scatter, else of 60 tasks."""
    values = known(validated, "val_success")
    bends = np.diff(values, 2)  # of a curve that bends slowly, noise times the root of 6
    scatter = 1.48 * float(np.median(np.abs(bends))) / math.sqrt(6) if len(bends) >= 6 else math.nan
    scatter = scatter or math.nan  # equal values say nothing about noise
    errors = []
    for step, success in zip(validated, values, strict=True):
        width = step["val_ci_high"] - step["val_ci_low"]
        guessed = math.sqrt(max(success * (1 - success), 0.01) / 60)
        errors.append(next(e for e in (width / 3.92, scatter, guessed) if math.isfinite(e)))
    return errors


def stalled_learning(history: History) -> Numbers | None:
    """Nothing was learnt, and the rest of the run will not change that: both are shown, not only unseen.

    A line is fitted to success against the learning rate spent so far. Where the number of steps is planned,
    it is looked at from 60 % of that on; else from 60 steps on. Learning is left possible where the upper end
    of the line's gain is above GAIN at the plan's end: a small batch takes more steps to show none.
    """
    planned, made = history[-1]["planned_steps"], history[-1].number - history[0].number + 1
    steps = [s for s in history if math.isfinite(s["success"]) and s.number > 0]
    few = known(steps, "trajectories").sum() < ENOUGH and math.isfinite(history[-1]["trajectories"])
    if few or len(steps) < 28 or made < (0.6 * planned if math.isfinite(planned) else 60):
        return None
    rate = np.array([s["learning_rate"] for s in steps])
    spent = np.cumsum(np.where(np.isfinite(rate), rate, np.nanmean(rate) if np.isfinite(rate).any() else 1.0))
    success = known(steps, "success")
    slope, error = fitted(spent, success)
    left = max(planned / made, 1.0) if math.isfinite(planned) else 1.0
    gain, most = slope * spent[-1], (slope + SURE * error) * spent[-1] * left
    third, validated = len(success) // 3, known(history, "val_success")
    now, then = float(success[-third:].mean()), float(success[:third].mean())
    if now >= SOLVED or most >= GAIN or now - then >= GAIN:
        return None
    if len(validated) >= 2 and validated[(len(validated) + 1) // 2 :].mean() - validated[0] >= GAIN:
        return None
    return {"value": float(gain), "now": now, "then": then, "step": history[-1].number, "steps": third}


def fitted(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope of a least-squares line and its standard error, for residuals that hang together (AR(1))."""
    centred = x - x.mean()
    square = float(centred @ centred)
    if square == 0:
        return 0.0, 0.0
    slope = float(centred @ y) / square
    rest = y - y.mean() - slope * centred
    spread = float(rest @ rest) / max(len(y) - 2, 1)
    tie = float(rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-12)
    tie += (1 + 4 * tie) / len(y)  # a short series looks less tied than it is (Marriott and Pope 1954)
    tie = min(max(tie, 0.0), 0.9)
    return slope, math.sqrt(spread / square * (1 + tie) / (1 - tie))
