"""Untrusted Python in layers: run_python(code) runs what a model wrote, bounded and confined, or refuses.

Tier A: namespaces, Landlock and seccomp. Tier B: Landlock and seccomp. Tier D: neither works here, so it
refuses, unless it is told to run programs unconfined (unconfined.py); there is no tier C. A tier counts only
once canaries have tried to break out of it, in this process, and failed; otherwise the next one is tried.
Each call gets a fresh process: no state, file, process or descriptor passes from one call to the next.
Network, other programs, other users' and this user's files, the environment and other processes are out of
reach; time, memory, output, threads and files are bounded. Leaves out: side channels, a bug in the kernel,
and fairness between calls; names and sizes of files elsewhere can be seen under tier B. Besides the standard
library, places.PACKAGES can be imported.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import marshal
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentkit.records import SandboxError
from agentkit.sandbox import unconfined, zygote
from agentkit.sandbox.canaries import CANARIES
from agentkit.sandbox.places import places, preloaded

TIERS = ("A", "B")
MAX_CODE = 1_000_000  # characters
MAX_INPUT = 4 * 2**20  # bytes of stdin and of files together
MAX_TIMEOUT_S = 3_600.0
GRACE_S = 20.0  # for a busy machine to start the program and to reply
UNSAFE = "AGENTKIT_ALLOW_UNSAFE"  # environment variable; 1 lets programs run where there is no sandbox
WAY_OUT = (
    "run the kit in the Docker image that ships (.ci/Dockerfile), or keep to tasks of the families A and B "
    f"(families: A,B), which need no sandbox; {UNSAFE}=1 runs programs without one"
)
AT_ONCE = min(128, max(8, 4 * (os.cpu_count() or 1)))  # programs that run at the same time


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one program."""

    status: str  # ok, error, timeout, memory, output, killed or refused
    stdout: str  # control characters and invalid UTF-8 escaped; at most 256 KiB
    stderr: str  # the same; its last line says why where the sandbox ended the program
    seconds: float  # wall clock of the program
    tier: str  # of the sandbox that ran it: A, B, C or D


@dataclass(frozen=True, slots=True)
class Tier:
    """The tier that this machine allows, proven by canaries."""

    name: str
    why: str  # what keeps the stronger tiers from being used; empty for A

    def _repr_html_(self) -> str:
        """A green line for tier A, otherwise a red banner that says what is missing."""
        colour, text = ("#1a7f37", "") if self.name == "A" else ("#b3261e", f": {self.why}")
        if self.name == "D":
            text += ". Programs run UNCONFINED." if unsafe_allowed() else f"; {WAY_OUT}."
        escaped = text.replace("&", "&amp;").replace("<", "&lt;")
        style = f"background:{colour};color:#fff;padding:.5em .8em;border-radius:4px"
        return f'<div style="{style}"><b>Sandbox tier {self.name}</b>{escaped}</div>'


# ---- running
# ---------------------------------------------------------------------------------------------------------
def run_python(
    code: str,
    *,
    timeout_s: float = 5,
    memory_mb: int = 512,
    files: Mapping[str, str | bytes] | None = None,
    stdin: str = "",
    tier: str | None = None,
    allow_unsafe: bool | None = None,
) -> Result:
    """Run a program in a fresh confined process, as ``python main.py`` would in an empty folder.

    Args:
        code: the program; anything may be in it.
        timeout_s: wall clock, seconds.
        memory_mb: address space on top of the interpreter's own, MiB.
        files: relative name -> content, put into the program's folder.
        stdin: what the program can read; at its end input() raises EOFError.
        tier: use this tier and no other; by default the strongest that works.
        allow_unsafe: where no tier works, run the program without a sandbox; by default when
            AGENTKIT_ALLOW_UNSAFE is 1.

    Returns:
        The result. Status error is a program that raised, exited non-zero or crashed; refused is no verdict
        on the program: there is no sandbox, or it failed.

    Raises:
        ValueError: a bad limit or file name: the caller's mistake, never the program's.
    """
    request = _request(code, timeout_s, memory_mb, files or {}, stdin, tier)
    if len(code) > MAX_CODE:
        return Result(
            "error", "", f"the program has {len(code)} characters; the limit is {MAX_CODE}\n", 0.0, tier or ""
        )
    try:
        name = tier or current_tier().name
        if name in TIERS:
            return _zygote(name, preloaded(code)).run(request)
        if allow_unsafe or (allow_unsafe is None and unsafe_allowed()):
            return _unconfined(request)
        return Result("refused", "", f"no sandbox here: {current_tier().why}; {WAY_OUT}\n", 0.0, "D")
    except SandboxError as error:
        return Result("refused", "", f"no sandbox here: {error}; {WAY_OUT}\n", 0.0, "D")


def unsafe_allowed() -> bool:
    """Whether the user lets programs run without a sandbox on machines that have none."""
    return os.environ.get(UNSAFE, "") == "1"


def _unconfined(request: dict) -> Result:
    """Run a program without a sandbox."""
    with _slots:
        status, out, err, seconds = unconfined.run(
            request["code"],
            request["files"],
            request["stdin"],
            request["timeout_s"],
            request["memory_bytes"],
            zygote.MAX_OUTPUT,
        )
    return Result(status, readable(out), readable(err), seconds, "D")


def _request(
    code: str, timeout_s: float, memory_mb: int, files: Mapping, stdin: str, tier: str | None
) -> dict:
    if not 0 < timeout_s <= MAX_TIMEOUT_S or not math.isfinite(timeout_s):
        raise ValueError(f"timeout_s={timeout_s!r}: give seconds above 0, at most {MAX_TIMEOUT_S:g}")
    if not isinstance(memory_mb, int) or not 16 <= memory_mb <= 2**20:
        raise ValueError(f"memory_mb={memory_mb!r}: give whole MiB, at least 16")
    if tier is not None and tier not in TIERS:
        raise ValueError(f"tier={tier!r}: there are {', '.join(TIERS)}")
    code, stdin = map(str.__str__, (code, stdin))  # marshal takes no subclass, and others' objects for bytes
    encoded = {
        str.__str__(name): bytes(memoryview(content.encode() if isinstance(content, str) else content))
        for name, content in files.items()
    }
    folders = {name: {str(parent) for parent in PurePosixPath(name).parents} - {"."} for name in encoded}
    for name, above in folders.items():
        parts = PurePosixPath(name).parts
        if (
            "/".join(parts) != name
            or not name
            or ".." in parts
            or "\0" in name
            or len(name.encode(errors="replace")) > 200
        ):
            raise ValueError(f"files: {name[:60]!r} is no relative name inside the program's folder")
        if clash := above & encoded.keys():
            raise ValueError(f"files: {min(clash)!r} cannot be a file and a folder")
    if len(encoded.keys() | set().union(*folders.values())) > zygote.MAX_FILES // 2:
        raise ValueError(f"files: more than {zygote.MAX_FILES // 2}, with their folders")
    if len(stdin) + sum(map(len, encoded.values())) > MAX_INPUT:
        raise ValueError(f"stdin and files hold more than {MAX_INPUT} bytes")
    limits = {"timeout_s": float(timeout_s), "memory_bytes": int(memory_mb) * 2**20}
    return {"code": code, "stdin": stdin, "files": encoded} | limits


def readable(output: bytes) -> str:
    """Program output as text that is safe to show: invalid UTF-8 and control characters but \\n and \\t escaped."""
    return output.decode("utf-8", "backslashreplace").replace("\r\n", "\n").translate(_ESCAPES)


_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


# ---- tiers
# -----------------------------------------------------------------------------------------------------------
_lock = threading.RLock()
_zygotes: dict[tuple[str, tuple[str, ...]], _Zygote] = {}
_tier: Tier | None = None
_slots = threading.BoundedSemaphore(AT_ONCE)


def current_tier() -> Tier:
    """The strongest tier that the canaries have proven here (tried once a process, about a second); D where
    none is.
    """
    global _tier
    with _lock:
        if _tier is None:
            faults = []
            for name in TIERS:
                try:
                    _zygote(name, ())
                except SandboxError as error:
                    faults.append(f"tier {name} does not work here: {error}")
                    continue
                _tier = Tier(name, "; ".join(faults))
                break
            else:
                _tier = Tier("D", "; ".join(faults))
        return _tier


def close() -> None:
    """End the zygotes and what they run. The next call starts again."""
    global _tier
    with _lock:
        for process in _zygotes.values():
            process.close()
        _zygotes.clear()
        _tier = None


atexit.register(close)


def _forget() -> None:
    """In a forked child: leave the parent's zygotes to the parent."""
    global _tier, _lock, _slots
    for process in _zygotes.values():
        process.control.close()
    _zygotes.clear()
    _tier, _lock, _slots = None, threading.RLock(), threading.BoundedSemaphore(AT_ONCE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _zygote(tier: str, preload: tuple[str, ...]) -> _Zygote:
    """The running zygote of a kind, started and proven first where it is not there."""
    with _lock:
        found = _zygotes.get((tier, preload))
        if found is not None and found.process.poll() is not None:
            found.close()
            found = None
        if found is None:
            found = _Zygote(tier, preload)
            try:
                _prove(found)
            except BaseException:
                found.close()
                raise
            _zygotes[tier, preload] = found
        return found


def _prove(process: _Zygote) -> None:
    """Run the canaries in a zygote. Raises SandboxError naming what got out."""
    for canary in CANARIES:
        with canary() as (code, limits, fault_of):
            request = _request(code, limits.get("timeout_s", 5), limits.get("memory_mb", 256), {}, "", None)
            if (fault := fault_of(process.run(request))) is not None:
                raise SandboxError(f"a canary: {fault}")


class _Zygote:
    """The trainer's end of one zygote process."""

    def __init__(self, tier: str, preload: tuple[str, ...]):
        if not sys.platform.startswith("linux"):
            raise SandboxError(f"it needs Linux, and this is {sys.platform}")
        self.tier = tier
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.base = tempfile.mkdtemp(prefix="agentkit-sandbox-")
        settings = json.dumps({"tier": tier, "preload": preload, "base": self.base, **places()})
        script = str(Path(zygote.__file__).resolve())
        command = [
            sys.executable,
            "-B",
            "-P",
            "-S",
            "-s",
            "-X",
            "utf8",
            script,
            str(other.fileno()),
            settings,
        ]
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL", "NUMEXPR")}
        environment = threads | {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "2"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            pass_fds=[other.fileno()],
            start_new_session=True,
        )
        other.close()
        self.control.settimeout(60)
        try:
            ready = self.control.recv(16)
        except TimeoutError:
            ready = b""
        if ready != b"ready":
            self.close()
            lines = self.process.stderr.read().decode("utf-8", "replace").strip().splitlines() or [
                "it did not start"
            ]
            raise SandboxError(lines[-1])
        self.process.stderr.close()
        if tier == "A":
            os.rmdir(self.base)

    def run(self, request: dict) -> Result:
        """One program, from a thread of its own. Raises SandboxError where it could not be run to its end."""
        try:
            with _slots, ExitStack() as stack:
                return self._run(request, stack)
        except (OSError, EOFError) as error:
            raise SandboxError(f"the program could not be run to its end: {error}") from None

    def _run(self, request: dict, stack: ExitStack) -> Result:
        """The same, leaving to ``stack`` what to undo."""
        scratch = ""
        if self.tier != "A":
            scratch = tempfile.mkdtemp(dir=self.base)
            stack.callback(zygote.remove_tree, scratch)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(_let_go, ours)
        readers = []
        with theirs, ExitStack() as given:
            asked = given.enter_context(open(os.memfd_create("request"), "w+b", buffering=0))
            asked.write(marshal.dumps(request))
            asked.seek(0)
            handles = [theirs.fileno(), asked.fileno()]
            for _ in ("stdout", "stderr"):
                reader, writer = os.pipe()
                stack.callback(os.close, reader)
                given.callback(os.close, writer)
                with suppress(
                    OSError
                ):  # room for all that is kept, so that no program waits for this process
                    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, zygote.MAX_OUTPUT)
                readers.append(reader)
                handles.append(writer)
            message = struct.pack("d", request["timeout_s"]) + scratch.encode()
            socket.send_fds(self.control, [message], handles)
        reply, outputs = _collect(ours, readers, time.monotonic() + request["timeout_s"] + GRACE_S)
        status, why = _outcome(reply, any(len(output) > zygote.MAX_OUTPUT for output in outputs))
        out, err = (readable(bytes(output[: zygote.MAX_OUTPUT])) for output in outputs)
        return Result(status, out, f"{err}{why}\n" if why else err, reply["seconds"], self.tier)

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
    """What the zygote says of the end of a program, and what the program wrote to each of two pipes until
    then.

    One byte more than is kept ends the program. Raises EOFError when the zygote is gone, TimeoutError at the
    deadline.
    """
    outputs = {reader: bytearray() for reader in readers}
    poll = select.poll()
    for handle in (caller.fileno(), *readers):
        poll.register(handle, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        found = [handle for handle, _ in poll.poll(1000 * left + 1)]
        for handle in outputs.keys() & found:
            piece = os.read(handle, 65_536)
            outputs[handle] += piece
            if len(outputs[handle]) > zygote.MAX_OUTPUT:
                caller.shutdown(socket.SHUT_WR)  # the zygote then kills it
            if not piece or len(outputs[handle]) > zygote.MAX_OUTPUT:
                poll.unregister(handle)
        if caller.fileno() in found:
            message = caller.recv(65_536)
            if not message:
                raise EOFError("the sandbox's process has ended")
            for reader, output in outputs.items():
                _drain(reader, output)
            return json.loads(message), list(outputs.values())
    raise TimeoutError("the sandbox's process does not answer")


def _let_go(caller: socket.socket) -> None:
    """Wait until the program is dead, which ends now if it has not; what it wrote to is removed after that."""
    with suppress(OSError), caller:
        caller.shutdown(socket.SHUT_WR)  # whoever else holds the socket: a forked process, say
        caller.settimeout(GRACE_S)
        while caller.recv(65_536):
            pass


def _drain(reader: int, output: bytearray) -> None:
    """What is left in the pipe of a dead program."""
    os.set_blocking(reader, False)
    with suppress(BlockingIOError):
        while len(output) <= zygote.MAX_OUTPUT and (piece := os.read(reader, 65_536)):
            output += piece


def _outcome(reply: dict, too_much: bool) -> tuple[str, str]:
    """Status and reason from what the zygote says of a program's end, and whether it wrote more than is kept.

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
        return (
            "error",
            f"stopped by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}",
        )
    return ("ok", "") if code == 0 else ("error", "")
