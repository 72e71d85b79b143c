r"""What a sentence says that its question does not: of "So Sara keeps 52 crayons." the number alone.

A statement repeats the question and has the answer where the question asks. So every word of it must be the
question's own, in the clause that asks, or one of data/frames.txt that says nothing by itself; the one run of
other words is the answer. "Half of 52", "perhaps 52" and "52 or 60" are then answers as they stand, and
wrong; "Her brother keeps 52" is about another of the question's words. Leaves out sentences that say more.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from agentkit.verifiers.masks import DOLLAR, FORMULA, IS_BOX, IS_MASK, MARKUP, STYLE, compact
from agentkit.verifiers.numbers import is_unit
from agentkit.verifiers.questions import (
    OPERATORS,
    PRONOUN,
    SIGNS,
    Asked,
    asked,
    beside,
    lexeme,
    phrases_of,
    says,
    silent_words,
)
from agentkit.verifiers.words import COMMAS, DASHES, RATES, UNSPACED, Token, sections, tokens_of
from agentkit.verifiers.words import SIGNS as POINTS

_CONCLUDES = re.compile(
    r"[,;，]\s*(?:and\s+)?(?:but\s+|yet\s+|which means (?:that )?|which\s+(?=brings|makes|leaves|gives)"
    r"|(?=(?:so|thus|hence|therefore|donc|also|daher|entonces|luego|quindi)\b|所以|因此|因而))|[;；]"
)
_OPEN = re.compile(
    r"\b(?:if|suppose|assum\w+|unless|were|would|wh?ether|say|says|said|claims?|wenn|falls|ob|si|wäre|würde)\b|如果|もし",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"(?:(?:,\s*|(?<!\s)\s+|(?<!\s)\s*\()(?:because|since|denn|weil|car|porque)|(?<=er)\s+than|,\s*as)(?P<said>(?!\w)[^()]*+)\)?\s*\Z",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"(?:,\s*(?=(?:which|who|where|located|\w+ing|founded|built|from|(?:an?|the)(?=\s[a-z])|one of)\b)"
    r"|(?<!\s)\s+\((?=[A-Z][a-z]?\)|\d{4}[-–]\d{4}\)))(?P<said>[^()]*+)\)?\s*\Z"
)
_NOT = re.compile(r",\s*not\s+(?:the\s+)?(?:[A-Z][\w-]*(?:\s[A-Z][\w-]*)?|-?\d[\d.,]*)\s*\Z")
_BY_WORKING = re.compile(
    r"(?P<said>(?:\w{2,}ing|after \w+ing|by|using)\b[^,;:]*?)"
    r"(?:,\s*|\s(?=we (?:find|get|have|see|obtain)\b))(?=\S)",
    re.IGNORECASE,
)
_SAME = re.compile(  # 6/36, which simplifies to 1/6
    r"(?:[\ue100-\uf8ff]|\d+/\d+),? which (?:simplifies to|reduces to|equals|is(?: equal to)?|gives) "
    r"(?=[\ue100-\uf8ff\d])"
)
_WORKING = re.compile(  # 48 - 30 =
    r"(?<![\w.,])(?:[$€£＄]?[\d.,]*\d%?\)?(?:\s?[a-z°]{1,8}(?![a-z]))?\s*[-+*/×·÷−]\s*\(?)+[$€£＄]?[\d.,]*\d%?\)?"
    r"(?:\s?[a-z°]{1,8}(?![a-z]))?\s*=\s*(?=[-−$€£＄(]?\d)"
)
_ARTICLES = frozenset("the a an his her their its all der die das den".split())
_MONEY = frozenset("$€£¥" + DOLLAR)
_AROUND = frozenset("* + - / ^ = < > ≠ ≤ ≥".split())
_VERBS = frozenset("total is are was were have has had est ist es è symbol".split())
_UP_TO_VERB = re.compile(r"[^\d\ue000-\uf8ff]*?\b(?:is|are|was|were|equals)\b")  # and no value before
_SHAPES = frozenset("square cube profit loss".split())
_EACH = frozenset("per pro par por".split())
_BESIDE = frozenset("with for from on".split())
_POLAR = re.compile(
    r"(?P<word>yes|no|ja|nein|oui|non|sí)\b(?:[,.:]?|\s[–—-])\s+(?P<rest>.+)", re.IGNORECASE | re.DOTALL
)
_NEGATION = re.compile(
    r"\b(?:is|are|was|were|does|do|did|can)n['’]t\b|\b(?:not|nicht|kein\w*|ne|pas)\b", re.IGNORECASE
)
_YES = frozenset(("yes", "ja", "oui", "sí"))
_RELATIONS = frozenset("= < > ≠ ≤ ≥ ^ * + /".split())
_VARIABLES = frozenset("bfghjkmnpqrstuvwxz")
_JOINS = frozenset("and by from to * + - /".split())  # in place of a sign
_JOIN = frozenset("to and or bis à y et und o ~ - – —".split())
_AND = frozenset("and then &".split())
_FIRST = re.compile(rf"\w|one|th(?:is|at|ese|ose)|{PRONOUN.pattern}", PRONOUN.flags)  # before a comma
_SMALL = frozenset("in at on of for to with by the a an".split())
GENDERS = [
    frozenset(words.split())
    for words in ("he him his himself he's he'll", "she her hers herself she's she'll")
]
_TOWARDS = frozenset("to through".split())
_BEFORE_NOUN = frozenset("the a an that who which".split())
_ANAPHORS = frozenset("it this that them novel book film movie song play painting poem".split())
_TENSE = frozenset("was were had war waren hatte était étaient era eran".split())


@lru_cache(maxsize=1)
def _explaining() -> frozenset[str]:
    known = sections()
    explaining = known["about"] | known["school"] | known["working"] | silent_words() | {"twice", "times"}
    return explaining - known["loose"]


@lru_cache(maxsize=1)
def _leads() -> frozenset[str]:
    return (sections()["lead"] - sections()["loose"]) | COMMAS


def statements(sentence: str, formulas: list[str], question: str) -> Iterator[str]:
    """What a sentence states as the answer, alone and with words of the question that may belong to it."""
    text = MARKUP.sub("", STYLE.sub(" ", sentence)).rstrip(" .。!！\n")
    is_no_statement = (
        IS_BOX.search(sentence)
        or re.search(r"[?？]\W*\Z", sentence)
        or (_POLAR.fullmatch(text) and not re.match(r"\w+,? (?:since|because)\b", text))
    )
    if not question or is_no_statement or len(text) > 600:
        return
    said, text = asked(question), _concluded(text)
    for part in dict.fromkeys((without_asides(text, said), text)):
        tokens = tokens_of(re.sub(r"(?<=[^\W\d_])-(?=[^\W\d_])", " ", part), phrases_of())
        known = [_is_known(tokens, place, said, formulas, question) for place in range(len(tokens))]
        known = [
            each and not _is_symbol(part, token, said) for each, token in zip(known, tokens, strict=True)
        ]
        if all(known):
            continue
        first, last = _with_mathematics(tokens, known.index(False), len(known) - known[::-1].index(False))
        while first and _is_name(part, tokens[first]) and _is_name(part, tokens[first - 1]):
            first -= 1
        last = _with_unit(part, tokens, first, last, said)
        words = [word for word, _, _ in tokens]
        is_word = len(words[first]) > 1 and words[first].isalpha()
        fits = not _is_second(part, tokens, first)
        fits = fits and (not is_word or has_role(words[:first], words[last:], said))
        if fits and _is_statement(tokens, first, last, said, is_part=part != text):
            yield from _readings(part, tokens, first, last)
        return


def _is_name(text: str, token: Token) -> bool:
    return text[token[1]].isupper() and token[2] - token[1] > 1 and token[0] not in silent_words()


def _is_symbol(text: str, token: Token, said: Asked) -> bool:
    """Whether a capital within the sentence makes a small word a name: Au, He, As."""
    is_short = token[2] - token[1] == 2 and token[0] not in (_leads() | {*said.words})
    return token[1] > 0 and is_short and text[token[1]].isupper()


def _is_second(text: str, tokens: list[Token], first: int) -> bool:
    """Whether an answer is the second of two things: "A and C", "he, then Bob", "One, Bob"."""
    while first > 1 and text[tokens[first - 1][1]].isupper():
        first -= 1  # Group C
    before = [word for word, _, _ in tokens[:first]]
    joined = before[-1:] and before[-1] in _AND
    while before and before[-1] in _AND | COMMAS:
        joined = joined or (len(before) == 2 and bool(_FIRST.fullmatch(before[0])))
        before.pop()
    return bool(joined and before) and (len(before[-1]) == 1 or before[-1] not in _leads())


def _is_unit(word: str) -> bool:
    return len(word) > 1 and word not in silent_words() and is_unit(word)


def _with_unit(text: str, tokens: list[Token], first: int, last: int, said: Asked) -> int:
    """The end of an answer with its unit, what it counts or the rest of a name."""
    if tokens[last - 1][0][-1:].isdigit() and _is_unit(_word(tokens, last)):
        last += 1  # 25 minutes
    is_number = tokens[first][0][:1].isdigit()
    while last < len(tokens) and (
        (is_number and lexeme(tokens[last][0]) in said.counted)
        or (
            text[tokens[last][1]].isupper() and _is_name(text, tokens[last - 1])
        )  # the Pacific Ocean, Mexico City
    ):
        last += 1
    return last


def _with_mathematics(tokens: list[Token], first: int, last: int) -> tuple[int, int]:
    """An answer with the variables, numbers and signs on either side of it."""

    goes_on = [word[:1].isdigit() or word in _AROUND | _VARIABLES | OPERATORS.keys() for word, _, _ in tokens]
    while first and goes_on[first - 1]:
        first -= 1
    while last < len(tokens) and goes_on[last]:
        last += 1
    return first, last


def affirms(sentence: str, formulas: list[str], question: str) -> str:
    """The yes or no that a sentence begins with where the rest repeats the question in that sense."""
    match = _POLAR.fullmatch(MARKUP.sub("", STYLE.sub(" ", sentence)).rstrip(" .!"))
    if not match or not question or _NEGATION.search(question):
        return ""
    rest, negations = _NEGATION.subn(" ", match["rest"])
    sense = negations == (match["word"].casefold() not in _YES)
    return match["word"] if sense and explains(rest, asked(question)) else ""


def describes(sentence: str, formulas: list[str], question: str) -> bool:
    """Whether a sentence behind the answer says more of it, and no other name."""
    if (
        not question
        or not re.match(r"(?:It|He|She|They|This)\b", sentence)
        or not explains(sentence, asked(question))
    ):
        return False
    return next(statements(sentence, formulas, question), "a")[:1].islower()


def _concluded(text: str) -> str:
    """What a sentence concludes with, without the working in front of it."""
    ends = list(_CONCLUDES.finditer(text))
    if ends and not _OPEN.search(text[: ends[-1].start()]):
        text = text[ends[-1].end() :]
    text = _SAME.sub("", _WORKING.sub("", text))
    return re.sub(r"(?<=[A-Za-z]{3}) =(?= )", " is", text)


def without_asides(text: str, said: Asked) -> str:
    """A sentence without the working in front of its answer and what is said behind to explain it."""
    text = _SAME.sub("", _NOT.sub("", text))
    if not said.is_when:
        text = re.sub(
            r"(?<=[A-Za-z]) (?:in|on [A-Z][a-z]+ \d\d?,|on \d\d? [A-Z][a-z]+) (?:1\d|20)\d\d(?=\Z| by\b)",
            "",
            text,
        )
    for aside in (_REASON, _ASIDE):
        match = aside.search(text)
        compares = match and (said.compares or "than" in said.words) and " than" in match[0]
        if match and match.start() and not compares and explains(match["said"], said):
            text = text[: match.start()]
    return without_working(text, said)


def without_working(text: str, said: Asked) -> str:
    """A sentence without the clause of working that it begins with."""
    working = _BY_WORKING.match(text)
    return text[working.end() :] if working and explains(working["said"], said) else text


def explains(text: str, said: Asked) -> bool:
    """Whether words only explain an answer: the question's, names, and those known to."""
    for word, start, _ in tokens_of(text, phrases_of()):
        twists = word in sections()["twist"] or word in sections()["loose"]
        name = text[start].isupper() and not twists and start > 0
        known = name or word in COMMAS | DASHES or word in _AROUND or word in OPERATORS or word[:1].isdigit()
        known = known or IS_MASK.match(word) or word in _explaining() or word in _MONEY
        if not known and (lexeme(word) not in said.words or word in sections()["twist"]):
            return False
    return True


def _is_known(tokens: list[Token], position: int, said: Asked, formulas: list[str], question: str) -> bool:
    word, before, after = tokens[position][0], _word(tokens, position - 1), _word(tokens, position + 1)
    if word in COMMAS or word in POINTS or word == said.preposition:
        return True
    if any(word in own for own in GENDERS):
        return is_asked_of(word, said)
    if word[:1].isdigit():
        words = [lexeme(token) for token, _, _ in tokens]
        left, right = beside(words, position)
        if any(right == tail and word != given for tail, given in said.numbers):
            return False  # for 4 people, where those for 6 are asked for
        near = any(
            word == given and (left == lead != "" or right == tail != "") for given, lead, tail in said.beside
        )
        return near or is_given(word, before, after, said.words)
    if word in sections()["answer"]:
        return before in sections()["closed"] or not position
    if word in _EACH:
        return lexeme(after) in said.clause and not any(lexeme(after) == tail for tail, _ in said.numbers)
    if word == "each":
        return word in said.order
    if IS_MASK.match(word):
        return compact(formulas[ord(word) - FORMULA]).strip("$") in compact(question)
    if word in _TENSE:
        return not said.is_present
    if word in _MONEY and after[:1].isdigit():
        return is_given(after, word, _word(tokens, position + 2), said.words)
    pairs = set(zip(said.words, said.words[1:], strict=False))
    if word in OPERATORS:
        sign = OPERATORS[word]
        return (lexeme(before), sign) in pairs or (sign, lexeme(after)) in pairs
    if word in _SHAPES and word in said.clause and before in _ARTICLES and after != "of":
        return True
    if word in sections()["twist"]:
        behind, follows = (lexeme(before), word) in pairs, (word, lexeme(after)) in pairs
        behind_it = " ".join(form for form, _, _ in tokens[position + 1 :])
        return (
            (word in said.sought and bool(_UP_TO_VERB.match(behind_it)))
            or (behind and (follows or not says(after)))
            or (follows and after not in silent_words())
        )
    if word in _leads() and word not in sections()["function"] and word not in said.order:
        return all(token in _leads() for token, _, _ in tokens[:position])
    return word in silent_words() or lexeme(word) in said.words


def has_role(before: list[str], after: list[str], said: Asked) -> bool:
    """Whether an answer stands where the asked thing does: in front of its verb, or behind "by" or "in"."""
    if said.preposition and said.preposition in after and said.preposition not in before:
        return False
    if {*before[-1:]} & _TOWARDS - {*said.words}:
        return False
    front, back = ([lexeme(word) for word in words] for words in (before, after))
    (verb, objects), (subject, act) = said.doing, said.done
    words = [*front, "", *back]
    if subject and {subject, act} <= {*words}:
        is_passive = "by" in words[words.index(act) : words.index(subject)]
        if not is_passive and (words.index(act) < words.index(subject) or (not front and "by" not in words)):
            return False
    for doing in (verb, said.agent):
        if doing in front and "by" not in front and before[max(front.index(doing) - 1, 0)] in _BEFORE_NOUN:
            return True  # the author is, the man who wrote that is
    named = objects | _ANAPHORS
    if verb and objects and "by" not in words:
        side = (
            front[front.index(verb) :]
            if verb in front
            else back[back.index(verb) :]
            if verb in back
            else named
        )
        if named.isdisjoint(side):
            return False
    follows, leads = said.agent in back, said.agent in front
    is_last = [word for word in before if word not in ("the", "a", "an")][-1:]
    if is_last and is_last[0] in ("is", "are", "was", "were") and "by" not in before:
        return True  # the man who did that was ..
    if not said.agent or said.order[-1] == said.agent or not (follows or leads):
        return "by" not in before or "by" in said.words
    return "by" not in after and follows != ("by" in before)


def is_asked_of(word: str, said: Asked) -> bool:
    """Whether a pronoun may be whom the question asks for: "she" for "him" is somebody else."""
    asked_of = [own for own in GENDERS if own & {*said.order}]
    asked_of = asked_of or [own for own in GENDERS if own & {*said.words}]
    return not asked_of or any(word in own for own in asked_of)


def _word(tokens: list[Token], position: int) -> str:
    return tokens[position][0] if 0 <= position < len(tokens) else ""


def is_given(word: str, before: str, after: str, words: tuple[str, ...]) -> bool:
    """Whether a number is the question's, beside the same word as there."""

    def alike(form: str, given: str) -> bool:
        return form != "" and (lexeme(form) == given or (given in SIGNS and form in _JOINS))

    sides = zip(("", *words), words, (*words[1:], ""), strict=False)
    return any(given == word and (alike(before, left) or alike(after, right)) for left, given, right in sides)


def _is_other_rate(tokens: list[Token], place: int, said: Asked) -> bool:
    """Whether "each" or "a day" stands there, and not in the clause that asks."""
    word, following = _word(tokens, place), lexeme(_word(tokens, place + 1))
    if word not in RATES or word in ("each", "every"):
        return word in RATES and word not in said.order
    return (word, following) not in zip(said.order, said.order[1:], strict=False)


def _is_statement(tokens: list[Token], first: int, last: int, said: Asked, *, is_part: bool) -> bool:
    """Whether the known words around an answer say that it is what was asked."""
    lexemes = [lexeme(word) for word, _, _ in tokens]
    before, after = lexemes[:first], lexemes[last:]
    if lexemes[last - 1][-1:].isdigit() and _is_other_rate(tokens, last, said):
        return False  # 100 a day
    if (
        (not before and after and after[0] in COMMAS)  # helium, neon, krypton
        or lexemes[first] in _RELATIONS
        or lexemes[last - 1] in _AROUND
        or (len(after) > 1 and after[0] in _JOIN and (after[0] in _AND or after[1][:1].isdigit()))
    ):
        return False
    if before[-1:] == ["by"] and not said.agent and said.preposition != "by":
        return False
    if (
        {*before[-1:]} & _BESIDE - {said.preposition, "on" if said.is_when else ""}
        and before[-2:-1] != ["left"]
    ) or ("by" in after and "by" not in said.words):
        return False
    if said.preposition and said.preposition in after and said.preposition not in before:
        return False
    unit = _word(tokens, last)
    if said.counted and (unit in sections()["thing"] or _is_unit(unit)) and lexemes[last] not in said.counted:
        return False
    if said.compares and not _same_order(after, said):
        return False
    if before[-1:] == ["of"] and (
        _VERBS.isdisjoint(" ".join(before).split()) or sections()["twist"] & {*before}
    ):
        return False
    content = [word for word in before + after if says(word) or word in SIGNS]
    if not content:
        words = {word for word in before + after if word[:1].isalpha()}
        return is_part or not words <= _SMALL - {said.preposition}
    twice = (word for word in content if content.count(word) > max(1, said.words.count(word)))
    if any(map(str.isascii, twice)) or len(before + after) < 2:
        return False  # the neighbour's neighbour; New Rupiah
    anaphor = {"it", "that", "this"}.intersection(before) and said.clause.issuperset(content)
    needed = said.needed if said.sought.isdisjoint(lexemes) else frozenset()
    if needed and needed.isdisjoint(content) and not (anaphor or said.counted.issuperset(content)):
        return False
    return _is_about(tokens, lexemes, first, last, said)


def _same_order(after: list[str], said: Asked) -> bool:
    """Whether what is compared stands in the question's order."""
    left = iter(said.order)
    return said.compares in after and all(word in left for word in after if says(word) and word in said.order)


def _is_about(tokens: list[Token], lexemes: list[str], first: int, last: int, said: Asked) -> bool:
    """Whether words of the question's other clauses only name what is asked about."""
    complete = said.needed <= set(lexemes)
    for position, word in enumerate(lexemes):
        outside = (
            says(word) or (word in SIGNS and tokens[position][0].isalpha())
        ) and word not in said.clause
        if not outside or first <= position < last or UNSPACED.search(word):
            continue
        if word in said.subject and (said.has_pronoun or complete or position >= last):
            continue
        if position == last and said.counted and tokens[position - 1][0][-1:].isdigit():
            return False  # 52 boxes, where crayons are asked for
        if position == last or (position and tokens[position - 1][0][:1].isdigit()):
            continue
        if said.is_whose and re.search("['’]s?$", tokens[position][0]):
            continue
        of = max((place for place in range(position) if lexemes[place] == "of"), default=0)
        if of and (lexemes[of - 1] in said.clause or _is_unit(tokens[of - 1][0])):
            continue
        pronoun = any(PRONOUN.fullmatch(form) for form in lexemes[position + 1 : first])
        if not pronoun or not said.has_pronoun:
            return False
    return True


def _readings(text: str, tokens: list[Token], first: int, last: int) -> Iterator[str]:
    """The answer, alone and with the question's words on either side that may belong to it."""
    before = tokens[first - 1][2] if first else 0
    after = tokens[last][1] if last < len(tokens) else len(text)
    yield text[before:after].strip(" ,:;，：—\n\"'“”‘’")
    for left in range(first, max(first - 3, -1), -1):
        for right in range(last, min(last + 4, len(tokens) + 1)):
            yield text[tokens[left][1] : tokens[right - 1][2]]
