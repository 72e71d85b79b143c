"""Checks that may never end, in child processes that can be killed: the calling side.

A child is a plain script (isolated/) that answers one line of JSON with several. One whose check is too heavy
ends, and its successor starts at once, so that it is warm when it is needed. Nothing of the caller's
program runs in it: a script without a ``__main__`` guard is not run again. Leaves out confinement: the checks
are ours, only what they check may be hostile.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentkit.records import Unscored

SCRIPT = Path(__file__).with_name("isolated") / "algebra.py"
TIMEOUT_S = 20.0  # of one request, on the wall; a child ends itself after a second of processor time
START_S = 120.0  # of a child, on a busy machine
CHILDREN = min(8, os.cpu_count() or 2)
SPARES = 2  # idle children after a kill
END = b"end\n"  # a child's last line of a reply, and its first word
_ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}  # no secrets


class _Child:
    """A process that checks; it is ready once it has loaded what the checks need."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT)],
            env=_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the caller's to handle
        )
        self._is_ready = False

    def ready(self) -> bool:
        """Whether it lives and has loaded everything, which is waited for."""
        if self.process.poll() is None and not self._is_ready:
            self._is_ready = self._reply(START_S).endswith(END)
        return self._is_ready and self.process.poll() is None

    def ask(self, request: bytes, timeout_s: float) -> bytes:
        """What it says up to its last line; less where it has ended itself: a heavy check.

        Raises:
            Unscored: it was too slow on the wall, so the machine has hardly let it run.
        """
        said = b""
        try:
            with suppress(BrokenPipeError):
                self.process.stdin.write(request + b"\n")
                self.process.stdin.flush()
            said = self._reply(timeout_s)
        finally:
            if not said.endswith(END):
                self.kill()
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self._is_ready = False

    def _reply(self, timeout_s: float) -> bytes:
        """What it says up to its last line, or its end."""
        said, deadline, out = b"", time.monotonic() + timeout_s, self.process.stdout.fileno()
        while not said.endswith(END):
            if not select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Unscored(f"the machine is too busy: {timeout_s:g} s were not enough for this check")
            piece = os.read(out, 1 << 16)
            if not piece:  # it has ended
                break
            said += piece
        return said


class Pool:
    """Children that check algebra. Started on first use; safe to call from any thread."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a forked trainer must not share children

    def _reset(self) -> None:
        self._idle: list[_Child] = []
        self._places = threading.BoundedSemaphore(CHILDREN)

    def ask(self, *arguments: Any, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """A check's messages as one, without the last where the check was stopped.

        Raises:
            Unscored: no child starts, or the machine is too busy: the check hardly ran in its time.
        """
        with self._places:
            child = self._borrowed()
            try:
                said = child.ask(json.dumps(arguments).encode(), timeout_s)
            finally:
                self._give_back(child)
        reply: dict[str, Any] = {}
        for line in said.splitlines():
            with suppress(ValueError):  # the end, or a line in which it was killed
                reply |= json.loads(line)
        return reply

    def _give_back(self, child: _Child) -> None:
        if child.ready():
            self._idle.append(child)
        else:  # two in its place where it was the only one: the next check that is killed finds a warm one
            self._idle[:0] = [_Child() for _ in range(max(1, SPARES - len(self._idle)))]

    def _borrowed(self) -> _Child:
        """An idle child that is ready, or a new one."""
        while self._idle:
            with suppress(IndexError):  # another thread took it
                child = self._idle.pop()
                if child.ready():  # it may have died
                    return child
                child.kill()
        child = _Child()
        if child.ready():
            return child
        child.kill()
        raise Unscored("the verifiers' child process does not start; see that math-verify is installed")
