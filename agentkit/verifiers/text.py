"""Answers as text: the answer a final turn gives, and comparing words.

Leaves out: fuzzy scores such as F1. An answer is right or it is not.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable

from agentkit.records import Score

MAX_ANSWER = 2_000  # characters; anything longer is no answer, except for code
MAX_CODE = 20_000
_ARTICLES = frozenset({"a", "an", "the"})
_ANSWER_LINE = re.compile(
    r"^[ \t>*_#]*(?:final[ ]+)?answer[ \t*_]*[:：][ \t*_]*(.+)$", re.IGNORECASE | re.MULTILINE
)
_CODE = re.compile(r"(?:async )?def \w+\(|class \w+\W|import \w|from [\w.]+ import |@\w")
_SIGN = re.compile(r"(?<![\w.])[-±<>≤≥≠](?=[\d.$€£¥])|(?<=\w)(?:[+#]+|-)(?!\w)|(?<=\d)[²³¹⁰⁴-⁹]+")
FENCE = "```"


def final_answer(text: str) -> str | None:
    """The answer a final turn gives: its last "Answer: ..." line, else the whole text; None when that is
    empty or huge.

    A turn that holds a code block is one answer as a whole: a comment in code may look like an answer line.
    Code that starts on the answer line goes on to the end. Reasoning that ends in a box may be as long as
    code.
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
    """SQuAD's normalisation with accents folded and punctuation read as a space, so that "well-known" is two
    words.

    Lower case, no punctuation, no articles, single spaces.
    """
    folded = "".join(
        c for c in unicodedata.normalize("NFKD", text).casefold() if not unicodedata.combining(c)
    )
    words = "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in folded).split()
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(
        words
    )  # "A" is a name where it stands alone


def squad_normalize(text: str) -> str:
    """SQuAD's own (Rajpurkar et al. 2016; Search-R1 uses it): lower case, ASCII punctuation and articles out."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
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
        wanted, found = (re.split("[,;]", text) for text in (gold, answer))
        return len(wanted) == len(found) and all(map(_gaia_element, found, wanted))
    return _bare(answer, string.punctuation) == _bare(gold, string.punctuation)


def _gaia_element(found: str, wanted: str) -> bool:
    return (
        _gaia_number(found) == _float(wanted) if _float(wanted) is not None else _bare(found) == _bare(wanted)
    )


def _gaia_number(text: str) -> float:
    value = _float(re.sub("[$%,]", "", text))
    return float("inf") if value is None else value


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bare(text: str, punctuation: str = "") -> str:
    return re.sub(r"\s", "", text).lower().translate(str.maketrans("", "", punctuation))


def exact(answer: str, gold: str, *, aliases: Iterable[str] = (), rule: str = "words") -> Score:
    """1 when the answer equals the gold answer or one of its aliases.

    Args:
        answer: the policy's answer.
        gold: the gold answer.
        aliases: other right answers.
        rule: "words" (``normalize``), "squad" (``squad_normalize``) or "gaia" (``gaia_equal``).

    Raises:
        ValueError: another rule.
    """
    aliases = [aliases] if isinstance(aliases, str) else list(aliases)
    if rule == "gaia":
        wanted = [g for g in (gold, *aliases) if _bare(g)]
        right = any(gaia_equal(answer, g) for g in wanted)
    elif rule in _RULES:
        alike = _RULES[rule]
        wanted = [g for g in (gold, *aliases) if alike(g)]
        right = any(
            alike(answer) == alike(g) and (rule == "squad" or _signs(answer) == _signs(g)) for g in wanted
        )
    else:
        raise ValueError(f"unknown rule {rule!r} for exact: use words, squad or gaia")
    if not wanted:
        return Score(None, f"the gold answer {gold!r} is empty once normalised")
    return (
        Score(1.0, "equal") if right else Score(0.0, f"{answer.strip()[:80]!r} is not {gold.strip()[:80]!r}")
    )


def _signs(text: str) -> list[str]:
    """What normalising drops of a word and changes its meaning: the minus of -5, the ends of C++ and A-, the
    power of 10².
    """
    return _SIGN.findall(text.replace("−", "-"))


_RULES = {"words": normalize, "squad": squad_normalize}
