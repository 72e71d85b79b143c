"""What `agentkit run` shows of a notebook that it executes: its section, a training's step, the time.

On a terminal one line is rewritten every second; a log gets a line a minute. Leaves out what the notebook
itself shows.
"""

import json
import re
import sys
import time
from threading import Event, Thread
from typing import Any, Self

from agentkit.runs.run import Run

WIDTH = 100  # characters of the line
EVERY_S = {True: 1.0, False: 60.0}  # on a terminal, and elsewhere


class Progress:
    """Tells of a stage within a ``with``; ``at_cell`` is nbclient's hook ``on_cell_start``."""

    def __init__(self, stage: str, run: Run):
        self._stage, self._run, self._section, self._start = stage, run, "its kernel starts", time.time()
        self._over, self._rewrites = Event(), sys.stdout.isatty()
        self._thread = Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def at_cell(self, cell: Any, cell_index: int) -> None:
        """A cell begins: the section is the last heading before it."""
        if cell.cell_type == "markdown":
            self._section = (re.findall(r"^#+ (.+)", cell.source, re.MULTILINE) or [self._section])[-1]

    def _tell(self) -> None:
        while not self._over.wait(EVERY_S[self._rewrites]):
            said = f"{self._stage}: {self._section}{self._step()}, {time.time() - self._start:.0f} s"
            said, end = (f"\r{said[:WIDTH]:<{WIDTH}}", "") if self._rewrites else (said, "\n")
            print(said, end=end, flush=True)
        if self._rewrites:
            print(f"\r{'':<{WIDTH}}\r", end="", flush=True)

    def _step(self) -> str:
        """How far a training has come, where this stage is one and has written a row."""
        file = self._run.file("train", "metrics.jsonl")
        if self._stage != "03_grpo" or not file.exists() or file.stat().st_mtime < self._start:
            return ""
        row = json.loads(file.read_text(encoding="utf-8").split("\n")[-2])  # the last may be half written
        return f", step {row['step']} of {row['planned_steps']}" if "planned_steps" in row else ""
