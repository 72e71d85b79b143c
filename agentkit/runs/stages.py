"""Notebooks 01 to 05 executed in order with a recipe, into a run folder; finished ones are kept.

Each notebook is handed the recipe's keys of its stage. Leaves out what the notebooks do.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentkit.records import RecipeError, RunError
from agentkit.runs.recipe import Recipe
from agentkit.runs.run import Run, project_root, secure

STAGES = ("01_tasks", "02_baseline", "03_grpo", "04_diagnostics", "05_compare")
SHUTDOWN_S = 30.0  # for a kernel to write its checkpoint when this process is told to end


def stage_number(name: str) -> int:
    """The index in STAGES of "03" or "03_grpo". Raises RecipeError where there is no such notebook."""
    matches = [i for i, stage in enumerate(STAGES) if stage == name or stage.startswith(f"{name}_")]
    if len(matches) != 1:
        raise RecipeError(f"there is no notebook {name[:40]!r}; there are {', '.join(s[:2] for s in STAGES)}")
    return matches[0]


def run_stages(
    run: Run, recipe: Mapping[str, Any], first: int, last: int, *, lab: str = "", anew: bool = False
) -> None:
    """Execute the notebooks that are not done with these parameters and this lab file, and all after one that
    ran.

    Args:
        run: where they write.
        recipe: its keys, checked.
        first: index in STAGES of the first one.
        last: of the last one, which is executed too.
        lab: the lab file's digest.
        anew: also those that are done.

    Raises:
        RunError: a notebook stopped; it is kept as far as it came.
    """
    for stage in STAGES[first : last + 1]:
        keys = [name for name in Recipe.keys_of(stage) if name in recipe and name != "run"]
        parameters = {name: recipe[name] for name in keys}
        if not anew and _is_done(run, stage, parameters, lab):
            print(f"{stage}: done, kept")
            continue
        anew = True  # the later ones build on what this one writes
        execute(stage, run, parameters)
        if lab:
            run.update(stages={stage: run.manifest["stages"].get(stage, {}) | {"lab": lab}})


def _is_done(run: Run, stage: str, parameters: Mapping[str, Any], lab: str) -> bool:
    entry = run.manifest["stages"].get(stage, {})
    same = parameters.items() <= entry.get("parameters", {}).items() and entry.get("lab", "") == lab
    return same and entry.get("status") == "done"


def _notebook(stage: str) -> Path:
    path = project_root() / "notebooks" / f"{stage}.ipynb"
    if not path.exists():
        raise RunError(f"there is no {path}: call agentkit from inside the project's folder")
    return path


def execute(stage: str, run: Run, parameters: dict[str, Any]) -> None:
    """One notebook through papermill, kept as far as it came. Raises RunError with a failing cell's error."""
    import nbformat
    import papermill
    from nbformat.sign import NotebookNotary
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    start, out = time.monotonic(), run.file(f"{stage}.ipynb")
    print(f"{stage}: running", flush=True)
    logging.getLogger("papermill").setLevel(
        logging.ERROR
    )  # it warns of keys that the parameters cell does not list
    try:
        papermill.execute_notebook(
            str(_notebook(stage)),
            str(out),
            parameters | {"run": str(run.path)},
            kernel_name="python3",
            cwd=str(project_root()),
            progress_bar=sys.stderr.isatty(),
            extra_arguments=["--IPKernelApp.log_level=ERROR"],  # no warning of how the kernel is reached
            config=Config({"KernelManager": {"shutdown_wait_time": SHUTDOWN_S}}),
        )
    except PapermillExecutionError as error:
        why = f"{error.ename}: {error.evalue}"
        if run.manifest["stages"].get(stage, {}).get("status") == "running":
            run.end(stage, status="failed", why=why[:500])
        raise RunError(f"{stage} stopped: {why} (see {out})") from None
    finally:
        secure(run.path)
    NotebookNotary().sign(nbformat.read(out, as_version=4))  # so that JupyterLab may show its widgets
    print(f"{stage}: done in {time.monotonic() - start:.0f} s", flush=True)
