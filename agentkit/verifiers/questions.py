r"""What a question asks, by its words: those of the clause that asks, what is counted, who does it.

Words are compared without their endings, in families of data/frames.txt. Leaves out what an answer says
(statements) and grammar.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import dropwhile, takewhile
from pathlib import Path

from agentkit.verifiers.masks import MARKUP, STYLE
from agentkit.verifiers.words import COMMAS, UNSPACED, sections, tokens_of

_ASKS = re.compile(
    r"\b(?:how|what|which|who|whom|whose|where|when|find|determine|compute|calculate|evaluate|solve|simplify"
    r"|factor|name|write|give|state|convert|express|wie|welche\w*|wer|wo|quel\w*|combien|qui|qué|cuánt[oa]s?"
    r"|cuál\w*|quién\w*|dónde|quant[oie]|qual\w*|chi|quando|сколько|как\w*|кто)\b"
    r"|(?:^|, )was\b|(?<![^,，、])[^,，、]*(?:多少|[几幾什哪谁何誰몇]|どこ|いくつ|무엇)",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(
    r"[,;:]\s|\s(?:if|when|given that|assuming|wenn|si|falls)\s|\(A\)|\bA\)", re.IGNORECASE
)
_OPTIONS = re.compile(
    r"(?<!\w)\(?[Aa][).:]\s*\S.*?(?<!\w)\(?[Bb][).:]\s.*|\b\w+ (?:or|oder|ou|o) \w+", re.DOTALL
)
_HOW_MANY = re.compile(
    r"\b(?:how (?:many|much)|wie ?viele?|combien d[e']|cuánt[oa]s|quant[aei]|сколько)\s(\w+)"
    r"|(?:多少|[几幾何])([^\W\d_]{1,4})",
    re.IGNORECASE,
)
_COMPARES = re.compile(r"\bhow (?:many|much) (more|less|fewer|\w+er)\b", re.IGNORECASE)
_SOUGHT = re.compile(
    r"\b(?:find|determine|compute|calculate|give|state|what(?: is)?|which) (?:the )?(\w+)", re.IGNORECASE
)
_WHERE = re.compile(
    r"\b(in|at|on|to|from|by|after|before|for|with) (?:what|which|whom|how many)\b", re.IGNORECASE
)
_PRESENT = re.compile(r"\b(?:is|are|does|do|has|have|will|ist|sind|est|es|son)\b", re.IGNORECASE)
_PAST = re.compile(r"\b(?:did|was|were|had|would)\b", re.IGNORECASE)
PREPOSITIONS = frozenset(
    "and in on at of for to with from by through between than over under into as about before after".split()
)
_DOES = re.compile(
    r"\b(?:[Ww]ho|(?:[Ww]hat|[Ww]hich) [a-z]+) ([a-z]{3,}) (?=(?:the|an?) |[A-Z\d\"'‘])"
)  # Who wrote the
_DATES = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july"
    " august september october november december".split()
)
PRONOUN = re.compile(r"\b(?:he|she|it|they|you|we|i|each|il|elle|ils|er|sie|es)\b", re.IGNORECASE)
_POSSESSIVE = re.compile(r"\b(?:his|her|its|their|your|my|our)\b", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]\Z")
_AUXILIARY = frozenset("is are was were do does did can will would ist sind est".split())
OPERATORS = {
    "×": "*",
    "·": "*",
    "times": "*",
    "multiplied by": "*",
    "plus": "+",
    "minus": "-",
    "−": "-",
    "÷": "/",
}
OPERATORS |= {"divided by": "/", **{sign: sign for sign in "*+-/^"}}
_WH = re.compile(
    r"how|many|much|viele?|多|少|[几幾什哪谁何誰]|what|which|who|find|determine|comput|calculat|evaluat|name|giv|state|where|when|simplify|convert|expres|wie|welch\w*|wer|quel\w*|qué|cuánt\w*|cuál\w*|quién\w*|combien|qui"
)
SIGNS = frozenset("*+-/")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question's words by what they do, each without its ending."""

    words: tuple[str, ...]
    clause: frozenset[str]  # of the clause that asks
    needed: frozenset[str]  # of these what a statement must have one of
    counted: frozenset[str]  # what the question counts
    subject: frozenset[str]  # what the question is about
    names: tuple[str, ...]  # those of the question, in order
    has_pronoun: bool
    is_whose: bool
    compares: str  # "more" in "how many more"
    preposition: str  # in front of what is asked: "after how many days"
    order: tuple[str, ...]  # the words of the clause that asks
    numbers: frozenset[tuple[str, str]]  # its numbers, each behind what it counts
    is_present: bool
    is_when: bool
    beside: frozenset[tuple[str, str, str]]  # its numbers, with the last word in front and the next behind
    sought: frozenset[str]  # what is asked for by name: "Find the inverse", "What percentage"
    agent: str  # the verb that the asked thing is the subject of: "Who wrote"
    asking: tuple[str, ...]  # the words of the sentence that asks
    doing: tuple[
        str, frozenset[str]
    ]  # the verb that the asked thing does, and to what: "Who wrote the Iliad"
    done: tuple[str, str]  # who does what to the asked thing: "Who did Brutus kill"
    is_how: bool  # how many, how long


@lru_cache(maxsize=256)
def asked(question: str) -> Asked:
    whole = _OPTIONS.sub(" ", question)
    asking, clause, before = _clauses(whole)
    words = [word for word in _lexemes(whole) if not _WH.fullmatch(word)]
    order, content, counted = tuple(_lexemes(clause)), _content(clause), _counted(clause)
    if re.match(r"how much (?:is|are)\b(?! left)", clause, re.IGNORECASE):
        content, words = [*content, "cost"], [*words, "cost"]
    names = _names(whole)
    has_subject = bool(PRONOUN.search(clause))
    is_short = not has_subject and len(set(content) - counted) < 2  # How many stay?
    return Asked(
        words=tuple(words),
        clause=frozenset((*content, *(_content(before) if is_short else ()), *SIGNS.intersection(order))),
        needed=frozenset(content) - counted - _described(clause),
        counted=counted.intersection(content),
        subject=frozenset((*_told_first(whole), *names[:1])),
        names=names,
        has_pronoun=has_subject,
        is_whose=bool(_POSSESSIVE.search(clause)),
        compares=(_COMPARES.findall(clause.casefold()) or [""])[0],
        preposition=(_WHERE.findall(asking.casefold()) or [""])[0],
        order=order,
        numbers=frozenset((beside(order, place)[1], word) for place, word in _numbers(order)),
        is_when=bool(re.search(r"\b(?:when|year|date|how)\b", clause, re.IGNORECASE)),
        is_present=bool(_PRESENT.search(clause)) and not _PAST.search(clause),
        beside=frozenset((word, *beside(words, place)) for place, word in _numbers(words)),
        sought=frozenset(map(lexeme, _SOUGHT.findall(asking))),
        agent=_agent(clause),
        asking=tuple(_lexemes(asking)),
        doing=_doing(clause),
        done=_done(order),
        is_how=bool(re.search(r"\b(?:how|number|total|calculate)\b", clause, re.IGNORECASE)),
    )


def _clauses(whole: str) -> tuple[str, str, str]:
    """The sentence that asks, the clause of it that does, and what stands in front of that."""
    parts = [part for part in _sentences(whole) if part.strip()] or [whole]
    asking = next((part for part in reversed(parts) if _ASKS.search(part)), parts[-1])
    start = _ASKS.search(asking)
    clause = asking[start.start() if start else 0 :]
    if end := _CLAUSE_END.search(clause, 1):
        clause = clause[: end.start()] or clause
    return asking, clause, whole[: whole.find(clause)]


def _sentences(whole: str) -> list[str]:
    return re.split(
        r"(?<!\bMr)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bMrs)(?<!\bvs)[.;!?]+(?=\s|\Z)|[。？！；]|\n", whole
    )


def _described(clause: str) -> set[str]:
    """Words that only say of what: the Australia of "the capital of Australia"."""
    behind = "of"
    if re.match(r"(?:what|which|who|was|wer|quelle?|qui)\b", clause, re.IGNORECASE):
        behind = "of|on|in|at|from"
    return {lexeme(word) for word in re.findall(rf"\b(?:{behind}) (?:(?:the|an?) )?(\w+)", clause)}


def _told_first(whole: str) -> list[str]:
    """The first words of a question that say something."""
    first = next((part for part in _sentences(whole) if part.strip()), "")
    return list(takewhile(says, dropwhile(lambda form: not says(form), _lexemes(first))))[:2]


def _names(whole: str) -> tuple[str, ...]:
    forms = [lexeme(word) for word in re.findall(r"\b[A-Z][a-z]+", whole)]
    no_names = sections()["working"] | _DATES
    return tuple(form for form in forms if says(form) and not _WH.fullmatch(form) and form not in no_names)


def _doing(clause: str) -> tuple[str, frozenset[str]]:
    match = _DOES.search(clause)
    if not match or match[1] in silent_words():
        return "", frozenset()
    rest = takewhile(lambda form: form not in PREPOSITIONS, _lexemes(clause[match.end() :]))
    return lexeme(match[1]), frozenset(form for form in rest if says(form) or form[:1].isdigit())


def _done(order: tuple[str, ...]) -> tuple[str, str]:
    *_, start = 0, *(place for place, form in enumerate(order, 1) if form in ("did", "does", "do"))
    rest = takewhile(lambda form: form not in PREPOSITIONS, order[start:] if start else ())
    *_, subject, verb = "", "", *(form for form in rest if form not in ("the", "a", "an"))
    return subject, verb if subject else ""


def _agent(clause: str) -> str:
    agent = re.match(r"(?:who|what|which (?!of\b)\w+|wer|qui|quién)\s+(\w+)", clause, re.IGNORECASE)
    verb = lexeme(agent[1]) if agent else ""
    return "" if verb in _AUXILIARY else verb


def _numbers(words: Sequence[str]) -> list[tuple[int, str]]:
    return [(place, word) for place, word in enumerate(words) if word[:1].isdigit()]


def _content(text: str) -> list[str]:
    """The words of a text that say something."""
    return [word for word in _lexemes(text) if says(word) and not _WH.fullmatch(word)]


def beside(words: list[str], position: int) -> tuple[str, str]:
    """The nearest words that say something on either side."""

    def nearest(side: Iterable[str]) -> str:
        return next((word for word in side if word not in silent_words() and word not in COMMAS), "")

    return nearest(reversed(words[:position])), nearest(words[position + 1 :])


def _counted(clause: str) -> set[str]:
    """What a clause asks to count: "How many stay?" names nothing."""
    words = [word for match in _HOW_MANY.finditer(clause) for word in match.groups() if word]
    words = [part for word in words for part in (word if UNSPACED.search(word) else [word])]
    return {
        lexeme(word)
        for word in words
        if not word.isascii() or word[-1] == "s" or word[0].isupper() or word in sections()["thing"]
    }


@lru_cache(maxsize=1)
def _families() -> dict[str, str]:
    """Each word of a line of [same] in data/frames.txt to the line's first."""
    text = Path(__file__).with_name("data").joinpath("frames.txt").read_text(encoding="utf-8")
    lines = text.partition("[same]")[2].partition("\n[")[0].splitlines()[1:]
    return {word: line.split()[0] for line in lines for word in line.split()}


@lru_cache(maxsize=1)
def contraries() -> list[frozenset[str]]:
    """The lines of [contrary] in data/frames.txt."""
    text = Path(__file__).with_name("data").joinpath("frames.txt").read_text(encoding="utf-8")
    lines = text.partition("[contrary]")[2].partition("\n[")[0].splitlines()[1:]
    return [frozenset(map(lexeme, line.split())) for line in lines if line]


@lru_cache(maxsize=1)
def silent_words() -> frozenset[str]:
    """Words that say nothing of the answer by themselves."""
    known = sections()
    silent = known["function"] | known["lead"] | known["link"] | known["closed"] | known["complement"]
    return frozenset(
        word for word in silent if len(word) > 1 or not _LETTER.match(word) or word in "aàyéèoei"
    ) - (known["twist"] | known["loose"])


@lru_cache(maxsize=1)
def phrases_of() -> frozenset[str]:
    """Those phrases of them whose words would say something."""
    known = sections()
    phrases = (word for name in ("function", "lead", "link", "twist") for word in known[name] if " " in word)
    return frozenset(phrase for phrase in phrases if not silent_words().issuperset(phrase.split()))


@lru_cache(maxsize=4096)
def lexeme(word: str) -> str:
    """A word without its ending, one of its family; words that can change a number stay as they are."""
    word = re.sub("['’]s?$", "", word.casefold())
    if word in silent_words() or _WH.fullmatch(word):
        return word
    if word in OPERATORS:
        return OPERATORS[word]
    if word in sections()["twist"] or not word[:1].isalpha():
        return word
    if word in _families():
        return _families()[word]
    word = re.sub(r"(?<=[^\W\d_]{2})(?:ies|ied)\Z", "y", word)
    stem = re.sub(r"(?<=[^\W\d_]{3})(?:ing|ed|es|s)\Z|(?<=[^\W\d_]{4})(?:en|n)\Z", "", word)
    stem = re.sub(r"(?<=[^\W\d_]{3})e\Z", "", stem)
    stem = re.sub(r"([^\W\d_aeiou])\1\Z", r"\1", stem)
    return word if stem in sections()["twist"] else _families().get(stem, stem)


def _lexemes(text: str) -> list[str]:
    text = re.sub(r"(?<=[^\W\d_])-(?=[^\W\d_])", " ", text)
    text = MARKUP.sub("", STYLE.sub(" ", text)).replace("*", "×")
    return [lexeme(word) for word, _, _ in tokens_of(text, phrases_of())]


def says(form: str) -> bool:
    """Whether a word says something by itself."""
    return (
        form[:1].isalpha()
        and form not in silent_words()
        and form not in sections()["answer"]
        and (len(form) > 1 or not form.isascii())
    )
