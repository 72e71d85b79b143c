"""What goes wrong during training, said by machine: alarms with evidence, and an auditor of the reward."""

from agentkit.diagnostics.answers import answers, success_by_kind
from agentkit.diagnostics.auditor import audit, audit_metrics, audited, disagreements
from agentkit.diagnostics.measures import Step, observe, trajectory_id
from agentkit.diagnostics.rules import RULES, Alarm, holding
from agentkit.diagnostics.watch import Watch, read_alarms, read_steps, scan, stored_alarms

__all__ = [
    "RULES", "Alarm", "Step", "Watch", "answers", "audit", "audit_metrics", "audited", "disagreements", "holding",
    "observe", "read_alarms", "read_steps", "scan", "stored_alarms", "success_by_kind", "trajectory_id",
]  # fmt: skip
