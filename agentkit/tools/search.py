"""The search tool over a backend: anything with ``search(query, top_k)`` that gives passages, best first.

Backends are the embedded corpus (agentkit.tools.corpus), the passages that come with a task, and a retrieval
server that speaks Search-R1's protocol. Whatever a server does wrong becomes a ValueError with one sentence
for the policy. Leaves out web search services: a lab file's environment asks those in a tool of its own.
"""

import html
import re
import sqlite3
from contextlib import closing
from typing import Any, Protocol

from agentkit.tools.corpus import TOKENIZE, ranked
from agentkit.tools.web import post_json

MAX_QUERY = 500  # characters
MAX_PASSAGE = 1_000  # characters of what a server gives
MAX_PASSAGES = 1_000  # of one task
MAX_BODY = 2**20  # bytes of a server's reply
_TAG = re.compile(r"<[^<>]{0,200}>")


class Backend(Protocol):
    """Anything that finds passages; with a text ``version``, what they depend on, its answers are cached."""

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
        self.texts = [_passage(passage, number) for number, passage in enumerate(passages, start=1)]

    def search(self, query: str, top_k: int) -> list[str]:
        """At most ``top_k`` passages for a query, best first."""
        with closing(sqlite3.connect(":memory:")) as connection:  # one a search: calls come from any thread
            connection.execute(f"CREATE VIRTUAL TABLE passage USING fts5(text, {TOKENIZE})")
            connection.executemany("INSERT INTO passage (text) VALUES (?)", [(text,) for text in self.texts])
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

    Args:
        url: of the server.
        timeout_s: of a search.
        version: names the index behind it; answers are cached under it, and without one they are not.
    """

    def __init__(self, url: str, timeout_s: float = 8.0, *, version: str | None = None):
        self.url = f"{url.rstrip('/').removesuffix('/retrieve')}/retrieve"
        self.timeout_s, self.version = timeout_s, version

    def search(self, query: str, top_k: int) -> list[str]:
        """At most ``top_k`` passages. Raises ValueError where it fails."""
        body = {"queries": [query], "topk": top_k, "return_scores": True}
        reply = post_json("the search server", self.url, body, timeout_s=self.timeout_s, most=MAX_BODY)
        try:
            documents = [row.get("document", row) for row in reply["result"][0]]
            return [_line(document["contents"]) for document in documents[:top_k]]
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ValueError("the search server's reply has not the form of Search-R1's protocol") from None


def _line(text: str) -> str:
    """One line of bounded length, without markup."""
    return " ".join(html.unescape(_TAG.sub("", text[: 4 * MAX_PASSAGE])).split())[:MAX_PASSAGE]
