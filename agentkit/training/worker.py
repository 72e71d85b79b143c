"""One of the processes of a job, as torchrun starts them.

``python -m agentkit.training.worker RUN JOB`` does the job that the file JOB names (launch writes it) and
adds the result to it. On several machines ``.. RUN 03 RECIPE`` trains as notebook 03 would. It ends with
torchrun, however that ends. Leaves out starting it (launch) and the jobs.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from agentkit.policies.unsloth import import_first
from agentkit.records import AgentkitError
from agentkit.runs import Recipe, Run, read_json, write_json
from agentkit.runs.children import die_with_parent

JOBS = "agentkit.training.jobs"


def work(folder: str, what: str, recipe_file: str = "") -> None:
    os.umask(0o077)
    die_with_parent(signal.SIGKILL)
    run = Run(folder)
    if what == "03":
        recipe = Recipe.load(recipe_file) if recipe_file else Recipe.of(run)
        values = recipe.everything() | {"processes": int(os.environ["WORLD_SIZE"])}
        job = {"recipe": values, "job": f"{JOBS}:notebook_03", "arguments": {}}
    else:
        job = read_json(Path(what))
    recipe = Recipe.from_mapping(job["recipe"])
    if job["job"] in (f"{JOBS}:train", f"{JOBS}:notebook_03"):
        import_first(recipe.engine)  # before what follows loads transformers
    from agentkit.lab import Lab
    from agentkit.policies import process_group
    from agentkit.training.processes import TrainingStopped

    process_group.join(recipe)
    try:
        result = function_of(job["job"])(Lab.open(recipe), run, lambda row: None, **job["arguments"])
    except TrainingStopped as stopped:  # no fault: torchrun would end the others for one
        print(f"{type(stopped).__name__}: {stopped}", file=sys.stderr)
        return
    if process_group.rank() == 0 and Path(what).exists():  # else nobody waits for it
        write_json(Path(what), job | {"result": result})
    process_group.leave()


def function_of(job: str) -> Callable[..., dict[str, Any]]:
    """The function that a job's name, "module:function", stands for."""
    module, _, name = job.partition(":")
    return getattr(import_module(module), name)


if __name__ == "__main__":
    try:
        work(*sys.argv[1:])
    except AgentkitError as error:
        sys.exit(f"{type(error).__name__}: {error}")
