"""Inside a process that trains: the lock on its run, random states, and what all processes add up.

Leaves out starting several of them (launch), what they tell each other (policies.process_group) and signals
that stop them (runs.children).
"""

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import distributed

from agentkit.policies.process_group import gathered, world
from agentkit.runs import Run, RunError
from agentkit.runs.files import alone

LOCK = ".training"  # in the run's folder
LOCK_S = 15.0  # a kernel whose parent was killed ends itself within seconds


class TrainingStopped(KeyboardInterrupt):
    """Training was asked to stop. No Exception: a guard around user code must not take it for an error."""

    def _render_traceback_(self) -> list[str]:
        """In a notebook a sentence: where the code was when somebody pressed a button tells nothing."""
        return [f"{type(self).__name__}: {self}"]


def random_states() -> dict[str, Any]:
    """Of Python, NumPy and torch, in types that a checkpoint may hold."""
    numpy = [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": numpy, "cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["cpu"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])


def locked(run: Run) -> AbstractContextManager[None]:
    """Keep others from training in this run; else RunError."""
    return alone(run.path / LOCK, f"training in {run.path}", LOCK_S)


# ---- several
def summed(values: Sequence[float]) -> list[float]:
    """Each of these over all processes."""
    return torch.tensor(gathered([list(values)]), dtype=torch.float64).sum(0).tolist()


def share_gradients(trained: Sequence[torch.nn.Parameter]) -> None:
    """Sum the gradients of all processes: an adapter is small, so that one message does."""
    if world() == 1:
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
    distributed.all_reduce(flat)
    for p, gradient in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        p.grad = gradient.view_as(p)


def check_same(trained: Sequence[torch.nn.Parameter]) -> None:
    """Raise RunError where the trained weights are not the same in all processes."""
    if len(set(gathered([sum(float(p.detach().double().abs().sum()) for p in trained)]))) > 1:
        raise RunError(
            "the processes have trained different adapters: their gradients "
            "were not shared. Train in one process."
        )
