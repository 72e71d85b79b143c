"""Several cells of a sweep at once, by Ray: on this machine, or on a cluster whose machines share the folder.

A cell gets as many GPUs as its recipe asks for, and sees no others; without GPUs a slot of the CPU.
Leaves out which cell comes next (sweep).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agentkit.machine import cores
from agentkit.recipe import Recipe
from agentkit.records import RecipeError, RunError
from agentkit.runs.run import project_root
from agentkit.runs.sweep import Job, Sweep, in_this_process, make
from agentkit.runs.topology import patience

_SETTINGS = {  # tell nobody; keep CUDA_VISIBLE_DEVICES where there are none
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_prestart_worker_first_driver": "0",  # a cell's worker is its own
}
JOIN_S = 180.0  # for the machines of a cluster to join it
TRIES = 5  # Ray gives itself 30 seconds to start, and a busy machine may take longer


def gpu_count() -> int:
    """GPUs that this machine, or CUDA_VISIBLE_DEVICES, offers; torch is not loaded for it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([name for name in named.split(",") if name.strip() not in ("", "-1")])
    if not shutil.which("nvidia-smi"):
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    return listed.stdout.count("UUID: GPU")


def slots_of(
    slots: int, address: str | None, recipes: Sequence[Mapping[str, Any]]
) -> AbstractContextManager[tuple[Callable[[Job], Future], int]]:
    """What submits a cell's job, and how many at once: this process takes one, Ray several.

    Raises RecipeError where several would train through the same servers.
    """
    if slots > 1 and any(recipe.get("server_urls") for recipe in recipes):
        why = "cells at once would replace each other's weights on the servers that server_urls names"
        raise RecipeError(f"{why}: use --slots 1")
    if slots == 1 and not address:
        return contextlib.nullcontext((in_this_process, 1))
    return _by_ray(slots, address, recipes)


@contextlib.contextmanager
def _by_ray(
    slots: int, address: str | None, recipes: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Callable[[Job], Future], int]]:
    """What submits a job to a free slot, and how many slots there are, no more than asked for.

    Raises RunError where Ray is not installed.
    """
    try:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        sys.modules.setdefault("rfc3987_syntax", None)  # 2 s for a grammar of what no message holds
        import ray
    except ImportError:
        raise RunError(
            "several slots need Ray, which is not installed: .venv/bin/pip install -e '.[sweep]', or use "
            "--slots 1"
        ) from None
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // slots)))
    own = {} if address else {"num_cpus": slots, "num_gpus": gpu_count(), "include_dashboard": False}
    on_end = signal.getsignal(signal.SIGTERM)
    for number in range(1, TRIES + 1):
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
            signal.signal(signal.SIGTERM, on_end)  # Ray has its own, which says nothing
            break
        except Exception as error:  # Ray raises bare ones
            ray.shutdown()
            if number == TRIES:
                raise RunError(f"Ray did not start ({error}). Try again, or --slots 1.") from None
    gpus, room = _joined(slots, address, recipes)
    task, jobs = ray.remote(max_retries=0, max_calls=1)(_make), {}

    def submit(job: Job) -> Future:
        try:
            needs = _needs(job.recipe, gpus)
        except RecipeError as error:
            refused: Future = Future()
            refused.set_exception(error)
            return refused
        future = task.options(**needs).remote(job, str(project_root())).future()
        jobs[future] = job
        return future

    try:
        yield submit, room
    except KeyboardInterrupt:
        _stop(jobs)
        raise
    finally:
        ray.shutdown()


def _joined(slots: int, address: str | None, recipes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """GPUs of the largest machine, and slots of all; those of a cluster may take some minutes to join it."""
    import ray

    until, room, gpus = time.monotonic() + JOIN_S * bool(address), 0, 0
    most = max(map(_wanted, recipes))
    while not room or (room < slots or 0 < gpus < most) and time.monotonic() < until:
        time.sleep(bool(room))
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = max((int(machine.get("GPU", 0)) for machine in machines), default=0)
        room = _fitting(slots, recipes, machines)
    if room < slots:
        warnings.warn(f"{room} of {slots} slots are used: the machines hold no more cells", stacklevel=2)
    return gpus, room


def _stop(jobs: Mapping[Future, Job]) -> None:
    """Have what runs end as by ``--stop all``, and wait for the steps of its trainings, and checkpoints."""
    running = [job for future, job in jobs.items() if not future.done()]
    if running:
        Sweep(running[0].folder.parents[1]).leave_out(stop=["all"])
        wait(jobs, max(2 * patience(Recipe.from_mapping(job.recipe)) for job in running))


def _wanted(recipe: Mapping[str, Any]) -> int:
    """GPUs of a cell: one for each process, or what its recipe's gpus says."""
    wanted = recipe.get("processes", 1)
    if str(recipe.get("gpus", "auto")) != "auto":
        wanted = max(wanted, int(recipe["gpus"]))
    return wanted


def _needs(recipe: Mapping[str, Any], gpus: int) -> dict[str, int]:
    """A cell's share of a machine: its GPUs; a slot of the CPU where there are none."""
    wanted = _wanted(recipe)
    if gpus and wanted > gpus:  # Ray would wait for ever
        raise RecipeError(
            f"its {wanted} processes need as many GPUs on one machine, the largest has {gpus}: "
            "lower processes or gpus, or use a larger machine"
        )
    return {"num_gpus": wanted, "num_cpus": 0} if gpus else {"num_cpus": 1}


def _fitting(
    slots: int, recipes: Sequence[Mapping[str, Any]], machines: Sequence[Mapping[str, float]]
) -> int:
    """Cells at once, by the recipe that needs least: more would wait inside Ray and count as running.

    Of arms that need more than that some may still wait there.
    """
    most, gpus = [], int(max((machine.get("GPU", 0) for machine in machines), default=0))
    for recipe in recipes:
        with contextlib.suppress(RecipeError):  # its cells are refused one by one
            needs = _needs(recipe, gpus)
            name, needed = ("GPU", needs["num_gpus"]) if gpus else ("CPU", needs["num_cpus"])
            most.append(sum(int(machine.get(name, 0) // needed) for machine in machines))
    return max(1, min(slots, max(most, default=slots)))


def _make(job: Job, root: str) -> None:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the driver's, which asks its cells to stop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it, also for notebooks
    os.chdir(Path(root))
    os.umask(0o077)
    make(job)
