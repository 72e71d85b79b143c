"""Other ways to write a name, a time or a list that a question asks for: Sir Isaac Newton, Lake Baikal.

Each is taken only where the question asks for such a thing, for "Dr." belongs to Dr. No and the order to a
podium. Leaves out equal words (text), and what else a person would take for the same.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from agentkit.verifiers.numbers import in_digits, same_unit

Equal = Callable[[str, str], bool]
_KNOWN_AS = re.compile(
    r"\A(?:also known as|a\.?k\.?a\.?|pen name of|real name|born(?: as)?|formerly)\s+", re.I
)
_COUNTS = re.compile(r"\bhow many\b", re.IGNORECASE)
_WH = re.compile(r"\b(?:who|whom|whose|which|what|where|when|how|why)\b", re.IGNORECASE)
_WHO = re.compile(r"\bwho(?:m|se)?\b", re.IGNORECASE)
_TITLE = re.compile(r"(?:sir|dame|dr|prof|professor|herr|monsieur)\b\.?\s+", re.IGNORECASE)
_KIND = re.compile(  # which river .., what is the deepest lake ..
    r"\b(?:which|what)\s+(?:(?:is|was)\s+the\s+(?:[\w-]+\s+){0,3}?|(?-i:[A-Z])[\w.]*\s+)?"
    r"(lake|river|mountain|peak|volcano|ocean|sea|desert|king|queen|pope|emperor|president|gas|planet|element)"
    r"\b(?!['’]|\s+and\b|,)",
    re.IGNORECASE,
)
_FRONT = {"river": "river", "lake": "lake"} | dict.fromkeys(("mountain", "peak", "volcano"), "mount|mt")
_BEHIND = frozenset(("river", "ocean", "sea", "desert", "gas"))
_PLURAL = re.compile(  # which two elements .., what are the three colours ..
    r"\b(?:which|what|name|list|give)\s+(?:are\s+)?(?:all\s+)?(?:the\s+)?(?:(?P<number>two|three|four|five|six)\s+)?"
    r"(?!(?:is|was|does|has)\b)(?:(?!and\b)[\w()'’-]+\s+){0,3}?(?P<things>countries|cities"
    r"|(?P<pair>(?<=married )couple)|(?!(?:mov|step|turn|direction|instruction"
    r"|letter|word|note|event|stage|phase|title|digit|\w*s[su])e?s?\b)[a-z]{3,}s)\b",
    re.IGNORECASE,
)
_IN_ORDER = re.compile(  # the order counts, or what each is
    r"\b(?:respective\w*|order\w*|sort\w*|arrang\w*|rank\w*|chronolog\w*|alphabet\w*|ascend\w*|descend\w*|increas\w*"
    r"|decreas\w*|reverse\w*|first|second|then|last|sequence\w*|steps?|from|to|by|top|winners?|runners?|before|after"
    r"|follow\w*|\w+est|\w+wards?|most|least|and|each|print\w*|output|titles?|films?|novels?|books?|songs?|plays?|full"
    r"|\d(?:st|nd|rd|th))\b",
    re.IGNORECASE,
)
_ITEM = re.compile(r",\s*and\s+|,\s*|\s+and\s+|\s*&\s*")
_NO_ITEM = frozenset("yes no true false left right up down north south east west".split())
_CITY = re.compile(r"\b(?:which|what)\s+(?:[\w-]+\s+){0,2}?(?:city|capital)\b|\bwhere\b", re.IGNORECASE)
_BORN = re.compile(r"(?<=\w)\s*\((?:n[ée]e [A-ZÀ-Þ][^\W\d_]{1,30}|born (?:in )?\d{4})\)\W*\Z")
_LETTERS = re.compile(r"(?<=\w)\s*\(([^\W\d_]{1,6})([₂2]?)\)\W*\Z")
_ASKED_FORM = re.compile(
    r"\b(?:official|full|complete|former\w*|middle|initials?|stands? for|means?|\w*abbreviat\w*|acronym"
    r"|letters|spell\w*|real|short for|renamed|now called)\b",
    re.IGNORECASE,
)
_COUNTRIES = tuple(
    names.split(", ")
    for names in (
        "United States, United States of America, USA, US", "United Kingdom, UK", "Myanmar, Burma",
        "Russia, Russian Federation", "Czech Republic, Czechia", "Ivory Coast, Côte d'Ivoire",
        "Turkey, Türkiye", "Eswatini, Swaziland", "Cape Verde, Cabo Verde", "East Timor, Timor-Leste",
    )
)  # fmt: skip
_IN_PAIRS = frozenset(("H", "N", "O", "F", "Cl", "Br", "I"))  # O2
_ASKED_ELEMENT = re.compile(r"\b(?:element|metal|gas|chemical|substance)\b", re.IGNORECASE)
_ASKED_BODY = re.compile(  # what is known by its initials
    r"\b(?:which|what) (?:\w+ ){0,4}?(?:countr(?:y|ies)|agenc(?:y|ies)|alliance|organi[sz]ation|company"
    r"|corporation|university|institute|league)\b",
    re.IGNORECASE,
)
_ASKED_COUNTRY = re.compile(r"\b(?:countr\w+|nations?|where)\b", re.IGNORECASE)
_NAMES = re.compile(
    r"[A-Z]\.?|[A-ZÀ-Þ][^\W\d_]*[a-zß-ÿ][^\W\d_]*(?:['’-][^\W\d_]+)*|von|van|de|of|the|and|for|in"
)
_INITIAL, _NAME = re.compile(r"([A-Z])\.?"), re.compile(r"[A-ZÀ-Þ][^\W\d_]*[a-zß-ÿ]")
_INITIALS = re.compile(r"\b(?:[A-Z]\.){2,}")  # U.S.A.
_CHEMICAL = re.compile(
    r"\$?(?:\\(?:text|mathrm|ce)\{[A-Za-z\d()_]{1,20}\}|_(?:\{\d{1,3}\}|\d{1,3}(?!\d))|[A-Z][a-z]?|[()])++\$?"
)
_TIME = re.compile(r"(\d{1,2})(?::(\d\d))?\s*(?:([ap])\.?m\.?)?", re.IGNORECASE)
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
_CENTURY = re.compile(rf"\b({'|'.join(_ORDINALS)})[ -]century\b", re.IGNORECASE)


def same_thing(answer: str, golds: Iterable[str], question: str, equal: Equal) -> bool:
    """Whether an answer is one of the gold answers, written in another way; ``equal`` compares words."""
    golds = list(golds)
    if _COUNTS.search(question) and any(_same_count(answer, gold) for gold in golds):
        return True
    if (
        len(answer) > 200
        or not question
        or (answer.isalpha() and not (answer.isupper() or _ASKED_COUNTRY.search(question)))
    ):
        return False
    outer, _, inner = answer.strip(" .").removesuffix(")").partition("(")  # Myanmar (Burma), both right
    inner = _KNOWN_AS.sub("", inner)
    if answer.strip(" .").endswith(")") and all(any(equal(t, g) for g in golds) for t in (outer, inner)):
        return True
    forms = {form(answer, question) for form in _FORMS} - {None, answer}
    return any(
        any(equal(form, gold) for form in forms)
        or _of_letters(answer, gold, question, equal)
        or _is_shorter(answer, gold, question, equal)
        or _same_time(answer, gold)
        or _lies_in(answer, gold, question, equal)
        or (_is_unordered(gold, question) and _same_items(answer, gold, equal))
        for gold in golds
    )


def _same_count(answer: str, gold: str) -> bool:
    """Whether both are one whole number, in words or in digits."""
    given, wanted = (in_digits(text.strip(" .").casefold()) for text in (answer, gold))
    return given.isdecimal() and given == wanted


# ---- an answer in another form; None or itself where it has none
def _untitled(answer: str, question: str) -> str | None:
    title = _TITLE.match(answer)
    is_name = title and _WHO.search(question) and " " in answer[title.end() :].strip()
    return answer[title.end() :] if is_name else None


def _without_kind(answer: str, question: str) -> str | None:
    kind = _KIND.search(question)
    if not kind or len(_WH.findall(question)) != 1:
        return None
    word = kind[1].casefold()
    front = rf"\A\W*(?:{_FRONT.get(word, word)})\b\.?\s+(?=\w)"
    behind = rf"|(?<=\w)\s+{word}\W*\Z" if word in _BEHIND else ""
    return re.sub(front + behind, "", answer, count=1, flags=re.IGNORECASE)


def _without_birth(answer: str, question: str) -> str | None:
    born = _BORN.search(answer)
    return (
        answer[: born.start()]
        if born and not re.search(r"\b(?:maiden|birth|born|when)\b", question)
        else None
    )


def _in_year(answer: str, question: str) -> str | None:
    year = re.fullmatch(r"[Ii]n (?:the year )?(\d{3,4})", answer.strip(" .*"))
    return (
        year[1] if year and re.search(r"\b(?:when|what year|which year)\b", question, re.IGNORECASE) else None
    )


def _formula(answer: str, question: str) -> str | None:
    asks = re.search(r"\b(?:formula|gas|molecule|compound|substance|acid)\b", question, re.IGNORECASE)
    is_formula = asks and "_" in answer and _CHEMICAL.fullmatch(answer[:80].strip())
    return re.sub(r"\\(?:text|mathrm|ce)|[${}_\s]", "", answer) if is_formula else None


def _century(answer: str, question: str) -> str | None:
    def in_digits(century: re.Match) -> str:
        number = _ORDINALS.index(century[1].casefold()) + 1
        return f"{number}{'st nd rd'.split()[number - 1] if number < 4 else 'th'} century"

    return _CENTURY.sub(in_digits, answer) if "century" in question.casefold() else None


def _joined(answer: str, question: str) -> str | None:
    return _INITIALS.sub(lambda initials: initials[0].replace(".", ""), answer)


_FORMS = (_untitled, _without_kind, _without_birth, _in_year, _formula, _century, _joined)


# ---- an answer beside a gold one
def _of_letters(answer: str, gold: str, question: str, equal: Equal) -> bool:
    """The gold answer with its initials, sign or symbol behind: kilogram (kg), Tungsten (W), Oxygen (O2)."""
    letters = _LETTERS.search(answer)
    name = answer[: letters.start()] if letters else ""
    if not letters or not any(equal(form, gold) for form in (name, _without_kind(name, question) or name)):
        return False
    sign, two = letters.groups()
    if not two and ((len(sign) > 1 and sign == _initials(gold)) or same_unit(sign, gold)):
        return True
    if not _ASKED_ELEMENT.search(question) or (two and sign not in _IN_PAIRS):
        return False
    return _stored("element.symbol", gold) == sign


def _stored(kind: str, name: str) -> str:
    """What the corpus says of a name; "" where it knows none."""
    from agentkit.tools.corpus import Corpus

    query = "SELECT value FROM fact JOIN kind ON kind.id = kind WHERE name = ? AND entity = ? COLLATE NOCASE"
    rows = Corpus.open().rows(query, kind, name.strip().encode("utf-8", "replace").decode())
    return str(rows[0][0]) if rows else ""


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split() if word[0].isupper())


def _is_shorter(answer: str, gold: str, question: str, equal: Equal) -> bool:
    """The name of a person with initials, of a country or an organisation: W. A. Mozart, the USA, NATO."""
    if _ASKED_FORM.search(question):
        return False
    if _ASKED_COUNTRY.search(question) and (names := _other_names(gold)):
        named = any(re.search(rf"\b{name}\b", question, re.IGNORECASE * (len(name) > 2)) for name in names)
        return not named and not answer.islower() and any(equal(answer, name) for name in names)
    given, wanted = answer.strip(" .").split(), gold.strip(" .").split()
    letters = "".join(given).replace(".", "")
    if len(letters) > 2 and letters == _initials(gold) and _is_name(wanted) and _ASKED_BODY.search(question):
        return letters.casefold() not in question.casefold()
    if not 1 < len(given) == len(wanted) < 6 or not _is_name(given) or not _is_name(wanted):
        return False
    if not _WHO.search(question) or wanted[-1] in question:
        return False
    same = [equal(one, other) for one, other in zip(given, wanted, strict=True)]
    short = [_is_initial(one, other) for one, other in zip(given, wanted, strict=True)]
    middle = [_is_initial(other, one) for one, other in zip(given, wanted, strict=True)]
    first = same[0] or (short[0] and len(same) > 2)
    return first and same[-1] and len(wanted[-1]) > 2 and all(map(max, same, short, [False, *middle[1:]]))


def _other_names(country: str) -> list[str]:
    """All names of a country that has several; an empty list for any other."""
    country = country.casefold().strip(" .").removeprefix("the ")
    return next((names for names in _COUNTRIES if country in map(str.casefold, names)), [])


def _is_name(words: Sequence[str]) -> bool:
    return all(map(_NAMES.fullmatch, words))


def _is_initial(word: str, name: str) -> bool:
    """Whether a word is the first letter of a name; II is none."""
    letter = _INITIAL.fullmatch(word)
    return bool(letter and _NAME.match(name)) and letter[1] == name[0]


def _same_time(answer: str, gold: str) -> bool:
    minutes = _minutes(answer)
    return minutes is not None and minutes == _minutes(gold)


def _minutes(text: str) -> int | None:
    """Minutes since midnight of a time of day that is no other: 9 a.m., 3:45 PM, 15:45; not 3:45."""
    time = _TIME.fullmatch(text.strip())
    if not time or int(time[2] or 0) > 59:
        return None
    hours, minutes, half = int(time[1]), int(time[2] or 0), (time[3] or "").casefold()
    if half:
        return 60 * (hours % 12 + 12 * (half == "p")) + minutes if 1 <= hours <= 12 else None
    return 60 * hours + minutes if time[2] and 13 <= hours <= 23 else None


def _lies_in(answer: str, gold: str, question: str, equal: Equal) -> bool:
    """A city with its country, where the largest of that name lies and no other place is asked about."""
    city, _, country = answer.rpartition(", ")
    if not city or not _CITY.search(question) or not equal(city, gold):
        return False
    if re.search(r"\b(?:in|of) (?:the )?[A-Z]", question.replace(country.strip(" ."), "")):
        return False
    lies_in = _stored("city.country", gold)
    return bool(lies_in) and equal(country, lies_in)


def _is_unordered(gold: str, question: str) -> bool:
    plural = _PLURAL.search(question)
    return (
        bool(plural)
        and not _IN_ORDER.search(question)
        and ("," in gold or bool(plural["number"] or plural["pair"]))
    )


def _same_items(answer: str, gold: str, equal: Equal) -> bool:
    """Whether two lists of names hold the same ones."""
    items, left = _ITEM.split(answer.strip(" .")), _ITEM.split(gold.strip(" ."))
    if not 1 < len(items) == len(left) < 20 or re.search(r"\d", answer + gold):
        return False
    if any(len(item) < 2 or item.casefold() in _NO_ITEM for item in left):
        return False
    for item in items:
        same = next((other for other in left if equal(item, other)), None)
        if same is None:
            return False
        left.remove(same)
    return True
