"""Verifiers: does an answer match the gold answer? Each returns Score(value in [0, 1] or None, why).

The verifier is the reward signal. A hedge ("1 or 2"), an empty answer and NaN are wrong; None means that the verifier
itself could not judge (gold data it cannot read), which is excluded from rewards and counted, never 0.
Kinds so far: exact and numeric.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

from agentkit.records import Score, Task, Trajectory

MAX_ANSWER = 2_000  # characters; anything longer is no answer
_ARTICLES = frozenset({"a", "an", "the"})
_NUMBER = re.compile(
    r"(?P<sign>[-+−]?)\s*(?P<currency>[$€£¥]?)\s*"
    r"(?P<number>(?:\d{1,3}(?:(?:,|\\,|\\,\\!| | )\d{3})+|\d{1,400})(?:\.\d{0,400})?|\.\d{1,400})"
    r"(?P<exponent>[eE][-+]?\d{1,3})?\s*(?P<unit>[^\d\s][^\d]{0,30})?",
)
_ANSWER_LINE = re.compile(r"^[ \t>*_#]*(?:final[ ]+)?answer[ \t*_]*[:：][ \t*_]*(.+)$", re.IGNORECASE | re.MULTILINE)


def final_answer(text: str) -> str | None:
    """The answer a final turn gives: its last "Answer: ..." line, else the whole text; None when that is empty or huge."""
    if len(text) > 100 * MAX_ANSWER:
        return None
    lines = _ANSWER_LINE.findall(text)
    answer = (lines[-1].rstrip(" \t*_") if lines else text).strip()
    return answer if 0 < len(answer) <= MAX_ANSWER else None


def normalize(text: str) -> str:
    """SQuAD's normalisation (Rajpurkar et al. 2016, as Search-R1 uses it), accents folded.

    Lower case, no punctuation, no articles, single spaces.
    """
    folded = "".join(c for c in unicodedata.normalize("NFKD", text).casefold() if not unicodedata.combining(c))
    words = "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in folded).split()
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(words)  # "A" is a name where it stands alone


def exact(answer: str, gold: str, *, aliases: Iterable[str] = ()) -> Score:
    """1 when the normalised answer equals the normalised gold answer or one of its aliases."""
    wanted = {normalize(g) for g in (gold, *aliases)} - {""}
    if not wanted:
        return Score(None, f"the gold answer {gold!r} is empty once normalised")
    found = normalize(answer)
    return Score(1.0, "equal") if found in wanted else Score(0.0, f"{found[:80]!r} is not {normalize(gold)[:80]!r}")


def parse_number(text: str, unit: str = "") -> float | None:
    """The one number a text consists of, or None.

    Thousands separators, a currency sign, scientific notation and the declared unit may stand around it; anything else,
    a second number or another unit included, makes it None.
    """
    if any(unicodedata.category(c) == "No" for c in text):  # NFKC would read 10² as 102
        return None
    match = _NUMBER.fullmatch(unicodedata.normalize("NFKC", text).strip().rstrip(".").strip())
    if not match:
        return None
    found_unit = (match["unit"] or "").strip().rstrip(".").casefold()
    if found_unit and found_unit not in {unit.casefold(), unit.casefold().rstrip("s")}:
        return None
    digits = re.sub(r"[^\d.]", "", match["number"])
    value = float(f"{digits}{match['exponent'] or ''}")
    return None if not math.isfinite(value) else -value if match["sign"] in ("-", "−") else value


def numeric(answer: str, gold: str, *, abs_tol: float = 0.0, rel_tol: float = 0.0, unit: str = "") -> Score:
    """1 when both are one number and |answer - gold| <= max(abs_tol, rel_tol * |gold|): equal unless a tolerance is declared."""
    wanted = parse_number(str(gold), unit)
    if wanted is None:
        return Score(None, f"the gold answer {gold!r} is not a number")
    found = parse_number(answer, unit)
    if found is None:
        return Score(0.0, f"{answer[:80]!r} is not one number" + (f" in {unit}" if unit else ""))
    close = abs(found - wanted) <= max(abs_tol, rel_tol * abs(wanted))
    return Score(1.0, "within tolerance") if close else Score(0.0, f"{found:.12g} is not {wanted:.12g}")


KINDS: dict[str, Callable[..., Score]] = {"exact": exact, "numeric": numeric}


def check(kind: str, answer: str | None, gold: str, **options: Any) -> Score:
    """Score one answer against one gold answer.

    Args:
        kind: "exact" or "numeric".
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
    if len(answer) > MAX_ANSWER:
        return Score(0.0, f"an answer of {len(answer)} characters; {MAX_ANSWER} is the limit")
    if gold is None:
        return Score(None, "there is no gold answer")
    try:
        return KINDS[kind](answer, str(gold), **options)
    except TypeError as error:
        raise ValueError(f"verifier {kind!r}: {error}") from None


def verify(task: Task, answer: str | Trajectory | None) -> Score:
    """Score an answer, or a trajectory's answer, against a task's gold answer with the task's verifier."""
    if isinstance(answer, Trajectory):
        answer = answer.answer
    options = {"kind": task.verifier} if isinstance(task.verifier, str) else dict(task.verifier)
    return check(options.pop("kind", None), answer, task.answer, **options)
