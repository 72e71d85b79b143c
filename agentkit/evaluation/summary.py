"""One policy: its entry of comparison.json.

Leaves out comparing it with another (comparison) and the formulas (statistics).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from agentkit.evaluation import statistics
from agentkit.records import DataError, Task, Trajectory
from agentkit.trajectories import by_task, failure_of, results_of

SOLVED = 0.5  # a task is solved when more than this share of its samples is right
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
        The policy's entry of comparison.json. Success is the mean of the verdicts; ``partial`` is there where
        some lie between 0 and 1, such as the share of a program's tests. A figure with nothing to measure (no
        tool call, no success, no tokens) is None.

    Raises:
        DataError: there is nothing to measure, a success is outside [0, 1], a task is not in ``tasks``, or
            training seeds were measured on different tasks.
    """
    values, flat = values_of(trajectories), flatten(trajectories)
    if not any(any(seeds) for seeds in values.values()):
        raise DataError(f"none of the {len(flat)} trajectories is scored. Verify them first.")
    counts, labels = _counts(flat), labels_of(values, tasks)
    each = len(flat) / len(values)
    entry = measure(values) | {
        "samples": int(each) if each.is_integer() else round(each, 2),
        "unscored": sum(t.success is None for t in flat),
    }
    for kind, order in BREAKDOWNS.items():
        groups = split_by(values, labels[kind], order)
        entry[kind] = {name: measure(own) | _ratios(counts, own) for name, own in groups.items()}
    entry |= _ratios(counts, values) | _draws(values)
    if is_partial(values):
        entry["partial"] = True
    if isinstance(trajectories, Mapping):
        seeds = {str(seed): values_of(samples) for seed, samples in trajectories.items()}
        entry["seeds"] = {seed: measure(own)["success"] for seed, own in seeds.items()}
    return entry


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


def is_partial(values: Values) -> bool:
    """Whether some verdict is neither right nor wrong."""
    return any(x not in (0.0, 1.0) for seeds in values.values() for own in seeds for x in own)


def measure(values: Values) -> dict[str, Any]:
    """Success, its 95 % interval and the number of tasks with a scored sample (of every seed)."""
    scored = {task: seeds for task, seeds in values.items() if all(seeds)}
    if not scored:
        return {"success": None, "ci95": None, "n": 0}
    table = rates(scored, scored)
    if len(table) > 1:
        interval = statistics.over_seeds(table).interval(0.0, 1.0)
    elif is_partial(scored):
        interval = statistics.over_tasks(table[0]).interval(0.0, 1.0)
    else:
        interval = statistics.success_interval(table[0], sum(len(seeds[0]) for seeds in scored.values()))
    return {"success": float(table.mean()), "ci95": interval, "n": len(scored)}


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


def _ratios(counts: Mapping[str, Counter], tasks: Iterable[str]) -> dict[str, float | None]:
    """RATIOS over these tasks; None where there is nothing to divide by."""
    total = sum((counts[task] for task in tasks), Counter())
    return {name: total[a] / total[b] if total[b] else None for name, (a, b) in RATIOS.items()}


def _draws(values: Values) -> dict[str, Any]:
    """pass@k and pass^k, the best and the worst of k samples, for k = 1, 2, 4 ... up to the samples that
    half of the scored tasks have.

    A task with fewer than k scored samples is left out of that k; its n says so.
    """
    sizes = {task: min(map(len, seeds)) for task, seeds in values.items() if any(seeds)}
    most = sorted(sizes.values())[(len(sizes) - 1) // 2]
    draws: dict[str, dict] = {"pass_at_k": {}, "pass_hat_k": {}}
    for k in [*(2**i for i in range(11) if 2**i < most), *[most] * (most > 0)]:
        for name, sign in (("pass_at_k", 1), ("pass_hat_k", -1)):
            best = {
                task: [[sign * statistics.best_of([sign * x for x in own], k)] for own in values[task]]
                for task, size in sizes.items()
                if size >= k
            }
            draws[name][str(k)] = measure(best)
    return draws


def clusters_of(values: Iterable[str], tasks: Iterable[Task] | None) -> dict[str, int]:
    """The template of each measured task as a number; empty where no task names one or none has two tasks."""
    by_id = {task.id: task for task in tasks or ()}
    names = {i: (by_id[i].family, str(by_id[i].meta.get("template") or i)) for i in values if i in by_id}
    numbers = {name: n for n, name in enumerate(dict.fromkeys(names.values()))}
    return {i: numbers[name] for i, name in names.items()} if len(numbers) < len(names) else {}


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
