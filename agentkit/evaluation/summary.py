"""One policy: its entry of comparison.json.

Leaves out comparing it with another (comparison) and the formulas (statistics).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from agentkit.evaluation import statistics
from agentkit.records import DataError, Task, Trajectory
from agentkit.trajectories import by_task, failure_of, results_of

SOLVED = 0.5  # a task is solved when its success rate is above this: more than half of its samples are right
DIFFICULTIES = ("easy", "medium", "hard")
RATIOS = {  # a total over tasks divided by another
    "turns": ("turns", "samples"),
    "turns_solved": ("turns_solved", "solved"),
    "tool_failure_rate": ("failures", "calls"),
    "malformed_rate": ("malformed", "calls"),
    "unknown_tool_rate": ("unknown tool", "calls"),
    "failed_rate": ("failed", "calls"),
    "tokens": ("tokens", "with_tokens"),
    "tokens_per_solved": ("scored_tokens", "solved_with_tokens"),
}

# trajectories of one policy; a mapping is by training seed
Samples = Sequence[Trajectory] | Mapping[int, Sequence[Trajectory]]
Values = dict[str, list[list[float]]]  # by task and seed: the scored successes


def summarize(trajectories: Samples, tasks: Iterable[Task] | None = None) -> dict[str, Any]:
    """Measure one policy.

    Args:
        trajectories: one or several samples a task, or such a list for each training seed; those with success
            None are left out of success and counted.
        tasks: a suite that holds at least these tasks; without it there is no breakdown by family and
            difficulty.

    Returns:
        The policy's entry of comparison.json. A figure with nothing to measure (no tool call, no success, no
        tokens) is None.

    Raises:
        DataError: there is nothing to measure, a success is outside [0, 1], a task is not in ``tasks``, or
            training seeds were measured on different tasks.
    """
    values, flat = values_of(trajectories), flatten(trajectories)
    if not any(any(seeds) for seeds in values.values()):
        raise DataError(f"none of the {len(flat)} trajectories is scored. Verify them first.")
    counts = _counts(flat)
    labels = labels_of(values, tasks)
    clusters = clusters_of(values, tasks)
    entry = {
        **measure(values),
        "samples": int(each) if (each := len(flat) / len(values)).is_integer() else round(each, 2),
        "unscored": sum(t.success is None for t in flat),
        **{
            kind: _blocks(counts, split_by(values, labels[kind], order)) for kind, order in BREAKDOWNS.items()
        },
    }
    if entry["unscored"]:
        entry["worst_case"] = _worst_case(trajectories)
    if clusters and not isinstance(trajectories, Mapping):
        scored = {task: clusters[task] for task, seeds in values.items() if all(seeds)}
        samples = sum(t.success is not None for t in flat)
        entry["by_template"] = _by_template(rates(values, scored)[0], list(scored.values()), samples)
    ratios = {name: _ratio(name, counts.values()) for name in RATIOS}
    entry |= {name: value for name, (value, _) in ratios.items()}
    entry["intervals"] = {name: interval for name, (_, interval) in ratios.items()}
    if isinstance(trajectories, Mapping):
        seeds = {str(seed): measure(values_of(samples)) for seed, samples in trajectories.items()}
        entry["seeds"] = {seed: block["success"] for seed, block in seeds.items()}
    return entry | _draws(values)


def _worst_case(trajectories: Samples) -> list[float]:
    """Success over all tasks if every unscored trajectory were wrong, and if every one were right."""
    filled = lambda ts, value: [t if t.success is not None else replace(t, success=value) for t in ts]  # noqa: E731
    as_if = ({s: filled(ts, v) for s, ts in by_seed(trajectories).items()} for v in (0.0, 1.0))
    return [measure(values_of(samples))["success"] for samples in as_if]


def _by_template(success: np.ndarray, clusters: Sequence[int], samples: int) -> dict[str, Any]:
    """The interval of success with templates as the evidence, and how many there are."""
    index = np.unique(clusters, return_inverse=True)[1]
    interval = statistics.share_interval(
        np.bincount(index, success), np.bincount(index).astype(float), samples
    )
    return {"ci95": interval, "n": int(index.max()) + 1}


def task_success(trajectories: Samples) -> dict[str, float]:
    """Mean success of each task's scored samples (of each seed's mean); a task with none is left out."""
    return {task: fmean(map(fmean, seeds)) for task, seeds in values_of(trajectories).items() if all(seeds)}


def solved_tasks(trajectories: Samples) -> dict[str, bool]:
    """Whether more than half of a task's scored samples are right; a share of a program's tests is not."""
    right = {
        task: [fmean(x == 1.0 for x in own) for own in seeds]
        for task, seeds in values_of(trajectories).items()
        if all(seeds)
    }
    return {task: fmean(shares) > SOLVED for task, shares in right.items()}


def flatten(trajectories: Samples) -> list[Trajectory]:
    """All trajectories of a policy, of whatever training seed."""
    return [t for samples in by_seed(trajectories).values() for t in samples]


def by_seed(trajectories: Samples) -> Mapping[Any, Sequence[Trajectory]]:
    return trajectories if isinstance(trajectories, Mapping) else {"": trajectories}


def values_of(trajectories: Samples) -> Values:
    """Scored successes by task id, in order of first appearance, then by seed; empty where none is scored."""
    seeds = {seed: by_task(samples) for seed, samples in by_seed(trajectories).items()}
    tasks = next(iter(seeds.values()), None)
    if not tasks:
        raise DataError("there is no trajectory to measure. Roll out the policy first.")
    refusal = "training seeds measured on different tasks cannot be pooled"
    named(refusal, same_tasks, {f"seed {seed}": own for seed, own in seeds.items()})
    return {task: [_scores(samples[task]) for samples in seeds.values()] for task in tasks}


def _scores(samples: Sequence[Trajectory]) -> list[float]:
    scored = [t for t in samples if t.success is not None]
    if len(set(map(id, samples))) < len(samples):
        raise DataError(f"a trajectory of task {samples[0].task_id} is there twice. Pass each once.")
    for t in scored:
        if not 0.0 <= t.success <= 1.0:  # also catches NaN
            raise DataError(
                f"task {t.task_id}, sample {t.sample}: success is {t.success}, which is not in [0, 1]."
            )
    return [float(t.success) for t in scored]


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
        interval = statistics.success_interval(by_seed[0], sum(len(seeds[0]) for seeds in scored.values()))
    return {"success": float(by_seed.mean()), "ci95": interval, "n": len(scored)}


def _counts(trajectories: Iterable[Trajectory]) -> dict[str, Counter]:
    """What RATIOS divide, summed over the trajectories of each task."""
    counts = {}
    for task, samples in by_task(trajectories).items():
        solved = [t for t in samples if t.success == 1.0]
        with_tokens = [t for t in samples if t.prompt_ids or t.completion_ids]  # text alone has none
        results = [result for t in samples for result in results_of(t)]
        counts[task] = Counter(failure_of(result) for result in results if not result.ok)
        counts[task].update(
            calls=len(results),
            failures=counts[task].total(),
            samples=len(samples),
            solved=len(solved),
            turns=sum(len(t.turns) for t in samples),
            turns_solved=sum(len(t.turns) for t in solved),
            with_tokens=len(with_tokens),
            solved_with_tokens=sum(t.success == 1.0 for t in with_tokens),
            tokens=sum(len(t.completion_ids) for t in with_tokens),
            scored_tokens=sum(len(t.completion_ids) for t in with_tokens if t.success is not None),
        )
    return counts


def clusters_of(values: Iterable[str], tasks: Iterable[Task] | None) -> dict[str, int]:
    """The template of each measured task as a number; empty where no task names one or none has two tasks."""
    by_id = {task.id: task for task in tasks or ()}
    names = {i: (by_id[i].family, str(by_id[i].meta.get("template") or i)) for i in values if i in by_id}
    numbers = {name: n for n, name in enumerate(dict.fromkeys(names.values()))}
    return {i: numbers[name] for i, name in names.items()} if len(numbers) < len(names) else {}


def _ratio(name: str, counts: Iterable[Counter]) -> tuple[float | None, list[float] | None]:
    """One of RATIOS with its interval, clustered by task; None where there is nothing to divide by."""
    rows = np.array([[count[key] for key in RATIOS[name]] for count in counts], dtype=np.float64)
    return ratio_of(rows.T, share=name.endswith("_rate"))


def ratio_of(counts: np.ndarray, share: bool) -> tuple[float | None, list[float] | None]:
    """The ratio of two totals over tasks, of shape (2, N), and its 95 % interval over those with an occasion.

    One task, or equal ones, give no interval of what is no ``share``.
    """
    above, below = (row.copy() for row in counts[:, counts.any(axis=0)])
    if not below.sum():
        return None, None
    ratio, influence = statistics.ratio_influence(above, below)
    if share:
        return ratio, statistics.share_interval(above, below)
    varies = below.size > 1 and np.ptp(influence) > 1e-12
    return ratio, statistics.mean_interval(ratio + influence, low=0.0, high=math.inf) if varies else None


def _blocks(counts: Mapping[str, Counter], groups: Mapping[str, Values]) -> dict[str, dict]:
    """Success and ratios of each group of tasks."""
    return {
        name: measure(group) | {ratio: _ratio(ratio, [counts[task] for task in group])[0] for ratio in RATIOS}
        for name, group in groups.items()
    }


def _draws(values: Values) -> dict[str, Any]:
    """pass@k and pass^k for k = 1, 2, 4 ... up to the samples that half of the scored tasks have.

    A task with fewer than k scored samples is left out of that k; its n says so.
    """
    sizes = {task: min(map(len, seeds)) for task, seeds in values.items() if any(seeds)}
    most = sorted(sizes.values())[(len(sizes) - 1) // 2]
    ks = [k for k in (2**i for i in range(11)) if k < most] + [most] * (most > 0)
    chances = {"pass_at_k": statistics.pass_at_k, "pass_hat_k": statistics.pass_hat_k}
    draws: dict[str, dict] = {name: {} for name in chances}
    for k in ks:
        enough = [task for task, size in sizes.items() if size >= k]
        for name, chance in chances.items():
            # each chance once a sample: intervals take them as evidence
            drawn = {i: [[chance(len(x), x.count(1.0), k)] * len(x) for x in values[i]] for i in enough}
            draws[name][str(k)] = measure(drawn)
    return draws


def named(name: str, function: Callable, *arguments: Any) -> Any:
    """What a function gives; a fault is raised again with this name before its message."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None


def same_tasks(ids: Mapping[str, Iterable[str]]) -> None:
    """Raises DataError, naming the tasks, where one lacks some of the first's, or the other way round."""
    first = next(iter(ids), "")
    for name in ids:
        all_in(first, ids[first], name, ids[name])
        all_in(name, ids[name], first, ids[first])


def all_in(a: str, ids_a: Iterable[str], b: str, ids_b: Iterable[str]) -> None:
    """Raises DataError, naming the tasks, where the second lacks some of the first's."""
    missing = sorted(set(ids_a) - set(ids_b))
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        named = ", ".join(missing[:5]) + more
        raise DataError(f"tasks of {a} missing in {b} ({len(missing)}): {named}. Use the same tasks.")


def labels_of(values: Iterable[str], tasks: Iterable[Task] | None) -> dict[str, dict[str, str]]:
    """Family, difficulty, case and, where some are new, kind of template of each measured task."""
    if tasks is None:
        return {kind: {} for kind in BREAKDOWNS}
    by_id = {task.id: task for task in tasks}
    all_in("the trajectories", values, "the given tasks", by_id)
    measured = {i: by_id[i] for i in values}
    new = {i: "new" if task.meta.get("new_template") else "trained" for i, task in measured.items()}
    return {
        "by_category": {i: task.family for i, task in measured.items()},
        "by_difficulty": {i: task.difficulty for i, task in measured.items()},
        "by_case": {i: str(case) for i, task in measured.items() if (case := task.meta.get("case"))},
        "by_novelty": new if "new" in new.values() else {},
    }


def split_by(values: Mapping[str, Any], label: Mapping[str, str], order: Callable) -> dict[str, dict]:
    """The measured tasks of each label, in order; nothing where there are no labels."""
    groups: dict[str, dict] = {name: {} for name in order(set(label.values()))}
    for task, name in label.items():
        if task in values:
            groups[name][task] = values[task]
    return {name: group for name, group in groups.items() if group}


def easy_first(names: Iterable[str]) -> list[str]:
    """Names of difficulties from easy to hard, others after them."""
    return sorted(names, key=lambda n: (DIFFICULTIES.index(n) if n in DIFFICULTIES else len(DIFFICULTIES), n))


BREAKDOWNS: dict[str, Callable] = {
    "by_category": sorted,
    "by_difficulty": easy_first,
    "by_case": sorted,
    "by_novelty": sorted,
}
