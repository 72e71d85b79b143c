"""Answers as numbers, with tolerance and units.

A unit counts where the task declares it, by its ``unit`` option or in its gold answer, and converts by Pint:
"0.05 m" is 5 where the unit is cm, "50 %" is 50 where it is %. Without one the question may name what it asks
for ("how many <unit>", "in <unit>"), and a currency that no question contradicts may stand with a number; no
other word may. Numbers are exact fractions, so neighbours beyond a float's digits differ. Leaves out numbers
in words, decimal commas, other bases, and values in two units such as 1 h 30 min.
"""

import re
import threading
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from agentkit.records import Score, Unscored

MULTIPLES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
LARGEST = 10**300  # a float holds it
_CURRENCIES = {"$": "dollar usd us$", "€": "euro eur", "£": "pound gbp", "¥": "yen jpy"}
_NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)\s*(?P<currency>(?:US)?\$|[€£¥])?\s*(?(sign)|(?P<inner>-?))
    (?:
      (?:(?P<whole>\d{{1,15}})\s+)?(?P<above>\d{{1,15}})\s?/\s?(?P<below>\d{{1,15}})
    | (?P<number>\d{{1,3}}(?:[,\s']\d{{3}})+(?:\.\d{{1,400}})?|\d{{1,400}}(?:\.\d{{0,400}})?|\.\d{{1,400}})
      (?:
        [eE](?P<exponent>[-+]?\d{{1,3}})
      | \s?[×x*·]\s?10\^(?:\{{(?P<power>[-+]?\d{{1,3}})\}}|(?P<bare>[-+]?\d{{1,3}}))
      | \s?(?P<multiple>{"|".join(MULTIPLES)})\b
      )?
    )
    \s*(?P<unit>(?:[^\W\d_]|[%°€£¥$])[^\d\\{{}}=+]{{0,40}}(?:\^-?\d)?)?""",
    re.VERBOSE,
)


def _normal(found: re.Match) -> str:
    return unicodedata.normalize("NFKC", found[0]).replace("⁄", "/")


_NOTATION = tuple(  # LaTeX and signs as plain text
    (re.compile(pattern), form)
    for pattern, form in (
        (r"\\[dt]?frac\s*\{(-?\d+)\}\s*\{(\d+)\}", r" \1/\2"),
        (r"\\[dt]?frac(\d)(\d)", r" \1/\2"),
        (r"\\(?:times|cdot)", "×"),
        (r"(?<=\d)(?:\{,\}|,\\!|\\,)(?=\d{3}(?!\d))", ","),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-z])", "°"),
        (r"\\(?:text[a-z]*|math[a-z]+|mbox)\s*\{([^{}]*)\}", r" \1"),
        (r"\\[ ,;:!()\[\]]|~|\\q?quad", " "),
        (r"\\([%$])", r"\1"),
        (r"\^\{(-?\d+)\}(?=\s*$)", r"^\1"),
        # a formula with its unit inside or behind; a dollar sign in front of a number alone is money
        (r"^\$(?=[^$]*[^\d.,$ ][^$]*\$|[^$]*\$\s*[^\W\d_])([^$]*)\$", r"\1 "),
        (r"^\$\$?([^$]*)\$\$?\.?$", r"\1"),
        (r"(?<=[^\W_])[²³⁻¹⁰⁴-⁹]+", lambda power: f"^{_normal(power)}"),
        (r"[½¼¾⅓⅔]", lambda fraction: f" {_normal(fraction)}"),
        (r"[‐-–−]", "-"),
    )
)


class Amount(NamedTuple):
    """A number and the unit behind it, or the currency in front; "" for none."""

    value: Fraction
    unit: str


def amount(text: str) -> Amount | None:
    """The number that a text consists of, with its unit, or None."""
    for pattern, form in _NOTATION:
        text = pattern.sub(form, text.strip())
    match = _NUMBER.fullmatch(unicodedata.normalize("NFKC", text).strip().rstrip("."))
    value = _value(match) if match else None
    if value is None or value > LARGEST:
        return None
    unit = (match["unit"] or "").strip(" .")
    if match["currency"]:
        if unit and currency(unit) != match["currency"][-1]:
            return None
        unit = match["currency"][-1]
    return Amount(-value if "-" in (match["sign"], match["inner"]) else value, unit)


def _value(match: re.Match) -> Fraction | None:
    """None for a division by zero and for 2 5/4."""
    if match["below"]:
        whole, above, below = (int(match[name] or 0) for name in ("whole", "above", "below"))
        return None if not below or (match["whole"] and above >= below) else whole + Fraction(above, below)
    exponent = match["exponent"] or match["power"] or match["bare"] or MULTIPLES.get(match["multiple"], 0)
    return Fraction(f"{re.sub(r'[^0-9.]', '', match['number']).rstrip('.')}e{exponent}")


def parse_number(text: str, unit: str = "", question: str = "") -> Fraction | None:
    """The one number of a text, exactly, in the declared unit or in what the question asks for; or None."""
    value, own = amount(without_name(text, question)) or (None, "")
    if not own or same_unit(own, unit) or (not unit and asks_for(own, question)):
        return value
    return _converted(value, own, unit) if unit else None


# ---- what a question asks for
_HOW_MANY = re.compile(
    r"\b(?:how (?:many|much)|number of|convert\b[^.?]* to)\s+"
    r"(?:more |fewer |full |whole |total )?(.{1,40})",
    re.IGNORECASE,
)
_IN = re.compile(r"\bin\s+(?!the\b|an?\b|each\b|every\b|total\b)(.{1,40})", re.IGNORECASE)
_UNIT = re.compile(
    r"\$?((?:square |cubic )?(?:°\s?[CF]?|degrees? \w+|[^\W\d_]+)"
    r"(?:\s?[/*·^]\s?[^\W_]+|[²³]| per [^\W\d_]+)*)"
)
_POWERS = (re.compile("^square (.*)", re.IGNORECASE), r"\1^2"), (re.compile("^cubic (.*)", re.I), r"\1^3")
_VERB = re.compile("(?:are|is|do|does|did|will|were|was|has|have|can|must|remain|left|stay).*", re.IGNORECASE)
_PER_CENT = re.compile(
    r"\b(?:what|which|how many|in|as an?|what is the) per ?cent(?:age)?\b(?![ -]point)", re.IGNORECASE
)


def asks_for(unit: str, question: str) -> bool:
    """Whether a question asks for this unit: "how many apples", "in km/h", "what percentage"."""
    if money := currency(unit):  # no question that names another is asked in it
        return {sign for sign in _CURRENCIES if _names_currency(question, sign)} <= {money}
    if unit in ("%", "percent"):
        return bool(_PER_CENT.search(question))
    for phrase in (_HOW_MANY, _IN):
        named = list(_named(phrase, question))
        if any(known(name) or phrase is _HOW_MANY for name in named):
            return any(same_unit(unit, name) for name in named)
    return False


def names_unit(question: str) -> bool:
    """Whether a question has a place for a unit."""
    return bool(_HOW_MANY.search(question) or _IN.search(question))


def _named(phrase: re.Pattern, question: str) -> Iterator[str]:
    """The units or things that a question names behind a phrase."""
    for found in filter(None, map(_UNIT.match, phrase.findall(question))):
        name = found[1]
        for power, form in _POWERS:
            name = power.sub(form, name)
        if not _VERB.fullmatch(name):
            yield name


def _names_currency(question: str, sign: str) -> bool:
    names = _CURRENCIES[sign].replace("$", r"\$").replace(" ", "|")
    return bool(re.search(rf"(?i){re.escape(sign)}|\b(?:{names})s?\b", question))


# ---- units
def currency(unit: str) -> str:
    """The sign of the currency that a unit is, or ""."""
    word = re.sub(r"^us ", "", unit.casefold()).removesuffix("s")
    return next((sign for sign, names in _CURRENCIES.items() if unit == sign or word in names.split()), "")


def same_unit(one: str, other: str) -> bool:
    """Whether two names mean one unit: to Pint where it knows both, else whatever the case and a plural s."""
    one, other = (re.sub(r"(?i)^per ?cent$", "%", unit.strip(" .")) for unit in (one, other))
    if currency(one) or currency(other):
        return currency(one) == currency(other)
    if known(one) and known(other):
        return known(one) == known(other)
    one, other = (re.sub(r"(?<=\w\w)e?s$", "", unit.casefold()) for unit in (one, other))
    return one == other


_SPELLINGS = tuple(
    (re.compile(pattern), form)
    for pattern, form in (
        ("metre", "meter"),
        ("litre", "liter"),
        (r"°\s?([CF])\b", r"deg\1"),
        (r"(?i)degrees? (C|F)\w+", r"deg\1"),
        ("°", "degree"),
        ("·", "*"),
        (" per ", "/"),
        ("²", "^2"),
        ("³", "^3"),
    )
)
# no powers of powers: bounded work
_PINT = re.compile(r"[^\W\d_]{1,20}(?:\^-?\d)?(?: ?[*/ ] ?[^\W\d_]{1,20}(?:\^-?\d)?){0,4}")
_ONE_REGISTRY = threading.Lock()


@lru_cache(maxsize=4096)
def known(unit: str) -> Any:
    """The unit that a name is to Pint, or None."""
    for pattern, form in _SPELLINGS:
        unit = pattern.sub(form, unit)
    if not _PINT.fullmatch(unit):
        return None
    with _ONE_REGISTRY:
        registry = _registry()
    try:
        return registry.parse_units(unit)
    except Exception:  # Pint raises many kinds on text that is no unit
        return None


@lru_cache(maxsize=1)
def _registry() -> Any:
    """The one registry of all threads: units of two registries cannot be compared."""
    import pint

    return pint.UnitRegistry(cache_folder=None)


def _converted(value: Fraction | None, unit: str, target: str) -> Fraction | None:
    """A value in another unit of the same dimension, to twelve digits; None where there is none."""
    if value is None or not known(unit) or not known(target):
        return None
    try:
        return Fraction(f"{_registry().Quantity(float(value), known(unit)).to(known(target)).magnitude:.12g}")
    except Exception:  # of different dimensions, or out of range
        return None


# ---- comparing
_NAME = re.compile(
    r"\$?\s*([A-Za-z]|[A-Z]{2,3}|[a-zA-Z](?:'|\^\{-1\})?\([a-z\d]\)|[a-z]_\{?\w\}?|\\[a-z]+)"
    r"\s*(?:=|\\in(?![a-z]))\s*(?=[^=<>≈]+\Z)"
)
_ASKS_FOR_NAME = (
    r"(?i:\b(?:is|are|of|for|find|solve|determine|compute|calculate|evaluate|express)\s+)\$?%s\$?"
    r"\s*(?:[?.,;:]|\Z|(?:if|when|where|given|such|in|for|and|as)\b)"
)


def without_name(text: str, question: str) -> str:
    """ "x = 5" as 5, where the question, if any, asks for x."""
    named = _NAME.match(text)
    if not named or (question and not re.search(_ASKS_FOR_NAME % re.escape(named[1]), question)):
        return text
    return text[named.end() :].strip(" $")


def numeric(
    answer: str, gold: str, *, abs_tol: float = 0.0, rel_tol: float = 0.0, unit: str = "", question: str = ""
) -> Score:
    """1 when both are one number and |answer - gold| <= max(abs_tol, rel_tol * |gold|).

    Args:
        gold: a unit in it counts as declared, where it is %, a currency or one that Pint knows.
        abs_tol: absolute tolerance, in ``unit``; without one the numbers must be equal.
        rel_tol: relative tolerance.
        unit: of the gold answer: a Pint unit such as "km/h", "%", a currency such as "$", or any word.
        question: what was asked; a unit that it asks for, and only that, may be with the answer.

    Raises:
        Unscored: the gold answer is no number, or has an unknown word behind it.
    """
    own = (amount(gold) or (None, ""))[1]
    if own and not unit and not is_unit(own):
        raise Unscored(f"the gold answer {gold[:80]!r} has the word {own!r} behind it: declare it as unit")
    unit = unit or own
    wanted, given = parse_number(gold, unit), parse_number(answer, unit, question)
    in_unit = f" in {unit}" if unit else ""
    if wanted is None:
        raise Unscored(f"the gold answer {gold[:80]!r} is not a number{in_unit}")
    if given is None:
        return Score(0.0, f"{answer[:80]!r} is not one number{in_unit}")
    return compared(given, wanted, abs_tol, rel_tol)


def is_unit(name: str) -> bool:
    """Whether it is a percent sign, a currency or a unit that Pint knows."""
    return name == "%" or bool(currency(name)) or known(name) is not None


def compared(given: Fraction, wanted: Fraction, abs_tol: float, rel_tol: float) -> Score:
    """Exactly equal, or within a declared tolerance."""
    # 0.3 as it is written, not the float just below it
    absolute, relative = (Fraction(str(max(tolerance, 0.0))) for tolerance in (abs_tol, rel_tol))
    if abs(given - wanted) <= max(absolute, relative * abs(wanted)):
        return Score(1.0, "within tolerance")
    return Score(0.0, f"{_readable(given)} is not {_readable(wanted)}")


def _readable(value: Fraction) -> str:
    return f"{value}"[:40] if value.denominator == 1 else f"{float(value):.12g}"
