"""Is the reward what it is meant to be? What gold trajectories earn under it, and what each component does.

Leaves out what moves a component and what it reads (probe).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from agentkit.preflight.checks import Groups
from agentkit.preflight.probe import SLOWER, Probed, silent, variants
from agentkit.preflight.report import Item, gold_ids, ids
from agentkit.records import Task, Trajectory
from agentkit.rewards import Reward, is_read, score
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
    golden = [t for t in golden if t.success == 1.0 or not _cut_short(t)]
    if not golden:
        advice = "Give tasks a plan (meta['plan']) that fits the limits, to try the reward on gold."
        return Item(name, "amber", "There is no gold trajectory that came to its end.", advice)
    refused = [t for t in golden if t.success is not None and t.success < 1.0]
    if len(refused) > GOLD_ODDS * len(golden):
        finding = f"The verifier refuses {len(refused)} of {len(golden)} gold trajectories"
        advice = "Mend the verifier or the gold answers: a right policy would be punished."
        return Item(name, "red", f"{finding} ({refused[0].why[:120]}).", advice, gold_ids(refused))
    unscored = [t for t in golden if t.reward is None]
    if len(unscored) > GOLD_ODDS * len(golden):
        failing = Counter(name for t in unscored for name in reward if t.components.get(name) is None)
        finding = f"{len(unscored)} of {len(golden)} gold trajectories have no reward."
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
    gold_of = {t.task_id: t.reward for t in golden if t.reward is not None}
    rewards, rollouts = list(gold_of.values()), [t for t in members(groups) if t.reward is not None]
    finding = (
        f"{len(golden)} gold trajectories earn {np.mean(rewards):.3g} on average ({min(rewards):.3g} to "
        f"{max(rewards):.3g})."
    )
    if penalties := _penalties(golden, reward, right):
        penalty = min(penalties, key=penalties.get)
        advice = (
            f"{penalty} takes {-penalties[penalty]:.3g} from gold trajectories: it fires on what it should "
            f"reward. Mend what it matches before training; the usual cause is an unanchored pattern, which "
            "every text matches."
        )
        return Item(name, "red", finding, advice, gold_ids(golden))
    wrong = [t for t in rollouts if t.success == 0.0]
    above = [t for t in wrong if t.reward > gold_of.get(t.task_id, math.inf) + EQUAL]
    if not above:
        return Item(name, "green", finding)
    advice = f"{len(above)} wrong trajectories earn more than the gold one of their task: read them."
    return Item(name, "red" if len(above) > 0.1 * len(rollouts) else "amber", finding, advice, ids(above))


def _penalties(golden: Sequence[Trajectory], reward: Reward, right: Mapping[str, Any]) -> dict[str, float]:
    """Components that take more from gold than SLACK of what others or being right give, and the mean.

    A price of turns, or a reward below zero throughout, also moves with how a trajectory ends: that is none.
    """
    means = {
        name: weight * float(np.mean(_scored(golden, name) or 0.0)) for name, (_, weight) in reward.items()
    }
    earned = max(right.get("earns", 0.0), sum(mean for mean in means.values() if mean > 0), EQUAL)
    read = {name for name, (component, _) in reward.items() if is_read(component)}
    varied = {*right.get("moved", ()), *read}
    return {name: mean for name, mean in means.items() if name not in varied and -mean > SLACK * earned}


def _scored(trajectories: Sequence[Trajectory], name: str) -> list[float]:
    return [t.components[name] for t in trajectories if t.components.get(name) is not None]


def being_right(reward: Reward, gold: Sequence[tuple[Task, Trajectory]]) -> Item:
    """Whether a right answer earns more than a wrong one on gold trajectories.

    Its value ``names`` says whether it names a component, and so the cause of what other items show.
    """
    name = "What being right earns"
    if not gold:
        finding = "There is no gold trajectory, or its environment gives the reward: it cannot be varied."
        return Item(name, "green", finding, values={"names": False})
    gains, chance = _gains(reward, gold)
    wrong, quits, other = "a wrong answer", gains["a wrong answer at once"], gains["other arguments"]
    losses, needs_calls = gains[wrong], all(verify(t, silent(own)).value != 1.0 for t, own in gold)
    if abs(losses["reward"]) <= chance["reward"] and needs_calls:
        wrong, losses = "no calls", quits  # the verifier looks at the calls, so the reward may read them
    earns = -losses["reward"] if abs(losses["reward"]) > chance["reward"] else 0.0
    why = _blamed(reward, losses, quits, chance, earns)
    if why == NOTHING and other["reward"] < -chance["reward"]:
        why = CALLS
    if why == NOTHING and any(is_read(part) and weight for part, weight in reward.values()):
        why = ""  # the state cannot be varied
    finding = f"A gold trajectory earns {earns:.3g} more than the same with {wrong}."
    moved = [n for n in reward if abs(quits[n]) > chance[n]]
    values = {"earns": earns, "moved": moved, "names": why not in ("", NOTHING, CALLS)}
    return Item(name, ("amber" if why == CALLS else "red") if why else "green", finding, why, values=values)


Gains = Mapping[str, float]  # of "reward" and of each component


def _blamed(reward: Reward, losses: Gains, quits: Gains, chance: Gains, earns: float) -> str:
    """What is to blame; "" where a right answer earns what it should."""
    if earns > 0 and quits["reward"] <= chance["reward"]:
        return ""
    if earns > 0:
        n = max(reward, key=lambda n: reward[n][1] * quits[n])
        more = f"A wrong answer at once, without a call, earns {quits['reward']:.3g} more than a right one"
        return f"{more}: lower the weight of {n} ({reward[n][1]:g})."
    for n in [n for n in reward if abs(losses[n]) > chance[n]]:
        if not reward[n][1] and losses[n] < 0:
            return f"{n} alone tells right from wrong, and its weight is 0: give it one."
        if reward[n][1] * losses[n] > EQUAL:
            return f"{n} pays more for a wrong answer: its sign, or its weight's, is flipped."
    return NOTHING


def _gains(reward: Reward, gold: Sequence[tuple[Task, Trajectory]]) -> tuple[dict[str, Gains], Gains]:
    """How much more each variant of gold trajectories earns, as ``reward`` and by component, on average.

    And "chance": four standard errors of what scoring the same trajectories again changes. A component that
    scores no wrong answer gives nothing for it.
    """
    names, rows = [*reward, "reward"], []
    for task, trajectory in gold:
        again = [(f"again {number}", trajectory) for number in range(AGAIN)]
        scored = [(name, score(task, own, reward)) for name, own in (*variants(trajectory), *again)]
        earned = [(name, t.components | {"reward": t.reward}) for name, t in scored]
        base = {n: value for n, value in earned[0][1].items() if n in names and value is not None}
        rows += [(name, {n: (own.get(n) or 0.0) - base[n] for n in base}) for name, own in earned]
    more = pd.DataFrame(
        [own for _, own in rows], index=[name for name, _ in rows], columns=names, dtype=float
    ).fillna(0.0)
    errors = np.sqrt((more[more.index.str.startswith("again ")] ** 2).mean() / len(gold))
    return more.groupby(level=0).mean().to_dict("index"), (4 * errors).clip(EQUAL).to_dict()


# ---- components
def component(
    name: str, reward: Reward, groups: Groups, golden: Sequence[Trajectory], probed: Probed
) -> Item:
    """Whether it is dead, saturated, dominating or alive; and what it reads that is never written."""
    weight = reward[name][1]
    values, best = _scored(members(groups), name), _scored(golden, name)
    finding = f"It was scored on none of {len(members(groups))} trajectories."
    if values:
        finding = f"{min(values):.3g} to {max(values):.3g}, mean {np.mean(values):.3g}."
    if probed.failures:
        finding = f"It fails: {probed.failures[0]}."
        light, advice = "red", f"Mend {name}: trajectories on which it fails have no reward."
    elif not weight:
        light, advice = "green", "Its weight is 0."
    elif probed.missing:
        light, advice = "red", f"It reads {_listed(probed.missing)}, which no record holds: write that."
    elif not values or max(values) - min(values) < EQUAL:
        light, advice = _constant(name, weight, values, best, probed)
    else:
        light, advice = _alive(name, weight, groups, probed)
    return Item(f"Component {name}", light, finding, advice, () if light == "green" else ids(members(groups)))


def _alive(name: str, weight: float, groups: Groups, probed: Probed) -> tuple[str, str]:
    """Light and advice for a component that varies."""
    trajectories, columns = members(groups), ["value", "success", "reward"]
    rows = [(t.components.get(name), t.success, t.reward) for t in trajectories]
    known = pd.DataFrame(rows, columns=columns, dtype=float)
    about = known - known.groupby([t.task_id for t in trajectories]).transform("mean")
    spread, alike = about.cov(), about.corr()
    share = weight * spread.loc["value", "reward"] / max(spread.loc["reward", "reward"], EQUAL)
    if SLOWER in probed.moved_by:
        clock = f"{name} depends on how busy the machine is: count turns or tokens, or scale it down."
        return "red" if share >= DOMINANT else "amber", clock
    if probed.absent:
        return "amber", f"It reads {_listed(probed.absent)}, which no task here has: that part never acts."
    if share >= DOMINANT and not alike.loc["success", "reward"] ** 2 >= BESIDES:
        decides = f"{name} decides the advantages, and being right hardly does"
        return "amber", f"{decides}: bound it, or of a sum lower its weight ({weight:g})."
    return "green", ""


def _constant(
    name: str, weight: float, values: Sequence[float], best: Sequence[float], probed: Probed
) -> tuple[str, str]:
    """Light and advice for a component that does not vary; ``best`` are its values on gold trajectories."""
    if not values and not best and probed.absent:
        return "green", f"It applies to no task here, as none has {_listed(probed.absent)}."
    if values and not probed.moved_by and not probed.right:
        return "amber", "Nothing right was sampled, and no gold trajectory could be tried: it may live."
    light = "amber" if values else "red"  # a value may still depend on what no variant changes
    if not probed.moved_by:
        nothing = "neither a wrong answer, nor no answer, nor other calls, texts or lengths change it"
        return light, f"{name} seems dead: {nothing}. Mend or remove it."
    moved = f"It does change with {_listed(probed.moved_by)}."
    sign = math.copysign(1.0, weight)  # of a penalty the full value is the smallest
    if values and sign * values[0] >= max((sign * value for value in best), default=math.inf) - EQUAL:
        return "green", f"{name} is saturated: every trajectory has its full value. {moved}"
    return light, f"No trajectory moves {name} yet. {moved}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
