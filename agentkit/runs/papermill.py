"""What papermill does with a path in outputs/: it makes the run folder and names it to the notebook.

Papermill finds it through the entry point "papermill.io" in pyproject.toml. Leaves out paths elsewhere: their
folder must exist, and ``-p run FOLDER`` names it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentkit.runs.run import RUN_VARIABLE


class OutputsHandler:
    """Papermill's own handler of files, for notebooks executed into a run folder."""

    def __getattr__(self, name: str) -> Any:
        from papermill.iorw import LocalHandler  # papermill imports this module while it is imported itself

        return getattr(LocalHandler(), name)

    def write(self, text: str, path: str) -> None:
        """Write the notebook. Papermill does so before it starts the kernel, which inherits the variable."""
        folder = Path(path).resolve().parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ[RUN_VARIABLE] = str(folder)
        self.__getattr__("write")(text, path)


HANDLER = OutputsHandler()
