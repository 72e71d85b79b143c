"""Rules about rewards: no spread, a dead or a dominating component, hacking."""

from __future__ import annotations

import math

from agentkit.diagnostics.finding import WINDOW, Finding, History, Z, change, first, known, last, unpaid

STUCK = 0.65  # share of groups without advantage, of which none is solved: two thirds of the batch are wasted
NOTHING_LEFT = 0.95  # share of groups without advantage, solved ones included
DEAD_STEPS, DEAD_VALUES = (
    3,
    64,
)  # a component that varies at all hardly gives 64 equal values in three batches
PAID_BESIDE = 0.3  # rise of what wrong trajectories earn, as a share of what being right earned at the start
DISAGREES = 0.25  # share of rewarded answers the auditor refuses: above what guessing right by luck gives
BESIDES = (
    0.3  # variance of the reward within groups that success explains, below which something else is trained
)
DOMINANT = 0.7  # and that one other component explains


def zero_variance(history: History) -> Finding | None:
    """Most groups have equal rewards and are not solved."""
    stuck, dead, solved = (last(history, name) for name in ("stuck", "zero_variance", "solved"))
    if len(stuck) < 3:
        return None
    share = float(stuck.mean())
    if share >= STUCK:
        cause = (
            f"In {share:.0%} of the groups of the last {len(stuck)} steps all rewards are equal although not "
            "all are right: "
            "they have no advantage and teach nothing. Usual causes: the reward is constant (a component "
            "that never fires or "
            "always does), or the tasks are far too hard."
        )
        advice = "Score a gold trajectory: where it earns no more, mend the reward; else take easier tasks or a larger group_size."
        return Finding(share, "critical", cause, advice, "stuck")
    if len(dead) >= 3 and dead.mean() >= NOTHING_LEFT:
        cause = f"{dead.mean():.0%} of the groups have equal rewards, {solved.mean():.0%} because every rollout is right."
        return Finding(float(dead.mean()), "info", cause, "Stop here, or go on with harder tasks.", "stuck")
    return None


def dead_component(history: History) -> Finding | None:
    """A reward component has had one value ever since training began, or has stopped varying below its best."""
    if len(history) < DEAD_STEPS or history[-1]["trajectories"] * DEAD_STEPS < DEAD_VALUES:
        return None
    for name in (key.removeprefix("scored/") for key in history[-1].values if key.startswith("scored/")):
        scored, low, high = (last(history, f"{what}/{name}") for what in ("scored", "low", "high"))
        if scored[-DEAD_STEPS:].any() and (len(low) < DEAD_STEPS or high.max() - low.min() > 1e-9):
            continue
        value = float(low.min()) if len(low) else math.nan
        if (
            len(low)
            and value >= known(history, f"high/{name}").max()
            and known(history, f"low/{name}").min() < value
        ):
            continue  # it varied before and is at its best now: learnt, not dead
        what = f"was {value:g} on every trajectory" if len(low) else "was scored on no trajectory"
        cause = (
            f"The reward component {name} {what} of the last {len(scored)} steps: it adds nothing to any "
            "advantage. Usual "
            "causes: an input it reads is never written, a pattern that matches nothing or everything, a "
            "tool that is never "
            "called."
        )
        advice = f"Run the preflight report: it says what {name} reads and what it gives gold trajectories. Mend or remove it."
        return Finding(value, "info" if value > 0 else "warning", cause, advice, "components")
    return None


def reward_hacking(history: History) -> Finding | None:
    """Being wrong is paid better and better; or the auditor refuses many answers that the reward likes."""
    disagreement, before = last(history, "audit_disagreement"), first(history, "audit_disagreement")
    if len(disagreement) >= 3 and len(before) >= 3 and len(history) >= 2 * WINDOW:
        share, start = float(disagreement.mean()), float(before.mean())
        looked = last(history, "audited")
        liked = float((looked.mean() if len(looked) else 1.0) * last(history, "success").sum())
        noise = math.sqrt(share * (1 - share) / max(liked, 1.0))  # of the share of ``liked`` audited answers
        if share >= DISAGREES and share - start >= max(0.1, Z * noise):
            cause = (
                f"The independent auditor refuses {share:.0%} of the answers that the reward likes "
                f"({start:.0%} at the start): "
                "the policy has found answers that satisfy the verifier without being right."
            )
            advice = "Read the listed answers, close the hole in the verifier, and train again from the last clean checkpoint."
            return Finding(share, "critical", cause, advice, "audit_disagreement")
    gap, rewards = first(history, "reward_gap"), change(history, "reward")
    for then, now, z in unpaid(history, "reward_wrong"):
        if (
            len(gap)
            and rewards is not None
            and z >= Z
            and now - then >= PAID_BESIDE * max(float(gap.mean()), 0.1)
        ):
            cause = (
                f"Wrong trajectories earn {now:.3g} on average and earned {then:.3g} before, while success "
                "did not rise: the "
                "policy learns what the reward pays for beside being right."
            )
            advice = "See which component rose, read the best-rewarded trajectories, and lower or bound that component."
            return Finding(now - then, "critical", cause, advice, "reward")
    return None


def dominance(history: History) -> Finding | None:
    """One component other than success explains the advantages."""
    success = last(history, "explains/success")
    if len(success) < 3 or success.mean() > BESIDES:
        return None
    names = [
        n.removeprefix("explains/")
        for n in history[-1].values
        if n.startswith("explains/") and n != "explains/success"
    ]
    shares = {n: float(found.mean()) for n in names if len(found := last(history, f"explains/{n}")) >= 3}
    if not shares or max(shares.values()) < DOMINANT:
        return None
    name = max(shares, key=shares.get)
    cause = (
        f"{name} explains {shares[name]:.0%} of the reward's variance within groups and success "
        f"{success.mean():.0%}: "
        f"the policy is trained on {name}, not on being right. Usual cause: its weight or range is too "
        "large, or hardly any "
        "rollout is right."
    )
    advice = f"Lower the weight of {name}, or begin with tasks that are solved at times."
    return Finding(shares[name], "warning", cause, advice, "components")
