"""Untrusted Python: run_python(code) runs what a model wrote, bounded and confined, or refuses.

One sandbox, Landlock and seccomp, the same on every Linux; nothing runs without it. It counts only once
canaries have tried to break out of it, in this process, and failed. Each call gets a fresh process: no state,
file, process or descriptor passes from one call to the next. Network, other programs, other users' and this
user's files, the environment and other processes are out of reach; time, memory, output, threads and files
are bounded. Besides the standard library, paths.PACKAGES can be imported. Leaves out: names and sizes of
files elsewhere, which can be asked for, side channels, a bug in the kernel, and fairness between calls.
"""

import atexit
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from agentkit.machine import cores
from agentkit.records import SandboxError
from agentkit.sandbox import canaries, zygote
from agentkit.sandbox.client import Client
from agentkit.sandbox.paths import preloaded

MAX_INPUT = 4 * 2**20  # bytes of stdin and of files together
MAX_OUTPUT = zygote.MAX_OUTPUT  # bytes of stdout and of stderr
MAX_TIMEOUT_S = 3_600.0
NONE = "no sandbox here"
WAY_OUT = (
    "run the kit in the Docker image that ships (.ci/Dockerfile) or on Linux 5.13 or newer with Landlock, or "
    "keep to tasks that run no programs (families: A,B)"
)
_PROCESSES = os.environ.get("LOCAL_WORLD_SIZE", "")  # that torchrun has started on this machine
CORES = max(cores() // max(int(_PROCESSES) if _PROCESSES.isdecimal() else 1, 1), 1)  # our share
AT_ONCE = min(128, 2 * CORES)  # programs: so few that each gets its processor time within its wall clock
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one program."""

    status: str  # ok, error, timeout, memory, output, killed or refused
    stdout: str  # control characters and invalid UTF-8 escaped; at most 256 KiB
    stderr: str  # the same; its last line says why where the sandbox ended the program
    seconds: float  # wall clock of the program


# ---- running
def run_python(
    code: str,
    *,
    timeout_s: float = 5,
    memory_mb: int = 512,
    files: Mapping[str, str | bytes] | None = None,
    stdin: str = "",
) -> Result:
    """Run a program in a fresh confined process, as ``python main.py`` would in an empty folder.

    Args:
        code: the program; anything may be in it.
        timeout_s: processor seconds of all its threads; three times as many on the clock.
        memory_mb: address space on top of the interpreter's own, MiB.
        files: relative name -> content, put into the program's folder.
        stdin: what the program can read; at its end input() raises EOFError.

    Returns:
        The result. Status error is a program that raised, exited non-zero or crashed; refused is no verdict
        on the program: there is no sandbox, or it failed.

    Raises:
        ValueError: a bad limit or file name: the caller's mistake, never the program's.
    """
    request = _request(code, timeout_s, memory_mb, files or {}, stdin)
    if why := missing():
        return Result("refused", "", f"{NONE}: {why}; {WAY_OUT}\n", 0.0)
    try:
        return _run(_zygote(preloaded(code)), request)
    except SandboxError as error:
        return Result("refused", "", f"the sandbox failed: {error}\n", 0.0)


def missing() -> str:
    """Why there is no sandbox here; "" where there is one, as canaries have proven, once a process."""
    global _missing
    with _lock:
        if _missing is None:
            try:
                _zygote(())
                _missing = ""
            except SandboxError as error:
                _missing = str(error)
        return _missing


def readable(output: bytes) -> str:
    """Output as text that is safe to show: invalid UTF-8 and control characters are escaped."""
    return output.decode("utf-8", "backslashreplace").replace("\r\n", "\n").translate(_ESCAPES)


def _run(client: Client, request: dict) -> Result:
    with _slots:
        status, stdout, stderr, seconds = client.run(request)
    return Result(status, readable(stdout), readable(stderr), seconds)


def _request(code: str, timeout_s: float, memory_mb: int, files: Mapping, stdin: str) -> dict:
    """What the zygote is sent, in plain types: marshal takes no subclass of them."""
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"timeout_s={timeout_s!r}: give seconds above 0, at most {MAX_TIMEOUT_S:g}")
    if not isinstance(memory_mb, int) or not 16 <= memory_mb <= 2**20:
        raise ValueError(f"memory_mb={memory_mb!r}: give whole MiB, at least 16")
    contents = {
        str.__str__(name): bytes(memoryview(content.encode() if isinstance(content, str) else content))
        for name, content in files.items()
    }
    _check_names(contents)
    if len(stdin) + sum(map(len, contents.values())) > MAX_INPUT:
        raise ValueError(f"stdin and files hold more than {MAX_INPUT} bytes")
    return {
        "code": str.__str__(code),
        "stdin": str.__str__(stdin),
        "files": contents,
        "timeout_s": float(timeout_s),
        "memory_bytes": int(memory_mb) * 2**20,
    }


def _check_names(files: Mapping[str, bytes]) -> None:
    """Raises ValueError for a name that leads out of the program's folder."""
    for name in files:
        path = PurePosixPath(name)
        plain = name and "/".join(path.parts) == name and ".." not in path.parts and "\0" not in name
        if not plain or len(name.encode(errors="replace")) > 200:
            raise ValueError(f"files: {name[:60]!r} is no relative name inside the program's folder")


# ---- the processes that run them
_lock = threading.RLock()
_zygotes: dict[tuple[str, ...], Client] = {}  # by the packages they have loaded
_missing: str | None = None
_slots = threading.BoundedSemaphore(AT_ONCE)


def _zygote(preload: tuple[str, ...]) -> Client:
    """The running zygote of a kind, started and proven first where it is not there."""
    with _lock:
        client = _zygotes.get(preload)
        if client is not None and client.process.poll() is None:
            return client
        if client is not None:
            _zygotes.pop(preload).close()
        client = Client(preload)
        try:
            _prove(client)
        except BaseException:
            client.close()
            raise
        _zygotes[preload] = client
        return client


def _prove(client: Client) -> None:
    """Run the canaries. Raises SandboxError naming what got out."""

    def run(code: str, timeout_s: float = 5, memory_mb: int = 256) -> Result:
        return _run(client, _request(code, timeout_s, memory_mb, {}, ""))

    if (fault := canaries.fault(run)) is not None:
        raise SandboxError(f"a canary: {fault}")


def close() -> None:
    """End the zygotes and what they run. The next call starts again."""
    global _missing
    with _lock:
        for client in _zygotes.values():
            client.close()
        _zygotes.clear()
        _missing = None


def _forget() -> None:
    """In a forked child: leave the parent's zygotes to the parent."""
    global _missing, _lock, _slots
    for client in _zygotes.values():
        client.control.close()
    _zygotes.clear()
    _missing, _lock, _slots = None, threading.RLock(), threading.BoundedSemaphore(AT_ONCE)


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
