"""Programs without a sandbox, for machines that have none (tier D), on express request only.

Bounded are wall clock, output and, where the system has them, memory and processor time; the environment is
empty and the folder is thrown away. Leaves out everything else: a program can read every file of this user,
use the network and leave processes behind. What a model wrote must not run here on a machine with anything
worth protecting.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

BASE_MEMORY = 512 * 2**20  # bytes of address space of the interpreter itself
DRAIN_S = 1.0  # for what is left in the pipes of a dead process
# Python's own limits first, so that the program finds them set; then as `python main.py` would run it
_START = (
    "import resource, runpy, sys\n"
    "for kind, most in ((resource.RLIMIT_AS, int(sys.argv[1])), (resource.RLIMIT_CPU, int(sys.argv[2]))):\n"
    "    try: resource.setrlimit(kind, (most, most))\n"
    "    except (ValueError, OSError): pass\n"
    "sys.argv[:], sys.path[0] = ['main.py'], ''\n"
    "runpy.run_path('main.py', run_name='__main__')\n"
)


def run(
    code: str, files: Mapping[str, bytes], stdin: str, timeout_s: float, memory_bytes: int, most: int
) -> tuple[str, bytes, bytes, float]:
    """Status (ok, error, timeout or output), stdout and stderr (at most ``most`` bytes each), and seconds."""
    with tempfile.TemporaryDirectory(prefix="agentkit-unconfined-", ignore_cleanup_errors=True) as folder:
        program = {"main.py": code.encode("utf-8", "surrogatepass"), "stdin": stdin.encode()}
        for name, content in {**files, **program}.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        limits = [str(BASE_MEMORY + memory_bytes), str(int(timeout_s) * (os.cpu_count() or 1) + 2)]
        with open(Path(folder, "stdin"), "rb") as given:
            process = subprocess.Popen(
                [sys.executable, "-E", "-s", "-X", "utf8", "-c", _START, *limits],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
                cwd=folder,
                start_new_session=True,
            )
        return _watch(process, timeout_s, most)


def _watch(process: subprocess.Popen, timeout_s: float, most: int) -> tuple[str, bytes, bytes, float]:
    """Read what a process writes and end it, with its process group, at the first bound that it breaks."""
    start = time.monotonic()
    out, err = bytearray(), bytearray()
    readers = [
        threading.Thread(target=_read, args=(process, stream, output, most), daemon=True)
        for stream, output in ((process.stdout, out), (process.stderr, err))
    ]
    try:
        for reader in readers:
            reader.start()
        status = "ok" if process.wait(timeout_s) == 0 else "error"
    except subprocess.TimeoutExpired:
        status = "timeout"
    finally:
        _kill(process)  # also what it started and left in its group
    seconds = time.monotonic() - start
    for reader in readers:
        reader.join(DRAIN_S)
    if max(len(out), len(err)) > most:
        status = "output"
    return status, bytes(out[:most]), bytes(err[:most]), seconds


def _read(process: subprocess.Popen, stream: IO[bytes], output: bytearray, most: int) -> None:
    with suppress(ValueError, OSError), stream:
        while piece := os.read(stream.fileno(), 65_536):
            output += piece
            if len(output) > most:
                _kill(process)
                return


def _kill(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
