"""Are two LaTeX expressions the same mathematics? math-verify with its numeric comparison replaced.

math-verify reads the LaTeX and compares structures (sets, tuples, intervals, relations, matrices). Its
comparison of values rounds absolutely, so 1/2004! passes for 1/2006!; here constants must agree to 50 digits
relative to their size, or be within the declared tolerance, and expressions must agree at points drawn at
random (Schwartz 1980, Zippel 1979), which takes milliseconds where ``simplify`` takes seconds. Decimals are
exact: 0.333333 is not 1/3. Runs as a script of its own, which pool.py starts and may kill. Leaves out what is
around an expression (mathematics.py), and all of agentkit.
"""

import json
import random
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import LatexExtractionConfig, grader, parse, parser
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

CPU_S = 0.8  # processor seconds of one request, after which the kernel ends the process
MEMORY = 3 << 30  # bytes of address space
DIGITS = 60
POINTS = 6
_NORMAL = replace(LatexExtractionConfig().normalization_config, units=False)  # would read 2m as 2
_LATEX = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=_NORMAL)]
_MATRIX = (sympy.MatrixBase, sympy.MatrixExpr)
_tolerance = {"absolute": 0.0, "relative": 0.0}
warnings.simplefilter("ignore")


@lru_cache(maxsize=512)
def read(text: str) -> Any:
    """The SymPy object a LaTeX expression stands for, decimals as fractions; None where it is none."""
    parsed = parse(f"${text}$", _LATEX, fallback_mode="no_fallback", parsing_timeout=None)
    if not parsed or not isinstance(parsed[0], sympy.Basic | sympy.MatrixBase):
        return None
    expression = parsed[0]
    if floats := expression.atoms(sympy.Float):
        expression = expression.xreplace({f: sympy.Rational(str(f)) for f in floats})
    return None if expression.has(sympy.nan, sympy.zoo) else expression


def _value(expression: Any) -> Any:
    """A number to DIGITS digits; None where it has none (a symbolic sum, an undefined function, infinity)."""
    value = sympy.N(expression, DIGITS)
    return value if value.is_number and value.is_finite and value.is_comparable is not None else None


def _close(a: Any, b: Any, absolute: Any, relative: Any) -> bool:
    return bool(abs(a - b) <= max(absolute, relative * abs(b)))


def same_constant(gold: Any, answer: Any) -> bool:
    """Equal exactly, to 50 digits, or within the declared tolerance."""
    gold, answer = gold.doit(), answer.doit()
    if gold == answer:
        return gold is not sympy.zoo and gold is not sympy.nan
    absolute, relative = (sympy.Rational(str(_tolerance[n])) for n in ("absolute", "relative"))
    if gold.is_Rational and answer.is_Rational:
        return _close(answer, gold, absolute, relative)
    a, b = _value(gold), _value(answer)
    if a is None or b is None:
        return False
    return _close(b, a, absolute, max(relative, sympy.Rational(1, 10**50)))


def _values_at_points(first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    """Values of two expressions at POINTS random points, the same ones for the same names of symbols."""
    names = sorted({symbol.name for e in (first, second) for symbol in e.free_symbols})
    draw = random.Random(" ".join(names))
    for _ in range(POINTS):
        numbers = [(draw.randint(-9_999, 9_999), 1_000 + draw.randint(1, 999)) for _ in names]
        point = {name: sympy.Rational(*number) for name, number in zip(names, numbers, strict=True)}
        yield tuple(
            _value(e.subs({symbol: point[symbol.name] for symbol in e.free_symbols}).doit())
            for e in (first, second)
        )


def same_expression(gold: Any, answer: Any) -> bool:
    """Equal at every random point where both have a value, and at three of them at least."""
    agreed = 0
    for a, b in _values_at_points(gold, answer):
        if (a is None) != (b is None):
            return False
        if a is not None:
            if not _close(b, a, sympy.Rational(1, 10**45), sympy.Rational(1, 10**45)):
                return False
            agreed += 1
    return agreed >= 3 or (agreed == 0 and sympy.expand(gold - answer) == 0)


def _numeric_eq(gold: Any, answer: Any, *_: Any) -> bool:
    """In place of math-verify's: both are numbers, expressions, or matrices of those."""
    if isinstance(gold, _MATRIX) or isinstance(answer, _MATRIX):
        gold, answer = grader.safe_sympy_doit(gold), grader.safe_sympy_doit(answer)
        both = isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase)
        return both and gold.shape == answer.shape and all(map(_numeric_eq, gold.flat(), answer.flat()))
    if gold.free_symbols | answer.free_symbols:
        return same_expression(gold, answer)
    return same_constant(gold, answer)


def _same_equation(gold: Any, answer: Any) -> bool:
    """Two equations say the same when their differences of sides agree, but for the sign."""
    a, b = gold.lhs - gold.rhs, answer.lhs - answer.rhs
    return _numeric_eq(a, b) or _numeric_eq(a, -b)


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
    name = isinstance(answer, Relational) and isinstance(
        answer.lhs, sympy.Symbol | AppliedUndef | sympy.Tuple
    )
    if isinstance(answer, Relational) and not isinstance(gold, Relational) and not name:
        return False  # 9 = 1 for 1, 2x = 1 for 1
    return grader.sympy_expr_eq(gold, answer, float_rounding=15, numeric_precision=50)


def as_set(expression: Any, text: str) -> Any:
    """The numbers that inequalities in one variable allow; a set as it is; None for anything else."""
    if isinstance(expression, sympy.Eq) and isinstance(expression.rhs, sympy.Set):
        return expression.rhs
    parts = expression.args if isinstance(expression, sympy.FiniteSet) else (expression,)
    if not parts or not all(isinstance(part, sympy.And | Relational) for part in parts):
        return expression if isinstance(expression, sympy.Set) else None
    sides = [{r.lhs, r.rhs} for part in parts for r in part.atoms(Relational) if not isinstance(r, sympy.Eq)]
    simple = all(
        len(pair & expression.free_symbols) == 1 and any(s.is_number for s in pair) for pair in sides
    )
    if not sides or not simple or len(expression.free_symbols) != 1:
        return None
    sets = [sympy.Intersection(*(r.as_set() for r in part.atoms(Relational))) for part in parts]
    if len(sets) == 1 or "and" in text:
        return sympy.Intersection(*sets)
    return sympy.Union(*sets) if " or " in text else None


def compare(gold: str, answer: str, absolute: float, relative: float) -> Iterator[dict[str, Any]]:
    """{"gold": readable?} comes first, so that a killed request tells whose fault it was; then "equal"."""
    _tolerance.update(absolute=absolute, relative=relative)
    wanted = read(gold)
    yield {"gold": wanted is not None}
    if wanted is None:
        return
    given = read(answer)
    if given is None:
        yield {"equal": False, "why": "not readable as mathematics"}
        return
    gold_set, its_set = as_set(wanted, gold), as_set(given, answer)
    same_names = (
        not wanted.free_symbols or not given.free_symbols or wanted.free_symbols == given.free_symbols
    )
    if gold_set is not None and its_set is not None and same_names:
        wanted, given = gold_set, its_set
    yield {"equal": gold == answer or bool(equal(wanted, given))}


_FIRST_PAIRS = (
    (r"\frac{1}{2}", "0.5"), ("x^2+2x+1", "(x+1)^2"), (r"\sqrt{2}+\pi", "3"), ("(1,2)", "[1,2]"),
    ("x=2", "2=x"), (r"\{1,2\}", r"\{2,1\}"), ("x<3", "3>x"), (r"\begin{pmatrix}1\\2\end{pmatrix}", "10!"),
    (r"\sin(x)", r"\log(x)"), ("0<f(x)<1", "(0,1)"), (r"-2 \le x \le 7", r"x \in [-2,7]"),
    (r"(0,1)\cup(2,3]", "x<1 or x>3"), (r"(0,1)", "x=1,y=2"), (r"\sum_{k=1}^{3} k", "6"),
)  # fmt: skip


def warm_up() -> None:
    """Load what the first checks would otherwise load, and fill the parser's tables."""
    config = ConversionConfig(lowercase_symbols=False)
    parser.latex2sympy = partial(parser.latex2sympy, conversion_config=config)
    grader.sympy_numeric_eq = _numeric_eq
    grader.sympy_symbolic_eq = lambda gold, answer: False  # decided by _numeric_eq already
    for pair in _FIRST_PAIRS:
        list(compare(*pair, 0.0, 0.0))


def serve() -> None:
    """Answer requests, a line of JSON each, until the caller is gone; a line "end" follows each answer."""
    warm_up()
    with suppress(ValueError, OSError):  # macOS refuses so small a bound
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(3_000)
    for request in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            for message in compare(*json.loads(request)):
                print(json.dumps(message), flush=True)
        except Exception as error:  # whatever a library raises on hostile text is a verdict, not a crash
            print(json.dumps({"failed": f"{type(error).__name__}: {error}"[:200]}), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print("end", flush=True)


if __name__ == "__main__":
    serve()
