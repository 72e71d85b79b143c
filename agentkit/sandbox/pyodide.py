"""Tier C: Python compiled to WebAssembly (Pyodide) inside Deno, for machines without Landlock. Only where the
user asks for it.

A program gets a Deno process of its own that has no permission: no file, network, environment variable or
other program. Pyodide alone is no boundary (its ``js`` module reaches the host's objects), Deno's permissions
are. Memory is bounded by the size of WebAssembly's memory, and the process by its resident memory. Leaves
out: packages besides the standard library, threads, subprocesses; a start costs seconds, not milliseconds.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import tempfile
from pathlib import Path

from agentkit.sandbox.process import supervise

# environment variable: the folder of the npm package pyodide; setting it asks for tier C
FOLDER = "AGENTKIT_PYODIDE"
GET = (
    f"pip install deno; deno install --node-modules-dir=auto npm:pyodide; then {FOLDER}=node_modules/pyodide"
)
READY_S = 120.0  # for a busy machine to load Pyodide
PAGE = 2**16  # bytes of WebAssembly memory
BASE_PAGES = 1_024  # of the interpreter itself
BASE_MEMORY = 768 * 2**20  # bytes of resident memory of Deno and Pyodide
MEMORY_EXIT = 86
CPU_S = 60  # processor seconds besides the program's own; they end a process whose caller was killed
# the limit of processor time first, which only the shell can set for a program that is started
_START = ["/bin/sh", "-c", 'ulimit -t "$0"; ulimit -c 0; exec "$@"']
_FLAGS = (
    "run --quiet --no-prompt --no-config --no-lock --no-npm --no-remote --deny-import --no-code-cache".split()
)


def missing() -> str:
    """What keeps this machine from running tier C; empty where nothing does."""
    folder = os.environ.get(FOLDER, "")
    if not folder:
        return f"{FOLDER} is not set"
    if not Path(folder, "pyodide.mjs").is_file():
        return f"{FOLDER}={folder} holds no pyodide.mjs"
    return "" if _deno() else "there is no deno"


def _deno() -> str:
    """Deno's binary: on PATH, or in the package of that name."""
    if found := shutil.which("deno"):
        return found
    if importlib.util.find_spec("deno") is None:
        return ""
    import deno

    return str(deno.find_deno_bin())


def run(request: bytes, timeout_s: float, memory_bytes: int, most: int) -> tuple[str, bytes, bytes, float]:
    """Run a program: status, stdout, stderr, seconds.

    Raises:
        process.NotReady: Deno or Pyodide do not start.
    """
    pyodide = str(Path(os.environ[FOLDER]).resolve())
    pages = min(2**16, BASE_PAGES + -(-memory_bytes // PAGE))
    with tempfile.TemporaryDirectory(prefix="agentkit-deno-", ignore_cleanup_errors=True) as folder:
        Path(folder, "request").write_bytes(request)
        cpu_s = CPU_S + math.ceil(timeout_s) * (os.cpu_count() or 1)
        command = [
            *_START,
            str(cpu_s),
            _deno(),
            *_FLAGS,
            f"--v8-flags=--wasm-max-mem-pages={pages},--max-old-space-size=256",
        ]
        command += [f"--allow-read={pyodide}", str(Path(__file__).with_suffix(".mjs")), pyodide]
        environment = {
            "DENO_DIR": "/dev/null/none",
            "HOME": folder,
            "NO_COLOR": "1",
            "DENO_NO_UPDATE_CHECK": "1",
        }
        with open(Path(folder, "request"), "rb") as given:
            ended, *rest = supervise(
                command,
                given,
                folder=folder,
                environment=environment,
                timeout_s=timeout_s,
                most=most,
                ready_s=READY_S,
                memory_bytes=BASE_MEMORY + memory_bytes,
            )
    status = ended if isinstance(ended, str) else {0: "ok", MEMORY_EXIT: "memory"}.get(ended, "error")
    return status, *rest
