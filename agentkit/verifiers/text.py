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
from datetime import datetime

from dateutil.parser import parse

from agentkit.records import Score, Unscored
from agentkit.verifiers.answer import RETRACTED

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
_DAY = r"(\d\d?)(?:st|nd|rd|th)?"
_DATE = re.compile(
    rf"\b(?:{_DAY} (?:of )?({_MONTH})|({_MONTH}) {_DAY})\b,?", re.IGNORECASE
)  # 4 July, July 4th
_ISO_DATE = re.compile(r"\b(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])\b")
_IS_MOMENT = re.compile(
    rf"(?=.*\d)(?:\b(?:{_MONTH})\b|\d\s*[ap]\.?m\b|\A\d\d?:\d\d\b|\A\d\d?\.\d\d?\.\d{{4}}\b)", re.I
)
_DEFAULTS = (datetime(2000, 1, 1, 1, 1), datetime(2004, 3, 3, 3, 3))
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
_CENTURY = re.compile(rf"\b({'|'.join(_ORDINALS)})[ -]century\b", re.IGNORECASE)
_SAME_COUNTRY = dict.fromkeys(
    ("england", "scotland", "wales", "uk", "great britain", "britain"), "United Kingdom"
)
_SAME_COUNTRY |= dict.fromkeys(("usa", "us", "u.s.", "u.s.a."), "United States")
_SEVERAL = re.compile(r"\b(?:two|three|four|five|six|both|[2-6])\b", re.IGNORECASE)
_KANJI_DATE = re.compile(r"(\d{4})年(\d{1,2})月(\d{1,2})日")
_INITIALS = re.compile(r"\b(?:[A-Z]\.){2,}")  # U.S.A.
_SHORT = ((re.compile(r"\bSt\.? (?=[A-Z])"), "Saint "), (re.compile(r"\bMt\.? (?=[A-Z])"), "Mount "))
_TITLE = re.compile(
    r"(?:(?:sir|dame|dr|prof|professor|mr|mrs|ms|miss|herr|frau|monsieur|madame)\b\.?\s+){1,2}", re.I
)
_KIND = re.compile(  # what a question asks for: which river, what is the deepest lake in the world
    r"\b(?:which|what)\s+(?:(?:is|was|are|were)\s+(?:the\s+)?(?:[\w-]+\s+){0,3}?)?(lake|river|mountain|peak|volcano|sea"
    r"|ocean|desert|island|city|town|state|province|country|king|queen|emperor|pope|president|university|company"
    r"|language|planet|element)\b",
    re.IGNORECASE,
)
_IN_ORDER = re.compile(  # of a list the order counts, or what each is
    r"\b(?:respective\w*|orders?|ordered|sort\w*|rank\w*|chronolog\w*|alphabet\w*|ascend\w*|descend\w*|first|second|then|last"
    r"|sequence|steps?|from|top|winners?|runners?|before|after|follow\w*|(?:small|larg|old|young|great|high|low|tall|short)est"
    r"|most|least|and (?:who|which|what|where|when|how|its|his|her|their)|\d(?:st|nd|rd|th))\b",
    re.IGNORECASE,
)
_YEAR_BEHIND = re.compile(r"(?<=\w)\s*\((1[5-9]\d\d|20\d\d)\)\W*\Z")
_LETTERS_BEHIND = re.compile(r"(?<=\w)\s*\(([^\W\d_]{1,6})\)\W*\Z")
_REMARK_BEHIND = re.compile(
    r"(?<=\w)\s*\((?=(?:n[ée]e|born|formerly|known|who|which|directed|written|published|released|founded"
    r"|\d+(?:st|nd|rd|th))\b)([^()]{3,80})\)\W*\Z"
)
_DOUBTED = re.compile(  # what makes a remark another answer, or takes this one back
    r"\?|\b(?:or|also|false\w*|falsch\w*|disput\w+|unverif\w+|alleged\w*|debat\w+|question\w+|alternativ\w+|versus|vs|any"
    r"|such|like|same|other|another|next|previous|former|opposite|half|part|partly|oder|ou|o|aka|second|runner\w*)\b",
    re.IGNORECASE,
)
_CHEMICAL = re.compile(  # $\text{H}_2\text{SO}_4$
    r"\$?(?:\\(?:text|mathrm|ce)\s*\{(?:[A-Z][a-z]?|[()\d_{}])+\}|_\{?\d+\}?|[A-Z][a-z]?|[()\d])+\$?"
)
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
    if rule == "words" and (
        any(_same_thing(answer, text, question) for text in golds) or _is_said_twice(answer, golds)
    ):
        return Score(1.0, "the same thing")
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


def _same_thing(answer: str, gold: str, question: str) -> bool:
    """Whether an answer says the gold answer and what it is besides: a title, its kind, a year, or letters.

    Or the same list in another order, where the question does not ask for one.
    """
    for one, other in ((answer, gold), (gold, answer)):
        if (title := _TITLE.match(one)) and _same_words(one[title.end() :], other):
            return True
    moment = _moment(answer)
    if moment and moment == _moment(gold):
        return True
    if any(map(_CENTURY.search, (answer, gold))) and _same_words(
        *(_CENTURY.sub(_in_digits, t) for t in (answer, gold))
    ):
        return True
    joined = _INITIALS.sub(lambda initials: initials[0].replace(".", ""), answer)
    if joined != answer and _same_words(joined, gold):
        return True
    if _CHEMICAL.fullmatch(answer.strip()) and "_" in answer:
        return _same_words(re.sub(r"\\(?:text|mathrm|ce)|[${}_\s]", "", answer), gold)
    if (kind := _KIND.search(question)) and _same_words(_without_kind(answer, kind[1].casefold()), gold):
        return True
    year, letters = _YEAR_BEHIND.search(answer), _LETTERS_BEHIND.search(answer)
    if year and not re.search(r"\d|\b(?:when|year|date)\b", gold + question, re.IGNORECASE):
        return _same_words(answer[: year.start()], gold)
    if letters and len(gold) > 4 and _abbreviates(letters[1].casefold(), gold.casefold()):
        return _same_words(answer[: letters.start()], gold)
    remark = _REMARK_BEHIND.search(answer) if len(gold) > 3 and re.search(r"[^\W\d_]{3}", gold) else None
    if remark and not (_DOUBTED.search(remark[1]) or RETRACTED.search(remark[1])):
        return _same_words(answer[: remark.start()], gold)
    name, _, place = answer.rpartition(", ")
    if name and _same_words(name, gold) and _lies_in(gold, place):
        return True
    listed = "," in gold or _SEVERAL.search(question)
    return bool(question and listed) and not _IN_ORDER.search(question) and _same_items(answer, gold)


def _lies_in(city: str, country: str) -> bool:
    """Whether a city of the corpus lies in a country; where several have its name, the largest."""
    from agentkit.tools.corpus import Corpus

    query = "SELECT country FROM city WHERE name = ? COLLATE NOCASE ORDER BY population DESC LIMIT 1"
    rows = Corpus.open().rows(query, city.strip().encode("utf-8", "replace").decode())
    country = _SAME_COUNTRY.get(country.strip(" .").casefold(), country)
    return bool(rows) and _same_words(country, str(rows[0][0]))


def _is_said_twice(answer: str, golds: list[str]) -> bool:
    """Whether an answer is a right one with another right one in brackets: Myanmar (Burma)."""
    outer, _, inner = answer.strip(" .").removesuffix(")").partition("(")
    return answer.strip(" .").endswith(")") and all(
        any(_same_words(text, gold) for gold in golds) for text in (outer, inner)
    )


def _moment(text: str) -> tuple[int | None, ...] | None:
    """Year, month, day, hour and minute of a date or a time of day, None for each that it does not say."""
    if len(text) > 40 or not _IS_MOMENT.search(text):
        return None
    plain = re.sub(r"(?<=\d)\.(?=\s*[A-Za-z])|\b(?:of|at|on|the)\b", " ", text.strip(" ."))
    try:
        found = [parse(plain, dayfirst="." in text, default=default) for default in _DEFAULTS]
    except (ValueError, OverflowError):
        return None
    parts = [(d.year, d.month, d.day, d.hour, d.minute) for d in found]
    *date, hour, minute = (one if one == other else None for one, other in zip(*parts, strict=True))
    return (*date, hour, minute or 0) if hour is not None else (*date, None, None)


def _without_kind(text: str, kind: str) -> str:
    kinds = rf"(?:{kind}|mount|monte?)" if kind in ("mountain", "peak", "volcano") else kind
    return re.sub(rf"\A\W*{kinds}\s+(?=\w)|(?<=\w)\s+{kinds}\W*\Z", "", text, count=1, flags=re.IGNORECASE)


def _in_digits(century: re.Match) -> str:
    number = _ORDINALS.index(century[1].casefold()) + 1
    return f"{number}{'st nd rd'.split()[number - 1] if number < 4 else 'th'} century"


def _abbreviates(letters: str, words: str) -> bool:
    rest = iter(words)
    return letters[0] == words[0] and all(letter in rest for letter in letters)


def _same_items(answer: str, gold: str) -> bool:
    """Whether two lists of names hold the same ones."""
    items, gold_items = _ITEM.split(answer.strip(" .")), _ITEM.split(gold.strip(" ."))
    if not 1 < len(items) == len(gold_items) < 20 or re.search(r"\d", answer + gold):
        return False
    left = list(gold_items)
    for item in items:
        same = next((other for other in left if _same_words(item, other)), None)
        if same is None:
            return False
        left.remove(same)
    return True


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
    for short, long in _SHORT:
        text = short.sub(long, text)
    text = _KANJI_DATE.sub(lambda date: f"{date[1]}-{date[2]:0>2}-{date[3]:0>2}", text)
    text = _ISO_DATE.sub(lambda date: f"{_MONTHS[int(date[2]) - 1]} {int(date[3])}, {date[1]}", text)
    if any(map(text.casefold().__contains__, _MONTHS)):
        text = _DATE.sub(lambda date: f"{date[2] or date[3]} {date[1] or date[4]}", text)
    if text.isascii():
        return [piece.strip() for piece in _PIECE.findall(_EMPHASIS.sub(r"\2", text.replace("&", " and ")))]
    text = _DASH.sub("-", _EMPHASIS.sub(r"\2", _POWER.sub(lambda power: f"^{power[0]}", text)))
    text = _ACCENT.sub("", unicodedata.normalize("NFKD", text.replace("&", " and "))).replace("⁄", "/")
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
