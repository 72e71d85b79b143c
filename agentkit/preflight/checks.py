"""The checks of a preflight: each looks at one thing in the starting policy's rollouts and returns an item.

The reward's own checks are in reward_checks. All are pure functions of recorded trajectories, so a report can
be made again from what was stored. Thresholds are constants with their reason; red is kept for what makes a
run pointless.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agentkit.diagnostics.measures import CUT, EQUAL
from agentkit.evaluation.evidence import results_of
from agentkit.evaluation.statistics import detectable_mean, success_interval
from agentkit.preflight import chances
from agentkit.preflight.report import Item, ids
from agentkit.records import Trajectory
from agentkit.rollouts.tokens import faults, group_faults

Groups = list[list[Trajectory]]
HOPELESS = 0.95  # share of groups without advantage above which nothing can be learnt
NOISY, SHAKY = (
    0.5,
    0.9,
)  # share of advantage variance that a repeat scoring explains: below it noise leads; below it look
FAILING, CUT_OFF = 0.3, 0.2  # share of calls that fail, of trajectories that meet a limit
ALIKE = 0.8  # share of repeats in a group
BLIND = 0.15  # difference in success below which most training effects lie


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


# ---- is there anything to learn from?
# --------------------------------------------------------------------------------
def success(groups: Groups) -> Item:
    """Success of the starting policy, with its interval, and how tasks differ."""
    right, n = chances.by_task(_verdicts(groups))
    rates = np.array(right) / np.array(n) if n else np.array([])
    if not len(rates):
        return Item(
            "Success now",
            "red",
            "No rollout was scored.",
            "Mend the verifier: it gave no verdict on any rollout.",
        )
    mean, (low, high) = float(rates.mean()), success_interval(rates, sum(n))
    mixed = float(((rates > 0) & (rates < 1)).mean())
    said = f"{mean:.0%} [{low:.0%}, {high:.0%}] of the rollouts are right; {mixed:.0%} of {len(rates)} tasks are solved at times."
    wrong = [t for g in groups for t in g if t.success is not None and t.success < 0.5]
    advice = ""
    if mean < 0.05:
        advice = (
            "Hardly anything is right: begin with easier tasks, or with a cold start (sft) on demonstrations."
        )
    elif mean > 0.95:
        advice = "Nearly everything is right already: take harder tasks."
    values = {"success": mean, "ci95": [low, high], "rates": rates.tolist(), "mixed": mixed}
    return Item("Success now", "amber" if advice else "green", said, advice, ids(wrong), values)


def dead_groups(groups: Groups, group_size: int) -> Item:
    """Groups without an advantage: seen now, and expected for other group sizes."""
    name = "Groups without advantage"
    right, n = chances.by_task(_verdicts(groups))
    seen = float(np.mean([_equal(g) for g in groups]))
    a, b = chances.fit_beta(right, n) if n else (1.0, 1.0)
    expected = {g: chances.dead_share(a, b, g) for g in sorted({*chances.GROUP_SIZES, group_size})}
    useful = chances.smallest_useful(a, b)
    said = (
        f"{seen:.0%} of the groups have equal rewards; by success alone {expected[group_size]:.0%} are "
        "expected at group_size "
        f"{group_size} ({', '.join(f'{g}: {share:.0%}' for g, share in expected.items())}; beta-binomial "
        "fit)."
    )
    values = {
        "seen": seen,
        "expected": {str(g): s for g, s in expected.items()},
        "smallest_useful": useful,
        "beta": [a, b],
    }
    dead = ids([t for g in groups if _equal(g) for t in g[:1]])
    if seen >= HOPELESS:
        return Item(name, "red", said, _why_equal(groups), dead, values)
    if useful is None:
        advice = "Not even groups of 32 would help half of the tasks: choose tasks of middling difficulty, or replace dead groups."
    elif useful > group_size:
        advice = f"Raise group_size to {useful}: the smallest with at most every second group dead."
    else:
        advice = f"The smallest useful group_size is {useful}." if useful < group_size else ""
        return Item(name, "green", said, advice, dead, values)
    return Item(name, "amber", said, advice, dead, values)


def _why_equal(groups: Groups) -> str:
    """What to do where nearly all groups have equal rewards."""
    scores = [t.success > 0.5 for g in groups for t in g if t.success is not None]
    if 0 < sum(scores) < len(scores):
        rewards = {round(t.reward, 6) for g in groups for t in g if t.reward is not None}
        constant = (
            f"every rollout earns {next(iter(rewards)):g}"
            if len(rewards) == 1
            else "rewards are equal within the groups"
        )
        return (
            f"Right and wrong rollouts are rewarded alike ({constant}): the reward is broken, not the policy "
            "optimal. See the "
            "items on gold trajectories and components."
        )
    if any(scores):
        return "All rollouts are right: take harder tasks."
    return "All rollouts are wrong: take easier tasks, or a cold start (sft)."


def scoring_noise(groups: Groups, scorings: Sequence[Mapping[tuple[str, int], Trajectory]]) -> Item:
    """How much of the advantages a second scoring of the same trajectories would confirm.

    Args:
        groups: the rollouts.
        scorings: S scorings of them, each by task and sample.
    """
    name = "Signal or noise"
    sizes = [len(g) for g in groups]
    keys = [
        [(t.task_id, t.sample) for t in g] for g in groups if len(g) == max(sizes, default=0) and len(g) > 1
    ]
    usable = [g for g in keys if all(s[k].reward is not None for s in scorings for k in g)]
    if not usable:
        return Item(
            name,
            "amber",
            "No group was scored as a whole, so repeats say nothing.",
            "Mend what is not scored first.",
        )
    rewards = np.array([[[s[k].reward for k in g] for g in usable] for s in scorings], dtype=float)
    share, within = chances.repeatable(rewards), float(rewards.var(0, ddof=1).mean())
    noisy = _varying(scorings)
    values = {"repeatable": share, "noise_variance": within, "noisy_components": noisy}
    if share is None:
        return Item(
            name,
            "green",
            "Scoring again changes nothing, and there is no advantage to disturb.",
            "",
            (),
            values,
        )
    # groups in which everything that repeats is equal: the noise alone is divided by its own spread there
    still = (
        float((np.ptp(rewards.mean(0), axis=1) < 4 * math.sqrt(within) + EQUAL).mean())
        if within > EQUAL
        else 0.0
    )
    said = f"Scored {len(scorings)} times, a repeat explains {share:.0%} of the variance of the advantages."
    if within <= EQUAL:
        return Item(name, "green", said, "", (), values)
    culprit = f"Component {' and '.join(noisy)} gives" if noisy else "The reward gives"
    advice = (
        f"{culprit} the same trajectory another value each time; in {still:.0%} of the groups little else "
        "differs, and dividing "
        "by the group's spread turns that noise into full-size advantages. Random noise cures no zero "
        "variance: remove it, and "
        "mend the reward or the choice of tasks."
    )
    light = "red" if share < NOISY else "amber" if share < SHAKY else "green"
    return Item(
        name, light, said, advice if light != "green" else "", tuple(f"{k}#{s}" for k, s in usable[0]), values
    )


def _varying(scorings: Sequence[Mapping[tuple[str, int], Trajectory]]) -> list[str]:
    """Components that differ between scorings of one trajectory."""
    first = scorings[0]
    varying = (
        n
        for k, t in first.items()
        for n in t.components
        if len({s[k].components.get(n) for s in scorings}) > 1
    )
    return list(dict.fromkeys(varying))


# ---- what the rollouts look like
# -------------------------------------------------------------------------------------
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
        "trajectories meet a "
        f"limit; {np.median(lengths):.0f} tokens in the median, {np.percentile(lengths, 95):.0f} at the 95th "
        "percentile."
    )
    advice = []
    if ends > CUT_OFF:
        reasons = ", ".join(sorted({t.stop_reason.value for t in cut}))
        advice.append(f"Raise the limit they meet ({reasons}), or shorten what tools return.")
    if rate > FAILING:
        common = Counter(r.observation[:60] for r in results if not r.ok).most_common(1)[0][0]
        advice.append(
            f"Calls fail most often with: {common!r}. Show the format in the prompt, or demonstrate it (sft)."
        )
    values = {
        "calls": len(results) / len(everyone),
        "failed": rate,
        "cut": ends,
        "tokens": float(lengths.mean()),
    }
    return Item(
        "Tools and lengths",
        "amber" if advice else "green",
        said,
        " ".join(advice),
        ids(cut or failed),
        values,
    )


def diversity(groups: Groups, temperature: float) -> Item:
    """How different the rollouts of a group are at this temperature."""
    several = [g for g in groups if len(g) > 1]
    if not several:
        return Item("Diversity", "amber", "No group has two rollouts.", "Use a group_size of at least 2.")
    different = [len({t.completion_ids for t in g}) for g in several]
    first = float(np.mean([len({t.turns[0].text for t in g if t.turns}) / len(g) for g in several]))
    whole = float(np.mean([n / len(g) for n, g in zip(different, several, strict=True)]))
    repeats = float(np.mean([(len(g) - n) / (len(g) - 1) for n, g in zip(different, several, strict=True)]))
    said = f"At temperature {temperature:g}, {first:.0%} of a group's first actions and {whole:.0%} of its trajectories differ."
    advice = (
        f"Raise temperature: {repeats:.0%} of the rollouts repeat another of their group."
        if repeats > ALIKE
        else ""
    )
    same = [g[0] for n, g in zip(different, several, strict=True) if n == 1]
    return Item(
        "Diversity", "amber" if advice else "green", said, advice, ids(same), {"first": first, "whole": whole}
    )


def masks(groups: Groups, decode: Callable[[Sequence[int]], str] | None = None) -> Item:
    """Invariants of the token record: nothing a tool wrote is trained on, lengths agree, groups are groups."""
    broken: list[tuple[str, Trajectory]] = []
    for group in groups:
        broken += [(fault, group[0]) for fault in group_faults(group)]
        broken += [(fault, t) for t in group for fault in faults(t, decode)]
    n = sum(map(len, groups))
    if broken:
        said = f"{len(broken)} faults in {n} trajectories: {broken[0][0]}"
        advice = "Do not train on these: mend the rollout's masks and groups first."
        return Item("Masks", "red", said, advice, ids([t for _, t in broken]))
    said = f"All {n} trajectories hold: ids, mask and log-probabilities line up, only sampled tokens are trained on."
    return Item("Masks", "green", said)


# ---- is the run able to show anything?
# -------------------------------------------------------------------------------
def power(groups: Groups, n_test: int, samples: int) -> Item:
    """The smallest difference in success that the test split shows with 80 % power, before against after."""
    name = "What the test can show"
    right, n = chances.by_task(_verdicts(groups))
    if n_test < 1 or not n:
        advice = "Give the suite a test split, or nothing can be claimed afterwards."
        return Item(name, "amber", "There are no test tasks.", advice)
    a, b = chances.fit_beta(right, n)
    mean, inside = (
        a / (a + b),
        a * b / ((a + b) * (a + b + 1)),
    )  # E[p], and E[p (1 - p)] = a b / ((a + b)(a + b + 1))
    between = (
        mean * (1 - mean) - inside
    )  # variance of tasks' chances; a training that helps some of them moves it by about half
    spread = math.sqrt(2 * inside / samples + between / 2)
    smallest = detectable_mean(n_test, spread)
    if smallest is None:
        return Item(
            name, "amber", f"{n_test} test tasks show no difference at all.", "Use at least 6 test tasks."
        )
    said = f"{n_test} test tasks with {samples} samples each show a difference of {100 * smallest:.1f} points with 80 % power."
    wanted = math.ceil(n_test * (smallest / 0.1) ** 2)
    advice = f"About {wanted} test tasks would show 10 points." if smallest > BLIND else ""
    values = {"detectable": smallest, "spread": spread, "tasks": n_test}
    return Item(name, "amber" if advice else "green", said, advice, (), values)
