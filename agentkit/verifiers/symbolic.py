r"""Answers as mathematics: LaTeX or plain, compared by value and structure.

The answer must be one expression: bare, between $ signs, in ``\boxed{}``, or behind "the final answer is".
Prose in it, two different ones, one that is part of a larger expression, an "or" that the gold answer lacks,
other brackets (a set for a tuple), another unit and another base are wrong before any algebra starts. A
single letter is a variable; it is a unit only where the other side says so (``\text{m}``). Plain numbers are
compared as numbers; everything else goes to isolated/algebra.py in a child that is killed after two seconds.
Leaves out proofs, and answers in words beyond equal words.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator

from agentkit.records import Score, Unscored
from agentkit.verifiers.numbers import compared, is_unit, parse_number, same_unit, unit_name
from agentkit.verifiers.text import MAX_ANSWER, normalize
from agentkit.verifiers.worker import Worker

_worker = Worker("algebra")
_DOUBT = re.compile(
    r"\b(?:not|never|neither|nor|cannot|or|either|wrong|incorrect|isn't|n't|maybe|perhaps|possibly"
    r"|probably)\b|n't\b|\\neq?\b|≠",
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
    r"(?:(?<!-)-|[+/^√\d]|[\d)}](?:\*|\s\*\s)|\b[A-Za-z]\*|[<>≤≥]\s*"
    r"|\\(?:[lg]eq?|[lg]t|pm|mp|cdot|times|div|neg|sqrt)\s*"
    r"|(?:\A|\$|\\[(\[])(?:[^$A-Za-z]|\\[A-Za-z]+|\b[A-Za-z]\b)*[\w)}]\s*[-+/]\s+"
    r"|(?:[\^_]|\\[dtc]?frac(?:.*\})?|\\(?:sqrt|sin|cos|tan|log|ln))\s*\{)\$?\Z"
)
_AFTER = re.compile(
    r"\$?(?:\^(?!\{?\\?(?:circ|degree|text|mathrm|st|nd|rd|th))|[(A-Za-z]|[^\S\n]*(?:(?:squared|cubed)\b"
    r"|\\(?:cdot|times|div|pm|mp|[lg]eq?|[lg]t|pi|sqrt|[dtc]?frac)(?![A-Za-z])"
    r"|[+/](?!\s*[A-Za-z]{2})|\*[(A-Za-z\\]|<(?!/?\w+>)|[>≤≥]|-(?:\(|\s*\\(?!text)|\s*[A-Za-z]\b(?! [a-z]))))"
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
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt pi min max gcd lcm mod "
    "det and dx dy".split()
)
_UNIT = re.compile(
    r"(?<=[\d})])(?:\\[ ,;:!]|~|\s)*"
    r"(?:\\(?:text[a-z]*|mathrm|mbox)\s*\{\s*(?P<text>[^{}]*?)\s*\}(?P<power>\^\{?[23]\}?)?"
    r"|(?P<sign>\\?%|\\?°|\^\{?\\circ\}?)|(?P<word>(?<=[\d\s])[^\W\d_]{2,20}(?:\^\{?[23]\}?)?))$"
)
_SEGMENT = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}(?:\{[clr|]*\})?")
MAX_BOXES, NEAR = 50, 60  # boxes looked at, and characters around an answer that may doubt it
_BASE = re.compile(r"(?<=\d)_\{?(?:\\text\s*\{)?(\w+)")
_CLOCK = re.compile(r"0?(\d{1,2}(?::[0-5]\d){1,2})")
_SUPERSCRIPT = re.compile(r"(?<=[\w)}])[⁻²³¹⁰⁴-⁹]+")
_DOLLAR = "＄"  # in place of \$, which is no delimiter


def symbolic(answer: str, gold: str, *, abs_tol: float = 0.0, rel_tol: float = 0.0) -> Score:
    """1 when the answer is the same mathematics as the gold answer.

    Args:
        gold: in LaTeX or plain notation.
        abs_tol: absolute tolerance for constants; without one 0.333333 is not 1/3.
        rel_tol: relative tolerance for constants.
    """
    wanted, given = expression(gold, gold=True), expression(answer)
    if isinstance(wanted, Score):
        raise Unscored(f"the gold answer {gold[:80]!r} is not one expression: {wanted.why}")
    if isinstance(given, Score):
        return given
    if _DOLLAR in given and not re.search(f"[${_DOLLAR}]|dollar", wanted):
        return Score(0.0, "a dollar sign that the gold answer does not have")
    dollars = "$" if _DOLLAR in wanted else ""
    gold_number, number = parse_number(wanted, dollars), parse_number(given, dollars)
    if gold_number is not None and number is not None:
        return compared(number, gold_number, abs_tol, rel_tol)
    gold_time, time = _CLOCK.fullmatch(wanted), _CLOCK.fullmatch(given)
    if gold_time and time:
        return Score(float(time[1] == gold_time[1]), "both are times of day or ratios in lowest terms")
    if re.fullmatch(r"\W*nan\W*", _plain(wanted), re.IGNORECASE):
        raise Unscored("the gold answer is not a number")
    if _is_words(wanted) and (_is_words(given) or _words(wanted)):
        same = normalize(_plain(given)) == normalize(_plain(wanted))
        return Score(1.0, "the same words") if same else Score(0.0, f"{given[:80]!r} is not {wanted[:80]!r}")
    (wanted, gold_unit), (given, unit) = _split_unit(wanted), _split_unit(given)
    if gold_unit and not unit:
        given, unit = _split_unit(given, gold_unit)
    elif unit and not gold_unit:
        wanted, gold_unit = _split_unit(wanted, unit)
    fault = _unit_fault(unit, gold_unit) or _base_fault(given, wanted) or _form_fault(given, wanted)
    return Score(0.0, fault) if fault else _compare(given, wanted, abs_tol, rel_tol)


def _compare(given: str, wanted: str, abs_tol: float, rel_tol: float) -> Score:
    verdict = _worker.ask("compare", _latex(wanted), _latex(given), abs_tol, rel_tol)
    if not verdict.get("gold"):
        raise Unscored(f"the gold answer {wanted[:80]!r} cannot be read as mathematics")
    if verdict.get("equal"):
        return Score(1.0, "the same mathematics")
    if "equal" in verdict:
        return Score(0.0, verdict.get("why") or f"{given[:80]!r} is not {wanted[:80]!r}")
    why = verdict.get("failed", "stopped at the time limit")
    return Score(0.0, f"{given[:80]!r} cannot be compared: {why}")


# ---- the one expression in a text
_Span = tuple[str, int, int]  # an expression in a text, its start and its end


def expression(text: str, *, gold: bool = False) -> str | Score:
    """The one expression a text gives, delimiters off, or Score(0) saying why there is none.

    In a gold answer several boxes together are a list, and words around them cast no doubt.
    """
    text = text.replace(r"\$", _DOLLAR)
    boxes = list(itertools.islice(_boxes(text), MAX_BOXES + 1))
    stated = [] if gold and boxes else list(itertools.islice(_stated(text), MAX_BOXES + 1))
    contents = list(dict.fromkeys(re.sub(r"\s+", " ", content).strip() for content, _, _ in boxes))
    candidates = [*contents, *(content for content, _, _ in stated)]
    different = {re.sub(r"\s", "", _bare(content)) for content in candidates}
    if len(different) > 1 and gold and boxes:
        return ", ".join(map(_bare, contents))
    if len(different) > 1:
        return Score(0.0, f"{len(different)} different answers")
    spans = stated[-1:] or boxes[-1:] or _lone_segment(text)
    if spans:
        content, start, end = spans[0]
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


def _boxes(text: str) -> Iterator[_Span]:
    r"""Every \boxed{...}, braces balanced."""
    for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text):
        depth = 1
        for end in range(match.end(), min(len(text), match.end() + MAX_ANSWER)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                yield text[match.end() : end], match.start(), end + 1
                break


def _stated(text: str) -> Iterator[_Span]:
    """Every expression said to be the final answer without a box, up to the sentence's end."""
    for match in _STATED.finditer(text):
        segment = _SEGMENT.match(text, match.end())  # a display may hold line ends
        end = rest = segment.end() if segment else match.end()
        if not segment or not re.search(r"[.!?]\W*$", segment[0]):
            stop = _SENTENCE_END.search(text, end)
            end, rest = stop.start() + stop[0].count("$"), stop.end()
        content = text[match.end() : end]
        if content.strip() and "boxed" not in content and not _words(content):
            yield content, match.start(), rest


def _lone_segment(text: str) -> list[_Span]:
    """The one expression between math delimiters in a short sentence, and its unit; [] if there is none."""
    text = text.strip()
    segments = list(_SEGMENT.finditer(text))
    if len(segments) != 1 or not 0 < len(text) - len(segments[0][0]) <= 2 * NEAR:
        return []
    start, end = segments[0].span()
    inside = next(group for group in segments[0].groups() if group is not None)
    has_unit = _UNIT.search(f"1 {text[end:].strip().rstrip('.')}")
    if has_unit and not text[:start].strip():
        inside = f"{inside} {text[end:]}"
    return [(inside, start, len(text) if has_unit else end)]


def _is_part(before: str, after: str) -> bool:
    """Whether mathematics goes on in front of an answer or behind it."""
    if _BEFORE.search(_MARKUP.sub("", before)):
        return True
    word = re.match(r"\$?([A-Za-z]{2,20})\b", after)
    return bool(_AFTER.match(after)) and not (word and _may_be_unit(word[1], 4))


def _clause_before(text: str) -> str:
    return re.split(r"[.!?]\$?\s|\n", text[-NEAR:])[-1]


def _is_doubted(before: str, after: str) -> bool:
    """Whether words before or after an answer doubt it, or another number follows in the same sentence."""
    if _DOUBT.search(before) or _BOUND.search(before) or _DOUBT.search(after[:NEAR]) or _DENIAL.match(after):
        return True
    return bool(re.search(r"\d", re.split(r"[.!?](?:\s|$)|\n", after[:NEAR])[0]))


def _bare(text: str) -> str:
    """An expression without the delimiters, spacing and full stop around it."""
    text = " ".join(_SUPERSCRIPT.sub(_power, text).replace("−", "-").split())
    for _ in range(3):
        text = text.strip().rstrip(".").strip()
        for start, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**")):
            inside = text[len(start) : len(text) - len(end)]
            if inside and text.startswith(start) and text.endswith(end) and start not in inside:
                text = inside
    return re.sub(r"\\(?:left|right|displaystyle|bigl?|bigr?)(?![A-Za-z])\s*", "", text).strip()


def _power(superscript: re.Match) -> str:
    return "^{" + unicodedata.normalize("NFKC", superscript[0]) + "}"


# ---- words and units
def _plain(text: str) -> str:
    return _TEXT.sub(r" \1 ", text)


def _words(text: str) -> set[str]:
    """Words of prose in an expression: neither commands nor functions."""
    prose = _COMMAND.sub(" ", _ENVIRONMENT.sub(" ", _plain(text)))
    return {word.lower() for word in _WORD.findall(prose)} - _FUNCTIONS


def _is_words(text: str) -> bool:
    """Whether an expression is words only, such as a name, "yes" or the letter of a choice."""
    plain = _plain(text)
    if not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[ '.,-])*", plain):
        return False
    return bool(_words(text)) or len(plain.strip()) == 1


def _split_unit(text: str, known: str = "") -> tuple[str, str]:
    """An expression and the unit behind it, if there is one: ``known`` may be a single letter."""
    if known and (match := re.search(rf"(?<=[\d\s}})])\s*{re.escape(known)}$", text)):
        return text[: match.start()].strip(), known
    match = _UNIT.search(text)
    if not match or normalize(match[0]) in _FUNCTIONS:
        return text, ""
    if match["word"] and not _may_be_unit(match["word"].partition("^")[0], 3 if match[0][0].isspace() else 4):
        return text, ""
    unit = match["sign"] or match["word"] or (match["text"] or "") + (match["power"] or "")
    return text[: match.start()].strip(), unit_name(re.sub(r"[\\{}\s.]", "", unit).removeprefix("^"))


def _may_be_unit(word: str, least: int) -> bool:
    """Whether a word is long or known to Pint; a shorter one may be a product, and a multiple is no unit."""
    return not _MULTIPLE.match(word) and (len(word) >= least or is_unit(word))


# ---- what is wrong before the value is looked at
def _unit_fault(unit: str, gold_unit: str) -> str:
    if unit and gold_unit and not same_unit(unit, gold_unit):
        return f"the unit {unit!r} is not {gold_unit!r}"
    if "%" in unit and "%" not in gold_unit:
        return "a percent sign that the gold answer does not have"
    return ""


def _base_fault(given: str, wanted: str) -> str:
    bases, gold_bases = _BASE.findall(given), _BASE.findall(wanted) or ["10"]
    if bases and bases != gold_bases:
        return f"base {bases[0]} where the gold answer has {gold_bases[0]}"
    return ""


def _form_fault(given: str, wanted: str) -> str:
    if extra := _words(given) - _words(wanted):
        return f"words beside the expression: {', '.join(sorted(extra))[:80]}"
    brackets, gold_brackets = _brackets(given), _brackets(wanted)
    if brackets and gold_brackets and brackets != gold_brackets:
        return f"{brackets} brackets where the gold answer has {gold_brackets}"
    if brackets in ("[]", "{}") and not re.search(r"[,;<>]|\\(?:pm|mp|cup|in|[lg]eq?)\b", wanted):
        return "a list where the gold answer is one value"
    return ""


def _brackets(text: str) -> str:
    r"""The brackets that enclose an expression with a comma in it, such as "(]" or "{}"; "" for none."""
    text = (
        text.replace(r"\{", "{").replace(r"\}", "}").replace(r"\lbrace", "{").replace(r"\rbrace", "}").strip()
    )
    if len(text) < 3 or text[0] not in "([{" or text[-1] not in ")]}" or "," not in text:
        return ""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and position < len(text) - 1:
            return ""
    return text[0] + text[-1]


def _latex(text: str) -> str:
    """Notation that the LaTeX reader takes wrongly, rewritten: 1e3, roots, pi, mixed numbers like 2 3/4."""
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?![\w.])", r"\1 \\cdot 10^{\2}", text)
    text = re.sub(r"(?<![\w.,/])(\d+) (\d+)/(\d+)(?![\w/])", r"(\1+\\frac{\2}{\3})", text)
    text = re.sub(r"\\(?:mathrm|text|operatorname)\s*\{\s*([A-Za-z])\s*\}", r"\1", text)
    text = re.sub(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))", r"\\sqrt{\1\2}", text)
    text = re.sub(r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi ", text)
    return text.replace("×", r"\times ").replace("$", "").replace(_DOLLAR, "")
