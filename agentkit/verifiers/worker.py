"""Checks that may never end, in a process that can be killed: the calling side.

One server process (``agentkit/verifiers/isolated``) loads SymPy once and forks a child a connection. Every
caller, on any thread, borrows a child for one request; a child that is too slow is killed and the next one
costs a fork, not a start-up.
Needs fork and descriptor passing: Linux, macOS, WSL2.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

TIMEOUT_S = 1.8  # of one request, on the wall
START_S = 120.0  # of the server, on a busy machine
# a request that got less processor time than this before its time-out is the machine's fault, not the
# answer's
BUSY_S = 0.3
_SCRIPT = Path(__file__).with_name("isolated")


class WorkerError(RuntimeError):
    """The worker could not be started, or got no processor time: nothing is known about the request."""


@dataclass
class _Child:
    connection: socket.socket
    pid: int
    received: bytearray = field(default_factory=bytearray)

    def message(self, deadline: float) -> dict | None:
        """The next message; None when the child is gone. Raises TimeoutError."""
        while len(self.received) < 4 or len(self.received) < 4 + struct.unpack("!I", self.received[:4])[0]:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.connection.settimeout(left)
            try:
                data = self.connection.recv(65_536)
            except ConnectionError:
                return None
            if not data:
                return None
            self.received += data
        size = 4 + struct.unpack("!I", self.received[:4])[0]
        found, self.received = json.loads(self.received[4:size]), self.received[size:]
        return found

    def kill(self) -> float:
        """End the child; the processor seconds it had used."""
        used = 0.0
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(self.pid).cpu_times()
            used = times.user + times.system
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.connection.close()
        return used


class Worker:
    """A server process and its idle children. Started on first use; safe to call from any thread."""

    def __init__(self, *modules: str):
        self._modules = modules
        self._lock = threading.Lock()
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a forked trainer must not share connections
        atexit.register(self.close)

    def _reset(self) -> None:
        self._server: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._idle: list[_Child] = []
        self._lock = threading.Lock()

    def ask(self, check: str, *arguments: Any, timeout_s: float = TIMEOUT_S) -> list[dict]:
        """The messages a check gave. The last one is {"end": True}; where it is missing the check was
        stopped.

        Raises:
            WorkerError: the server does not start, or the machine is too busy: the check hardly ran before
                its time was up.
        """
        child = self._borrow()
        request = json.dumps([check, arguments]).encode()
        deadline, messages = time.monotonic() + timeout_s, []
        try:
            child.connection.settimeout(timeout_s)
            child.connection.sendall(struct.pack("!I", len(request)) + request)
            while (message := child.message(deadline)) is not None:
                messages.append(message)
                if "end" in message:
                    with self._lock:
                        self._idle.append(child)
                    return messages
            child.kill()
        except TimeoutError:
            if child.kill() < BUSY_S:
                raise WorkerError(
                    f"the machine is too busy: {timeout_s:g} s were not enough for this check"
                ) from None
        except BaseException:
            child.kill()
            raise
        return messages

    def _borrow(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            try:
                return self._fork()
            except (OSError, struct.error):  # the server died: once more with a new one
                self._stop()
                try:
                    return self._fork()
                except (OSError, struct.error) as error:
                    raise WorkerError(f"the verifiers' worker does not start: {error}") from None

    def _fork(self) -> _Child:
        if self._control is None:
            self._start()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        return _Child(ours, struct.unpack("!I", self._control.recv(4, socket.MSG_WAITALL))[0])

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(START_S)
        command = [sys.executable, "-I", str(_SCRIPT), str(theirs.fileno()), *self._modules]
        environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}  # no secrets
        with theirs:
            self._server = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        if ours.recv(6, socket.MSG_WAITALL) != b"ready\n":
            raise OSError("it ended at once; see that math-verify is installed")
        self._control = ours

    def _stop(self) -> None:
        for child in self._idle:
            child.kill()
        self._idle.clear()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def close(self) -> None:
        """End the server and its idle children."""
        with self._lock:
            self._stop()
