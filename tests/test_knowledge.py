"""The corpus: real facts, one answer each, found by their own phrase; no query gets through to SQL or FTS5."""

import os
import subprocess
import sys
import unicodedata

import pytest

from agentkit.records import DataError
from agentkit.tools.corpus import PHRASES, SHIPPED, Corpus, facts, passage


def test_facts_are_true(corpus):
    found = {(kind, entity): value for kind, entity, value in facts(corpus.connection)}
    assert found["country.capital", ("France",)] == "Paris"
    assert found["country.neighbour", ("Portugal",)] == "Spain"
    assert found["element.weight", ("Carbon",)] == 12.011
    assert found["film.director", ("Jurassic Park",)] == "Steven Spielberg"
    assert found["indicator.life_expectancy", ("Japan", 2007)] == 82.6


def test_every_kind_of_fact_has_passages_and_one_answer(corpus):
    seen = {}
    for kind, entity, value in facts(corpus.connection):
        assert (kind, entity) not in seen, f"{kind} of {entity} has two answers"
        seen[kind, entity] = value
        assert value not in (None, "")
    assert {kind for kind, _ in seen} == set(PHRASES)
    ((count,),) = corpus.rows("SELECT count(*) FROM passage")
    assert count == len(seen) > 10_000


def test_what_is_no_corpus_says_what_to_do_and_stays(tmp_path):
    good = SHIPPED.read_bytes()
    for content in (b"", b"hello", good[:3000], b"SQLite format 3\x00" + bytes(100)):
        path = tmp_path / "bad.sqlite"
        path.write_bytes(content)
        with pytest.raises(DataError, match="no corpus .*install agentkit again"):
            Corpus(path)
        assert path.read_bytes() == content
    with pytest.raises(DataError, match=r"gone\.sqlite is no corpus"):
        Corpus(tmp_path / "gone.sqlite")


def test_the_corpus_that_ships_is_read_where_nothing_can_be_written(tmp_path):
    """Many processes and threads at once, from a folder that is read-only, with no home to keep a copy in."""
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "corpus.sqlite").write_bytes(SHIPPED.read_bytes())
    (folder / "corpus.sqlite").chmod(0o444)
    folder.chmod(0o555)
    code = """
import sys
from concurrent.futures import ThreadPoolExecutor
from agentkit.tools.corpus import Corpus
corpus = Corpus(sys.argv[1])
with ThreadPoolExecutor(8) as pool:
    found = set(pool.map(lambda _: tuple(corpus.search("capital of France", 1)), range(32)))
assert found == {("The capital of France is Paris.",)}, found
"""
    environment = os.environ | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-c", code, str(folder / "corpus.sqlite")]
    options = {"env": environment, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **options) for _ in range(3)]
    assert [process.communicate()[1] for process in running] == [""] * 3
    assert os.listdir(folder) == ["corpus.sqlite"]


def test_every_fact_is_found_first_by_its_own_phrase(corpus):
    """A sample of every kind; nearly all, as titles such as "It" leave nothing to search for."""
    by_kind: dict = {}
    for kind, entity, value in facts(corpus.connection):
        by_kind.setdefault(kind, []).append((entity, value))
    missed = []
    for kind, items in by_kind.items():
        for entity, value in items[:: max(1, len(items) // 25)]:
            if corpus.search(PHRASES[kind].format(*entity), 1) != [passage(kind, entity, value)]:
                missed.append((kind, entity))
    assert len(missed) < 0.1 * 25 * len(by_kind), missed


def test_a_word_too_many_and_accents_and_case_do_not_matter(corpus):
    for query in ("capital France zzzz", "CAPITAL OF FRÂNCE"):
        assert corpus.search(query, 1) == ["The capital of France is Paris."]
    assert corpus.search("zzzz", 1) == []
    for form in ("NFC", "NFD"):
        query = unicodedata.normalize(form, "country of the city São Paulo")
        assert corpus.search(query, 1) == ["The country of the city São Paulo is Brazil."]


def test_query_syntax_does_not_get_through(corpus):
    for query in ('"', 'capital" OR "x', "text:paris", "NEAR(a b)", "a*", "^a", "-a", "(", "a AND", "x" * 500,
                  "'; DROP TABLE passage; --", "{0}", "\x00", "\ud800"):  # fmt: skip
        assert isinstance(corpus.search(query, 3), list)
    assert corpus.search("capital of France", 1) == ["The capital of France is Paris."]
