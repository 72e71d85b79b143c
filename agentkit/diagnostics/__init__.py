"""What goes wrong during training, said by machine: alarms with evidence, and an auditor of the reward.

Leaves out what is looked at before a training (preflight) and after it (evaluation).
"""

from agentkit.diagnostics.answers import answers, success_by_kind
from agentkit.diagnostics.auditor import audit, audit_metrics, audited, disagreements
from agentkit.diagnostics.measures import StepMeasures, observe
from agentkit.diagnostics.rules import RULES, Alarm, holding, read_measured
from agentkit.diagnostics.watch import Watch, read_alarms, read_steps, scan, stored_alarms
from agentkit.trajectories import trajectory_id

__all__ = [
    "RULES", "Alarm", "StepMeasures", "Watch", "answers", "audit", "audit_metrics", "audited",
    "disagreements", "holding", "observe", "read_alarms", "read_measured", "read_steps", "scan",
    "stored_alarms", "success_by_kind", "trajectory_id",
]  # fmt: skip
