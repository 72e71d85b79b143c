"""The search tool over one of several backends. A backend has ``search(query, top_k)`` and returns passages,
best first.

Here: the embedded corpus (agentkit.tools.corpus.Corpus), a retrieval server that speaks Search-R1's protocol,
a web search service, and a recording of any of them, so that training sees the same passages every time.
Whatever a server does wrong becomes a ValueError with one sentence for the policy. Leaves out: crawling
pages, and following redirects.
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
from collections.abc import Sequence
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
                f"a task's passages must be a list of at most {MAX_PASSAGES} texts or objects with text and title, "
                f"not {type(passages).__name__}"
            )
        self._texts = [_passage(passage, number) for number, passage in enumerate(passages, start=1)]

    def search(self, query: str, top_k: int) -> list[str]:
        """At most ``top_k`` passages for a query, best first."""
        with closing(
            sqlite3.connect(":memory:")
        ) as connection:  # one a search: calls may come from any thread
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
    """A server that speaks Search-R1's protocol: POST /retrieve {"queries": [..], "topk": k, "return_scores": true}.

    Its reply is {"result": [[{"document": {"contents": "title\\ntext"}, "score": 1.0}, ..]]}, one list a query (Jin et al.
    2025, arXiv 2503.09516, search_r1/search/retrieval_server.py); documents without scores are read too.
    """

    def __init__(self, url: str, timeout_s: float = 8.0):
        self.url, self.timeout_s = (f"{url.rstrip('/').removesuffix('/retrieve')}/retrieve", timeout_s)

    def search(self, query: str, top_k: int) -> list[str]:
        """At most ``top_k`` passages; raises ValueError where the server fails."""
        body = {"queries": [query], "topk": top_k, "return_scores": True}
        found = _request("POST", self.url, self.timeout_s, json=body)
        try:
            documents = [row.get("document", row) for row in found["result"][0]]
            return [_line(document["contents"]) for document in documents[:top_k]]
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ValueError("the search server's reply has not the form of Search-R1's protocol") from None


class WebSearch:
    """Brave's web search API, with the key from the environment variable BRAVE_API_KEY. The key is in no
    message or log.
    """

    def __init__(self, url: str = BRAVE, timeout_s: float = 8.0):
        self.url, self.timeout_s = url, timeout_s
        self._key()

    def search(self, query: str, top_k: int) -> list[str]:
        """Title, address and snippet of at most ``top_k`` pages; raises ValueError where the service fails."""
        headers = {"X-Subscription-Token": self._key(), "Accept": "application/json"}
        found = _request(
            "GET", self.url, self.timeout_s, params={"q": query, "count": top_k}, headers=headers
        )
        try:
            pages = found.get("web", {}).get("results", [])[:top_k]
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
        for number, row in enumerate(read_jsonl(self.path) if self.path.exists() else [], start=1):
            match row:
                case {"query": str(query), "top_k": int(top_k), "passages": [*passages]} if _all_text(
                    passages
                ):
                    self._known.setdefault((query, top_k), passages)
                case _:
                    raise ValueError(f"{self.path} is no recording (entry {number}): record it again")

    def search(self, query: str, top_k: int) -> list[str]:
        """The recorded passages, or the backend's, which are recorded. A failure is not recorded."""
        key = (query, top_k)
        if key not in self._known:
            if self.backend is None:
                raise ValueError(f"the recording holds no answer to {query[:60]!r}")
            passages = self.backend.search(query, top_k)
            if not isinstance(passages, list | tuple) or not _all_text(passages):
                raise ValueError(f"the search backend gave {type(passages).__name__}, not a list of passages")
            with self._lock:  # two that ask at once: the first answer is the one that is kept and given
                if key not in self._known:
                    self._known[key] = list(passages)
                    self._record({"query": query, "top_k": top_k, "passages": self._known[key]})
        return list(self._known[key])

    def _record(self, row: dict[str, Any]) -> None:
        try:
            append_jsonl(self.path, row)
        except OSError as error:  # the search worked: the user is told, and the policy goes on
            warnings.warn(
                f"{self.path} records no more ({error}): later runs will not see all of these passages",
                stacklevel=3,
            )


def _all_text(passages: Sequence[object]) -> bool:
    return all(isinstance(passage, str) for passage in passages)


def _request(method: str, url: str, timeout_s: float, **options: Any) -> Any:
    """JSON from a server, in bounded time and size; one more try where it was busy or unreachable."""
    deadline = time.monotonic() + timeout_s
    problem = _attempt(method, url, deadline, options)
    if isinstance(problem, _Busy) and time.monotonic() < deadline - timeout_s / 2:
        problem = _attempt(method, url, deadline, options)
    if isinstance(problem, ValueError):
        raise problem
    return problem


class _Busy(ValueError):
    """A failure that may be over at the next try."""


def _attempt(method: str, url: str, deadline: float, options: dict[str, Any]) -> Any:
    """Parsed JSON, or the ValueError to raise. Its text is ours, so that no header or key can be in it."""
    try:
        status, body = fetch(
            method, url, timeout_s=max(0.1, deadline - time.monotonic()), most=MAX_BODY, **options
        )
        if status != 200:
            kind = _Busy if status in (429, 500, 502, 503, 504) else ValueError
            return kind(f"the search server answered with status {status}")
        return json.loads(body)
    except TimeoutError:
        return ValueError("the search server did not answer in time")
    except ConnectionError:
        return _Busy("the search server cannot be reached")
    except ReplyError as error:
        return ValueError(f"the search server's reply {error}")
    except (ValueError, RecursionError):
        return ValueError("the search server's reply is not JSON")


def _line(text: str) -> str:
    """One line of bounded length, without markup."""
    return " ".join(html.unescape(_TAG.sub("", text[: 4 * MAX_PASSAGE])).split())[:MAX_PASSAGE]
