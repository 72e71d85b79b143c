"""Family B: two- and three-hop questions over films, people, countries, capitals, cities and elements.

A chain is a row of fact kinds: each value is the entity of the next hop. The question names the first entity
only. Leaves out chains of four hops, distractors and false premises (wide).
"""

from __future__ import annotations

from random import Random

from agentkit.records import Task
from agentkit.tasks.families.facts import FactIndex, fact_index, lookup_step, tag
from agentkit.tools.corpus import Corpus

FAMILY = "B"
# The chain of fact kinds, and how to ask for its end.
CHAINS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("country.capital", "city.population"): (
        "What is the population of the capital of {0}?",
        "How many people live in the capital of {0}?",
    ),
    ("country.neighbour", "country.capital"): ("What is the capital of the only neighbour of {0}?",),
    ("country.neighbour", "country.currency"): ("What is the currency of the only neighbour of {0}?",),
    ("city.country", "country.currency"): (
        "What is the currency of the country of the city {0}?",
        "Which currency is used where the city {0} lies?",
    ),
    ("city.country", "country.capital"): (
        "What is the capital of the country of the city {0}?",
        "Which capital belongs to the country where the city {0} lies?",
    ),
    ("film.country", "country.capital"): ("What is the capital of the country of the film {0}?",),
    ("film.director", "director.first_film"): (
        "What is the first film of the director of the film {0}?",
        "Which film did the director of the film {0} make first?",
    ),
    ("discoverer.element", "element.symbol"): ("What is the symbol of the element discovered by {0}?",),
    ("discoverer.element", "element.weight"): (
        "What is the atomic weight of the element discovered by {0}?",
    ),
    ("film.country", "country.capital", "city.population"): (
        "What is the population of the capital of the country of the film {0}?",
        "How many people live in the capital of the country of the film {0}?",
    ),
    ("city.country", "country.capital", "city.population"): (
        "What is the population of the capital of the country of the city {0}?",
        "How many people live in the capital of the country where the city {0} lies?",
    ),
    ("film.director", "director.first_film", "film.year"): (
        "What is the release year of the first film of the director of the film {0}?",
        "In which year did the director of the film {0} release a first film?",
    ),
    ("film.director", "director.first_film", "film.runtime"): (
        "What is the runtime of the first film of the director of the film {0}?",
    ),
    ("country.neighbour", "country.capital", "city.population"): (
        "What is the population of the capital of the only neighbour of {0}?",
    ),
    ("city.country", "country.neighbour", "country.capital"): (
        "What is the capital of the only neighbour of the country of the city {0}?",
    ),
}


_KIND_OF_VALUE = {"capital": "city", "country": "country", "neighbour": "country", "director": "director",
                  "first_film": "film", "element": "element"}  # fmt: skip
_UNITS = {"city.population": "people", "film.runtime": "minutes"}


def draft(
    corpus: Corpus, rng: Random, chains: dict[tuple[str, ...], tuple[str, ...]] = CHAINS
) -> Task | None:
    """One random task without id, split and difficulty, or None when the chain breaks off."""
    index = fact_index(corpus)
    kinds = rng.choice(list(chains))
    start = entity = _start(index, rng, kinds[0])
    plan, tags = [], [tag(kinds[0], start)]
    for kind in kinds:
        if entity not in index[kind]:
            return None
        plan.append(lookup_step(index, kind, entity))
        entity = (index[kind][entity],)
        tags.append(tag(_KIND_OF_VALUE.get(kind.split(".")[1], kind), entity))
    if len(set(tags[:-1])) < len(tags[:-1]) or str(entity[0]) == str(start[0]):
        return None  # a chain that returns to where it began asks nothing
    value = entity[0]
    verifier = "exact" if isinstance(value, str) else {"kind": "numeric", "unit": _UNITS.get(kinds[-1], "")}
    meta = {"template": " > ".join(kinds), "entities": tags[: len(kinds)], "plan": plan}
    return Task("", rng.choice(chains[kinds]).format(*start), str(value), verifier, FAMILY, meta=meta)


def _start(index: FactIndex, rng: Random, kind: str) -> tuple:
    """A first entity. Films and cities are drawn country by country: most films were made in one."""
    draws = index.draw(rng, kind, min(12, len(index[kind])))
    if kind not in ("film.country", "city.country"):
        return draws[0]
    wanted = rng.choice(sorted({index[kind][entity] for entity in draws}))
    return next(entity for entity in draws if index[kind][entity] == wanted)
