"""Training in several processes, one a GPU: started by a notebook as a child, watched and stopped cleanly.

``python -m torch.distributed.run ... -m agentkit.training.launch RUN`` is one of them; each opens the
recipe's lab itself, so that nothing has to be pickled. Leaves out other machines, and training itself (grpo).
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
from typing import Any

import torch

from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.records import AgentkitError
from agentkit.runs import Run, RunError, read_json, write_bytes, write_json
from agentkit.runs.recipe import Recipe

JOB, LOG = ".job.json", "launch.log"  # in the run's folder
# set for workers whose standard input ends when the process that launched them does
WATCH = "AGENTKIT_STOP_WITH_STDIN"
MARK = "agentkit-metrics "  # a line of the child's output that is a row of metrics
STOP_S = 60.0  # to write a checkpoint, before the child is killed
OnMetrics = Callable[[dict[str, Any]], None]


def launch(lab: Lab, run: Run, on_metrics: OnMetrics = lambda row: None) -> dict[str, Any]:
    """Train in ``recipe.processes`` processes and return what ``grpo.train`` returns.

    Interrupting it stops the child after its step, with a checkpoint; so does the end of this process.

    Args:
        lab: its recipe says how many processes; they open it anew.
        run: holds tasks.jsonl, and sft/ where the recipe asks for it.
        on_metrics: called with every row of metrics.

    Raises:
        RecipeError: something of the lab is defined in a notebook cell.
        RunError: the child failed; the message ends with its last error.
    """
    lab.check_for_children()
    processes = lab.recipe.processes
    write_json(run.file(JOB), {"recipe": lab.recipe.everything()})
    child = _start(run, processes)
    try:
        _follow(child, on_metrics)
    except BaseException:
        _stop(child)
        raise
    if child.returncode:
        why = _last_error(run.file(LOG).read_text(encoding="utf-8", errors="replace"))
        raise RunError(f"training in {processes} processes failed (see {run.file(LOG)}): {why}")
    return read_json(run.file(JOB))["result"]


def _start(run: Run, processes: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command += ["-m", "agentkit.training.launch", str(run.path.resolve())]
    threads = max((os.cpu_count() or 1) // processes, 1)
    paths = os.pathsep.join(filter(None, sys.path))
    environ = {"OMP_NUM_THREADS": str(threads), **os.environ, WATCH: "1", "PYTHONPATH": paths}
    pipe = subprocess.PIPE
    with write_bytes(run.file(LOG), b"").open("wb") as log:
        return subprocess.Popen(
            command, env=environ, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True
        )


def _follow(child: subprocess.Popen, on_metrics: OnMetrics) -> None:
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


def _last_error(log: str) -> str:
    lines = log.splitlines()
    errors = [line.strip() for line in lines if re.match(r"(\[rank\d+\]: *)?\w*(Error|Stopped): ", line)]
    return " | ".join(errors[-1:] or lines[-3:])[:600]


# ---- one of the processes
def work(folder: str) -> None:
    """Train; the first process writes the result beside the job."""
    os.umask(0o077)
    if os.environ.get(WATCH):
        threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    from agentkit.training.grpo import train  # TRL looks at the device when it is loaded

    run = Run(folder)
    job = read_json(run.file(JOB))
    lab = Lab.open(Recipe.from_mapping(job["recipe"]))
    agent, tokenizer = load_agent(lab.recipe.model, merge=[run.file("sft")] if lab.recipe.sft else [])
    trainer = lab.trainer(agent, tokenizer, lab.load(run), run, on_metrics=_print_row)
    result = train(trainer)
    if trainer.accelerator.is_main_process:
        write_json(run.file(JOB), job | {"result": result})


def _print_row(row: dict[str, Any]) -> None:
    print(MARK + json.dumps(row), flush=True)


def _stop_with_the_parent() -> None:
    """Standard input ends when the process that launched this one has gone."""
    while sys.stdin.buffer.raw.read(1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    try:
        work(sys.argv[1])
    except AgentkitError as error:
        sys.exit(f"{type(error).__name__}: {error}")
