"""One of the processes that torchrun starts for a job (``python -m agentkit.training.worker RUN JOB``).

It joins the others, calls the job that the file JOB names, and tells the notebook metrics and the result.
It stops after a step when its input ends, as it does with the notebook, and ends with torchrun, however that
ends. Leaves out starting it (launch) and the jobs.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from agentkit.policies.unsloth import import_first
from agentkit.records import AgentkitError
from agentkit.runs import Recipe, Run, read_json, write_json
from agentkit.runs.children import die_with_parent

MARK = "agentkit-metrics "  # a line of a worker's output that is a row of metrics


def work(folder: str, file: str) -> None:
    os.umask(0o077)
    die_with_parent(signal.SIGKILL)
    tell = partial(_tell, _notebook())
    run, job = Run(folder), read_json(Path(file))
    recipe = Recipe.from_mapping(job["recipe"])
    if job["job"].endswith(":train"):
        import_first(recipe.engine)  # before what follows loads transformers
    from agentkit.lab import Lab
    from agentkit.policies import process_group
    from agentkit.runs.topology import CARDS, patience
    from agentkit.training.processes import TrainingStopped

    threading.Thread(target=_stop_with_the_notebook, args=(patience(recipe), Path(file)), daemon=True).start()
    process_group.join(recipe)
    try:
        result = function_of(job["job"])(Lab.open(recipe), run, tell, **job["arguments"])
    except TrainingStopped as stopped:  # no fault: torchrun would end the others for one
        print(f"{type(stopped).__name__}: {stopped}", file=sys.stderr)
        return
    each = process_group.gathered(
        [{"card": os.environ.get(CARDS, ""), "sampled": dict(process_group.counted)}]
    )
    if process_group.rank() == 0 and Path(file).exists():  # else nobody waits for it any more
        write_json(Path(file), job | {"result": result | {"ranks": each}})
    process_group.leave()


def function_of(job: str) -> Callable[..., dict[str, Any]]:
    """The function that a job's name, "module:function", stands for."""
    module, _, name = job.partition(":")
    return getattr(import_module(module), name)


def _notebook() -> TextIO:
    """What leads to the notebook: this process alone holds it, and what else is printed goes to the log."""
    sys.stdout.flush()
    notebook = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return notebook


def _tell(notebook: TextIO, row: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it has gone: the step ends with its checkpoint all the same
        print(MARK + json.dumps(row), file=notebook, flush=True)


def _stop_with_the_notebook(wait_s: float, file: Path) -> None:
    """The input ends when the process that launched this one has gone, or wants it to stop."""
    while sys.stdin.buffer.raw.read(1024):
        pass
    with contextlib.suppress(OSError):
        file.unlink()  # which nobody else may be left to do
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(wait_s)
    os._exit(1)


if __name__ == "__main__":
    try:
        work(*sys.argv[1:])
    except AgentkitError as error:
        sys.exit(f"{type(error).__name__}: {error}")
