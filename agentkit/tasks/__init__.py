"""Task suites: families that draft tasks from the corpus, the expert that solves them, and the suite that
keeps them.
"""

from agentkit.tasks.expert import PlanError, solve
from agentkit.tasks.family import Family
from agentkit.tasks.suite import DEFAULT_FAMILIES, Suite, SuiteError, shipped_families

__all__ = ["DEFAULT_FAMILIES", "Family", "PlanError", "Suite", "SuiteError", "shipped_families", "solve"]
