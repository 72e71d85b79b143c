"""Answers as numbers, with tolerance and units.

One rule for units, percent and currency: they count only where the task declares them, by its ``unit`` option
or in its gold answer. "50 %" is 50 where the unit is %, and no number elsewhere; "$5" is 5, because a sign in
front cannot mislead, unless another currency is declared; "0.05 m" is 5 where the unit is cm (converted by
Pint); "5 km" never is. Numbers are exact fractions, so neighbours beyond a float's digits differ. Leaves out
numbers in words and in other bases.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from fractions import Fraction
from functools import lru_cache
from typing import Any

from agentkit.records import Score, Unscored

_NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<currency>[$€£¥]?)\s*"
    r"(?P<number>(?:\d{1,3}(?:(?:,|\\,|\\,\\!| | )\d{3})+|\d{1,400})(?:\.\d{0,400})?|\.\d{1,400})"
    r"(?:[eE](?P<exponent>[-+]?\d{1,3})"
    r"|\s?(?:[×x*]|\\times|\\cdot)\s?10\^(?P<open>\{)?(?P<power>[-+]?\d{1,3})(?(open)\}))?"
    r"\s*(?P<unit>[^\d\s].{0,40})?"
)
_FRACTION = re.compile(r"([-+]?\d{1,15}) ?/ ?(\d{1,15})")
# no powers of powers: bounded work
_UNIT = re.compile(r"[^\W\d_]{1,20}(?:\^-?\d)?(?: ?[*/ ] ?[^\W\d_]{1,20}(?:\^-?\d)?){0,4}")
_POWER = re.compile(r"(?<=[^\W\d_])[²³]")  # of a unit: m², not 10²
_LARGEST = Fraction(sys.float_info.max)
_SPELLINGS = dict.fromkeys(("percent", "per cent", "percentage", "pct"), "%")
_SPELLINGS |= dict.fromkeys(("°", "circ", "deg", "degree"), "degree")
_CURRENCIES = {
    "$": ("dollar", "dollars", "usd"),
    "€": ("euro", "euros", "eur"),
    "£": ("pound", "pounds", "gbp"),
    "¥": ("yen", "jpy"),
}


def parse_number(text: str, unit: str = "") -> Fraction | None:
    """The one number a text consists of, exactly, in the declared unit, or None.

    Thousands separators, a currency sign, scientific notation and the declared unit, or one that converts to
    it, may be with it, and a fraction of two whole numbers is one; anything else makes it None.
    """
    number = _read(text, unit)
    return number[0] if number else None


def _read(text: str, unit: str) -> tuple[Fraction, bool] | None:
    """The number in the declared unit, and whether it was converted from another."""
    unit, parts = unit_name(unit), _parts(text)
    if parts is None:
        return None
    value, currency, its_unit = parts
    declared = _currency(unit)
    if currency and declared and currency != declared:
        return None
    if not its_unit or same_unit(its_unit, unit) or (declared and _currency(its_unit) == declared):
        return value, False
    converted = _converted(value, its_unit, unit)
    return None if converted is None else (converted, True)


def _parts(text: str) -> tuple[Fraction, str, str] | None:
    """Value, currency sign and unit of a text that is one number, or None."""
    text = _POWER.sub(_caret, text)
    if any(unicodedata.category(character) == "No" for character in text):  # NFKC would read 10² as 102
        return None
    text = unicodedata.normalize("NFKC", text).replace("−", "-").strip().rstrip(".").strip()
    if (fraction := _FRACTION.fullmatch(text)) and int(fraction[2]):
        return Fraction(int(fraction[1]), int(fraction[2])), "", ""
    match = _NUMBER.fullmatch(text)
    if not match:
        return None
    digits = re.sub(r"[^\d.]", "", match["number"]).rstrip(".")
    value = Fraction(f"{match['sign']}{digits}e{match['exponent'] or match['power'] or 0}")
    return (value, match["currency"], unit_name(match["unit"] or "")) if abs(value) <= _LARGEST else None


# ---- units
def unit_name(text: str) -> str:
    """One spelling of a unit: % for percent, degree for °, m^2 for m²; others without a full stop behind."""
    text = _POWER.sub(_caret, text).strip().rstrip(".")
    return _SPELLINGS.get(text.casefold().removesuffix("s"), text)


def _caret(power: re.Match) -> str:
    return "^" + unicodedata.normalize("NFKC", power[0])


def same_unit(unit: str, other: str) -> bool:
    """Whether two names mean one unit: to Pint where it knows both, else whatever the case and a plural s."""
    if unit == other:
        return True
    known, other_known = _pint_unit(unit), _pint_unit(other)
    if known is None or other_known is None:
        return _singular(unit) == _singular(other)
    return known == other_known


def _singular(unit: str) -> str:
    return re.sub(r"(?<=[^\W\d_][^\Ws\d_])s$", "", unit.casefold())


def _currency(unit: str) -> str:
    """The sign of the currency a unit names, or ""."""
    return next((sign for sign, names in _CURRENCIES.items() if unit == sign or unit.casefold() in names), "")


def _converted(value: Fraction, unit: str, target: str) -> Fraction | None:
    """A value in another unit of the same dimension; None where either is no unit or they do not convert."""
    source, wanted = _pint_unit(unit), _pint_unit(target)
    if source is None or wanted is None:
        return None
    try:
        return Fraction(float(_registry().Quantity(float(value), source).to(wanted).magnitude))
    except Exception:  # of different dimensions, or out of range
        return None


def is_unit(text: str) -> bool:
    """Whether Pint knows a unit of this name."""
    return _pint_unit(text) is not None


@lru_cache(maxsize=4096)
def _pint_unit(text: str) -> Any:
    """The unit a text names to Pint, or None."""
    try:
        return _registry().parse_units(text) if _UNIT.fullmatch(text) else None
    except Exception:  # Pint raises many kinds on text that is no unit
        return None


@lru_cache(maxsize=1)
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(cache_folder=None)


# ---- comparing
def numeric(answer: str, gold: str, *, abs_tol: float = 0.0, rel_tol: float = 0.0, unit: str = "") -> Score:
    """1 when both are one number and |answer - gold| <= max(abs_tol, rel_tol * |gold|).

    Args:
        gold: a unit in it counts as declared.
        abs_tol: absolute tolerance, in ``unit``; without one the numbers must be equal.
        rel_tol: relative tolerance.
        unit: of the gold answer: a Pint unit such as "km/h", "%", a currency such as "$", or any word.
    """
    if answer.strip().strip("+-").casefold() == "nan":
        return Score(0.0, "NaN equals nothing")
    unit = unit or _gold_unit(str(gold))
    wanted, given = _read(str(gold), unit), _read(answer, unit)
    in_unit = f" in {unit}" if unit else ""
    if wanted is None:
        raise Unscored(f"the gold answer {gold!r} is not a number{in_unit}")
    if given is None:
        return Score(0.0, f"{answer[:80]!r} is not one number{in_unit}")
    rounding = 1e-12 if given[1] or wanted[1] else 0.0  # of the conversion
    return compared(given[0], wanted[0], abs_tol, max(rel_tol, rounding))


def compared(given: Fraction, wanted: Fraction, abs_tol: float, rel_tol: float) -> Score:
    """Exactly equal, or within a declared tolerance."""
    if abs(given - wanted) <= max(_as_written(abs_tol), _as_written(rel_tol) * abs(wanted)):
        return Score(1.0, "within tolerance")
    return Score(0.0, f"{_readable(given)} is not {_readable(wanted)}")


def _readable(value: Fraction) -> str:
    return f"{value}"[:40] if value.denominator == 1 else f"{float(value):.12g}"


def _as_written(tolerance: float) -> Fraction:
    """0.3, not the float just below it."""
    return Fraction(str(max(tolerance, 0.0)))


def _gold_unit(gold: str) -> str:
    """The unit a gold answer is written in: %, a currency or a unit Pint knows."""
    parts = _parts(gold)
    if parts is None:
        return ""
    _, currency, unit = parts
    return currency or (unit if unit == "%" or _currency(unit) or is_unit(unit) else "")
