"""Child processes that leave nobody behind: they carry a word in their environment by which all of them are
found and ended, and they end with the process that started them. Both on Linux only.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

TOKEN = "AGENTKIT_JOB"  # in the environment of all that belongs to one job, servers and helpers included
CELL = "AGENTKIT_CELL"  # in the environment of whatever works on a cell of a sweep: its folder
PARENT = "AGENTKIT_PARENT"  # the process that started this one
PR_SET_PDEATHSIG = 1  # linux/prctl.h; it outlives exec


@contextlib.contextmanager
def signals(handler: Callable[[str], Any], *names: str) -> Iterator[None]:
    """Signals call ``handler`` with their name, but those that are ignored, as by nohup; main thread only."""

    def receive(number: int, frame: Any) -> None:
        handler(signal.Signals(number).name)

    is_main = threading.current_thread() is threading.main_thread()
    numbers = [signal.Signals[name] for name in names if is_main]
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, receive) for number in heard}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent is gone; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number))
        here = str(os.getppid())
        if os.environ.get(PARENT, here) != here:  # it went before this was asked for
            os.kill(os.getpid(), number)
    os.environ[PARENT] = str(os.getpid())


def end_all(variable: str, belongs: Callable[[str], bool]) -> None:
    """Kill the processes, but for this one, in whose environment the value of a variable ``belongs``.

    Twice in a row none must be found: one that is just being started has no environment yet.
    """
    quiet = 0
    while quiet < 2:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                value = _value(process, variable)
                if process.pid != os.getpid() and value and belongs(value):
                    process.kill()
                    found.append(process)
        _, alive = psutil.wait_procs(found, timeout=10)
        quiet = 0 if found and not alive else quiet + 1
        time.sleep(0.1 if quiet == 1 else 0)


def _value(process: psutil.Process, variable: str) -> str | None:
    """Not by psutil, which reads up to a gap, such as vLLM's engine leaves where it wrote its title."""
    start = f"{variable}=".encode()
    words = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    return next((os.fsdecode(word[len(start) :]) for word in words if word.startswith(start)), None)
