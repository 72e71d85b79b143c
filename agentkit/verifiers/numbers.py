"""Answers as numbers, with tolerance and units.

One rule for units, percent and currency: they count only where the task declares them, by its ``unit`` option
or in its gold answer. "50 %" is 50 where the unit is %, and no number elsewhere; "$5" is 5, because a sign in
front cannot mislead, unless another currency, a percentage or a unit is declared; "0.05 m" is 5 where the
unit is cm and "5 °C" is 278.15 where it is K (converted by Pint); "5 km" never is. Numbers are exact
fractions, so neighbours beyond a float's digits differ. Leaves out other bases
and, but for English, numbers in words.
"""

import re
import sys
import threading
import unicodedata
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

from agentkit.records import Score, Unscored

MULTIPLES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NUMBER = re.compile(
    r"""
    (?P<sign>[-+])?\s*
    (?P<currency>(?:US[ ]?|R)?\$|[€£¥]|(?:USD|EUR|GBP|JPY)[ ]?)?\s*
    (?(sign)|(?P<inner>[-+])?)  # a sign behind the currency: $-5
    (?P<number>
      (?:\d{1,3}(?:(?:,|\{,\}|\\,|\\,\\!|[ ]|')\d{3})+|\d{1,400})(?:\.\d{0,400})?
    | \.\d{1,400}
    )
    (?:
      [eE](?P<exponent>[-+]?\d{1,3})
    | \s?(?:[×x*·⋅]|\\times|\\cdot)\s?10\^(?P<open>\{)?(?P<power>[-+]?\d{1,3})(?(open)\})
    """
    rf"| [\s-](?P<multiple>{'|'.join(MULTIPLES)})\b)?"
    r"\s*(?P<unit>[^\d\s].{0,40})?",
    re.VERBOSE,
)
_FRACTION = re.compile(r"(?:([-+]?)(\d{1,15}) )?([-+]?)(\d{1,15}) ?/ ?(\d{1,15})(?:\s+([^\W\d_].{0,40}))?")
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_WORTH = {word: n for n, word in enumerate(_ONES)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_BELOW_100 = (
    rf"(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_ONES[1:10])}))?|(?:{'|'.join(reversed(_ONES))}))\b"
)
IN_WORDS = re.compile(
    rf"\b{_BELOW_100}(?:[ -](?:{'|'.join(MULTIPLES)})\b(?:[ -](?:and )?{_BELOW_100})?){{0,8}}", re.IGNORECASE
)
_IN_DIGITS = re.compile(r"\s*\((\d{1,12})\)(?=\s*\Z|\s+[^\W\d_])")  # sixteen (16) pieces
_MINUS = re.compile(r"(?:(?:minus|negative) (?=\w))?", re.IGNORECASE)
_TEN = re.compile(r"(?P<sign>[-+]?)10\^(?=\{?[-+]?\d)")  # 10^3 is 1 × 10^3
_VULGAR = re.compile("(?<![\\w/.,^])(\\d{1,15}\\s?)?([¼-¾⅐-⅞])(?![\\w/.,])")
_DELIMITERS = re.compile(  # of mathematics and a box
    r"\A(?P<open>\$\$?|\\\(|\\\[)?\s*(?P<box>\\boxed\s*\{)?(?P<inside>[^{}$]{1,600}|[^{}$]{0,99}\{,\}[^$]{1,99}?)"
    r"(?(box)\})\s*(?(open)(?:\$\$?|\\\)|\\\]))\Z"
)
_TWICE = re.compile(  # 0.75 kg (750 g)
    r"([^()]*[^()\s])\s*\(\s*(?:or |i\.e\.,? |that is,? |= ?)?"
    r"(about |approximately |roughly |≈ ?|~ ?)?([^()]+)\)"
)
_REAIS = re.compile(r"\A(-?R\$\s?)(\d{1,3}(?:\.\d{3}){0,6}|\d{1,15}),(\d\d)\Z")
_PARTS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s?([^\W\d_]{1,20})")
_ONLY_PARTS = re.compile(rf"{_PARTS.pattern}(?:\s+(?:and\s+)?{_PARTS.pattern}){{1,3}}")
_IN_PARTS = ("s", "ft", "lb")  # times, lengths in feet and inches, weights in pounds and ounces
_FORMULA = re.compile(  # with a unit behind
    r"\A(\$|\\\()((?:[-+\d.,/{}^×·\s]|\\(?:times|cdot|[,!]))+)(?:\$|\\\))(?=\s*[^\W\d_])"
)
# 1.234.567 and 1.234,56: one reading only; 1.234 and 1,234 have two, and the English one is taken
_GROUPED = re.compile(
    r"(?<![\d.,])\d{1,3}(?:(?:\.\d{3}){2,40}(?:,\d{1,40})?|(?:[.\s]\d{3}){1,40},\d{1,40})(?![\d.,])"
)
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(0|\d{1,15}(?=,\d\d?\s?[€%°]|,\d\d? [^\W\d_])),(\d{1,40})(?![\d.,])")
_INDIAN = re.compile(r"(?<![\d.,])[1-9]\d?(?:,\d\d){1,40},\d{3}(?![\d,])")
_DASH = re.compile("[‐-–−]")  # hyphens, the en dash and the minus
# no powers of powers: bounded work
_UNIT = re.compile(r"[^\W\d_]{1,20}(?:\^-?\d)?(?: ?[*/ ] ?[^\W\d_]{1,20}(?:\^-?\d)?){0,4}")
# times a number: what these words are behind it
_TIMES = {"dozen": Fraction(12), "lakh": Fraction(10**5), "crore": Fraction(10**7), "half": Fraction(1, 2)}
_TIMES |= {"halves": Fraction(1, 2), "third": Fraction(1, 3)}
_TIMES |= {f"{name}th": Fraction(1, n) for n, name in enumerate("four fif six seven eigh nin ten".split(), 4)}
_COUNTED = re.compile(  # neither a number in words nor what changes one
    r"""(?!(?:and|per|plus|minus|times|negative|positive|below|above|under|over|less|more|fewer|least|most
    |greater|smaller|squared?|cubed?|factorial|choose|percent\w*|point|short|off|out|down|from|early|late|loss|profit|north|south
    |east|west|behind|ahead|about|around|nearly|roughly|almost|maybe|perhaps|probably|possibly|approximately
    |before|after|ago|not|none|never|wrong|inverse|reciprocal|opposite|double[sd]?|tripled?|twice|thrice
    |quarters?|score|gross|dozens?|couples?|lakhs?|crores?|hal[fv]e?s?|thirds?|\w*(?:four|fif|six|seven
    |eigh|nin|ten|eleven|twelf|teen|tie|dred|sand|illion)ths?|\w+teen|twenty|thirty|fo?u?rty|fifty|sixty|seventy
    |eighty|ninety|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundreds?|thousands?
    |\w*[mb]illi(?:one?|ard)\w*|mil|mila|mille|milh\w+|mill[oõ]\w+|cien\w*|tausend|hundert|dutzend|douzaines?
    |docenas?|dozzin\w+|d[uú]zias?|halb\w*|h[äa]lften?|drittel|viertel|\w+[ns]tel|moiti[ée]s?|demie?s?|tiers
    |quarts?|mitad(?:es)?|medi[oa]s?|mezz[oi]|meno|menos|moins|minder|weniger|mehr|hoch|mal|quadrat\w*|unter
    |[üu]ber|sobre|sous|sotto|bajo|negativ\w*|prozent|fakult[äa]t|тысяч\w*|миллион\w*|миллиард\w*|дюжин\w*
    |половин\w*|минус|плюс|ниже|выше)\b)[^\W\d_]{3,30}""",
    re.IGNORECASE | re.VERBOSE,
)
_UNIT_ASKED = (
    r"(?:(?P<power>square|cubic)\s+)?\$?(?P<unit>°\s?[CF]?\b|degrees? (?:Celsius|Fahrenheit)|US dollars?"
    r"|[€£¥$](?!\d)|[^\W\d_]{1,20}(?:/[^\W\d_]{1,10}| per [^\W\d_]{1,10})?(?:[²³]|\^[23])?)"
)
_ASKED_UNIT = re.compile(rf"\b(?:how (?:many|much)|number of|in)[,\s]+{_UNIT_ASKED}", re.IGNORECASE)
_CONVERT = re.compile(  # all that is asked
    rf"(?:\A|[.?!:]\s+)(?:please )?convert (?:[^.?!]|\.(?=\d)){{1,60}} to {_UNIT_ASKED}[\s.?!]*\Z",
    re.IGNORECASE,
)
_ASKED_ABROAD = re.compile(
    r"\b(?:wie ?viele?|combien (?:de |d['’])|cu[aá]nt[oa]s|quant[aei]s?|сколько)\s*([^\W\d_]{2,20})"
    r"(?![^\W\d_]|\s+(?:por|pro|par|per|за)\b)",
    re.IGNORECASE,
)
_MONEY = re.compile(
    r"(?<![^\W\d_])(?:US |R)?[$€£¥]|\b(?:dollars?|USD|euros?|EUR|pounds?(?= sterling)|GBP|yen|JPY)\b"
)
_CHANCE = re.compile(
    r"\A(?!.*(?:%|\bper ?cent|\bexpected\b|\bhow many\b))"
    r".*\b(?:what is|find) the (?:probability|chance|likelihood) (?:of|that)\b",
    re.IGNORECASE | re.DOTALL,
)
_IRREGULAR = {"children": "child", "men": "man", "women": "woman", "people": "person", "feet": "foot"}
_IRREGULAR |= {"teeth": "tooth", "mice": "mouse", "geese": "goose", "leaves": "leaf", "knives": "knife"}
_POWER = re.compile(r"(?<=[^\W\d_])(?:[²³]|⁻[¹²³])|(?<=10)[⁻²³¹⁰⁴-⁹]+")  # of a unit or of ten: m², 10²
_TEMPERATURE = re.compile(r"(?:°|deg(?:rees?)?) ?([CF])(?:elsius|ahrenheit)?|([CF])(?:elsius|ahrenheit)")
_ONE_REGISTRY = threading.Lock()  # lru_cache alone lets two threads make one each
_NO_UNIT = ("as", "at", "are", "he", "in")
_LARGEST = Fraction(sys.float_info.max)
_SPELLINGS = dict.fromkeys(("percent", "per cent", "percentage", "pct"), "%")
_SPELLINGS["¢"] = "cent"
_SPELLINGS |= dict.fromkeys(("°", "circ", "deg", "degree"), "degree")
_FOREIGN = {  # units in other languages, by Pint's name
    "h": "stunde stunden heure heures hora horas ora ore uur час часа часов 小时 小時 時間",
    "min": "minuten minutos minuto minuti минут минуты минута 分钟 分鐘",
    "s": "sekunde sekunden seconde secondes segundo segundos secondi секунд секунды секунда",
    "day": "tag tage tagen jour jours día días dia dias giorni giorno день дня дней",
    "year": "jahr jahre jahren ans années année año años ano anos anni anno год года лет",
    "km": "км 公里 千米 kilometer kilómetros quilômetros chilometri километров",
    "m": "м metros mètres metri метров 米",
    "cm": "см zentimeter centímetros 厘米",
    "L": "litros litro litri litres литров литра 升",
    "kg": "кг 公斤 千克 kilogramm kilogrammes kilogramos quilogramas",
    "g": "г gramm grammes gramos gramas граммов",
}
_FOREIGN = {word: unit for unit, words in _FOREIGN.items() for word in words.split()}
_CURRENCIES = {
    "$": ("dollar", "dollars", "usd", "us$", "us $"),
    "€": ("euro", "euros", "eur"),
    "£": ("pound", "pounds", "gbp"),
    "¥": ("yen", "jpy"),
    "R$": ("r$", "brl", "reais"),
}


def parse_number(text: str, unit: str = "", *, decimal_comma: bool = True) -> Fraction | None:
    """The one number a text consists of, exactly, in the declared unit, or None.

    Thousands separators, a currency sign, scientific notation and the declared unit, or one that converts to
    it, may be with it, and a fraction of two whole numbers is one; anything else makes it None. Without
    ``decimal_comma`` 0,1 is a list of two.
    """
    number = None if not decimal_comma and _DECIMAL_COMMA.search(text) else _read(text, unit)
    return number[0] if number else None


def _read(text: str, unit: str) -> tuple[Fraction, bool] | None:
    """The number in the declared unit, and whether it was converted from another."""
    if (
        unit
        and (parts := _PARTS.findall(text))
        and len(parts) > 1
        and _ONLY_PARTS.fullmatch(text.strip(" ."))
    ):
        return _read_parts(parts, unit)
    if twice := _TWICE.fullmatch(text.strip().rstrip(".")):
        return _read_twice(twice[1], twice[3], unit, 1e-2 if twice[2] else 1e-12)
    unit, parts = _translated(unit_name(unit)), amount(text)
    if parts is None:
        return None
    value, currency, its_unit = parts
    declared = currency_sign(unit)
    if currency and unit and currency != declared:
        return None
    if declared in ("$", "€", "R$") and not currency and its_unit.casefold() in ("cent", "cents", "¢"):
        return value / 100, True
    if not its_unit or same_unit(its_unit, unit) or (declared and currency_sign(its_unit) == declared):
        return value, False
    converted = _converted(value, its_unit, unit)
    return None if converted is None else (converted, True)


def _read_parts(parts: list[tuple[str, str]], unit: str) -> tuple[Fraction, bool] | None:
    """1 hour 30 minutes in the declared unit: each less than one of that before, all but the last whole."""
    base = next((base for base in _IN_PARTS if _converted(Fraction(1), unit_name(unit), base)), "")
    values = [
        (Fraction(number), _converted(Fraction(1), _translated(unit_name(name)), base))
        for number, name in parts
    ]
    if any(size is None or not size for _, size in values) or any(n.denominator > 1 for n, _ in values[:-1]):
        return None
    names = {_translated(unit_name(name)).removesuffix("s") for _, name in parts}
    if base == "ft" and not names <= {"ft", "foot", "feet", "in", "inch", "inche"}:
        return None
    if any(
        float(number * size) > float(before) * (1 - 1e-9) for (_, before), (number, size) in pairwise(values)
    ):
        return None
    total = sum(number * size for number, size in values)
    converted = _converted(total, base, unit_name(unit))
    return None if converted is None else (converted, True)


def _read_twice(text: str, again: str, unit: str, rounding: float) -> tuple[Fraction, bool] | None:
    """The number of a text whose brackets say it again; None where they say another, or another currency."""
    first, second = _read(text, unit), _read(again, unit)
    if not first or not second or abs(first[0] - second[0]) > abs(first[0]) * Fraction(rounding):
        return None
    parts = amount(text), amount(again)
    return first if all(parts) and len({sign for _, sign, _ in parts} - {""}) < 2 else None


def amount(text: str) -> tuple[Fraction, str, str] | None:
    """Value, currency sign and unit of a text that is one number, or None."""
    if not text.isascii():
        text = _POWER.sub(_caret, _VULGAR.sub(_spelled_out, text))
        if any(unicodedata.category(character) == "No" for character in text):  # NFKC would read 5² as 52
            return None
        text = unicodedata.normalize("NFKC", text.replace("º", "°").replace("’", "'"))
        text = _DASH.sub("-", text)
    text = _DELIMITERS.sub(r"\g<inside>", text.strip().rstrip(".").strip())
    text = _FORMULA.sub(r"\2 ", text).strip()
    text = _REAIS.sub(lambda sum: f"{sum[1]}{sum[2].replace('.', '')}.{sum[3]}", in_digits(text))
    text = _GROUPED.sub(lambda number: re.sub(r"[.\s]", "", number[0]).replace(",", "."), text, count=1)
    text = _DECIMAL_COMMA.sub(r"\1.\2", text, count=1)
    text = _INDIAN.sub(lambda number: number[0].replace(",", ""), text, count=1)
    if fraction := _FRACTION.fullmatch(text):
        return _fraction(*fraction.groups())
    match = _NUMBER.fullmatch(_TEN.sub(r"\g<sign>1*10^", text, count=1) if _TEN.match(text) else text)
    if not match:
        return None
    digits = re.sub(r"[^\d.]", "", match["number"]).rstrip(".")
    exponent = match["exponent"] or match["power"] or MULTIPLES.get(match["multiple"], 0)
    value = Fraction(f"{match['sign'] or match['inner'] or ''}{digits}e{exponent}")
    currency, unit = (
        currency_sign((match["currency"] or "").strip()),
        _translated(unit_name(match["unit"] or "")),
    )
    if times := _TIMES.get(_ending_less(unit)):
        value, unit = value * times, ""
    return (value, currency, unit) if abs(value) <= _LARGEST else None


def in_digits(text: str) -> str:
    """A text that begins with a number in words with it in digits: two hundred and five apples, minus 3."""
    if text[:1].isdigit():
        return text
    sign = _MINUS.match(text)[0]
    words = IN_WORDS.match(text, len(sign))
    again = _IN_DIGITS.match(text, words.end()) if words else None
    if again:
        text = text[: words.end()] + text[again.end() :]
        if not re.match(rf"-?{again[1]}(?!\d)", in_digits(text)):
            return ""
    value = group = 0
    for word in re.findall(r"\b(?!and\b)[a-z]+", words[0].casefold() if words else ""):
        power = MULTIPLES.get(word, 0)
        if power and value and not group:
            return text  # five thousand million
        group = (group or 1) * 10**power if power else group + _WORTH[word]
        if power > 2:
            value, group = value + group, 0
    digits = f"{value + group}{text[words.end() :]}" if words else text[len(sign) :]
    return f"{'-' if sign else ''}{digits}"


def _ending_less(unit: str) -> str:
    return unit if unit in _TIMES else unit.removesuffix("s")


def _spelled_out(fraction: re.Match) -> str:
    """2¾ as 2 3/4."""
    return f"{(fraction[1] or '').strip()} {unicodedata.normalize('NFKC', fraction[2])}".replace("⁄", "/")


def _fraction(
    sign: str | None, whole: str | None, inner: str, above: str, below: str, unit: str | None
) -> tuple[Fraction, str, str] | None:
    """3/4, -3/4 or 2 3/4, with a unit or without; None for a division by zero and for 2 -3/4."""
    if not int(below) or (whole and (inner or int(above) >= int(below))):
        return None
    value = int(whole or 0) + Fraction(int(above), int(below))
    return (-value if "-" in (sign, inner) else value), "", _translated(unit_name(unit or ""))


# ---- units
def unit_name(text: str) -> str:
    """One spelling of a unit: % for percent, degree for °, degC for °C, m^2 for m²; no full stop behind."""
    text = re.sub(r"\s*[·⋅]\s*", "*", _POWER.sub(_caret, text)).strip().rstrip(".")
    if temperature := _TEMPERATURE.fullmatch(text):
        return f"deg{temperature[1] or temperature[2]}"
    text = re.sub(r"(?<=watt|wton)[- ](?=(?:hour|met(?:er|re))s?\Z)", "*", text)
    return _SPELLINGS.get(text.casefold().removesuffix("s"), text)


def _translated(unit: str) -> str:
    """An answer's unit in English; a question's stays, for ore is no hour."""
    if power := {"平方": "^2", "立方": "^3"}.get(unit[:2]):
        return _FOREIGN.get(unit[2:], unit[2:]) + power
    return _FOREIGN.get(unit.casefold(), unit)


def _caret(power: re.Match) -> str:
    return "^" + unicodedata.normalize("NFKC", power[0])


def same_unit(unit: str, other: str) -> bool:
    """Whether two names mean one unit: to Pint where it knows both, else whatever the case and a plural s."""
    if unit == other:
        return True
    known, other_known = _pint_unit(unit), _pint_unit(other)
    if known is None or other_known is None:
        return not _singulars(unit).isdisjoint(_singulars(other))
    return known == other_known


def _singulars(unit: str) -> set[str]:
    """What a word may be one of: boxes of box or boxe, cities of city, children of child."""
    unit = unit.casefold()
    one = re.sub(r"(?<=[^\W\d_][^\Ws\d_])s$", "", unit)
    forms = {one, _IRREGULAR.get(unit, one)}
    if one != unit:
        forms |= {re.sub(r"(?<=[sxz])e$|(?<=[cs]h)e$", "", one), re.sub(r"(?<=[^\W\d_aeiou])ie$", "y", one)}
    return forms


@lru_cache(maxsize=256)
def asked_unit(question: str) -> str:
    """The unit or the currency that a question asks for: "how many hours", "in m²"; "" for none.

    A question that names one currency only is taken to ask for that.
    """
    convert = _CONVERT.search(question)
    for match in [convert] if convert else _ASKED_UNIT.finditer(question):
        power = {"square": "^2", "cubic": "^3"}.get((match["power"] or "").lower(), "")
        unit = unit_name(match["unit"].strip("$ .?") or "$") + power
        if sign := currency_sign(unit):
            return unit if sign == "£" and is_unit(unit) else sign  # a pound is a weight too
        if (len(unit) > 1 or unit in "mgshlLNJWVAKC") and unit not in _NO_UNIT and is_unit(unit):
            return unit
    if (abroad := _ASKED_ABROAD.search(question)) and is_unit(_translated(abroad[1])):
        return _translated(abroad[1])
    # a dollar that opens mathematics stands before no number, or one closes it
    money = re.sub(r"(?<!\\)\$[^$\n]*?(?<!\s)\$(?!\d)", " ", question)
    signs = {currency_sign(name.strip().removeprefix("US ")) for name in _MONEY.findall(money)}
    return signs.pop() if len(signs) == 1 else ""


def currency_sign(unit: str) -> str:
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


def converts(unit: str, other: str) -> bool:
    """Whether both are units of one dimension."""
    return is_unit(unit) and _converted(Fraction(1), unit, other) is not None


@lru_cache(maxsize=4096)
def is_unit(text: str) -> bool:
    """Whether Pint knows a unit of this name; not by accident, as hats are hecto-technical atmospheres."""
    text = text.replace("metre", "meter").replace("litre", "liter")
    if _pint_unit(text) is None:
        return False
    if not re.fullmatch("[a-z]{3,}", text) or text in ("kcal", "mmol", "mbar", "kgs", "kms"):
        return True
    names = _registry().parse_unit_name(text)
    return any(not prefix or name in text for prefix, name, _ in names)


@lru_cache(maxsize=4096)
def _pint_unit(text: str) -> Any:
    """The unit a text names to Pint, or None."""
    try:
        return _registry().parse_units(text) if _UNIT.fullmatch(text) else None
    except Exception:  # Pint raises many kinds on text that is no unit
        return None


def _registry() -> Any:
    """The one registry of all threads: units of two registries cannot be compared."""
    with _ONE_REGISTRY:
        return _made_registry()


@lru_cache(maxsize=1)
def _made_registry() -> Any:
    import pint

    return pint.UnitRegistry(cache_folder=None)


# ---- comparing
def numeric(
    answer: str, gold: str, *, abs_tol: float = 0.0, rel_tol: float = 0.0, unit: str = "", question: str = ""
) -> Score:
    """1 when both are one number and |answer - gold| <= max(abs_tol, rel_tol * |gold|).

    Args:
        gold: a unit in it counts as declared.
        abs_tol: absolute tolerance, in ``unit``; without one the numbers must be equal.
        rel_tol: relative tolerance.
        unit: of the gold answer: a Pint unit such as "km/h", "%", a currency such as "$", or any word.
        question: what was asked; a unit that it asks for, and only that, may be with the answer.
    """
    if answer.strip().strip("+-").casefold() == "nan":
        return Score(0.0, "NaN equals nothing")
    unit = unit or _gold_unit(str(gold))
    wanted, given = _read(str(gold), unit), _read(answer, unit)
    if not unit and question and (twice := _TWICE.fullmatch(answer.strip(" ."))):
        if asked := asked_unit(question):  # one of the two is in it
            said = (_read(twice[1], asked), _read(twice[3], asked))
            given = _read(answer, asked) if any(read and not read[1] for read in said) else None
    elif not unit and question and (parts := amount(answer)) and any(parts[1:]):
        asked = asked_unit(question)
        sign, said = (
            currency_sign(asked),
            {parts[1], currency_sign(parts[2]) or parts[2]} - {""},
        )  # $5, 5 dollars
        fits = asked and ((sign and said == {sign}) or (not parts[1] and same_unit(parts[2], asked)))
        if fits or (asked and parts[1]):
            unit, given = asked, (parts[0], False) if fits else None
        elif parts[2] == "%" and 0 <= parts[0] <= 100 and _CHANCE.search(question):
            given = (parts[0] / 100, True)  # a probability of 35 %
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
    """The unit a gold answer is written in: %, a currency, one Pint knows, or a word for what is counted."""
    if _ONLY_PARTS.fullmatch(gold.strip(" .")):
        return unit_name(_PARTS.findall(gold)[-1][1])
    parts = amount(gold)
    if parts is None:
        return ""
    _, currency, unit = parts
    is_part = unit.casefold() in ("quarter", "quarters")
    known = unit == "%" or currency_sign(unit) or (is_unit(unit) and not is_part)
    return currency or (unit if known or _COUNTED.fullmatch(unit) else "")
