"""Is this run worth starting? A report from about a hundred rollouts of the starting policy, before training.

``examine`` (examination) rolls out, scores several times, scores the scripted expert under the same reward,
probes each component and forecasts the cost. A red item refuses the run (TrainingError), unless the recipe
says ``preflight: warn``. Leaves out training itself: a learning rate can be too large and the report green.
"""

from agentkit.preflight.examination import examine, first_look, report
from agentkit.preflight.report import Item, Preflight

__all__ = ["Item", "Preflight", "examine", "first_look", "report"]
