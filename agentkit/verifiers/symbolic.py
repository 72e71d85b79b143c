r"""Answers as mathematics: LaTeX or plain, compared by value and structure.

The answer must be one expression in a known frame (frames.py). Prose in it, one that the gold answer lacks:
an "or", other brackets (a set for a tuple), a unit or a base is wrong before any algebra starts. What is
dropped behind a value is a unit that Pint knows or a thing that the question counts. A single letter is a
variable; it is a unit only where the other side says so (``\text{m}``). Plain numbers are compared as
numbers; everything else goes to isolated/algebra.py in a child that is killed after two seconds. Leaves out
proofs, and answers in words beyond equal words.
"""

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from functools import partial

from agentkit.records import Score, Unscored
from agentkit.verifiers.extraction import MAX_ANSWER
from agentkit.verifiers.frames import expression, names_answer
from agentkit.verifiers.masks import DOLLAR
from agentkit.verifiers.normalisation import normalize
from agentkit.verifiers.numbers import (
    MULTIPLES,
    asked_unit,
    compared,
    is_unit,
    numeric,
    parse_number,
    same_unit,
    unit_name,
)
from agentkit.verifiers.questions import asked, lexeme
from agentkit.verifiers.words import is_counted
from agentkit.verifiers.worker import Worker

_worker = Worker("algebra")
_number = partial(parse_number, decimal_comma=False)
_DIGIT_COMMAND = re.compile(r"\\(?:[dt]?frac|sqrt|cdot|times|pi|left|right)(?![A-Za-z])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_TEXT = re.compile(r"\\(?:text[a-z]*|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_WORD = re.compile(r"(?<![^\W\d_])[^\W\d_]{2,}(?![^\W\d_]|\s*\^)")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt abs pi min max gcd lcm "
    "mod det and dx dy infty".split()
)
_UNIT = re.compile(
    r"""
    (?<=[\d})\w])(?:\\[ ,;:!]|~|\s)*
    (?:
      \\(?:text[a-z]*|mathrm|mbox)\s*\{\s*(?P<text>[^{}]*?)\s*\}(?P<power>\^\{?[23]\}?)?
    | (?P<sign>\\?%|\\?°|\^\{?\\circ\}?)
    | (?<=[\d}\s])(?P<word>/?[^\W\d_]{2,20}(?:\^\{?[23]\}?)?(?:[ /][^\W\d_]{1,20}(?:\^\{?[23]\}?)?){0,4})
    )$""",
    re.VERBOSE,
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}(?:\{[clr|]*\})?")
_ROWS = re.compile(r"(?:\b\w{0,9}\.?(?:Matrix|array)\()?\[((?:\[[^\[\]]*\],?\s*)+)\]\)?")  # [[1, 2], [3, 4]]
_TUPLE = re.compile(r"\A\(((?!.*(?:&|\\\\))[^(),]{1,60}(?:,[^(),]{1,60}){1,9})\)\Z")
_COLUMN = re.compile(r"\\begin\s?\{([pb])matrix\}((?:[^&,\\]|\\\\|\\[a-z])+)\\end\s?\{\1matrix\}")
_ASKED_VECTOR = re.compile(
    r"\A(?!.*\b(?:row|interval|inequal\w*|range|domain|values? of|for which|set)\b)"
    r".*\b(?:cross product|(?:find|what is|compute|give) (?:the |a )?(?:\w+ ){0,2}vector)\b",
    re.IGNORECASE | re.DOTALL,
)
_BASE = re.compile(r"(?<=\d)_\{?(?:\\text\s*\{)?(\w+)")
_CLOCK = re.compile(r"0?(\d{1,2}(?::[0-5]\d){1,2})")
_SUPERSCRIPT = re.compile(r"(?<=[\w)}])[⁻²³¹⁰⁴-⁹]+")
_MULTIPLE = re.compile(rf"({'|'.join(MULTIPLES)})(?![^\W\d_])\s*")
_ASKED_MONEY = re.compile(r"\$(?=\d)|\\\$|dollar")
_ASKED_PRICE = re.compile(
    r"\b(?:pays?|costs?|price|earns?|spends?|salary|profit|revenue|money|worth|charged?|owes?)\b"
)
_ASKED_PERCENT = re.compile(
    r"(?:what|which|find|calculate|determine|compute|how many|as an?|in|express)\b[^.?\d%]{0,40}"
    r"\bper ?cent(?:age)?\b",
    re.IGNORECASE,
)
_RELATED = re.compile(r"[=<>≤≥≈]|\\(?:approx|in|ne|[lg]eq?)\b")
_INEQUALITY = re.compile(r"[<>≤≥]|\\[lg](?:eq?|eqslant|t)(?![A-Za-z])")
_SOLUTIONS = re.compile(r"\s*([A-Za-z])\s*=[^=]*?(?:\bor\s+\1\s*=[^=]*?)+\Z")  # x = 3 or x = -3
_REPEATING = re.compile(r"(\d{1,30})\.(\d{0,30})(?:\\(?:overline|bar|dot)\s*\{?(\d{1,30})\}?|\((\d{1,30})\))")
_PRIMES = re.compile(r"([A-Za-z)\]])(['’′]{1,4})(?!\s*_)")
_DEGREES = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)\s*[({]?\s*)(\d{1,6}(?:\.\d{1,6})?)\s*(?:\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|°)"
)
_TRANSPOSED = re.compile(
    r"(?<!matrix\})(?<!matrix\}\))\^(?:\{\s*(?:T|\\top|\\intercal)\s*\}|T(?![A-Za-z])|\\top\b)"
)
_REVERSED = re.compile(  # ]a, b[ or [a; b[, as intervals are written in France and Germany
    r"(?:\\left\s?|(?<![\w)}\]]))([\[\]])([^\[\]();,]{1,60})(?:\\,)?\s*[;,](?:\\,)?([^\[\]();,]{1,60}?)(?:\\right)?(\]|\[(?!\s*[-\w\\(]))"
)
_NO_SOLUTION = frozenset(
    "no solution|no solutions|no real solution|no real solutions|there is no solution|there are no solutions"
    "|there is no real solution|there are no real solutions|empty set|the empty set|keine lösung"
    "|keine reelle lösung|aucune solution|sin solución|无解|無解|解なし".split("|")
)
_LABELLED = re.compile(r"[\s*]*+([A-Za-z][A-Za-z ]{1,29}[A-Za-z])\**+[:：][\s*]*+(\S[^\n]*+)\s*+")
_ALL_BUT = re.compile(  # all real numbers except x = 1
    r"(?:([a-z]) (?:∈|is) )?all (?:the )?real (?:numbers|([a-z]))\s*,? (?:except|but|other than|excluding)"
    r"(?: for)?(?: ([a-z]) ?=)? (-?\d{1,9}(?:\.\d{1,9}|/\d{1,9})?)"
)
_ONLY_BOX = re.compile(r"\A\\boxed\s*\{(.{1,80})\}\Z")
_EMPTY = re.compile(r"\\(?:emptyset|varnothing)(?![A-Za-z])|∅|\\\{\s*\\\}")


def _greek(letter: str) -> str:
    return unicodedata.name(letter).split()[-1].lower().replace("lamda", "lambda")


def _reversed(interval: re.Match) -> str:
    """An interval whose open ends are brackets turned round, in round ones."""
    opens, low, high, closes = interval.groups()
    if opens == "[" and closes == "]":
        return interval[0] if ";" not in interval[0] else f"[{low},{high}]"
    return f"{'(' if opens == ']' else '['}{low},{high}{')' if closes == '[' else ']'}"


_BUILT = re.compile(  # {x in R : x <= 5}
    r"\\\{\s*([a-z])\s*(?:(?:\\in|∈)\s*(?:\\mathbb\s*\{?R\}?|ℝ)\s*)?(?::|\\mid|\\vert|\|)\s*"
    r"((?=[^:]*\1)(?=[^:]*(?:[<>≤≥]|\\[lg](?:e|eq|t)(?![A-Za-z])))[^:,{}|=]{1,60}?)\s*\\\}"
)
_CONDITION = re.compile(
    r"[\s,$]*(?:(?:\\text\s*\{)?[ ,(]*\b(?:for|where|if|with|when|provided(?: that)?)\b[ }]*"
    r"|,(?:\s|\\[,; ])*|\(\s*)\$?"
    r"(?P<condition>\(?[a-z]\s*(?:≠|\\neq?(?![A-Za-z]))\s*-?\d{1,9})\s*\$?\s*\)?[\s$.]*\Z"
)
_OR = "(?:or|ou|oder|ou bien|или|または|或)"
_ARGUMENT = r"\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
_NOTATION = tuple(  # how people type what the LaTeX reader takes in one form only
    (re.compile(pattern), form)
    for pattern, form in (
        (r"−|(?<![\w)}])[‐-–]", "-"),
        (r"(?<![A-Za-z\\])sqrt" + _ARGUMENT, r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])exp" + _ARGUMENT, r"e^{\1}"),
        (r"(?<![A-Za-z\\])abs" + _ARGUMENT, r"|\1|"),
        (r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))", r"\\sqrt{\1\2}"),
        (r"(?<![A-Za-z\\])((?:arc)?(?:sin|cos|tan)|cot|sec|csc|ln|log)(?=[\s(\d^²³])", r"\\\1 "),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])|π", r"\\pi "),
        (r"∞|(?<![A-Za-z\\])infinity\b", r"\\infty "),
        (r"\{([:,])\}", r"\1"),
        ("½", r"\\frac{1}{2}"),
        (r"(?<![\w.])(\d+)\s?(?:\\text\s?\{\s?)?\(\s?base[ -]?(\d\d?)\s?\)\s?\}?\s*\Z", r"\1_{\2}"),
        ("(?<=[A-Za-zΑ-ω])[₀-₉]+", lambda index: f"_{{{unicodedata.normalize('NFKC', index[0])}}}"),
        ("¼", r"\\frac{1}{4}"),
        ("¾", r"\\frac{3}{4}"),
        (r"\A\s*\$?\s*(?:m?\\angle\s*)?[A-Z]{2,4}\s*=(?=[^=]*\Z)", ""),  # a segment or an angle
        (r"(?:\\langle|⟨)([^<>⟨⟩]*?,[^<>⟨⟩]*?)(?:\\rangle|⟩)", r"(\1)"),  # a vector
        (r"\s+\(\s*(?:approximately|about|≈|\\approx)\s*\$?(-?\d+\.?\d*)\$?\s*\)\s*\Z", r" \\approx \1"),
        (rf"(?:\\q?quad\s*)?\\text\s*\{{\s*{_OR}\s*\}}(?:\s*\\q?quad(?![A-Za-z]))?", " or "),
        (_REVERSED.pattern, _reversed),
        ("∈", r"\\in "),
        ("∪", r"\\cup "),
        (_BUILT.pattern, r"\2"),
        (r"(?<![\u0370-\u03ff])[α-ω](?<![ος])(?![^\W\d_])", lambda letter: f"\\{_greek(letter[0])} "),
        (r"\*\*", "^"),
        (r"\\(?:lor|vee)(?![A-Za-z])|∨", " or "),
        ("[·⋅]", r"\\cdot "),
        ("×", r"\\times "),
        (r"(?<=\d)\s*\^?\{?(?:\\text\s*\{)?\s*(?:st|nd|rd|th)(?![^\W\d_])\s*\}{0,2}", ""),  # ordinals
    )
)


def symbolic(
    answer: str, gold: str, *, question: str = "", abs_tol: float = 0.0, rel_tol: float = 0.0
) -> Score:
    """1 when the answer is the same mathematics as the gold answer.

    Args:
        gold: in LaTeX or plain notation.
        question: what was asked; its words may stand around the answer, and what it counts behind a number.
        abs_tol: absolute tolerance for constants; without one 0.333333 is not 1/3.
        rel_tol: relative tolerance for constants.
    """
    if _is_no_solution(gold) and _is_no_solution(answer) and not re.search(r"(?i)complex|which of", question):
        return Score(1.0, "both say that there is none")
    wanted = expression(gold, gold=True)
    answer = _without_condition(answer, gold, question)
    given = _all_but_one(answer, question) or expression(_unlabelled(answer, question), question)
    if isinstance(wanted, Score):
        raise Unscored(f"the gold answer {gold[:80]!r} is not one expression: {wanted.why}")
    if isinstance(given, Score):
        return given
    if _TEXT.match(given.strip("$ ")) and re.search(r"\d", given):
        said = expression(" ".join(_plain(given.strip("$ ")).split()), question)
        given = said if isinstance(said, str) and len(said) < len(given) else given
    wanted, given = _both_signs(_bare(wanted)), _both_signs(_bare(given))
    given = _joined(given, wanted, question)
    if "matrix}" in wanted:
        given = _ROWS.sub(_matrix, given)
        given = _TUPLE.sub(partial(_vector, column="&" not in wanted), given)
    elif _TUPLE.match(wanted) and (column := _COLUMN.fullmatch(given)) and _ASKED_VECTOR.search(question):
        given = f"({column[2].replace(chr(92) * 2, ', ')})"
    if re.search(r"\+\s*C$", wanted):
        given = re.sub(r"(?<=\+)\s*[cKk]$", " C", given)
    if not wanted:
        raise Unscored("the gold answer is empty")
    if not given or len(given) > MAX_ANSWER:
        return Score(0.0, f"an expression of {len(given)} characters; {MAX_ANSWER} is the limit")
    tolerance = {"abs_tol": abs_tol, "rel_tol": rel_tol}
    return _at_sight(given, wanted, question) or _with_units(given, wanted, question, tolerance)


def _both_signs(text: str) -> str:
    """Both values of a fraction or root with one ± in it, which the LaTeX reader does not take."""
    is_inside = (
        text.count(r"\pm") == 1 and "\\mp" not in text and re.search(r"\{[^{}]*\\pm(?![A-Za-z])", text)
    )
    return f"{text.replace(chr(92) + 'pm', '+')}, {text.replace(chr(92) + 'pm', '-')}" if is_inside else text


def _joined(given: str, wanted: str, question: str) -> str:
    """Solutions in one notation: x_1 = 4, x_2 = -2 where no x has an index, and x = a y x = -a in Spanish."""
    indices = re.findall(r"(?<![A-Za-z])[a-z]_\{?(\d)\}?\s*=(?!\s*[a-z]_)", given[:300])
    is_numbered = len(set(indices)) == len(indices) == given.count("_") > 1
    if is_numbered and "_" not in wanted and not re.search(r"[a-z](?:_\{?\d|[₀-₉])", question):
        given = re.sub(r"([a-z])_\{?\d\}?(?=\s*=)", r"\1", given)
    if len(given) < 200 and re.search("[¿ñáéíóúàèìòù]", question):
        given = re.sub(r"(=\s?[^\s=,][^=,]{0,19}?)\s[ye]\s(?=[A-Za-z]\s?=)", r"\1, ", given)
    return given


def _unlabelled(answer: str, question: str) -> str:
    """An answer without what was sought in front of it: "Vertex: (4, 7)"."""
    labelled = _LABELLED.fullmatch(answer) if question else None
    sought = asked(question).sought if labelled else ()
    is_sought = len(sought) == 1 and {lexeme(labelled[1])} == sought
    return labelled[2] if is_sought and labelled[1].casefold() in question.casefold() else answer


def _without_condition(answer: str, gold: str, question: str) -> str:
    """An answer without the question's own condition behind it: x + 1 (for x ≠ 1)."""
    behind = None if _CONDITION.search(gold[-80:]) else _CONDITION.search(answer, max(0, len(answer) - 80))
    if not behind:
        return answer
    shorter, own = answer[: behind.start()], _signs(behind["condition"]).strip("( )")
    is_own = re.search(rf"(?<![\w.]){re.escape(own)}(?![\w./,]*\d)", _signs(question))
    is_about = re.search(rf"(?<![A-Za-z]){own[0]}(?![A-Za-z])", shorter) and not _RELATED.search(shorter)
    if not (is_own and is_about):
        return answer
    return shorter + "$" * (shorter.count("$") % 2)


def _signs(text: str) -> str:
    text = re.sub(r"\\[,;: ]|[{}]", "", re.sub(r"\\neq?(?![A-Za-z])", "≠", text)).replace("$", " ")
    return re.sub(r"\s*≠\s*", "≠", text)


def _all_but_one(answer: str, question: str) -> str:
    """All real numbers but one as intervals, where the domain of a function is asked for; else ""."""
    if len(answer) > 100 or not re.search(r"\bdomain\b(?!.*\brange\b)", question):
        return ""
    text = " ".join(_plain(answer).replace("$", " ").replace("−", "-").split()).strip(" .*")
    but = _ALL_BUT.fullmatch(text.replace("All", "all"))
    is_named = but and all(f"({letter})" in question for letter in filter(None, but.groups()[:3]))
    return rf"(-\infty,{but[4]})\cup({but[4]},\infty)" if is_named else ""


def _at_sight(given: str, wanted: str, question: str) -> Score | None:
    """The verdict on foreign dollars, times of day and words; None where values have to be compared."""
    money = wanted + "".join(_ASKED_MONEY.findall(question))
    if _ASKED_PRICE.search(question) and not re.search("[€£¥]|euro|pound|cent|yen", question):
        money += "dollar"
    if DOLLAR in given and not re.search(rf"[${DOLLAR}]|dollar", money):
        return Score(0.0, "a dollar sign that the gold answer does not have")
    times = _CLOCK.fullmatch(given), _CLOCK.fullmatch(wanted)
    if all(times):
        return Score(float(times[0][1] == times[1][1]), "both are times of day or ratios in lowest terms")
    if re.fullmatch(r"\W*nan\W*", _plain(wanted), re.IGNORECASE):
        raise Unscored("the gold answer is not a number")
    if _is_words(wanted) and (_is_words(given) or _words(wanted)):
        return _same_words(given, wanted)
    return None


def _is_no_solution(text: str) -> bool:
    bare = _ONLY_BOX.sub(r"\1", text.strip(" $.*!\n")).strip()
    return bool(_EMPTY.fullmatch(bare)) or " ".join(_plain(bare).casefold().split()) in _NO_SOLUTION


def _with_units(given: str, wanted: str, question: str, tolerance: dict[str, float]) -> Score:
    """The verdict once units and counted things are split from what is compared."""
    whole = _plain(given)
    in_unit, whole_sides = asked_unit(question), (wanted, given)
    wanted, gold_unit = _split_unit(wanted, lambda unit: len(unit) > 3 or is_counted(unit, question))
    given, unit = _split_unit(given, lambda unit: is_counted(unit, question) or same_unit(unit, gold_unit))
    alone = gold_unit or unit
    other = whole_sides[bool(gold_unit)]
    if not (gold_unit and unit) and _is_product(alone, other, question) and not same_unit(alone, in_unit):
        (wanted, given), gold_unit, unit = whole_sides, "", ""
    if gold_unit and not unit:
        given, unit = _split_known(given, gold_unit)
    elif unit and not gold_unit:
        wanted, gold_unit = _split_known(wanted, unit)
    if gold_unit and _number(wanted) is not None and _number(whole, gold_unit) is not None:
        return numeric(whole, wanted, **tolerance, unit=gold_unit)
    if unit and gold_unit and not same_unit(unit, gold_unit):
        return Score(0.0, f"the unit {unit!r} is not {gold_unit!r}")
    if in_unit and unit and not gold_unit and is_unit(unit) and not same_unit(unit, in_unit):
        if _number(wanted) is not None:
            return numeric(whole, wanted, **tolerance, unit=in_unit)
        return Score(0.0, f"the unit {unit!r} is not {in_unit!r}")
    if "%" in unit and "%" not in gold_unit and not _ASKED_PERCENT.search(question):
        return Score(0.0, "a percent sign that the gold answer does not have")
    if numbers := _both_numbers(given, wanted):
        return compared(*numbers, **tolerance)
    if fault := _base_fault(given, wanted) or _form_fault(given, wanted):
        return Score(0.0, fault)
    return _compare_chain(given, wanted, question) or _compare(given, wanted, **tolerance)


def _same_words(given: str, wanted: str) -> Score:
    if normalize(_plain(given)) == normalize(_plain(wanted)):
        return Score(1.0, "the same words")
    return Score(0.0, f"{given[:80]!r} is not {wanted[:80]!r}")


def _both_numbers(given: str, wanted: str) -> tuple[Fraction, Fraction] | None:
    dollars = "$" if DOLLAR in wanted else ""
    given, wanted = (" ".join(_plain(text).replace(DOLLAR, "$").split()) for text in (given, wanted))
    number, gold_number = _number(given, dollars), _number(wanted, dollars)
    return None if number is None or gold_number is None else (number, gold_number)


def _compare_chain(given: str, wanted: str, question: str) -> Score | None:
    """The verdict on f(x) = a = b \\approx c where one value is asked for: all of it must be that value."""
    sides = re.split(r"(=|≈|\\approx|\\simeq)", given)
    in_digits = not re.search(r"[A-Za-z]", _DIGIT_COMMAND.sub("", "".join(sides[2::2])))
    if in_digits and wanted.count("=") == 1 and set(sides[1::2]) == {"="} and 5 <= len(sides) <= 9:
        verdicts = (_compare(f"{sides[0]} = {side}", wanted, 0.0, 0.0) for side in sides[:1:-2])
        last = next(verdicts)  # of y = 3^2 = 9
        return next((verdict for verdict in verdicts if verdict.value != 1), last) if last.value else last
    if not 3 <= len(sides) <= 21 or _RELATED.search(wanted) or _holds_several(given):
        return None
    exact, rounded = [sides[0].strip()], []
    for sign, side in zip(sides[1::2], sides[2::2], strict=True):
        (exact if sign == "=" and not rounded else rounded).append(side.strip())
    values = exact[1:] if names_answer(exact[0], question) else exact
    if not values:
        return None
    for side in values:
        if _compare(side, wanted, 0.0, 0.0).value != 1:
            return Score(0.0, f"{given[:80]!r} is not {wanted[:80]!r}")
    for side in rounded:
        decimals = re.fullmatch(r"-?\d+\.?(\d*)", side)
        unit = (
            10.0 ** -len(decimals[1]) if decimals and decimals[1] else 0.5
        )  # of the last digit: may be cut off
        if not decimals or _compare(side, wanted, unit, 0.0).value != 1:
            return Score(0.0, f"{side[:80]!r} is not {wanted[:80]!r} rounded")
    return Score(1.0, "the same mathematics")


def _holds_several(text: str) -> bool:
    """Whether an expression joins several, as a list or "x = 1 or x = 2" does."""
    flat = re.sub(r"\\[,;:! ]", "", text)
    return bool(
        re.search(r"\b(?:and|or)\b", text) or re.search(r"[,;<>]|\\(?:pm|mp|in|ne|[lg]e)q?(?![A-Za-z])", flat)
    )


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


def _bare(text: str) -> str:
    """An expression without the delimiters, spacing and full stop around it, in one notation."""
    text = _SUPERSCRIPT.sub(_power, text)
    for pattern, form in _NOTATION:
        text = pattern.sub(form, text)
    text = re.sub(
        r"\\(?:left|right|displaystyle|bigl?|bigr?|mathbf(?=\{\\))(?![A-Za-z])\s*|(?<!\\)\\[()\[\]]|\$|\*\*",
        "",
        text,
    )
    return " ".join(text.split()).rstrip(" .,;")


def _matrix(rows: re.Match) -> str:
    cells = r" \\ ".join(re.findall(r"\[([^\[\]]*)\]", rows[1])).replace(",", " & ")
    return rf"\begin{{pmatrix}}{cells}\end{{pmatrix}}"


def _vector(components: re.Match, column: bool) -> str:
    cells = (r" \\ " if column else " & ").join(components[1].split(","))
    return rf"\begin{{pmatrix}}{cells}\end{{pmatrix}}"


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
    is_difference = re.fullmatch(r"[A-Za-z]{1,3}(?: - [A-Za-z]{1,3})+", plain.strip())  # ad - bc
    if is_difference or not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[ '.,-])*", plain):
        return False
    return bool(_words(text)) or len(plain.strip()) == 1


def _split_unit(text: str, fits: Callable[[str], bool]) -> tuple[str, str]:
    """A value and the unit behind it that fits; a multiple such as "million" stays with the value."""
    match = _UNIT.search(text)
    if not match or normalize(match[0]) in _FUNCTIONS:
        return text, ""
    unit = (match["sign"] or match["word"] or (match["text"] or "") + (match["power"] or "")).strip()
    value = text[: match.start()].strip()
    if match["word"] and len(match["word"]) < 4 and re.search("[A-Za-z]", _COMMAND.sub("", value)):
        return text, ""  # 2ab behind a^2 + b^2 is no two attobarns
    if multiple := _MULTIPLE.match(unit):
        value, unit = f"{value} {multiple[1]}", unit[multiple.end() :]
    unit = unit_name(re.sub(r"[\\{}.]", "", unit).removeprefix("^"))
    return (value, unit) if unit and (match["sign"] or fits(unit)) else (text, "")


def _is_product(unit: str, other: str, question: str) -> bool:
    """Whether what looks like a unit is a product of variables that the question and the other side have."""
    letters = set(re.findall("[A-Za-z]", unit))
    variables = set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", question))
    return len(letters) > 1 and "/" not in unit and letters <= variables & set(_COMMAND.sub(" ", other))


def _split_known(text: str, unit: str) -> tuple[str, str]:
    """The value in front of a unit that the other side has, a single letter too."""
    match = re.search(rf"(?<=[\d\s}})])\s*{re.escape(unit)}$", text)
    return (text[: match.start()].strip(), unit) if match else (text, "")


# ---- what is wrong before the value is looked at
def _base_fault(given: str, wanted: str) -> str:
    bases, gold_bases = _BASE.findall(given), _BASE.findall(wanted) or ["10"]
    if bases and bases != gold_bases:
        return f"base {bases[0]} where the gold answer has {gold_bases[0]}"
    return ""


def _form_fault(given: str, wanted: str) -> str:
    names = set(re.findall(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])", wanted)).union(
        *(word for word in _words(wanted) if len(word) < 3)
    )  # 2ab, where the gold answer has a and b
    extra = {word for word in _words(given) - _words(wanted) if len(word) > 3 or not names.issuperset(word)}
    if extra == {"or"} and (
        (_SOLUTIONS.match(given) and wanted[:1] != "(")
        or all(map(_INEQUALITY.search, re.split(r"\bor\b", given)))
    ):
        extra = set()
    if extra:
        return f"words beside the expression: {', '.join(sorted(extra))[:80]}"
    brackets, gold_brackets = _brackets(given), _brackets(wanted)
    if brackets and gold_brackets and brackets != gold_brackets:
        return f"{brackets} brackets where the gold answer has {gold_brackets}"
    if brackets in ("[]", "{}") and not re.search(r"[,;<>]|\\(?:pm|mp|cup|in|[lg]eq?)\b", wanted):
        return "a list where the gold answer is one value"
    return ""


def _brackets(text: str) -> str:
    r"""The brackets that enclose an expression with a comma in it, such as "(]" or "{}"; "" for none."""
    text = re.sub(r"\\(?:\{|lbrace)", "{", re.sub(r"\\(?:\}|rbrace)", "}", text)).strip()
    if len(text) < 3 or text[0] not in "([{" or text[-1] not in ")]}" or "," not in text:
        return ""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and position < len(text) - 1:
            return ""
    return text[0] + text[-1]


def _latex(text: str) -> str:
    """Notation that the LaTeX reader takes wrongly, rewritten: 1e3, 5 million, mixed numbers like 2 3/4.

    It drops primes and a T in an exponent, so these become subscripts and an exponent that nobody writes.
    """
    text = _REPEATING.sub(_fraction, text)
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?![\w.])", r"\1 \\cdot 10^{\2}", text)
    text = re.sub(rf"(?<=\d)\s*{_MULTIPLE.pattern}", lambda m: rf" \cdot 10^{{{MULTIPLES[m[1]]}}}", text)
    text = re.sub(r"(?<![\w.,/])(\d+) (\d+)/(\d+)(?![\w/])", r"(\1+\\frac{\2}{\3})", text)
    text = re.sub(r"\^\s*(?:\{\s*\\prime\s*\}|\\prime\b)", "'", text)
    text = _PRIMES.sub(lambda m: rf"{m[1]}_{{{'zz' * len(m[2])}}}", text)
    text = _DEGREES.sub(r"\1\\frac{\2 \\pi}{180}", text)
    text = re.sub(r"(?<=[&\s])d(?=\s*(?:\\\\|\\end|&))", "{d}", text)  # in a matrix no differential
    text = _TRANSPOSED.sub(r"^{t_{T}}", text)
    text = re.sub(r"\\(?:mathrm|text|operatorname)\s*\{\s*([A-Za-z]|or)\s*\}", r" \1 ", text)
    return text.replace("$", "").replace(DOLLAR, "")


def _fraction(repeating: re.Match) -> str:
    """0.1666.. written with a bar, as a fraction."""
    whole, fixed, period = repeating[1], repeating[2], repeating[3] or repeating[4]
    above = int(whole + fixed + period) - int(whole + fixed)
    return rf"\frac{{{above}}}{{{10 ** len(fixed) * (10 ** len(period) - 1)}}}"
