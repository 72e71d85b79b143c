"""Which trajectories are trained on: dead groups, and truncation.

Pure functions on groups. A group is the scored trajectories of one task at one step. What is left out of the
loss keeps its reward in the group's mean, and its part in a denominator that counts trajectories; one that
counts tokens is smaller by its tokens. ``select`` is the one loop that samples; the trainer hands it a
function that rolls out. Leaves out advantages.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
) -> tuple[list[Group], int, int]:
    """Dynamic sampling (DAPO, arXiv 2503.14476): dead groups give way to live groups of ``fresh`` tasks.

    Those for which the tasks did not suffice are kept as they were. Returns the groups, how many were
    replaced, and how many tasks that took.
    """
    result, tried = list(groups), 0
    dead = [i for i, group in enumerate(groups) if is_dead(group)]
    before = len(dead)
    while dead and tried < len(fresh):
        tasks = fresh[tried : tried + len(dead)]
        tried += len(tasks)
        alive = [group for group in sample(tasks) if not is_dead(group)]
        for i, group in zip(dead, alive, strict=False):
            result[i] = group
        dead = dead[len(alive) :]
    return result, before - len(dead), tried


@dataclass(frozen=True, slots=True)
class Selected:
    """The trajectories of one step, group by group, which of them the loss leaves out, and what was done."""

    trajectories: list[Trajectory]
    left_out: list[bool]
    counts: dict[str, int]  # dead, dead_sampled, replaced, dropped groups; extra, left_out trajectories


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
    others = fresh[: len(tasks)] if recipe.dead_groups == "replace" else []
    chosen, replaced, tried = replace_dead(groups, others, sample, is_dead)
    dropped = [recipe.dead_groups == "drop" and is_dead(group) for group in chosen]
    out = left_out(chosen, dropped, recipe.mask_truncated)
    counts = {
        "dead": sum(map(is_dead, chosen)),
        "dead_sampled": sum(map(is_dead, groups)),
        "replaced": replaced,
        "dropped": sum(dropped),
        "extra": tried * cost,
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


def spread_over(tasks: Sequence[Any], count: int) -> list[Any]:
    """So many of the tasks, or all, evenly over their order: a suite goes family by family."""
    count = min(count, len(tasks))
    return [tasks[i * len(tasks) // count] for i in range(count)]
