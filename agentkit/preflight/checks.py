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

GROUP_SIZES = (4, 8, 12, 16, 24, 32)
DEAD = "Groups without advantage"  # the item's name
USEFUL = 0.5  # expected share of dead groups at which a group size is useful: at least every second teaches


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
    return next((size for size in range(2, GROUP_SIZES[-1] + 1) if dead_share(a, b, size) <= USEFUL), None)


def advantages(rewards: np.ndarray, divided: bool = True) -> np.ndarray:
    """GRPO's (r - mean) / (std + 1e-4) within each group, (P, G) to (P, G); sample std. Else r - mean."""
    assert rewards.ndim == 2 and rewards.shape[1] > 1
    centred = rewards - rewards.mean(1, keepdims=True)
    return centred / (rewards.std(1, ddof=1, keepdims=True) + 1e-4) if divided else centred


def repeatable(scorings: np.ndarray, divided: bool = True) -> float | None:
    """Share of the advantages' variance that scoring the same trajectories again explains.

    Of (S, P, G) rewards, scored S times: the mean product of the advantages of two scorings over their mean
    square (an intraclass correlation about zero). 1 for a reward that depends on the trajectory only, 0 for
    noise; None where no scoring gives any advantage.
    """
    assert scorings.ndim == 3 and len(scorings) > 1
    s = len(scorings)
    values = np.stack([advantages(rewards, divided) for rewards in scorings]).reshape(s, -1)  # (S, P * G)
    square = float((values**2).mean())
    if square < 1e-12:
        return None
    products = (values.sum(0) ** 2 - (values**2).sum(0)) / (s * (s - 1))
    return float(min(1.0, max(0.0, products.mean() / square)))


Groups = Sequence[Group]
HOPELESS = 0.95  # share of groups without advantage above which nothing can be learnt
NOISY = 0.5  # share of advantage variance that a repeat scoring explains below which noise leads,
SHAKY = 0.9  # and below which it deserves a look
DIVIDING = ("group", "turn", "step", "gdpo")  # estimators that divide by a group's own spread
LEAST_ROLLOUTS = 24  # none right of so many: at most 12 % are
FAILING = 0.3  # share of calls that fail
CUT_OFF = 0.2  # share of trajectories that meet a limit
CUT_TURNS = 0.05  # share of turns that end because max_turn_tokens does
ALIKE = 0.8  # share of repeats in a group
LEAST_SCALE = 0.1  # of a random sum of lora_r terms times lora_alpha / lora_r
LEAST_REACH = 1e-3  # of an entry of LoRA's B, below which a policy stays what it was
LARGEST_RATE = 0.02  # of Adam, for an adapter
COLDEST = 0.2  # temperature that trajectories still differ at
LARGEST_BETA = 1.0  # an advantage is measured in standard deviations of a group's rewards
WIDEST_SEQUENCE_CLIP = 0.02  # fifty times GSPO's own
BLIND = 0.15  # difference in success below which most training effects lie


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
        advice = (
            "Hardly anything is right: begin with easier tasks, or with a cold start (sft) on demonstrations."
        )
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
    expected = {g: dead_share(a, b, g) for g in sorted({*GROUP_SIZES, group_size})}
    useful = smallest_useful(a, b)
    sizes = ", ".join(f"{g}: {share:.0%}" for g, share in expected.items())
    finding = (
        f"{seen:.0%} of the groups have no advantage; by success alone {expected[group_size]:.0%} are "
        f"expected at group_size {group_size} ({sizes}; beta-binomial fit)."
    )
    light = "amber"
    if seen >= HOPELESS:
        light, advice = "red", _why_equal(dead)
    elif useful is None:
        advice = (
            "Not even groups of 32 would help half of the tasks: choose tasks of "
            "middling difficulty, or replace dead groups."
        )
    elif useful > group_size:
        advice = f"Raise group_size to {useful}: the smallest with at most every second group dead."
    else:
        light, advice = "green", f"The smallest useful group_size is {useful}." if useful < group_size else ""
    values = {
        "seen": seen,
        "expected": {str(g): share for g, share in expected.items()},
        "smallest_useful": useful,
        "beta": [a, b],
    }
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
    alike = (
        f"every trajectory earns {min(rewards):g}"
        if len(rewards) == 1
        else "rewards are equal within the groups"
    )
    return (
        f"Right and wrong trajectories are rewarded alike ({alike}): the reward is broken, not the policy "
        "optimal. See the items on gold trajectories and components."
    )


def scoring_noise(scorings: Sequence[Sequence[Trajectory]], estimator: str) -> Item:
    """How much of the advantages a second scoring of the same trajectories would confirm."""
    name = "Signal or noise"
    groups = [groups_by_task(scoring) for scoring in scorings]  # S scorings of P groups
    rewards = _whole_groups(groups)
    if not rewards.size:
        finding = "No group was scored as a whole, so repeats say nothing."
        return Item(name, "amber", finding, "Mend what is not scored first.")
    divided = estimator in DIVIDING
    share, within = repeatable(rewards, divided), float(rewards.var(0, ddof=1).mean())
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
    # groups in which everything that repeats is equal: only the noise has advantages there
    still = float((np.ptp(rewards.mean(0), axis=1) < 4 * math.sqrt(within) + EQUAL).mean())
    culprit = f"Component {' and '.join(noisy)} gives" if noisy else "The reward gives"
    enlarged = ", and dividing by the group's spread turns that noise into full-size advantages" * divided
    advice = (
        f"{culprit} the same trajectory another value each time; in {still:.0%} of the groups little else "
        f"differs{enlarged}. Random noise cures no zero variance: remove it, and mend the reward or the "
        "choice of tasks."
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


# ---- what the trajectories look like
def tools(groups: Groups) -> Item:
    trajectories = members(groups)
    results = [r for t in trajectories for r in results_of(t)]
    errors = Counter(r.observation[:60] for r in results if not r.ok and not momentary(r))
    failed = [t for t in trajectories if any(not r.ok for r in results_of(t))]
    limited = [t for t in trajectories if met_limit(t)]
    lengths = np.array([len(t.completion_ids) for t in trajectories])
    calls, rate = len(results) / len(trajectories), errors.total() / max(len(results), 1)
    ends, every = len(limited) / len(trajectories), sum(not r.ok for r in results) / max(len(results), 1)
    moment = f" for good ({every:.1%} with those of the moment)" * (every > rate)
    finding = (
        f"{calls:.1f} calls a trajectory, {rate:.1%} of them fail{moment}; {ends:.1%} of the trajectories "
        f"meet a limit; {np.median(lengths):.0f} tokens in the median, {np.percentile(lengths, 95):.0f} at "
        "the 95th percentile."
    )
    advice = []
    if ends > CUT_OFF:
        keys = ", ".join(sorted({LIMITS[t.stop_reason] for t in limited}))
        advice.append(f"Raise the limit they meet ({keys}), or shorten what tools return.")
    cut = [t for t in trajectories if t.stop_reason is StopReason.TRUNCATED_TURN]
    share = len(cut) / max(sum(len(t.turns) for t in trajectories), 1)
    if share > CUT_TURNS:
        longest = max(end - start for t in cut for start, end in (turn.span for turn in t.turns))
        advice.append(
            f"{share:.0%} of the turns are cut at {longest} tokens, and their trajectories with them: raise "
            "max_turn_tokens."
        )
    if rate > FAILING:
        common = errors.most_common(1)[0][0]
        advice.append(
            f"Calls fail most often with: {common!r}. Show the format in the prompt, or demonstrate it (sft)."
        )
    values = {"calls": calls, "failed": rate, "cut": ends, "cut_turns": share}
    values["tokens"] = float(lengths.mean())
    light = "amber" if advice else "green"
    return Item("Tools and lengths", light, finding, " ".join(advice), ids(limited or failed), values)


def diversity(groups: Groups, temperature: float) -> Item:
    several = [g.trajectories for g in groups if len(g.trajectories) > 1]
    if not several:
        return Item("Diversity", "amber", "No group has two trajectories.", "Use a group_size of at least 2.")
    sizes = np.array([len(group) for group in several])
    different = np.array([len({t.completion_ids for t in group}) for group in several])
    actions = np.array([len({t.turns[0].text for t in group if t.turns}) for group in several])
    first, whole = float((actions / sizes).mean()), float((different / sizes).mean())
    repeats = float(((sizes - different) / (sizes - 1)).mean())
    differ = f"{first:.0%} of a group's first actions and {whole:.0%} of its trajectories differ"
    more = f"Raise temperature: {repeats:.0%} of the trajectories repeat another of their group."
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
        return Item(
            name, "amber", "No trajectory was scored, so nothing can be forecast.", "Mend the verifier."
        )
    if n_test < 1:
        advice = "Give the suite a test split, or nothing can be claimed afterwards."
        return Item(name, "amber", "There are no test tasks.", advice)
    a, b = fit_beta(right, n)
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
    """What no trajectory shows: an update too small to matter, and settings that do nothing.

    Adam moves no entry further than the learning rate in a step. LoRA's B starts at zero, and below about
    1e-3 it moves log-probabilities by less than a thousandth of a nat (docs/results.md).
    """
    name, shape = "Settings", {"linear": 0.5, "cosine": 0.5}.get(recipe.lr_schedule, 1.0)
    warm = min(1.0, recipe.steps / recipe.warmup_steps) if recipe.warmup_steps else 1.0
    reach = recipe.learning_rate * recipe.steps * (shape if warm == 1.0 else warm / 2)
    if reach == 0:
        return Item(name, "red", "The learning rate is 0: nothing is trained.", "Set learning_rate: 1e-5.")
    # the sentences divide by the steps and the rate, which are not 0 from here on
    doubts = [*_of_little_movement(recipe, warm, reach, shape), *_of_no_effect(recipe)]
    warnings = [sentence for holds, sentence in doubts if holds]
    finding = " ".join(warnings) or f"Adam can move an entry of the adapter by up to {reach:.2g}."
    return Item(name, "amber" if warnings else "green", finding, values={"reach": reach})


def _of_little_movement(
    recipe: Recipe, warm: float, reach: float, shape: float
) -> tuple[tuple[bool, str], ...]:
    """What would hold the policy where it is or lose it, each with whether it holds."""
    return (
        (
            warm < 1.0,
            f"warmup_steps {recipe.warmup_steps} is longer than the {recipe.steps} steps: the learning rate "
            f"never gets beyond {warm:.0%} of {recipe.learning_rate:g}. Take {max(1, recipe.steps // 10)}.",
        ),
        (
            recipe.beta >= LARGEST_BETA,
            f"beta {recipe.beta:g}: a nat away from the reference costs as much as {recipe.beta:g} standard "
            "deviations of reward bring, which holds the policy where it is. GRPO's first paper takes 0.04 "
            "(arXiv 2402.03300), DAPO 0 (arXiv 2503.14476).",
        ),
        (
            recipe.learning_rate > LARGEST_RATE,
            f"learning_rate {recipe.learning_rate:g} moves entries of the adapter by as much in a step, and "
            "LoRA's are hundredths: the policy is soon lost. The small agent takes 0.001, large models 1e-5.",
        ),
        (
            recipe.temperature < COLDEST,
            f"At temperature {recipe.temperature:g} a group's trajectories are nearly the greedy one again "
            "and again: equal rewards teach nothing. Sample at 0.7 to 1.",
        ),
        (
            warm == 1.0 and reach < LEAST_REACH,
            f"learning_rate {recipe.learning_rate:g} for {recipe.steps} steps moves no entry of the adapter "
            f"by more than {reach:.1g}, which hardly moves the policy: try "
            f"{LEAST_REACH * 10 / recipe.steps / shape:.0e}.",
        ),
    )


def _of_no_effect(recipe: Recipe) -> tuple[tuple[bool, str], ...]:
    """What does nothing as it is set, each with whether it holds."""
    scale = recipe.lora_alpha / (8 * math.sqrt(recipe.lora_r))
    clips, widest = recipe.loss_type != "cispo", max(recipe.clip_epsilon, recipe.clip_epsilon_high)
    once = recipe.num_iterations * recipe.minibatches == 1
    return (
        (
            scale < LEAST_SCALE,
            f"lora_alpha {recipe.lora_alpha} at lora_r {recipe.lora_r} scales what the adapter does down to "
            f"{scale:.2g} of what 32 at 16 does: set lora_alpha to about {2 * recipe.lora_r}.",
        ),
        (
            clips and recipe.importance_level == "sequence" and widest > WIDEST_SEQUENCE_CLIP,
            f"clip_epsilon {widest:g} is a token's: the ratio of a sequence (GSPO, a geometric mean) hardly "
            "leaves 1, so nothing is ever clipped. GSPO's paper takes 3e-4 and 4e-4.",
        ),
        (
            clips and once and bool(recipe.clip_epsilon_high or recipe.dual_clip),
            "With one optimiser step on each batch the probability ratio is 1: clip_epsilon_high and "
            "dual_clip do nothing. Set minibatches or num_iterations above 1, or leave them out.",
        ),
    )
