r"""Answers as mathematics: LaTeX or plain, compared by value and structure in isolated/algebra.py.

Before any algebra: words that the gold answer lacks, an "or", other brackets and another base are wrong.
Plain numbers are compared as numbers. Everything else goes to a child process that is killed when its time is
up. Leaves out prose, chains whose sides differ, and units but those behind a number.
"""

import re
import unicodedata

from agentkit.records import Score, Unscored
from agentkit.verifiers.numbers import (
    amount,
    asks_for,
    compared,
    currency,
    is_unit,
    known,
    names_unit,
    parse_number,
    without_name,
)
from agentkit.verifiers.pool import Pool

_pool = Pool()
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt abs pi min max gcd lcm "
    "mod det infty".split()
)
_SMALL_WORDS = frozenset(("or", "is", "no", "not", "and"))
_COMMAND = re.compile(r"\\[A-Za-z]+")
_TEXT = re.compile(r"\\(?:text[a-z]*|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}")
_WORD = re.compile(r"(?<![^\W\d_])[^\W\d_]{2,}(?![^\W\d_])")
_BASE = re.compile(r"(?<=\d)_\{?(?:\\text\s*\{)?(\w+)")
_EQUATION = re.compile(r"=|\\in(?![a-z])")
_SEVERAL = re.compile(r"[,;<>]|\\(?:pm|mp|cup|in|[lg]eq?)\b")
_UNIT = re.compile(r"(?<=[\d})a-z])\s*\\(?:text[a-z]*|mathrm|mbox)\s*\{\s*([^{}]*?)\s*\}(\^\{?[23]\}?)?$")
_UNREAD = re.compile(  # relations and signs that say more than a value
    r"\\(?:n?eq?|not|lnot|neg|ne|implies|[Rr]ightarrow|to|iff|approx)(?![a-z])|≠|≈|⇒|→|=>|[^\x00-\x7fα-ωΑ-Ω°']|~|\?"
)
_NOTATION = tuple(  # how people type what the LaTeX reader takes in one form only
    (re.compile(pattern), form)
    for pattern, form in (
        (r"−|(?<![\w)}])[‐-–]", "-"),
        (r"(?<![A-Za-z\\])sqrt\s*\(((?:[^()]|\([^()]*\))*)\)", r"\\sqrt{\1}"),
        (r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))", r"\\sqrt{\1\2}"),
        (r"(?<![A-Za-z\\])(sin|cos|tan|ln|log)(?=[\s(\d^])", r"\\\1 "),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])|π", r"\\pi "),
        (r"∞|(?<![A-Za-z\\])infinity\b", r"\\infty "),
        (r"∪", r"\\cup "),
        (r"∈", r"\\in "),
        (r"[·⋅]", r"\\cdot "),
        (r"×", r"\\times "),
        (r"\*\*", "^"),
        (r"\{,\}", ","),
        (r"≤", r"\\le "),
        (r"≥", r"\\ge "),
        (r"½", r"\\frac{1}{2}"),
        (r"(?<=[\w)}])[²³¹⁰⁴-⁹]+", lambda power: f"^{{{unicodedata.normalize('NFKC', power[0])}}}"),
        (r"\\(?:left|right|displaystyle|[Bb]igl?|[Bb]igr?)(?![A-Za-z])", " "),
        (r"(?<!\\)\\[()\[\],;:! ]|(?<!\\)\$", " "),
        (r"\\langle(?![a-z])", "("),
        (r"\\rangle(?![a-z])", ")"),
        (r"\\text\s*\{\s*(?:or)\s*\}", " or "),
    )
)
_LATEX = tuple(  # plain notation that the LaTeX reader would misread
    (re.compile(pattern), form)
    for pattern, form in (
        (r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?![\w.])", r"\1 \\cdot 10^{\2}"),
        (r"(?<![\w.,/])(\d+) (\d+)/(\d+)(?![\w/])", r"(\1+\\frac{\2}{\3})"),
        (r"\^(?:\{\s*(?:T|\\top)\s*\}|T(?![A-Za-z])|\\top\b)", "^{t_{T}}"),  # transposed: a name of its own
        (r"([A-Za-z)\]])(['’′]{1,4})(?!\s*_)", lambda primed: f"{primed[1]}_{{{'zz' * len(primed[2])}}}"),
    )
)


def symbolic(
    answer: str, gold: str, *, question: str = "", abs_tol: float = 0.0, rel_tol: float = 0.0
) -> Score:
    """1 when the answer is the same mathematics as the gold answer.

    Args:
        gold: in LaTeX or plain notation.
        question: what was asked; a unit that it asks for may stand behind a number.
        abs_tol: absolute tolerance for constants; without one 0.333333 is not 1/3.
        rel_tol: relative tolerance for constants.

    Raises:
        Unscored: the gold answer is not readable as mathematics.
    """
    wanted, given = _bare(gold), _bare(answer)
    if not wanted or wanted.casefold() == "nan":
        raise Unscored(f"the gold answer {gold[:80]!r} is no mathematics")
    if wanted == given and len(wanted) > 1:
        return Score(1.0, "equal as written")
    if fault := _fault(given, wanted):
        return Score(0.0, fault)
    if ":" in wanted + given:  # times of day, ratios in lowest terms
        return Score(float(wanted.lstrip("0") == given.lstrip("0")), "compared as written")
    given = given if _EQUATION.search(wanted) else without_name(given, "")
    wanted = wanted if _EQUATION.search(given) else without_name(wanted, "")
    given = _without_unit(given, wanted, question)
    if score := _as_numbers(given, wanted, question, abs_tol, rel_tol):
        return score
    if not re.search(r"[\d\\=+*/^<>(-]", wanted) and len(wanted) > 1:
        return Score(float(wanted.casefold() == given.casefold()), "compared as words")
    return _by_algebra(given, wanted, abs_tol, rel_tol)


def _bare(text: str) -> str:
    for pattern, form in _NOTATION:
        text = pattern.sub(form, text)
    return " ".join(text.split()).strip(" *`").rstrip(".,")


# ---- what is wrong before any value is looked at
def _fault(given: str, wanted: str) -> str:
    """Why the answer is wrong as it is written; "" where its value must be looked at."""
    bases, gold_bases = _BASE.findall(given), _BASE.findall(wanted)
    if bases and bases != (gold_bases or ["10"]):
        return "another base than the gold answer's"
    extra = {word for word in _words(given) - _words(wanted) if len(word) > 3 or word in _SMALL_WORDS}
    if extra == {"or"} and re.search(r"[=<>]|\\[lg]e", given) and re.search(r"[,<>]|\\cup|or", wanted):
        extra = set()
    if extra and not amount(given):
        return f"words beside the expression: {', '.join(sorted(extra))[:80]}"
    brackets, gold_brackets = _brackets(given), _brackets(wanted)
    if brackets and gold_brackets and brackets != gold_brackets:
        return "other brackets than the gold answer's"
    if brackets in ("[]", "{}") and not _SEVERAL.search(wanted):
        return "a list where the gold answer is one value"
    unread = set(_UNREAD.findall(given)) - set(_UNREAD.findall(wanted))
    return f"signs that the gold answer lacks: {' '.join(sorted(unread))[:80]}" if unread else ""


def _words(text: str) -> set[str]:
    prose = _COMMAND.sub(" ", _ENVIRONMENT.sub(" ", _TEXT.sub(r" \1 ", text)))
    return {word.casefold() for word in _WORD.findall(prose)} - _FUNCTIONS


def _brackets(text: str) -> str:
    """The pair of brackets around all of a list, such as "()"; "" where there is none."""
    text = text.replace("\\{", "{").replace("\\}", "}")
    if len(text) < 3 or text[0] not in "([{" or text[-1] not in ")]}" or "," not in text:
        return ""
    depth = [0]
    for character in text:
        depth.append(depth[-1] + (character in "([{") - (character in ")]}"))
    return "" if 0 in depth[1:-1] else text[0] + text[-1]


# ---- numbers with units
def _without_unit(given: str, wanted: str, question: str) -> str:
    r"""The answer without the \text{unit} behind it, where the gold answer has none and it may be."""
    unit = _UNIT.search(given)
    if not unit or _UNIT.search(wanted) or (amount(wanted) or ("", ""))[1]:
        return given
    name = unit[1] + (unit[2] or "")
    is_own = known(name) is not None and not names_unit(question)
    may_stand = is_own or asks_for(name, question) or name in ("units", "square units", "cubic units")
    return given[: unit.start()].strip() if may_stand else given


def _as_numbers(given: str, wanted: str, question: str, abs_tol: float, rel_tol: float) -> Score | None:
    """The verdict where both are numbers, or where the gold answer has a unit; None for other expressions."""
    its, golds = amount(given), amount(wanted)
    if not golds or (golds.unit and not _is_long_unit(golds.unit)):
        return None
    if its and "," not in given and (len(its.unit) != 1 or its.unit in "%$€£¥°"):
        value = parse_number(given, golds.unit, question)
        if value is None:
            return Score(0.0, f"{given[:80]!r} is not one number{f' in {golds.unit}' if golds.unit else ''}")
        return compared(value, golds.value, abs_tol, rel_tol)
    return Score(0.0, f"{given[:80]!r} is not in {golds.unit}") if golds.unit else None


def _is_long_unit(unit: str) -> bool:
    """A single letter is a variable."""
    return (len(unit) > 1 or unit in "%°" or bool(currency(unit))) and is_unit(unit)


# ---- everything else
def _by_algebra(given: str, wanted: str, abs_tol: float, rel_tol: float) -> Score:
    is_one = _EQUATION.search(wanted) or re.search(r"\b(?:or|and)\b|,", given)
    for side in [given] if is_one else re.split(r"(?<![<>!\\])=", given):  # of 6/36 = 1/6 each must be it
        verdict = _pool.ask(_latex(wanted), _latex(side), abs_tol, rel_tol)
        if not verdict.get("gold"):
            raise Unscored(f"the gold answer {wanted[:80]!r} is not readable as mathematics")
        if not verdict.get("equal"):
            why = verdict.get("why", f"{side[:80]!r} is not {wanted[:80]!r}")
            return Score(0.0, why if "equal" in verdict else "the comparison takes too long")
    return Score(1.0, "the same mathematics")


def _latex(text: str) -> str:
    for pattern, form in _LATEX:
        text = pattern.sub(form, text)
    return text
