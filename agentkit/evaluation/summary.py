"""One policy: its entry of comparison.json."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from agentkit.evaluation import statistics
from agentkit.records import Task, Trajectory

SOLVED = 0.5  # a task is solved when its success rate is above this: more than half of its samples are right
DIFFICULTIES = ("easy", "medium", "hard")

Samples = (
    Sequence[Trajectory] | Mapping[int, Sequence[Trajectory]]
)  # of one policy; a mapping is by training seed
Values = dict[str, list[list[float]]]  # by task and seed: the scored successes


def summarize(
    trajectories: Samples, tasks: Iterable[Task] | None = None, *, price: float | None = None
) -> dict[str, Any]:
    """Measure one policy.

    Args:
        trajectories: one or several samples a task, or such a list for each training seed; those with success
            None are left out of success and counted.
        tasks: a suite that holds at least these tasks; without it there is no breakdown by category and
            difficulty.
        price: money for a million tokens, prompt and completion alike; gives ``cost_per_solved``.

    Returns:
        The policy's entry of comparison.json. A figure with nothing to measure (no tool call, no success) is
        None.

    Raises:
        ValueError: there is nothing to measure, a success is outside [0, 1], or a task is not in ``tasks``.
    """
    values, flat = values_of(trajectories), flatten(trajectories)
    if not any(any(seeds) for seeds in values.values()):
        raise ValueError(f"none of the {len(flat)} trajectories is scored. Verify them first.")
    family, difficulty = labels_of(values, tasks)
    entry = {
        **measure(values),
        "samples": _whole(len(flat) / len(values)),
        "unscored": sum(t.success is None for t in flat),
        "by_category": _breakdown(values, family, sorted),
        "by_difficulty": _breakdown(values, difficulty, easy_first),
        **_ratios(flat, price),
    }
    if isinstance(trajectories, Mapping):
        entry["seeds"] = {str(seed): measure(values_of(own))["success"] for seed, own in trajectories.items()}
    return entry | _draws(trajectories)


def task_success(trajectories: Samples) -> dict[str, float]:
    """Mean success of each task's scored samples (of each seed's mean, for several). A task with none is left
    out.
    """
    return {task: rate(seeds) for task, seeds in values_of(trajectories).items() if all(seeds)}


def flatten(trajectories: Samples) -> list[Trajectory]:
    """All trajectories of a policy, of whatever training seed."""
    return (
        [t for own in trajectories.values() for t in own]
        if isinstance(trajectories, Mapping)
        else list(trajectories)
    )


def values_of(trajectories: Samples) -> Values:
    """Scored successes by task id, in order of first appearance, then by seed; empty lists where no sample is
    scored.
    """
    by_seed = list(trajectories.values()) if isinstance(trajectories, Mapping) else [trajectories]
    values: Values = {}
    for seed, own in enumerate(by_seed):
        for t in own:
            scored = values.setdefault(t.task_id, [[] for _ in by_seed])[seed]
            if t.success is None:
                continue
            if not 0.0 <= t.success <= 1.0:  # also catches NaN
                raise ValueError(
                    f"task {t.task_id}, sample {t.sample}: success is {t.success}, which is not in [0, 1]."
                )
            scored.append(float(t.success))
    if not values:
        raise ValueError("there is no trajectory to measure. Roll out the policy first.")
    return values


def rate(seeds: list[list[float]]) -> float:
    """Success of one task: the mean over seeds of the mean over samples."""
    return fmean(fmean(samples) for samples in seeds)


def rates(values: Values, tasks: Iterable[str]) -> np.ndarray:
    """Success by seed and task, shape (S, N)."""
    return np.array([[fmean(samples) for samples in values[task]] for task in tasks], dtype=np.float64).T


def measure(values: Values) -> dict[str, Any]:
    """Success, its 95 % interval and the number of tasks with a scored sample (of every seed)."""
    scored = {task: seeds for task, seeds in values.items() if all(seeds)}
    if not scored:
        return {"success": None, "ci95": None, "n": 0}
    by_seed = rates(scored, scored)
    if len(by_seed) > 1:
        interval = statistics.seeds_interval(by_seed, low=0.0, high=1.0)
    else:
        samples = None if single_samples(scored.values()) else sum(len(seeds[0]) for seeds in scored.values())
        interval = statistics.success_interval(by_seed[0], samples)
    return {"success": float(by_seed.mean()), "ci95": interval, "n": len(scored)}


def single_samples(scored: Iterable[list[list[float]]]) -> bool:
    """One sample a task, each right or wrong: what Wilson's interval and McNemar's test are about."""
    return all(len(seeds) == 1 and len(seeds[0]) == 1 and seeds[0][0] in (0.0, 1.0) for seeds in scored)


def _ratios(trajectories: Sequence[Trajectory], price: float | None) -> dict[str, Any]:
    """Measures that are a total over tasks divided by another, with intervals clustered by task."""
    counts: dict[str, Counter] = {}
    for t in trajectories:
        count, solved = (
            counts.setdefault(t.task_id, Counter()),
            t.success is not None and t.success > SOLVED,
        )
        calls = [result.ok for turn in t.turns for result in turn.results]
        tokens = len(t.completion_ids)
        count.update(samples=1, tokens=tokens, calls=len(calls), failed=calls.count(False))
        count.update(solved=solved, turns_solved=len(t.turns) * solved)
        if t.success is not None:
            count.update(scored_tokens=tokens, paid=tokens + len(t.prompt_ids))
    ratios = {
        "turns_solved": ("turns_solved", "solved", 1.0),
        "tool_failure_rate": ("failed", "calls", 1.0),
        "tokens": ("tokens", "samples", 1.0),
        "tokens_per_solved": ("scored_tokens", "solved", 1.0),
    }
    if price is not None:
        ratios["cost_per_solved"] = ("paid", "solved", price / 1e6)
    found: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for name, (above, below, unit) in ratios.items():
        numerators, denominators = (
            np.array([c[key] for c in counts.values()], dtype=np.float64) for key in (above, below)
        )
        found[name], intervals[name] = None, None
        if denominators.sum():
            ratio, pull = statistics.ratio_influence(numerators * unit, denominators)
            high = 1.0 if name == "tool_failure_rate" else math.inf
            found[name], intervals[name] = ratio, statistics.ratio_interval(ratio, pull, high=high)
    return found | {"intervals": intervals}


def _draws(trajectories: Samples) -> dict[str, Any]:
    """pass@k, pass^k and maj@k of each task and seed, for k = 1, 2, 4 ... up to the samples that half of the
    tasks have.

    A task with fewer than k scored samples is left out of that k; its n says so.
    """
    pools: dict[str, list[list[Trajectory]]] = {}
    by_seed = list(trajectories.values()) if isinstance(trajectories, Mapping) else [trajectories]
    for seed, own in enumerate(by_seed):
        for t in own:
            if t.success is not None:
                pools.setdefault(t.task_id, [[] for _ in by_seed])[seed].append(t)
    sizes = {task: min(map(len, seeds)) for task, seeds in pools.items()}
    most = sorted(sizes.values())[(len(sizes) - 1) // 2]
    ks = [k for k in (2**i for i in range(11)) if k < most] + [most] * (most > 0)
    estimates = {"pass_at_k": _pass_at, "pass_hat_k": _pass_hat, "maj_at_k": _majority}
    return {
        name: {
            str(k): measure(
                {i: [[f(p, k)] * len(p) for p in seeds] for i, seeds in pools.items() if sizes[i] >= k}
            )
            for k in ks
        }
        for name, f in estimates.items()
    }


def _pass_at(pool: Sequence[Trajectory], k: int) -> float:
    return statistics.pass_at_k(len(pool), sum(t.success > SOLVED for t in pool), k)


def _pass_hat(pool: Sequence[Trajectory], k: int) -> float:
    return statistics.pass_hat_k(len(pool), sum(t.success > SOLVED for t in pool), k)


def _majority(pool: Sequence[Trajectory], k: int) -> float:
    """Right answers are one answer; wrong ones are alike where their texts are, white space and case aside."""
    wrong = Counter(
        " ".join(t.answer.casefold().split()) for t in pool if t.success <= SOLVED and t.answer is not None
    )
    right = sum(t.success > SOLVED for t in pool)
    return statistics.maj_at_k(right, list(wrong.values()), k, silent=len(pool) - right - wrong.total())


def same_tasks(a: str, ids_a: Iterable[str], b: str, ids_b: Iterable[str], both_ways: bool = True) -> None:
    """Raises ValueError, naming the tasks, where the first lacks some of the second's or, both ways, the
    other way round.
    """
    for holder, lacking, missing in [(a, b, set(ids_a) - set(ids_b)), (b, a, set(ids_b) - set(ids_a))]:
        if missing and (both_ways or lacking == b):
            shown = ", ".join(sorted(missing)[:5]) + (
                f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            )
            raise ValueError(
                f"tasks of {holder} missing in {lacking} ({len(missing)}): {shown}. Use the same tasks."
            )


def labels_of(
    values: Mapping[str, Any], tasks: Iterable[Task] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Family and difficulty of each measured task; both empty without tasks."""
    if tasks is None:
        return {}, {}
    known = {task.id: task for task in tasks}
    same_tasks("the trajectories", values, "the given tasks", known, both_ways=False)
    return {i: known[i].family for i in values}, {i: known[i].difficulty for i in values}


def _breakdown(values: Values, label: Mapping[str, str], order: Callable) -> dict[str, dict]:
    return {name: measure(own) for name, own in split_by(values, label, order).items()}


def split_by(values: Mapping[str, Any], label: Mapping[str, str], order: Callable) -> dict[str, dict]:
    """The measured tasks of each label, in order."""
    names = order(set(label.values()))
    return {name: {i: v for i, v in values.items() if label[i] == name} for name in names}


def easy_first(names: Iterable[str]) -> list[str]:
    """Names of difficulties from easy to hard, others after them."""
    return sorted(names, key=lambda n: (DIFFICULTIES.index(n) if n in DIFFICULTIES else len(DIFFICULTIES), n))


def _whole(number: float) -> int | float:
    return int(number) if number == int(number) else round(number, 2)
