"""Untrusted Python in layers: run_python(code) runs what a model wrote, bounded and confined, or refuses.

Tier A: namespaces, Landlock and seccomp. Tier B: Landlock and seccomp. Tier D: neither works here, so it
refuses, unless it is told to run programs unconfined (unconfined.py); there is no tier C. A tier counts only
once canaries have tried to break out of it, in this process, and failed; otherwise the next one is tried.
Each call gets a fresh process: no state, file, process or descriptor passes from one call to the next.
Network, other programs, other users' and this user's files, the environment and other processes are out of
reach; time, memory, output, threads and files are bounded. Besides the standard library, paths.PACKAGES can
be imported. Leaves out: side channels, a bug in the kernel, and fairness between calls; names and sizes of
files elsewhere can be seen under tier B.
"""

import atexit
import html
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import PurePosixPath

from agentkit.machine import cores
from agentkit.records import SandboxError
from agentkit.sandbox import canaries, unconfined, zygote
from agentkit.sandbox.client import Client, Ending
from agentkit.sandbox.paths import preloaded

TIERS = ("A", "B")
MAX_CODE = 1_000_000  # characters
MAX_INPUT = 4 * 2**20  # bytes of stdin and of files together
MAX_OUTPUT = zygote.MAX_OUTPUT  # bytes of stdout and of stderr
MAX_GIVEN_FILES = zygote.MAX_FILES // 2  # with their folders
MAX_TIMEOUT_S = 3_600.0
UNSAFE = "AGENTKIT_ALLOW_UNSAFE"  # environment variable; 1 lets programs run where there is no sandbox
WAY_OUT = (
    "run the kit in the Docker image that ships (.ci/Dockerfile), or keep to tasks of the families A and B "
    f"(families: A,B), which need no sandbox; {UNSAFE}=1 runs programs without one"
)
_PROCESSES = os.environ.get("LOCAL_WORLD_SIZE", "")  # that torchrun has started on this machine
CORES = max(cores() // max(int(_PROCESSES) if _PROCESSES.isdecimal() else 1, 1), 1)  # our share
AT_ONCE = min(128, max(8, 4 * CORES))  # programs that run at the same time
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one program."""

    status: str  # ok, error, timeout, memory, output, killed or refused
    stdout: str  # control characters and invalid UTF-8 escaped; at most 256 KiB
    stderr: str  # the same; its last line says why where the sandbox ended the program
    seconds: float  # wall clock of the program
    tier: str  # of the sandbox that ran it: A, B or D


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
        style = f"background:{colour};color:#fff;padding:.5em .8em;border-radius:4px"
        return f'<div style="{style}"><b>Sandbox tier {self.name}</b>{html.escape(text)}</div>'


# ---- running
def run_python(
    code: str,
    *,
    timeout_s: float = 5,
    memory_mb: int = 512,
    files: Mapping[str, str | bytes] | None = None,
    stdin: str = "",
    patience: float = 1,
    tier: str | None = None,
) -> Result:
    """Run a program in a fresh confined process, as ``python main.py`` would in an empty folder.

    Args:
        code: the program; anything may be in it.
        timeout_s: wall clock, seconds.
        memory_mb: address space on top of the interpreter's own, MiB.
        files: relative name -> content, put into the program's folder.
        stdin: what the program can read; at its end input() raises EOFError.
        patience: at most this many times timeout_s for a program that others kept from the cores; where even
            that was far too little, it is refused (tiers A and B).
        tier: use this tier and no other; by default the strongest that works.

    Returns:
        The result. Status error is a program that raised, exited non-zero or crashed; refused is no verdict
        on the program: there is no sandbox, or it failed.

    Raises:
        ValueError: a bad limit or file name: the caller's mistake, never the program's.
    """
    if tier is not None and tier not in TIERS:
        raise ValueError(f"tier={tier!r}: there are {', '.join(TIERS)}")
    request = _request(code, timeout_s, memory_mb, files or {}, stdin)
    request["most_s"] *= patience
    if len(code) > MAX_CODE:
        why = f"the program has {len(code)} characters; the limit is {MAX_CODE}\n"
        return Result("error", "", why, 0.0, tier or "")
    try:
        name = tier or current_tier().name
        if name in TIERS:
            return _run(_zygote(name, preloaded(code)).run, request, name)
    except SandboxError as error:
        return Result("refused", "", f"the sandbox failed: {error}\n", 0.0, "D")
    if unsafe_allowed():
        return _run(unconfined.run, request, "D")
    return Result("refused", "", f"no sandbox here: {current_tier().why}; {WAY_OUT}\n", 0.0, "D")


def unsafe_allowed() -> bool:
    """Whether the user lets programs run without a sandbox on machines that have none."""
    return os.environ.get(UNSAFE, "") == "1"


def readable(output: bytes) -> str:
    """Output as text that is safe to show: invalid UTF-8 and control characters are escaped."""
    return output.decode("utf-8", "backslashreplace").replace("\r\n", "\n").translate(_ESCAPES)


def _run(run: Callable[[dict], Ending], request: dict, tier: str) -> Result:
    with _patient if request["most_s"] > request["timeout_s"] else nullcontext(), _slots:
        status, stdout, stderr, seconds = run(request)
    return Result(status, readable(stdout), readable(stderr), seconds, tier)


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
        "most_s": float(timeout_s),
        "memory_bytes": int(memory_mb) * 2**20,
    }


def _check_names(files: Mapping[str, bytes]) -> None:
    """Raises ValueError for a name that leads out of the program's folder, or is a file and a folder."""
    folders = set()
    for name in files:
        path = PurePosixPath(name)
        plain = name and "/".join(path.parts) == name and ".." not in path.parts and "\0" not in name
        if not plain or len(name.encode(errors="replace")) > 200:
            raise ValueError(f"files: {name[:60]!r} is no relative name inside the program's folder")
        folders.update(str(parent) for parent in path.parents if parent.name)
    if clash := folders & files.keys():
        raise ValueError(f"files: {min(clash)!r} cannot be a file and a folder")
    if len(files) + len(folders) > MAX_GIVEN_FILES:
        raise ValueError(f"files: more than {MAX_GIVEN_FILES}, with their folders")


# ---- tiers
_lock = threading.RLock()
_zygotes: dict[tuple[str, tuple[str, ...]], Client] = {}
_tier: Tier | None = None
_slots = threading.BoundedSemaphore(AT_ONCE)
_patient = threading.BoundedSemaphore(2 * CORES)  # so few that with patience each has its time


def current_tier() -> Tier:
    """The strongest tier that canaries have proven here (tried once a process, a second); D where none is."""
    global _tier
    with _lock:
        if _tier is None:
            _tier = _strongest_tier()
        return _tier


def _strongest_tier() -> Tier:
    faults = []
    for name in TIERS:
        try:
            _zygote(name, ())
        except (SandboxError, AttributeError, ImportError, KeyError) as error:  # this Python lacks something
            why = str(error) if isinstance(error, SandboxError) else f"{type(error).__name__}: {error}"
            faults.append(f"tier {name} does not work here: {why}")
        else:
            return Tier(name, "; ".join(faults))
    return Tier("D", "; ".join(faults))


def _zygote(tier: str, preload: tuple[str, ...]) -> Client:
    """The running zygote of a kind, started and proven first where it is not there."""
    with _lock:
        client = _zygotes.get((tier, preload))
        if client is not None and client.process.poll() is None:
            return client
        if client is not None:
            _zygotes.pop((tier, preload)).close()
        client = Client(tier, preload)
        try:
            _prove(client)
        except BaseException:
            client.close()
            raise
        _zygotes[tier, preload] = client
        return client


def _prove(client: Client) -> None:
    """Run the canaries. Raises SandboxError naming what got out."""

    def run(code: str, timeout_s: float = 5, memory_mb: int = 256) -> Result:
        return _run(client.run, _request(code, timeout_s, memory_mb, {}, ""), client.tier)

    if (fault := canaries.fault(run)) is not None:
        raise SandboxError(f"a canary: {fault}")


def close() -> None:
    """End the zygotes and what they run. The next call starts again."""
    global _tier
    with _lock:
        for client in _zygotes.values():
            client.close()
        _zygotes.clear()
        _tier = None


def _forget() -> None:
    """In a forked child: leave the parent's zygotes to the parent."""
    global _tier, _lock, _slots, _patient
    for client in _zygotes.values():
        client.control.close()
    _zygotes.clear()
    _tier, _lock = None, threading.RLock()
    _slots, _patient = threading.BoundedSemaphore(AT_ONCE), threading.BoundedSemaphore(2 * CORES)


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
