"""Which trajectories are trained on: dead groups, GRPO-RoC's resampling, void turns, truncation.

Pure functions on groups. A group is the scored trajectories of one task at one step. What is left out of the
loss keeps its reward in the group's mean, and its part in a denominator that counts trajectories; one that
counts tokens is smaller by its tokens. ``select`` is the one loop that samples; the trainer hands it a
function that rolls out. Leaves out advantages.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from agentkit.recipe import Recipe
from agentkit.records import Group, Task, Trajectory
from agentkit.trajectories import groups_of, is_truncated, is_void, results_of

# tasks, trajectories a task -> scored trajectories, group by group
Roll = Callable[[Sequence[Task], int], list[Trajectory]]
IsDead = Callable[[Group], bool]  # whether a group teaches nothing under the estimator in use


def penalty(trajectory: Trajectory) -> float:
    """What GRPO-RoC (arXiv 2508.20722) prefers less of: tool-error ratio plus number of malformed calls."""
    results = results_of(trajectory)
    errors = sum(not result.ok for result in results) / max(len(results), 1)
    return errors + sum(not result.name for result in results)


def resample_correct(group: Group, keep: int) -> Group:
    """GRPO-RoC (rStar2-Agent, arXiv 2508.20722): ``keep`` of a larger group, with its share of positives.

    Positives (right answers) are kept by lowest penalty, so that a right answer after many failed calls is
    not what is learnt; the others in the order they were sampled, which is random, for mistakes should stay
    as diverse as they are. Each kind that is there stays. Unscored trajectories fill up only. Samples are
    numbered anew.
    """
    scored = [t for t in group.trajectories if t.reward is not None and t.success is not None]
    positives = sorted((t for t in scored if t.success == 1.0), key=lambda t: (penalty(t), t.sample))
    negatives = [t for t in scored if t.success != 1.0]
    wanted = int(keep * len(positives) / max(len(scored), 1) + 0.5)
    if positives and negatives and keep > 1:
        wanted = min(max(wanted, 1), keep - 1)
    others = keep - min(wanted, len(positives))
    unscored = [t for t in group.trajectories if t not in scored]
    first, rest = positives[:wanted] + negatives[:others], positives[wanted:] + negatives[others:] + unscored
    chosen = (first + rest)[:keep]
    return Group(group.task_id, tuple(replace(t, sample=i) for i, t in enumerate(chosen)))


def replace_dead(
    groups: Sequence[Group],
    fresh: Sequence[Task],
    sample: Callable[[Sequence[Task]], list[Group]],
    is_dead: IsDead,
    budget: int,
    cost: int,
) -> tuple[list[Group], int, int]:
    """Dynamic sampling (DAPO, arXiv 2503.14476): dead groups give way to live groups of ``fresh`` tasks.

    At most ``budget`` trajectories are sampled, ``cost`` a group; those for which tasks or budget did not
    suffice are kept as they were.
    """
    result, affordable = list(groups), min(budget // cost, len(fresh))
    dead = [i for i, group in enumerate(groups) if is_dead(group)]
    before, tried = len(dead), 0
    while dead and tried < affordable:
        tasks = fresh[tried : min(tried + len(dead), affordable)]
        tried += len(tasks)
        alive = [group for group in sample(tasks) if not is_dead(group)]
        for i, group in zip(dead, alive, strict=False):
            result[i] = group
        dead = dead[len(alive) :]
    return result, before - len(dead), tried * cost


@dataclass(frozen=True, slots=True)
class Selected:
    """The trajectories of one step, group by group, which of them the loss leaves out, and what was done."""

    trajectories: list[Trajectory]
    left_out: list[bool]
    counts: dict[
        str, int
    ]  # of groups: dead, dead_sampled, replaced, dropped; of trajectories: extra, left_out


def select(
    tasks: Sequence[Task],
    fresh: Sequence[Task],
    roll_out: Roll,
    is_dead: IsDead,
    recipe: Recipe,
    extra: int,
    resample: bool = False,
    without_void: bool = False,
) -> Selected:
    """Sample one step's groups as the recipe asks; ``fresh`` tasks may take a dead group's place, at most
    ``extra`` groups of them. ``resample`` is GRPO-RoC; ``without_void`` leaves void trajectories out.
    """
    cost = recipe.group_size * (2 if resample else 1)

    def sample(chosen: Sequence[Task]) -> list[Group]:
        groups = groups_of(roll_out(chosen, cost), cost)
        if resample:
            return [resample_correct(group, recipe.group_size) for group in groups]
        return groups

    groups = sample(tasks)
    budget = extra * cost if recipe.dead_groups == "replace" else 0
    chosen, replaced, extra = replace_dead(groups, fresh, sample, is_dead, budget, cost)
    dropped = [recipe.dead_groups == "drop" and is_dead(group) for group in chosen]
    out = left_out(chosen, dropped, recipe.mask_truncated, without_void)
    dead = sum(map(is_dead, chosen))
    counts = {
        "dead": dead,
        "dead_sampled": sum(map(is_dead, groups)),
        "replaced": replaced,
        "dropped": dead if recipe.dead_groups == "drop" else 0,
        "extra": extra,
        "left_out": sum(out),
    }
    return Selected([t for group in chosen for t in group.trajectories], out, counts)


def left_out(groups: Sequence[Group], dropped: Sequence[bool], truncated: bool, void: bool) -> list[bool]:
    """For each trajectory, group by group, whether the loss leaves it or its group out.

    It does without a reward in any case, ``truncated`` and ``void`` ones where asked.
    """
    return [
        drop or t.reward is None or (void and is_void(t)) or (truncated and is_truncated(t))
        for group, drop in zip(groups, dropped, strict=True)
        for t in group.trajectories
    ]


def fresh_tasks(tasks: Iterable[Task], used: Sequence[str], seed: int) -> list[Task]:
    unused = [task for task in tasks if task.id not in set(used)]
    random.Random(seed).shuffle(unused)
    return unused


# ---- tasks
def batches(tasks: Sequence[Task], each: int, seed: int) -> Iterator[list[Task]]:
    """Tasks in a new order each epoch, ``each`` at a time, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(tasks), generator=generator).tolist()
        for start in range(0, len(order) // each * each, each):
            yield [tasks[i] for i in order[start : start + each]]


def spread_over(tasks: Sequence[Task], count: int) -> list[Task]:
    """So many of the tasks, or all, evenly over their order: a suite goes family by family."""
    count = min(count, len(tasks))
    return [tasks[i * len(tasks) // count] for i in range(count)]
