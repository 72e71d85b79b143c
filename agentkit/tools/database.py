"""The database tool: one read-only SELECT over the corpus' tables, bounded in work, time, rows and size.

An authorizer lets nothing but reading through, functions are an allow-list, and a progress handler counts the
virtual machine's steps, so that the same query is always stopped at the same place. Leaves out: PRAGMA,
ATTACH, extensions, every function that makes large values, and those of dates, which read the clock.
"""

import sqlite3
import time
from contextlib import closing

from agentkit.tools.corpus import TABLES, Corpus

MAX_SQL = 2_000  # characters
MAX_ROWS = 50
MAX_VALUE = 1_000  # bytes of any one value, intermediate ones included
# of SQLite's virtual machine; with the line above, what a query can sort or keep on the way: 100 MB
MAX_STEPS = 1_000_000
TIMEOUT_S = 5.0  # for a busy machine; the steps end a query first
_BETWEEN_CHECKS = 10_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
}
_ACTIONS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
_FUNCTIONS = frozenset(
    "abs avg coalesce count glob group_concat iif ifnull instr length like lower "
    "ltrim max min nullif replace round rtrim sign substr substring sum total trim typeof "
    "unicode upper row_number rank dense_rank lag lead first_value last_value ntile bm25 match".split()
)


def query_database(corpus: Corpus, sql: str) -> str:
    """The rows of one SELECT, a header and one row a line, fields separated by " | ".

    Raises:
        ValueError: what is wrong with the query, or which bound it broke, in one sentence.
    """
    if len(sql) > MAX_SQL:
        raise ValueError(f"the query has {len(sql)} characters; the limit is {MAX_SQL}")
    if not sql.strip():
        raise ValueError(f"the query is empty; {_tables(corpus)}")
    address = f"{corpus.path.resolve().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        stopped = _bound(connection)
        try:
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise ValueError("only SELECT is allowed")
            rows = cursor.fetchmany(MAX_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            raise ValueError(_explained(error, stopped, corpus)) from None
    header = [name for name, *_ in cursor.description]
    shown = [["NULL" if value is None else " ".join(str(value).split()) for value in row] for row in rows]
    lines = [" | ".join(row) for row in [header, *shown[:MAX_ROWS]]]
    if len(rows) > MAX_ROWS:
        lines.append(f"(only the first {MAX_ROWS} rows are shown)")
    if not rows:
        lines.append("(no rows)")
    return "\n".join(lines)


def _tables(corpus: Corpus) -> str:
    columns = {table: corpus.rows(f"PRAGMA table_info({table})") for table in TABLES}
    named = (f"{table}({', '.join(name for _, name, *_ in rows)})" for table, rows in columns.items())
    return f"the tables are {', '.join(named)}"


def _bound(connection: sqlite3.Connection) -> list[str]:
    """Put every bound on a connection; the list holds why a query was stopped, once it was."""
    stopped: list[str] = []
    deadline, checks = time.monotonic() + TIMEOUT_S, iter(range(MAX_STEPS // _BETWEEN_CHECKS))

    def progress() -> bool:
        if next(checks, None) is None:
            stopped.append(f"the query took more than {MAX_STEPS} steps")
        elif time.monotonic() > deadline:
            stopped.append(f"the query took longer than {TIMEOUT_S:g} s")
        return bool(stopped)

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        allowed = action in _ACTIONS
        if action == sqlite3.SQLITE_FUNCTION:
            allowed = (second or "").lower() in _FUNCTIONS
        elif action == sqlite3.SQLITE_PRAGMA:
            allowed = first == "data_version"  # FTS5 asks for it
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    connection.execute(
        "SELECT count(*) FROM passage WHERE passage MATCH 'x'"
    ).fetchone()  # FTS5 sets itself up
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    connection.set_authorizer(authorize)
    connection.set_progress_handler(progress, _BETWEEN_CHECKS)
    return stopped


def _explained(error: Exception, stopped: list[str], corpus: Corpus) -> str:
    if stopped:
        return f"{stopped[0]}; narrow it down"
    message = str(error)
    if "not authorized" in message or "prohibited" in message:
        return f"only SELECT over the tables is allowed ({message})"
    return f"{message}; {_tables(corpus)}" if "no such" in message else message
