"""Is the reward what it is meant to be? What gold trajectories earn under it, and what each component does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from agentkit.diagnostics.measures import EQUAL, explained
from agentkit.preflight.checks import Groups
from agentkit.preflight.probe import Probed
from agentkit.preflight.report import Item, ids
from agentkit.records import Trajectory
from agentkit.rewards import Product, Reward

SLACK = 0.25  # of what a gold trajectory earns may be taken by penalties such as a price a turn
DOMINANT, BESIDES = (
    0.7,
    0.3,
)  # of the reward's variance comes from one component, where success explains less than the second
GOLD_ODDS = 0.02  # gold trajectories that may fail: a corpus may hold a fact twice


def gold(golden: Sequence[Trajectory], groups: Groups, reward: Reward) -> Item:
    """Trajectories of the scripted expert under the same verifier and reward: they must reach its maximum."""
    name = "Gold trajectories"
    if not golden:
        advice = "Give tasks a plan (meta['plan']), so that the reward can be tried on gold trajectories."
        return Item(name, "amber", "There is no scripted expert for these tasks.", advice)
    refused = [t for t in golden if t.success is not None and t.success < 1.0]
    unscored = [t for t in golden if t.reward is None]
    if len(refused) > GOLD_ODDS * len(golden):
        said = f"The verifier refuses {len(refused)} of {len(golden)} gold trajectories ({refused[0].why[:120]})."
        return Item(
            name,
            "red",
            said,
            "Mend the verifier or the gold answers: a right policy would be punished.",
            ids(refused),
        )
    if len(unscored) > GOLD_ODDS * len(golden):
        said = f"{len(unscored)} of {len(golden)} gold trajectories have no reward."
        return Item(
            name,
            "red",
            said,
            "Mend the components that fail on them; see the components below.",
            ids(unscored),
        )
    pairs = {t.task_id: t.reward for t in golden if t.reward is not None}
    rewards = list(pairs.values())
    everyone = [t for g in groups for t in g if t.reward is not None]
    best = max((t.reward for t in everyone), default=-math.inf)
    penalties = {} if isinstance(reward, Product) else _penalties(golden, reward)
    said = (
        f"{len(golden)} gold trajectories earn {np.mean(rewards):.3g} on average ({min(rewards):.3g} to "
        f"{max(rewards):.3g}); the "
        f"best rollout {best:.3g}."
    )
    values = {"rewards": rewards, "best_rollout": best, "penalties": penalties}
    if penalties:
        struck, taken = min(penalties.items(), key=lambda item: item[1])
        alike = (
            np.mean([t.components.get(struck) == golden[0].components.get(struck) for t in everyone])
            if everyone
            else 0.0
        )
        advice = (
            f"{struck} takes {-taken:.3g} from gold trajectories, and gives {alike:.0%} of the rollouts the "
            "same value: it fires "
            f"on what it should reward. Without it gold would earn {np.mean(rewards) - taken:.3g}. Mend what "
            f"{struck} matches before training; the usual cause is an unanchored pattern, which every text matches."
        )
        return Item(name, "red", said, advice, ids(golden), values)
    above = [t for t in everyone if t.success == 0.0 and t.reward > pairs.get(t.task_id, math.inf) + EQUAL]
    if above:
        advice = (
            f"{len(above)} wrong rollouts earn more than the gold trajectory of their task: read them; the "
            "reward pays for "
            "something else."
        )
        return Item(
            name, "red" if len(above) > 0.1 * len(everyone) else "amber", said, advice, ids(above), values
        )
    return Item(name, "green", said, "", (), values)


def _penalties(golden: Sequence[Trajectory], reward: Reward) -> dict[str, float]:
    """Components that take more from gold trajectories than SLACK of what the others give, with the mean they
    take.
    """
    means = {
        n: weight
        * float(np.mean([t.components[n] for t in golden if t.components.get(n) is not None] or [0.0]))
        for n, (_, weight) in reward.items()
    }
    earned = sum(v for v in means.values() if v > 0)
    return {n: v for n, v in means.items() if v < 0 and -v > SLACK * max(earned, EQUAL)}


def components(
    groups: Groups, golden: Sequence[Trajectory], reward: Reward, probed: Mapping[str, Probed]
) -> list[Item]:
    """One item a component: dead, saturated, dominating or alive; and what it reads that is never written."""
    everyone = [t for g in groups for t in g]
    scored = [[t for t in g if t.reward is not None] for g in groups]
    by_success = explained(scored, lambda t: t.success)
    items = []
    for name, (_, weight) in reward.items():
        values = [t.components[name] for t in everyone if t.components.get(name) is not None]
        share = _part(scored, name, weight)
        constant = not values or max(values) - min(values) < EQUAL
        numbers = {"weight": weight, "share": share, "constant": constant}
        numbers |= {"low": min(values, default=None), "high": max(values, default=None)}
        if probed[name].failures:
            said = f"It fails: {probed[name].failures[0]}."
            light, advice = "red", f"Mend {name}: trajectories on which it fails have no reward."
        elif constant:
            best = [t.components[name] for t in golden if t.components.get(name) is not None]
            said = (
                f"It is {values[0]:g} on all {len(values)} rollouts"
                if values
                else f"It was scored on none of {len(everyone)} rollouts"
            )
            said += (
                f", and {best[0]:g} on all gold trajectories."
                if best and values and np.ptp(best) < EQUAL
                else "."
            )
            light, advice = _constant(name, weight, values, best, probed[name])
        else:
            said = (
                f"{min(values):.3g} to {max(values):.3g}, mean {np.mean(values):.3g}; it explains "
                f"{_percent(share)} of the "
                "reward's variance within groups."
            )
            light, advice = _alive(name, weight, share, by_success, probed[name])
        items.append(
            Item(f"Component {name}", light, said, advice, ids(everyone) if light != "green" else (), numbers)
        )
    return items


def _alive(name: str, weight: float, share: float, by_success: float, probed: Probed) -> tuple[str, str]:
    """Light and advice for a component that varies."""
    if probed.missing and weight:
        missing = _listed(probed.missing)
        return (
            "red",
            f"It reads {missing}, which no record holds: that part of it never acts. Write that input, or "
            "remove it.",
        )
    if share >= DOMINANT and by_success < BESIDES:
        return "amber", (
            f"{name} decides the advantages, success only {_percent(by_success)} of them: lower its weight "
            f"({weight:g})."
        )
    return "green", ""


def _constant(
    name: str, weight: float, values: Sequence[float], best: Sequence[float], probed: Probed
) -> tuple[str, str]:
    """Light and advice for a component that has one value, or none, on all rollouts; ``best`` on gold
    trajectories.
    """
    if not weight:
        return "green", "Its weight is 0."
    if probed.missing:
        return "red", (
            f"It is dead because it reads {_listed(probed.missing)}, which no record holds: its input is "
            "never written. Write "
            "it, or read what the trajectory has."
        )
    if not values or not probed.moved_by:
        return "red", (
            f"{name} is dead: neither a wrong answer, nor no answer, nor other calls or lengths change it. "
            "Mend or remove it."
        )
    moved = f"It does change with {_listed(probed.moved_by)}."
    if values[0] >= max(best, default=math.inf) - EQUAL:
        return (
            "green",
            f"{name} is saturated: every rollout has its full value, so it teaches nothing now. {moved}",
        )
    return "amber", f"No rollout moves {name} yet. {moved}"


def _part(groups: Groups, name: str, weight: float) -> float:
    """What a weighted component adds to the reward's variance within groups, as a share: its covariance with
    the reward.

    The shares of a weighted sum add up to 1. NaN where rewards do not vary.
    """
    pairs = [
        [(t.components[name], t.reward) for t in g if t.components.get(name) is not None] for g in groups
    ]
    centred = [np.array(p) - np.mean(p, axis=0) for p in pairs if len(p) > 1]
    both = np.concatenate(centred) if centred else np.zeros((0, 2))
    square = float((both[:, 1] ** 2).sum())
    return weight * float((both[:, 0] * both[:, 1]).sum()) / square if square > EQUAL else math.nan


def _percent(share: float) -> str:
    """A share as text; one of several may lie beyond 0 and 1 where others take away what it adds."""
    return f"{min(max(share, 0.0), 1.0):.0%}" if math.isfinite(share) else "none"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
