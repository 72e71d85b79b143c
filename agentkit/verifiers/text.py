"""Answers as text: the answer a final turn gives, and comparing words.

Leaves out: fuzzy scores such as F1. An answer is right or it is not.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterable

from agentkit.records import Score, Unscored

MAX_ANSWER = 2_000  # characters; anything longer is no answer, except for code
MAX_CODE = 20_000
_ARTICLES = frozenset({"a", "an", "the"})
_ANSWER_LINE = re.compile(
    r"^[ \t>*_#]*(?:final[ ]+)?answer[ \t*_]*[:：][ \t*_]*(.+)$", re.IGNORECASE | re.MULTILINE
)
_CODE = re.compile(r"(?:async )?def \w+\(|class \w+\W|import \w|from [\w.]+ import |@\w")
_SIGN = re.compile(r"(?<![\w.])[-±<>≤≥≠](?=[\d.$€£¥])|(?<=\w)(?:[+#]+|-)(?!\w)|(?<=\d)[²³¹⁰⁴-⁹]+")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
FENCE = "```"


def final_answer(text: str) -> str | None:
    """The answer of a final turn: its last "Answer: ..." line, else all of it; None where empty or huge.

    A turn that holds a code block is one answer as a whole: a comment in code may look like an answer line.
    Code that starts on the answer line goes on to the end. Reasoning that ends in a box may be as long.
    """
    if len(text) > 100 * MAX_ANSWER:
        return None
    lines = list(_ANSWER_LINE.finditer(text))
    if FENCE in text:
        answer, limit = text.strip(), MAX_CODE
    elif starts := [line for line in lines if _CODE.match(line[1])]:
        answer, limit = text[starts[0].start(1) :].strip(), MAX_CODE
    else:
        answer = (lines[-1][1].rstrip(" \t*_") if lines else text).strip()
        limit = MAX_CODE if r"\boxed{" in answer else MAX_ANSWER
    return answer if 0 < len(answer) <= limit else None


def normalize(text: str) -> str:
    """Lower case, no punctuation, no accents, no articles, single spaces.

    SQuAD's normalisation but for the accents, and "well-known" is two words.
    """
    folded = unicodedata.normalize("NFKD", text).casefold()
    spaced = ""
    for character in folded:
        if unicodedata.category(character)[0] in "PS":
            spaced += " "
        elif not unicodedata.combining(character):
            spaced += character
    words = spaced.split()
    # "A" is a name where it stands alone
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(words)


def squad_normalize(text: str) -> str:
    """SQuAD's (Rajpurkar et al. 2016; Search-R1 uses it): lower case, no ASCII punctuation, no articles."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def gaia_equal(answer: str | None, gold: str) -> bool:
    """GAIA's scorer (Mialon et al. 2023, arXiv 2311.12983; ``question_scorer`` of its leaderboard).

    A number must be equal once ``$``, ``%`` and ``,`` are out; a list (``,`` or ``;`` in the gold answer)
    must be equal element by element, punctuation kept; other text must be equal without white space,
    punctuation and case.
    """
    answer = "None" if answer is None else answer
    if _float(gold) is not None:
        return _gaia_number(answer) == _float(gold)
    if "," in gold or ";" in gold:
        elements, gold_elements = (re.split("[,;]", text) for text in (answer, gold))
        return len(elements) == len(gold_elements) and all(map(_gaia_element, elements, gold_elements))
    return _bare(answer).translate(_NO_PUNCTUATION) == _bare(gold).translate(_NO_PUNCTUATION)


def _gaia_element(element: str, gold: str) -> bool:
    if _float(gold) is not None:
        return _gaia_number(element) == _float(gold)
    return _bare(element) == _bare(gold)


def _gaia_number(text: str) -> float:
    value = _float(re.sub("[$%,]", "", text))
    return float("inf") if value is None else value


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bare(text: str) -> str:
    return re.sub(r"\s", "", text).lower()


def exact(answer: str, gold: str, *, aliases: Iterable[str] = (), rule: str = "words") -> Score:
    """1 when the answer equals the gold answer or one of its aliases.

    Args:
        aliases: other right answers.
        rule: "words" (``normalize``), "squad" (``squad_normalize``) or "gaia" (``gaia_equal``).

    Raises:
        ValueError: another rule.
    """
    if rule not in _RULES:
        raise ValueError(f"unknown rule {rule!r} for exact: use {', '.join(_RULES)}")
    normal, equal = _RULES[rule]
    golds = [gold, *([aliases] if isinstance(aliases, str) else aliases)]
    golds = [text for text in golds if normal(text)]
    if not golds:
        raise Unscored(f"the gold answer {gold!r} is empty once normalised")
    if any(equal(answer, text) for text in golds):
        return Score(1.0, "equal")
    return Score(0.0, f"{answer.strip()[:80]!r} is not {gold.strip()[:80]!r}")


def _same_words(answer: str, gold: str) -> bool:
    return normalize(answer) == normalize(gold) and _signs(answer) == _signs(gold)


def _signs(text: str) -> list[str]:
    """What normalising drops and matters: the minus of -5, the ends of C++ and A-, the power of 10²."""
    return _SIGN.findall(text.replace("−", "-"))


# how a rule normalises, and when two texts are equal to it
_RULES: dict[str, tuple[Callable[[str], str], Callable[[str, str], bool]]] = {
    "words": (normalize, _same_words),
    "squad": (squad_normalize, lambda answer, gold: squad_normalize(answer) == squad_normalize(gold)),
    "gaia": (_bare, gaia_equal),
}
