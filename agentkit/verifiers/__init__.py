"""Verifiers: is an answer right? ``check(kind, answer, gold)`` gives Score(value in [0, 1] or None, why).

The verifier is the reward signal. A hedge ("1 or 2"), an empty answer and NaN are wrong; None means that the
verifier itself could not judge (gold data it cannot read, a judge that does not answer), which is excluded
from rewards and counted, never 0. Users add their own with ``register``. Leaves out rewards for anything but
the answer and the way to it: lengths, formats and costs are agentkit.rewards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from agentkit.records import Score, Task, Trajectory, Unscored
from agentkit.trajectories import results_of
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

Verifier = Callable[..., Score | float]  # (answer, gold, *, trajectory=None, **options)
KINDS: dict[str, Verifier] = {
    "exact": exact,
    "numeric": numeric,
    "regex": regex,
    "symbolic": symbolic,
    "code": code,
    "judge": judge,
}
SHIPPED = frozenset(KINDS)
_LIMITS = {"code": MAX_CODE, "symbolic": MAX_CODE}  # a program, or reasoning that ends in a box


def register(kinds: Mapping[str, Verifier]) -> None:
    """Add verifiers of your own, which tasks then name; a kind of yours that is there already is replaced.

    Args:
        kinds: kind -> function (answer, gold, *, trajectory=None, **options) giving a Score or a number in
            [0, 1]. A function without the parameter ``trajectory`` is given none.

    Raises:
        ValueError: a shipped kind's name, or something that cannot be called like this.
    """
    for kind, verifier in kinds.items():
        if kind in SHIPPED:
            raise ValueError(f"the verifier {kind!r} ships with agentkit: give yours another name")
        try:
            inspect.signature(verifier).bind("answer", "gold")
        except (TypeError, ValueError) as error:
            raise ValueError(f"the verifier {kind!r} cannot be called with (answer, gold): {error}") from None
    KINDS.update(kinds)


def check(
    kind: str, answer: str | None, gold: str, *, trajectory: Trajectory | None = None, **options: Any
) -> Score:
    """Score one answer against one gold answer.

    Args:
        kind: one of KINDS.
        answer: the policy's answer; None and blank are wrong.
        gold: the gold answer.
        trajectory: how the policy came to it, for verifiers that look at that.
        **options: the kind's own, such as ``abs_tol`` or ``aliases``.

    Raises:
        ValueError: unknown kind, or an option that a shipped kind does not take.
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
    verifier = KINDS[kind]
    try:
        if trajectory is not None and "trajectory" in inspect.signature(verifier).parameters:
            options["trajectory"] = trajectory
        return _as_score(kind, verifier(answer, str(gold), **options))
    except Unscored as error:
        return Score(None, str(error))
    except Exception as error:
        if kind in SHIPPED and isinstance(error, TypeError | ValueError):  # an option: the author's mistake
            raise ValueError(f"verifier {kind!r}: {error}") from None
        # a verifier that fails must not look like a wrong answer
        return Score(None, f"verifier failed: {type(error).__name__}: {error}"[:200])


def _as_score(kind: str, result: object) -> Score:
    """A verifier's result as a score; None for what is no number in [0, 1]."""
    score = result if isinstance(result, Score) else Score(result)
    if score.value is None and score.why:
        return score
    if not isinstance(score.value, Real) or not 0.0 <= score.value <= 1.0:  # NaN is not
        return Score(
            None, f"the verifier {kind!r} gave {str(result)[:80]}, not a Score or a number in [0, 1]"
        )
    return Score(float(score.value), score.why)


def verify(task: Task, answer: str | Trajectory | None) -> Score:
    """Score an answer, or a trajectory and its answer, against a task's gold answer with the task's verifier.

    A trajectory that never got a reply from a tool in ``meta["required_tools"]`` is wrong, whatever it
    answers.
    """
    trajectory = answer if isinstance(answer, Trajectory) else None
    if trajectory is not None:
        answer = trajectory.answer
        used = {result.name for result in results_of(trajectory) if result.ok}
        if unused := set(task.meta.get("required_tools", ())) - used:
            return Score(0.0, f"did not use {', '.join(sorted(unused))}, which the task requires")
    options = dict(task.verifier)
    kind = options.pop("kind", None)
    if kind == "judge":
        options.setdefault("question", task.prompt)
    return check(kind, answer, task.answer, trajectory=trajectory, **options)


__all__ = [
    "KINDS", "MAX_ANSWER", "SHIPPED", "check", "code", "exact", "final_answer", "gaia_equal", "judge",
    "normalize", "numeric", "parse_number", "register", "regex", "squad_normalize", "symbolic", "verify",
]  # fmt: skip
