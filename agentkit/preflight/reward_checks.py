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
from agentkit.preflight.probe import SLOWER, Probed, saying, silent, variants
from agentkit.preflight.report import Item, gold_ids, ids
from agentkit.records import Task, Trajectory
from agentkit.rewards import Product, Reward, score
from agentkit.tools.outages import momentary
from agentkit.trajectories import EQUAL, members, met_limit, results_of
from agentkit.verifiers import verify

SLACK = 0.25  # of what a gold trajectory earns may be taken by penalties such as a price a turn
DOMINANT = 0.7  # of the reward's variance comes from one component,
BESIDES = 0.3  # where success explains less than this
GOLD_ODDS = 0.05  # share of gold trajectories that may fail: a corpus may hold a fact twice
NOTHING = "Nothing in the reward depends on being right: add correctness."
CALLS = (
    "The reward looks at the calls and never at the final answer: with a wrong one they earn as much. "
    "To pay for the answer too, add agentkit.rewards.correctness to the lab file's rewards."
)
LISTED = 6  # answers of other tasks
FILLERS = "such thing altogether another otherwise".split()  # where they have but one, as yes or no
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
    penalties = {} if isinstance(reward, Product) else _penalties(golden, reward, right)
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
    paid = _paid_above(reward, [(t, gold_of[t.task_id]) for t in above])
    more = f"{len(above)} wrong trajectories earn more than the gold one of their task"
    advice = f"{more}: read them; the reward pays for something else{paid}."
    light = "red" if len(above) > 0.1 * len(rollouts) else "amber"
    return Item(name, light, finding, advice, ids(above), values)


def _paid_above(reward: Reward, pairs: Sequence[tuple[Trajectory, Trajectory]]) -> str:
    """The component that pays wrong trajectories most of what they earn above gold, in words."""
    if isinstance(reward, Product) or not reward:
        return ""
    gains = dict.fromkeys(reward, 0.0)
    for name, (_, weight) in reward.items():
        values = [(t.components.get(name), g.components.get(name)) for t, g in pairs]
        gains[name] = weight * sum(a - b for a, b in values if None not in (a, b))
    most = max(gains, key=gains.get)
    more = gains[most] / len(pairs)
    return f", and {most} gives them {more:.3g} more on average" if more > EQUAL else ""


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
    """Whether a right answer earns more than a wrong one on gold trajectories, and what else is paid for.

    Its ``culprit`` is the component that is to blame; "" where none can be told.
    """
    name, values = "What being right earns", {"culprit": ""}
    if not gold:
        finding = "There is no gold trajectory, or its environment gives the reward: it cannot be varied."
        return Item(name, "green", finding, values=values)
    gains = _gains(reward, gold)
    chance, wrong, quits = gains["chance"], gains["a wrong answer"], gains["a wrong answer at once"]
    finding = "A right answer earns {:.3g} more than a wrong one in the same gold trajectory."
    if abs(wrong["reward"]) <= chance["reward"] and all(_judged_by_calls(*pair) for pair in gold):
        wrong = quits  # where calls are judged, the reward may read them
        finding = (
            "A gold trajectory earns {:.3g} more than one without its calls, which the verifier looks at."
        )
    earns = -wrong["reward"] if abs(wrong["reward"]) > chance["reward"] else 0.0
    moved = [n for n in reward if abs(quits[n]) > chance[n]]
    finding, values = finding.format(earns), values | {"earns": earns, "moved": moved}
    if gains["left out"]:
        culprit = next(iter(gains["left out"]))
        why = f"{culprit} is None for a wrong answer, and without it a trajectory has no reward: give it 0."
        return Item(name, "red", finding, why, values=values | {"culprit": culprit})
    blamed, read = _blamed(reward, wrong, gains["an answer that no tool has shown"], chance, earns)
    if blamed or earns <= 0:
        tells = [n for n, (_, w) in reward.items() if w * wrong[n] < 0 and abs(wrong[n]) > chance[n]]
        hidden = f"What scoring again changes hides what {' and '.join(tells)} pays for being right."
        calls = -gains["other arguments"]["reward"] > chance["reward"]
        culprit, why = (*blamed, ("", hidden if tells else CALLS if calls else NOTHING))[0]
        light = "amber" if earns > max(read, EQUAL) or (calls and why == CALLS) else "red"
        return Item(name, light, finding, why, values=values | {"culprit": culprit})
    light, culprit, why = _paid_besides(reward, gold, gains, earns)
    return Item(name, light, finding, why, values=values | {"culprit": culprit})


def _paid_besides(
    reward: Reward,
    gold: Sequence[tuple[Task, Trajectory]],
    gains: Mapping[str, Mapping[str, float]],
    earns: float,
) -> tuple[str, str, str]:
    """A light, the component to blame and why, where a right answer earns more than a wrong one."""
    chance, wrong, quits = gains["chance"], gains["a wrong answer"], gains["a wrong answer at once"]
    if quits["reward"] > chance["reward"]:
        culprit = max(reward, key=lambda n: reward[n][1] * quits[n])
        why = (
            f"A wrong answer at once, without a call, earns {quits['reward']:.3g} more than a right one: "
            f"lower the weight of {culprit} ({reward[culprit][1]:g})."
        )
        return "red", culprit, why
    listed = _paid_for_lists(reward, gold)
    if listed and listed["reward"] > max(-wrong["reward"] / 2, chance["reward"]):
        culprit = max(reward, key=lambda n: reward[n][1] * listed[n])
        why = (
            f"A list of answers earns {listed['reward']:.3g} more where the right one is among them: a "
            f"policy may learn to list. Have {culprit} compare whole answers."
        )
        return "amber", culprit, why
    longer = gains["many more tokens"]["reward"]
    if longer > max(SLACK * earns, chance["reward"]):
        why = f"A trajectory five times as long earns {longer:.3g} more: bound what pays for length or calls."
        return "amber", "", why
    return "green", "", ""


def _paid_for_lists(reward: Reward, gold: Sequence[tuple[Task, Trajectory]]) -> dict[str, float]:
    """What a list of other tasks' answers earns more with the right one in it, on average, as ``reward`` and
    by component; {} where that cannot be told.
    """
    answers, rows = list(dict.fromkeys(t.answer for _, t in gold if t.answer)), []
    for task, trajectory in gold:
        if not trajectory.answer:
            continue
        others = [a for a in answers if a != trajectory.answer]
        start, *others = (others if len(others) > 1 else others + FILLERS)[:LISTED]
        lists = [start, trajectory.answer, *others], [start, *others]
        changed = [saying(trajectory, ", ".join(x)) for x in lists]
        holds, lacks = (
            t.components | {"reward": t.reward} for t in (score(task, t, reward) for t in changed)
        )
        more = {n: holds[n] - lacks[n] for n in holds if None not in (holds[n], lacks.get(n))}
        if "reward" in more:
            rows.append(more)
    return {n: float(np.mean([m.get(n, 0.0) for m in rows])) for n in (*reward, "reward")} if rows else {}


def _judged_by_calls(task: Task, trajectory: Trajectory) -> bool:
    """Whether a right answer is no longer right without the calls that led to it."""
    return verify(task, silent(trajectory)).value != 1.0


def _blamed(
    reward: Reward,
    wrong: Mapping[str, float],
    unseen: Mapping[str, float],
    chance: Mapping[str, float],
    earns: float,
) -> tuple[list[tuple[str, str]], float]:
    """Components to blame and why, and the most that one pays for the answer standing in an observation."""
    moved = {n for n in reward if abs(wrong[n]) > chance[n]}
    paid = {n: w * wrong[n] for n, (_, w) in reward.items() if n in moved and w * wrong[n] > EQUAL}
    reads = {
        n: -w * unseen[n]
        for n, (_, w) in reward.items()
        if n not in moved and abs(unseen[n]) > chance[n] and -w * unseen[n] > EQUAL
    }
    blamed = [
        (n, f"{n} alone tells right from wrong, and its weight is 0: give it one.")
        for n, (_, w) in reward.items()
        if not w and n in moved and wrong[n] < 0 and earns <= 0
    ]
    if earns <= 0 and paid:
        why = "pays more for a wrong answer than for a right one: its sign, or its weight's, is flipped."
        blamed.append((most := max(paid, key=paid.get), f"{most} {why}"))
    if reads and max(reads.values()) >= earns / 2:
        why = "pays for the answer standing in an observation, whatever is answered: pay for the answer."
        blamed.append((most := max(reads, key=reads.get), f"{most} {why}"))
    return blamed, max(reads.values(), default=0.0)


def _gains(reward: Reward, gold: Sequence[tuple[Task, Trajectory]]) -> dict[str, dict[str, float]]:
    """How much more each variant of gold trajectories earns, as ``reward`` and by component, on average.

    "chance" is four standard errors of what scoring the same trajectories again changes; "left out" holds
    the components that score no wrong answer.
    """
    rows: dict[str, list[dict[str, float]]] = {}
    for task, trajectory in gold:
        scored = {name: score(task, variant, reward) for name, variant in variants(trajectory)}
        scored |= {f"again {number}": score(task, trajectory, reward) for number in range(AGAIN)}
        earned = {name: t.components | {"reward": t.reward} for name, t in scored.items()}
        for name, own in earned.items():
            base = {n: earned["gold"].get(n) for n in own}
            more = {n: v - base[n] for n, v in own.items() if v is not None and base[n] is not None}
            rows.setdefault(name, []).append(more)
    names = (*reward, "reward")
    found = {v: {n: float(np.mean([m.get(n, 0.0) for m in ms])) for n in names} for v, ms in rows.items()}
    again = [more for number in range(AGAIN) for more in rows[f"again {number}"]]
    errors = {n: np.sqrt(np.mean([m.get(n, 0.0) ** 2 for m in again]) / len(gold)) for n in names}
    left = {n for n in reward if any(n in m for m in rows["gold"])}
    left -= {n for n in reward if any(n in m for m in rows["a wrong answer"])}
    found |= {"left out": dict.fromkeys(sorted(left), 0.0)}
    return found | {"chance": {n: max(4 * float(error), EQUAL) for n, error in errors.items()}}


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
    if probed.missing and weight:
        reads = f"It reads {_listed(probed.missing)}, which no record holds"
        return "red", f"{reads}: that part of it never acts. Write that input, or remove it."
    if SLOWER in probed.moved_by and weight:
        clock = (
            f"{name} depends on how busy the machine is, and is {_percent(share)} of the reward's variance"
        )
        return "red" if share >= DOMINANT else "amber", f"{clock}: count turns or tokens, or scale it down."
    if probed.absent and weight:
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
    if values and not probed.moved_by and not probed.right:
        return "amber", "Nothing right was sampled, and no gold trajectory could be tried: it may be alive."
    if not values or not probed.moved_by:  # a value may still depend on what no variant changes
        return "amber" if values else "red", (
            f"{name} {'seems' if values else 'is'} dead: neither a wrong answer, nor no answer, nor other "
            "calls, texts or lengths change it. Mend or remove it."
        )
    moved = f"It does change with {_listed(probed.moved_by)}."
    sign = math.copysign(1.0, weight)  # of a penalty the full value is the smallest
    if sign * values[0] >= max((sign * value for value in best), default=math.inf) - EQUAL:
        saturated = f"{name} is saturated: every trajectory has its full value, so it teaches nothing now."
        return "green", f"{saturated} {moved}"
    return "amber", f"No trajectory moves {name} yet. {moved}"


def _part(groups: Groups, name: str, reward: Reward) -> float:
    """What a weighted component adds to the reward's variance within groups: its covariance with the reward.

    The shares of a weighted sum add up to 1; of a product, each factor's is what it alone explains. NaN where
    rewards do not vary.
    """
    if isinstance(reward, Product):
        return explained(groups, lambda t: t.components.get(name))
    values, rewards = about_means(groups, lambda t: t.components.get(name)).T
    square = float(rewards @ rewards)
    return reward[name][1] * float(values @ rewards) / square if square > EQUAL else math.nan


def _percent(share: float) -> str:
    """A share as text; one of several may lie beyond 0 and 1 where others take away what it adds."""
    return f"{min(max(share, 0.0), 1.0):.0%}" if math.isfinite(share) else "none"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
