"""Tables in, plotly figures out, in one look that reads on light and on dark pages.

Every function returns a figure and shows nothing. Leaves out computing what is drawn (evaluation,
diagnostics), and reading files (runs).
"""

from agentkit.views.plots.policies import behaviour_dots, failure_bars, paired_scatter, success_bars
from agentkit.views.plots.style import COLOURS, INK, SAME, embedded, library
from agentkit.views.plots.suite import difficulty_counts
from agentkit.views.plots.sweeps import arm_success, learning_curves, success_by_compute, transfer
from agentkit.views.plots.training import PANELS, training_curves

__all__ = [
    "COLOURS", "INK", "PANELS", "SAME", "arm_success", "behaviour_dots", "difficulty_counts", "embedded",
    "failure_bars", "learning_curves", "library", "paired_scatter", "success_bars", "success_by_compute",
    "training_curves", "transfer",
]  # fmt: skip
