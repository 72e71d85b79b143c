"""Answers taken out of a text by a regular expression, in a process that can be killed.

Pattern and text may be hostile. Leaves out patterns in anything but Python's own notation.
"""

from typing import Any

from agentkit.records import Score, Unscored
from agentkit.verifiers.normalisation import exact
from agentkit.verifiers.numbers import numeric
from agentkit.verifiers.worker import Worker

_worker = Worker()


def regex(
    answer: str, gold: str, *, pattern: str | None = None, then: str = "exact", **options: Any
) -> Score:
    """1 when what ``pattern`` takes from the answer equals the gold answer.

    Args:
        gold: without ``pattern`` a regular expression that the whole answer must match.
        pattern: its first group, or its whole match where it has none, is the answer; two different ones are
            a hedge.
        then: how the two are compared: "exact" or "numeric".
        **options: of that verifier.

    Raises:
        ValueError: ``then`` is another verifier.
    """
    if then not in _THEN:
        raise ValueError(f"regex cannot go on with {then!r}: use {' or '.join(_THEN)}")
    pattern, whole = (gold, True) if pattern is None else (pattern, False)
    reply = _worker.ask("find", pattern, answer, whole)
    if "invalid" in reply:
        raise Unscored(f"the pattern {pattern[:80]!r} is no regular expression: {reply['invalid'][:80]}")
    if "compiled" not in reply:
        raise Unscored(f"the pattern {pattern[:80]!r} takes too long to compile")
    if "found" not in reply:
        return Score(0.0, "the pattern takes too long on this answer")
    texts = reply["found"]  # three different ones at most
    if whole:
        return Score(1.0, "matches") if texts else Score(0.0, f"{answer[:80]!r} does not match {gold[:80]!r}")
    if not texts:
        return Score(0.0, f"nothing matches {pattern[:80]!r}")
    if len(texts) > 1:
        return Score(0.0, f"{len(texts)} different answers: {texts}")
    return _THEN[then](texts[0], gold, **options) if texts[0].strip() else Score(0.0, "no answer")


_THEN = {"exact": exact, "numeric": numeric}
