"""Checks that may never end, in a process that can be killed: the calling side.

One server process (agentkit/verifiers/isolated) loads what the checks need once and forks a child a
connection. Every caller, on any thread, borrows a child for one request; a child that is too slow is killed
and the next one costs a fork, not a start-up. Needs fork and descriptor passing: Linux, macOS, WSL2. Leaves
out confinement: the checks are ours, only what they check may be hostile.
"""

import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from agentkit.records import Unscored

TIMEOUT_S = 1.8  # of one request, on the wall
START_S = 120.0  # of the server, on a busy machine
# less processor time than this before the time-out is the machine's fault, not the answer's
BUSY_S = 0.3
_SCRIPT = Path(__file__).with_name("isolated")


class _Child:
    """A process that checks, at the other end of a connection."""

    def __init__(self, pid: int, descriptor: int):
        self.pid, self.connection = pid, Connection(descriptor)

    def message(self, deadline: float) -> dict | None:
        """The next message; None when the child is gone. Raises TimeoutError."""
        try:
            if not self.connection.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            return json.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            return None

    def kill(self) -> float:
        """End the child; the processor seconds it had used."""
        used = 0.0
        with suppress(psutil.Error):
            times = psutil.Process(self.pid).cpu_times()
            used = times.user + times.system
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.connection.close()
        return used


class Worker:
    """A server process and its idle children. Started on first use; safe to call from any thread."""

    def __init__(self, *modules: str):
        self._modules = modules
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a forked trainer must not share connections
        atexit.register(self.close)

    def _reset(self) -> None:
        self._server: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._idle: list[_Child] = []
        self._lock = threading.Lock()

    def ask(self, check: str, *arguments: Any, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """A check's messages as one; "end" is in it unless the check was stopped.

        Raises:
            Unscored: the server does not start, or the machine is too busy: the check hardly ran before its
                time was up.
        """
        request, child = json.dumps([check, arguments]).encode(), self._borrow()
        deadline, reply = time.monotonic() + timeout_s, {}
        try:
            try:
                child.connection.send_bytes(request)
            except ConnectionError:  # it died while it was idle
                child.connection.close()  # and no kill: its number may be another's by now
                child = None
                child = self._borrow(new=True)
                child.connection.send_bytes(request)
            while "end" not in reply:
                message = child.message(deadline)
                if message is None:
                    child.kill()
                    return reply
                reply |= message
        except TimeoutError:
            if child.kill() < BUSY_S:
                why = f"the machine is too busy: {timeout_s:g} s were not enough for this check"
                raise Unscored(why) from None
            return reply
        except BaseException:
            if child:
                child.kill()
            raise
        with self._lock:
            self._idle.append(child)
        return reply

    def _borrow(self, new: bool = False) -> _Child:
        with self._lock:
            if self._idle and not new:
                return self._idle.pop()
            with suppress(OSError, struct.error):
                return self._fork()
            self._stop()  # the server died: once more with a new one
            try:
                return self._fork()
            except (OSError, struct.error) as error:
                raise Unscored(f"the verifiers' worker does not start: {error}") from None

    def _fork(self) -> _Child:
        if self._control is None:
            self._start()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])  # open until it is received, for macOS
            (pid,) = struct.unpack("!I", self._control.recv(4, socket.MSG_WAITALL))
        return _Child(pid, ours.detach())

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
