"""The words that may stand around an answer: those of data/frames.txt, of the question, and units.

Leaves out in which order they may stand there (frames).
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from agentkit.verifiers.numbers import asked_unit, converts, is_unit, same_unit

SIGNS, COMMAS, DASHES = frozenset(".()[]\"'“”‘’#!*…。（）「」｡।"), frozenset(",;，、；"), frozenset("-–—")
WORD = re.compile(r"[^\W\d_]+")
PHRASE = 6  # words of the longest phrase in data/frames.txt
LONGEST = 10  # characters of its longest word where a script writes no spaces
_LETTER = r"(?:[^\W\d_]|[\u0300-\u036f\u0591-\u06ed\u0900-\u0dff\u0e31-\u0e4e\u3099])"
_TOKEN = re.compile(rf"{_LETTER}+(?:[-'’.]{_LETTER}+)*|\d+(?:[.,:/]\d+)*%?|\S")
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u9fff]")
_HOW_MANY = re.compile(  # what a question asks to count, up to five words of it
    r"\b(?:how (?:many|much)|(?:number|amount) of|combien de|wie ?viele?|cu[aá]nt[oa]s|quant[aei]s?"
    r"|quantos|сколько)\s+((?:[^\W\d_]+[^\S\n]*){1,5})|(?:何|幾|几|多少)([^\W\d_]{1,6})",
    re.IGNORECASE,
)
_MEASURED_IN = re.compile(
    r"\bin\s+(?!(?:the|an?|his|her|its|their|each|every|this|that|one|two|three)\b)((?:[^\W\d_]+[^\S\n]*){1,5})",
    re.IGNORECASE,
)
_HOW_OLD = re.compile(
    r"\A(?!.*\b(?:months|weeks|days)\b).*\bhow old (?:is|was|are|were|will)\b", re.I | re.DOTALL
)
_COMPOUND = re.compile(r"\bin\s+[^\W\d_]{1,20}(?:[/^·²³]|-(?=[^\W\d_]))")  # in km/h
JOINER = re.compile(r"\b(?:and|or|plus|but|und|oder|et|ou|y|e|o|и|или)\b|[和或と、]", re.IGNORECASE)
RATES = frozenset("a an each every".split())
_NO_THING = r"(?:do|does|did|are|is|was|were|will|would|can|could|has|have|more|fewer|stay|remain)\b"
_ENDINGS = (  # the end of an English word, and what stands there in its other forms
    ("", "s"), ("", "'s"), ("e?", "ed"), ("e?", "ing"), ("(s|x|z|ch|sh)", r"\1es"),
    ("([^aeiou])y", r"\1ies"), ("([^aeiou])y", r"\1ied"),
    ("([^aeiou][aeiou])([bdglmnprt])", r"\1\2\2ed"), ("([^aeiou][aeiou])([bdglmnprt])", r"\1\2\2ing"),
)  # fmt: skip

_QUANTITY = {  # what a question asks for without its unit, by a unit of its dimension
    "s": r"how (?:much )?long(?:er)?\b.*\b(?:takes?|took|last\w*|until|before)\b"
    r"|\bhow much (?:\w+ )?time\b|\bthe (?:\w+ )?time\b",
    "m": r"how (?:much )?(?:tall|high|far|deep|wide)(?:er)?\b"
    r"|\bthe (?:\w+ )?(?:distance|height|width|depth)\b",
    "kg": r"how (?:much )?heav(?:y|ier)\b|how much .*\bweighs?\b|\bthe (?:\w+ )?(?:weight|mass)\b",
}
_AMOUNT_OF = re.compile(
    r"\b(?:how much (?!(?:more|less|does|do|did|is)\b)"
    r"|(?:find|calculate|compute|determine|what is) the (?:difference in the )?amount of )\w"
)
_GIVEN = re.compile(r"\d\s?-?(?:(?:square|cubic)\s)?([^\W\d_]+(?:/[^\W\d_]+)?)")

Token = tuple[str, int, int]  # a word, number, mask or sign of a text, in lower case, and where it stands


@lru_cache(maxsize=1)
def sections() -> dict[str, frozenset[str]]:
    """The words of data/frames.txt by what they do; "all" of them together."""
    text = Path(__file__).with_name("data").joinpath("frames.txt").read_text(encoding="utf-8").casefold()
    by_name: dict[str, frozenset[str]] = {}
    for section in re.split(r"^\[", text, flags=re.MULTILINE)[1:]:
        name, _, lines = section.partition("]")
        words = frozenset(word.replace("_", " ") for word in lines.partition("\n")[2].split())
        if name in ("working", "school"):
            words = frozenset(form for word in words for form in _forms(word))
        by_name[name] = words
    statement = (
        "function",
        "loose",
        "same",
        "about",
        "greeting",
        "chat",
        "contrary",
    )  # with tokens of their own
    frames = (words for name, words in by_name.items() if name not in statement)
    subject = by_name["subject"] | by_name["school"]
    polite = by_name["greeting"] | by_name["chat"]
    return by_name | {"all": frozenset().union(*frames), "subject": subject, "polite": polite}


def _forms(word: str) -> set[str]:
    """A word with its English endings; made forwards, so that "not" is no form of "note"."""
    return {word, *(re.sub(f"{end}$", form, word, count=1) for end, form in _ENDINGS)}


@lru_cache(maxsize=256)
def _asked(question: str) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """The words of a question that can neither deny nor change a number, and its pairs of words."""
    words = re.findall(rf"{_LETTER}+(?:[-'’]{_LETTER}+)*", question)
    words = [re.sub("['’]s$", "", word.casefold()) for word in words]
    signs = {"dollars", "dollar"} if re.search(r"\$\d|\\\$", question) else set()
    return frozenset(words) - sections()["twist"] | signs, frozenset(pairwise(words))


def in_question(word: str, following: str, question: str) -> bool:
    """Whether a word is the question's own; one that can change a number only before the same next word."""
    if UNSPACED.search(word):
        return word in question and not any(twist in word for twist in sections()["twist"])
    words, pairs = _asked(question)
    stem = re.sub("['’]s$", "", word)
    forms = {word, stem, f"{stem}s", stem.removesuffix("s"), f"{stem}ed", stem.removesuffix("ed")}
    if words & forms or (word, following) in pairs:
        return True
    asked = rf"\b(?:find|determine|compute|calculate|give|state|what is) the {re.escape(word)}\b"
    return bool(re.search(asked, question, re.IGNORECASE))


def asked_for(words: str, question: str) -> bool:
    """Whether words behind a number are what the question asks to count or to measure in.

    "How many minutes are two hours?" asks for minutes; without such a phrase any words of its own will do.
    """
    given, bare = _words(words), words.casefold().split()
    if (sought := asked_unit(question)) and is_unit(words.strip()) and not same_unit(words.strip(), sought):
        return False  # not converted
    if not given or bare[0][0] == "/" or JOINER.search(words) or sections()["twist"].intersection(bare):
        return False
    if bare[0] in RATES and " ".join(bare) not in question.casefold().rpartition("how ")[2]:
        return False  # 100 a day
    counted, measured = (_asked_words(pattern, question) for pattern in (_HOW_MANY, _MEASURED_IN))
    measured = [phrase for phrase in measured if not phrase[:1].isupper()]  # in April
    if any(is_unit(phrase.split()[0]) for phrase in counted):
        measured = []  # how many hours, shown in minutes
    elif is_unit(words.strip()) and not counted:
        compound = _COMPOUND.search(question) or any(" per " in f" {phrase} " for phrase in measured)
        if compound and "per" not in given:
            return False
    if is_measured(words.strip(), question):
        return True
    if asked := [set(_words(phrase)) for phrase in (*counted, *measured)]:
        return any(set(given) <= phrase for phrase in asked)
    return "per" not in given and all(in_question(word, "", question) for word in given)


def is_measured(unit: str, question: str) -> bool:
    """Whether a unit is that of the quantity a question asks for, and the only one of its kind there."""
    asking = re.split(r"[.!?]\s+(?=\S)", question.strip())[-1].casefold()
    of = next((base for base, asks in _QUANTITY.items() if re.search(asks, asking)), "")
    scales = {scale[-1] for scale in re.findall(r"\d\s?°\s?[CF]", question)}
    if re.fullmatch(r"°\s?[CF]", unit) and scales == {unit[-1]}:
        return True
    given = {part for words in _GIVEN.findall(question) for part in words.split("/")}
    alike = {part for part in given if converts(part, unit)}
    others = {part for part in given - alike if is_unit(part)}
    is_amount = not others and _AMOUNT_OF.search(asking)
    fits = converts(unit, of) if of else is_amount
    return bool(fits and alike) and all(same_unit(part, unit) for part in alike)


def is_age(words: str, question: str) -> bool:
    """Whether words behind a number are years of the age that is asked for."""
    clauses = re.findall(r"when \w+ \w+", question.casefold())
    said = " ".join(words.casefold().rstrip(".").split())
    return bool(_HOW_OLD.search(question)) and said in (
        "years",
        "years old",
        *(f"years old {c}" for c in clauses),
    )


def _asked_words(pattern: re.Pattern, question: str) -> list[str]:
    found = ("".join(match.groups("")) for match in pattern.finditer(question))
    return [phrase for phrase in found if not re.match(_NO_THING, phrase)]


def _words(text: str) -> list[str]:
    """Words of a text, without a plural's s; each character where a script writes no spaces."""
    words = re.findall(rf"{_LETTER}+", text.casefold().replace("°", " degrees "))
    return [c for word in words for c in (word if UNSPACED.search(word) else [word.removesuffix("s")])]


def is_counted(words: str, question: str) -> bool:
    """Whether words behind a number are a unit that Pint knows or things that the question counts."""
    unit = re.sub(r"\s*([/^])\s*", r"\1", words.strip().lstrip("/"))
    if unit in ("a", "as", "at", "are"):
        return False
    if is_unit(unit) and (len(unit) > 1 or unit in "mgstdhlLNJWVAKC"):  # k, c and e are constants to Pint
        return True
    things = sections()["unit"] if question else sections()["unit"] | sections()["thing"]
    parts = [part.casefold() for part in WORD.findall(words)]
    fits = [
        part in things or (len(part) > 1 and is_unit(part)) or in_question(part, "", question)
        for part in parts
    ]
    powers = sections()["square"]
    return any(fits) and all(fit or part in powers for fit, part in zip(fits, parts, strict=True))


def tokens_of(text: str, known: frozenset[str] | None = None) -> list[Token]:
    """The tokens of a text without signs, a known phrase as one: those of data/frames.txt."""
    single = [token for match in _TOKEN.finditer(text) for token in _split(match[0], match.start())]
    known = sections()["all"] if known is None else known
    tokens, position, begins = [], 0, _begins(known)
    while position < len(single):
        longest = min(PHRASE, len(single) - position) if single[position][0] in begins else 1
        phrases = (single[position : position + count] for count in range(longest, 1, -1))
        phrase = next((phrase for phrase in phrases if _text(phrase) in known), [single[position]])
        tokens.append((_text(phrase), phrase[0][1], phrase[-1][2]))
        position += len(phrase)
    return [token for token in tokens if token[0] not in SIGNS]


@lru_cache(maxsize=4)
def _begins(known: frozenset[str]) -> frozenset[str]:
    """The first words of phrases."""
    return frozenset(_TOKEN.match(phrase)[0] for phrase in known if len(phrase) > 1)


def _text(phrase: list[Token]) -> str:
    return " ".join(word for word, _, _ in phrase)


def _split(word: str, start: int) -> Iterator[Token]:
    """A token; where a script writes no spaces, its longest known pieces."""
    known, position = sections()["all"], 0
    while position < len(word):
        length = len(word) - position
        if not word.isascii() and UNSPACED.search(word):
            lengths = range(min(LONGEST, length), 1, -1)
            length = next((n for n in lengths if word[position : position + n] in known), 1)
        end = position + length
        yield word[position:end].casefold(), start + position, start + end
        position = end
