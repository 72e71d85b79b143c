"""Tools: plain typed functions; what a policy must mend is a ValueError with one sentence.

Leaves out how they are declared and called (runtime) and what offers them to a policy (environments).
"""

from agentkit.tools.calculator import calculate
from agentkit.tools.python import run_program
from agentkit.tools.search import Passages, RetrievalServer, search_passages

__all__ = ["Passages", "RetrievalServer", "calculate", "run_program", "search_passages"]
