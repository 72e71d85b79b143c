"""The checks of a preflight: each looks at one thing in the starting policy's rollouts and returns an item.

All are pure functions of recorded trajectories, so a report can be made again from what was stored.
Thresholds are constants with their reason; red is kept for what makes a run pointless. Leaves out the
reward's own checks (reward_checks).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from agentkit.evaluation.statistics import detectable_mean, success_interval
from agentkit.preflight import chances
from agentkit.preflight.report import EVIDENCE, Item, ids
from agentkit.records import Group, Trajectory
from agentkit.rollouts.tokens import faults, group_faults
from agentkit.trajectories import EQUAL, groups_by_task, is_dead, met_limit, results_of

Groups = Sequence[Group]
HOPELESS = 0.95  # share of groups without advantage above which nothing can be learnt
NOISY = 0.5  # share of advantage variance that a repeat scoring explains below which noise leads,
SHAKY = 0.9  # and below which it deserves a look
FAILING = 0.3  # share of calls that fail
CUT_OFF = 0.2  # share of trajectories that meet a limit
ALIKE = 0.8  # share of repeats in a group
BLIND = 0.15  # difference in success below which most training effects lie


def members(groups: Groups) -> list[Trajectory]:
    """All trajectories of some groups, in order."""
    return [t for group in groups for t in group.trajectories]


def _right(groups: Groups) -> tuple[list[int], list[int]]:
    """Right rollouts and scored rollouts of each task that has any; success above one half is right."""
    verdicts = [[t.success for t in g.trajectories if t.success is not None] for g in groups]
    scored = [values for values in verdicts if values]
    return [sum(v > 0.5 for v in values) for values in scored], [len(values) for values in scored]


# ---- is there anything to learn from?
def success(groups: Groups) -> Item:
    """Success of the starting policy, with its interval, and how tasks differ."""
    name = "Success now"
    right, n = _right(groups)
    if not n:
        advice = "Mend the verifier: it gave no verdict on any rollout."
        return Item(name, "red", "No rollout was scored.", advice)
    rates = np.array(right) / np.array(n)
    mean, (low, high) = float(rates.mean()), success_interval(rates, sum(n))
    mixed = float(((rates > 0) & (rates < 1)).mean())
    at_times = f"{mixed:.0%} of {len(rates)} tasks are solved at times"
    finding = f"{mean:.0%} [{low:.0%}, {high:.0%}] of the rollouts are right; {at_times}."
    wrong = ids(t for t in members(groups) if t.success is not None and t.success < 0.5)
    values = {"success": mean, "ci95": [low, high], "rates": rates.tolist(), "mixed": mixed}
    advice = ""
    if mean < 0.05:
        advice = (
            "Hardly anything is right: begin with easier tasks, or with a cold start (sft) on demonstrations."
        )
    elif mean > 0.95:
        advice = "Nearly everything is right already: take harder tasks."
    return Item(name, "amber" if advice else "green", finding, advice, wrong, values)


def dead_groups(groups: Groups, group_size: int) -> Item:
    """Groups without an advantage: seen now, and expected for other group sizes."""
    right, n = _right(groups)
    dead = [g for g in groups if is_dead(g)]
    seen = len(dead) / len(groups)
    a, b = chances.fit_beta(right, n) if n else (1.0, 1.0)
    expected = {g: chances.dead_share(a, b, g) for g in sorted({*chances.GROUP_SIZES, group_size})}
    useful = chances.smallest_useful(a, b)
    sizes = ", ".join(f"{g}: {share:.0%}" for g, share in expected.items())
    finding = (
        f"{seen:.0%} of the groups have equal rewards; by success alone {expected[group_size]:.0%} are "
        f"expected at group_size {group_size} ({sizes}; beta-binomial fit)."
    )
    light = "amber"
    if seen >= HOPELESS:
        light, advice = "red", _why_equal(groups)
    elif useful is None:
        advice = (
            "Not even groups of 32 would help half of the tasks: choose tasks of "
            "middling difficulty, or replace dead groups."
        )
    elif useful > group_size:
        advice = f"Raise group_size to {useful}: the smallest with at most every second group dead."
    else:
        light, advice = "green", f"The smallest useful group_size is {useful}." if useful < group_size else ""
    values = {"seen": seen, "expected": {str(g): share for g, share in expected.items()}}
    values |= {"smallest_useful": useful, "beta": [a, b]}
    return Item(
        "Groups without advantage", light, finding, advice, ids(g.trajectories[0] for g in dead), values
    )


def _why_equal(groups: Groups) -> str:
    """What to do where nearly all groups have equal rewards."""
    verdicts = {t.success > 0.5 for t in members(groups) if t.success is not None}
    if verdicts == {True}:
        return "All rollouts are right: take harder tasks."
    if True not in verdicts:
        return "All rollouts are wrong: take easier tasks, or a cold start (sft)."
    rewards = {round(t.reward, 6) for t in members(groups) if t.reward is not None}
    alike = (
        f"every rollout earns {min(rewards):g}"
        if len(rewards) == 1
        else "rewards are equal within the groups"
    )
    return (
        f"Right and wrong rollouts are rewarded alike ({alike}): the reward is broken, not the policy "
        "optimal. See the items on gold trajectories and components."
    )


def scoring_noise(scorings: Sequence[Sequence[Trajectory]]) -> Item:
    """How much of the advantages a second scoring of the same trajectories would confirm."""
    name = "Signal or noise"
    groups = [groups_by_task(scoring) for scoring in scorings]  # S scorings of P groups
    rewards = _whole_groups(groups)
    if not rewards.size:
        finding = "No group was scored as a whole, so repeats say nothing."
        return Item(name, "amber", finding, "Mend what is not scored first.")
    share, within = chances.repeatable(rewards), float(rewards.var(0, ddof=1).mean())
    noisy = _varying(scorings)
    values = {"repeatable": share, "noise_variance": within, "noisy_components": noisy}
    if share is None:
        finding = "Scoring again changes nothing, and there is no advantage to disturb."
        return Item(name, "green", finding, values=values)
    finding = (
        f"Scored {len(scorings)} times, a repeat explains {share:.0%} of the variance of the advantages."
    )
    if within <= EQUAL or share >= SHAKY:
        return Item(name, "green", finding, values=values)
    # groups in which everything that repeats is equal: the noise alone is divided by its own spread there
    still = float((np.ptp(rewards.mean(0), axis=1) < 4 * math.sqrt(within) + EQUAL).mean())
    culprit = f"Component {' and '.join(noisy)} gives" if noisy else "The reward gives"
    advice = (
        f"{culprit} the same trajectory another value each time; in {still:.0%} of the groups little else "
        "differs, and dividing by the group's spread turns that noise into full-size advantages. Random "
        "noise cures no zero variance: remove it, and mend the reward or the choice of tasks."
    )
    return Item(
        name, "red" if share < NOISY else "amber", finding, advice, ids(scorings[0][:EVIDENCE]), values
    )


def _whole_groups(groups: Sequence[Groups]) -> np.ndarray:
    """(S, P, G) rewards of the groups of full size that every scoring gave every reward."""
    rewards = [[[t.reward for t in group.trajectories] for group in scoring] for scoring in groups]
    size = max(map(len, rewards[0]), default=0)
    whole = [
        versions  # S times the rewards of one group
        for versions in zip(*rewards, strict=True)
        if len(versions[0]) == size > 1 and not any(None in version for version in versions)
    ]
    return np.array(whole, dtype=float).swapaxes(0, 1) if whole else np.zeros(0)


def _varying(scorings: Sequence[Sequence[Trajectory]]) -> list[str]:
    """Components that differ between scorings of one trajectory."""
    names = dict.fromkeys(name for t in scorings[0] for name in t.components)
    scored = {name: [[t.components.get(name) for t in scoring] for scoring in scorings] for name in names}
    return [name for name, values in scored.items() if any(again != values[0] for again in values)]


# ---- what the rollouts look like
def tools(groups: Groups) -> Item:
    """Failed calls, trajectories that meet a limit, and lengths."""
    trajectories = members(groups)
    results = [r for t in trajectories for r in results_of(t)]
    errors = Counter(r.observation[:60] for r in results if not r.ok)
    failed = [t for t in trajectories if any(not r.ok for r in results_of(t))]
    limited = [t for t in trajectories if met_limit(t)]
    lengths = np.array([len(t.completion_ids) for t in trajectories])
    calls, rate = len(results) / len(trajectories), errors.total() / max(len(results), 1)
    ends = len(limited) / len(trajectories)
    finding = (
        f"{calls:.1f} calls a trajectory, {rate:.1%} of them fail; {ends:.1%} of the trajectories meet a "
        f"limit; {np.median(lengths):.0f} tokens in the median, {np.percentile(lengths, 95):.0f} at the 95th "
        "percentile."
    )
    advice = []
    if ends > CUT_OFF:
        reasons = ", ".join(sorted({t.stop_reason.value for t in limited}))
        advice.append(f"Raise the limit they meet ({reasons}), or shorten what tools return.")
    if rate > FAILING:
        common = errors.most_common(1)[0][0]
        advice.append(
            f"Calls fail most often with: {common!r}. Show the format in the prompt, or demonstrate it (sft)."
        )
    values = {"calls": calls, "failed": rate, "cut": ends, "tokens": float(lengths.mean())}
    light = "amber" if advice else "green"
    return Item("Tools and lengths", light, finding, " ".join(advice), ids(limited or failed), values)


def diversity(groups: Groups, temperature: float) -> Item:
    """How different the rollouts of a group are at this temperature."""
    several = [g.trajectories for g in groups if len(g.trajectories) > 1]
    if not several:
        return Item("Diversity", "amber", "No group has two rollouts.", "Use a group_size of at least 2.")
    sizes = np.array([len(group) for group in several])
    different = np.array([len({t.completion_ids for t in group}) for group in several])
    actions = np.array([len({t.turns[0].text for t in group if t.turns}) for group in several])
    first, whole = float((actions / sizes).mean()), float((different / sizes).mean())
    repeats = float(((sizes - different) / (sizes - 1)).mean())
    differ = f"{first:.0%} of a group's first actions and {whole:.0%} of its trajectories differ"
    more = f"Raise temperature: {repeats:.0%} of the rollouts repeat another of their group."
    light, advice = ("amber", more) if repeats > ALIKE else ("green", "")
    finding, values = f"At temperature {temperature:g}, {differ}.", {"first": first, "whole": whole}
    same = ids(group[0] for group, n in zip(several, different, strict=True) if n == 1)
    return Item("Diversity", light, finding, advice, same, values)


def masks(groups: Groups, decode: Callable[[Sequence[int]], str] | None = None) -> Item:
    """What the gate before the update looks at: the token record's invariants, and that groups are groups."""
    n, broken = len(members(groups)), []
    for group in groups:
        broken += [(fault, group.trajectories[0]) for fault in group_faults(group.trajectories)]
        broken += [(fault, t) for t in group.trajectories for fault in faults(t, decode)]
    if broken:
        finding = f"{len(broken)} faults in {n} trajectories: {broken[0][0]}"
        advice = "Do not train on these: mend the rollout's masks and groups first."
        return Item("Masks", "red", finding, advice, ids([t for _, t in broken]))
    whole = "ids, mask and log-probabilities line up, only sampled tokens are trained on"
    return Item("Masks", "green", f"All {n} trajectories hold: {whole}.")


# ---- is the run able to show anything?
def power(groups: Groups, n_test: int, samples: int) -> Item:
    """The smallest difference in success that the test split shows with 80 % power, before against after."""
    name = "What the test can show"
    right, n = _right(groups)
    if n_test < 1 or not n:
        advice = "Give the suite a test split, or nothing can be claimed afterwards."
        return Item(name, "amber", "There are no test tasks.", advice)
    a, b = chances.fit_beta(right, n)
    mean = a / (a + b)
    inside = a * b / ((a + b) * (a + b + 1))  # E[p (1 - p)]
    between = mean * (1 - mean) - inside  # variance of tasks' chances
    spread = math.sqrt(
        2 * inside / samples + between / 2
    )  # training moves tasks' chances by about half of it
    smallest = detectable_mean(n_test, spread)
    if smallest is None:
        finding = f"{n_test} test tasks show no difference at all."
        return Item(name, "amber", finding, "Use at least 6 test tasks.")
    shows = f"a difference of {100 * smallest:.1f} points with 80 % power"
    finding = f"{n_test} test tasks with {samples} samples each show {shows}."
    values = {"detectable": smallest, "spread": spread, "tasks": n_test}
    if smallest <= BLIND:
        return Item(name, "green", finding, values=values)
    wanted = math.ceil(n_test * (smallest / 0.1) ** 2)
    return Item(name, "amber", finding, f"About {wanted} test tasks would show 10 points.", values=values)
