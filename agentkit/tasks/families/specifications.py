"""What family C's functions do: blocks that chain, and the inputs they take.

A block turns the value ``x`` into another value by one Python expression; ``{k}`` stands for a parameter.
Words go into the prompt, code is the reference. Leaves out how blocks are chained (code).
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


def table(name: str) -> dict[str, Any]:
    """A TOML file beside this one."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


BLOCKS = tuple(
    Block(name, words, code, *kinds.split(" to "), *map(tuple, values))
    for kinds, rows in table("blocks").items()
    for name, (words, code, *values) in rows.items()
)

_WORDS = (
    "apple river stone cloud table green music paper light house bread salt train window garden winter "
    "silver candle mirror forest ocean bridge letter orange summer tiger planet basket pencil rocket"
).split()


def _text(rng: Random) -> str:
    return " ".join(
        w.capitalize() if rng.random() < 0.3 else w for w in rng.sample(_WORDS, rng.randint(3, 4))
    )


def _numbers(rng: Random) -> list[int]:
    return [rng.randint(0, 20) for _ in range(rng.randint(5, 7))]


def _date(rng: Random) -> str:
    return str(date(rng.randint(1990, 2030), 1, 1) + timedelta(rng.randint(0, 364)))


# How the prompt calls an input of each kind, and how one is made.
INPUTS: dict[str, tuple[str, Callable[[Random], Any]]] = {
    "numbers": ("a list x", _numbers),
    "text": ("a text x", _text),
    "number": ("a number x", lambda rng: rng.randint(6, 99)),
    "date": ("a date x", _date),
}
