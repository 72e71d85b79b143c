"""Comparing answers as words, by our rule and by those of SQuAD and GAIA.

Our rule drops case, articles, punctuation and the accents of Latin and Greek letters. It keeps what carries
meaning: symbols (x<5, €5, B♭, C#), single letters (Vitamin A), the marks of other scripts (kana, Thai,
Devanagari) and signs beside digits. Leaves out: fuzzy scores such as F1. An answer is right or it is not.
"""

import calendar
import re
import string
import unicodedata
from collections.abc import Callable, Iterable

from agentkit.records import Score, Unscored
from agentkit.verifiers.renamings import same_thing

_ARTICLES = frozenset({"a", "an", "the"})
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|`+|[\"'])(?=\S)(.+?)(?<=\S)\1(?!\w)")
_DASH = re.compile("[‐-―−]")
_POWER = re.compile(r"(?<=\d)[²³¹⁰⁴-⁹]+")
_ACCENT = re.compile(  # and the vowels that Hebrew and Arabic mostly leave out
    "(?<=[A-Za-zÀ-ɏͰ-Ͽ])[\u0300-\u036f]+|(?<=[еЕ])\u0308|[\u05b0-\u05c7\u0640\u064b-\u0652\u0670]"
)
_SIGN = r"""  # punctuation that carries meaning where it stands
      (?<![\w.])-(?=[\d.$€£¥])  # minus 5
    | (?<=\w)[-*](?!\w)  # A-, A*
    | (?<=\w)\# | \#(?=\w)  # C#, #1
    | (?<=\d)(?:\s?[%‰]|[!'\"\]}])  # 5 %, 5!, 5', 5", [1, 5]
    | [\[{](?=-?\d)
    | (?<=\d)(?:[.,:/]|\s*-\s*)(?=\d)  # 1.5, 1:2, 1/2, 1-2
    | [′″]
"""
_SIGNS = re.compile(_SIGN, re.VERBOSE)
_PIECE = re.compile(_SIGN + r"| [$+<=>^|~] | [^\s!-/:-@\[-`{-~]+", re.VERBOSE)
_ITEM = re.compile(r",(?!\d)\s*and\s+|,(?!\d)\s*|\s+and\s+|\s*&\s*")
_MONTHS = [month.casefold() for month in calendar.month_name[1:]]
_MONTH = "|".join(_MONTHS)
_DAY = r"(\d\d?)(?:st|nd|rd|th|\.)?"
_DATE = re.compile(
    rf"\b(?:{_DAY} (?:of )?({_MONTH})|({_MONTH}) {_DAY})\b,?", re.IGNORECASE
)  # 4 July, July 4th
_ISO_DATE = re.compile(r"\b(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])\b")
_OTHER_DATES = (  # 1789年7月14日, 14.7.1789
    (re.compile(r"(\d{4})年(\d{1,2})月(\d{1,2})日"), lambda date: f"{date[1]}-{date[2]:0>2}-{date[3]:0>2}"),
    (
        re.compile(r"(?<![\d.])(\d{1,2})\.(\d{1,2})\.(\d{4})(?![\d.]*\d)"),
        lambda date: f"{date[3]}-{date[2]:0>2}-{date[1]:0>2}",
    ),
)
_SHORT = ((re.compile(r"\bSt\.? (?=[A-Z])"), "Saint "), (re.compile(r"\bMt\.? (?=[A-Z])"), "Mount "))
_STROKES = str.maketrans("łŁøØđĐı⁄", "lLoOdDi/")  # that NFKD leaves whole
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case, no punctuation, no accents, no articles, single spaces: a text's words, to find it by.

    SQuAD's normalisation but for the accents, and "well-known" is two words. ``exact`` keeps more.
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
    punctuation and case. No answer is "None" here, as there; a task's verifier gives 0 for it before it asks
    a rule, so that it is not right even where the gold answer is "None".
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


def exact(
    answer: str, gold: str, *, aliases: Iterable[str] = (), rule: str = "words", question: str = ""
) -> Score:
    """1 when the answer equals the gold answer or one of its aliases.

    Args:
        aliases: other right answers.
        rule: "words" (the module's), "squad" (``squad_normalize``) or "gaia" (``gaia_equal``).
        question: what was asked. By our rule it tells what kind of thing a name is of ("Lake Baikal" for a
            lake), and whether the order of a list counts.

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
    if rule == "words" and same_thing(answer, golds, question, _same_words):
        return Score(1.0, "the same in another form")
    return Score(0.0, f"{answer.strip()[:80]!r} is not {gold.strip()[:80]!r}")


def _same_words(answer: str, gold: str) -> bool:
    given, wanted = _tokens(answer), _tokens(gold)
    if [token.casefold() for token in given] == [token.casefold() for token in wanted]:
        return True
    if "," in answer + gold:  # of a list: A and C, or A, C
        items, gold_items = _ITEM.split(answer), _ITEM.split(gold)
        if 1 < len(items) == len(gold_items):
            return all(map(_same_words, items, gold_items))
    given, wanted = _without_articles(given, gold=False), _without_articles(wanted, gold=True)
    return [token.casefold() for token in given] == [token.casefold() for token in wanted]


def _without_articles(tokens: list[str], *, gold: bool) -> list[str]:
    """Tokens without the articles before a word; an A that may be a letter stays (Vitamin A, A minor)."""
    kept = []
    for position, (token, following) in enumerate(zip(tokens, [*tokens[1:], ""], strict=False)):
        article = token.casefold() in _ARTICLES and len(following) >= (2 if token in "aA" else 1)
        if token == "A":
            article = article and position == 0 and (following[0].isupper() or not gold)
        if not article:
            kept.append(token)
    return kept


def _tokens(text: str) -> list[str]:
    """Words without accents, and the symbols and signs that carry meaning, each on its own; dates alike."""
    if "St" in text or "Mt" in text:
        for short, long in _SHORT:
            text = short.sub(long, text)
    if any(map(str.isdigit, text)):
        for date, form in _OTHER_DATES:
            text = date.sub(form, text)
        text = _ISO_DATE.sub(lambda date: f"{_MONTHS[int(date[2]) - 1]} {int(date[3])}, {date[1]}", text)
    if any(map(text.casefold().__contains__, _MONTHS)):
        text = _DATE.sub(lambda date: f"{date[2] or date[3]} {date[1] or date[4]}", text)
    if text.isascii():
        return [piece.strip() for piece in _PIECE.findall(_EMPHASIS.sub(r"\2", text.replace("&", " and ")))]
    text = _DASH.sub("-", _EMPHASIS.sub(r"\2", _POWER.sub(lambda power: f"^{power[0]}", text)))
    text = _ACCENT.sub("", unicodedata.normalize("NFKD", text.replace("&", " and "))).translate(_STROKES)
    signs = {position for sign in _SIGNS.finditer(text) for position in range(*sign.span())}
    spaced = ""
    for position, character in enumerate(text):
        category = unicodedata.category(character)
        if position in signs or category in ("Sm", "Sc", "So") or character == "^":
            spaced += f" {character} "
        else:
            spaced += " " if category[0] in "PS" else character
    return spaced.split()


# how a rule normalises, and when two texts are equal to it
_RULES: dict[str, tuple[Callable[[str], str | list[str]], Callable[[str, str], bool]]] = {
    "words": (_tokens, _same_words),
    "squad": (squad_normalize, lambda answer, gold: squad_normalize(answer) == squad_normalize(gold)),
    "gaia": (_bare, gaia_equal),
}
