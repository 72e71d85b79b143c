"""Answers taken out of a text by a regular expression, in a process that can be killed: pattern and text may
be hostile.
"""

from __future__ import annotations

from typing import Any

from agentkit.records import Score
from agentkit.verifiers.numbers import numeric
from agentkit.verifiers.text import exact
from agentkit.verifiers.worker import Worker, WorkerError

_worker = Worker()


def extract(answer: str, pattern: str, *, whole: bool = False) -> list[str] | Score:
    """The different texts a pattern takes from an answer (three at most), or the verdict where it cannot be
    applied.
    """
    try:
        messages = _worker.ask("find", pattern, answer, whole)
    except WorkerError as error:
        return Score(None, str(error))
    found = {key: value for message in messages for key, value in message.items()}
    if "invalid" in found:
        return Score(None, f"the pattern {pattern[:80]!r} is no regular expression: {found['invalid'][:80]}")
    if "compiled" not in found:
        return Score(None, f"the pattern {pattern[:80]!r} takes too long to compile")
    if "found" not in found:
        return Score(0.0, "the pattern takes too long on this answer")
    return found["found"]


def regex(
    answer: str, gold: str, *, pattern: str | None = None, then: str = "exact", **options: Any
) -> Score:
    """1 when what ``pattern`` takes from the answer equals the gold answer.

    Args:
        answer: the policy's answer.
        gold: the gold answer. Without ``pattern`` it is itself a regular expression, which the whole answer
            must match.
        pattern: its first group, or its whole match where it has none, is the answer. Two different ones are
            a hedge: wrong.
        then: how the two are compared: "exact" or "numeric".
        **options: of that verifier.

    Raises:
        ValueError: ``then`` is another verifier.
    """
    if then not in _THEN:
        raise ValueError(f"regex cannot go on with {then!r}: use {' or '.join(_THEN)}")
    found = extract(answer, gold if pattern is None else pattern, whole=pattern is None)
    if isinstance(found, Score):
        return found
    if pattern is None:
        return Score(1.0, "matches") if found else Score(0.0, f"{answer[:80]!r} does not match {gold[:80]!r}")
    if len(found) != 1:
        return Score(
            0.0, f"{len(found)} different answers: {found}" if found else f"nothing matches {pattern[:80]!r}"
        )
    if not found[0].strip():
        return Score(0.0, "no answer")
    return _THEN[then](found[0], gold, **options)


_THEN = {"exact": exact, "numeric": numeric}
