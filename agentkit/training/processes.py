"""Inside a process that trains: the lock on its run, random states, and whether several processes are
those of the recipe.

Leaves out starting several of them (launch), what they tell each other (policies.process_group) and signals
that stop them (runs.children).
"""

import fcntl
import hashlib
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentkit.policies.process_group import gathered, join, world
from agentkit.runs import Recipe, Run, RunError, append_to

LOCK = ".training"  # in the run's folder
LOCK_S = 15.0  # a kernel whose parent was killed ends itself within seconds
_LOCKS: dict[Path, int] = {}  # descriptors that this process holds; a trainer made anew uses the old one's


class TrainingStopped(KeyboardInterrupt):
    """Training was asked to stop. No Exception: a guard around user code must not take it for an error."""

    def _render_traceback_(self) -> list[str]:
        """In a notebook a sentence: where the code was when somebody pressed a button tells nothing."""
        return [f"{type(self).__name__}: {self}"]


# ---- one process
def random_states() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def set_random_states(states: tuple[Any, ...]) -> None:
    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)


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
    """Try to lock a file; not inherited by children, and gone with this process however it ends."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(run: Run) -> None:
    handle = _LOCKS.pop(run.path.resolve() / LOCK, None)
    if handle is not None:
        os.close(handle)


# ---- several
def check_processes(recipe: Recipe) -> None:
    """Raise RunError where another number of processes runs than the recipe says: batches would differ."""
    join(recipe)
    running = world()
    if running != recipe.processes:
        raise RunError(
            f"the recipe says processes: {recipe.processes}, and {running} run{'s' * (running == 1)}. Start "
            "them with notebook 03 or 'python -m torch.distributed.run --standalone --nproc_per_node "
            f"{recipe.processes}'; 'accelerate launch --cpu' runs one process whatever it is told."
        )


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
