"""What goes wrong during training, said by machine: alarms with evidence, and an auditor of the reward.

Leaves out what is looked at before a training (preflight) and after it (evaluation).
"""

from agentkit.diagnostics.answers import answers, fresh_half, success_by_kind
from agentkit.diagnostics.measures import StepMeasures, observe
from agentkit.diagnostics.reward_hacking import audit, audit_metrics, audited, disagreements
from agentkit.diagnostics.rules import RULES, Alarm, holding, lacks
from agentkit.diagnostics.watch import Watch, coverage, read_alarms, scan, trained_steps
from agentkit.trajectories import trajectory_id

__all__ = [
    "RULES", "Alarm", "StepMeasures", "Watch", "answers", "audit", "audit_metrics", "audited", "coverage",
    "disagreements", "fresh_half", "holding", "lacks", "observe", "read_alarms", "scan",
    "success_by_kind", "trained_steps", "trajectory_id",
]  # fmt: skip
