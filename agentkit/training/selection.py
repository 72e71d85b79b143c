"""Which trajectories are trained on: dead groups, and truncation.

Pure functions on groups. A group is the scored trajectories of one task at one step. What is left out of the
loss keeps its reward in the group's mean, and its part in a denominator that counts trajectories; one that
counts tokens is smaller by its tokens. ``select`` is the one loop that samples; the trainer hands it a
function that rolls out. Leaves out advantages.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from agentkit.recipe import Recipe
from agentkit.records import Group, Task, Trajectory
from agentkit.trajectories import groups_of, is_truncated

# tasks, trajectories a task -> scored trajectories, group by group
Roll = Callable[[Sequence[Task], int], list[Trajectory]]
IsDead = Callable[[Group], bool]  # whether a group teaches nothing under the estimator in use


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
    tasks: Sequence[Task], fresh: Sequence[Task], roll_out: Roll, is_dead: IsDead, recipe: Recipe
) -> Selected:
    """Sample one step's groups as the recipe asks; as many groups of ``fresh`` tasks at the most may take a
    dead one's place.
    """
    cost = recipe.group_size

    def sample(chosen: Sequence[Task]) -> list[Group]:
        return groups_of(roll_out(chosen, cost), cost)

    groups = sample(tasks)
    budget = len(tasks) * cost if recipe.dead_groups == "replace" else 0
    chosen, replaced, extra = replace_dead(groups, fresh, sample, is_dead, budget, cost)
    dropped = [recipe.dead_groups == "drop" and is_dead(group) for group in chosen]
    out = left_out(chosen, dropped, recipe.mask_truncated)
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


def left_out(groups: Sequence[Group], dropped: Sequence[bool], truncated: bool) -> list[bool]:
    """For each trajectory, group by group, whether the loss leaves it or its group out.

    It does without a reward in any case, ``truncated`` ones where asked.
    """
    return [
        drop or t.reward is None or (truncated and is_truncated(t))
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
