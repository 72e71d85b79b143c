"""Curves that redraw while training runs, in the output of the cell that trains."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pandas as pd
from IPython.display import display, update_display

from agentkit.plots import training_curves


class LiveCurves:
    """Collects metrics rows and redraws the training curves at most every ``every_s`` seconds.

    Call it with a row; call ``finish`` for the last drawing.
    """

    def __init__(self, every_s: float = 15.0):
        self.rows: list[dict[str, Any]] = []
        self._every_s = every_s
        self._drawn = float("-inf")
        self._id = f"curves-{uuid.uuid4().hex}"

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
        bundle = {"application/vnd.plotly.v1+json": json.loads(figure.to_json())}  # a figure object would ignore the id
        show = display if self._drawn == float("-inf") else update_display
        show(bundle, raw=True, display_id=self._id)
        self._drawn = time.monotonic()
