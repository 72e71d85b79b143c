"""Made-up worlds: names and numbers that resemble the corpus in form only. Nothing in them is true.

A world is a corpus file with the same tables, so the same families, tools and expert work on it. Leaves out
sense: a film may be older than its director.
"""

import random
import tomllib
from collections.abc import Callable
from pathlib import Path

from agentkit.tools.corpus import TABLES, build

_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
_FRAGMENTS, _SMALL = _NAMES["fragments"].split(), _NAMES["small"].split()
COUNTRIES, CITIES, ELEMENTS, FILMS = 60, 150, 60, 220


def word(rng: random.Random, parts: int | None = None) -> str:
    """One made-up capitalised word: fragments as many languages have them, or now and then any letters."""
    if rng.random() < 0.12:
        text = "".join(rng.choice(_NAMES["letters"]) for _ in range(rng.randint(2, 8)))
    else:
        text = "".join(rng.choice(_FRAGMENTS) for _ in range(parts or rng.choice([1, 2, 2, 2, 3])))
    return text.capitalize() + (rng.choice(_NAMES["suffixes"]) if rng.random() < 0.12 else "")


def place(rng: random.Random) -> str:
    words = [word(rng) for _ in range(rng.choices([1, 2, 3], [7, 4, 1])[0])]
    if len(words) == 3:
        words[1] = rng.choice(["and", "de", "of", "del", "la", words[1]])
    return rng.choices([" ", "-"], [6, 1])[0].join(words)


def person(rng: random.Random) -> str:
    first = word(rng, 2) if rng.random() < 0.9 else f"{rng.choice('ABCDEFGHJKLMNPRSTW')}."
    initial, particle = f"{rng.choice('ABCDEFGHJKLMNPRSTW')}.", rng.choice(["de", "van", "von", "Mc", "O'"])
    middle = rng.choices([[], [initial], [particle]], [10, 1, 2])[0]
    return " ".join([first, *middle, word(rng, rng.choice([1, 2, 3]))])


def title(rng: random.Random) -> str:
    """A made-up film title, with small words, numbers and punctuation as titles have them."""
    words = [word(rng) for _ in range(rng.choices([1, 2, 3, 4], [3, 4, 3, 1])[0])]
    for i in range(1, len(words)):
        if rng.random() < 0.35:
            words.insert(i, rng.choice(_SMALL))
    if rng.random() < 0.3:
        words.insert(0, rng.choice(["The", "The", "A", "My", "No", "I"]))
    if rng.random() < 0.08:
        words.append(str(rng.randint(2, 2100)))
    if rng.random() < 0.08:
        words[0] += rng.choice(["'s", ":", ",", " &", "!", "'", "."])
    return " ".join(words)


def _distinct(make: Callable[[random.Random], str], rng: random.Random, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names.setdefault(make(rng))
    return list(names)


def _element(rng: random.Random) -> str:
    return word(rng, rng.choice([2, 3])) + rng.choice(["", "ium", "on"])


def _size(rng: random.Random, low: float, high: float) -> int:
    return int(10 ** rng.uniform(low, high))


def make_world(path: str | Path, seed: int) -> Path:
    rng = random.Random(f"world-{seed}")
    countries, cities = _distinct(place, rng, COUNTRIES), _distinct(place, rng, CITIES)
    currencies = [word(rng) for _ in range(25)]
    tables: dict[str, list[tuple]] = {name: [] for name in TABLES}
    for i, name in enumerate(countries):
        people, area = _size(rng, 2.5, 9.2), _size(rng, 0.8, 7.2)
        currency, continent = rng.choice(currencies), rng.choice(_NAMES["continents"])
        tables["country"].append((name, f"{i:02d}", cities[i], people, area, currency, continent))
    for name in countries:
        others = [other for other in countries if other != name]
        tables["neighbour"] += [(name, other) for other in rng.sample(others, rng.choice([1, 1, 2, 3]))]
    tables["city"] = [
        (name, countries[i] if i < COUNTRIES else rng.choice(countries), _size(rng, 4.7, 7.4))
        for i, name in enumerate(cities)
    ]
    finders = _distinct(person, rng, ELEMENTS)
    for i, name in enumerate(_distinct(_element, rng, ELEMENTS)):
        symbol = name[: rng.choice([1, 2])].capitalize()
        weight, year = round(rng.uniform(1, 300), 3), rng.randint(1600, 2020)
        tables["element"].append((name, symbol, i + 1, weight, year, finders[i]))
    directors = _distinct(person, rng, FILMS // 3)
    tables["film"] = [
        (name, rng.randint(1920, 2020), rng.randint(40, 240), rng.choice(directors), rng.choice(countries))
        for name in _distinct(title, rng, FILMS)
    ]
    tables["indicator"] = [
        (name, year, round(rng.uniform(25, 90), 1), round(10 ** rng.uniform(2.3, 5), 1))
        for name in countries
        for year in rng.sample(range(1950, 2020), 3)
    ]
    return build(path, tables)
