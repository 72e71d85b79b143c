"""A process of its own for one program, bounded from outside in wall clock, output and memory: what tiers C
and D run in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

import psutil

WATCH_S = 0.05  # how often memory is looked at
ENDING_S = 1.0  # for what is left in the pipes of a dead process


class NotReady(RuntimeError):
    """The process did not get as far as the program. The message is what it said."""


def supervise(
    command: Sequence[str],
    given: IO[bytes],
    *,
    folder: str,
    environment: Mapping[str, str],
    timeout_s: float,
    most: int,
    ready_s: float = 0.0,
    memory_bytes: int | None = None,
) -> tuple[str | int, bytes, bytes, float]:
    """Run a command and end it, with everything in its process group, at the first bound that it breaks.

    Args:
        command: what to run.
        given: its standard input.
        folder: its working folder.
        environment: all of its environment.
        timeout_s: wall clock.
        most: bytes of stdout and of stderr that are kept; more ends the process.
        ready_s: where the process writes one byte to stdout before the program starts, how long to wait for
            it. The clock starts then, and the byte is no part of the output.
        memory_bytes: resident memory that ends the process.

    Returns:
        timeout, output, memory or the exit status; stdout; stderr; seconds.

    Raises:
        NotReady: it ended or took longer than ``ready_s`` before the program started.
    """
    process = subprocess.Popen(
        command,
        stdin=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd=folder,
        start_new_session=True,
    )
    outputs, flooded, ready = [bytearray(), bytearray()], threading.Event(), threading.Event()

    def read(stream: IO[bytes], output: bytearray) -> None:
        with suppress(ValueError, OSError), stream:
            while piece := os.read(stream.fileno(), 65_536):
                output += piece
                if stream is process.stdout:
                    ready.set()
                if len(output) > most:
                    flooded.set()
                    _kill(process)
                    return
        ready.set()

    pairs = zip((process.stdout, process.stderr), outputs, strict=True)
    readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in pairs]
    try:
        for reader in readers:
            reader.start()
        if ready_s and not (ready.wait(ready_s) and outputs[0]):
            raise NotReady(
                outputs[1].decode("utf-8", "replace").strip()[-500:]
                or f"it was not ready after {ready_s:g} s"
            )
        start = time.monotonic()
        ended = _watch(process, start + timeout_s, memory_bytes)
    finally:
        _kill(process)  # also what it started and left in its group
    seconds = time.monotonic() - start
    for reader in readers:
        reader.join(ENDING_S)
    out, err = outputs
    return (
        "output" if flooded.is_set() else ended,
        bytes(out[bool(ready_s) : most]),
        bytes(err[:most]),
        seconds,
    )


def _watch(process: subprocess.Popen, deadline: float, memory_bytes: int | None) -> str | int:
    """The exit status, or the bound that was reached first."""
    while (left := deadline - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(left if memory_bytes is None else min(left, WATCH_S))
        with suppress(psutil.Error):
            if memory_bytes is not None and psutil.Process(process.pid).memory_info().rss > memory_bytes:
                return "memory"
    return "timeout"


def _kill(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
