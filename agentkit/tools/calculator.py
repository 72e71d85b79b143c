"""The calculator tool: arithmetic on numbers only, evaluated from the syntax tree. Nothing is executed.

Leaves out names, attributes, calls other than FUNCTIONS, and numbers so large that computing them would take
long.
"""

import ast
import math
import operator
import threading
from collections.abc import Callable

MAX_EXPRESSION = 500  # characters
MAX_BITS = 4_000  # of any intermediate integer
MAX_DIGITS = 400  # second argument of round
MAX_DEPTH = 50  # nested operations

Number = int | float
PARSING = threading.Lock()  # CPython 3.11 counts the parser's recursion depth for all threads together


def _round(value: Number, digits: int | None = None) -> Number:
    if digits is not None and abs(digits) > MAX_DIGITS:  # round(1, -10**8) would compute 10**10**8
        raise ValueError(f"round takes at most {MAX_DIGITS} digits")
    return round(value, digits)


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > 1_000 or (isinstance(base, int) and base.bit_length() * abs(exponent) > MAX_BITS):
        raise ValueError("that power is too large")
    return base**exponent


_OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Pow: _power,
}  # fmt: skip
FUNCTIONS: dict[str, Callable] = {"round": _round, "abs": abs, "min": min, "max": max, "sqrt": math.sqrt}


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, or "true" / "false" for a comparison.

    Raises:
        ValueError: what is wrong with the expression, in one sentence.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"the expression has {len(expression)} characters; the limit is {MAX_EXPRESSION}")
    try:
        with PARSING:
            tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # ValueError: NUL and lone surrogates
        raise ValueError(f"{expression[:60]!r} is not an arithmetic expression") from None
    try:
        value = _evaluate(tree.body, 0)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (OverflowError, TypeError) as error:
        raise ValueError(f"cannot compute that: {error}") from None
    if isinstance(value, bool):
        return str(value).lower()
    return str(_plain(value))


def _evaluate(node: ast.expr, depth: int) -> Number | bool:
    """The value of a node of the syntax tree; every intermediate result is bounded."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the expression nests deeper than {MAX_DEPTH} operations")
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("only numbers are allowed")
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case (
            ast.BinOp(op=op, left=left, right=right) | ast.Compare(ops=[op], left=left, comparators=[right])
        ) if type(op) in _OPERATORS:
            operands = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            operands = [operand]
        case ast.Call(func=ast.Name(id=name), args=operands, keywords=[]) if name in FUNCTIONS:
            return _bounded(FUNCTIONS[name](*(_evaluate(operand, depth + 1) for operand in operands)))
        case ast.Call(func=ast.Name(id=name)):
            raise ValueError(f"unknown function {name!r}; there are {', '.join(FUNCTIONS)}")
        case ast.Name(id=name):
            raise ValueError(f"{name!r} is not a number; look the value up first")
        case _:
            kind, names = type(node).__name__, ", ".join(FUNCTIONS)
            raise ValueError(f"{kind} is not allowed; use numbers, + - * / // % ** and {names}")
    return _bounded(_OPERATORS[type(op)](*(_evaluate(operand, depth + 1) for operand in operands)))


def _bounded(value: Number | bool) -> Number | bool:
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("the result is not a finite real number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("the result is too large")
    return value


def _plain(value: Number) -> Number:
    """Whole floats as integers where exact, long ones to 12 significant digits, so that text stays short."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.12g}")
    return value
