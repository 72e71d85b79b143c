"""The checks of a preflight: each looks at one thing in the starting policy's rollouts and returns an item.

All are pure functions of recorded trajectories, so a report can be made again from what was stored. Thresholds are constants
with their reason; red is kept for what makes a run pointless.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agentkit.diagnostics.history import CUT, EQUAL, explained
from agentkit.evidence import results_of
from agentkit.preflight import chances
from agentkit.preflight.probe import Probed
from agentkit.preflight.report import Item, ids
from agentkit.records import Task, Trajectory
from agentkit.rewards import Product, Reward
from agentkit.statistics import detectable_mean, success_interval
from agentkit.xray import faults, xray

Groups = list[list[Trajectory]]
HOPELESS = 0.95  # share of groups without advantage above which nothing can be learnt
NOISY, SHAKY = 0.5, 0.9  # share of advantage variance that a repeat scoring explains: below it noise leads; below it look
SLACK = 0.25  # of what a gold trajectory earns may be taken by penalties such as a price a turn
DOMINANT, BESIDES = 0.7, 0.3  # of the reward's variance comes from one component, where success explains less than the second
FAILING, CUT_OFF = 0.3, 0.2  # share of calls that fail, of trajectories that meet a limit
ALIKE = 0.8  # share of repeats in a group
BLIND = 0.15  # difference in success below which most training effects lie
GOLD_ODDS = 0.02  # gold trajectories that may fail: a corpus may hold a fact twice


def by_group(trajectories: Sequence[Trajectory]) -> Groups:
    """Trajectories of one task together, in order."""
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.task_id].append(trajectory)
    return list(groups.values())


def _verdicts(groups: Groups) -> dict[str, list[float]]:
    return {g[0].task_id: [t.success for t in g if t.success is not None] for g in groups}


def _equal(group: Sequence[Trajectory]) -> bool:
    rewards = [t.reward for t in group if t.reward is not None]
    return not rewards or max(rewards) - min(rewards) < EQUAL


# ---- is there anything to learn from? --------------------------------------------------------------------------------
def success(groups: Groups) -> Item:
    """Success of the starting policy, with its interval, and how tasks differ."""
    right, n = chances.by_task(_verdicts(groups))
    rates = np.array(right) / np.array(n) if n else np.array([])
    if not len(rates):
        return Item("Success now", "red", "No rollout was scored.", "Mend the verifier: it gave no verdict on any rollout.")
    mean, (low, high) = float(rates.mean()), success_interval(rates, sum(n))
    mixed = float(((rates > 0) & (rates < 1)).mean())
    said = f"{mean:.0%} [{low:.0%}, {high:.0%}] of the rollouts are right; {mixed:.0%} of {len(rates)} tasks are solved at times."
    wrong = [t for g in groups for t in g if t.success is not None and t.success < 0.5]
    advice = ""
    if mean < 0.05:
        advice = "Hardly anything is right: begin with easier tasks, or with a cold start (sft) on demonstrations."
    elif mean > 0.95:
        advice = "Nearly everything is right already: take harder tasks."
    values = {"success": mean, "ci95": [low, high], "rates": rates.tolist(), "mixed": mixed}
    return Item("Success now", "amber" if advice else "green", said, advice, ids(wrong), values)


def dead_groups(groups: Groups, group_size: int) -> Item:
    """Groups without an advantage: seen now, and expected for other group sizes."""
    right, n = chances.by_task(_verdicts(groups))
    seen = float(np.mean([_equal(g) for g in groups]))
    a, b = chances.fit_beta(right, n) if n else (1.0, 1.0)
    expected = {g: chances.dead_share(a, b, g) for g in sorted({*chances.GROUP_SIZES, group_size})}
    useful = chances.smallest_useful(a, b)
    said = (
        f"{seen:.0%} of the groups have equal rewards; by success alone {expected[group_size]:.0%} are expected at group_size "
        f"{group_size} (" + ", ".join(f"{g}: {share:.0%}" for g, share in expected.items()) + "; beta-binomial fit)."
    )
    values = {"seen": seen, "expected": {str(g): s for g, s in expected.items()}, "smallest_useful": useful, "beta": [a, b]}
    dead = [t for g in groups if _equal(g) for t in g[:1]]
    scores = [t.success for g in groups for t in g if t.success is not None]
    differ = bool(scores) and 0 < np.mean(np.array(scores) > 0.5) < 1
    if seen >= HOPELESS:
        rewards = {round(t.reward, 6) for g in groups for t in g if t.reward is not None}
        constant = f"every rollout earns {next(iter(rewards)):g}" if len(rewards) == 1 else "rewards are equal within the groups"
        if differ:
            advice = (
                f"Right and wrong rollouts are rewarded alike ({constant}): the reward is broken, not the policy optimal. "
                "See the items on gold trajectories and components."
            )
        else:
            which = "wrong" if not scores or np.mean(scores) < 0.5 else "right"
            advice = f"All rollouts are {which}: take {'easier' if which == 'wrong' else 'harder'} tasks" + (
                ", or a cold start (sft)." if which == "wrong" else "."
            )
        return Item("Groups without advantage", "red", said, advice, ids(dead), values)
    if useful is None:
        advice = (
            "Not even groups of 32 would help half of the tasks: choose tasks of middling difficulty, or replace dead groups."
        )
    elif useful > group_size:
        advice = f"Raise group_size to {useful}: the smallest with at most every second group dead."
    else:
        advice = f"The smallest useful group_size is {useful}." if useful < group_size else ""
    return Item(
        "Groups without advantage", "amber" if useful is None or useful > group_size else "green", said, advice, ids(dead), values
    )


def scoring_noise(groups: Groups, scorings: Sequence[Mapping[tuple[str, int], Trajectory]]) -> Item:
    """How much of the advantages a second scoring of the same trajectories would confirm.

    Args:
        groups: the rollouts.
        scorings: S scorings of them, each by task and sample.
    """
    name = "Signal or noise"
    sizes = [len(g) for g in groups]
    keys = [[(t.task_id, t.sample) for t in g] for g in groups if len(g) == max(sizes, default=0) and len(g) > 1]
    usable = [g for g in keys if all(s[k].reward is not None for s in scorings for k in g)]
    if not usable:
        return Item(name, "amber", "No group was scored as a whole, so repeats say nothing.", "Mend what is not scored first.")
    rewards = np.array([[[s[k].reward for k in g] for g in usable] for s in scorings], dtype=float)
    share, within = chances.repeatable(rewards), float(rewards.var(0, ddof=1).mean())
    noisy = _varying(scorings)
    values = {"repeatable": share, "noise_variance": within, "noisy_components": noisy}
    if share is None:
        return Item(name, "green", "Scoring again changes nothing, and there is no advantage to disturb.", "", (), values)
    # groups in which everything that repeats is equal: the noise alone is divided by its own spread there
    still = float((np.ptp(rewards.mean(0), axis=1) < 4 * math.sqrt(within) + EQUAL).mean()) if within > EQUAL else 0.0
    said = f"Scored {len(scorings)} times, a repeat explains {share:.0%} of the variance of the advantages."
    if within <= EQUAL:
        return Item(name, "green", said, "", (), values)
    culprit = f"component {' and '.join(noisy)} gives" if noisy else "the reward gives"
    advice = (
        f"{culprit[0].upper()}{culprit[1:]} the same trajectory another value each time; in {still:.0%} of the groups "
        "little else "
        "differs, and dividing by the group's spread turns that noise into full-size advantages. Random noise cures no zero "
        "variance: remove it, and mend the reward or the choice of tasks."
    )
    light = "red" if share < NOISY else "amber" if share < SHAKY else "green"
    return Item(name, light, said, advice if light != "green" else "", tuple(f"{k}#{s}" for k, s in usable[0]), values)


def _varying(scorings: Sequence[Mapping[tuple[str, int], Trajectory]]) -> list[str]:
    """Components that differ between scorings of one trajectory."""
    found = []
    for key, trajectory in scorings[0].items():
        for name in trajectory.components:
            values = {s[key].components.get(name) for s in scorings}
            if len(values) > 1 and name not in found:
                found.append(name)
    return found


# ---- is the reward what it is meant to be? ---------------------------------------------------------------------------
def gold(golden: Sequence[Trajectory], groups: Groups, tasks: Mapping[str, Task], reward: Reward) -> Item:
    """Trajectories of the scripted expert under the same verifier and reward: they must reach its maximum."""
    name = "Gold trajectories"
    if not golden:
        return Item(
            name,
            "amber",
            "There is no scripted expert for these tasks.",
            "Give tasks a plan (meta['plan']), so that the reward can be tried on gold trajectories.",
        )
    refused = [t for t in golden if t.success is not None and t.success < 1.0]
    unscored = [t for t in golden if t.reward is None]
    if len(refused) > GOLD_ODDS * len(golden):
        said = f"The verifier refuses {len(refused)} of {len(golden)} gold trajectories ({refused[0].why[:120]})."
        return Item(name, "red", said, "Mend the verifier or the gold answers: a right policy would be punished.", ids(refused))
    if len(unscored) > GOLD_ODDS * len(golden):
        said = f"{len(unscored)} of {len(golden)} gold trajectories have no reward."
        return Item(name, "red", said, "Mend the components that fail on them; see the components below.", ids(unscored))
    rewards = [t.reward for t in golden]
    everyone = [t for g in groups for t in g if t.reward is not None]
    best = max((t.reward for t in everyone), default=-math.inf)
    penalties = {} if isinstance(reward, Product) else _penalties(golden, reward)
    said = (
        f"{len(golden)} gold trajectories earn {np.mean(rewards):.3g} on average ({min(rewards):.3g} to "
        f"{max(rewards):.3g}); the best rollout {best:.3g}."
    )
    values = {"rewards": rewards, "best_rollout": best, "penalties": penalties}
    if penalties:
        struck = max(penalties, key=lambda n: -penalties[n])
        alike = np.mean([t.components.get(struck) == golden[0].components.get(struck) for t in everyone]) if everyone else 0.0
        advice = (
            f"{struck} takes {-penalties[struck]:.3g} from gold trajectories, and gives {alike:.0%} of the rollouts "
            "the same value: it "
            "fires on what it should reward. Without it gold would earn "
            f"{np.mean(rewards) - penalties[struck]:.3g}. Mend what {struck} matches before training."
        )
        return Item(name, "red", said, advice, ids(golden), values)
    pairs = {t.task_id: t.reward for t in golden}
    above = [t for t in everyone if t.task_id in pairs and t.reward > pairs[t.task_id] + EQUAL and t.success == 0.0]
    if above:
        advice = (
            f"{len(above)} wrong rollouts earn more than the gold trajectory of their task: read them; the reward pays "
            "for something else."
        )
        return Item(name, "red" if len(above) > 0.1 * len(everyone) else "amber", said, advice, ids(above), values)
    return Item(name, "green", said, "", (), values)


def _penalties(golden: Sequence[Trajectory], reward: Reward) -> dict[str, float]:
    """Components that take more from gold trajectories than SLACK of what the others give, with the mean they take."""
    means = {
        n: weight * float(np.mean([t.components[n] for t in golden if t.components.get(n) is not None] or [0.0]))
        for n, (_, weight) in reward.items()
    }
    earned = sum(v for v in means.values() if v > 0)
    return {n: v for n, v in means.items() if v < 0 and -v > SLACK * max(earned, EQUAL)}


def components(groups: Groups, golden: Sequence[Trajectory], reward: Reward, probed: Mapping[str, Probed]) -> list[Item]:
    """One item a component: dead, saturated, dominating or alive; and what it reads that is never written."""
    everyone = [t for g in groups for t in g]
    scored = [[t for t in g if t.reward is not None] for g in groups]
    by_success = explained(scored, lambda t: t.success)
    return [
        _component(name, weight, everyone, scored, golden, probed.get(name), by_success) for name, (_, weight) in reward.items()
    ]


def _component(
    name: str,
    weight: float,
    everyone: Sequence[Trajectory],
    scored: Groups,
    golden: Sequence[Trajectory],
    probed: Probed | None,
    by_success: float,
) -> Item:
    label = f"Component {name}"
    values = [t.components[name] for t in everyone if t.components.get(name) is not None]
    best = [t.components[name] for t in golden if t.components.get(name) is not None]
    share = _part(scored, name, weight)
    numbers = {"weight": weight, "share": share, "low": min(values, default=None), "high": max(values, default=None)}
    shown = ids(everyone)
    if probed is not None and probed.failures:
        said = f"It fails: {probed.failures[0]}."
        return Item(label, "red", said, f"Mend {name}: trajectories on which it fails have no reward.", shown, numbers)
    constant = not values or max(values) - min(values) < EQUAL
    numbers["constant"] = constant
    if not constant:
        said = (
            f"{min(values):.3g} to {max(values):.3g}, mean {np.mean(values):.3g}; it explains {_percent(share)} of the "
            "reward's variance within groups."
        )
        if probed is not None and probed.missing and weight:
            advice = (
                f"It reads {_listed(probed.missing)}, which no record holds: that part of it never acts. Write that input, "
                "or remove it."
            )
            return Item(label, "red", said, advice, shown, numbers)
        if share >= DOMINANT and by_success < BESIDES:
            advice = f"{name} decides the advantages, success only {_percent(by_success)} of them: lower its weight ({weight:g})."
            return Item(label, "amber", said, advice, shown, numbers)
        return Item(label, "green", said, "", (), numbers)
    what = (
        f"It is {values[0]:g} on all {len(values)} rollouts" if values else f"It was scored on none of {len(everyone)} rollouts"
    )
    what += f", and {best[0]:g} on all gold trajectories" if best and values and max(best) - min(best) < EQUAL else ""
    if not weight:
        return Item(label, "green", f"{what}; its weight is 0.", "", (), numbers)
    if probed is not None and probed.missing:
        advice = (
            f"It is dead because it reads {_listed(probed.missing)}, which no record holds: its input is never "
            "written. Write it, or read what the trajectory has."
        )
        return Item(label, "red", f"{what}.", advice, shown, numbers)
    if probed is not None and probed.patterns:
        advice = (
            f"Its pattern {probed.patterns[0]} is found in every text, an unrelated sentence included: it is "
            "unanchored or too wide. Anchor it, or read the parsed calls."
        )
        return Item(label, "red", f"{what}.", advice, shown, numbers)
    if not values or (probed is not None and not probed.moved_by):
        advice = (
            f"{name} is dead: neither a wrong answer, nor no answer, nor other calls or lengths change it. Mend or remove it."
        )
        return Item(label, "red", f"{what}.", advice, shown, numbers)
    moved = f" It does change with {_listed(probed.moved_by)}." if probed is not None else ""
    saturated = values[0] >= max(best, default=math.inf) - EQUAL
    advice = (
        f"{name} is saturated: every rollout has its full value, so it teaches nothing now."
        if saturated
        else f"No rollout moves {name} yet."
    )
    return Item(label, "green" if saturated else "amber", f"{what}.", advice + moved, (), numbers)


def _part(groups: Groups, name: str, weight: float) -> float:
    """What a weighted component adds to the reward's variance within groups, as a share: its covariance with the reward.

    The shares of a weighted sum add up to 1. NaN where rewards do not vary.
    """
    pairs = [[(t.components[name], t.reward) for t in g if t.components.get(name) is not None] for g in groups]
    centred = [np.array(p) - np.mean(p, axis=0) for p in pairs if len(p) > 1]
    both = np.concatenate(centred) if centred else np.zeros((0, 2))
    square = float((both[:, 1] ** 2).sum())
    return weight * float((both[:, 0] * both[:, 1]).sum()) / square if square > EQUAL else math.nan


def _percent(share: float) -> str:
    return f"{share:.0%}" if math.isfinite(share) else "none"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")


# ---- what the rollouts look like -------------------------------------------------------------------------------------
def tools(groups: Groups) -> Item:
    """Failed calls, trajectories that meet a limit, and lengths."""
    everyone = [t for g in groups for t in g]
    results = [r for t in everyone for r in results_of(t)]
    failed = [t for t in everyone if any(not r.ok for r in results_of(t))]
    cut = [t for t in everyone if t.stop_reason in CUT]
    lengths = np.array([len(t.completion_ids) for t in everyone])
    rate, ends = sum(not r.ok for r in results) / max(len(results), 1), len(cut) / len(everyone)
    said = (
        f"{len(results) / len(everyone):.1f} calls a trajectory, {rate:.1%} of them fail; {ends:.1%} of the "
        "trajectories meet a limit; "
        f"{np.median(lengths):.0f} tokens in the median, {np.percentile(lengths, 95):.0f} at the 95th percentile."
    )
    advice = []
    if ends > CUT_OFF:
        reasons = sorted({t.stop_reason.value for t in cut})
        advice.append(f"Raise the limit they meet ({', '.join(reasons)}), or shorten what tools return.")
    if rate > FAILING:
        advice.append(
            f"Calls fail most often with: {_commonest(results)}. Show the format in the prompt, or demonstrate it (sft)."
        )
    values = {"calls": len(results) / len(everyone), "failed": rate, "cut": ends, "tokens": float(lengths.mean())}
    return Item("Tools and lengths", "amber" if advice else "green", said, " ".join(advice), ids(cut or failed), values)


def _commonest(results: Sequence[Any]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for result in results:
        counts[result.observation[:60]] += not result.ok
    return repr(max(counts, key=counts.get)) if counts else "nothing"


def diversity(groups: Groups, temperature: float) -> Item:
    """How different the rollouts of a group are at this temperature."""
    several = [g for g in groups if len(g) > 1]
    if not several:
        return Item("Diversity", "amber", "No group has two rollouts.", "Use a group_size of at least 2.")
    first = float(np.mean([len({t.turns[0].text for t in g if t.turns}) / len(g) for g in several]))
    whole = float(np.mean([len({t.completion_ids for t in g}) / len(g) for g in several]))
    repeats = float(np.mean([1 - (len({t.completion_ids for t in g}) - 1) / (len(g) - 1) for g in several]))
    said = (
        f"At temperature {temperature:g}, {first:.0%} of a group's first actions and {whole:.0%} of its "
        "trajectories are distinct."
    )
    advice = f"Raise temperature: {repeats:.0%} of the rollouts repeat another of their group." if repeats > ALIKE else ""
    same = [t for g in several if len({t.completion_ids for t in g}) == 1 for t in g[:1]]
    return Item("Diversity", "amber" if advice else "green", said, advice, ids(same), {"first": first, "whole": whole})


def masks(groups: Groups, decode: Callable[[Sequence[int]], str] | None = None) -> Item:
    """Invariants of the token record: nothing a tool wrote is trained on, lengths agree, groups are groups."""
    broken: list[tuple[str, Trajectory]] = []
    for group in groups:
        if len({t.prompt_ids for t in group}) > 1:
            broken.append(("a group has several prompts", group[0]))
        if len({t.sample for t in group}) < len(group):
            broken.append(("two rollouts of a group have the same sample number", group[0]))
        broken += [(problem, t) for t in group if (problem := _mask_fault(t, decode))]
    n = sum(map(len, groups))
    if broken:
        said = f"{len(broken)} faults in {n} trajectories: {broken[0][0]}."
        return Item(
            "Masks", "red", said, "Do not train on these: mend the rollout's masks and groups first.", ids([t for _, t in broken])
        )
    return Item(
        "Masks",
        "green",
        f"All {n} trajectories hold: ids, mask and log-probabilities line up, only sampled tokens are trained on.",
    )


def _mask_fault(t: Trajectory, decode: Callable[[Sequence[int]], str] | None) -> str | None:
    try:
        found = faults(xray(t))
    except ValueError as error:
        return str(error)
    if found:
        return found[0]
    if any(not math.isfinite(p) or p > 1e-3 for p in t.old_logprobs):
        return "a log-probability at sampling is positive or not finite"
    for turn in t.turns:
        if not all(t.action_mask[slice(*turn.span)]):
            return "a sampled token is not trained on"
        if decode is not None and decode(t.completion_ids[slice(*turn.span)]) != turn.text:
            return "a turn's text is not what its tokens say (retokenisation drift)"
    return None


# ---- is the run able to show anything? -------------------------------------------------------------------------------
def power(groups: Groups, n_test: int, samples: int) -> Item:
    """The smallest difference in success that the test split shows with 80 % power, before against after."""
    name = "What the test can show"
    right, n = chances.by_task(_verdicts(groups))
    if n_test < 1 or not n:
        return Item(
            name, "amber", "There are no test tasks.", "Give the suite a test split, or nothing can be claimed afterwards."
        )
    a, b = chances.fit_beta(right, n)
    mean, inside = a / (a + b), a * b / ((a + b) * (a + b + 1))  # E[p], and E[p (1 - p)] = a b / ((a + b)(a + b + 1))
    between = mean * (1 - mean) - inside  # variance of tasks' chances; a training that helps some of them moves it by about half
    spread = math.sqrt(2 * inside / samples + between / 2)
    smallest = detectable_mean(n_test, spread)
    if smallest is None:
        return Item(name, "amber", f"{n_test} test tasks show no difference at all.", "Use at least 6 test tasks.")
    said = f"{n_test} test tasks with {samples} samples each show a difference of {100 * smallest:.1f} points with 80 % power."
    wanted = math.ceil(n_test * (smallest / 0.1) ** 2)
    advice = f"About {wanted} test tasks would show 10 points." if smallest > BLIND else ""
    return Item(
        name, "amber" if advice else "green", said, advice, (), {"detectable": smallest, "spread": spread, "tasks": n_test}
    )


def with_seed(trajectory: Trajectory, shift: int) -> Trajectory:
    """The same trajectory under another seed, of which no reward may depend."""
    return replace(trajectory, seed=trajectory.seed + shift)
