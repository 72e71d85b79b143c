"""agentkit: make tool-using language-model agents reliable with reinforcement learning from verifiable
rewards.

Importing it loads nothing else; each name below loads its module when it is first used, and only policies and
training load torch.
"""

import importlib
import sys

__version__ = "0.1.0"
_HOME = {  # where each public name is defined
    "Family": "tasks",
    "Group": "records",
    "Lab": "lab",
    "Score": "records",
    "StopReason": "records",
    "Task": "records",
    "ToolCall": "records",
    "Trajectory": "records",
    "Turn": "records",
    "Recipe": "recipe",
    "Run": "runs",
    "Suite": "tasks",
    "arollout": "rollouts",
    "compare": "evaluation",
    "fork": "rollouts",
    "load_run": "runs",
    "rollout": "rollouts",
    "show": "views.show",
    "tool": "tools.runtime",
    "verify": "verifiers",
}
_ROOMS = (
    *("diagnostics", "doctor", "evaluation", "lab", "nano", "policies", "preflight", "recipe", "records"),
    *("rewards", "rollouts", "rows", "runs", "sandbox", "tasks", "tools", "training", "trajectories"),
    *("verifiers", "views"),
)
__all__ = [*_HOME, "evaluation", "sandbox", "verifiers"]


def _as_html(trajectory: object) -> str:
    return importlib.import_module("agentkit.views.show").as_html(trajectory)


if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()):  # how notebooks show one
    _shell.display_formatter.formatters["text/html"].for_type_by_name(
        "agentkit.records", "Trajectory", _as_html
    )


def __getattr__(name: str) -> object:
    """A public name on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"agentkit.{_HOME[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"agentkit.{name}")
    raise AttributeError(f"module 'agentkit' has no attribute {name!r}")
