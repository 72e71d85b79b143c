"""What training asks of its process: random states to keep, signals that stop it, and the lock on its run's
folder.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentkit.runs import Run, RunError

LOCK_S = 15.0  # a kernel whose parent was killed ends itself within seconds


class TrainingStopped(KeyboardInterrupt):
    """Training was asked to stop. Not an Exception, so that no guard around user code takes it for an error
    of that code.
    """


def random_states() -> tuple[Any, ...]:
    """The states of Python's, NumPy's and torch's generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def set_random_states(states: tuple[Any, ...]) -> None:
    """Put back what ``random_states`` gave."""
    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)


@contextmanager
def signals(handler: Callable[[str], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call ``handler`` with their name; only the main thread can receive them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {
        number: signal.signal(number, lambda n, frame: handler(signal.Signals(n).name)) for number in numbers
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


_LOCKS: dict[
    Path, int
] = {}  # descriptors held by this process: a training that is made anew in a notebook keeps its own


def lock(run: Run) -> None:
    """Keep other processes from training in this run, until ``unlock`` or the end of this process, however it
    ends.

    Raises:
        RunError: another process holds it.
    """
    path = run.file(".training").resolve()
    if path in _LOCKS:
        return
    handle, deadline = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > deadline:
                holder = os.read(handle, 20).decode(errors="replace").strip()
                os.close(handle)
                raise RunError(
                    f"process {holder} is training in {run.path}: wait for it, stop it, or choose another "
                    "run folder."
                ) from None
            time.sleep(0.2)
    os.truncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    _LOCKS[path] = handle


def unlock(run: Run) -> None:
    """Let others train in this run."""
    if (handle := _LOCKS.pop(run.file(".training").resolve(), None)) is not None:
        os.close(handle)
