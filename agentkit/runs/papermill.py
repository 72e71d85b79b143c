"""What papermill does with a path in outputs/: it makes the run folder and names it to the notebook.

Papermill finds it through the entry point "papermill.io" in pyproject.toml, whatever the path. Leaves out
paths elsewhere: their folder must exist, and ``-p run FOLDER`` names it.
"""

import os
from contextlib import chdir, suppress
from functools import partial
from pathlib import Path
from typing import Any

from agentkit.runs.files import RUN_VARIABLE, located


def __getattr__(name: str) -> Any:
    """HANDLER: papermill's own handler of local files, so that a run folder may be written in any way.

    A path may be absolute, or relative to any folder (``./outputs/a``, ``../outputs/a``), and papermill
    chooses handlers by how a path begins. Made when papermill asks: it does so while it is itself imported.
    """
    if name != "HANDLER":
        raise AttributeError(name)
    from papermill.iorw import papermill_io

    local = papermill_io.get_handler("local")
    local.write = partial(_write, local)
    return local


def _write(local: Any, text: str, path: str) -> None:
    """Write the notebook. Papermill does so before it starts the kernel, which inherits the variable."""
    start = local.cwd(None)  # the folder papermill was called in, also where --cwd names another
    local.cwd(start)
    parent, name = os.path.split(path)
    with chdir(start or "."):
        folder = Path(os.path.abspath(located(parent, os.getcwd())))  # outputs/ may be a link
    if "outputs" not in folder.parts:
        folder = folder.resolve()  # or this one, into it
    if "outputs" in folder.parts:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ[RUN_VARIABLE] = str(folder)
    type(local).write(local, text, str(folder / name))
    if "outputs" in folder.parts:  # a run's files are its owner's, though it stops before its end
        with suppress(OSError):  # a file system without rights
            (folder / name).chmod(0o600)
