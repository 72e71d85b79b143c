"""Rules about the optimisation: entropy, KL, gradients, clipping, engines, validation."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np

from agentkit.diagnostics.finding import (
    GAIN,
    PAST,
    START,
    WINDOW,
    Finding,
    History,
    change,
    known,
    last,
    unpaid,
)
from agentkit.diagnostics.measures import Step

ENTROPY_LEFT = 0.2  # of the entropy at the start; a healthy fall is to a third
KL_SPIKE, KL_STEP = (
    6.0,
    2.5,
)  # times the largest of the steps before: in one step; in two in a row, which noise seldom gives
KL_COSTLY, KL_LARGE, KL_FAR = (
    0.1,
    0.18,
    0.5,
)  # nats a token: a jump to it counts where success fell; always; no jump is needed
KL_HARM = 0.1  # fall in success that shows that an update went too far
GRAD_SPIKE, GRAD_NEW = (
    8.0,
    3.0,
)  # times the usual, and times the largest: batches of dead groups have small norms
CLIPPED = 0.15  # share of tokens outside the clip range; PPO's rule of thumb is a few percent
MISMATCH = 0.1  # nats: bf16 engines differ by 0.01 to 0.03 on average, stale weights or caches by 1
FALLEN, OPENED = (
    1.5,
    3.3,
)  # standard errors: of validation below its best, which was picked; of its gap to training above that then
LEARNT = 0.05  # a gain in success between the first and the last third that is a sign of learning
STALLED_STEPS = 28  # steps without any sign of learning; the small agent shows one within ten
SOLVED = 0.9  # success above which there is little left to learn


def entropy_collapse(history: History) -> Finding | None:
    """The entropy has fallen to a small part of what it was, tasks are left to learn, and success did not
    rise for it.

    A policy that learns grows sure of itself where it is right: that fall is paid for.
    """
    success = last(history, "success")
    fallen = [(then, now) for then, now, _ in unpaid(history, "entropy") if now <= ENTROPY_LEFT * then]
    if not fallen or (len(success) and success.mean() >= SOLVED):
        return None
    then, now = fallen[0]
    cause = (
        f"The entropy fell from {then:.3g} to {now:.3g} nats a token with success at "
        f"{success.mean() if len(success) else math.nan:.0%}: rollouts become alike and nothing new is tried."
    )
    advice = "Raise the upper clip range or temperature, lower learning_rate, raise beta."
    return Finding(now, "warning", cause, advice, "identical")


def kl_spike(history: History) -> Finding | None:
    """The distance to the reference jumped, or is large. A small jump counts only where success fell with it."""
    recent = known(history[-PAST - 2 :], "kl")
    if len(recent) < 3 or not math.isfinite(history[-1]["kl"]):
        return None
    now, usual = recent[-2:], float(recent[:-2].max())
    after, before = last(history, "success", 3), last(history[:-3], "success", 2 * WINDOW)
    harmed = len(after) and len(before) and after.mean() < before.mean() - KL_HARM
    least = KL_COSTLY if harmed else KL_LARGE
    jumped = len(recent) >= START and (
        now[1] >= max(least, KL_SPIKE * max(usual, now[0]))
        or (now[1] >= least and now.min() >= max(KL_COSTLY, KL_STEP * usual))
    )
    if not (jumped or float(np.median(recent[-3:])) >= KL_FAR):
        return None
    cause = (
        f"The KL to the reference is {now[1]:.3g} nats a token (at most {usual:.3g} in the steps before): an "
        "update went "
        "too far. Usual causes: a learning rate that is too high, or a batch with a few huge advantages."
    )
    advice = "Lower learning_rate or max_grad_norm, raise beta, go back to the best adapter."
    return Finding(float(now[1]), "warning", cause, advice, "reward")


def gradient_spike(history: History) -> Finding | None:
    """The gradient norm jumped, or something was not finite."""
    broken = history[-1]["not_finite"]
    if broken > 0:
        cause = "Loss, gradient norm, KL or entropy is not finite: the update is worthless, and the weights may be too."
        advice = "Go back to the last good checkpoint; lower learning_rate; look for a reward of inf."
        return Finding(broken, "critical", cause, advice, "reward")
    now, past = last(history, "grad_norm", 1), known(history[-PAST - 1 : -1], "grad_norm")
    if not len(now) or len(past) < START:
        return None
    usual = float(np.median(past))
    if now[0] < max(GRAD_SPIKE * usual, GRAD_NEW * past.max()):
        return None
    cause = (
        f"The gradient norm is {now[0]:.3g}, {now[0] / usual:.0f} times the median of the {len(past)} steps "
        "before. Clipping "
        "bounds the step's length, not its direction. Usual causes: a group with tiny spread divided by it, "
        "an outlier reward."
    )
    advice = "Keep max_grad_norm low, do not divide by the group's spread, look at this step's groups."
    return Finding(float(now[0]), "warning", cause, advice, "reward")


def clip_drift(history: History) -> Finding | None:
    """Many tokens left the clip range."""
    clipped = last(history, "clip_fraction")
    if len(clipped) < 3 or clipped.mean() < CLIPPED:
        return None
    cause = (
        f"{clipped.mean():.0%} of the tokens lie outside the clip range over the last {len(clipped)} steps: "
        "the policy moves too "
        "far from the one that sampled. Usual causes: too many updates on a batch, or a learning rate that "
        "is too high."
    )
    return Finding(
        float(clipped.mean()), "warning", cause, "Lower num_iterations or learning_rate.", "reward"
    )


def engine_mismatch(history: History) -> Finding | None:
    """The engine that samples and the trainer disagree about the same tokens."""
    found = last(history, "mismatch", 3)
    if len(found) < 2 or np.median(found) < MISMATCH:
        return None
    apart = float(np.median(found))
    cause = (
        f"Sampled tokens have log-probabilities that differ by {apart:.3g} nats between the engine and the "
        "trainer: training is "
        "off-policy without knowing it. Usual causes: weights not synchronised, a prefix cache not reset, "
        "quantised rollouts."
    )
    advice = "Reset the engine's prefix cache after each update, check the weight sync, or correct with importance weights."
    return Finding(apart, "critical", cause, advice, "reward")


def overfitting(history: History) -> Finding | None:
    """Validation fell from its best, and training did not: the gap between them opened, which either alone
    shows too late.

    Pairs of validations are compared: one alone is luck.
    """
    seen = [i for i, step in enumerate(history) if math.isfinite(step["val_success"])]
    if len(seen) < 4 or seen[-1] != len(history) - 1:
        return None
    pairs = [_Pair.of(history, a, b) for a, b in pairwise(seen)]
    top, now = max(pairs[:-2], key=lambda pair: pair.validation), pairs[-1]
    fell, rose = top.validation - now.validation, now.training - top.training
    error = math.hypot(top.error, now.error)
    whole = math.hypot(error, top.training_error, now.training_error)
    if not (rose >= 0 and fell >= FALLEN * error and fell + rose >= OPENED * whole):
        return None
    cause = (
        f"Validation success fell from {top.validation:.1%} around step {top.best} to {now.validation:.1%} "
        "while success in "
        f"training is {now.training:.1%}: the policy learns the training tasks by heart."
    )
    advice = f"Keep the adapter of step {top.best}; more or more varied tasks, a higher beta, fewer steps."
    return Finding(now.validation, "warning", cause, advice, "success")


class _Pair(NamedTuple):
    """Two validations in a row and the training around them: means with their standard errors."""

    validation: float
    error: float
    training: float
    training_error: float
    best: int  # the step of the better validation

    @classmethod
    def of(cls, history: History, a: int, b: int) -> _Pair:
        """Of the validations at two places in a history."""
        two = history[a], history[b]
        around = known(history[max(0, a - WINDOW) : b + WINDOW + 1], "success")
        spread = float(around.std(ddof=1)) / math.sqrt(len(around)) if len(around) > 1 else math.nan
        best = max(two, key=lambda step: step["val_success"]).number
        mean, error = fmean(step["val_success"] for step in two), math.hypot(*map(_error, two)) / 2
        return cls(mean, error, float(around.mean()) if len(around) else math.nan, spread, best)


def _error(step: Step) -> float:
    """Standard error of a validation, from its 95 % interval; of 60 tasks where it has none."""
    width = step["val_ci_high"] - step["val_ci_low"]
    return (
        width / 3.92
        if math.isfinite(width)
        else math.sqrt(max(step["val_success"] * (1 - step["val_success"]), 0.01) / 60)
    )


def stalled_learning(history: History) -> Finding | None:
    """Many steps, and no sign that anything was learnt."""
    if len(history) < STALLED_STEPS:
        return None
    third = len(history) // 3
    found = change([*history[:third], *history[-third:]], "success", third)
    success, seen = last(history, "success", third), known(history, "val_success")
    if (
        found is None
        or not len(success)
        or success.mean() >= SOLVED
        or found[2] >= 2.0
        or found[1] - found[0] >= LEARNT
    ):
        return None
    if len(seen) >= 2 and seen[(len(seen) + 1) // 2 :].mean() - seen[0] >= GAIN:
        return None
    cause = (
        f"After {history[-1].number} steps success is {found[1]:.1%}, and was {found[0]:.1%} in the first "
        f"{third}: nothing was "
        "learnt. Usual causes: a learning rate that is too low, rewards dominated by noise, or hardly any "
        "group with an "
        "advantage."
    )
    advice = "Read the preflight report (signal and dead groups); then raise learning_rate or group_size."
    return Finding(found[1] - found[0], "warning", cause, advice, "success")
