"""Is the reward what it is meant to be? What gold trajectories earn under it, and what each component does.

Leaves out what moves a component and what it reads (probe).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentkit.diagnostics.measures import about_means, explained
from agentkit.preflight.checks import Groups
from agentkit.preflight.probe import SLOWER, Probed, silent, variants
from agentkit.preflight.report import Item, gold_ids, ids
from agentkit.records import Task, Trajectory
from agentkit.rewards import Reward, score
from agentkit.tools.outages import momentary
from agentkit.trajectories import EQUAL, members, met_limit, results_of
from agentkit.verifiers import verify

SLACK = 0.25  # of what a gold trajectory earns may be taken by penalties such as a price a turn
DOMINANT = 0.7  # of the reward's variance comes from one component,
BESIDES = 0.3  # where success explains less than this
GOLD_ODDS = 0.05  # share of gold trajectories that may fail: a corpus may hold a fact twice
NOTHING = "Nothing in the reward depends on being right: add correctness."
CALLS = "The reward looks at the calls and never at the answer. To pay for it too, add correctness."
AGAIN = 4  # scorings of the same gold trajectories, for what is chance


# ---- gold trajectories
def gold(golden: Sequence[Trajectory], groups: Groups, reward: Reward, right: Mapping[str, Any]) -> Item:
    """Trajectories of the scripted expert under the same verifier and reward: they must reach its maximum.

    ``right`` are the values of ``being_right``.
    """
    name = "Gold trajectories"
    if not golden:
        advice = "Give tasks a plan (meta['plan']), so that the reward can be tried on gold trajectories."
        return Item(name, "amber", "There is no scripted expert for these tasks.", advice)
    golden = [t for t in golden if t.success == 1.0 or not _cut_short(t)]
    n = len(golden)
    if not golden:
        advice = "See the items on limits and tools."
        return Item(name, "amber", "No gold trajectory came to its end.", advice)
    refused = [t for t in golden if t.success is not None and t.success < 1.0]
    if len(refused) > GOLD_ODDS * n:
        finding = f"The verifier refuses {len(refused)} of {n} gold trajectories ({refused[0].why[:120]})."
        advice = "Mend the verifier or the gold answers: a right policy would be punished."
        return Item(name, "red", finding, advice, gold_ids(refused))
    unscored = [t for t in golden if t.reward is None]
    if len(unscored) > GOLD_ODDS * n:
        failing = Counter(name for t in unscored for name in reward if t.components.get(name) is None)
        finding = f"{len(unscored)} of {n} gold trajectories have no reward."
        advice = f"Mend what fails on them: {_listed([name for name, _ in failing.most_common()])}."
        return Item(name, "red", finding, advice, gold_ids(unscored))
    return _gold_earnings(name, golden, groups, reward, right)


def _cut_short(trajectory: Trajectory) -> bool:
    """Whether a limit or a failure of the moment ended it, which says nothing of the reward."""
    return met_limit(trajectory) or any(map(momentary, results_of(trajectory)[-1:]))


def _gold_earnings(
    name: str, golden: Sequence[Trajectory], groups: Groups, reward: Reward, right: Mapping[str, Any]
) -> Item:
    """What gold trajectories earn, what penalties take from them, and which wrong ones earn more."""
    gold_of = {t.task_id: t for t in golden if t.reward is not None}
    rewards = [t.reward for t in gold_of.values()]
    rollouts = [t for t in members(groups) if t.reward is not None]
    best = max((t.reward for t in rollouts), default=-math.inf)
    finding = (
        f"{len(golden)} gold trajectories earn {np.mean(rewards):.3g} on average ({min(rewards):.3g} to "
        f"{max(rewards):.3g}); the best trajectory {best:.3g}."
    )
    penalties = _penalties(golden, reward, right)
    values = {"rewards": rewards, "best_rollout": best, "penalties": penalties}
    if penalties:
        penalty = min(penalties, key=penalties.get)
        alike = [t.components.get(penalty) == golden[0].components.get(penalty) for t in rollouts]
        advice = (
            f"{penalty} takes {-penalties[penalty]:.3g} from gold trajectories, and gives "
            f"{np.mean(alike or 0.0):.0%} of the trajectories the same value: it fires on what it should "
            f"reward. Without it gold would earn {np.mean(rewards) - penalties[penalty]:.3g}. Mend what "
            f"{penalty} matches before training; the usual cause is an unanchored pattern, which every text "
            "matches."
        )
        return Item(name, "red", finding, advice, gold_ids(golden), values)
    wrong = [t for t in rollouts if t.success == 0.0]
    above = [t for t in wrong if t.task_id in gold_of and t.reward > gold_of[t.task_id].reward + EQUAL]
    if not above:
        return Item(name, "green", finding, values=values)
    advice = f"{len(above)} wrong trajectories earn more than the gold one of their task: read them."
    light = "red" if len(above) > 0.1 * len(rollouts) else "amber"
    return Item(name, light, finding, advice, ids(above), values)


def _penalties(golden: Sequence[Trajectory], reward: Reward, right: Mapping[str, Any]) -> dict[str, float]:
    """Components that take more from gold than SLACK of what others or being right give, and the mean.

    A price of turns, or a reward below zero throughout, also moves with how a trajectory ends: that is none.
    """
    means = {
        name: weight * float(np.mean(_scored(golden, name) or 0.0)) for name, (_, weight) in reward.items()
    }
    earned = max(right.get("earns", 0.0), sum(mean for mean in means.values() if mean > 0), EQUAL)
    read = {name for name, (component, _) in reward.items() if getattr(component, "is_read", False)}
    fixed = [name for name in means if name not in {*right.get("moved", ()), *read}]
    return {name: means[name] for name in fixed if -means[name] > SLACK * earned}


def _scored(trajectories: Sequence[Trajectory], name: str) -> list[float]:
    return [t.components[name] for t in trajectories if t.components.get(name) is not None]


def being_right(reward: Reward, gold: Sequence[tuple[Task, Trajectory]]) -> Item:
    """Whether a right answer earns more than a wrong one on gold trajectories.

    Its ``culprit`` is the component that is to blame; "" where none can be told.
    """
    name, values = "What being right earns", {"culprit": ""}
    if not gold:
        finding = "There is no gold trajectory, or its environment gives the reward: it cannot be varied."
        return Item(name, "green", finding, values=values)
    gains, chance = _gains(reward, gold)
    wrong, quits = gains["a wrong answer"], gains["a wrong answer at once"]
    finding = "A right answer earns {:.3g} more than a wrong one in the same gold trajectory."
    if abs(wrong["reward"]) <= chance["reward"] and all(_judged_by_calls(*pair) for pair in gold):
        wrong = quits  # the verifier looks at the calls, so the reward may read them
        finding = "A gold trajectory earns {:.3g} more than one without its calls."
    earns = -wrong["reward"] if abs(wrong["reward"]) > chance["reward"] else 0.0
    moved = [n for n in reward if abs(quits[n]) > chance[n]]
    finding, values = finding.format(earns), values | {"earns": earns, "moved": moved}
    judges_calls = gains["other arguments"]["reward"] < -chance["reward"]
    culprit, why = _blamed(reward, wrong, quits, chance, earns)
    why = CALLS if why == NOTHING and judges_calls else why
    light = ("amber" if why == CALLS else "red") if why else "green"
    return Item(name, light, finding, why, values=values | {"culprit": culprit})


def _judged_by_calls(task: Task, trajectory: Trajectory) -> bool:
    """Whether a right answer is no longer right without the calls that led to it."""
    return verify(task, silent(trajectory)).value != 1.0


Gains = Mapping[str, float]  # of "reward" and of each component


def _blamed(reward: Reward, wrong: Gains, quits: Gains, chance: Gains, earns: float) -> tuple[str, str]:
    """The component to blame and why; two empty texts where a right answer earns what it should."""
    moved = [n for n in reward if abs(wrong[n]) > chance[n]]
    if earns <= 0:
        unweighted = [n for n in moved if not reward[n][1] and wrong[n] < 0]
        flipped = [n for n in moved if reward[n][1] * wrong[n] > EQUAL]
        if unweighted:
            n = unweighted[0]
            return n, f"{n} alone tells right from wrong, and its weight is 0: give it one."
        if flipped:
            n = max(flipped, key=lambda n: reward[n][1] * wrong[n])
            return n, f"{n} pays more for a wrong answer: its sign, or its weight's, is flipped."
        return "", NOTHING
    if quits["reward"] > chance["reward"]:
        n = max(reward, key=lambda n: reward[n][1] * quits[n])
        more = f"A wrong answer at once, without a call, earns {quits['reward']:.3g} more than a right one"
        return n, f"{more}: lower the weight of {n} ({reward[n][1]:g})."
    return "", ""


def _gains(reward: Reward, gold: Sequence[tuple[Task, Trajectory]]) -> tuple[dict[str, Gains], Gains]:
    """How much more each variant of gold trajectories earns, as ``reward`` and by component, on average.

    And "chance": four standard errors of what scoring the same trajectories again changes. A component that
    scores no wrong answer gives nothing for it.
    """
    names, rows = (*reward, "reward"), {}
    for task, trajectory in gold:
        scored = {name: score(task, variant, reward) for name, variant in variants(trajectory)}
        scored |= {f"again {number}": score(task, trajectory, reward) for number in range(AGAIN)}
        earned = {name: t.components | {"reward": t.reward} for name, t in scored.items()}
        base = earned["gold"]
        for name, own in earned.items():
            more = {n: (own.get(n) or 0.0) - base[n] for n in names if base.get(n) is not None}
            rows.setdefault(name, []).append(more)
    found = {v: {n: float(np.mean([m.get(n, 0.0) for m in ms])) for n in names} for v, ms in rows.items()}
    again = [more for number in range(AGAIN) for more in rows[f"again {number}"]]
    errors = {n: math.sqrt(np.mean([m.get(n, 0.0) ** 2 for m in again]) / len(gold)) for n in names}
    return found, {n: max(4 * error, EQUAL) for n, error in errors.items()}


# ---- components
def component(
    name: str, reward: Reward, groups: Groups, golden: Sequence[Trajectory], probed: Probed
) -> Item:
    """Whether it is dead, saturated, dominating or alive; and what it reads that is never written."""
    rollouts, weight = members(groups), reward[name][1]
    values, best = _scored(rollouts, name), _scored(golden, name)
    share = _part(groups, name, reward)
    constant = not values or max(values) - min(values) < EQUAL
    if probed.failures:
        finding = f"It fails: {probed.failures[0]}."
        light, advice = "red", f"Mend {name}: trajectories on which it fails have no reward."
    elif constant:
        finding = f"It was scored on none of {len(rollouts)} trajectories."
        if values:
            on_gold = f", and {best[0]:g} on all gold trajectories" if best and np.ptp(best) < EQUAL else ""
            finding = f"It is {values[0]:g} on all {len(values)} trajectories{on_gold}."
        light, advice = _constant(name, weight, values, best, probed)
    else:
        explains = f"it explains {_percent(share)} of the reward's variance within groups"
        finding = f"{min(values):.3g} to {max(values):.3g}, mean {np.mean(values):.3g}; {explains}."
        light, advice = _alive(name, weight, share, explained(groups, lambda t: t.success), probed)
    numbers = {
        "weight": weight,
        "share": share,
        "constant": constant,
        "low": min(values, default=None),
        "high": max(values, default=None),
    }
    return Item(
        f"Component {name}", light, finding, advice, () if light == "green" else ids(rollouts), numbers
    )


def _alive(name: str, weight: float, share: float, by_success: float, probed: Probed) -> tuple[str, str]:
    """Light and advice for a component that varies."""
    if not weight:
        return "green", ""
    if probed.missing:
        reads = f"It reads {_listed(probed.missing)}, which no record holds"
        return "red", f"{reads}: that part of it never acts. Write that input, or remove it."
    if SLOWER in probed.moved_by:
        clock = f"{name} depends on how busy the machine is: count turns or tokens, or scale it down."
        return "red" if share >= DOMINANT else "amber", clock
    if probed.absent:
        return "amber", f"It reads {_listed(probed.absent)}, which no task here has: that part never acts."
    if share >= DOMINANT and by_success < BESIDES:
        decides = f"{name} decides the advantages, success only {_percent(by_success)} of them"
        return "amber", f"{decides}: bound it, or of a sum lower its weight ({weight:g})."
    return "green", ""


def _constant(
    name: str, weight: float, values: Sequence[float], best: Sequence[float], probed: Probed
) -> tuple[str, str]:
    """Light and advice for a component that does not vary; ``best`` are its values on gold trajectories."""
    if not weight:
        return "green", "Its weight is 0."
    if probed.missing:
        return "red", (
            f"It is dead because it reads {_listed(probed.missing)}, which no record holds: its input is "
            "never written. Write it, or read what the trajectory has."
        )
    if not values and not best and probed.absent:
        return "green", f"It applies to no task here, as none has {_listed(probed.absent)}."
    if not probed.moved_by:  # a value may still depend on what no variant changes
        if values and not probed.right:
            return "amber", "Nothing right was sampled, and no gold trajectory could be tried: it may live."
        nothing = "neither a wrong answer, nor no answer, nor other calls, texts or lengths change it"
        return "amber" if values else "red", f"{name} seems dead: {nothing}. Mend or remove it."
    moved = f"It does change with {_listed(probed.moved_by)}."
    sign = math.copysign(1.0, weight)  # of a penalty the full value is the smallest
    if values and sign * values[0] >= max((sign * value for value in best), default=math.inf) - EQUAL:
        return "green", f"{name} is saturated: every trajectory has its full value. {moved}"
    return "amber" if values else "red", f"No trajectory moves {name} yet. {moved}"


def _part(groups: Groups, name: str, reward: Reward) -> float:
    """What a weighted component adds to the reward's variance within groups: its covariance with the reward.

    The shares add up to 1. NaN where rewards do not vary.
    """
    values, rewards = about_means(groups, lambda t: t.components.get(name)).T
    square = float(rewards @ rewards)
    return reward[name][1] * float(values @ rewards) / square if square > EQUAL else math.nan


def _percent(share: float) -> str:
    """A share as text; one of several may lie beyond 0 and 1 where others take away what it adds."""
    return f"{min(max(share, 0.0), 1.0):.0%}" if math.isfinite(share) else "none"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
