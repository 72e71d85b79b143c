"""Notebooks 01 to 05 executed in order with a recipe, into a run folder; finished ones are kept.

Each notebook is handed the recipe's keys of its stage. Leaves out what the notebooks do.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentkit.nano import NANO
from agentkit.recipe import FILES, Recipe, find_file
from agentkit.records import RecipeError, RunError
from agentkit.runs.files import append_to, digest, held_elsewhere, open_file
from agentkit.runs.labfile import lab_digest
from agentkit.runs.run import MANIFEST, Run, placed, project_root, secure, started
from agentkit.runs.topology import patience

STAGES = ("01_tasks", "02_baseline", "03_grpo", "04_diagnostics", "05_compare")
RUNNING = ".running"  # in a run's folder: the process that executes notebooks there
SHUTDOWN_S = 30.0  # for a kernel to end
# keys that say where, how much at once and how safely, and change no result
_SAME = "server_urls engine_memory max_batch tool_cache save_every report_to preflight".split()
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


def run_stages(
    run: Run,
    recipe: Mapping[str, Any],
    first: int,
    last: int,
    *,
    files: Mapping[str, str],
    anew: bool = False,
) -> bool:
    """Execute the notebooks that are not done with these parameters and lab file, and all after one that ran;
    False where a training that was asked to stop left those after it.

    Args:
        run: where they write.
        recipe: its keys, checked.
        first: index in STAGES of the first one.
        last: of the last one, which is executed too.
        files: digests of the files it names, as ``file_digests`` gives them.
        anew: also those that are done.

    Raises:
        RunError: a notebook stopped, and is kept as far as it came; or another process works on this run.
        RecipeError: a file that the recipe names is another than it was.
    """
    lab = files.get("lab", "")
    with _alone(run):
        run.warn_of_other_lab(STAGES[first], lab)  # of what is not looked at below
        for stage in STAGES[first : last + 1]:
            if not anew and is_done(run, stage, recipe, lab):
                print(f"{stage}: done, kept")
                continue
            anew = True  # the later ones build on what this one writes
            _check_files(recipe, files, file_digests(recipe))
            execute(stage, run, {"recipe": dict(recipe)})
            entry = run.manifest["stages"].get(stage, {})
            _check_files(recipe, {"lab": lab}, entry)  # what it opened
            if entry:
                run.update(stages={stage: entry | {"files": _own_files(stage, recipe)}})
            if entry.get("ended") == "asked" and stage != STAGES[last]:
                print(
                    f"{stage}: asked to stop; the same command goes on, --from 04 measures what it has learnt"
                )
                return False
    return True


@contextlib.contextmanager
def _alone(run: Run) -> Iterator[None]:
    """Keep other processes from executing notebooks into this run; a killed one loses its lock."""
    with os.fdopen(append_to(run.file(RUNNING)), "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            held_elsewhere(error)
            raise RunError(
                f"process {lock.read(20).strip()} is executing notebooks in {run.path}: wait for it, "
                "stop it, or choose another run folder."
            ) from None
        os.truncate(lock.fileno(), 0)
        os.write(lock.fileno(), str(os.getpid()).encode())
        yield


def file_digests(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the files and the model folder a recipe names, the lab file's imports included."""
    found = {}
    for name in (name for name in FILES if recipe.get(name)):
        with contextlib.suppress(RecipeError):  # chat_template may be a name
            found[name] = (lab_digest if name == "lab" else digest)(find_file(recipe[name]))
    source, _, rows = recipe.get("tasks", "").partition(":")  # rows of a public data set, or a folder of them
    if "tasks" not in found and rows and f"_{source}".isidentifier():  # 2wikimultihopqa
        with contextlib.suppress(RecipeError):  # notebook 01 says that there is none
            files = sorted((project_root() / rows).glob("*.[jp]*")) or [find_file(rows)]
            found["tasks"] = " ".join([source, *map(digest, files)])
    model = recipe.get("model") or NANO
    if model != NANO and (folder := project_root() / model).is_dir():
        files = [(path, path.stat()) for path in sorted(folder.glob("[!.]*")) if path.is_file()]
        found["model"] = _sketch(tuple((path, at.st_size, at.st_mtime_ns) for path, at in files))
    return found


@lru_cache(maxsize=16)
def _sketch(files: tuple[tuple[Path, int, int], ...]) -> str:
    """A hash of files' names and sizes, and of 1 MiB of each, in parts spread over it; made once while they
    keep their times.
    """
    found = hashlib.sha256()
    for path, size, _ in files:
        with contextlib.suppress(OSError), open_file(path) as file:  # one that nobody may read
            found.update(f"{path.name!r} {size}".encode())
            for start in range(0, size, max(4096, size // 256)):
                file.seek(start)
                found.update(file.read(4096))
    return found.hexdigest()[:16]


def _check_files(recipe: Mapping[str, Any], files: Mapping[str, str], now: Mapping[str, Any]) -> None:
    if changed := [name for name, before in files.items() if now.get(name, "") != before]:
        raise RecipeError(
            f"the {changed[0]} file {recipe.get(changed[0])} has changed since this began, and results of "
            "both would be mixed: restore it, or start again"
        )


def parameters_of(stage: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a recipe that a notebook is handed."""
    return {name: recipe[name] for name in Recipe.keys_of(stage) if name in recipe}


def compared(stage: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a recipe that tell one execution of a notebook from another, not who measures."""
    free = () if stage == "03_grpo" else ("topology", "replicas")
    return {name: value for name, value in parameters_of(stage, recipe).items() if name not in free}


def is_done(
    run: Run, stage: str, recipe: Mapping[str, Any], lab: str = "", free: Collection[str] = _SAME
) -> bool:
    """Whether a notebook is executed with a recipe's keys but for the free ones, defaults included, with its
    files and this lab file, no earlier one was executed after it, and nobody asked its training to stop.
    """
    stages = run.manifest["stages"]
    entry = stages.get(stage, {})
    keys = compared(stage, {name: key.default for name, key in Recipe.keys().items()})
    asked, used = (
        {name: placed(name, x) for name, x in (keys | compared(stage, values)).items() if name not in free}
        for values in (recipe, entry.get("parameters", {}))
    )
    known = entry.get("files", {}).items()  # none: executed by hand; an older version lacks model folders
    begun = [started(stages[s]) for s in STAGES[: STAGES.index(stage) + 1] if s in stages]
    same = asked == used and entry.get("lab", "") == lab and known <= _own_files(stage, recipe).items()
    done = entry.get("status") == "done" and entry.get("ended") != "asked"
    return same and done and begun == sorted(begun)


def _own_files(stage: str, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the files that a notebook is handed, but for the lab file's."""
    return file_digests({name: x for name, x in parameters_of(stage, recipe).items() if name != "lab"})


def _notebook(stage: str) -> Path:
    path = project_root() / "notebooks" / f"{stage}.ipynb"
    if not path.exists():
        raise RunError(f"there is no {path}: call agentkit from inside the project's folder")
    return path


def _manager(stage: str, parameters: Mapping[str, Any]) -> type:
    """Of a kernel that, where this process is told to end, has the time to end the step of a training."""
    from jupyter_client import AsyncKernelManager

    step_s = 2 * patience(Recipe.from_mapping(parameters["recipe"])) if stage == "03_grpo" else SHUTDOWN_S

    class Manager(AsyncKernelManager):
        @property
        def shutdown_wait_time(self) -> float:
            """Seconds until it is killed, after SIGTERM at half of them: few where it hangs at its end."""
            return step_s if isinstance(sys.exc_info()[1], KeyboardInterrupt) else SHUTDOWN_S

    return Manager


def execute(stage: str, run: Run, parameters: dict[str, Any]) -> None:
    """One notebook through papermill, kept as far as it came. Raises RunError with a failing cell's error."""
    sys.modules.setdefault("rfc3987_syntax", None)  # 2 s for a grammar of what no notebook holds
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError
    from nbformat.sign import NotebookNotary
    from papermill.exceptions import PapermillExecutionError

    start, source, out = time.monotonic(), _notebook(stage), run.file(f"{stage}.ipynb")
    print(f"{stage}: running", flush=True)
    if os.path.lexists(out):
        os.close(append_to(out))  # papermill would wait for a pipe
    # it warns of keys that the parameters cell does not list; both say a second time that a kernel died
    for name in ("papermill", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        papermill.execute_notebook(
            str(source),
            str(out),
            parameters | {"run": str(run.path.resolve()), "changes": {}},
            kernel_name="python3",
            cwd=str(project_root()),
            progress_bar=sys.stderr.isatty(),
            extra_arguments=QUIET,
            kernel_manager_class=_manager(stage, parameters),
        )
    except (PapermillExecutionError, RuntimeError, OSError) as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, PapermillExecutionError):
            why = f"cell {error.exec_count}, {error.ename}: {error.evalue}"
        elif isinstance(error, RuntimeError):  # jupyter_client's, where it is not nbclient's
            died = "died, as where memory runs out"
            ended = died if isinstance(error, DeadKernelError) else f"did not start ({error})"
            why = f"its kernel {ended}; run the same again, any --from at this one"
        running = run.file(MANIFEST).exists() and run.manifest["stages"].get(stage, {}).get("status")
        if running == "running":
            run.end(stage, status="failed", why=why[:500])
        raise RunError(f"{stage} stopped: {why} (see {out})") from None
    finally:
        secure(run.path)
    NotebookNotary().sign(nbformat.read(out, as_version=4))  # so that JupyterLab may show its widgets
    print(f"{stage}: done in {time.monotonic() - start:.0f} s", flush=True)
