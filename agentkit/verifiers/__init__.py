"""Verifiers: is an answer right? ``check(kind, answer, gold)`` gives Score(value in [0, 1] or None, why).

The verifier is the reward signal. A hedge ("1 or 2"), an empty answer and NaN are wrong; None means that the
verifier itself could not judge (gold data it cannot read, a judge that does not answer), which is excluded
from rewards and counted, never 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentkit.records import Score, Task, Trajectory
from agentkit.verifiers.judge import judge
from agentkit.verifiers.numbers import numeric, parse_number
from agentkit.verifiers.patterns import regex
from agentkit.verifiers.programs import code
from agentkit.verifiers.symbolic import symbolic
from agentkit.verifiers.text import (
    MAX_ANSWER,
    MAX_CODE,
    exact,
    final_answer,
    gaia_equal,
    normalize,
    squad_normalize,
)

KINDS: dict[str, Callable[..., Score]] = {
    "exact": exact,
    "numeric": numeric,
    "regex": regex,
    "symbolic": symbolic,
    "code": code,
    "judge": judge,
}
_LIMITS = {"code": MAX_CODE, "symbolic": MAX_CODE}  # a program, or reasoning that ends in a box


def check(kind: str, answer: str | None, gold: str, **options: Any) -> Score:
    """Score one answer against one gold answer.

    Args:
        kind: one of KINDS.
        answer: the policy's answer; None and blank are wrong.
        gold: the gold answer.
        **options: the kind's own, such as ``abs_tol`` or ``aliases``.

    Raises:
        ValueError: unknown kind or option.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown verifier kind {kind!r}: use one of {', '.join(sorted(KINDS))}")
    if not isinstance(answer, str) or not answer.strip():
        return Score(0.0, "no answer")
    limit = _LIMITS.get(kind, MAX_ANSWER)
    if len(answer) > limit:
        return Score(0.0, f"an answer of {len(answer)} characters; {limit} is the limit")
    if gold is None:
        return Score(None, "there is no gold answer")
    try:
        return KINDS[kind](answer, str(gold), **options)
    except TypeError as error:
        raise ValueError(f"verifier {kind!r}: {error}") from None
    except ValueError:  # an option's value: the author's mistake
        raise
    except Exception as error:  # a verifier that fails must not look like a wrong answer
        return Score(None, f"verifier failed: {type(error).__name__}: {error}"[:200])


def verify(task: Task, answer: str | Trajectory | None) -> Score:
    """Score an answer, or a trajectory's answer, against a task's gold answer with the task's verifier.

    A trajectory that never got a reply from a tool in ``meta["required_tools"]`` is wrong, whatever it
    answers.
    """
    if isinstance(answer, Trajectory):
        used = {result.name for turn in answer.turns for result in turn.results if result.ok}
        if unused := set(task.meta.get("required_tools", ())) - used:
            return Score(0.0, f"did not use {', '.join(sorted(unused))}, which the task requires")
        answer = answer.answer
    options = dict(task.verifier)
    kind = options.pop("kind", None)
    if kind == "judge":
        options.setdefault("question", task.prompt)
    return check(kind, answer, task.answer, **options)


__all__ = [
    "KINDS", "MAX_ANSWER", "check", "code", "exact", "final_answer", "gaia_equal", "judge", "normalize", "numeric",
    "parse_number", "regex", "squad_normalize", "symbolic", "verify",
]  # fmt: skip
