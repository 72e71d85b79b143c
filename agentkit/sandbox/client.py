"""The trainer's end of one zygote: starts it, sends it programs, and collects what they write.

Leaves out how many programs run at once: see agentkit.sandbox.
"""

import fcntl
import json
import marshal
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

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
        most_s = zygote.WALL * request["timeout_s"] + GRACE_S
        try:
            with ExitStack() as cleanup:
                caller, readers = self._send(request, cleanup)
                reply, outputs = _collect(caller, readers, time.monotonic() + most_s)
        except (OSError, EOFError) as error:
            raise SandboxError(f"the program could not be run to its end: {error}") from None
        status, why = _outcome(reply, any(len(output) > zygote.MAX_OUTPUT for output in outputs))
        stdout, stderr = (bytes(output[: zygote.MAX_OUTPUT]) for output in outputs)
        return status, stdout, stderr + (f"{why}\n".encode() if why else b""), reply["seconds"]

    def _send(self, request: dict, cleanup: ExitStack) -> tuple[socket.socket, list[int]]:
        """Hand the zygote a program: the socket on which it replies, and the pipes for stdout and stderr."""
        scratch = tempfile.mkdtemp(dir=self.base)
        cleanup.callback(zygote.remove_tree, scratch)
        caller, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cleanup.callback(_let_go, caller)
        readers, writers = [], []
        with theirs, ExitStack() as sent:
            program = sent.enter_context(tempfile.TemporaryFile(buffering=0))
            program.write(marshal.dumps(request))
            program.seek(0)
            for _ in ("stdout", "stderr"):
                reader, writer = os.pipe()
                cleanup.callback(os.close, reader)
                sent.callback(os.close, writer)
                with suppress(OSError):  # room for all that is kept: no program waits for this process
                    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, zygote.MAX_OUTPUT)
                readers.append(reader)
                writers.append(writer)
            message = struct.pack("d", request["timeout_s"]) + scratch.encode()
            socket.send_fds(self.control, [message], [theirs.fileno(), program.fileno(), *writers])
        return caller, readers

    def close(self) -> None:
        """End the process and what it runs."""
        self.control.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        zygote.remove_tree(self.base)


def _collect(caller: socket.socket, readers: Sequence[int], deadline: float) -> tuple[dict, list[bytearray]]:
    """What the zygote says of a program's end, and what the program wrote to its two pipes until then.

    One byte more than is kept ends the program. Raises EOFError when the zygote is gone, TimeoutError at the
    deadline.
    """
    outputs = {reader: bytearray() for reader in readers}
    poll = select.poll()
    for handle in (caller.fileno(), *readers):
        poll.register(handle, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        ready = {handle for handle, _ in poll.poll(1000 * left + 1)}
        for handle in outputs.keys() & ready:
            piece = os.read(handle, 65_536)
            outputs[handle] += piece
            if len(outputs[handle]) > zygote.MAX_OUTPUT:
                caller.shutdown(socket.SHUT_WR)  # the zygote then kills it
            if not piece or len(outputs[handle]) > zygote.MAX_OUTPUT:
                poll.unregister(handle)
        if caller.fileno() in ready:
            message = caller.recv(65_536)
            if not message:
                raise EOFError("the sandbox's process has ended")
            for reader, output in outputs.items():
                _drain(reader, output)
            return json.loads(message), list(outputs.values())
    raise TimeoutError("the sandbox's process does not answer")


def _drain(reader: int, output: bytearray) -> None:
    """What is left in the pipe of a dead program."""
    os.set_blocking(reader, False)
    with suppress(BlockingIOError):
        while len(output) <= zygote.MAX_OUTPUT and (piece := os.read(reader, 65_536)):
            output += piece


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
        named = -code in set(signal.Signals)
        return "error", f"stopped by {signal.Signals(-code).name if named else f'signal {-code}'}"
    return ("ok" if code == 0 else "error"), ""
