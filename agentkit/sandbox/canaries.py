"""Canaries: small attacks that must fail before the sandbox is trusted.

Leaves out what takes long: tests/hostile.
"""

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from agentkit.records import SandboxError

_ATTEMPTS = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
escaped = []
def attempt(name):
    def decorate(work):
        try:
            if work():
                escaped.append(name)
        except BaseException:
            pass
    return decorate
@attempt("read a file")
def _(): return open({secret!r}).read()
@attempt("list the home folder")
def _(): return os.listdir({folder!r})
@attempt("see the environment")
def _(): return "AGENTKIT_CANARY" in os.environ
@attempt("read other processes")
def _(): return open("/proc/{pid}/environ", "rb").read()
@attempt("write outside its folder")
def _(): return open({folder!r} + "/litter", "w")
@attempt("write into /dev/shm")
def _(): return open("/dev/shm/agentkit-canary-{pid}", "w")
@attempt("connect to a port")
def _(): return socket.create_connection(("127.0.0.1", {port}), 1)
@attempt("open a socket")
def _(): return socket.socket()
@attempt("connect to a Unix socket")
def _():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return a.sendto(b"x", {unix!r}) and True
@attempt("fork")
def _(): return libc.fork() >= 0
@attempt("start a program")
def _(): return libc.system(b"exit 0") == 0
@attempt("signal the parent")
def _(): return libc.kill({pid}, 0) == 0
@attempt("trace the parent")
def _(): return libc.ptrace(16, {pid}, None, None) == 0
@attempt("make a namespace")
def _(): return libc.unshare(0x10000000) == 0
@attempt("keep a descriptor")
def _(): return [n for n in range(3, 256) if not libc.fcntl(n, 1) == -1]
@attempt("gain rights")
def _(): return libc.setuid(0) == 0
print("escaped:", ", ".join(escaped) or "none")
"""
# programs that must end with a status, and their limits
_BOUNDS = (
    (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass",
        "timeout",
        {"timeout_s": 0.2},
    ),
    ("x = bytearray(4 * 2**30)", "memory", {}),
    ("while True: print('x' * 10**6)", "output", {}),
    ("open('big', 'wb').write(bytes(300 * 2**20))", "error", {"memory_mb": 1024}),
)


def fault(run: Callable[..., Any]) -> str | None:
    """What got out, in words, or None; ``run`` gives the result of a program under limits."""
    with _breakout() as code:
        result = run(code)
    if (result.status, result.stdout) != ("ok", "escaped: none\n"):
        return f"{result.status}: {result.stdout}{result.stderr}".strip()
    for code, status, limits in _BOUNDS:
        result = run(code, **limits)
        if result.status != status:
            return f"{code!r} ended {result.status}, not {status}"
    return None


@contextlib.contextmanager
def _breakout() -> Iterator[str]:
    """A program that tries sixteen ways out; secret, port and Unix socket are there to be reached."""
    with (
        tempfile.TemporaryDirectory(prefix="agentkit-canary-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix_socket,
    ):
        secret, unix = os.path.join(folder, "secret"), os.path.join(folder, "socket")
        with open(secret, "w") as file:
            file.write("secret")
        try:
            unix_socket.bind(unix)
        except OSError as error:
            raise SandboxError(f"no socket in {folder} ({error}): set TMPDIR to a shorter path") from None
        targets = {"secret": secret, "folder": folder, "unix": unix, "pid": os.getpid()}
        try:
            yield _ATTEMPTS.format(**targets, port=server.getsockname()[1])
        finally:
            with contextlib.suppress(FileNotFoundError):  # there only where it got out
                os.remove(f"/dev/shm/agentkit-canary-{os.getpid()}")
