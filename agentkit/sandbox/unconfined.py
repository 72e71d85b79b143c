"""Programs without a sandbox, for machines that have none (tier D), on express request only.

Bounded are wall clock, output and, where the system has them, memory and processor time; the environment is empty and the
folder is thrown away. Nothing else is kept from the program: it can read every file of this user, use the network and
leave processes behind. What a model wrote must not run here on a machine with anything worth protecting.
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

# Python's own limits first, so that the program finds them set; then the program, as ``python main.py`` would run it.
_START = (
    "import resource, runpy, sys\n"
    "for kind, most in ((resource.RLIMIT_AS, int(sys.argv[1])), (resource.RLIMIT_CPU, int(sys.argv[2]))):\n"
    "    try: resource.setrlimit(kind, (most, most))\n"
    "    except (ValueError, OSError): pass\n"
    "sys.argv[:], sys.path[0] = ['main.py'], ''\n"
    "runpy.run_path('main.py', run_name='__main__')\n"
)
BASE_MEMORY = 512 * 2**20  # bytes of address space of the interpreter itself


def run(
    code: str, timeout_s: float, memory_bytes: int, files: Mapping[str, bytes], stdin: str, most: int
) -> tuple[str, bytes, bytes, float]:
    """Run a program in a process of its own; at most ``most`` bytes of stdout and of stderr are kept.

    Returns:
        status (ok, error, timeout or output), stdout, stderr, seconds.
    """
    with tempfile.TemporaryDirectory(prefix="agentkit-unconfined-", ignore_cleanup_errors=True) as folder:
        for name, content in {**files, "main.py": code.encode("utf-8", "surrogatepass"), "stdin": stdin.encode()}.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        start, limits = time.monotonic(), [str(BASE_MEMORY + memory_bytes), str(int(timeout_s) * (os.cpu_count() or 1) + 2)]
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
        outputs, flooded = [bytearray(), bytearray()], threading.Event()
        streams = zip((process.stdout, process.stderr), outputs, strict=True)
        readers = [threading.Thread(target=_read, args=(s, o, most, flooded, process), daemon=True) for s, o in streams]
        for reader in readers:
            reader.start()
        status = None
        try:
            code_of_exit = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = "timeout"
        _kill(process)  # also what it started and left in its group
        seconds = time.monotonic() - start
        for reader in readers:
            reader.join(1.0)
    status = "output" if flooded.is_set() else status or ("ok" if code_of_exit == 0 else "error")
    return status, bytes(outputs[0][:most]), bytes(outputs[1][:most]), seconds


def _read(stream: IO[bytes], output: bytearray, most: int, flooded: threading.Event, process: subprocess.Popen) -> None:
    with suppress(ValueError, OSError), stream:
        while piece := os.read(stream.fileno(), 65_536):
            output += piece
            if len(output) > most:
                flooded.set()
                _kill(process)
                return


def _kill(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
