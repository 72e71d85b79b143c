"""The search tool over a backend: anything with ``search(query, top_k)`` that gives passages, best first.

Backends are the embedded corpus (agentkit.tools.corpus), the passages that come with a task, a retrieval
server that speaks Search-R1's protocol, a web search service, and a recording of any of them, so that
training sees the same passages every time. Whatever a server does wrong becomes a ValueError with one
sentence for the policy. Leaves out crawling pages and following redirects.
"""

from __future__ import annotations

import html
import json
import os
import re
import sqlite3
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from agentkit.runs import append_jsonl, read_jsonl
from agentkit.tools.corpus import PASSAGES, ranked
from agentkit.tools.web import ReplyError, fetch

MAX_QUERY = 500  # characters
MAX_PASSAGE = 1_000  # characters of what a server gives
MAX_PASSAGES = 1_000  # of one task
MAX_BODY = 2**20  # bytes of a server's reply
BRAVE = "https://api.search.brave.com/res/v1/web/search"
_TAG = re.compile(r"<[^<>]{0,200}>")


class Backend(Protocol):
    """Anything that finds passages."""

    def search(self, query: str, top_k: int) -> list[str]:
        """At most ``top_k`` passages for a query, best first."""


def search_passages(backend: Backend, query: str, top_k: int = 3) -> str:
    """The best passages for a query, one a line and numbered.

    Raises:
        ValueError: the query is empty or too long, or the backend failed.
    """
    if not query.strip():
        raise ValueError("the query is empty; say what to look for")
    if len(query) > MAX_QUERY:
        raise ValueError(f"the query has {len(query)} characters; the limit is {MAX_QUERY}")
    passages = backend.search(query, top_k)
    if not passages:
        return "No passage matches. Try other words."
    return "\n".join(f"[{number}] {text}" for number, text in enumerate(passages, start=1))


class Passages:
    """The passages that come with a task, found as those of the corpus are.

    Args:
        passages: texts, or objects with a ``text`` and a ``title``.

    Raises:
        ValueError: they are something else, or more than MAX_PASSAGES.
    """

    def __init__(self, passages: Any = ()):
        if not isinstance(passages, list | tuple) or len(passages) > MAX_PASSAGES:
            raise ValueError(
                f"a task's passages (here {type(passages).__name__}) must be a list of at most "
                f"{MAX_PASSAGES} texts, or objects with text and title"
            )
        self._texts = [_passage(passage, number) for number, passage in enumerate(passages, start=1)]

    def search(self, query: str, top_k: int) -> list[str]:
        """At most ``top_k`` passages for a query, best first."""
        with closing(sqlite3.connect(":memory:")) as connection:  # one a search: calls come from any thread
            connection.execute(PASSAGES)
            connection.executemany("INSERT INTO passage (text) VALUES (?)", [(text,) for text in self._texts])
            return ranked(connection, query, top_k)


def _passage(passage: Any, number: int) -> str:
    """A task's passage as one line that SQLite can store."""
    title, text = "", passage
    if isinstance(passage, dict):
        title, text = passage.get("title") or "", passage.get("text")
    if not isinstance(title, str) or not isinstance(text, str):
        raise ValueError(
            f"passage {number} is {str(passage)[:60]!r}: it must be a text, or have text and title"
        )
    line = f"{title}: {text}" if title else text
    return " ".join(line.encode("utf-8", "replace").decode().split())


class RetrievalServer:
    """A server that speaks Search-R1's protocol (Jin et al. 2025, arXiv 2503.09516).

    POST /retrieve {"queries": [..], "topk": k, "return_scores": true} gives, one list a query,
    {"result": [[{"document": {"contents": "title\\ntext"}, "score": 1.0}, ..]]}, or documents alone.
    """

    def __init__(self, url: str, timeout_s: float = 8.0):
        self.url = f"{url.rstrip('/').removesuffix('/retrieve')}/retrieve"
        self.timeout_s = timeout_s

    def search(self, query: str, top_k: int) -> list[str]:
        """At most ``top_k`` passages; raises ValueError where the server fails."""
        body = {"queries": [query], "topk": top_k, "return_scores": True}
        reply = _request("POST", self.url, self.timeout_s, json=body)
        try:
            documents = [row.get("document", row) for row in reply["result"][0]]
            return [_line(document["contents"]) for document in documents[:top_k]]
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ValueError("the search server's reply has not the form of Search-R1's protocol") from None


class WebSearch:
    """Brave's web search API, with the key from BRAVE_API_KEY. The key is in no message or log."""

    def __init__(self, url: str = BRAVE, timeout_s: float = 8.0):
        self.url, self.timeout_s = url, timeout_s
        self._key()

    def search(self, query: str, top_k: int) -> list[str]:
        """Title, address and snippet of at most ``top_k`` pages. Raises ValueError."""
        headers = {"X-Subscription-Token": self._key(), "Accept": "application/json"}
        parameters = {"q": query, "count": top_k}
        reply = _request("GET", self.url, self.timeout_s, params=parameters, headers=headers)
        try:
            pages = reply.get("web", {}).get("results", [])[:top_k]
            return [
                _line(f"{page['title']} ({page['url']}): {page.get('description', '')}") for page in pages
            ]
        except (KeyError, TypeError, AttributeError):
            raise ValueError("the web search service's reply has an unknown form") from None

    def _key(self) -> str:
        """Read each time, so that no copy of this object holds it."""
        key = os.environ.get("BRAVE_API_KEY", "").strip()
        if not key:
            raise ValueError("web search needs a key: set BRAVE_API_KEY (https://brave.com/search/api)")
        if not re.fullmatch("[!-~]+", key):
            raise ValueError("BRAVE_API_KEY holds characters that no key has: set it again")
        return key


class Recording:
    """A backend's answers in a JSONL file: recorded where there is a backend, replayed where they are known.

    Without a backend it only replays, and an unknown query is an error: nothing reaches the network by
    accident.
    """

    def __init__(self, path: str | Path, backend: Backend | None = None):
        self.path, self.backend, self._lock = Path(path), backend, threading.Lock()
        if backend is None and not self.path.exists():
            raise ValueError(f"there is no recording at {self.path}: record one first, with a backend")
        self._known: dict[tuple[str, int], list[str]] = {}
        rows = read_jsonl(self.path) if self.path.exists() else []
        for number, row in enumerate(rows, start=1):
            query, top_k, passages = row.get("query"), row.get("top_k"), row.get("passages")
            if not isinstance(query, str) or not isinstance(top_k, int) or not _is_texts(passages):
                raise ValueError(f"{self.path} is no recording (entry {number}): record it again")
            self._known.setdefault((query, top_k), passages)

    def search(self, query: str, top_k: int) -> list[str]:
        """The recorded passages, or the backend's, which are recorded. A failure is not recorded."""
        key = (query, top_k)
        if key not in self._known:
            if self.backend is None:
                raise ValueError(f"the recording holds no answer to {query[:60]!r}")
            passages = self.backend.search(query, top_k)
            if not _is_texts(passages):
                raise ValueError(f"the search backend gave {type(passages).__name__}, not a list of passages")
            with self._lock:  # of two that ask at once, the first answer is kept and given
                if key not in self._known:
                    self._known[key] = list(passages)
                    self._append({"query": query, "top_k": top_k, "passages": self._known[key]})
        return list(self._known[key])

    def _append(self, row: dict[str, Any]) -> None:
        try:
            append_jsonl(self.path, row)
        except OSError as error:  # the search worked: the user is told, and the policy goes on
            message = f"{self.path} records no more ({error}): later runs will not see all of these passages"
            warnings.warn(message, stacklevel=3)


def _is_texts(passages: object) -> bool:
    return isinstance(passages, list | tuple) and all(isinstance(passage, str) for passage in passages)


class _Busy(ValueError):
    """A failure that may be over at the next try."""


def _request(method: str, url: str, timeout_s: float, **options: Any) -> Any:
    """JSON from a server, in bounded time and size; one more try where it was busy or unreachable."""
    deadline = time.monotonic() + timeout_s
    for last in (False, True):
        try:
            return _ask(method, url, deadline, options)
        except _Busy:
            if last or time.monotonic() > deadline - timeout_s / 2:
                raise


def _ask(method: str, url: str, deadline: float, options: dict[str, Any]) -> Any:
    """Parsed JSON. Raises ValueError, whose text is ours, so that no header or key can be in it."""
    left_s = max(0.1, deadline - time.monotonic())
    try:
        status, body = fetch(method, url, timeout_s=left_s, most=MAX_BODY, **options)
    except TimeoutError:
        raise ValueError("the search server did not answer in time") from None
    except ConnectionError:
        raise _Busy("the search server cannot be reached") from None
    except ReplyError as error:
        raise ValueError(f"the search server's reply {error}") from None
    if status != 200:
        kind = _Busy if status in (429, 500, 502, 503, 504) else ValueError
        raise kind(f"the search server answered with status {status}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the search server's reply is not JSON") from None


def _line(text: str) -> str:
    """One line of bounded length, without markup."""
    return " ".join(html.unescape(_TAG.sub("", text[: 4 * MAX_PASSAGE])).split())[:MAX_PASSAGE]
