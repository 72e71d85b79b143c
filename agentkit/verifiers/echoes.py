r"""Whether a sentence around a box only repeats its question: "Janet makes $\boxed{18}$ dollars every day."

A box marks its answer itself, so that of the words around it no grammar is asked, as statements.py does of
sentences without one: each must be the question's own or say nothing of an answer. Words that may deny,
compare, multiply or condition it (more, after, if, half) count only beside a word that they have in the
sentence that asks. Leaves out which sentence is read, and the unit (frames).
"""

import re
from functools import lru_cache
from itertools import pairwise

from agentkit.verifiers.masks import FORMULA, IS_BOX, IS_MASK, MARKUP, STYLE, compact
from agentkit.verifiers.questions import (
    PREPOSITIONS,
    Asked,
    asked,
    contraries,
    lexeme,
    phrases_of,
    says,
    silent_words,
)
from agentkit.verifiers.questions import SIGNS as SUMS
from agentkit.verifiers.statements import GENDERS, explains, has_role, is_asked_of, is_given
from agentkit.verifiers.words import COMMAS, RATES, sections, tokens_of
from agentkit.verifiers.words import SIGNS as POINTS

_OPEN = re.compile(
    r"\b(?:if|suppose|assum\w+|unless|were|would|wh?ether|say|says|said|claims?)\b", re.IGNORECASE
)

_SUPPOSES = re.compile(
    r"""
      \A\W*(?:(?:So|Thus|Hence|Then|Therefore),?\s)?
      (?i:is|are|does|do|did|can|could|will|would|was|were|had|have|has|should|may|might)
      \s(?:it|that|this|there|he|she|they|the|an?|you|we|I)\b
    | \b(?i:it\s(?:can|may|could|might)\sbe|what\sif|will\sbecome|(?:was|were|is|are)\sto
      |(?:had|were)\sit|has\sit\sthat)\b
    | [❌✗✘👎⁉؟] | ~~ | \\not(?![a-z]) | 0\$?(?:st|nd|rd|th)\b
    """,
    re.VERBOSE,
)
_CLAUSES = re.compile(r"[,;]\s*(?:so|thus|hence|therefore)\b")
_ORDINAL = re.compile(r"\b(second|third|fourth|2nd|3rd|4th)[ -](\w+est|most \w+)\b", re.IGNORECASE)
_KIN = re.compile(
    r"(?<!and )\b(?:his|her|their|my) (brothers?|sisters?|wife|husband|friends?|neighbou?rs?|aunt|uncle"
    r"|mother|father"
    r"|mom|dad|sons?|daughters?|cousins?|boss|customers?|teacher|grand\w+)\b",
    re.IGNORECASE,
)
_OF_AMOUNTS = frozenset("of for with by to at".split())
_BEFORE_NOUNS = PREPOSITIONS | frozenset(
    "the a an his her their its my your our and each every that this".split()
)
_DENIALS = frozenset(
    "not no never none neither nor or without except but wrong false incorrect isn't aren't".split()
)
_RATES = RATES | {"per"}
_WHEN = frozenset("now today currently tomorrow yesterday then still already".split())
_PERCENT = frozenset(("percent", "percentage"))
_TIMES = frozenset(map(lexeme, "seconds minutes hours days weeks months years".split()))
_TENSE = frozenset("was were had".split())


def echoes(before: str, after: str, formulas: list[str], question: str, *, marked: bool = True) -> bool:
    """Whether all words around a box are the question's, or say nothing of the answer.

    Around a number that no box marks they must also be about what is asked: of its other sentences only the
    subject, in place of the pronoun that asks.
    """
    beside = before.rstrip(" $\\([{")[-1:] + after.lstrip(" $\\)]}")[:1]
    if not question or re.search(r"[-+−*/^=<>(?？]", beside + after[-2:]) or len(before) + len(after) > 600:
        return False
    said = asked(question)
    is_open = any(lexeme(match[0]) not in said.asking for match in _OPEN.finditer(f"{before} | {after}"))
    before = _concluded(before, said, marked=marked)
    front, back = (_words(text) for text in (before, after))
    told = {form for form in map(lexeme, front + back) if says(form)}
    is_alone = not told and marked  # The value is \boxed{5}
    if (
        is_open
        or not (is_alone or told & (said.clause | said.counted or {*said.asking}))
        or not _may_precede(front, said)
    ):
        return False
    if not front and back[:1] and back[0] in COMMAS:
        return False  # \boxed{Paris}, Rome, Oslo
    words = [*front, "", *back, ""]
    names = {word.casefold() for word in re.findall(r"\b[A-Z][\w'’]*", f"{before} | {after}")}
    nouns = True  # whether a word of the question's other sentences may stand here, as a noun does
    for place, word in enumerate(words):
        form = lexeme(word)
        is_outside = (says(form) or (form in SUMS and word.isalpha())) and form not in said.asking
        if word and not _is_echo(words, place, len(front), said, formulas, question):
            return False
        if is_outside and not (nouns or word in names):
            return False
        if not marked and not _is_about(words, place, len(front), said, is_outside=is_outside):
            return False
        if is_outside and place == len(front) - 1 and word not in names:
            return False  # and her brother 5
        nouns = is_outside or word in _BEFORE_NOUNS or (word in COMMAS and place < len(front))
    return _is_counted(back, said, marked=marked) and (marked or _compares_alike(front, back, said))


@lru_cache(maxsize=64)
def is_otherwise(sentence: str, question: str) -> bool:
    """Whether a sentence asks or supposes, or is of another person, time or quantity than is asked about."""
    if not question:
        return False
    sentence = IS_MASK.sub("0", _CLAUSES.split(sentence)[-1])
    said, words = asked(question), _words(sentence)
    ordinal = _ORDINAL.search(question)
    drops = ordinal and ordinal[2] in sentence and ordinal[1].casefold() not in sentence.casefold()
    if drops or _SUPPOSES.search(sentence) or ("one of the" in sentence and "one of" not in question):
        return True
    forms, asking = {*map(lexeme, words)}, {*said.asking}
    persons = (word for word in words if any(word in own for own in GENDERS))
    if not all(is_asked_of(word, said) for word in persons):
        return True
    is_one = asking & {"he", "she", *said.names} and asking.isdisjoint(("and", "they", "their", "them"))
    if words[:1] == ["they"] and is_one:
        return True
    if re.search(r"\b(?:for each|each of) (?:them|us|you|one)\b", sentence) and "each" not in said.words:
        return True
    if said.compares and len(words) > 5 and said.compares not in forms:
        return True
    if "now" in forms and "from" not in forms and not asking.isdisjoint(("from", "ago")):
        return True
    if any(lexeme(kin[1]) not in said.asking for kin in _KIN.finditer(sentence)):
        return True
    return any(
        forms & others - asking and asking & others and not forms & asking & others for others in contraries()
    )


def _is_about(words: list[str], place: int, box: int, said: Asked, *, is_outside: bool) -> bool:
    """Whether a word around a number leaves it what the question asks about."""
    word, form = words[place], lexeme(words[place])
    if any(word in own for own in GENDERS):
        return is_asked_of(word, said)
    if word[:1].isdigit():
        return is_given(word, words[place - 1] if place else "", words[place + 1], said.asking)
    if word in _WHEN or (len(word) == 1 and word.isalpha() and word not in "aiy"):
        return word in said.asking
    if word in COMMAS and place < box:
        return False
    if place == box - 1 and word in PREPOSITIONS - {"of"}:
        lasts = word == "for" and ("long" in said.asking or not said.counted.isdisjoint(_TIMES))
        return lasts or word in said.asking
    if word in ("each", "every"):
        return form in said.asking or place > box
    is_joined = "and" in words[max(place - 1, 0) : place + 2] and form in said.names
    return not is_outside or (said.has_pronoun and (form in said.subject or is_joined))


def _compares_alike(front: list[str], back: list[str], said: Asked) -> bool:
    """Whether a comparison that is asked for is made, of the same two in the same order."""
    if not said.compares:
        return True
    left = iter(said.asking)
    told = [form for form in map(lexeme, front + back) if says(form) and form in said.asking]
    return said.compares in map(lexeme, back) and all(word in left for word in told if word != said.compares)


def echoed(sentence: str, formulas: list[str], question: str) -> str:
    """The one run of words in a sentence that is not its question's, where the rest repeats that; or ""."""
    text = MARKUP.sub("", STYLE.sub(" ", sentence)).strip(" .!\n")
    offers = re.search(r"\bor\b", question)  # of which a sentence may name another
    if not question or offers or len(text) > 600 or re.search(r"[\n:=(`~]", text):
        return ""
    said = asked(question)
    tokens = tokens_of(text, phrases_of())
    told = [form for form in map(lexeme, (word for word, _, _ in tokens)) if says(form)]
    is_twice = any(told.count(form) > max(said.words.count(form), 1) for form in told)
    if len(tokens) < 4 or {*said.asking}.isdisjoint(told) or is_twice:
        return ""
    others = [
        token
        for token in tokens
        if not IS_MASK.match(token[0])
        and (says(lexeme(token[0])) or token[0][:1].isdigit())
        and lexeme(token[0]) not in said.words
    ]
    if not others:
        return ""
    start, end = others[0][1], others[-1][2]
    inside = [token for token in tokens if start <= token[1] < end]
    is_run = all(token in others or token[0] in silent_words() or token[0] in POINTS for token in inside)
    answer = text[start:end].strip(" \"'“”‘’")
    is_word = re.search(r"[^\W\d_]{2}", answer) or (said.is_when and re.fullmatch(r"\d{4}", answer))
    before, after = text[:start], text[end:]
    fits = is_run and is_word and stands_for(before, after, question)
    return answer if fits and echoes(before, after, formulas, question) else ""


def stands_for(before: str, after: str, question: str) -> bool:
    """Whether words stand in a sentence where what the question asks for does."""
    return has_role(_words(before), _words(after), asked(question))


def _words(text: str) -> list[str]:
    text = re.sub(r"(?<=[^\W\d_])-(?=[^\W\d_])", " ", MARKUP.sub("", STYLE.sub(" ", text)))
    return [word for word, _, _ in tokens_of(text, phrases_of())]


def _concluded(before: str, said: Asked, *, marked: bool) -> str:
    """What stands in front of a box, without the clauses in front of that which only explain it."""
    ends = r"[,;:](?=\s)" + r"|\b(?:so|which|thus|hence|therefore)\b" * marked
    *_, end = None, *re.finditer(ends, before)
    if not end or not explains(before[: end.end()], said) or not re.search(r"\w", before[end.end() :]):
        return before
    told = any(map(says, map(lexeme, _words(before[end.end() :]))))
    return before if end[0] == "which" and told else before[end.end() :]  # which leaves her brother 5


def _may_precede(front: list[str], said: Asked) -> bool:
    """Whether what stands right in front of a box may: "for" where it is asked how long, no "through"."""
    last = front[-1:] and front[-1]
    if not last or last not in PREPOSITIONS or last == said.preposition:
        return True
    return said.is_how and last in _OF_AMOUNTS and said.counted.isdisjoint(map(lexeme, front))


def _is_echo(words: list[str], place: int, box: int, said: Asked, formulas: list[str], question: str) -> bool:
    word = words[place]
    if word in COMMAS or word in POINTS or word == ":":
        return True
    if word[:1].isdigit():
        return word in said.words and abs(place - box) > 1
    if IS_MASK.match(word):
        formula = "" if IS_BOX.match(word) else compact(formulas[ord(word) - FORMULA]).strip("$")
        return bool(formula) and formula in compact(question)
    form = lexeme(word)
    if word in _DENIALS:
        follows = words[place + 1] and rf"\b{re.escape(word)} {re.escape(words[place + 1])}\b"
        return bool(follows and re.search(follows, question.casefold()))
    if word in _TENSE:
        return not said.is_present
    amounts = {word for how, word in pairwise(said.asking) if how in ("much", "many", "what", "which")}
    if word in _PERCENT:
        return not amounts.isdisjoint(_PERCENT)
    if word in sections()["twist"] or word in sections()["loose"]:
        compares = said.compares and (form == said.compares or (word == "than" and "compar" in said.asking))
        return (compares and place > box) or form in amounts or _is_beside(words, place, said)
    return word in silent_words() or word in _RATES or form in said.words


def _is_beside(words: list[str], place: int, said: Asked) -> bool:
    """Whether a word that may change a number has the next, or the last, telling word as there."""
    form, asking = lexeme(words[place]), [word for word in said.asking if _tells(word)]
    pairs = set(pairwise(asking))
    last = [lexeme(word) for word in words[:place] if _tells(word)][-1:]
    following = [lexeme(word) for word in words[place + 1 :] if _tells(word)][:1]
    return any((other, form) in pairs for other in last) or any((form, other) in pairs for other in following)


def _tells(word: str) -> bool:
    return says(lexeme(word)) or word[:1].isdigit() or word in sections()["twist"]


def _is_counted(after: list[str], said: Asked, *, marked: bool) -> bool:
    """Whether what stands behind the box is what the question counts, where it names that."""
    run = []
    for word in after:
        if word in POINTS or word in COMMAS or (word in silent_words() and word != "of"):
            break
        run.append(lexeme(word))
    if len(after) > 1 and after[0] in _RATES:  # 5 a day
        rates = [word for rate, word in pairwise(said.asking) if marked or rate in _RATES]
        if lexeme(after[1]) not in rates:
            return False
    asks = not said.counted or not run or not said.counted.isdisjoint(run)
    return asks or (marked and run[0] in said.asking)
