"""Inside a process that trains: the lock on its run, random states, and what all processes add up.

Leaves out starting several of them (launch), what they tell each other (policies.process_group) and signals
that stop them (runs.children).
"""

import fcntl
import hashlib
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from agentkit.policies.process_group import gathered, world
from agentkit.runs import Run, RunError, append_to

LOCK = ".training"  # in the run's folder
LOCK_S = 15.0  # a kernel whose parent was killed ends itself within seconds
_LOCKS: dict[Path, int] = {}  # descriptors that this process holds


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


def lock(run: Run) -> None:
    """Keep others from training in this run, until ``unlock`` or the end of this process, or RunError."""
    path = run.path.resolve() / LOCK
    if path in _LOCKS:
        return
    handle, deadline = append_to(path), time.monotonic() + LOCK_S
    while not _locked(handle):
        if time.monotonic() > deadline:
            holder = os.read(handle, 20).decode(errors="replace").strip()
            os.close(handle)
            raise RunError(
                f"process {holder} is training in {run.path}: wait for it, "
                "stop it, or choose another run folder."
            )
        time.sleep(0.2)
    os.truncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    _LOCKS[path] = handle


def _locked(handle: int) -> bool:
    """Try to lock a file, with a lock of this descriptor: others that read the file and close it change
    nothing.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(run: Run) -> None:
    handle = _LOCKS.pop(run.path.resolve() / LOCK, None)
    if handle is not None:
        os.close(handle)


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


def check_same(model: Any) -> None:
    """Raise RunError where the trained weights are not the same in all processes, to the bit."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            digest.update(name.encode() + weight.detach().to("cpu", torch.float32).numpy().tobytes())
    if len(set(gathered([digest.hexdigest()]))) > 1:
        raise RunError(
            "the processes have trained different adapters: their gradients "
            "were not shared. Train in one process."
        )
