"""Comparing answers as words, by our rule and by those of SQuAD and GAIA.

Our rule drops case, articles, punctuation and the accents of Latin and Greek letters. It keeps what carries
meaning: symbols (x<5, €5, B♭, C#), single letters (Vitamin A) and signs beside digits. Other right names are
a task's ``aliases``. Leaves out fuzzy scores such as F1: an answer is right or it is not.
"""

import calendar
import re
import string
import unicodedata
from collections.abc import Callable, Iterable

from agentkit.records import Score, Unscored

_ARTICLES = frozenset({"a", "an", "the"})
_PIECE = re.compile(  # words, numbers, and the signs that carry meaning
    r"""\d+(?:[.,:/]\d+)* | [^\W\d_]+
    | (?<![\w.])-(?=[\d.$€£¥])  # minus 5
    | (?<=\b[A-Za-z])[-*+](?!\w)  # A-, A*
    | (?<=\w)\# | \#(?=\w)  # C#, #1
    | (?<=\d)(?:\s?[%‰!'"])  # 5 %, 5!, 5', 5"
    | [\[({](?=-?\d) | (?<=\d)[\])}]  # [1, 5]
    | (?<=\d)\s*-\s*(?=\d)  # 1-2
    | [′″$+<=>^|~] | [^\w\s!-/:-@\[-`{-~“”‘’«»–—‐、。，；：（）「」…·]""",
    re.VERBOSE,
)
_ACCENT = re.compile(  # and the vowels that Hebrew and Arabic mostly leave out
    "(?<=[A-Za-zÀ-ɏͰ-Ͽ])[\u0300-\u036f]+|[\u05b0-\u05c7\u0640\u064b-\u0652\u0670]"
)
_TEX = (
    (re.compile(r"\\(?:text[a-z]*|math[a-z]+|mbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[ ,;:!]|\\([%$#&])"), r" \1"),
)
_POWER, _DASH = re.compile("[²³¹⁰⁴-⁹]+"), re.compile("[‐-―−]")
_DATE = re.compile(  # July 4, 1776 is 4 July 1776
    rf"\b({'|'.join(calendar.month_name[1:])}) (\d\d?)(?:st|nd|rd|th)?,?(?= \d{{4}}|\W*$)", re.IGNORECASE
)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case, no punctuation, no accents, no articles, single spaces: a text's words, to find it by.

    SQuAD's normalisation but for the accents, and "well-known" is two words. ``exact`` keeps more.
    """
    letters = [c for c in unicodedata.normalize("NFKD", text).casefold() if not unicodedata.combining(c)]
    words = "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in letters).split()
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
    punctuation and case. No answer is "None" here, as there.
    """
    answer = str(answer)
    if _float(gold) is not None:
        return _gaia_element(answer, gold)
    golds = re.split("[,;]", gold)
    if len(golds) > 1:
        elements = re.split("[,;]", answer)
        return len(elements) == len(golds) and all(map(_gaia_element, elements, golds))
    return _bare(answer).translate(_NO_PUNCTUATION) == _bare(gold).translate(_NO_PUNCTUATION)


def _gaia_element(element: str, gold: str) -> bool:
    if (number := _float(gold)) is None:
        return _bare(element) == _bare(gold)
    return _float(re.sub("[$%,]", "", element)) == number


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bare(text: str) -> str:
    return re.sub(r"\s", "", text).lower()


def exact(
    answer: str, gold: str, *, aliases: Iterable[str] = (), rule: str = "words", question: str = ""
) -> Score:
    """1 when the answer equals the gold answer or one of its aliases.

    Args:
        aliases: other right answers.
        rule: "words" (the module's), "squad" (``squad_normalize``) or "gaia" (``gaia_equal``).
        question: what was asked; not looked at.

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


def _tokens(text: str) -> list[str]:
    """Words without case, accents, markup and articles, and each symbol that carries meaning."""
    for pattern, form in _TEX:
        text = pattern.sub(form, text)
    text = re.sub(r"^\$(.*)\$$", r"\1", text.strip(" .*_`")).replace("&", " and ")
    text = _DASH.sub("-", _POWER.sub(lambda power: f"^{power[0]}", _DATE.sub(r"\2 \1", text)))
    found = _PIECE.findall(_ACCENT.sub("", unicodedata.normalize("NFKD", text)))
    return [
        token.strip().casefold()
        for token, following in zip(found, [*found[1:], ""], strict=False)
        # the A of Vitamin A and of A minor may be a letter
        if token.casefold() not in _ARTICLES or len(following) < 2 or (token == "A" and following.islower())
    ]


# how a rule normalises, and when two texts are equal to it
_RULES: dict[str, tuple[Callable[[str], str | list[str]], Callable[[str, str], bool]]] = {
    "words": (_tokens, lambda answer, gold: _tokens(answer) == _tokens(gold)),
    "squad": (squad_normalize, lambda answer, gold: squad_normalize(answer) == squad_normalize(gold)),
    "gaia": (_bare, gaia_equal),
}
