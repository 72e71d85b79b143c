"""Rules about the optimisation: entropy, KL, gradients, clipping, engines, validation."""

from __future__ import annotations

import math

import numpy as np

from agentkit.diagnostics.finding import GAIN, PAST, START, WINDOW, Finding, History, change, known, last
from agentkit.diagnostics.history import Step

ENTROPY_LEFT = 0.2  # of the entropy at the start; a healthy fall is to a third
KL_SPIKE, KL_STEP = 6.0, 2.5  # times the largest of the steps before: in one step; in two in a row, which noise seldom gives
KL_LARGE, KL_FAR = 0.1, 0.5  # nats a token that matter at all; that are far from the reference
GRAD_SPIKE, GRAD_NEW = 8.0, 3.0  # times the usual, and times the largest: batches of dead groups have small norms
CLIPPED = 0.15  # share of tokens outside the clip range; PPO's rule of thumb is a few percent
MISMATCH = 0.1  # nats: bf16 engines differ by 0.01 to 0.03 on average, stale weights or caches by 1
FALLEN = 2.7  # standard errors by which validation lies below its best, which was picked as the best
RISING = 0.05  # training success above that of the best validation's time
LEARNT = 0.05  # a gain in success between the first and the last third that is a sign of learning
STALLED_STEPS = 28  # steps without any sign of learning; the small agent shows one within ten
SOLVED = 0.9  # success above which there is little left to learn


def entropy_collapse(history: History) -> Finding | None:
    """The entropy has fallen to a small part of what it was, and tasks are left to learn."""
    entropy, success = change(history, "entropy"), last(history, "success")
    if entropy is None or entropy[1] > ENTROPY_LEFT * entropy[0] or (len(success) and success.mean() >= SOLVED):
        return None
    cause = (
        f"The entropy fell from {entropy[0]:.3g} to {entropy[1]:.3g} nats a token with success at "
        f"{success.mean() if len(success) else math.nan:.0%}: rollouts become alike and nothing new is tried."
    )
    return Finding(
        entropy[1], "warning", cause, "Raise the upper clip range or temperature, lower learning_rate, raise beta.", "identical"
    )


def kl_spike(history: History) -> Finding | None:
    """The distance to the reference jumped, or is large."""
    recent = known(history[-PAST - 2 :], "kl")
    if len(recent) < 3 or not math.isfinite(history[-1]["kl"]):
        return None
    now, usual = recent[-2:], float(recent[:-2].max())
    jumped = len(recent) >= START and (
        now[1] >= max(KL_LARGE, KL_SPIKE * max(usual, now[0])) or now.min() >= max(KL_LARGE, KL_STEP * usual)
    )
    if not (jumped or float(np.median(recent[-3:])) >= KL_FAR):
        return None
    cause = (
        f"The KL to the reference is {now[1]:.3g} nats a token (at most {usual:.3g} in the steps before): an update went "
        "too far. Usual causes: a learning rate that is too high, or a batch with a few huge advantages."
    )
    return Finding(
        float(now[0]),
        "warning",
        cause,
        "Lower learning_rate or max_grad_norm, raise beta, go back to the best adapter.",
        "reward",
    )


def gradient_spike(history: History) -> Finding | None:
    """The gradient norm jumped, or something was not finite."""
    if history[-1]["not_finite"] > 0:
        cause = "Loss, gradient norm, KL or entropy is not finite: the update is worthless, and the weights may be too."
        return Finding(
            history[-1]["not_finite"],
            "critical",
            cause,
            "Go back to the last good checkpoint; lower learning_rate; look for a reward of inf.",
            "reward",
        )
    now, past = last(history, "grad_norm", 1), known(history[-PAST - 1 : -1], "grad_norm")
    if not len(now) or len(past) < START or now[0] < max(GRAD_SPIKE * float(np.median(past)), GRAD_NEW * past.max()):
        return None
    cause = (
        f"The gradient norm is {now[0]:.3g}, {now[0] / float(np.median(past)):.0f} times the median of the "
        f"{len(past)} steps before. "
        "Clipping bounds the step's length, not its direction. Usual causes: a group with tiny spread divided by it, "
        "an outlier reward."
    )
    return Finding(
        float(now[0]),
        "warning",
        cause,
        "Keep max_grad_norm low, do not divide by the group's spread, look at this step's groups.",
        "reward",
    )


def clip_drift(history: History) -> Finding | None:
    """Many tokens left the clip range."""
    clipped = last(history, "clip_fraction")
    if len(clipped) < 3 or clipped.mean() < CLIPPED:
        return None
    cause = (
        f"{clipped.mean():.0%} of the tokens lie outside the clip range over the last {len(clipped)} steps: the "
        "policy moves too far "
        "from the one that sampled. Usual causes: too many updates on a batch, or a learning rate that is too high."
    )
    return Finding(float(clipped.mean()), "warning", cause, "Lower num_iterations or learning_rate.", "reward")


def engine_mismatch(history: History) -> Finding | None:
    """The engine that samples and the trainer disagree about the same tokens."""
    found = last(history, "mismatch", 3)
    if len(found) < 2 or np.median(found) < MISMATCH:
        return None
    cause = (
        f"Sampled tokens have log-probabilities that differ by {np.median(found):.3g} nats between the engine and the trainer: "
        "training is off-policy without knowing it. Usual causes: weights not synchronised, a prefix cache not reset, "
        "quantised rollouts."
    )
    return Finding(
        float(np.median(found)),
        "critical",
        cause,
        "Reset the engine's prefix cache after each update, check the weight sync, or correct with importance weights.",
        "reward",
    )


def overfitting(history: History) -> Finding | None:
    """Validation fell from its best while training went on rising. Pairs of validations are compared: one alone is luck."""
    seen = [s for s in history if math.isfinite(s["val_success"])]
    if len(seen) < 4 or not math.isfinite(history[-1]["val_success"]):
        return None
    pairs = [(a, b) for a, b in zip(seen, seen[1:], strict=False)]
    top, end = max(pairs[:-2], key=_pair_mean), pairs[-1]
    best, now = max(top, key=lambda s: s["val_success"]), _pair_mean(end)
    error = math.hypot(*map(_error, (*top, *end))) / 2
    train_then = known([s for s in history if abs(s.number - best.number) <= WINDOW], "success")
    train_now = last(history, "success", 2 * WINDOW)
    if _pair_mean(top) - now < FALLEN * error or not len(train_then) or not len(train_now):
        return None
    if train_now.mean() < train_then.mean() + RISING:
        return None  # training fell too: that is no overfitting
    cause = (
        f"Validation success fell from {_pair_mean(top):.1%} around step {best.number} to {now:.1%} while success in training is "
        f"{train_now.mean():.1%}: the policy learns the training tasks by heart."
    )
    return Finding(
        now,
        "warning",
        cause,
        f"Keep the adapter of step {best.number}; more or more varied tasks, a higher beta, fewer steps.",
        "success",
    )


def _pair_mean(pair: tuple[Step, Step]) -> float:
    return (pair[0]["val_success"] + pair[1]["val_success"]) / 2


def _error(step: Step) -> float:
    """Standard error of a validation, from its 95 % interval; of 60 tasks where it has none."""
    width = step["val_ci_high"] - step["val_ci_low"]
    return width / 3.92 if math.isfinite(width) else math.sqrt(max(step["val_success"] * (1 - step["val_success"]), 0.01) / 60)


def stalled_learning(history: History) -> Finding | None:
    """Many steps, and no sign that anything was learnt."""
    if len(history) < STALLED_STEPS:
        return None
    third = len(history) // 3
    found = change([*history[:third], *history[-third:]], "success", third)
    success, seen = last(history, "success", third), known(history, "val_success")
    if found is None or not len(success) or success.mean() >= SOLVED or found[2] >= 2.0 or found[1] - found[0] >= LEARNT:
        return None
    if len(seen) >= 2 and seen[(len(seen) + 1) // 2 :].mean() - seen[0] >= GAIN:
        return None
    cause = (
        f"After {history[-1].number} steps success is {found[1]:.1%}, and was {found[0]:.1%} in the first {third}: "
        "nothing was learnt. "
        "Usual causes: a learning rate that is too low, rewards dominated by noise, or hardly any group with an advantage."
    )
    return Finding(
        found[1] - found[0],
        "warning",
        cause,
        "Read the preflight report (signal and dead groups); then raise learning_rate or group_size.",
        "success",
    )
