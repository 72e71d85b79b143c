"""Training in several processes, one a GPU: started from a notebook as a child that is watched and stopped
cleanly.

Each process opens the recipe's lab itself, so that nothing has to be pickled. Leaves out machines beyond this
one, and what each process does (grpo).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentkit.runs import Run, RunError, read_json, write_bytes, write_json

if TYPE_CHECKING:
    from agentkit.lab import Lab

JOB, LOG = ".job.json", "launch.log"  # in the run's folder
# set for workers whose standard input ends when the process that launched them does
WATCH = "AGENTKIT_STOP_WITH_STDIN"
MARK = "agentkit-metrics "  # a line of the child's output that is a row of metrics
STOP_S = 60.0  # to write a checkpoint, before the child is killed


def launch(
    lab: Lab, run: Run, on_metrics: Callable[[dict[str, Any]], None] = lambda row: None
) -> dict[str, Any]:
    """Train in ``recipe.processes`` processes and return what ``grpo.train`` returns.

    Interrupting it stops the child after its step, with a checkpoint; so does the end of this process.

    Args:
        lab: its recipe says how many processes; they open it anew.
        run: holds tasks.jsonl, and sft/ where the recipe asks for it.
        on_metrics: called with every row of metrics.

    Raises:
        RecipeError: something of the lab is defined in a notebook cell.
        RunError: the child failed; the message ends with what it said.
    """
    lab.check_for_children()
    recipe = lab.recipe
    write_json(run.file(JOB), {"recipe": recipe.everything()})
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(recipe.processes),
    ]
    command += ["-m", "agentkit.training.worker", str(run.path.resolve())]
    threads = max((os.cpu_count() or 1) // recipe.processes, 1)
    environ = {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        WATCH: "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    pipe = subprocess.PIPE
    with write_bytes(run.file(LOG), b"").open("wb") as log:
        child = subprocess.Popen(
            command, env=environ, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True
        )
    try:
        _follow(child, on_metrics)
    except BaseException:
        _stop(child)
        raise
    if child.returncode:
        said = run.file(LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line.strip() for line in said if re.match(r"(\[rank\d+\]: *)?\w*(Error|Stopped): ", line)]
        why = " | ".join(errors[-1:] or said[-3:])[:600]
        raise RunError(f"training in {recipe.processes} processes failed (see {run.file(LOG)}): {why}")
    return read_json(run.file(JOB))["result"]


def _follow(child: subprocess.Popen, on_metrics: Callable[[dict[str, Any]], None]) -> None:
    for line in child.stdout:
        if line.startswith(MARK):
            on_metrics(json.loads(line.removeprefix(MARK)))
    child.wait()


def _stop(child: subprocess.Popen) -> None:
    """SIGTERM, time for a checkpoint, then SIGKILL; the whole group either way."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
    timer = threading.Timer(STOP_S, lambda: child.poll() is None and os.killpg(child.pid, signal.SIGKILL))
    timer.start()
    try:
        _follow(child, lambda row: None)
    finally:
        timer.cancel()
