"""What family C's functions do: blocks that chain, whole algorithms, and the inputs they take.

A block turns the value ``x`` into another value by one Python expression; an algorithm is what no line can
say; ``{k}`` stands for a parameter. Words go into the prompt, code is the reference. Both are read from the
tables beside this file. Leaves out how blocks are chained (code).
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A function of several lines, too long to compose in one expression."""

    name: str
    words: str
    takes: str  # a kind in INPUTS
    edges: list  # inputs that a careful programmer tries
    code: str  # the body of f(x)
    values: list = ()  # what {k} may be; empty: it has no parameter


def table(name: str) -> dict[str, Any]:
    """A TOML file beside this one."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


BLOCKS = tuple(
    Block(name, words, code, *kinds.split(" to "), *map(tuple, values))
    for kinds, rows in table("blocks").items()
    for name, (words, code, *values) in rows.items()
)
ALGORITHMS = tuple(Algorithm(name, **parts) for name, parts in table("algorithms").items())

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
