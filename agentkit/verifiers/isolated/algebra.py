"""Are two LaTeX expressions the same mathematics? math-verify with its numeric comparison replaced.

math-verify reads the LaTeX and compares structures (sets, tuples, intervals, relations, matrices). Its
comparison of values rounds absolutely, so 1/2004! passes for 1/2006!; here constants must agree to 50 digits
relative to their size, or be within the declared tolerance, and expressions must agree at points drawn at
random (Schwartz 1980, Zippel 1979), which takes milliseconds where ``simplify`` takes seconds. Decimals are
exact: 0.333333 is not 1/3. Runs only in a killable child.
"""

import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import LatexExtractionConfig, grader, parse, parser
from sympy.core.relational import Relational

DIGITS = 60
POINTS = 6
_NORMAL = replace(LatexExtractionConfig().normalization_config, units=False)  # would read 2m as 2
_LATEX = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=_NORMAL)]
_tolerance = {"absolute": 0.0, "relative": 0.0}
warnings.simplefilter("ignore")


@lru_cache(maxsize=512)
def read(text: str) -> Any:
    """The SymPy object a LaTeX expression stands for, decimals as fractions; None where it is none."""
    found = parse(f"${text}$", _LATEX, fallback_mode="no_fallback", parsing_timeout=None)
    if not found or not isinstance(found[0], sympy.Basic | sympy.MatrixBase):
        return None
    floats = found[0].atoms(sympy.Float)
    found = found[0].xreplace({f: sympy.Rational(str(f)) for f in floats}) if floats else found[0]
    return None if found.has(sympy.nan, sympy.zoo) else found


def _value(expression: Any) -> Any:
    """A number to DIGITS digits; None where it has none (a symbolic sum, an undefined function, infinity)."""
    value = sympy.N(expression, DIGITS)
    return value if value.is_number and value.is_finite and value.is_comparable is not None else None


def _close(found: Any, wanted: Any, absolute: Any, relative: Any) -> bool:
    return bool(abs(found - wanted) <= max(absolute, relative * abs(wanted)))


def same_constant(wanted: Any, found: Any) -> bool:
    """Equal exactly, to 50 digits, or within the declared tolerance."""
    wanted, found = wanted.doit(), found.doit()
    if wanted == found:
        return wanted is not sympy.zoo and wanted is not sympy.nan
    absolute, relative = (sympy.Rational(str(_tolerance[n])) for n in ("absolute", "relative"))
    if wanted.is_Rational and found.is_Rational:
        return _close(found, wanted, absolute, relative)
    a, b = _value(wanted), _value(found)
    if a is None or b is None:
        return False
    return _close(b, a, absolute, max(relative, sympy.Rational(1, 10**50)))


def same_expression(wanted: Any, found: Any) -> bool:
    """Equal at every random point where both have a value, and at three of them at least."""
    names = sorted({s.name for e in (wanted, found) for s in e.free_symbols})
    draw = random.Random(" ".join(names))
    agreed = 0
    for _ in range(POINTS):
        at = {
            name: sympy.Rational(draw.randint(-9_999, 9_999), 1_000 + draw.randint(1, 999)) for name in names
        }
        a, b = (_value(e.subs({s: at[s.name] for s in e.free_symbols}).doit()) for e in (wanted, found))
        if (a is None) != (b is None):
            return False
        if a is not None:
            if not _close(b, a, sympy.Rational(1, 10**45), sympy.Rational(1, 10**45)):
                return False
            agreed += 1
    return agreed >= 3 or (agreed == 0 and sympy.expand(wanted - found) == 0)


def _numeric_eq(gold: Any, answer: Any, *_: Any) -> bool:
    """In place of math-verify's: both are numbers, expressions, or matrices of those."""
    if isinstance(gold, sympy.MatrixBase | sympy.MatrixExpr) or isinstance(
        answer, sympy.MatrixBase | sympy.MatrixExpr
    ):
        gold, answer = grader.safe_sympy_doit(gold), grader.safe_sympy_doit(answer)
        both = isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase)
        return both and gold.shape == answer.shape and all(map(_numeric_eq, gold.flat(), answer.flat()))
    return (
        same_expression(gold, answer)
        if gold.free_symbols | answer.free_symbols
        else same_constant(gold, answer)
    )


def _same_equation(gold: Any, answer: Any) -> bool:
    """Two equations say the same when their differences of sides are proportional, at random points."""
    a, b = gold.lhs - gold.rhs, answer.lhs - answer.rhs
    return _numeric_eq(a, b) or _numeric_eq(a, -b) or _proportional(a, b)


def _proportional(a: Any, b: Any) -> bool:
    names = sorted({s.name for s in a.free_symbols})
    if not names or names != sorted({s.name for s in b.free_symbols}):
        return False
    draw, ratios = random.Random(" ".join(names)), []
    for _ in range(POINTS):
        at = {
            name: sympy.Rational(draw.randint(-9_999, 9_999), 1_000 + draw.randint(1, 999)) for name in names
        }
        x, y = (_value(e.subs({s: at[s.name] for s in e.free_symbols}).doit()) for e in (a, b))
        if x is not None and y is not None and not x.is_zero and not y.is_zero:
            ratios.append(y / x)
    return len(ratios) >= 3 and all(_close(r, ratios[0], 0, sympy.Rational(1, 10**40)) for r in ratios)


def equal(gold: Any, answer: Any) -> bool:
    """math-verify's verdict with the comparison above, and with equations compared as equations."""
    if gold == answer:
        return True
    sides = [side for e in (gold, answer) if isinstance(e, sympy.Eq) for side in e.args]
    if len(sides) == 4 and all(isinstance(side, sympy.Expr) for side in sides):
        if _same_equation(gold, answer):
            return True
        if len(gold.free_symbols | answer.free_symbols) > 1:  # math-verify would compare one solved variable
            return False
    if isinstance(answer, Relational) and not isinstance(gold, Relational) and not answer.lhs.free_symbols:
        return False  # 9 = 1 for 1
    return grader.sympy_expr_eq(gold, answer, float_rounding=15, numeric_precision=50)


def compare(gold: str, answer: str, absolute: float, relative: float) -> Iterator[dict[str, Any]]:
    """Yields {"gold": readable?} first, so that a killed request tells whose fault it was, then {"equal":
    verdict}.
    """
    _tolerance.update(absolute=absolute, relative=relative)
    wanted = read(gold)
    yield {"gold": wanted is not None}
    if wanted is None:
        return
    found = read(answer)
    if found is None:
        yield {"equal": False, "why": "not readable as mathematics"}
    else:
        yield {"equal": gold == answer or bool(equal(wanted, found))}


def warm_up() -> None:
    """Load what the first checks would otherwise load, and fill the parser's tables."""
    parser.latex2sympy = partial(
        parser.latex2sympy, conversion_config=ConversionConfig(lowercase_symbols=False)
    )
    grader.sympy_numeric_eq = _numeric_eq
    grader.sympy_symbolic_eq = lambda gold, answer: False  # decided by _numeric_eq already
    pairs = [
        (r"\frac{1}{2}", "0.5"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\sqrt{2}+\pi", "3"),
        ("(1,2)", "[1,2]"),
        ("x=2", "2=x"),
    ]
    pairs += [
        (r"\{1,2\}", r"\{2,1\}"),
        ("x<3", "3>x"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "10!"),
        (r"\sin(x)", r"\log(x)"),
    ]
    pairs += [
        ("0<f(x)<1", "(0,1)"),
        (r"-2 \le x \le 7", r"x \in [-2,7]"),
        (r"(0,1)\cup(2,3]", "x=1,y=2"),
        (r"\sum_{k=1}^{3} k", "6"),
    ]
    for pair in pairs:
        list(compare(*pair, 0.0, 0.0))
