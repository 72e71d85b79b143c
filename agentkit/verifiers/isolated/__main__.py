"""The killable side of the verifiers, started by agentkit.verifiers.worker as a script of its own.

Loads what the checks need once, then forks a child for every socket handed to it. A child serves requests one
after another: JSON with a 4-byte length in front, both ways. Each request runs under kernel timers whose
default action ends the child, so neither a busy C function nor a thread can outlive them; the caller sees the
connection close. Imports nothing of agentkit.
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
from typing import Any

CPU_S = 0.8  # processor seconds of one request
WALL_S = 5.0  # the caller gives up before; this only ends children whose caller has died
MEMORY = 3 << 30  # bytes of address space


def find(pattern: str, text: str, whole: bool) -> Iterator[dict[str, Any]]:
    """The texts that a regular expression takes from a text: its first group where it has one, else the whole
    match.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        yield {"invalid": str(error)}
        return
    yield {"compiled": True}
    if whole:
        yield {"found": [text] if compiled.fullmatch(text) else []}
        return
    matches = (m.group(1 if compiled.groups else 0) for m in compiled.finditer(text))
    yield {"found": list(dict.fromkeys(m for m in matches if m is not None))[:3]}


def serve(connection: socket.socket, checks: dict[str, Callable[..., Iterator[dict]]]) -> None:
    """Answer requests until the other side closes. Every check yields its messages, the last one being its
    verdict.
    """
    stream = connection.makefile("rwb")
    while header := stream.read(4):
        name, arguments = json.loads(stream.read(struct.unpack("!I", header)[0]))
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_REAL, WALL_S)
        try:
            for message in checks[name](*arguments):
                _send(stream, message)
        except (MemoryError, RecursionError) as error:
            _send(stream, {"failed": type(error).__name__})
        except Exception as error:  # whatever a library raises on hostile text is a verdict, not a crash
            _send(stream, {"failed": f"{type(error).__name__}: {error}"[:200]})
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(stream, {"end": True})


def _send(stream: Any, message: dict) -> None:
    data = json.dumps(message).encode()
    stream.write(struct.pack("!I", len(data)) + data)
    stream.flush()


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
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            sys.setrecursionlimit(3_000)
            try:
                serve(socket.socket(fileno=descriptors[0]), checks)
            finally:
                os._exit(0)
        os.close(descriptors[0])
        control.sendall(struct.pack("!I", pid))


if __name__ == "__main__":
    main()
