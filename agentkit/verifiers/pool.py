"""Checks that may never end, in child processes that can be killed: the calling side.

A child is a plain script (isolated/) that answers one line of JSON with several. One whose check is too heavy
ends, and the next check starts another. Nothing of the caller's program runs in it: a script without a
``__main__`` guard is not run again. Leaves out confinement: the checks are ours, only what they check may be
hostile.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentkit.records import Unscored

SCRIPT = Path(__file__).with_name("isolated") / "algebra.py"
TIMEOUT_S = 60.0  # of one check and a child's start, on the wall; a heavy check ends its child much earlier
CHILDREN = min(8, os.cpu_count() or 2)
END = "end\n"  # a child's last line of a reply
_ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}  # no secrets


class Pool:
    """Children that check algebra. Started on first use; safe to call from any thread."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a forked trainer must not share children

    def _reset(self) -> None:
        self._places: queue.LifoQueue[subprocess.Popen | None] = queue.LifoQueue()  # the last used is warm
        for _ in range(CHILDREN):
            self._places.put(None)

    def ask(self, *arguments: Any) -> dict[str, Any]:
        """A check's messages as one, without the last where the check was too heavy.

        Raises:
            Unscored: no child starts, or the machine is too busy: the check hardly ran in its time.
        """
        child, is_over = self._places.get(), False
        try:
            if child is None or child.poll() is not None:
                child = _started()
            messages, is_over = _asked(child, json.dumps(arguments))
        finally:
            self._places.put(child if is_over else None)
        if not is_over:
            with child:  # closes what leads to it, and waits for its end
                child.kill()
            if child.returncode == -signal.SIGKILL or child.returncode > 0:
                raise Unscored("the machine is too busy to compare mathematics, or math-verify is missing")
        reply: dict[str, Any] = {}
        for message in messages:
            with suppress(ValueError):  # a line in which it was stopped
                reply |= json.loads(message)
        return reply


def _started() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-I", str(SCRIPT)],
        env=_ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is the caller's to handle
    )


def _asked(child: subprocess.Popen, request: str) -> tuple[list[str], bool]:
    """What a child says to a request, and whether it has said all of it, and not ended before."""
    said: list[str] = []
    timer = threading.Timer(TIMEOUT_S, child.kill)
    timer.start()
    try:
        with suppress(BrokenPipeError):
            child.stdin.write(f"{request}\n")
            child.stdin.flush()
        for line in child.stdout:
            if line == END:
                return said, True
            said.append(line)
    finally:
        timer.cancel()
    return said, False
