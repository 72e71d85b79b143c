"""Programs without a sandbox, for machines that have none (tier D), on express request only.

Bounded are wall clock, output and, where the system has them, memory and processor time; the environment is
empty and the folder is thrown away. Nothing else is kept from the program: it can read every file of this
user, use the network and leave processes behind. What a model wrote must not run here on a machine with
anything worth protecting.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentkit.sandbox.process import supervise

# Python's own limits first, so that the program finds them set; then the program, as ``python main.py`` would
# run it.
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
    code: str, files: Mapping[str, bytes], stdin: str, timeout_s: float, memory_bytes: int, most: int
) -> tuple[str, bytes, bytes, float]:
    """Run a program in a process of its own; at most ``most`` bytes of stdout and of stderr are kept.

    Returns:
        status (ok, error, timeout or output), stdout, stderr, seconds.
    """
    with tempfile.TemporaryDirectory(prefix="agentkit-unconfined-", ignore_cleanup_errors=True) as folder:
        for name, content in {
            **files,
            "main.py": code.encode("utf-8", "surrogatepass"),
            "stdin": stdin.encode(),
        }.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        limits = [str(BASE_MEMORY + memory_bytes), str(int(timeout_s) * (os.cpu_count() or 1) + 2)]
        command = [sys.executable, "-E", "-s", "-X", "utf8", "-c", _START, *limits]
        environment = {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
        with open(Path(folder, "stdin"), "rb") as given:
            ended, *rest = supervise(
                command, given, folder=folder, environment=environment, timeout_s=timeout_s, most=most
            )
    return ended if isinstance(ended, str) else "ok" if ended == 0 else "error", *rest
