"""Answers taken out of a text by a regular expression, in a process that can be killed.

Pattern and text may be hostile. Leaves out patterns in anything but Python's own notation.
"""

from __future__ import annotations

from typing import Any

from agentkit.records import Score
from agentkit.verifiers.numbers import numeric
from agentkit.verifiers.text import exact
from agentkit.verifiers.worker import Worker, WorkerError

_worker = Worker()


def extract(answer: str, pattern: str, *, whole: bool = False) -> list[str] | Score:
    """The different texts a pattern takes from an answer (three at most), or why it cannot be applied."""
    try:
        reply = _worker.ask("find", pattern, answer, whole)
    except WorkerError as error:
        return Score(None, str(error))
    if "invalid" in reply:
        return Score(None, f"the pattern {pattern[:80]!r} is no regular expression: {reply['invalid'][:80]}")
    if "compiled" not in reply:
        return Score(None, f"the pattern {pattern[:80]!r} takes too long to compile")
    if "found" not in reply:
        return Score(0.0, "the pattern takes too long on this answer")
    return reply["found"]


def regex(
    answer: str, gold: str, *, pattern: str | None = None, then: str = "exact", **options: Any
) -> Score:
    """1 when what ``pattern`` takes from the answer equals the gold answer.

    Args:
        answer: the policy's answer.
        gold: the gold answer; without ``pattern`` a regular expression that the whole answer must match.
        pattern: its first group, or its whole match where it has none, is the answer; two different ones are
            a hedge.
        then: how the two are compared: "exact" or "numeric".
        **options: of that verifier.

    Raises:
        ValueError: ``then`` is another verifier.
    """
    if then not in _THEN:
        raise ValueError(f"regex cannot go on with {then!r}: use {' or '.join(_THEN)}")
    texts = extract(answer, gold if pattern is None else pattern, whole=pattern is None)
    if isinstance(texts, Score):
        return texts
    if pattern is None:
        return Score(1.0, "matches") if texts else Score(0.0, f"{answer[:80]!r} does not match {gold[:80]!r}")
    if not texts:
        return Score(0.0, f"nothing matches {pattern[:80]!r}")
    if len(texts) > 1:
        return Score(0.0, f"{len(texts)} different answers: {texts}")
    return _THEN[then](texts[0], gold, **options) if texts[0].strip() else Score(0.0, "no answer")


_THEN = {"exact": exact, "numeric": numeric}
