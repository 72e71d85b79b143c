"""The embedded corpus: real facts in one SQLite file that ships, each of them a passage too.

Every passage states one fact in the form "The <phrase> is <value>.", and PHRASES (corpus.toml) holds those
phrases once, for passages, queries and questions alike. Leaves out how the file is made (.ci/corpus.py).
"""

import re
import sqlite3
import threading
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from agentkit.records import DataError

SHIPPED = Path(__file__).with_name("corpus.sqlite")
_TABLE = tomllib.loads(SHIPPED.with_suffix(".toml").read_text(encoding="utf-8"))
PHRASES, UNITS = _TABLE["phrases"], _TABLE["units"]
TOKENIZE = "tokenize = 'unicode61 remove_diacritics 2'"
_STOPWORDS = frozenset(
    "a an and are at by did do does for from how in is it its many "
    "much of on or that the to was were what when "
    "where which who whose with".split()
)

Fact = tuple[str, tuple, object]  # kind such as "country.population", entity and year, value


def facts(connection: sqlite3.Connection) -> Iterator[Fact]:
    """Every fact, in a fixed order; what is not known is no fact."""
    rows = connection.execute(
        "SELECT name, entity, year, value FROM fact JOIN kind ON kind.id = fact.kind ORDER BY fact.id"
    )
    for kind, entity, year, value in rows:
        yield kind, (entity,) if year is None else (entity, year), value


def passage(kind: str, entity: tuple, value: object) -> str:
    """The sentence that states a fact, such as "The capital of France is Paris."."""
    unit = f" {UNITS[kind]}" if kind in UNITS else ""
    return f"The {PHRASES[kind].format(*entity)} is {value}{unit}."


class Corpus:
    """A read-only corpus file, by default the one that ships; each thread has a connection of its own."""

    def __init__(self, path: str | Path = SHIPPED):
        self.path = Path(path)
        self._local = threading.local()
        try:
            self.rows("SELECT text FROM passage LIMIT 1")
        except sqlite3.Error as error:
            raise DataError(
                f"{self.path} is no corpus ({error}): install agentkit again, or make one with .ci/corpus.py"
            ) from None
        status = self.path.stat()  # what answers depend on, as a corpus file is never written again
        self.version = f"{self.path.resolve()} {status.st_size} {status.st_mtime_ns}"

    def __reduce__(self) -> tuple:
        """A copy in another process opens the file there."""
        return Corpus, (self.path,)

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
