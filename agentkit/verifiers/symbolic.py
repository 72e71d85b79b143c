r"""Answers as mathematics: LaTeX or plain, compared by value and structure.

The answer must be one expression: bare, between $ signs, in ``\boxed{}``, or behind "the final answer is". Prose around it,
two different ones, one that is part of a larger expression, an "or" that the gold answer lacks, other brackets (a set for a
tuple), another unit and another base are wrong before any algebra starts. A single letter is a variable; it is a unit only
where the other side says so (``\text{m}``). Plain numbers are compared as numbers; everything else goes to
``isolated/algebra.py`` in a child that is killed after two seconds.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator

from agentkit.records import Score
from agentkit.verifiers.numbers import compared, is_unit, parse_number, same_unit, unit_name
from agentkit.verifiers.text import MAX_ANSWER, normalize
from agentkit.verifiers.worker import Worker, WorkerError

_worker = Worker("algebra")
_DOUBT = re.compile(
    r"\b(?:not|never|neither|nor|cannot|or|either|wrong|incorrect|isn't|n't|maybe|perhaps|possibly|probably)\b|n't\b|\\neq?\b|≠",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"\b(?:at (?:least|most)|(?:less|more|greater|fewer|larger|smaller) than)\W*\Z", re.IGNORECASE
)
_DENIAL = re.compile(r"\W*(?:is|was|seems|looks) (?:[a-z]+ )?(?:false|untrue)\b", re.IGNORECASE)
_MARKUP = re.compile(
    r"(?:<[^<>\n]*>|[-=]>|^[ \t]*(?:>|[-+*](?=\s)))\s*\Z", re.MULTILINE
)  # a tag, an arrow, a quotation, a list
_BEFORE = re.compile(  # mathematics that an answer is a part of
    r"(?:(?<!-)-|[+/^√\d]|[\d)}](?:\*|\s\*\s)|\b[A-Za-z]\*|[<>≤≥]\s*|\\(?:[lg]eq?|[lg]t|pm|mp|cdot|times|div|neg|sqrt)\s*"
    r"|(?:\A|\$|\\[(\[])(?:[^$A-Za-z]|\\[A-Za-z]+|\b[A-Za-z]\b)*[\w)}]\s*[-+/]\s+"
    r"|(?:[\^_]|\\[dtc]?frac(?:.*\})?|\\(?:sqrt|sin|cos|tan|log|ln))\s*\{)\$?\Z"
)
_AFTER = re.compile(
    r"\$?(?:\^(?!\{?\\?(?:circ|degree|text|mathrm|st|nd|rd|th))|[(A-Za-z]|[^\S\n]*(?:(?:squared|cubed)\b"
    r"|\\(?:cdot|times|div|pm|mp|[lg]eq?|[lg]t|pi|sqrt|[dtc]?frac)(?![A-Za-z])|[+/](?!\s*[A-Za-z]{2})|\*[(A-Za-z\\]"
    r"|<(?!/?\w+>)|[>≤≥]|-(?:\(|\s*\\(?!text)|\s*[A-Za-z]\b(?! [a-z]))))"
)
_MULTIPLE = re.compile(r"\$?\s*(?:\\text\s*\{\s*)?(hundred|thousand|[mb]illion|trillion|dozen)\b")
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore),? )?(?:the )?(?:final )?answer(?: is)?[ :]+", re.IGNORECASE
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_STATED = re.compile(r"\bfinal answer\s*(?:is)?[\s:*_]*(?:the final answer is[\s:]*)?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]\$?(?=\s|$)|\n|\Z")
_TEXT = re.compile(r"\\(?:text[a-z]*|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt pi min max gcd lcm mod det and dx dy".split()
)
_UNIT = re.compile(
    r"(?<=[\d})])(?:\\[ ,;:!]|~|\s)*(?:\\(?:text[a-z]*|mathrm|mbox)\s*\{\s*(?P<text>[^{}]*?)\s*\}(?P<power>\^\{?[23]\}?)?"
    r"|(?P<sign>\\?%|\\?°|\^\{?\\circ\}?)|(?P<word>(?<=[\d\s])[^\W\d_]{2,20}(?:\^\{?[23]\}?)?))$"
)
_SEGMENT = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}(?:\{[clr|]*\})?")
MAX_BOXES, NEAR = 50, 60  # boxes looked at, and characters around an answer that may doubt it
_BASE = re.compile(r"(?<=\d)_\{?(?:\\text\s*\{)?(\w+)")
_CLOCK = re.compile(r"0?(\d{1,2}(?::[0-5]\d){1,2})")
_SUPERSCRIPT = re.compile(r"(?<=[\w)}])[⁻²³¹⁰⁴-⁹]+")
_DOLLAR = "＄"  # in place of \$, which is no delimiter
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def symbolic(answer: str, gold: str, *, abs_tol: float = 0.0, rel_tol: float = 0.0) -> Score:
    """1 when the answer is the same mathematics as the gold answer.

    Args:
        answer: the policy's answer.
        gold: the gold answer, in LaTeX or plain notation.
        abs_tol: absolute tolerance for constants; without one 0.333333 is not 1/3.
        rel_tol: relative tolerance for constants.
    """
    wanted, found = expression(gold, gold=True), expression(answer)
    if not isinstance(wanted, str):
        return Score(None, f"the gold answer {gold[:80]!r} is not one expression: {wanted.why}")
    if not isinstance(found, str):
        return found
    if _DOLLAR in found and not re.search(f"[${_DOLLAR}]|dollar", wanted):
        return Score(0.0, "a dollar sign that the gold answer does not have")
    dollars = "$" if _DOLLAR in wanted else ""
    numbers = parse_number(wanted, dollars), parse_number(found, dollars)
    if None not in numbers:
        return compared(numbers[1], numbers[0], abs_tol, rel_tol)
    times = _CLOCK.fullmatch(wanted), _CLOCK.fullmatch(found)
    if all(times):
        return Score(float(times[0][1] == times[1][1]), "both are times of day or ratios in lowest terms")
    if re.fullmatch(r"\W*nan\W*", _plain(wanted), re.IGNORECASE):
        return Score(None, "the gold answer is not a number")
    if _is_words(wanted) and (_is_words(found) or _words(wanted)):
        same = normalize(_plain(found)) == normalize(_plain(wanted))
        return Score(1.0, "the same words") if same else Score(0.0, f"{found[:80]!r} is not {wanted[:80]!r}")
    (wanted, unit), (found, found_unit) = _split_unit(wanted), _split_unit(found)
    if unit and not found_unit:
        found, found_unit = _split_unit(found, unit)
    elif found_unit and not unit:
        wanted, unit = _split_unit(wanted, found_unit)
    why = next(_faults(wanted, found, unit, found_unit), None)
    return Score(0.0, why) if why else _compare(wanted, found, abs_tol, rel_tol)


def _compare(wanted: str, found: str, abs_tol: float, rel_tol: float) -> Score:
    try:
        verdict = _worker.ask("compare", _latex(wanted), _latex(found), abs_tol, rel_tol)
    except WorkerError as error:
        return Score(None, str(error))
    if not verdict.get("gold"):
        return Score(None, f"the gold answer {wanted[:80]!r} cannot be read as mathematics")
    if verdict.get("equal"):
        return Score(1.0, "the same mathematics")
    if "equal" in verdict:
        return Score(0.0, verdict.get("why") or f"{found[:80]!r} is not {wanted[:80]!r}")
    why = verdict.get("failed", "stopped at the time limit")
    return Score(0.0, f"{found[:80]!r} cannot be compared: {why}")


def expression(text: str, *, gold: bool = False) -> str | Score:
    """The one expression a text gives, delimiters off, or Score(0) saying why there is none.

    Args:
        text: an answer or a gold answer.
        gold: several boxes together are a list, as gold answers write it, instead of refused; words around do
            not cast doubt.
    """
    text = text.replace(r"\$", _DOLLAR)
    boxes = list(itertools.islice(_boxes(text), MAX_BOXES + 1))
    contents = list(dict.fromkeys(re.sub(r"\s+", " ", content).strip() for content, _, _ in boxes))
    stated = [] if gold and boxes else list(itertools.islice(_stated(text), MAX_BOXES + 1))
    different = {
        re.sub(r"\s", "", _bare(content)) for content in (*contents, *(content for content, _, _ in stated))
    }
    if len(different) > 1:
        return (
            ", ".join(map(_bare, contents))
            if gold and boxes
            else Score(0.0, f"{len(different)} different answers")
        )
    found = stated[-1:] or boxes[-1:] or _lone_segment(text)
    if found:
        ((content, start, end),) = found
        if multiple := _MULTIPLE.match(text[end : end + NEAR]):
            content, end = f"{content} {multiple[1]}", end + multiple.end()
        if not (gold or stated) and _is_part(text[max(0, start - NEAR) : start], text[end : end + NEAR]):
            return Score(0.0, "the answer is part of a larger expression")
        if not gold and _is_doubted(_clause_before(text[:start]), text[end:]):
            return Score(0.0, "the answer is doubted or continued by the words around it")
    else:
        content = _LEAD.sub("", text.strip(), count=1)
    if len(content) > MAX_ANSWER:
        return Score(0.0, f"an expression of {len(content)} characters; {MAX_ANSWER} is the limit")
    return _bare(content) or Score(0.0, "no expression")


def _stated(text: str) -> Iterator[tuple[str, int, int]]:
    """Content, start and end of every expression said to be the final answer without a box, up to the
    sentence's end.
    """
    for match in _STATED.finditer(text):
        math = _SEGMENT.match(text, match.end())  # a display may hold line ends
        end = rest = match.end() if math is None else math.end()
        if math is None or not re.search(r"[.!?]\W*$", math[0]):
            stop = _SENTENCE_END.search(text, end)
            end, rest = stop.start() + stop[0].count("$"), stop.end()
        content = text[match.end() : end]
        if content.strip() and "boxed" not in content and not _words(content):
            yield content, match.start(), rest


def _clause_before(text: str) -> str:
    return re.split(r"[.!?]\$?\s|\n", text[-NEAR:])[-1]


def _is_part(before: str, after: str) -> bool:
    """Whether mathematics goes on in front of an answer or behind it."""
    word = re.match(r"\$?([A-Za-z]{2,20})\b", after)
    return bool(
        _BEFORE.search(_MARKUP.sub("", before))
        or (_AFTER.match(after) and not (word and _may_be_unit(word[1], 4)))
    )


def _is_doubted(before: str, after: str) -> bool:
    doubts = (_DOUBT.search(before), _BOUND.search(before), _DOUBT.search(after[:NEAR]), _DENIAL.match(after))
    return any(doubts) or _goes_on(after)


def _goes_on(text: str) -> bool:
    """Whether another number follows in the same sentence."""
    return bool(re.search(r"\d", re.split(r"[.!?](?:\s|$)|\n", text[:NEAR])[0]))


def _boxes(text: str) -> Iterator[tuple[str, int, int]]:
    r"""Content, start and end of every \boxed{...}, braces balanced."""
    for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text):
        depth = 1
        for end in range(match.end(), min(len(text), match.end() + MAX_ANSWER)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                yield text[match.end() : end], match.start(), end + 1
                break


def _lone_segment(text: str) -> list[tuple[str, int, int]]:
    """The one expression between math delimiters in a short sentence, with the unit behind it; [] where there
    is none.
    """
    text = text.strip()
    found = list(_SEGMENT.finditer(text))
    if len(found) != 1 or not 0 < len(text) - len(found[0][0]) <= 2 * NEAR:
        return []
    start, end = found[0].span()
    unit = _UNIT.search(f"1 {text[end:].strip().rstrip('.')}")
    inside = next(group for group in found[0].groups() if group is not None)
    return [
        (
            f"{inside} {text[end:]}" if unit and not text[:start].strip() else inside,
            start,
            len(text) if unit else end,
        )
    ]


def _bare(text: str) -> str:
    """An expression without the delimiters, spacing and full stop around it."""
    text = " ".join(_SUPERSCRIPT.sub(_power, text).replace("−", "-").split())
    for _ in range(3):
        text = text.strip().rstrip(".").strip()
        for start, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**")):
            inside = text[len(start) : len(text) - len(end)]
            if (
                text.startswith(start)
                and text.endswith(end)
                and len(text) > len(start) + len(end)
                and start not in inside
            ):
                text = inside
    return re.sub(r"\\(?:left|right|displaystyle|bigl?|bigr?)(?![A-Za-z])\s*", "", text).strip()


def _power(superscript: re.Match) -> str:
    return "^{" + unicodedata.normalize("NFKC", superscript[0]) + "}"


def _plain(text: str) -> str:
    return _TEXT.sub(r" \1 ", text)


def _words(text: str) -> set[str]:
    """Words of prose in an expression: neither commands nor functions."""
    return {
        w.lower() for w in _WORD.findall(_COMMAND.sub(" ", _ENVIRONMENT.sub(" ", _plain(text))))
    } - _FUNCTIONS


def _is_words(text: str) -> bool:
    """Whether an expression is words only, such as a name, "yes" or the letter of a choice."""
    plain = _plain(text)
    return bool(re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[ '.,-])*", plain)) and (
        bool(_words(text)) or len(plain.strip()) == 1
    )


def _split_unit(text: str, known: str = "") -> tuple[str, str]:
    """An expression and the unit behind it, if there is one: ``known`` may be a single letter."""
    if known and (match := re.search(rf"(?<=[\d\s}})])\s*{re.escape(known)}$", text)):
        return text[: match.start()].strip(), known
    match = _UNIT.search(text)
    word = ((match and match["word"]) or "").partition("^")[0]
    if (
        not match
        or normalize(match[0]) in _FUNCTIONS
        or (word and not _may_be_unit(word, 3 if match[0][0].isspace() else 4))
    ):
        return text, ""
    unit = (
        (match["text"] or "") + (match["power"] or "")
        if match["text"] is not None
        else match["sign"] or match["word"]
    )
    return text[: match.start()].strip(), unit_name(re.sub(r"[\\{}\s.]", "", unit).removeprefix("^"))


def _may_be_unit(word: str, least: int) -> bool:
    """Whether Pint knows a word or it is long; shorter ones may be products such as xy, and multiples are
    part of the number.
    """
    return not _MULTIPLE.match(word) and (len(word) >= least or is_unit(word))


def _faults(wanted: str, found: str, unit: str, found_unit: str) -> Iterator[str]:
    """What is wrong with an answer before its value is looked at."""
    if found_unit and unit and not same_unit(found_unit, unit):
        yield f"the unit {found_unit!r} is not {unit!r}"
    if "%" in found_unit and "%" not in unit:
        yield "a percent sign that the gold answer does not have"
    bases = [_BASE.findall(text) for text in (wanted, found)]
    if bases[1] and bases[1] != (bases[0] or ["10"]):
        yield f"base {bases[1][0]} where the gold answer has {bases[0][0] if bases[0] else 10}"
    if extra := _words(found) - _words(wanted):
        yield f"words beside the expression: {', '.join(sorted(extra))[:80]}"
    shapes = _brackets(wanted), _brackets(found)
    if all(shapes) and shapes[0] != shapes[1]:
        yield f"{''.join(shapes[1])} brackets where the gold answer has {''.join(shapes[0])}"
    if shapes[1] in ("[]", "{}") and not re.search(r"[,;<>]|\\(?:pm|mp|cup|in|[lg]eq?)\b", wanted):
        yield "a list where the gold answer is one value"


def _brackets(text: str) -> str:
    r"""The pair of brackets that encloses an expression with a comma in it, such as "(]" or "{}"; "" where none does."""
    text = (
        text.replace(r"\{", "{").replace(r"\}", "}").replace(r"\lbrace", "{").replace(r"\rbrace", "}").strip()
    )
    if len(text) < 3 or text[0] not in _CLOSING or text[-1] not in _CLOSING.values() or "," not in text:
        return ""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and position < len(text) - 1:
            return ""
    return text[0] + text[-1]


def _latex(text: str) -> str:
    """Notation that the LaTeX reader takes wrongly, rewritten: 1e3, 1,000 as one number, and mixed numbers
    such as 2 3/4.
    """
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?![\w.])", r"\1 \\cdot 10^{\2}", text)
    text = re.sub(r"(?<![\w.,/])(\d+) (\d+)/(\d+)(?![\w/])", r"(\1+\\frac{\2}{\3})", text)
    text = re.sub(r"\\(?:mathrm|text|operatorname)\s*\{\s*([A-Za-z])\s*\}", r"\1", text)
    text = re.sub(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))", r"\\sqrt{\1\2}", text)
    text = re.sub(r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi ", text)
    return text.replace("×", r"\times ").replace("$", "").replace(_DOLLAR, "")
