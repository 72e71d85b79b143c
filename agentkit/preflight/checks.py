"""The checks of a preflight: each looks at one thing in the starting policy's trajectories.

All are pure functions of recorded trajectories, so a report can be made again from what was stored.
Thresholds are constants with their reason; red is kept for what makes a run pointless. Leaves out the
reward's own checks (reward_checks).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from agentkit.evaluation.statistics import detectable_mean, success_interval
from agentkit.preflight.report import EVIDENCE, Item, ids
from agentkit.records import Group, Trajectory
from agentkit.rollouts.tokens import faults, group_faults
from agentkit.runs import Recipe
from agentkit.trajectories import EQUAL, groups_by_task, members

Groups = Sequence[Group]
USEFUL = 0.5  # share of groups without advantage up to which a group size is useful: every second teaches
HOPELESS = 0.95  # share of groups without advantage above which nothing can be learnt
NOISY = 0.5  # share of advantage variance that a repeat scoring explains, below which noise leads
SHAKY = 0.9  # and below which it deserves a look
DIVIDING = ("group", "turn", "step", "gdpo")  # estimators that divide by a group's own spread
LEAST_ROLLOUTS = 24  # none right of so many: at most 12 % are
LEAST_SILENT = 3  # groups in which some answer and some do not
LEAST_REACH = 1e-3  # of an entry of LoRA's B, below which a policy stays what it was
LARGEST_RATE = 0.02  # of Adam, for an adapter
LARGEST_BETA = 1.0  # an advantage is measured in standard deviations of a group's rewards
BLIND = 0.15  # difference in success below which most training effects lie


def repeatable(scorings: np.ndarray, divided: bool = True) -> float | None:
    """Share of the advantages' variance that scoring the same trajectories again explains.

    Of (S, P, G) rewards, scored S times: the mean product of the advantages of two scorings over their mean
    square (an intraclass correlation about zero). 1 for a reward that depends on the trajectory only, 0 for
    noise; None where no scoring gives any advantage.
    """
    assert scorings.ndim == 3 and len(scorings) > 1 and scorings.shape[2] > 1
    s = len(scorings)
    values = scorings - scorings.mean(2, keepdims=True)
    if divided:
        values = values / (scorings.std(2, ddof=1, keepdims=True) + 1e-4)
    values = values.reshape(s, -1)
    square = float((values**2).mean())
    if square < 1e-12:
        return None
    products = (values.sum(0) ** 2 - (values**2).sum(0)) / (s * (s - 1))
    return float(min(1.0, max(0.0, products.mean() / square)))


def _right(groups: Groups) -> tuple[list[int], list[int]]:
    """Right trajectories and scored trajectories of each task that has any; right is a success of 1."""
    verdicts = [[t.success for t in g.trajectories if t.success is not None] for g in groups]
    scored = [values for values in verdicts if values]
    return [values.count(1.0) for values in scored], [len(values) for values in scored]


# ---- is there anything to learn from?
def success(groups: Groups, golden: Sequence[Trajectory] = ()) -> Item:
    """How often the starting policy is right; never, where the expert is, leaves nothing to reinforce."""
    name = "Success now"
    right, n = _right(groups)
    if not n:
        advice = "Mend the verifier: it gave no verdict on any trajectory."
        return Item(name, "red", "No trajectory was scored.", advice)
    rates = np.array(right) / np.array(n)
    mean, (low, high) = float(rates.mean()), success_interval(rates, sum(n))
    finding = (
        f"{mean:.0%} [{low:.0%}, {high:.0%}] of the trajectories are right; "
        f"{((rates > 0) & (rates < 1)).mean():.0%} of {len(rates)} tasks are solved at times."
    )
    wrong = ids(t for t in members(groups) if t.success is not None and t.success < 1.0)
    values = {"success": mean, "ci95": [low, high]}
    if 0.05 <= mean <= 0.95:
        return Item(name, "green", finding, "", wrong, values)
    advice = "Hardly anything is right: begin with easier tasks, or with a cold start (sft)."
    if mean > 0.95:
        advice = "Nearly everything is right already: take harder tasks."
    is_never = not any(t.success for t in members(groups))  # not in part, either
    hopeless = is_never and sum(n) >= LEAST_ROLLOUTS and any(t.success == 1.0 for t in golden)
    return Item(name, "red" if hopeless else "amber", finding, advice, wrong, values)


def dead_groups(groups: Groups, is_dead: Callable[[Group], bool]) -> Item:
    """``is_dead`` says of a group whether the estimator in use gives it no advantage."""
    dead = [g for g in groups if is_dead(g)]
    seen = len(dead) / len(groups)
    light, advice = "green", ""
    if seen >= HOPELESS:
        light, advice = "red", _why_equal(dead)
    elif seen > USEFUL:
        light, advice = (
            "amber",
            "Raise group_size, take tasks of middling difficulty, or replace dead groups.",
        )
    finding = f"{seen:.0%} of the groups have no advantage."
    return Item(
        "Groups without advantage",
        light,
        finding,
        advice,
        ids(g.trajectories[0] for g in dead),
        {"seen": seen},
    )


def _why_equal(groups: Groups) -> str:
    verdicts = [{t.success == 1.0 for t in g.trajectories if t.success is not None} for g in groups]
    all_verdicts = set().union(*verdicts)
    if all_verdicts == {True}:
        return "All trajectories are right: take harder tasks."
    if True not in all_verdicts:
        return "No trajectory is right: take easier tasks, a cold start (sft), or mend the verifier."
    rewards = {round(t.reward, 6) for t in members(groups) if t.reward is not None}
    if len(rewards) > 1 and all(len(own) < 2 for own in verdicts):
        return "Each task is solved always or never: take tasks of middling difficulty, or raise temperature."
    return (
        "Right and wrong trajectories are rewarded alike: the reward is broken, not the policy optimal. See "
        "the items on gold trajectories and components."
    )


def scoring_noise(scorings: Sequence[Sequence[Trajectory]], estimator: str) -> Item:
    """How much of the advantages a second scoring of the same trajectories would confirm."""
    name = "Signal or noise"
    groups = [[g.trajectories for g in groups_by_task(scoring)] for scoring in scorings]
    rewards = np.array([[[t.reward for t in own] for own in scoring] for scoring in groups], dtype=float)
    rewards = rewards[:, ~np.isnan(rewards).any((0, 2))]  # of groups that are scored as a whole
    if not rewards.size:
        finding = "No group was scored as a whole, so repeats say nothing."
        return Item(name, "amber", finding, "Mend what is not scored first.")
    share = repeatable(rewards, estimator in DIVIDING)
    if share is None or float(rewards.var(0, ddof=1).mean()) <= EQUAL:
        return Item(name, "green", "Scoring again changes nothing.", values={"repeatable": share})
    finding = (
        f"Scored {len(scorings)} times, a repeat explains {share:.0%} of the variance of the advantages."
    )
    names = dict.fromkeys(name for t in scorings[0] for name in t.components)
    scored = {n: [[t.components.get(n) for t in scoring] for scoring in scorings] for n in names}
    noisy = [n for n, values in scored.items() if any(again != values[0] for again in values)]
    values = {"repeatable": share, "noisy_components": noisy}
    if share >= SHAKY:
        return Item(name, "green", finding, values=values)
    advice = (
        f"Component {' and '.join(noisy)} gives the same trajectory another value each time, and the "
        "estimator makes advantages of it. Random noise cures no zero variance: remove it, and mend the "
        "reward or the choice of tasks."
    )
    light = "red" if share < NOISY else "amber"
    return Item(name, light, finding, advice, ids(scorings[0][:EVIDENCE]), values)


def silence(groups: Groups) -> Item:
    """What trajectories without an answer earn, against those with one in the same groups.

    A policy that is paid for saying nothing falls silent within a few steps.
    """
    name, paid = "What silence earns", [t for t in members(groups) if t.reward is not None]
    silent = [t for t in paid if t.answer is None]
    rows = [(t.task_id, t.answer is None, t.reward) for t in paid]
    means = pd.DataFrame(rows, columns=["task", "silent", "reward"]).pivot_table("reward", "task", "silent")
    gaps = (means[False] - means[True]).dropna() if {False, True} <= set(means) else []
    if len(gaps) < LEAST_SILENT:
        return Item(name, "green", f"{len(silent)} of {len(members(groups))} trajectories give no answer.")
    mean, error = float(gaps.mean()), float(gaps.std()) / math.sqrt(len(gaps))
    finding = f"With an answer a trajectory earns {mean:+.3g} against those of its group without one."
    values = {"gap": mean, "error": error}
    if mean > 0:
        return Item(name, "green", finding, values=values)
    advice = "Pay nothing for trajectories without an answer, or less for wrong calls: a policy falls silent."
    return Item(name, "red" if mean + error < 0 else "amber", finding, advice, ids(silent), values)


# ---- can they be trained on?
def masks(groups: Groups, decode: Callable[[Sequence[int]], str] | None = None) -> Item:
    """What the gate before the update looks at: the token record's invariants, and that groups are groups."""
    trajectories = members(groups)
    broken = [(fault, g.trajectories[0]) for g in groups for fault in group_faults(g.trajectories)]
    broken += [(fault, t) for t in trajectories for fault in faults(t, decode)]
    if not broken:
        whole = "Ids, mask and log-probabilities line up, only sampled tokens are trained on"
        return Item("Masks", "green", f"{whole}, in all {len(trajectories)} trajectories.")
    finding = f"{len(broken)} faults in {len(trajectories)} trajectories: {broken[0][0]}"
    advice = "Do not train on these: mend the trajectories' masks and groups first."
    return Item("Masks", "red", finding, advice, ids(t for _, t in broken))


# ---- is the run able to show anything?
def power(groups: Groups, n_test: int, samples: int) -> Item:
    """The smallest difference in success that the test split shows with 80 % power, before against after."""
    name = "What the test can show"
    right, n = _right(groups)
    rates = (np.array(right) + 0.5) / (np.array(n) + 1)  # none is 0 or 1, as few samples make it
    inside = float((rates * (1 - rates)).mean()) if n else 0.25
    between = float(rates.var()) if n else 0.0  # of tasks' chances; training moves about half of it
    smallest = detectable_mean(n_test, math.sqrt(2 * inside / samples + between / 2))
    if smallest is None:
        advice = "Give the suite a test split of at least 6 tasks, or nothing can be claimed afterwards."
        return Item(name, "amber", f"{n_test} test tasks show no difference at all.", advice)
    shows = f"a difference of {100 * smallest:.1f} points with 80 % power"
    finding = f"{n_test} test tasks with {samples} samples each show {shows}."
    wanted = math.ceil(n_test * (smallest / 0.1) ** 2)
    light, advice = "amber", f"About {wanted} test tasks would show 10 points."
    if smallest <= BLIND:
        light, advice = "green", ""
    return Item(name, light, finding, advice, values={"detectable": smallest})


# ---- can these settings train at all?
def memory(plan: Any, size_gb: float, device: str) -> Item:
    """Whether a memory plan (training.memory) fits a GPU or a machine of this size."""
    parts = plan.needed(size_gb), plan.update(), plan.sampling(size_gb), plan.weights
    needed, update, sampling, weights = (n / 1e9 for n in parts)
    finding = (
        f"{needed:.1f} GB of the {device}'s {size_gb:.0f} GB are needed at the most: {update:.1f} by an "
        f"update, {sampling:.1f} by rollouts, of which weights are {weights:.1f}."
    )
    advice = plan.advice(size_gb)
    if advice == "fits":
        return Item("Memory", "green", finding)
    return Item("Memory", "red", finding, f"It would run out of memory: {advice}.")


def settings(recipe: Recipe) -> Item:
    """What no trajectory shows: settings that hold the policy where it is, or lose it.

    Adam moves no entry further than the learning rate in a step. LoRA's B starts at zero, and below about
    1e-3 it moves log-probabilities by less than a thousandth of a nat (docs/results.md).
    """
    name, rate = "Settings", recipe.learning_rate
    if rate == 0:
        return Item(name, "red", "The learning rate is 0: nothing is trained.", "Set learning_rate: 1e-5.")
    steps = recipe.steps * (0.5 if recipe.lr_schedule in ("linear", "cosine") else 1.0)
    told = []
    if recipe.warmup_steps > recipe.steps:
        told.append(f"warmup_steps {recipe.warmup_steps} is longer than the {recipe.steps} steps.")
    if rate * steps < LEAST_REACH:
        told.append(
            f"learning_rate {rate:g} for {recipe.steps} steps moves no entry of the adapter by more than "
            f"{rate * steps:.1g}: try {LEAST_REACH * 10 / steps:.0e}."
        )
    if rate > LARGEST_RATE:
        told.append(f"learning_rate {rate:g} is large for an adapter: try 1e-5.")
    if recipe.beta >= LARGEST_BETA:
        told.append(f"beta {recipe.beta:g} holds the policy where it is: GRPO's first paper takes 0.04.")
    finding = " ".join(told) or f"Adam can move an entry of the adapter by up to {rate * steps:.2g}."
    return Item(name, "amber" if told else "green", finding)
