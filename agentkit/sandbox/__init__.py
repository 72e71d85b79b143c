"""Untrusted Python: run_python(code) runs what a model wrote, bounded and confined, or refuses.

Leaves out: what a program means; tools/python.py and verifiers/programs.py read its output.
"""

from agentkit.sandbox.run import (
    AT_ONCE,
    MAX_CODE,
    MAX_INPUT,
    MAX_OUTPUT,
    TIERS,
    UNSAFE,
    WAY_OUT,
    Result,
    Tier,
    close,
    current_tier,
    run_python,
    unsafe_allowed,
)  # fmt: skip

__all__ = [
    "AT_ONCE", "MAX_CODE", "MAX_INPUT", "MAX_OUTPUT", "TIERS", "UNSAFE", "WAY_OUT", "Result", "Tier", "close",
    "current_tier", "run_python", "unsafe_allowed",
]  # fmt: skip
