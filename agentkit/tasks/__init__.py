"""Task suites: families that draft tasks from the corpus, the expert that solves them, and the suite that keeps them."""

from agentkit.tasks.expert import PlanError, Solution, solve
from agentkit.tasks.suite import FAMILIES, Suite, SuiteError

__all__ = ["FAMILIES", "PlanError", "Solution", "Suite", "SuiteError", "solve"]
