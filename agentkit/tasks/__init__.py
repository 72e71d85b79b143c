"""Task suites: families that draft tasks from the corpus, the expert that solves them, and the suite that
keeps them.
"""

from agentkit.tasks.bands import model_aware
from agentkit.tasks.expert import PlanError, Solution, solve
from agentkit.tasks.suite import DEFAULT_FAMILIES, FAMILIES, Suite, SuiteError, default_tools

__all__ = [
    "DEFAULT_FAMILIES",
    "FAMILIES",
    "PlanError",
    "Solution",
    "Suite",
    "SuiteError",
    "default_tools",
    "model_aware",
    "solve",
]
