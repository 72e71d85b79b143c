"""Tools: plain typed functions with a Google docstring. Bad arguments raise ValueError with a sentence for the policy."""

from agentkit.tools.calculator import calculate
from agentkit.tools.search import search_passages

__all__ = ["calculate", "search_passages"]
