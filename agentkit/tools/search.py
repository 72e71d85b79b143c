"""The search tool: BM25 over the corpus' passages. It reads passages only, never the answer key."""

from __future__ import annotations

from agentkit.knowledge import Corpus

MAX_QUERY = 500  # characters


def search_passages(corpus: Corpus, query: str, top_k: int = 3) -> str:
    """The best passages for a query, one a line and numbered.

    Raises:
        ValueError: the query is empty or too long.
    """
    if not query.strip():
        raise ValueError("the query is empty; say what to look for")
    if len(query) > MAX_QUERY:
        raise ValueError(f"the query has {len(query)} characters; the limit is {MAX_QUERY}")
    passages = corpus.search(query, top_k)
    if not passages:
        return "No passage matches. Try other words."
    return "\n".join(f"[{number}] {text}" for number, text in enumerate(passages, start=1))
