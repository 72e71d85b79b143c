"""agentkit: make tool-using language-model agents reliable with reinforcement learning from verifiable rewards.

Importing it loads no torch; ``rollout`` and the modules policies and training do when they need it.
"""

from agentkit import evaluation, recipes, records, runs, verifiers
from agentkit.evaluation import compare
from agentkit.records import Group, Score, StopReason, Task, ToolCall, Trajectory, Turn
from agentkit.rollouts import arollout, rollout
from agentkit.runs import Run, load_run
from agentkit.tasks import Suite
from agentkit.verifiers import verify

__version__ = "0.1.0"
__all__ = [
    "Group",
    "Run",
    "Score",
    "StopReason",
    "Suite",
    "Task",
    "ToolCall",
    "Trajectory",
    "Turn",
    "arollout",
    "compare",
    "evaluation",
    "load_run",
    "recipes",
    "records",
    "rollout",
    "runs",
    "verifiers",
    "verify",
]
