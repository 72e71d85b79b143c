"""An exact cache of answers: one SQLite file, kept across runs, shared by processes, with single flight.

An answer is found by the tool's name, its version and the canonical arguments, and by nothing else; failures
are never kept. Every so many hits the tool is asked again, and a different answer is a loud warning that
names the tool. Leaves out: expiry (raise a tool's version, or remove the file), stateful tools, and single
flight between processes.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentkit.records import DataError

MAX_MB = 2_000  # of the file; after that nothing more is kept
BUSY_S = 2.0  # how long other processes' writing is waited for
Outcome = tuple[str, bool]  # what the policy is shown, and whether the call went well


def canonical(arguments: dict[str, Any]) -> str:
    """Arguments as sorted ASCII JSON, equal where they are. Raises ValueError for what JSON cannot say."""
    return json.dumps(arguments, sort_keys=True, allow_nan=False)


def key_of(tool: str, version: str, arguments: str) -> bytes:
    return hashlib.sha256(json.dumps([tool, version, arguments]).encode()).digest()


class ToolCache(contextlib.AbstractContextManager):
    """Answers by call: ``answer`` asks a tool where it must; ``find`` and ``keep`` are for other askers.

    Without a path answers stay in memory. Of the ``hits`` on a tool every so many is checked against the tool
    itself; ``mismatches`` counts other answers. Raises DataError for a file that is no cache of answers.
    """

    def __init__(self, path: str | Path | None = None, *, replay_every: int = 50):
        self.path, self.replay_every = path and Path(path), replay_every
        self.hits, self.mismatches = Counter[str](), Counter[str]()
        self._lock = threading.Lock()
        self._flights: dict[tuple[int, bytes], asyncio.Future] = {}
        self._waiting = Counter[tuple[int, bytes]]()
        try:
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                # never open a file that is there: closing it would drop this process's own SQLite locks on it
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._file = sqlite3.connect(
                self.path or ":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            _set_up(self._file)
        except (OSError, sqlite3.Error) as error:
            raise DataError(
                f"{self.path} cannot be used as the cache of tools ({error}): remove it, or set "
                "XDG_CACHE_HOME to another folder"
            ) from None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    async def answer(
        self, tool: str, key: bytes, work: Callable[[], Awaitable[Outcome]]
    ) -> tuple[Outcome, bool]:
        """What a call answers, and whether it cost no call of its own.

        Calls that are already under way are waited for; their answer is shared, a failure too. The work goes
        on while anybody waits for it and is cancelled when nobody does any more.
        """
        text = self.find(key)
        if text is not None:
            self.hits[tool] += 1
            if self.hits[tool] % self.replay_every == 0:
                return await self._replay(tool, key, text, work)
            return (text, True), True
        flight = (id(asyncio.get_running_loop()), key)
        first = flight not in self._flights
        if first:
            self._flights[flight] = asyncio.ensure_future(self._ask(tool, key, work))
        task = self._flights[flight]
        self._waiting[flight] += 1
        try:
            outcome = await asyncio.shield(task)
        finally:
            self._waiting[flight] -= 1
            if not self._waiting[flight]:
                del self._waiting[flight], self._flights[flight]
                task.cancel()
        shared = not first and outcome[1]
        self.hits[tool] += shared
        return outcome, shared

    async def _ask(self, tool: str, key: bytes, work: Callable[[], Awaitable[Outcome]]) -> Outcome:
        text, ok = await work()
        if ok:
            self.keep(tool, key, text)
        return text, ok

    async def _replay(
        self, tool: str, key: bytes, text: str, work: Callable[[], Awaitable[Outcome]]
    ) -> tuple[Outcome, bool]:
        """Ask the tool again: another answer than the kept one is warned of, kept and given."""
        again, ok = await work()
        if not ok or again == text:
            return (text, True), True
        self.mismatches[tool] += 1
        warnings.warn(
            f"the tool {tool} is declared pure and gave another answer to the same arguments: cached "
            f"{text[:80]!r}, now {again[:80]!r}; raise its version, mend it, or declare it pure=False",
            stacklevel=2,
        )
        self.keep(tool, key, again)
        return (again, True), False

    def find(self, key: bytes) -> str | None:
        rows = self._executed("SELECT CAST(text AS BLOB) FROM answer WHERE key = ?", key)
        with contextlib.suppress(UnicodeError):  # a damaged row is no answer
            return rows[0][0].decode("utf-8", "surrogatepass") if rows else None

    def keep(self, tool: str, key: bytes, text: str) -> None:
        encoded = text.encode("utf-8", "surrogatepass")
        self._executed("INSERT OR REPLACE INTO answer VALUES (?, ?, ?)", key, tool, encoded)

    def _executed(self, statement: str, *values: bytes | str) -> list[tuple]:
        """What one statement gives; a file that fails costs a warning, never a run."""
        try:
            with self._lock:
                return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            if "locked" not in str(error):
                warnings.warn(f"the cache of tools {self.path} failed ({error})", stacklevel=4)
            return []


def _set_up(file: sqlite3.Connection) -> None:
    file.execute("PRAGMA journal_mode = WAL")
    file.execute(
        "CREATE TABLE IF NOT EXISTS answer (key BLOB PRIMARY KEY, tool TEXT NOT NULL, text BLOB NOT NULL)"
    )
    file.execute("SELECT key, tool, text FROM answer LIMIT 1").fetchone()
    file.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last answers: they are asked again
    (page,) = file.execute("PRAGMA page_size").fetchone()
    file.execute(f"PRAGMA max_page_count = {MAX_MB * 2**20 // page}")
