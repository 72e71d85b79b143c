"""torchrun's part of a job: starting it, and what it wrote of its end.

Each of its processes opens the recipe's lab itself and sees its own card only. Leaves out watching it
(launch) and what the processes do (worker).
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agentkit.machine import cores
from agentkit.runs import Run, write_bytes
from agentkit.runs.children import TOKEN
from agentkit.runs.topology import CARDS

LOG = "launch.log"  # in the run's folder


def start(run: Run, job: Path, token: str, number: int, cards: Sequence[str]) -> subprocess.Popen:
    """torchrun with ``number`` processes that do the job of a file; they stop when their input ends.

    What they tell the notebook is the output.
    """
    options = f"--standalone --local-addr=localhost --nproc_per_node={number}"
    options += " --virtual-local-rank" * bool(cards)
    command = f"-m torch.distributed.run {options} -m agentkit.training.worker"
    paths = os.pathsep.join(filter(None, sys.path))
    threads = {"OMP_NUM_THREADS": str(max(cores() // number, 1))}
    environ = threads | os.environ | {TOKEN: token, "PYTHONPATH": paths}
    environ |= {CARDS: ",".join(cards)} if cards else {}
    with write_bytes(run.file(LOG), b"").open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *command.split(), str(run.path.resolve()), str(job.resolve())],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,
        )


def death(code: int | None, log: str) -> str:
    """Which process was ended by which signal, from torchrun's exit status and what it wrote; or ""."""
    if code and code < 0:
        return f"torchrun, which watches the processes, was ended by {signal.Signals(-code).name}"
    for number, rank in re.findall(r"failed \(exitcode: -(\d+)\) local_rank: (\d+)", log):
        name = signal.Signals(int(number)).name
        if name != "SIGTERM":  # by which torchrun ends the others
            return f"process {rank} was ended by {name}, by hand or because memory ran out"
    return ""


def last_error(log: str) -> str:
    """The last error that a process wrote, or the end of what was written."""
    lines = log.splitlines()
    errors = [s.strip() for s in lines if re.match(r"(\[rank\d+\]: *)?[\w.]*(Error|Stopped): \S", s)]
    first = [error for error in errors if "closed by peer" not in error]  # as the others then say
    return " | ".join((first or errors)[-1:] or lines[-3:])[:600]
