"""Programs without a sandbox, for machines that have none (tier D), on express request only.

Bounded are wall clock, output and, where the system has them, memory, processor time and the size of a file;
the environment is empty and the folder is thrown away. Leaves out everything else: a program can read every
file of this user, use the network and leave processes behind. What a model wrote must not run here on a
machine with anything worth protecting.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from agentkit.sandbox.zygote import MAX_FILE_BYTES, MAX_OUTPUT

BASE_MEMORY = 512 * 2**20  # bytes of address space of the interpreter itself
# Python's own limits first, so that the program finds them set; then as `python main.py` would run it
_START = """
import resource, runpy, sys
for name, most in zip(("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE"), sys.argv[1:]):
    try: resource.setrlimit(getattr(resource, name), (int(most), int(most)))
    except (ValueError, OSError): pass
sys.argv[:], sys.path[0] = ["main.py"], ""
runpy.run_path("main.py", run_name="__main__")
"""


def run(request: dict) -> tuple[str, bytes, bytes, float]:
    """Run a program: its status (ok, error, timeout or output), stdout, stderr and seconds."""
    options = {"prefix": "agentkit-unconfined-", "ignore_cleanup_errors": True}
    with TemporaryDirectory(**options) as folder, TemporaryDirectory(**options) as streams:
        files = request["files"] | {"main.py": request["code"].encode("utf-8", "surrogatepass")}
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        Path(streams, "stdin").write_bytes(request["stdin"].encode())
        start = time.monotonic()
        status = _ended(request, folder, streams)
        seconds = time.monotonic() - start
        outputs = []
        for name in ("stdout", "stderr"):
            with open(Path(streams, name), "rb") as file:
                outputs.append(file.read(MAX_OUTPUT + 1))
    if max(map(len, outputs)) > MAX_OUTPUT:
        status = "output"
    return status, outputs[0][:MAX_OUTPUT], outputs[1][:MAX_OUTPUT], seconds


def _ended(request: dict, folder: str, streams: str) -> str:
    """Run main.py in a folder, between the files in another one, and end it with its process group."""
    cpu_s = int(request["timeout_s"]) * (os.cpu_count() or 1) + 2
    limits = (BASE_MEMORY + request["memory_bytes"], cpu_s, MAX_FILE_BYTES)
    with (
        open(Path(streams, "stdin"), "rb") as stdin,
        open(Path(streams, "stdout"), "wb") as stdout,
        open(Path(streams, "stderr"), "wb") as stderr,
    ):
        process = subprocess.Popen(
            [sys.executable, "-E", "-s", "-X", "utf8", "-c", _START, *map(str, limits)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
            cwd=folder,
            start_new_session=True,
        )
    try:
        return "ok" if process.wait(request["timeout_s"]) == 0 else "error"
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it started and left in its group
        process.wait()
