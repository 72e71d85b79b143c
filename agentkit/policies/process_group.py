"""Processes that do one job together, as torchrun starts them: their group, and what they tell each other.

Objects travel through main memory (gloo), whatever gradients travel by, and nobody waits longer for another
than the recipe's trajectories may take. Rollouts are spread task by task. Leaves out starting the processes
(training.launch) and gradients (accelerate).
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch import distributed

from agentkit.recipe import Recipe
from agentkit.records import AgentkitError, Task, Trajectory
from agentkit.runs.topology import patience

T = TypeVar("T")
_objects: list[Any] = []  # the group for objects, once there is one


def join(recipe: Recipe) -> None:
    """Join the group of the job's processes, before anything else does so with a time limit of its own."""
    wait = timedelta(seconds=patience(recipe))
    PartialState(cpu=not torch.cuda.is_available(), timeout=wait)
    if world() > 1 and not _objects:
        _objects.append(distributed.new_group(backend="gloo", timeout=wait))


def leave() -> None:
    """End the group, once every process has come to its end."""
    if world() > 1:
        distributed.barrier(group=_objects[0])
        distributed.destroy_process_group()


def rank() -> int:
    return distributed.get_rank() if world() > 1 else 0


def world() -> int:
    """How many processes do this job."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def gathered(items: list[T]) -> list[T]:
    """The items of all processes, in the order of the processes."""
    return [item for part in _parts(items) for item in part]


def _parts(items: list[T]) -> list[list[T]]:
    parts = [items] * world()
    if world() > 1:
        distributed.all_gather_object(parts, items, group=_objects[0])
    return parts


def on_main_process(work: Callable[[], T]) -> T:
    """Do something in the first process only; all get its result, or the error it raised."""
    if world() == 1:
        return work()
    result, error = None, None
    try:
        result = work() if rank() == 0 else None
    except AgentkitError as raised:
        error = raised
    except Exception as raised:  # some kinds can only be made with keywords
        error = RuntimeError(f"{type(raised).__name__}: {raised}")
    shared = [result, error]
    distributed.broadcast_object_list(shared, 0, group=_objects[0])
    if shared[1] is not None:
        raise shared[1]
    return shared[0]


def in_turn(work: Callable[[], T]) -> T:
    """What ``work`` returns, done by one process after the other, for what all at once have no memory."""
    for turn in range(world()):
        if turn == rank():
            result = work()
        gathered([None])  # waits for all
    return result


def spread(
    roll: Callable[[Sequence[Task]], list[Trajectory]], tasks: Sequence[Task], group_size: int = 1
) -> list[Trajectory]:
    """What ``roll`` gives for the tasks, each process rolling out its share of them; all get all of it.

    ``roll`` returns ``group_size`` trajectories a task, in their order; so does this. Random numbers depend
    on the task alone, so the share a task is in changes nothing.
    """
    number, share = world(), tasks[rank() :: world()]
    own = roll(share) if share else []
    parts = [iter(part) for part in _parts(own)]
    return [t for i in range(len(tasks)) for t in islice(parts[i % number], group_size)]
