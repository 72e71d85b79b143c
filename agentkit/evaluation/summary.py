"""One policy: its entry of comparison.json.

Leaves out comparing it with another (comparison) and the formulas (statistics).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median_low
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
}
LABELS: dict[str, Callable[[Task], str | None]] = {  # the block of a task in each breakdown
    "by_category": lambda task: task.family,
    "by_difficulty": lambda task: task.difficulty,
    "by_case": lambda task: str(task.meta.get("case") or ""),
    "by_novelty": lambda task: "new" if task.meta.get("new_template") else "trained",
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
        raise DataError(
            f"none of the {len(flat)} trajectories is scored. Roll out and verify the policy first."
        )
    each = len(flat) / len(values)
    entry = measure(values) | {
        "samples": int(each) if each.is_integer() else round(each, 2),
        "unscored": sum(t.success is None for t in flat),
    }
    for kind, groups in breakdown(values, tasks).items():
        entry[kind] = {name: measure({i: values[i] for i in own}) for name, own in groups.items()}
    entry |= _ratios(flat) | _draws(values)
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


def by_seed(trajectories: Samples) -> Mapping[Any, Sequence[Trajectory]]:
    return trajectories if isinstance(trajectories, Mapping) else {"": trajectories}


def flatten(trajectories: Samples) -> list[Trajectory]:
    """All trajectories of a policy, of whatever training seed."""
    return [t for samples in by_seed(trajectories).values() for t in samples]


def values_of(trajectories: Samples) -> Values:
    """Scored successes by task id, in order of first appearance, then by seed; empty where none is scored."""
    seeds = {f"seed {seed}": by_task(samples) for seed, samples in by_seed(trajectories).items()}
    same_tasks(seeds)
    for t in flatten(trajectories):
        if t.success is not None and not 0.0 <= t.success <= 1.0:  # also catches NaN
            raise DataError(
                f"task {t.task_id}, sample {t.sample}: success is {t.success}, which is not in [0, 1]."
            )
    return {
        task: [[float(t.success) for t in own[task] if t.success is not None] for own in seeds.values()]
        for task in next(iter(seeds.values()), {})
    }


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
    if len(table) > 1 or is_partial(scored):
        interval = statistics.mean_of(table).interval(0.0, 1.0)
    else:
        interval = statistics.success_interval(table[0], sum(len(seeds[0]) for seeds in scored.values()))
    return {"success": float(table.mean()), "ci95": interval, "n": len(scored)}


def _ratios(trajectories: Iterable[Trajectory]) -> dict[str, float | None]:
    """RATIOS over these trajectories; None where there is nothing to divide by."""
    total: Counter = Counter()
    for t in trajectories:
        failed, solved = [failure_of(result) for result in results_of(t) if not result.ok], t.success == 1.0
        total.update(failed)
        total.update(
            calls=len(results_of(t)),
            failures=len(failed),
            samples=1,
            solved=solved,
            turns=len(t.turns),
            turns_solved=solved * len(t.turns),
            tokens=len(t.completion_ids),
            with_tokens=bool(t.prompt_ids or t.completion_ids),  # text alone has none
        )
    return {name: total[a] / total[b] if total[b] else None for name, (a, b) in RATIOS.items()}


def _draws(values: Values) -> dict[str, Any]:
    """pass@k and pass^k, the best and the worst of the k samples that half of the scored tasks have.

    A task with fewer scored samples is left out; n says so.
    """
    sizes = {task: min(map(len, seeds)) for task, seeds in values.items() if any(seeds)}
    k, draws = median_low(sizes.values()), {}
    if k < 2:
        return {}
    for name, sign in (("pass_at_k", 1), ("pass_hat_k", -1)):
        best = {
            task: [[sign * statistics.best_of([sign * x for x in own], k)] for own in values[task]]
            for task, size in sizes.items()
            if size >= k
        }
        draws[name] = measure(best)
    return {"k": k} | draws


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


def breakdown(ids: Iterable[str], tasks: Iterable[Task] | None) -> dict[str, dict[str, list[str]]]:
    """The measured tasks by family, difficulty, case and, where some are new, kind of template."""
    if tasks is None:
        return {kind: {} for kind in LABELS}
    by_id, found = {task.id: task for task in tasks}, {}
    all_in("the trajectories", ids, "the given tasks", by_id)
    for kind, label in LABELS.items():
        groups = defaultdict(list)
        for i in ids:
            groups[label(by_id[i])].append(i)
        found[kind] = {str(name): groups[name] for name in easy_first(name for name in groups if name)}
    if "new" not in found["by_novelty"]:
        found["by_novelty"] = {}
    return found


def easy_first(names: Iterable[str]) -> list[str]:
    """Names of difficulties from easy to hard, others after them."""
    return sorted(names, key=lambda n: (DIFFICULTIES.index(n) if n in DIFFICULTIES else len(DIFFICULTIES), n))
