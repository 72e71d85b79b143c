"""An exact cache of answers: one SQLite file, kept across runs, shared by processes, with single flight.

An answer is found by the tool's name, its version and the canonical arguments, and by nothing else; failures
are never kept. Every so many hits the tool is asked again, and a different answer is a loud warning that
names the tool. Leaves out: expiry (raise a tool's version, or remove the file), stateful tools, and single
flight between processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from agentkit.runs import user_cache

MAX_MB = 2_000  # of the file; after that nothing more is kept
BATCH = 100  # answers written in one transaction
BUSY_S = 0.2  # how long another process' transaction is waited for
Outcome = tuple[str, bool]  # what the policy is shown, and whether the call went well


class StaleCacheWarning(UserWarning):
    """A tool declared pure gave another answer than the one the cache holds."""


def default_path() -> Path:
    """The file of the tools' answers in the user's cache folder."""
    return user_cache("tools.sqlite")


def canonical(arguments: dict[str, Any]) -> str:
    """Arguments as sorted ASCII JSON, equal where they are. Raises ValueError for what JSON cannot say."""
    return json.dumps(arguments, sort_keys=True, allow_nan=False)


def key_of(tool: str, version: str, arguments: str) -> bytes:
    """32 bytes that stand for one call."""
    return hashlib.sha256(json.dumps([tool, version, arguments]).encode()).digest()


class ToolCache:
    """Answers by call: ``answer`` asks a tool where it must; ``find`` and ``keep`` are for other askers.

    Args:
        path: the file, made where it is missing (folder 0700, file 0600); None keeps answers in memory.
        replay_every: of the hits on one tool, which are checked against the tool itself.

    Attributes:
        hits, mismatches: counts by tool, since this cache was opened.

    Raises:
        ValueError: the file holds no cache of answers, or cannot be made or read.
    """

    def __init__(self, path: str | Path | None = None, *, replay_every: int = 50):
        self.path, self.replay_every = path and Path(path), replay_every
        self.hits, self.mismatches = Counter[str](), Counter[str]()
        self._lock = threading.Lock()
        self._new: dict[bytes, tuple[str, str]] = {}  # tool and answer, not yet written
        self._flights: dict[tuple[int, bytes], _Flight] = {}
        self._broken = False
        try:
            if self.path and not self.path.exists():
                _create(self.path)
            self._file = sqlite3.connect(
                self.path or ":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            _set_up(self._file)
            if self.path:
                self.path.chmod(0o600)
        except (OSError, sqlite3.Error) as error:
            raise ValueError(
                f"{self.path} cannot be used as the cache of tools ({error}): remove it, name another file "
                "(recipe key tool_cache), or switch the cache off (tool_cache: 'off')"
            ) from None

    def __enter__(self) -> ToolCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left and close the file."""
        self.flush()
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
        flight_key = (id(asyncio.get_running_loop()), key)
        flight = self._flights.get(flight_key)
        first = flight is None
        if first:
            flight = self._flights[flight_key] = _Flight(asyncio.ensure_future(self._ask(tool, key, work)))
        flight.waiting += 1
        try:
            outcome = await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                self._flights.pop(flight_key, None)
                flight.task.cancel()
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
            StaleCacheWarning,
            stacklevel=2,
        )
        self.keep(tool, key, again)
        return (again, True), False

    def find(self, key: bytes) -> str | None:
        """A kept answer."""
        if key in self._new:
            return self._new[key][1]
        rows = []
        with self._transaction() as file:
            rows = file.execute("SELECT text FROM answer WHERE key = ?", (key,)).fetchall()
        with contextlib.suppress(UnicodeError):  # a damaged row is no answer
            return rows[0][0].decode("utf-8", "surrogatepass") if rows else None

    def keep(self, tool: str, key: bytes, text: str) -> None:
        """Keep an answer; it is written with the next ones."""
        if not self._broken:
            self._new[key] = (tool, text)
            if len(self._new) % BATCH == 0:
                self.flush()

    def flush(self) -> None:
        """Write what is new. A file that cannot be written costs a warning, never a run."""
        new = list(self._new.items())
        if not new:
            return
        rows = [(key, tool, text.encode("utf-8", "surrogatepass")) for key, (tool, text) in new]
        with self._transaction() as file:
            file.execute("BEGIN IMMEDIATE")
            file.executemany("INSERT OR REPLACE INTO answer VALUES (?, ?, ?)", rows)
            file.execute("COMMIT")
            for key, _ in new:
                self._new.pop(key, None)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """The file, for one thread at a time; where it fails, the rest of the block is skipped."""
        try:
            with self._lock, self._file:  # which rolls back
                yield self._file
        except sqlite3.Error as error:
            if "locked" not in str(error) and not self._broken:
                self._broken = True
                message = f"the cache of tools {self.path} failed ({error}); the run goes on"
                warnings.warn(message, stacklevel=4)


class _Flight:
    """A call under way and how many wait for it."""

    def __init__(self, task: asyncio.Future):
        self.task, self.waiting = task, 0


def _set_up(file: sqlite3.Connection) -> None:
    file.execute(
        "CREATE TABLE IF NOT EXISTS answer (key BLOB PRIMARY KEY, tool TEXT NOT NULL, text BLOB NOT NULL)"
    )
    file.execute("SELECT key, tool, text FROM answer LIMIT 1").fetchone()
    file.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last answers: they are asked again
    (page,) = file.execute("PRAGMA page_size").fetchone()
    file.execute(f"PRAGMA max_page_count = {MAX_MB * 2**20 // page}")


def _create(path: Path) -> None:
    """A new file in WAL mode, made under a temporary name: switching modes would stop others who write."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as file:
            file.execute("PRAGMA journal_mode = WAL")
            _set_up(file)
        with contextlib.suppress(FileExistsError):  # another process was quicker
            os.link(part, path)
    finally:
        part.unlink()
