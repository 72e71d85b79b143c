"""The killable side of the verifiers, started by agentkit.verifiers.worker as a script of its own.

Loads what the checks need once, then forks a child for every socket handed to it. A child serves requests one
after another, JSON over a Connection. Each request runs under kernel timers whose default action ends the
child, so neither a busy C function nor a thread can outlive them; the caller sees the connection close.
Leaves out all of agentkit but its neighbours.
"""

import gc
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

CPU_S = 0.8  # processor seconds of one request
WALL_S = 5.0  # the caller gives up before; this only ends children whose caller has died
MEMORY = 3 << 30  # bytes of address space


def find(pattern: str, text: str, whole: bool) -> Iterator[dict[str, Any]]:
    """The texts that a regular expression takes from a text: its first group, or else the whole match."""
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        yield {"invalid": str(error)}
        return
    yield {"compiled": True}
    if whole:
        yield {"found": [text] if compiled.fullmatch(text) else []}
        return
    group = 1 if compiled.groups else 0
    matches = (match.group(group) for match in compiled.finditer(text))
    yield {"found": list(dict.fromkeys(match for match in matches if match is not None))[:3]}


def serve(connection: Connection, checks: dict[str, Callable[..., Iterator[dict]]]) -> None:
    """Answer requests until the other side closes. A check yields messages, the last is its verdict."""
    while True:
        name, arguments = json.loads(connection.recv_bytes())
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_REAL, WALL_S)
        try:
            for message in checks[name](*arguments):
                connection.send_bytes(json.dumps(message).encode())
            last = {"end": True}
        except Exception as error:  # whatever a library raises on hostile text is a verdict, not a crash
            last = {"failed": f"{type(error).__name__}: {error}"[:200], "end": True}
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(last).encode())


def main() -> None:
    """Fork a child for every descriptor that arrives on the control socket; its process id is the reply."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    checks: dict[str, Callable[..., Iterator[dict]]] = {"find": find}
    if "algebra" in sys.argv[2:]:
        import algebra

        algebra.warm_up()
        checks["compare"] = algebra.compare
    gc.freeze()
    control.sendall(b"ready\n")
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            with suppress(ValueError, OSError):  # macOS refuses so small a bound
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            sys.setrecursionlimit(3_000)
            try:
                serve(Connection(descriptors[0]), checks)
            finally:  # the caller has closed the connection
                os._exit(0)
        os.close(descriptors[0])
        control.sendall(struct.pack("!I", pid))


if __name__ == "__main__":
    main()
