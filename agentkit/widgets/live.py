"""Curves that redraw while training runs, in the output of the cell that trains."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
from IPython.display import DisplayHandle, display

from agentkit.plots import training_curves


class LiveCurves:
    """Collects metrics rows and redraws the training curves at most every ``every_s`` seconds.

    Call it with a row; call ``finish`` for the last drawing.
    """

    def __init__(self, every_s: float = 15.0):
        self.rows: list[dict[str, Any]] = []
        self._every_s = every_s
        self._drawn = float("-inf")
        self._handle: DisplayHandle | None = None

    def __call__(self, row: dict[str, Any]) -> None:
        """Take one row of metrics."""
        self.rows.append(row)
        if time.monotonic() - self._drawn >= self._every_s:
            self.finish()

    def finish(self) -> None:
        """Draw what there is, once a step is done."""
        if all(row["step"] == 0 for row in self.rows):
            return
        figure = training_curves(pd.DataFrame(self.rows))
        if self._handle is None:
            self._handle = display(figure, display_id=True)
        else:
            self._handle.update(figure)
        self._drawn = time.monotonic()
