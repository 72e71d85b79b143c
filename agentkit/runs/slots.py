"""Where the cells of a sweep run: one at a time on this machine, or several by Ray.

Ray deals out GPUs on one box and on a cluster whose machines share the folder; a cell sees no other GPUs than
its own. Leaves out which cell comes next (sweep).
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentkit.machine import cores
from agentkit.recipe import Recipe, project_root
from agentkit.records import RecipeError, RunError
from agentkit.runs.children import CELL, PARENT
from agentkit.runs.topology import gpu_count

# tell nobody; leave CUDA_VISIBLE_DEVICES alone without GPUs; let cells run as any process does, where Ray's
# own niceness of 15 starves them beside others; give a busy machine time
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "120",
}
STOP_S = 600.0  # for cells that are told to stop: a training ends its step and writes a checkpoint

Cell = Any  # of a sweep: its recipe says how many GPUs it takes
Start = Callable[[Cell], tuple[list[str], Path]]  # what begins a cell gives its command and its log
Deal = Callable[[Sequence[Cell], Start], Iterator[tuple[Cell, int]]]  # cells as they end, with exit statuses


@contextlib.contextmanager
def dealt(number: int, address: str | None, recipes: Sequence[Recipe]) -> Iterator[Deal]:
    """What runs cells of these recipes: this machine one at a time, or Ray several.

    Raises RunError where Ray is not installed or does not start; RecipeError where cells would train through
    the same servers, or one needs more GPUs than a machine has.
    """
    if number <= 1 and not address:
        yield one_by_one
        return
    if any(recipe.server_urls for recipe in recipes):
        why = "cells at once would replace each other's weights on the servers that server_urls names"
        raise RecipeError(f"{why}: use --slots 1")
    own = {} if address else {"num_cpus": number, "num_gpus": gpu_count(), "include_dashboard": False}
    settings = _SETTINGS | {"OMP_NUM_THREADS": str(max(1, cores() // number))}
    os.environ.update(settings | os.environ)
    try:
        import ray

        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
    except Exception as error:  # Ray raises bare ones
        way = "install it by .venv/bin/pip install -e '.[sweep]', or use --slots 1"
        raise RunError(f"several slots need Ray, which did not start ({error}): {way}") from None
    try:
        gpus = max((int(node["Resources"].get("GPU", 0)) for node in ray.nodes()), default=0)
        if gpus and (wanted := max(map(gpus_of, recipes))) > gpus:  # Ray would wait for ever
            raise RecipeError(f"a cell needs {wanted} GPUs on one machine, and the largest has {gpus}")
        yield partial(by_ray, ray, number, gpus > 0)
    finally:
        ray.shutdown()


def gpus_of(recipe: Recipe) -> int:
    """GPUs of a cell: what its recipe says, else one for each process."""
    return recipe.processes if recipe.gpus == "auto" else int(recipe.gpus)


def one_by_one(cells: Sequence[Cell], start: Start) -> Iterator[tuple[Cell, int]]:
    """The cells in turn, on this machine."""
    for cell in cells:
        with running(*start(cell)) as process:
            yield cell, process.wait()


def by_ray(
    ray: Any, number: int, has_gpus: bool, cells: Sequence[Cell], start: Start
) -> Iterator[tuple[Cell, int]]:
    """Up to ``number`` cells at once; without GPUs each takes a slot of the CPU."""
    task, waiting, at_work = ray.remote(max_retries=0, max_calls=1)(_work), list(cells), {}
    try:
        while waiting or at_work:
            while waiting and len(at_work) < number:
                cell = waiting.pop(0)
                needs = {"num_gpus": gpus_of(cell.recipe), "num_cpus": 0} if has_gpus else {"num_cpus": 1}
                at_work[task.options(**needs).remote(*start(cell), str(project_root()))] = cell
            (done,), _ = ray.wait(list(at_work))
            try:
                status = ray.get(done)
            except ray.exceptions.RayError:  # its worker was killed
                status = 1
            yield at_work.pop(done), status
    finally:
        for handle in at_work:
            ray.cancel(handle)
        ray.wait(list(at_work), num_returns=len(at_work), timeout=STOP_S) if at_work else None


def _work(command: list[str], log: Path, root: str) -> int:
    """In a worker of Ray: a cell's process, from its begin to its end."""
    os.chdir(root)
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it, also for notebooks
    with running(command, log) as process:
        while process.poll() is None:  # a wait would not hear that it is cancelled
            time.sleep(0.2)
        return process.returncode


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen]:
    """A cell's process, which carries its folder in its environment and ends with this one."""
    own = os.environ | {CELL: str(log.parent), PARENT: str(os.getpid())}
    with open(log, "a", encoding="utf-8") as words:
        process = subprocess.Popen(
            command, cwd=project_root(), env=own, stdout=words, stderr=words, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:  # a training ends its step and writes a checkpoint
            process.terminate()
            process.wait(STOP_S)
