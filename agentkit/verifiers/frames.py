r"""Which expression a text gives as its answer.

A box, or without one what stands behind "the answer is", is read only where the rest of the last sentence is
a known frame or nothing: every word of it stands in data/frames.txt in its place, or in the question (words).
Whatever else a sentence says, in whatever language, may deny, doubt or change the number. Mathematics in
front of a box must lead up to it (x = \boxed{5}), and none may go on behind it (\boxed{5}^2). Leaves out what
an expression means (symbolic.py) and frames that need grammar.
"""

import re
from functools import lru_cache
from itertools import islice

from agentkit.records import Score
from agentkit.verifiers.echoes import echoes, is_otherwise
from agentkit.verifiers.extraction import MAX_ANSWER
from agentkit.verifiers.masks import (
    FORMULA,
    IS_BOX,
    IS_MASK,
    MARKUP,
    MAX_BOXES,
    MAX_FORMULAS,
    STYLE,
    Masked,
    compact,
    masked,
    sentences,
)
from agentkit.verifiers.numbers import MULTIPLES, currency_sign, is_unit, unit_name
from agentkit.verifiers.statements import asked, statements, without_asides
from agentkit.verifiers.words import COMMAS, DASHES, WORD, Token, in_question, is_counted, sections, tokens_of

MAX_TOKENS, NEAR = 200, 600  # of a sentence; characters before a box, or of its unit, that are looked at
_RUN = re.compile(  # the mathematics at the end of a text
    r"""(?:
      \\[A-Za-z]+
    | (?<![^\W\d_])(?<!['’])(?:[A-Za-zΑ-ω]|[A-Z]{2,4})(?![^\W\d_])['′]*  # x, ABC, f'
    | (?<=\d)[a-z]{2,3}(?![^\W\d_])  # 2ab
    | (?<![^\W\d_])d[a-z](?![^\W\d_])  # dx
    | (?<![^\W\d_])(?!of|is|it|no|or|so|if|to|do|en|un|ni)[a-z]{2}(?=\s?[-+=]\s)  # xy =
    | \([^()]{0,60}\)
    | [\d\s.!%=+*/^_()|<>≤≥≈≡∈±×÷·√\[\]\\→⇒⟹−–—-]
    )*+\Z""",
    re.VERBOSE,
)
_EQUATION = re.compile(  # one in the prose: 2x = 10, 3 + 2 = 5
    r"(?<![\w.\\])[\d.]{0,15}[A-Za-z]?(?:\s?[-+*/×·÷]\s?[\d.]{1,15}){0,9}\s?=\s?[\d.]{1,15}"
    r"(?:\s?[-+*/×·÷=]\s?[\d.]{1,15}){0,9}(?=[\s,.;])(?!\s*=)"
)
_PARTICIPLE = re.compile(  # a clause of working in front of a comma: "Expanding,", "By the power rule,"
    r"""(?:\A|[,:]|\b(?:so|thus|hence|then))\s*
    (?:[^\W\d_]{2,20}ing|by|from|after|upon)\b
    (?![^,:]{0,190}\b(?:other|another|different|contrast)\b)
    [^,:]{0,200},\s*\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_REASON = re.compile(r"([\ue000-\ue0ff]\s*+),?\s*+\(?(?=(?:since|because)\b)")
_STEP = re.compile(  # "Subtract 5: x = 7" is no ratio
    r"(?P<step>(?:\A|[,;.]\s)\s*(?:add|subtract|multiply|divide|move|substitute|plug)\b[^,;:]{0,60})(?<=\d):(?=\s|\Z)",
    re.IGNORECASE,
)
_ARROW = re.compile(
    r"\\(?:(?:[Ll]ong)?(?:left|right)arrow|(?:Long)?(?:Left)?[Rr]ightarrow|implies|iff|therefore|to)\b|[=-]>|[→⇒⟹⇔]|\\\\"
)
_RELATION = re.compile(r"(?<![!<>])=|[≈≡∈]|\\(?:approx|equiv|in|cong)\b")
_NAME = re.compile(
    r"""
      [|(]* (?:\\?[A-Za-z]+|[Α-ω])['′]*(?:_\w+|(?<=[A-Z])\^-1)? [|)]*  # x_1, |AB|
    | \\?[A-Za-z]{1,4}['′]*(?:_\w+)?(?:\^-?\d)?\s* [(|\[].*[)|\]]  # a function's value
    | \\(?:angle|triangle|binom|overline|vec|det|gcd|sin|cos|tan|cot|sec|csc|arg|[lr]floor|[lr]ceil)\b.*
    """,
    re.DOTALL | re.VERBOSE,
)
_VARIABLE = re.compile(
    r"(?<![A-Za-z\\])[A-Za-zΑ-ω](?:_\w+)?(?![A-Za-z])|\\(?:alpha|beta|gamma|theta|phi|lambda|omega)\b"
)
_DERIVATIVE = re.compile(r"(?:\\[dt]?frac\s?)?(d|\\partial)\s?([A-Za-z])\s?/?(?:d|\\partial)\s?([a-z])")
_FURTHER = re.compile(  # no first derivative
    r"\b(?:second|third|fourth|higher|mixed|2nd|3rd|twice|normal|anti\w*|integr\w*)\b|''|\^\{?\(?\d\)?\}?\s*[a-zA-Z]?\s*[}/]"
    r"|\^\{?\("
)
_ASKS = re.compile(
    r"\b(?:find|compute|calculate|determine|evaluate|give|state|what|then|obtain|write|locate|where|hence|use"
    r"|set|solve|show|and the)\b",
    re.IGNORECASE,
)
_OPERATOR = re.compile(r"[)}]|\s*(?:[+*/×·÷⋅=<>≤≥≈±&\\]|[-−–]\s)")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_OPERATION = re.compile(r"\\int(?![a-z]).*d[a-z]", re.DOTALL)  # an integral, carried out
_CONTINUED = re.compile(r"\s*(?:=\s*[A-Za-z]\b|\\p?mod\s*\{?\s*\d+\s*\}?|\(\s*\\?mod\s*\d+\s*\))")
_CONSTANT = re.compile(r"\s*\+\s*[Cc](?![A-Za-z])")  # of integration
_AGAIN = re.compile(  # the same value again: \boxed{\frac18} = 0.125, which is $5^2$, or approximately 1.618
    r"\s*(?P<relation>=|≈|\\approx|\\simeq|,? which (?:is|equals)(?: (?:about|approximately))?"
    r"|,? (?:that is|i\.e\.),?|,? or (?:about|approximately))"
    r"\s*(?P<value>[\ue100-\uf8ff]|-?\d+(?:\.\d+)?(?![\w.,]*\d)|\\[dt]?frac\{\w+\}\{\w+\})"
)
_UNIT = re.compile(
    r"""(?:\\[ ,;:!)]|[~\s}$*)])*?
    (?P<unit>
      \^\s*\{?\\circ\}? | \^\{\\text\{\w\w\}\} | \s*°\s?[CF]? | \s*\\?%
    | (?:\\[ ,;:!]|\s)*/?\\(?:text[a-z]*|mathrm|mbox)\s*\{(?P<text>[^{}]*)\}(?:\^\{?[23]\}?)?
    | \s*(?P<words>/?[^\W\d_]+(?:\^\{?-?\d\}?|[\s/^*-]{1,2}[^\W\d_]+){0,6}[²³]?)
    )""",
    re.VERBOSE,
)
_FACTORIAL = re.compile(r"\S*(?:(?<![^\W\d_])[a-z]|\)(?<!\([A-Z]\)))!{1,9}")  # n!, (2n)!, and not 5 cm!
_JOINERS = re.compile(r"(?:[\s,;$&{}*]|\\[ ,;:()\[\]]|\\q?quad|\\text|\b(?:and|und|et)\b|和|と)*")
_SUBJECT = re.compile(r"([\d.]*\s*(?:[A-Za-z](?:\(\w+\))?['′]*|[\ue100-\uf8ff]))\s+(?:is|equals)\s*\Z")
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_CONCLUDES = frozenset({"so", "thus", "hence", "therefore", "this means", "this means that"})
_WORKING = re.compile(r"(?<![\w.,])[\d.,]+(?:\s*[-+*/×·÷]\s*[\d.,]+)+\s*=\s*(?=[-$€£]?\d)")  # 48 - 30 =
_SUBJECT_OF = frozenset("the value of expression that".split())  # a formula in front of a verb
# What tokens do, in a letter each: A the answer, K "is", v another verb, D a lead, c and m what goes with the
# answer, s words of the subject, & an "and", V a value, F a formula that is no subject; t, p and q behind it
# w other words of working things out, in a clause before that of the answer only
_ANSWER = "(?:(?<=,)&)?(?:[csmVF]*K)?[cv]*A(?:[cm][cmV]*)?K*c*"
_CLAUSE = f"(?:{_ANSWER}|[csmVF&Kv]*)"
# A clause ends at the first of , : D however it is read: tried once each, as "2, 2, 2, .." took 2^n steps
_CLAUSES = rf"(?>{_CLAUSE}[,:D]|(?:{_ANSWER})?[csmVF&Kvw]*[,:]|[csmVF&Kvw]*D(?={_ANSWER}))*"
_LEADING = rf"(?!.*F[Kv]){_CLAUSES}"
_FRAME = re.compile(rf"{_LEADING}{_CLAUSE}")
_OPENING = re.compile(
    rf"{_LEADING}(?:(?:{_ANSWER}|[csmVF&]*[Kv](?:[csmVF]*[Kv])*),*D*|(?<![^:])D*|(?<=,)D+),*"
)
SAYS_ANSWER = re.compile(r"answer|correct (?:option|choice)", re.IGNORECASE)
_LISTED = re.compile("V[,&]+")
_CLOSING, _LATER = re.compile("(?:[tp,]*A)?(?:[tqK,]|p[VF]?)*"), re.compile("[tpA,]*")
_BEFORE = {"answer": "A", "link": "K", "verb": "v", "lead": "D", "closed": "c", "complement": "m", "and": "&"}
_BEHIND = {"answer": "A", "preposition": "p", "tail": "t", "closed": "t", "particle": "t"}


# ---- what tokens do
def classes(tokens: list[Token], formulas: list[str], question: str, *, behind: bool = False) -> str:
    """What each token does in front of an answer, or behind it, a letter each; X for a word of no frame."""
    if len(tokens) > MAX_TOKENS:
        return "X"
    letters, none = "", ("", -1, -1)
    for (last, _, _), (word, _, end), (following, start, _) in zip(
        [none, *tokens], tokens, [*tokens[1:], none], strict=False
    ):
        named = _named(behind).get(word)
        if named or IS_BOX.match(word):
            letters += named or "X"
        elif _is_value(word):
            clause = max(map(letters.rfind, ",:D")) + 1
            said = {token for token, _, _ in tokens[clause : len(letters)]}
            subject = not behind and IS_MASK.match(word) and ord(word) >= FORMULA and said <= _SUBJECT_OF
            letters += "F" if subject and not _is_side(formulas[ord(word) - FORMULA], question) else "V"
        elif word in DASHES:
            letters += "X" if _is_value(following) and (_is_value(last) or end == start) else ","
        elif word in COMMAS or (not behind and word in ":：" and (len(last) > 1 or last > "~")):
            letters += "," if word in COMMAS else ":"
        elif behind:
            letters += "q" if is_counted(word, question) or in_question(word, following, question) else "X"
        elif word in sections()["subject"] or in_question(word, following, question):
            letters += "s"
        else:
            letters += "w" if word in sections()["working"] else "X"
    return letters


@lru_cache(maxsize=2)
def _named(behind: bool) -> dict[str, str]:
    """The letters of words that have one by themselves, the first of several."""
    names = _BEHIND if behind else _BEFORE
    return {word: names[name] for name in reversed(names) for word in sections()[name]}


def _is_value(word: str) -> bool:
    return word[:1].isdigit() or bool(re.match(rf"{IS_MASK.pattern}|[a-z]\Z", word))


def opens(letters: str) -> bool:
    """Whether the classes of words in front of an answer are a known frame."""
    return bool(_OPENING.fullmatch(letters))


def closes(text: str, question: str, *, later: bool = False) -> bool:
    """Whether words behind an answer leave it as it is; a later sentence has less to say."""
    tokens = tokens_of(MARKUP.sub("", STYLE.sub(" ", text).lstrip("> ")))
    return bool((_LATER if later else _CLOSING).fullmatch(classes(tokens, [], question, behind=True)))


def leads_up(before: str, formulas: list[str], question: str) -> bool:
    """Whether the words and the mathematics in front of a box lead up to it."""
    text = MARKUP.sub("", _label().sub("", STYLE.sub(" ", before.lstrip("> ")), count=1))
    run = _RUN.search(text[-NEAR:])[0]
    run = re.sub(r"\A\s*a\s+(?![=+*/^<>≤≥-])", "", run)  # a French verb
    prose = _STEP.sub(r"\g<step> there:", text[: len(text) - len(run)])
    letters = classes(
        tokens_of(_EQUATION.sub(" 0 ", re.sub(r"(?<=[^\W\d_]\s)[-−](?=\d)", "", prose))), formulas, question
    )
    if not run.strip(" .\n"):
        is_working = _OPENING.fullmatch(letters + "D") and _PARTICIPLE.search(prose)
        return bool(_OPENING.fullmatch(letters) or is_working)
    if run.strip() in DASHES:
        return bool(_FRAME.fullmatch(letters)) and run[-1:].isspace() and prose.rstrip()[-1:].isalpha()
    sides = _RELATION.split(_ARROW.split(run)[-1])
    ends = not sides[-1].strip() and (len(sides) > 1 or bool(_ARROW.search(run)))
    return ends and _is_side(sides[0], question) and bool(_FRAME.fullmatch(letters))


@lru_cache(maxsize=1)
def _label() -> re.Pattern:
    """The number of a part in front of its answer."""
    item = r"\(?(?:\d{1,3}|[A-Za-z]|[ivx]{1,4})\)?(?!\w)"
    words = "|".join(sections()["label"])
    marks = r"\[(?:final )?(?:solution|answer|result|step|conclusion)\]"
    return re.compile(
        rf"\A\W*(?:{marks}|(?:{words})\s*{item}|(?<=\*\*)(?!\d+(?:\s+\w|\.\d)|\w\s*=){item})[:.)*\s]*(?:[-–—]\s)?",
        re.IGNORECASE,
    )


def _is_asked(side: str, formulas: list[str], question: str) -> bool:
    """Whether what is said to be the answer stands in the question's last clause, or is a name of its own."""
    shown = compact(IS_MASK.sub(lambda mask: formulas[ord(mask[0]) - FORMULA], side)).strip("$")
    asking = compact(re.split(r"[.,;]\s", question)[-1])
    name = re.fullmatch("[A-Za-z]", shown) and shown not in set(re.findall(r"[A-Za-z](?![A-Za-z])", question))
    return bool(name) or shown in asking


def _is_side(side: str, question: str) -> bool:
    """Whether an equation's other side does not change the answer: a constant, a name, or asked for."""
    side = re.sub(r"\\[()\[\]]", "", STYLE.sub(" ", side)).strip()
    if re.search(r"[<>≤≥=]|\\(?:[lg]eq?|in|equiv)\b", side):
        return True  # a condition
    variables = set(_VARIABLE.findall(side)) - {"i", "e"}
    return len(variables) != 1 or bool(_NAME.fullmatch(side)) or compact(side) in compact(question)


def names_answer(side: str, question: str) -> bool:
    """Whether the first side of an equation names what is asked, or is a formula for it in several names."""
    side = re.sub(r"[{}]", "", side).strip()
    if re.fullmatch(r"\\?det", side):
        return bool(
            re.search(r"\b(?i:find|compute|calculate|evaluate|determine|what is) the determinant\b", question)
        )
    if derivative := _DERIVATIVE.fullmatch(side):
        return _is_asked_derivative(*derivative.groups(), compact(side), question)
    if (_NAME.fullmatch(side) and _VARIABLE.search(side)) or (
        _OPERATION.fullmatch(side) and "\\int" not in question
    ):
        return True
    written, asked = (re.sub(r"[()]|\\int", "", compact(text)) for text in (side, question))
    if re.search(rf"(?<![-+*/^.\d]){re.escape(written)}(?![-+*/^\d])", asked):  # no part of 2x + 4
        is_equation = f"{written}=" in asked or f"={written}" in asked
        return bool(re.search(r"[A-Za-z]", written)) and not is_equation
    names = set(_VARIABLE.findall(side)) - {"e", "i"}
    unknowns = set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", question)) - {"a", "A", "I"}
    is_formula = len(names) > 1 or (names and "\\pi" in side)
    return bool(is_formula) and (names.isdisjoint(unknowns) or side[0] == "(")


def _is_asked_derivative(sign: str, of: str, by: str, side: str, question: str) -> bool:
    """Whether a quotient of differentials, "of" by "by", is the derivative that is asked for."""
    bare = re.sub("[{}]", "", compact(question))
    all_asked = (
        rf"(?:find|compute|calculate|determine|whatis){re.escape(side)}(?=if|when|for|given|by|[?.,]|\Z)"
    )
    asks = re.search(r"derivative|differentiate", question, re.IGNORECASE) or (
        re.search(all_asked, bare.casefold()) and len(_ASKS.findall(question)) == 1
    )
    if not asks or _FURTHER.search(question):
        return False
    if told := re.search(r"with respect to \$?([a-z])\b", question):
        return told[1] == by
    if side in bare:
        return f"{side}=" not in bare
    is_given = re.search(rf"(?<![A-Za-z]){of}\s*(?:\(\s*{by}\s*\))?\s*=[^.,;=]*{by}", question)
    return sign == "d" and bool(is_given)


def _unit_behind(after: str, question: str) -> str | None:
    """The unit behind a box, "" for none; None where what follows is no known frame."""
    unit, written = _UNIT.match(after, 0, NEAR), ""
    if unit and unit["words"]:
        if words := _unit_words(unit["words"], question):
            written = rf" \text{{{unit_name(re.sub('[{}]', '', words))}}}"
            after = after[unit.start("words") + len(words) :]
    elif unit:
        written, after = unit["unit"], after[unit.end("unit") :]
    rest = re.sub(r"\\[)\]]", " ", _CONTINUED.sub("", after, count=1))
    attached = re.match("[A-Za-zΑ-ωа-я]", after)
    return written if not attached and closes(rest, question) else None


def _echoed_unit(
    before: str, after: str, formulas: list[str], question: str, *, marked: bool = True
) -> str | None:
    """The unit behind the box of a sentence that repeats its question, "" for none; None for another."""
    unit, written = _UNIT.match(after, 0, NEAR), ""
    if unit and unit["words"]:
        words = unit["words"]
        if " per " in words and not re.search(r"\bper\b|\w/\w", question):
            words = words.partition(" per ")[0]  # 540 meters per week, where meters a week are asked for
        while words and not _is_unit_name(words):
            words = re.sub(r"[\s/^*-]*(?:[^\W\d_]+[²³]?|\^\S+)\Z", "", words)
        if words:
            written = rf" \text{{{unit_name(words)}}}"
            after = after[unit.start("words") + len(words) :]
    elif unit:
        written, after = unit["unit"], after[unit.end("unit") :]
    return written if echoes(before, after, formulas, question, marked=marked) else None


_SAID = re.compile(r"(?<![\w.,/^*+=-])[-−]?[$€£＄]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w/^*+=]|[.,]\d|:\d)")


def _echoed_number(sentence: str, formulas: list[str], question: str) -> str | None:
    """The one number of a sentence that its question does not hold, where the rest repeats that."""
    given = set(re.findall(r"\d+(?:\.\d+)?", question.replace(",", "")))
    text = MARKUP.sub("", sentence).replace(r"\$", "$")
    numbers = list(_SAID.finditer(text))
    said = [each for each in numbers if each[0].lstrip("-−$€£＄").replace(",", "") not in given] or numbers
    if len(said) != 1 or _ARROW.search(text) or re.search("[=`~:\n]", text):
        return None
    before, after = text[: said[0].start()], text[said[0].end() :]
    unit = _echoed_unit(before, after, formulas, question, marked=False)
    return None if unit is None or not re.search(r"[^\W\d_]{2}", before + after) else said[0][0] + unit


def _is_unit_name(words: str) -> bool:
    parts = [part.casefold() for part in WORD.findall(words)]
    if len(parts) == 1 and (currency_sign(parts[0]) or parts[0] in ("cent", "cents")):
        return True
    known = sections()["unit"] | sections()["square"]
    is_name = [part in known or ((len(part) > 1 or len(parts) > 1) and is_unit(part)) for part in parts]
    return all(is_name) and parts[-1:] != ["per"] and not {"in", "at", "as", "are", "a"}.intersection(parts)


def _unit_words(words: str, question: str) -> str:
    """The most of the words that is a unit."""
    while words and not _is_unit_phrase(words, question):
        words = re.sub(r"[\s/^*-]*(?:[^\W\d_]+[²³]?|\^\S+)\Z", "", words)
    return words


def _is_unit_phrase(words: str, question: str) -> bool:
    first, _, more = words.casefold().partition(" ")
    if first in MULTIPLES:
        return not more or is_counted(more, question)
    preposition = first in ("a", "as", "at", "are", "in") and more
    return not preposition and words.casefold() not in sections()["tail"] and is_counted(words, question)


# ---- the answer
def expression(text: str, question: str = "", *, gold: bool = False) -> str | Score:
    """The one expression a text gives, or Score(0) saying why there is none.

    In a gold answer several boxes together are a list, and words around them cast no doubt.
    """
    whole = masked(text)
    if gold and whole.boxes:
        return ", ".join(whole.boxes)
    no_words = not re.search(r"[^\W\d_]{2}|[\n:]", _COMMAND.sub(" ", STYLE.sub(" ", text)))
    if no_words and not whole.boxes and (gold or "matrix}" in text):
        return whole.shown(MARKUP.sub("", whole.text)).strip()  # a=2, b=-1
    *earlier, last = _without_remarks(whole, question) or [""]
    if is_otherwise(last, question):
        return Score(0.0, "what stands around the answer is of something else")
    answer = _read(
        last, whole.formulas, question, alone=not earlier or _is_bare(last, earlier, whole), last=True
    )
    if answer is None:
        return text if gold else Score(0.0, "what stands around the answer is no known frame of one")
    others = [sentence for sentence in earlier if SAYS_ANSWER.search(sentence)][-MAX_BOXES:]
    stated = filter(None, (_read(sentence, whole.formulas, question, alone=False) for sentence in others))
    parts = {compact(whole.shown(part)) for part in IS_BOX.findall(answer) or [answer]}
    different = {compact(part) for part in (*whole.boxes, *map(whole.shown, stated))} - parts
    if different and not gold:
        return Score(0.0, f"{len(different) + 1} different answers")
    return whole.shown(answer)


def _is_bare(last: str, earlier: list[str], whole: Masked) -> bool:
    """Whether a last line is a value under a heading, the working's again, or marked as in GSM8K."""
    value = compact(whole.shown(last))
    headed = re.fullmatch("c*Ac*", classes(tokens_of(MARKUP.sub("", earlier[-1])), whole.formulas, ""))
    repeated = any(value in compact(whole.shown(sentence)) for sentence in earlier)
    headed = headed or re.fullmatch(r"\*\*[^*]+\*\*\.?", last.strip())
    return last.startswith("####") or bool((headed or repeated) and not re.search("[A-Za-z]{2}|=", value))


def _without_remarks(whole: Masked, question: str) -> list[str]:
    """A text's sentences up to the answer: those behind it that say nothing else are left out."""
    text = _REASON.sub(r"\1. ", whole.text)
    kept, last_box = sentences(text), (IS_BOX.findall(text) or [""])[-1]
    value = compact(whole.shown(last_box)).rstrip(".")
    while len(kept) > 1 and (
        closes(kept[-1], "", later=True)
        or is_chat(kept[-1])
        or (last_box and _explains(kept[-1], whole, value, question))
    ):
        kept.pop()
    return kept


def is_chat(sentence: str) -> bool:
    """Whether a sentence only offers help: "Let me know if you have any other questions!"."""
    known = sections()
    words = [word for word, _, _ in tokens_of(MARKUP.sub("", sentence), known["polite"])]
    allowed = known["polite"] | COMMAS | DASHES
    return 0 < len(words) <= 30 and words[0] in known["greeting"] and allowed.issuperset(words)


def _explains(sentence: str, whole: Masked, value: str, question: str) -> bool:
    """Whether a sentence behind the answer says nothing else: known words, and no other value."""
    checked = re.search(r"[✓✅✔☑]\W*\Z", sentence)
    sentence = re.sub("[✓✅✔☑]", " ", sentence).rstrip(" .!$")
    tokens = tokens_of(MARKUP.sub("", STYLE.sub(" ", sentence)))
    words = [word for word, _, _ in tokens]
    if IS_BOX.search(sentence) or not value or not words or words[0] not in sections()["opening"]:
        return False
    letters = "D" + classes(tokens, [""] * MAX_FORMULAS, question)[1:]
    if checked and re.fullmatch("D:?[VF,&]+", letters):  # Check: 4 + 5 = 9 ✓
        return True
    if "X" in letters or sections()["operation"] & set(words):
        return False
    if words[0] in _CONCLUDES:
        concluded = any(compact(whole.shown(_digits(word))).rpartition("=")[2] == value for word in words)
        says_answer = re.fullmatch("D*,*[VF]Kc*A[mcsVF]*", letters) or not re.match("D*,*[VF]", letters)
        if not concluded or not says_answer:
            return False
    return not any(
        _is_other(words, letters, position, whole, value, question)
        for position, letter in enumerate(letters)
        if letter in "VF" or words[position] in _NUMBER_WORDS
    )


def _is_other(
    words: list[str], letters: str, position: int, whole: Masked, value: str, question: str
) -> bool:
    """Whether a value in a sentence behind the answer may be another one: new numbers, or said to be it."""
    word = words[position]
    if letters[position] not in "VF" and re.search(rf"\b{word}\b", question.casefold()):
        return False
    said = compact(whole.shown(_digits(word))).strip(".,")
    sides = [side for side in _RELATION.split(said) if side]
    before = letters[:position].rstrip(",:")[-1:]
    if before and before in "KvA" and sides[-1:] != [value]:
        return True
    known = {value, *re.findall(r"[\d.,]+\d|\d", question), *_numbers(value)}
    if not _numbers(said) <= known:
        return True
    return len(sides) > 1 and bool(_NAME.fullmatch(sides[0])) and sides[-1] != value


def _digits(word: str) -> str:
    return str(_NUMBER_WORDS.index(word)) if word in _NUMBER_WORDS else word


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)?", text))


def _read(
    sentence: str, formulas: list[str], question: str, *, alone: bool, last: bool = False
) -> str | None:
    """The answer in a sentence, boxes with their unit; None where its words are no known frame."""
    if not IS_BOX.search(sentence):
        return _stated(sentence, formulas, question, alone=alone, last=last)
    before, *between, after = IS_BOX.split(sentence)
    factorial = after.startswith("!") and not WORD.search(before)
    if factorial or not all(map(_JOINERS.fullmatch, between)):
        return None
    answer, echoed = ", ".join(dict.fromkeys(IS_BOX.findall(sentence))), None
    if question and not between:
        echoed = _echoed_unit(before, after, formulas, question)
    if not leads_up(before, formulas, question):
        return None if echoed is None else answer + echoed
    if constant := _CONSTANT.match(after):
        answer, after = f"{answer} + C", after[constant.end() :]
    if again := _AGAIN.match(after):
        relation = again["relation"].strip(" ,")
        if relation[0].isalpha():
            relation = r"\approx" if "approx" in relation or "about" in relation else "="
        answer, after = f"{answer} {relation} {again['value']}", after[again.end() :]
    unit = _unit_behind(after, question)
    if unit is None or (echoed and len(echoed) < len(unit)):
        unit = echoed
    return None if unit is None else answer + unit


def _is_operand(token: Token, text: str) -> bool:
    """Whether a token is a side of what stands behind it: the a of a^2, and of 2a + b, no article."""
    word, _, end = token
    return text[end] in "^_+*/=(" or (len(word) == 1 and bool(_OPERATOR.match(text, end)))


def _stated(
    sentence: str, formulas: list[str], question: str, *, alone: bool, last: bool = False
) -> str | None:
    """The expression in a sentence without a box; beside other sentences one that says it is the answer."""
    is_factorial = _FACTORIAL.fullmatch(MARKUP.sub("", sentence).strip(" .。")) or not WORD.search(sentence)
    stops = ".。 " if is_factorial else ".。! "
    unlabelled = _label().sub("", sentence, count=1)
    if re.match(r"\W*\*\*\d+\*\*\s", sentence):  # a bold number with nothing behind it is no label
        unlabelled = sentence
    text = MARKUP.sub("", unlabelled if re.search(r"\w", unlabelled) else sentence).rstrip(stops)
    text = _WORKING.sub("", text) if last and len(text) <= MAX_ANSWER else text
    shorter = without_asides(text, asked(question)) if last and question else text
    text = shorter if re.search(rf"\d|{IS_MASK.pattern}", shorter) else text
    tokens = tokens_of(text)
    if len(tokens) > MAX_TOKENS:
        return None
    letters = classes(tokens, formulas, question)
    begins = [count for count in range(len(tokens)) if _OPENING.fullmatch(letters[:count])]
    begins = [count for count in begins if count == 0 or tokens[count - 1][0] not in DASHES]
    begins = [count for count in begins if count == 0 or not _is_operand(tokens[count - 1], text)]
    values = [count for count in begins if letters[count:].lstrip(",")[:1] in ("V", "F")]
    # "5 is the answer" is a frame as a whole: the last place where a value stands
    begin = max(values if values and _FRAME.fullmatch(letters) else begins, default=0)
    while last and (earlier := [count for count in values if _LISTED.fullmatch(letters[count:begin])]):
        begin = min(earlier)  # x = 0, x = 1 and x = 2
    is_equation = begin < len(tokens) and re.match(r"[A-Za-z]\s*=", text[tokens[begin][1] :])  # so y = 6
    concluded = last and letters[:1] == "D" and (is_equation or letters[begin - 1 : begin] in ("K", "v"))
    if re.search(r"\w\W*[?？]\Z", text):
        return None
    named = "A" in letters[:begin]
    if question and not named:
        is_sentence = re.search("[sv]", letters[:begin]) or not (alone or concluded)
        if is_sentence or re.search("[swvKA].*[swvKA]", letters[begin:]):
            stated = _echoed_number(unlabelled, formulas, question) if last else None
            if last and stated is None:
                stated = next(statements(unlabelled, formulas, question), None)
            if stated or is_sentence:
                return stated
    if not (alone or concluded or named):
        return None
    side = _SUBJECT.search(text[: tokens[begin - 1][2]]) if question and begin else None
    if side and not _is_asked(side[1], formulas, question):
        return None
    known = sections()["copula"] | sections()["particle"]
    ends = (start for word, start, _ in tokens[begin + 1 :] if word in known or " " in word)
    end = next((start for start in islice(ends, 9) if closes(text[start:], question)), len(text))
    return text[tokens[begin - 1][2] if begin else 0 : end].strip(" ,:;，：—\n") or None
