"""The checks of a preflight: each looks at one thing in the starting policy's trajectories.

All are pure functions of recorded trajectories, so a report can be made again from what was stored.
Thresholds are constants with their reason; red is kept for what makes a run pointless. Leaves out the
reward's own checks (reward_checks).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentkit.evaluation.statistics import detectable_mean, success_interval
from agentkit.preflight.report import EVIDENCE, Item, ids
from agentkit.records import Group, StopReason, Trajectory
from agentkit.rollouts.tokens import faults, group_faults
from agentkit.runs import Recipe
from agentkit.tools.outages import momentary
from agentkit.trajectories import EQUAL, LIMITS, groups_by_task, members, met_limit, results_of

Groups = Sequence[Group]
DEAD = "Groups without advantage"  # the item's name
USEFUL = 0.5  # expected share of dead groups at which a group size is useful: at least every second teaches
LARGEST_GROUP = 32
HOPELESS = 0.95  # share of groups without advantage above which nothing can be learnt
NOISY = 0.5  # share of advantage variance that a repeat scoring explains, below which noise leads
SHAKY = 0.9  # and below which it deserves a look
DIVIDING = ("group", "turn", "step", "gdpo")  # estimators that divide by a group's own spread
LEAST_ROLLOUTS = 24  # none right of so many: at most 12 % are
LEAST_SILENT = 3  # groups in which some answer and some do not
FAILING = 0.3  # share of calls that fail
CUT_OFF = 0.2  # share of trajectories that meet a limit
CUT_TURNS = 0.05  # share of turns that end because max_turn_tokens does
LEAST_REACH = 1e-3  # of an entry of LoRA's B, below which a policy stays what it was
LARGEST_RATE = 0.02  # of Adam, for an adapter
LARGEST_BETA = 1.0  # an advantage is measured in standard deviations of a group's rewards
BLIND = 0.15  # difference in success below which most training effects lie


def fit_beta(right: Sequence[int], n: Sequence[int]) -> tuple[float, float]:
    """The beta distribution of tasks' chances of success, by maximum likelihood of the beta-binomial.

    Of (P,) right among (P,) trajectories of each task. A few trajectories a task make plug-in shares p = k/n
    pile up at 0 and 1, which overstates dead groups; the fitted distribution does not.
    """
    from scipy.optimize import minimize
    from scipy.special import betaln

    k, m = np.asarray(right, dtype=float), np.asarray(n, dtype=float)
    assert k.ndim == 1 and k.shape == m.shape and len(k)
    assert (m >= 1).all() and (k >= 0).all() and (k <= m).all()

    def loss(logs: np.ndarray) -> float:
        a, b = np.exp(logs)
        prior = ((logs - math.log(0.5)) ** 2).sum() / 8  # weak: keeps all-right and all-wrong samples finite
        return float(prior - (betaln(k + a, m - k + b) - betaln(a, b)).sum())

    bounds = [(math.log(0.02), math.log(500.0))] * 2
    best = minimize(loss, np.log([0.5, 0.5]), bounds=bounds, method="L-BFGS-B")
    return float(np.exp(best.x[0])), float(np.exp(best.x[1]))


def dead_share(a: float, b: float, group_size: int) -> float:
    """Expected share of groups all right or all wrong, E[p^G + (1-p)^G] for p of a beta distribution.

    For one p this is DAPO's condition 0 < #correct < G (arXiv 2503.14476); the mean over p is a ratio of beta
    functions.
    """
    from scipy.special import betaln

    whole = betaln(a, b)
    return float(math.exp(betaln(a + group_size, b) - whole) + math.exp(betaln(a, b + group_size) - whole))


def smallest_useful(a: float, b: float) -> int | None:
    """The smallest group size of which at most every second group is expected dead, or None."""
    return next((size for size in range(2, LARGEST_GROUP + 1) if dead_share(a, b, size) <= USEFUL), None)


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
    mixed = float(((rates > 0) & (rates < 1)).mean())
    at_times = f"{mixed:.0%} of {len(rates)} tasks are solved at times"
    finding = f"{mean:.0%} [{low:.0%}, {high:.0%}] of the trajectories are right; {at_times}."
    wrong = ids(t for t in members(groups) if t.success is not None and t.success < 1.0)
    values = {"success": mean, "ci95": [low, high], "rates": rates.tolist(), "mixed": mixed}
    advice = ""
    if mean < 0.05:
        advice = "Hardly anything is right: begin with easier tasks, or with a cold start (sft)."
    elif mean > 0.95:
        advice = "Nearly everything is right already: take harder tasks."
    is_never = not any(t.success for t in members(groups))  # not in part, either
    hopeless = is_never and sum(n) >= LEAST_ROLLOUTS and any(t.success == 1.0 for t in golden)
    light = "red" if hopeless else "amber" if advice else "green"
    return Item(name, light, finding, advice, wrong, values)


def dead_groups(groups: Groups, group_size: int, is_dead: Callable[[Group], bool]) -> Item:
    """``is_dead`` says of a group whether the estimator in use gives it no advantage."""
    right, n = _right(groups)
    dead = [g for g in groups if is_dead(g)]
    seen = len(dead) / len(groups)
    a, b = fit_beta(right, n) if n else (1.0, 1.0)
    expected, useful = dead_share(a, b, group_size), smallest_useful(a, b)
    finding = (
        f"{seen:.0%} of the groups have no advantage; by success alone {expected:.0%} are expected at "
        f"group_size {group_size}."
    )
    light, advice = "amber", f"Raise group_size to {useful}: at most every second group is then dead."
    if seen >= HOPELESS:
        light, advice = "red", _why_equal(dead)
    elif useful is None:
        advice = (
            f"Not even groups of {LARGEST_GROUP} would help half of the tasks: choose tasks of middling "
            "difficulty, or replace dead groups."
        )
    elif useful <= group_size:
        light, advice = "green", ""
    values = {"seen": seen, "expected": expected, "smallest_useful": useful, "beta": [a, b]}
    return Item(DEAD, light, finding, advice, ids(g.trajectories[0] for g in dead), values)


def _why_equal(groups: Groups) -> str:
    verdicts = {t.success == 1.0 for t in members(groups) if t.success is not None}
    if not verdicts:
        return "No trajectory was scored: mend the verifier."
    if verdicts == {True}:
        return "All trajectories are right: take harder tasks."
    if True not in verdicts:
        return "All trajectories are wrong: take easier tasks, or a cold start (sft)."
    rewards = {round(t.reward, 6) for t in members(groups) if t.reward is not None}
    right, n = _right(groups)
    if len(rewards) > 1 and not any(0 < k < m for k, m in zip(right, n, strict=True)):
        return "Each task is solved always or never: take tasks of middling difficulty, or raise temperature."
    return (
        "Right and wrong trajectories are rewarded alike: the reward is broken, not the policy optimal. See "
        "the items on gold trajectories and components."
    )


def scoring_noise(scorings: Sequence[Sequence[Trajectory]], estimator: str) -> Item:
    """How much of the advantages a second scoring of the same trajectories would confirm."""
    name = "Signal or noise"
    rewards = _whole_groups([groups_by_task(scoring) for scoring in scorings])
    if not rewards.size:
        finding = "No group was scored as a whole, so repeats say nothing."
        return Item(name, "amber", finding, "Mend what is not scored first.")
    share = repeatable(rewards, estimator in DIVIDING)
    within = float(rewards.var(0, ddof=1).mean())
    names = dict.fromkeys(name for t in scorings[0] for name in t.components)
    scored = {name: [[t.components.get(name) for t in scoring] for scoring in scorings] for name in names}
    noisy = [name for name, values in scored.items() if any(again != values[0] for again in values)]
    values = {"repeatable": share, "noise_variance": within, "noisy_components": noisy}
    if share is None:
        finding = "Scoring again changes nothing, and there is no advantage to disturb."
        return Item(name, "green", finding, values=values)
    finding = (
        f"Scored {len(scorings)} times, a repeat explains {share:.0%} of the variance of the advantages."
    )
    if within <= EQUAL or share >= SHAKY:
        return Item(name, "green", finding, values=values)
    culprit = f"Component {' and '.join(noisy)} gives" if noisy else "The reward gives"
    advice = (
        f"{culprit} the same trajectory another value each time, and the estimator makes advantages of it. "
        "Random noise cures no zero variance: remove it, and mend the reward or the choice of tasks."
    )
    light = "red" if share < NOISY else "amber"
    return Item(name, light, finding, advice, ids(scorings[0][:EVIDENCE]), values)


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


def silence(groups: Groups) -> Item:
    """What trajectories without an answer earn, against those with one in the same groups.

    A policy that is paid for saying nothing falls silent within a few steps.
    """
    name, gaps, silent = "What silence earns", [], []
    for group in groups:
        paid = [t for t in group.trajectories if t.reward is not None]
        without = [t for t in paid if t.answer is None]
        spoken = [t.reward for t in paid if t.answer is not None]
        silent += without
        if without and spoken:
            gaps.append(float(np.mean(spoken) - np.mean([t.reward for t in without])))
    if len(gaps) < LEAST_SILENT:
        return Item(name, "green", f"{len(silent)} of {len(members(groups))} trajectories give no answer.")
    mean, error = float(np.mean(gaps)), float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps))
    finding = f"With an answer a trajectory earns {mean:+.3g} against those of its group without one."
    values = {"gap": mean, "error": error, "groups": len(gaps)}
    if mean > 0:
        return Item(name, "green", finding, values=values)
    advice = "Pay nothing for trajectories without an answer, or less for wrong calls: a policy falls silent."
    return Item(name, "red" if mean + error < 0 else "amber", finding, advice, ids(silent), values)


# ---- what the trajectories look like
def tools(groups: Groups) -> Item:
    """How many calls fail, how many trajectories meet a limit, and which key would help."""
    trajectories = members(groups)
    results = [r for t in trajectories for r in results_of(t)]
    errors = Counter(r.observation[:60] for r in results if not r.ok and not momentary(r))
    limited = [t for t in trajectories if met_limit(t)]
    failed = [t for t in trajectories if any(not r.ok for r in results_of(t))]
    lengths = np.array([len(t.completion_ids) for t in trajectories])
    calls, rate = len(results) / len(trajectories), errors.total() / max(len(results), 1)
    ends, every = len(limited) / len(trajectories), sum(not r.ok for r in results) / max(len(results), 1)
    moment = f" for good ({every:.1%} with those of the moment)" * (every > rate)
    finding = (
        f"{calls:.1f} calls a trajectory, {rate:.1%} of them fail{moment}; {ends:.1%} of the trajectories "
        f"meet a limit; {np.median(lengths):.0f} tokens in the median."
    )
    advice = []
    if ends > CUT_OFF:
        keys = ", ".join(sorted({LIMITS[t.stop_reason] for t in limited}))
        advice.append(f"Raise the limit they meet ({keys}), or shorten what tools return.")
    cut = [t for t in trajectories if t.stop_reason is StopReason.TRUNCATED_TURN]
    share = len(cut) / max(sum(len(t.turns) for t in trajectories), 1)
    if share > CUT_TURNS:
        advice.append(f"{share:.0%} of the turns are cut short: raise max_turn_tokens.")
    if rate > FAILING:
        common = errors.most_common(1)[0][0]
        advice.append(f"Calls fail most often with: {common!r}. Show the format in the prompt.")
    values = {"calls": calls, "failed": rate, "cut": ends, "cut_turns": share}
    light = "amber" if advice else "green"
    return Item("Tools and lengths", light, finding, " ".join(advice), ids(limited or failed), values)


def masks(groups: Groups, decode: Callable[[Sequence[int]], str] | None = None) -> Item:
    """What the gate before the update looks at: the token record's invariants, and that groups are groups."""
    n, broken = len(members(groups)), []
    for group in groups:
        broken += [(fault, group.trajectories[0]) for fault in group_faults(group.trajectories)]
        broken += [(fault, t) for t in group.trajectories for fault in faults(t, decode)]
    if broken:
        finding = f"{len(broken)} faults in {n} trajectories: {broken[0][0]}"
        advice = "Do not train on these: mend the trajectories' masks and groups first."
        return Item("Masks", "red", finding, advice, ids([t for _, t in broken]))
    whole = "ids, mask and log-probabilities line up, only sampled tokens are trained on"
    return Item("Masks", "green", f"All {n} trajectories hold: {whole}.")


# ---- is the run able to show anything?
def power(groups: Groups, n_test: int, samples: int) -> Item:
    """The smallest difference in success that the test split shows with 80 % power, before against after."""
    name = "What the test can show"
    right, n = _right(groups)
    if not n:
        finding = "No trajectory was scored, so nothing can be forecast."
        return Item(name, "amber", finding, "Mend the verifier.")
    if n_test < 1:
        advice = "Give the suite a test split, or nothing can be claimed afterwards."
        return Item(name, "amber", "There are no test tasks.", advice)
    a, b = fit_beta(right, n)
    mean = a / (a + b)
    inside = a * b / ((a + b) * (a + b + 1))  # E[p (1 - p)]
    between = mean * (1 - mean) - inside  # variance of tasks' chances; training moves about half of it
    spread = math.sqrt(2 * inside / samples + between / 2)
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
    light, advice = ("green", "") if advice == "fits" else ("red", f"It would run out of memory: {advice}.")
    values = {"needed_gb": needed, "update_gb": update, "rollouts_gb": sampling, "size_gb": size_gb}
    return Item("Memory", light, finding, advice, values=values)


def settings(recipe: Recipe) -> Item:
    """What no trajectory shows: settings that hold the policy where it is, or lose it.

    Adam moves no entry further than the learning rate in a step. LoRA's B starts at zero, and below about
    1e-3 it moves log-probabilities by less than a thousandth of a nat (docs/results.md).
    """
    name, shape = "Settings", {"linear": 0.5, "cosine": 0.5}.get(recipe.lr_schedule, 1.0)
    warm = min(1.0, recipe.steps / recipe.warmup_steps) if recipe.warmup_steps else 1.0
    reach = recipe.learning_rate * recipe.steps * (shape if warm == 1.0 else warm / 2)
    if reach == 0:
        return Item(name, "red", "The learning rate is 0: nothing is trained.", "Set learning_rate: 1e-5.")
    told = []
    if warm < 1.0:
        told.append(f"warmup_steps {recipe.warmup_steps} is longer than the {recipe.steps} steps.")
    elif reach < LEAST_REACH:
        told.append(
            f"learning_rate {recipe.learning_rate:g} for {recipe.steps} steps moves no entry of the adapter "
            f"by more than {reach:.1g}: try {LEAST_REACH * 10 / recipe.steps / shape:.0e}."
        )
    if recipe.learning_rate > LARGEST_RATE:
        told.append(f"learning_rate {recipe.learning_rate:g} is large for an adapter: try 1e-5.")
    if recipe.beta >= LARGEST_BETA:
        told.append(f"beta {recipe.beta:g} holds the policy where it is: GRPO's first paper takes 0.04.")
    finding = " ".join(told) or f"Adam can move an entry of the adapter by up to {reach:.2g}."
    return Item(name, "amber" if told else "green", finding, values={"reach": reach})
