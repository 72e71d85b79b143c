"""Figures that several pages share, and the look of all: it reads on light and on dark pages.

Every function returns a figure and shows nothing. A figure of one notebook only stands in its cell and takes
the look by ``dressed``. Leaves out computing what is shown (evaluation, diagnostics) and reading files.
"""

from agentkit.views.plots.policies import success_bars
from agentkit.views.plots.style import COLOURS, INK, dressed, embedded, library
from agentkit.views.plots.sweeps import arm_success, learning_curves, success_by_compute, transfer
from agentkit.views.plots.training import PANELS, training_curves

__all__ = [
    "COLOURS", "INK", "PANELS", "arm_success", "dressed", "embedded", "learning_curves", "library",
    "success_bars", "success_by_compute", "training_curves", "transfer",
]  # fmt: skip
