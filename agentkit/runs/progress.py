"""What `agentkit run` shows of a notebook that it executes: its section, a training's step, the time.

On a terminal one line is rewritten every second; a log gets a line a minute. Leaves out what the notebook
itself shows.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from agentkit.runs.run import Run

WIDTH = 100  # characters of the line
EVERY_S = {True: 1.0, False: 60.0}  # on a terminal, and elsewhere


@contextmanager
def told(stage: str, run: Run) -> Iterator[Callable[..., None]]:
    """Tells of a stage within a ``with``; gives the hook that nbclient calls as ``on_cell_start``."""
    sections, over = ["its kernel starts"], Event()

    def at_cell(cell: Any, cell_index: int) -> None:
        if cell.cell_type == "markdown":
            sections.extend(re.findall(r"^#+ (.+)", cell.source, re.MULTILINE))

    thread = Thread(target=_tell, args=(stage, run, sections, over), daemon=True)
    thread.start()
    try:
        yield at_cell
    finally:
        over.set()
        thread.join()


def _tell(stage: str, run: Run, sections: Sequence[str], over: Event) -> None:
    start, rewrites = time.time(), sys.stdout.isatty()
    while not over.wait(EVERY_S[rewrites]):
        step = _step(run, start) if stage == "03_grpo" else ""
        said = f"{stage}: {sections[-1]}{step}, {time.time() - start:.0f} s"
        print(f"\r{said[:WIDTH]:<{WIDTH}}" if rewrites else said, end="" if rewrites else "\n", flush=True)
    if rewrites:
        print(f"\r{'':<{WIDTH}}\r", end="", flush=True)


def _step(run: Run, start: float) -> str:
    """How far a training has come, where it has written a row since."""
    file = run.file("train", "metrics.jsonl")
    try:
        row = json.loads(file.read_bytes().splitlines()[-1]) if file.stat().st_mtime >= start else {}
        return f", step {row['step']} of {row['planned_steps']}"
    except (OSError, LookupError, TypeError, ValueError):  # there is none yet, or half of one
        return ""
