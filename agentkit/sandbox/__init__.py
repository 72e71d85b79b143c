"""Untrusted Python: run_python(code) runs what a model wrote, bounded and confined, or refuses.

Leaves out: what a program means; tools/python.py and verifiers/programs.py read its output.
"""

from agentkit.sandbox.run import (
    AT_ONCE,
    MAX_INPUT,
    MAX_OUTPUT,
    NONE,
    WAY_OUT,
    Result,
    close,
    missing,
    run_python,
)

__all__ = [
    "AT_ONCE", "MAX_INPUT", "MAX_OUTPUT", "NONE", "WAY_OUT", "Result", "close", "missing",
    "run_python",
]  # fmt: skip
