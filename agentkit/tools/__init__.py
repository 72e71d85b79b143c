"""Tools: plain typed functions with a Google docstring. Bad arguments raise ValueError with a sentence for
the policy.
"""

from agentkit.tools.calculator import calculate
from agentkit.tools.database import query_database
from agentkit.tools.files import Workspace
from agentkit.tools.python import PythonSession, run_program
from agentkit.tools.search import Passages, Recording, RetrievalServer, WebSearch, search_passages

__all__ = [
    "Passages",
    "PythonSession",
    "Recording",
    "RetrievalServer",
    "WebSearch",
    "Workspace",
    "calculate",
    "query_database",
    "run_program",
    "search_passages",
]
