"""Several processes that train one model: their number, and what they tell each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from agentkit.runs import RunError
from agentkit.runs.recipe import Recipe

T = TypeVar("T")


def check_processes(recipe: Recipe) -> None:
    """Raise RunError where another number of processes runs than the recipe says: the batches would be of
    another size.
    """
    found = PartialState(cpu=not torch.cuda.is_available()).num_processes
    if found != recipe.processes:
        raise RunError(
            f"the recipe says processes: {recipe.processes}, and {found} run{'s' * (found == 1)}. Start them "
            "with notebook 03 or "
            f"'python -m torch.distributed.run --standalone --nproc_per_node {recipe.processes}'; "
            "'accelerate launch --cpu' runs one process whatever it is told."
        )


def gathered(items: list[T]) -> list[T]:
    """The items of all processes, in the order of the processes."""
    return gather_object(items) if PartialState().num_processes > 1 else items


def on_main_process(work: Callable[[], T]) -> T:
    """Do something in the first process only; all get its result, or the error it raised."""
    state = PartialState()
    if state.num_processes == 1:
        return work()
    box: list[Any] = [None, None]
    if state.is_main_process:
        try:
            box[0] = work()
        except Exception as error:
            box[1] = error
    broadcast_object_list(box)
    if box[1] is not None:
        raise box[1]
    return box[0]


def check_same(model: Any) -> None:
    """Raise RunError where the trained weights are not the same in all processes, to the bit."""
    found = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            found.update(name.encode() + weight.detach().to("cpu", torch.float32).numpy().tobytes())
    if len(set(gathered([found.hexdigest()]))) > 1:
        raise RunError(
            "the processes have trained different adapters: their gradients were not shared. Train in one "
            "process."
        )
