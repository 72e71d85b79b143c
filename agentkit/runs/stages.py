"""Notebooks 01 to 05 executed in order with a recipe, into a run folder; finished ones are kept.

Leaves out what the notebooks do, and what makes one of them finished (fingerprints).
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from agentkit.recipe import project_file, project_root
from agentkit.records import RecipeError, RunError
from agentkit.runs.children import CELL, die_with_parent
from agentkit.runs.files import alone
from agentkit.runs.fingerprints import STAGES, file_digests, fingerprint
from agentkit.runs.progress import told
from agentkit.runs.run import MANIFEST, Run, secure

RUNNING = ".running"  # in a run's folder: the process that executes notebooks there
SHUTDOWN_S = 300.0  # for a kernel to end, which writes a checkpoint after the step it is at
QUIET = [  # a kernel says nothing of how it is reached, nor of messages that came while it ended
    "--IPKernelApp.log_level=CRITICAL",
    "--IPKernelApp.exec_lines=__import__('logging').getLogger('tornado.general').setLevel('CRITICAL')",
]


def stage_number(name: str) -> int:
    """The index in STAGES of "03" or "03_grpo". Raises RecipeError where there is no such notebook."""
    matches = [i for i, stage in enumerate(STAGES) if stage == name or stage.startswith(f"{name}_")]
    if len(matches) != 1:
        raise RecipeError(f"there is no notebook {name[:40]!r}; there are {', '.join(s[:2] for s in STAGES)}")
    return matches[0]


def run_stages(run: Run, recipe: Mapping[str, Any], first: int, last: int, *, anew: bool = False) -> bool:
    """Execute the notebooks that are not done with this recipe, and all after one that ran; False where a
    training that was asked to stop left those after it.

    Args:
        run: where they write.
        recipe: its keys, checked.
        first: index in STAGES of the first one.
        last: of the last one, which is executed too.
        anew: also those that are done.

    Raises:
        RunError: a notebook stopped, and is kept as far as it came; another process works on this run, or an
            earlier version made it.
        RecipeError: a file that the recipe names changed meanwhile.
    """
    if CELL in os.environ:  # a cell ends with its sweep
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # which leaves a checkpoint
        die_with_parent(signal.SIGTERM)
    files = file_digests(recipe)
    with alone(run.file(RUNNING), f"executing notebooks in {run.path}"):
        if old := [name for name, entry in run.manifest["stages"].items() if "fingerprint" not in entry]:
            raise RunError(f"{run.path} was made by an earlier version ({old[0]}): name another --run")
        for stage in STAGES[first : last + 1]:
            key = fingerprint(stage, recipe, files, run.fingerprint_before(stage))
            if not anew and run.is_done(stage, key):
                print(f"{stage}: done, kept")
                continue
            anew = True  # the later ones build on what this one writes
            execute(stage, run, {"recipe": dict(recipe)})
            entry = run.manifest["stages"].get(stage, {})
            if entry.get("fingerprint") != key:
                why = f"a file that the recipe names, such as its lab, changed while {stage} ran"
                raise RecipeError(f"{why}, and results of both would be mixed: run the same again")
            if entry.get("ended") == "asked" and stage != STAGES[last]:
                print(f"{stage}: asked to stop; the same command goes on, --from 04 measures what it learnt")
                return False
    return True


def execute(stage: str, run: Run, parameters: dict[str, Any]) -> None:
    """One notebook through papermill, kept as far as it came. Raises RunError with a failing cell's error."""
    sys.modules.setdefault("rfc3987_syntax", None)  # 2 s for a grammar of what no notebook holds
    import nbformat
    import papermill
    from jupyter_client import AsyncKernelManager
    from nbformat.sign import NotebookNotary
    from papermill.exceptions import PapermillExecutionError

    start, out = time.monotonic(), run.file(f"{stage}.ipynb")
    print(f"{stage}: running", flush=True)
    # it warns of keys that the parameters cell does not list; both say a second time that a kernel died
    for name in ("papermill", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with told(stage, run) as at_cell:
            papermill.execute_notebook(
                str(project_file("notebooks", f"{stage}.ipynb")),
                str(out),
                parameters | {"run": str(run.path.resolve()), "changes": {}},
                kernel_name="python3",
                cwd=str(project_root()),
                progress_bar=False,
                extra_arguments=QUIET,
                kernel_manager_class=type(
                    "Manager", (AsyncKernelManager,), {"shutdown_wait_time": SHUTDOWN_S}
                ),
                on_cell_start=at_cell,
            )
    except PapermillExecutionError as error:
        _failed(run, stage, f"cell {error.exec_count}, {error.ename}: {error.evalue}")
    except (RuntimeError, OSError) as error:  # jupyter_client's and nbclient's, as where memory runs out
        _failed(run, stage, f"its kernel died or did not start ({error}); run the same again")
    finally:
        secure(run.path)
    NotebookNotary().sign(nbformat.read(out, as_version=4))  # so that JupyterLab may show its widgets
    print(f"{stage}: done in {time.monotonic() - start:.0f} s", flush=True)


def _failed(run: Run, stage: str, why: str) -> None:
    """Write down that a stage failed. Raises RunError with the reason."""
    if run.file(MANIFEST).exists() and run.manifest["stages"].get(stage, {}).get("status") == "running":
        run.end(stage, status="failed", why=why[:500])
    raise RunError(f"{stage} stopped: {why} (see {run.file(f'{stage}.ipynb')})") from None
