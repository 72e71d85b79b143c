"""agentkit: make tool-using language-model agents reliable with reinforcement learning from verifiable rewards.

Importing it loads no torch; ``rollout`` and the modules policies and training do when they need it.
"""

import importlib

from agentkit import evaluation, recipes, records, rewards, runs, verifiers
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
    "rewards",
    "rollout",
    "runs",
    "verifiers",
    "verify",
]


def __getattr__(name: str) -> object:
    """``agentkit.advantages`` on first use, since it loads torch."""
    if name == "advantages":
        return importlib.import_module("agentkit.advantages")
    raise AttributeError(f"module 'agentkit' has no attribute {name!r}")
