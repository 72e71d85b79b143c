"""The trainer's end of one zygote: starts it, sends it programs, and reads what they wrote.

Leaves out how many programs run at once: see agentkit.sandbox.
"""

import json
import marshal
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from agentkit.records import SandboxError
from agentkit.sandbox import zygote
from agentkit.sandbox.paths import zygote_settings

START_S = 60.0
GRACE_S = 20.0  # for a busy machine to start the program and to reply
ENVIRONMENT = {  # of the zygote: nothing of the trainer's
    **{f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL", "NUMEXPR")},
    "PYTHONHASHSEED": "0",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
}
Ending = tuple[str, bytes, bytes, float]  # of a program: status, stdout, stderr, seconds


class Client:
    """One zygote process, in which many programs may run at once, each asked for by a thread of its own."""

    def __init__(self, preload: tuple[str, ...]):
        if not sys.platform.startswith("linux"):
            raise SandboxError(f"it needs Linux, and this is {sys.platform}")
        self.base = tempfile.mkdtemp(prefix="agentkit-sandbox-")
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = json.dumps({"preload": preload, "base": self.base, **zygote_settings()})
        script = str(Path(zygote.__file__).resolve())
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *"-B -P -S -s -X utf8".split(), script, str(theirs.fileno()), settings],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=ENVIRONMENT,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        self.control.settimeout(START_S)
        with self.process.stderr as errors:
            ready = b""
            with suppress(TimeoutError):
                ready = self.control.recv(16)
            if ready != b"ready":
                self.close()
                lines = errors.read().decode("utf-8", "replace").strip().splitlines()
                raise SandboxError(lines[-1] if lines else "it did not start")

    def run(self, request: dict) -> Ending:
        """One program. Raises SandboxError where it could not be run to its end."""
        try:
            with ExitStack() as cleanup:
                program, stdin, *written = (
                    cleanup.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(4)
                )
                program.write(marshal.dumps(request))
                stdin.write(request["stdin"].encode("utf-8", "surrogatepass"))
                for file in (program, stdin):
                    file.seek(0)
                reply = self._reply(request["timeout_s"], [program, stdin, *written], cleanup)
                outputs = [os.pread(file.fileno(), zygote.MAX_OUTPUT + 1, 0) for file in written]
        except (OSError, EOFError) as error:
            raise SandboxError(f"the program could not be run to its end: {error}") from None
        status, why = _outcome(reply, any(len(output) > zygote.MAX_OUTPUT for output in outputs))
        stdout, stderr = (output[: zygote.MAX_OUTPUT] for output in outputs)
        return status, stdout, stderr + (f"{why}\n".encode() if why else b""), reply["seconds"]

    def _reply(self, timeout_s: float, files: Sequence[IO[bytes]], cleanup: ExitStack) -> dict:
        """Hand the zygote a program and its files; what the zygote says of its end."""
        scratch = tempfile.mkdtemp(dir=self.base)
        cleanup.callback(zygote.remove_tree, scratch)
        caller, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cleanup.callback(_let_go, caller)
        with theirs:
            handles = [theirs.fileno(), *(file.fileno() for file in files)]
            socket.send_fds(self.control, [struct.pack("d", timeout_s) + scratch.encode()], handles)
        caller.settimeout(zygote.WALL * timeout_s + GRACE_S)
        if not (message := caller.recv(65_536)):
            raise EOFError("the sandbox's process has ended")
        return json.loads(message)

    def close(self) -> None:
        """End the process and what it runs."""
        self.control.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        zygote.remove_tree(self.base)


def _let_go(caller: socket.socket) -> None:
    """Wait until the program is dead, which ends now if it has not: only then is its folder removed."""
    with suppress(OSError), caller:
        caller.shutdown(socket.SHUT_WR)  # whoever else holds the socket: a forked process, say
        caller.settimeout(GRACE_S)
        while caller.recv(65_536):
            pass


def _outcome(reply: dict, too_much: bool) -> tuple[str, str]:
    """Status and reason from the zygote's reply, and whether the program wrote more than is kept.

    Raises SandboxError where the zygote started none.
    """
    if reply["broke"] == "refused":
        raise SandboxError(reply["why"])
    if reply["broke"] in ("timeout", "killed"):
        return reply["broke"], reply["why"]
    code = reply["exit"]
    if too_much:  # also where it was stopped for that
        return "output", f"more than {zygote.MAX_OUTPUT} bytes of output"
    if code == zygote.MEMORY_EXIT:
        return "memory", ""
    if code == -signal.SIGKILL:
        return "killed", "killed by the system, as when memory runs out"
    if code < 0:
        return "error", f"stopped by signal {-code}"
    return ("ok" if code == 0 else "error"), ""
