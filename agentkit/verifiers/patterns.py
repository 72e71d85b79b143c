"""Answers taken out of a text by a regular expression, in the dialect of the package ``regex``.

Pattern and text may be hostile: a match has a time limit. Leaves out how the text found is compared.
"""

from typing import Any

import regex as dialect

from agentkit.records import Score, Unscored
from agentkit.verifiers.numbers import numeric
from agentkit.verifiers.words import exact

TIMEOUT_S = 1.0
_THEN = {"exact": exact, "numeric": numeric}


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
        Unscored: the pattern is no regular expression.
    """
    if then not in _THEN:
        raise ValueError(f"regex cannot go on with {then!r}: use {' or '.join(_THEN)}")
    source = gold if pattern is None else pattern
    try:
        compiled = dialect.compile(source)
    except (dialect.error, OverflowError, RecursionError) as error:
        raise Unscored(f"the pattern {source[:80]!r} is no regular expression: {str(error)[:80]}") from None
    try:
        if pattern is None:
            is_whole = compiled.fullmatch(answer, timeout=TIMEOUT_S) is not None
            return Score(float(is_whole), f"compared with the pattern {source[:80]!r}")
        matches = compiled.finditer(answer, timeout=TIMEOUT_S)
        found = list(dict.fromkeys(match.group(1 if compiled.groups else 0) for match in matches))
    except TimeoutError:
        return Score(0.0, "the pattern takes too long on this answer")
    texts = [text for text in found if text and text.strip()]
    if len(texts) != 1:
        return Score(0.0, f"{len(texts)} different texts match {source[:80]!r}")
    return _THEN[then](texts[0], gold, **options)
