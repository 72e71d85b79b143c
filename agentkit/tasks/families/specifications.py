"""What family C's functions do: building blocks that chain, and the inputs they take. Data only.

A block turns the value ``x`` into another value by one Python expression; ``{k}`` stands for its parameter.
Its words go into the prompt, its code is the reference. Leaves out how blocks are chained (code).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True)
class Block:
    """One step of a function."""

    name: str
    words: str  # what the step does, as an imperative
    code: str  # one expression in x
    takes: str  # a kind in INPUTS
    gives: str  # a kind in INPUTS
    values: tuple = ()  # what {k} may be; empty: the step has no parameter


_SMALL, _FEW, _LETTERS = tuple(range(2, 10)), (2, 3), tuple("aeioulnrst")


def _blocks(takes: str, gives: str, *rows: tuple) -> list[Block]:
    return [Block(name, words, code, takes, gives, *values) for name, words, code, *values in rows]


BLOCKS: tuple[Block, ...] = (
    *_blocks(
        "numbers", "numbers",
        ("above", "keep the numbers above {k}", "[v for v in x if v > {k}]", _SMALL),
        ("below", "keep the numbers below {k}", "[v for v in x if v < {k}]", tuple(range(8, 20))),
        ("even", "keep the even numbers", "[v for v in x if v % 2 == 0]"),
        ("odd", "keep the odd numbers", "[v for v in x if v % 2 == 1]"),
        ("multiples", "keep the multiples of {k}", "[v for v in x if v % {k} == 0]", (3, 4, 5)),
        ("without", "remove every {k}", "[v for v in x if v != {k}]", _SMALL),
        ("step", "take the items whose index is a multiple of {k}", "x[::{k}]", (2, 3)),
        ("first", "take the first {k} items", "x[:{k}]", (2, 3, 4)),
        ("last", "take the last {k} items", "x[-{k}:]", (2, 3, 4)),
        ("drop", "drop the first {k} items", "x[{k}:]", _FEW),
        ("cut", "drop the last {k} items", "x[:-{k}]", _FEW),
        ("rotate", "move the first {k} items to the end", "x[{k}:] + x[:{k}]", _FEW),
        ("unique", "drop repeated items", "list(dict.fromkeys(x))"),
        ("ascending", "sort ascending", "sorted(x)"),
        ("descending", "sort descending", "sorted(x)[::-1]"),
        ("reverse", "reverse the order", "x[::-1]"),
        ("add", "add {k} to each", "[v + {k} for v in x]", _SMALL),
        ("times", "multiply each by {k}", "[v * {k} for v in x]", _SMALL),
        ("divide", "divide each by {k} and round down", "[v // {k} for v in x]", (2, 3, 4)),
        ("modulo", "take each modulo {k}", "[v % {k} for v in x]", (3, 4, 5, 6, 7)),
        ("square", "square each", "[v * v for v in x]"),
        ("digits", "replace each by its digit sum", "[sum(map(int, str(v))) for v in x]"),
        ("cap", "replace numbers above {k} by {k}", "[min(v, {k}) for v in x]", tuple(range(8, 16))),
        ("floor", "replace numbers below {k} by {k}", "[max(v, {k}) for v in x]", tuple(range(4, 12))),
        ("differences", "take how far each item lies from the one before",
         "[abs(b - a) for a, b in zip(x, x[1:])]"),
        ("running", "take the running sums", "[sum(x[:i + 1]) for i in range(len(x))]"),
        ("rises", "keep the items larger than the one before", "[b for a, b in zip(x, x[1:]) if b > a]"),
        ("scaled", "multiply each by its index", "[i * v for i, v in enumerate(x)]"),
    ),
    *_blocks(
        "numbers", "number",
        ("sum", "give the sum", "sum(x)"),
        ("count", "give the number of items", "len(x)"),
        ("largest", "give the largest", "max(x)"),
        ("smallest", "give the smallest", "min(x)"),
        ("spread", "give the largest minus the smallest", "max(x) - min(x)"),
        ("distinct", "give the number of different items", "len(set(x))"),
        ("second", "give the second largest", "sorted(x)[-2]"),
        ("middle", "sort and give the item in the middle", "sorted(x)[len(x) // 2]"),
        ("item", "give the item at index {k}", "x[{k}]", _FEW),
        ("squares", "give the sum of the squares", "sum(v * v for v in x)"),
        ("count_above", "count the numbers above {k}", "sum(v > {k} for v in x)", _SMALL),
        ("where", "give the index of the largest", "x.index(max(x))"),
        ("ends", "give the first plus the last", "x[0] + x[-1]"),
    ),
    *_blocks("numbers", "text", ("join", "join the items with hyphens", "'-'.join(map(str, x))")),
    *_blocks(
        "text", "text",
        ("backwards", "reverse it", "x[::-1]"),
        ("upper", "put it in upper case", "x.upper()"),
        ("title", "capitalise each word", "x.title()"),
        ("swap", "swap upper and lower case", "x.swapcase()"),
        ("consonants", "remove the vowels", "''.join(c for c in x if c.lower() not in 'aeiou')"),
        ("vowels", "keep only the vowels", "''.join(c for c in x if c.lower() in 'aeiou')"),
        ("skip", "take the characters whose index is a multiple of {k}", "x[::{k}]", (2, 3)),
        ("start", "take the first {k} characters", "x[:{k}]", (3, 4, 5, 6, 7)),
        ("end", "take the last {k} characters", "x[-{k}:]", (3, 4, 5, 6, 7)),
        ("behead", "drop the first {k} characters", "x[{k}:]", (2, 3, 4)),
        ("remove", "remove every lower case {k}", "x.replace('{k}', '')", _LETTERS),
        ("star", "replace every lower case {k} by a star", "x.replace('{k}', '*')", _LETTERS),
        ("double", "double each character", "''.join(c * 2 for c in x)"),
        ("repeat", "repeat it {k} times", "x * {k}", (2, 3, 4)),
        ("letters_sorted", "sort the characters", "''.join(sorted(x))"),
        ("characters", "drop repeated characters", "''.join(dict.fromkeys(x))"),
        ("shift", "move each lower case letter {k} on in the alphabet",
         "''.join(chr((ord(c) - 97 + {k}) % 26 + 97) if c.islower() else c for c in x)", _FEW),
        ("words_back", "reverse the order of the words", "' '.join(x.split()[::-1])"),
        ("flip", "reverse each word", "' '.join(w[::-1] for w in x.split())"),
        ("words_sorted", "sort the words", "' '.join(sorted(x.split()))"),
        ("long", "keep the words longer than {k} letters",
         "' '.join(w for w in x.split() if len(w) > {k})", (3, 4, 5)),
        ("short", "keep the words shorter than {k} letters",
         "' '.join(w for w in x.split() if len(w) < {k})", (4, 5, 6)),
        ("hyphens", "join the words with hyphens", "'-'.join(x.split())"),
        ("initials", "take the first letter of each word", "''.join(w[0] for w in x.split())"),
    ),
    *_blocks(
        "text", "number",
        ("length", "give the number of characters", "len(x)"),
        ("word_count", "give the number of words", "len(x.split())"),
        ("vowel_count", "count the vowels", "sum(c in 'aeiou' for c in x.lower())"),
        ("letter_count", "count the lower case {k}", "x.count('{k}')", _LETTERS),
        ("alphabet", "give the number of different characters", "len(set(x))"),
        ("longest_word", "give the length of the longest word", "max(map(len, x.split()))"),
        ("capitals", "count the upper case letters", "sum(c.isupper() for c in x)"),
        ("position", "give the index of the first lower case {k}", "x.index('{k}')", _LETTERS),
    ),
    *_blocks(
        "text", "numbers",
        ("word_lengths", "list the lengths of the words", "[len(w) for w in x.split()]"),
    ),
    *_blocks(
        "number", "number",
        ("plus", "add {k}", "x + {k}", _SMALL),
        ("product", "multiply by {k}", "x * {k}", _SMALL),
        ("remainder", "take it modulo {k}", "x % {k}", (5, 6, 7, 8, 9)),
        ("quotient", "divide by {k} and round down", "x // {k}", _SMALL),
        ("power", "square it", "x * x"),
        ("digit_sum", "add up its digits", "sum(map(int, str(x)))"),
        ("mirror", "reverse its digits", "int(str(x)[::-1])"),
        ("ones", "count the ones in its binary form", "bin(x).count('1')"),
        ("divisors", "count its divisors", "sum(x % i == 0 for i in range(1, x + 1))"),
        ("triangle", "add up the numbers from 1 to it", "x * (x + 1) // 2"),
        ("multiples_sum", "add up the multiples of {k} below it",
         "sum(i for i in range(x) if i % {k} == 0)", (3, 4, 5, 6, 7)),
        ("primes", "count the primes up to it",
         "sum(all(i % j for j in range(2, i)) for i in range(2, x + 1))"),
        ("odd_squares", "add up the squares of the odd numbers up to it",
         "sum(i * i for i in range(1, x + 1, 2))"),
    ),
    *_blocks(
        "number", "text",
        ("binary", "write it in binary", "bin(x)[2:]"),
        ("hex", "write it in hexadecimal", "hex(x)[2:]"),
    ),
    *_blocks(
        "number", "numbers",
        ("digit_list", "list its digits", "[int(c) for c in str(x)]"),
        ("divisor_list", "list its divisors", "[i for i in range(1, x + 1) if x % i == 0]"),
        ("up_to", "list the numbers from 1 to it", "[i for i in range(1, x + 1)]"),
    ),
    *_blocks(
        "date", "date",
        ("later", "take the day {k} days later", "x + timedelta({k})", (10, 20, 30, 45, 60, 90, 100)),
        ("earlier", "take the day {k} days earlier", "x - timedelta({k})", (10, 20, 30, 45, 60, 90, 100)),
        ("month_start", "take the first day of its month", "x.replace(day=1)"),
        ("year_end", "take the last day of its year", "date(x.year, 12, 31)"),
        ("monday", "take the Monday of its week", "x - timedelta(x.weekday())"),
    ),
    *_blocks(
        "date", "number",
        ("day", "give the day of the month", "x.day"),
        ("month", "give the month", "x.month"),
        ("year_day", "give the day of the year", "x.timetuple().tm_yday"),
        ("days_left", "give the days left in its year", "(date(x.year, 12, 31) - x).days"),
        ("since", "give the days since {k}-01-01", "(x - date({k}, 1, 1)).days", (1950, 1960, 1970, 1980)),
        ("age", "give the age in whole years of someone born on {k}-07-01",
         "x.year - {k} - ((x.month, x.day) < (7, 1))", (1950, 1955, 1960, 1965, 1970)),
        ("quarter", "give the quarter", "(x.month + 2) // 3"),
    ),
    *_blocks("date", "text", ("weekday", "give the name of the weekday", "x.strftime('%A')")),
)  # fmt: skip

_WORDS = (
    "apple river stone cloud table green music paper light house bread salt train window garden winter "
    "silver candle mirror forest ocean bridge letter orange summer tiger planet basket pencil rocket"
).split()


def _text(rng: Random) -> str:
    return " ".join(
        w.capitalize() if rng.random() < 0.3 else w for w in rng.sample(_WORDS, rng.randint(3, 4))
    )


def _list(low: int, high: int, shortest: int = 5, longest: int = 7) -> Callable[[Random], list[int]]:
    return lambda rng: [rng.randint(low, high) for _ in range(rng.randint(shortest, longest))]


def _string(letters: str, shortest: int, longest: int) -> Callable[[Random], str]:
    return lambda rng: "".join(rng.choice(letters) for _ in range(rng.randint(shortest, longest)))


def _polish(rng: Random) -> str:
    words, depth = [str(rng.randint(1, 9)), str(rng.randint(1, 9))], 2
    while depth > 1 or (len(words) < 9 and rng.random() < 0.6):
        deeper = depth < 2 or (depth < 4 and rng.random() < 0.4)
        words.append(str(rng.randint(1, 9)) if deeper else rng.choice("+-*"))
        depth += 1 if deeper else -1
    return " ".join(words)


def _pairs(rng: Random, widest: int) -> list[list[int]]:
    return [
        [low, low + rng.randint(1, widest)] for low in (rng.randint(1, 9) for _ in range(rng.randint(3, 5)))
    ]


def _matrix(rng: Random) -> list[list[int]]:
    width = rng.randint(2, 3)
    return [[rng.randint(0, 9) for _ in range(width)] for _ in range(rng.randint(2, 3))]


def _alike(rng: Random) -> str:
    stem = rng.choice(_WORDS)[: rng.randint(1, 4)]
    return " ".join(stem + _string("abc", 1, 3)(rng) for _ in range(3))


# How the prompt calls an input of each kind, and how one is made.
INPUTS: dict[str, tuple[str, Callable[[Random], Any]]] = {
    "numbers": ("a list x", _list(0, 20)),
    "text": ("a text x", _text),
    "number": ("a number x", lambda rng: rng.randint(6, 99)),
    "date": (
        "a date x",
        lambda rng: str(date(rng.randint(1990, 2030), 1, 1) + timedelta(rng.randint(0, 364))),
    ),
    "count": ("a number x", lambda rng: rng.randint(3, 30)),
    "signed": ("a list x", _list(-9, 9)),
    "sorted": ("a list x", lambda rng: sorted(_list(0, 20)(rng))),
    "bits": ("a list x", _list(0, 2, 6, 9)),
    "letters": ("a text x", _string("abc", 4, 8)),
    "brackets": ("a text x", _string("()[]", 2, 4)),
    "digits": ("a text x of digits", _string("0123456789", 4, 6)),
    "intervals": ("a list x of intervals", lambda rng: _pairs(rng, 4)),
    "items": ("a list x", lambda rng: _pairs(rng, 6)),
    "matrix": ("a matrix x, a list of rows", _matrix),
    "polish": ("a text x", _polish),
    "anagrams": (
        "a text x",
        lambda rng: " ".join(_string("abc", 2, 2)(rng) for _ in range(rng.randint(3, 6))),
    ),
    "alike": ("a text x", _alike),
}
