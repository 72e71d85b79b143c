r"""What a whole turn may give as its answer where the answer alone is wanted, in plain words.

"There are **42** students.", "Respuesta: 240 km" and \boxed{\text{XIV}} hold an answer as surely as a line
"Answer: 42". Leaves out mathematics (frames.py, symbolic.py) and published rules that take a text as it is.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from agentkit.records import Score
from agentkit.verifiers.echoes import echoed, echoes, is_otherwise, stands_for
from agentkit.verifiers.frames import SAYS_ANSWER, classes, closes, expression, is_chat, leads_up, opens
from agentkit.verifiers.masks import DOLLAR, IS_BOX, MARKUP, STYLE, Masked, masked, sentences
from agentkit.verifiers.numbers import IN_WORDS, MULTIPLES, amount, asked_unit, in_digits, is_unit, same_unit
from agentkit.verifiers.questions import asked, lexeme, silent_words
from agentkit.verifiers.statements import affirms, describes, statements
from agentkit.verifiers.words import JOINER, Token, asked_for, is_age, tokens_of

_AMOUNT = re.compile(
    r"(?<!\\)\$(?=-?\d(?:[^$\n\\]|\\.)*(?:\n|\Z|\s\$|\$\d))"
)  # a dollar that opens no mathematics
_COUNTED = re.compile(  # no second number
    rf"([-−+$€£\d.,/ ×·^]*\d(?:[\s-](?:{'|'.join(MULTIPLES)})(?=\s))?)\s*"
    r"([^\d\s](?:\D|(?<=\^)\d|(?<=\^-)\d)*)"
)
_PERCENT = frozenset(("%", "percent", "per cent"))
_ASKED_PERCENT = re.compile(r"\b(?:what|which)\s+(?:(?:is|was) the\s+)?per ?cent(?:age)?\b", re.IGNORECASE)
_IN_PERCENT = re.compile(  # in the last sentence
    r"\b(?:how many\s+|in\s+|as an?\s+)per ?cent(?:age)?\b(?![\s-]*points?)(?:[^.?!]|\.\d)*[.?!]?\s*\Z",
    re.IGNORECASE,
)
_PASSAGE = re.compile(r"\s*\[\d+\]")  # a search result copied out
_DIGITS = re.compile(r"\d[\d.,' {}\\!]*")
_CAPITALS = re.compile(r"\b(?:[A-Z]{2,}|[A-Z]\.(?=[\sA-Z]))")  # the USA, W. A. Mozart
_WORDS, _SMALL = re.compile("[a-z0-9]+"), frozenset(("a", "an", "the", "and"))
_WORKED_OUT = re.compile(r"[\d\s.,()]*\d[!)]*\s*[-+*/×÷·^!−][\d\s.,()!+*/×÷·^−-]*")
_ASKED_LETTER = re.compile(
    r"\b(?:is|are|of|for|find|compute|calculate|determine|evaluate) \$?(?![aAI]\b)[A-Za-z](?![A-Za-z])",
    re.IGNORECASE,
)
_ASKS = r"\b(?i:find|what is|compute|calculate|determine) (?:the )?(?:\w+ ){0,3}?"
_ASKS_FOR = (
    r"\b(?i:find|what is|what was|compute|calculate|determine) (?:the|its)"
    r"(?: (?:average|initial|final|total|maximum|minimum|population|sample))?"
)
_LETTERS = {  # what letters stand for, where that is asked
    "λ": re.compile(_ASKS + r"(?:eigenvalue|wavelength)\b"),
    "pH": re.compile(_ASKS + r"pH\b"),
} | {
    letter: re.compile(
        rf"{_ASKS_FOR} (?:{word})(?=\s+(?:of|in|at|when|if|for|between|from)\b|[?.,]|\Z)"
    )
    for letter, word in {
        "σ": "standard deviation", "μ": "mean", "ρ": "density", "θ": "angle", "v": "speed", "I": "current",
        "U": "voltage", "Q": "heat", "T": "period", "d": "distance", "s": "distance",
    }.items()
}  # fmt: skip
_GREEK = {"\\lambda": "λ", "\\rho": "ρ", "\\theta": "θ", "\\sigma": "σ", "\\mu": "μ"}
_LENGTH = "distance|length|perimeter|circumference|radius|diameter|height|hypotenuse|side"
_UNITS = {  # what is asked for in units of any kind
    "": rf"\A(?!.*\b(?:area|volume|how many)\b).*\b(?:{_LENGTH})\b",
    "square ": r"\A(?!.*\bhow many\b).*\barea\b",
    "cubic ": r"\A(?!.*\bhow many\b).*\bvolume\b",
}
_IN_DOLLARS = re.compile(  # a number or an equation of one, in front of a unit
    r"\A\$\s?((?:\\?[A-Za-z]+(?:_\w+)?\s*=\s*)?[-+\d.,/ ]+)\$(?=\s*[^\W\d_])"
)
_SYMBOL = re.compile(r"([A-Za-z])(?:_\{?\s?([a-z]{1,12})\}?)?")  # E_k, R_{eq}
_LEFT = re.compile(r"(.*\S)\s+(?:(?:is|are) )?(?:left(?: over)?|remain(?:s|ing)?)")
_FUNCTION = re.compile(r"\\?(det(?=\Z)|[A-Za-z]{2,6}(?=\s*\())(?:\s*\(([\d\s,.]+)\))?")
_NAME = "Qyxenon"  # no word: of what a question offers, while its sentence is read
_JOINED = re.compile(rf"{_NAME}\W*?(?:[,&/]|and\b)|(?:[,&/]|\band)\s+(?:the )?{_NAME}")
_ABOUT = re.compile(r"(?:approximately|about|roughly|around|circa|ca\.|[≈~])\s*(?=[-$€£\d])", re.IGNORECASE)
_ROUNDED = re.compile(
    r"\A(?!.*\bexactly\b).*(?:\bto the nearest\b"
    r"|\bround(?:ed)? (?:(?:off|up|down|(?:your|the) (?:final )?(?:answer|result)) )?to\b"
    r"|(?:\b(?:to|with)|,) (?:\w+ )?\w+ (?:decimals|decimal places?|significant (?:figures|digits))\b)",
    re.IGNORECASE | re.DOTALL,
)
_AGED = re.compile(r"(?:(?:he|she|it|they) (?:is|was|were|are) )?\d", re.IGNORECASE)
_WITH_UNIT = re.compile(r"(-?[\d.,]*\d)\s?([^\d\s=<>]\S{0,29})")
_NEXT_WORD = re.compile(r"[\s$}\\)*]*([^\W\d_]+)")
_FELL = re.compile(
    r"(?P<said>[^\d:;,]*?)\b(?:(?:decreased|fell|declined|dropped|shrank|went down) by"
    r"|an? (?:decrease|decline|drop|fall) of)\s+(?P<by>[$€£]?\d[\d.,]*+\s?(?:%|per ?cent)?)",
    re.IGNORECASE,
)
_ASKED_CHANGE = re.compile(
    r"\b(?:what (?:is|was)|find|calculate|compute|determine) the (?:\w+ ){0,3}?change\b"
    r"|\bby (?:what percent(?:age)?|how much) did \w+(?: \w+){0,4} change\b",
    re.IGNORECASE,
)
_RESULT = re.compile(r"\s*[-−$€£]?\d[\d.,]*+\s?%?[ *$]*+")
_HOPES = re.compile(r"\W*I hope (?:it|this) is (?:correct|right)\W*")  # as Minerva's prompt ends
_CHOICE = re.compile(r"\(?([A-J])\)?[).:,]{0,2}\s+(\S.{0,200})", re.DOTALL)
_PLAIN = (
    (re.compile(r"\\displaystyle(?![A-Za-z])\s*|(?<!\\)\\[()]"), ""),
    (re.compile(r"(?<=\d)\\text\{s\}"), "s"),  # 1940s
    (re.compile(r"\^\{(-?\d+)\}"), r"^\1"),
    (re.compile(r"(?<=[A-Za-z])\\,(?=[A-Za-z])"), " "),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])"), "°"),
    (re.compile(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}"), r" \1/\2"),
    *[(re.compile(r"\\(?:text[a-z]*|math[a-z]+|mbox)\s*\{([^{}]*)\}"), r" \1")] * 2,  # one in another
    (re.compile(r"\\[ ,;:!]|~|\\q?quad"), " "),
    (re.compile(r"\\Omega(?![A-Za-z])"), "Ω"),
    (re.compile(r"\A\s*-\s+(?=\d)"), "-"),
    (re.compile(r"\\([%$#&])"), r"\1"),
)


def numbers(text: str, question: str = "", gold: str = "") -> Iterator[str]:
    """The number that a text gives, also without what it counts where the question asks for that."""
    has_unit = any((amount(gold) or ("",))[1:])
    text = _AMOUNT.sub(r"\\$", text)
    given = amount(plain(text))
    if has_unit and given and is_unit(given[2]):
        yield plain(text)
        return  # with a unit of its own it says no other number
    if not has_unit:
        if "\n" not in text.strip():  # two lines are two answers
            yield plain(text)
        yield from _in_asked_unit(plain(text), question)
    yield from _fallen(plain(text), question)
    number = expression(text, question)
    if _PASSAGE.match(text) or (isinstance(number, Score) and "different answers" in number.why):
        return
    if isinstance(number, str):
        number = in_digits(_value_asked(_IN_DOLLARS.sub(r"\1 ", plain(number)), question))
        yield number
        if re.search(r"\b(?:left|remain\w*)\b", _asking(question)) and (rest := _LEFT.fullmatch(number)):
            yield rest[1]
        counted = _COUNTED.fullmatch(number)
        units = re.fullmatch(r"(|square |cubic )units?", counted[2]) if counted else None  # of any kind
        if (
            units
            and not has_unit
            and not asked_unit(question)
            and re.search(_UNITS[units[1]], question, re.IGNORECASE | re.DOTALL)
        ):
            yield counted[1]
        percent = (
            counted
            and counted[2] in _PERCENT
            and (_ASKED_PERCENT.search(question) or _IN_PERCENT.search(question))
        )
        is_aged = counted and (_AGED.match(text) or r"\boxed" in text) and is_age(counted[2], question)
        if counted and not has_unit and (percent or is_aged or asked_for(counted[2], question)):
            yield counted[1]
        words = number.split()
        several = JOINER.search(number)
        while (
            len(words) > 2 and not several and re.search(rf"\bhow {re.escape(words[-1])}\b", question, re.I)
        ):
            words.pop()
            yield " ".join(words)
    said = [*phrases(text, question)]
    yield from said
    for words in (text.strip(" *"), *said):
        if (about := _ABOUT.match(words)) and _ROUNDED.search(question):
            yield words[about.end() :]


def _in_asked_unit(text: str, question: str) -> Iterator[str]:
    """The number in "4.18 J/(g·°C)" where the question asks for it in that unit."""
    given = _WITH_UNIT.fullmatch(text)
    if given and re.search("[/·^]", given[2]):
        asked_in = rf"\bin {re.escape(given[2])}(?![\w/^·*²³⁻])"
        yield from [given[1]] * bool(re.search(asked_in, question))


def _fallen(text: str, question: str) -> Iterator[str]:
    """The negative number in "sales fell by 12 %" where the question asks for the change of just that."""
    fell = _FELL.fullmatch(text)
    if fell and _ASKED_CHANGE.search(question):
        said = asked(question)
        words = {lexeme(word) for word in fell["said"].split()} - silent_words()
        if words <= said.clause | said.subject and said.clause.isdisjoint(("increas", "decreas")):
            yield f"-{fell['by']}"


def _below_working(text: str, question: str) -> str:
    """The last paragraph where those in front of it only work out what the question names."""
    working, _, last = text.strip().rpartition("\n\n")
    known = {*asked(question).words, *"abcdefghijklmnopqrstuvwxyz", "the", "of"} if working else set()
    for line in filter(str.strip, working.split("\n")):
        left, _, right = line.rpartition("=")
        prose = {lexeme(word) for word in re.findall(r"[^\W\d_]+", left)}
        works = re.search(r"\d", left) and "=" not in left and left.rstrip()[-1:] not in "!<>"
        if not (works and prose <= known and _RESULT.fullmatch(right.rstrip(" ."))):
            return ""
    return last if working.strip() and "\n" not in last else ""


def _asking(question: str) -> str:
    return re.split(r"[.?!]\s", question.strip(" .?!"))[-1]


def _value_asked(number: str, question: str) -> str:
    """The value in "5! = 120", and in "x = 4" or "f(3) = 9" where the question asks for what is in front."""
    name, *values = (side.strip() for side in re.split(r"=|≈|\\approx", number.strip("$")))
    if len(values) != 1:
        return number
    if not re.search("[A-Za-z]", name):
        return values[0] if _WORKED_OUT.fullmatch(name) else number
    letter = _GREEK.get(name, name)
    alone = rf"(?<![A-Za-z]){re.escape(letter)}(?![A-Za-z])|{re.escape(name)}(?![A-Za-z])"
    stands_for = _LETTERS.get(letter)
    if stands_for and stands_for.search(question) and (letter in "λpH" or not re.search(alone, question)):
        return values[0]
    own = _SYMBOL.fullmatch(name)
    if own and own[2]:  # of a kind: the kinetic energy's
        of_kind = re.search(rf"\b{own[2]}\w*\s+{own[1]}\w{{3,}}", _asking(question), re.IGNORECASE)
        name = own[1] if of_kind and own[1] not in "nx" else ""
    own = own and name and not re.search(rf"(?<![A-Za-z]){name}(?![A-Za-z])", question)
    named = own and (name in "xn" or re.search(rf"\b{name}\w{{3,}}", question, re.IGNORECASE))
    if named and not _ASKED_LETTER.search(question):
        return values[0]
    coordinates = re.findall(r"\b(\w)-(?:coordinate|intercept|score|value)", question)
    if coordinates == [name] and re.search(rf"{_ASKS}{name}-", question):
        return values[0]
    function = _FUNCTION.fullmatch(name)  # LCM(8, 12) of the question's own numbers
    if function and set(re.findall(r"\d+", function[2] or "")) <= set(re.findall(r"\d+", question)):
        initials = "".join(word[0] for word in question.split())
        if function[1].casefold() in question.casefold() or function[1].casefold() in initials.casefold():
            return values[0]
    sought = rf"\b(?i:is|are|of|for|find|compute|calculate|determine|evaluate) \$?{re.escape(name)}\$?"
    ends = r"(?=\s*(?:[?.,;:]|\Z|(?:if|when|where|given|such|in)\b))"
    return values[0] if re.search(sought + ends, question) else number


def digits_occur(text: str, gold: str, *, unit: str = "", **options: Any) -> bool:
    """Whether a text can give a number: in notation that is worked out, in another unit, or by its digits."""
    value, currency, its_unit = amount(gold) or (0, "", "")
    loose = (
        options.get("abs_tol")
        or options.get("rel_tol")
        or not text.isascii()
        or IN_WORDS.search(text)
        or re.search(r"[/^]|frac", text)
    )
    digits = re.sub(r"\D", "", f"{float(value):.15g}".partition("e")[0]).strip("0")
    converts = not currency and (unit or its_unit) not in ("", "%")
    if loose or converts or not digits or len(digits) > 14:
        return True
    return any(digits in re.sub(r"\D", "", run[0]) for run in _DIGITS.finditer(text))


def words_occur(text: str, gold: str, *, aliases: Iterable[str] = (), **options: Any) -> bool:
    """Whether all words of a gold answer or an alias can occur in a text, capitals for a name included."""
    golds = [gold, *([aliases] if isinstance(aliases, str) else aliases)]
    in_words = IN_WORDS.search(text) and any(text.isdecimal() for text in golds)
    if in_words or not text.isascii() or not all(map(str.isascii, golds)) or _CAPITALS.search(text):
        return True
    text = text.replace("Mt.", "Mount").replace("St.", "Saint").casefold()
    return any(
        all(word in text for word in _WORDS.findall(gold.casefold()) if word not in _SMALL) for gold in golds
    )


def phrases(text: str, question: str = "", gold: str = "") -> Iterator[str]:
    """Words that a text gives: all that stands behind a frame, up to the text's end, or in its only box.

    So nothing can be said of the words that they do not hold themselves.
    """
    whole = plain(text)
    if last := _below_working(text, question):
        yield plain(last)
    in_markup = re.fullmatch(r"\$[\w\s,;]+\$", text.strip()) or "\\text" in text or "\\mathrm" in text
    for words in dict.fromkeys([*map(plain, _worded(text, question)), whole]):
        if words != whole or in_markup:
            yield words
        yield from _choice(words, question)
    offered = re.compile(rf"(?<!\w){re.escape(gold)}(?!\w)", re.IGNORECASE)
    # one of two that the question names: no word of its own
    if len(gold) > 1 and offered.search(question) and _NAME not in text:
        text, others = offered.sub(_NAME, text), re.findall(r"(?<=.)\b[A-Z]\w+", offered.sub("", text))
        if not any(other in question for other in others) and not _JOINED.search(text):
            yield from (gold for words in _worded(text, question) if plain(words) == _NAME)


def _choice(words: str, question: str) -> tuple[str, ...]:
    """Letter and words of an answer such as "B) Paris" where the question offers that."""
    choice = _CHOICE.fullmatch(words)
    if choice is None or re.search(r"(?<!\w)\(?[A-J][).:]\s", choice[2]):  # several options
        return ()
    option = rf"\(?{choice[1]}\)?[).:]\s*{re.escape(choice[2])}(?!\w)"
    return choice.groups() if re.search(option, question, re.IGNORECASE) else ()


def _worded(text: str, question: str) -> list[str]:
    """What the last sentence says behind a frame, up to its end."""
    whole = masked(text)
    kept = sentences(whole.text)
    while len(kept) > 1 and (
        _HOPES.fullmatch(kept[-1]) or is_chat(kept[-1]) or describes(kept[-1], whole.formulas, question)
    ):
        kept.pop()
    *earlier, last = kept or [""]
    if is_otherwise(last, question):
        return []
    words = _boxed(last, whole, question) if whole.boxes else _unboxed(last, whole, question)
    answers = [sentence for sentence in earlier if SAYS_ANSWER.search(sentence)]
    return [] if answers and not _same_answer(answers, words, whole, question) else words


def _boxed(last: str, whole: Masked, question: str) -> list[str]:
    if len(whole.boxes) > 1 or len(IS_BOX.findall(last)) != 1:
        return []
    before, after = IS_BOX.split(last)
    if amount(plain(whole.boxes[0])) is None:
        is_part = re.match(r"\W*[A-Z]", after) or not stands_for(before, after, question)
        if question and is_part:
            return []
    elif unit := _NEXT_WORD.match(after):
        sought = asked_unit(question)
        if sought and is_unit(unit[1]) and not same_unit(unit[1], sought):
            return []  # minutes, where hours are asked for
    is_framed = leads_up(before, whole.formulas, question) and closes(after, "")
    return whole.boxes if is_framed or echoes(before, after, whole.formulas, question) else []


def _unboxed(last: str, whole: Masked, question: str) -> list[str]:
    is_bold = re.fullmatch(r"\*\*[^*]+\*\*\.?", last.strip())
    last = MARKUP.sub("", STYLE.sub(" ", last))
    tokens = tokens_of(last)
    framed = _framed(last, tokens, classes(tokens, whole.formulas, question), question)
    polar = affirms(last, whole.formulas, question)
    return (
        [last] * bool(is_bold)
        + [polar] * bool(polar)
        + framed
        + list(dict.fromkeys(statements(last, whole.formulas, question)))
        + list(filter(None, [_NAME not in last and echoed(last, whole.formulas, question)]))
    )


def _same_answer(answers: list[str], words: list[str], whole: Masked, question: str) -> bool:
    """Whether what earlier sentences call the answer is what the last one gives."""
    given = {plain(text).casefold() for text in words}
    for sentence in answers:
        stated = [] if IS_BOX.search(sentence) else _unboxed(sentence, whole, question)
        if stated and given.isdisjoint(plain(text).casefold() for text in stated):
            return False
    return True


def _framed(last: str, tokens: list[Token], letters: str, question: str) -> list[str]:
    """What stands behind each frame that a sentence begins with; for a question, one that says "answer"."""
    starts = [
        tokens[count - 1][2]
        for count in range(1, len(tokens))
        if letters[:count].rstrip(":")[-1:] in ("K", "A")
        and opens(letters[:count])
        and (not question or "A" in letters[:count])
    ]
    return [last[start:].lstrip(" :：") for start in starts if len(last[:start].strip()) > 2]


def plain(text: str) -> str:
    r"""Mathematics as it is typed: \text{XIV}, 30\% and 1.6 \times 10^{-19}\ \text{C} without markup."""
    text = re.sub(r"(?<=\d)\{,\}(?=\d\d?(?![\d{,]))", ".", text)  # 1{,}5 in French
    text = text.replace(DOLLAR, "$").replace("{,}", ",").replace(r"\times", "×").replace(r"\cdot", "·")
    if re.search(r"[\\^~]", text):
        for pattern, replacement in _PLAIN:
            text = pattern.sub(replacement, text)
    text = " ".join(text.split()).strip(" *_.。：:`\"'“”")
    inside = re.fullmatch(r"\$ ?([^\W\d_][^$]*)\$", text)
    return inside[1].strip() if inside else text
