"""Verifiers: is an answer right? ``check(kind, answer, gold)`` gives Score(value in [0, 1] or None, why).

The verifier is the reward signal. Users add their own with ``register``. Leaves out: rewards.
"""

from agentkit.verifiers.judge import judge
from agentkit.verifiers.kinds import (
    KINDS,
    SHIPPED,
    answer_of,
    check,
    judges_state,
    looks_at_calls,
    reads_by_protocol,
    register,
    verify,
)
from agentkit.verifiers.mathematics import symbolic
from agentkit.verifiers.numbers import numeric, parse_number
from agentkit.verifiers.patterns import regex
from agentkit.verifiers.programs import code
from agentkit.verifiers.protocol import MAX_ANSWER, MAX_CODE, asks_for_answer, final_answer
from agentkit.verifiers.words import exact, gaia_equal, normalize

__all__ = [
    "KINDS", "MAX_ANSWER", "MAX_CODE", "SHIPPED", "answer_of", "asks_for_answer", "check", "code", "exact",
    "final_answer", "gaia_equal", "judge", "judges_state", "looks_at_calls", "normalize", "numeric",
    "parse_number", "reads_by_protocol", "regex", "register", "symbolic", "verify",
]  # fmt: skip
