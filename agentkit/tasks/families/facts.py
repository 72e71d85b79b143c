"""The corpus' facts as dictionaries, and how families draw from them. Leaves out the questions about them."""

from collections import defaultdict
from functools import lru_cache
from random import Random
from typing import Any

from agentkit.tasks.families.specifications import table
from agentkit.tools.corpus import PHRASES, Corpus, facts

QUESTIONS = table("questions")  # how families A and B ask

Entity = tuple[Any, ...]  # (name,) or (name, year)


class FactIndex(defaultdict):
    """Facts by kind: ``index["country.population"][("France",)]`` is the value."""

    def __init__(self, corpus: Corpus):
        super().__init__(dict)
        self.corpus = corpus  # which a lab file's drafts search
        for kind, entity, value in facts(corpus.connection):
            self[kind][entity] = value
        self._entities = {kind: list(values) for kind, values in self.items()}

    def draw(self, rng: Random, kind: str, count: int = 1) -> list[Entity]:
        return rng.sample(self._entities[kind], count)


@lru_cache(maxsize=4)
def fact_index(corpus: Corpus) -> FactIndex:
    """The index of a corpus, built once (under a second)."""
    return FactIndex(corpus)


def lookup_step(index: FactIndex, kind: str, entity: Entity) -> dict:
    """One search step of a plan: the query, and the value its result must contain."""
    return {
        "tool": "search",
        "arguments": {"query": PHRASES[kind].format(*entity)},
        "expect": str(index[kind][entity]),
    }


def tag(kind: str, entity: Entity) -> str:
    """An entity's name in a task's meta, such as "country:France": splits share no combination of them."""
    return ":".join([kind.split(".")[0], *map(str, entity)])
