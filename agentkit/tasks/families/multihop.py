"""Family B: two- and three-hop questions over films, people, countries, capitals, cities and elements.

A chain is a row of fact kinds: each value is the entity of the next hop. The question names the first entity
only. Leaves out chains of four hops, distractors and false premises.
"""

from collections.abc import Mapping
from random import Random

from agentkit.records import Task
from agentkit.tasks.families.facts import QUESTIONS, FactIndex, fact_index, lookup_step, tag
from agentkit.tools.corpus import Corpus

_KIND_OF_VALUE = {"capital": "city", "country": "country", "neighbour": "country", "director": "director",
                  "first_film": "film", "element": "element"}  # fmt: skip
_UNITS = {"city.population": "people", "film.runtime": "minutes"}


def draft(corpus: Corpus, rng: Random, chains: Mapping[str, list[str]] = QUESTIONS["chains"]) -> Task | None:
    """One random task as a suite completes it, or None when the chain breaks off."""
    index = fact_index(corpus)
    template = rng.choice(list(chains))
    kinds = template.split(" > ")
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
    meta = {"template": template, "entities": tags[: len(kinds)], "plan": plan}
    prompt = rng.choice(chains[template]).format(*start)
    return Task("", prompt, str(value), verifier, meta=meta)


def _start(index: FactIndex, rng: Random, kind: str) -> tuple:
    """A first entity. Films and cities are drawn country by country: most films were made in one."""
    draws = index.draw(rng, kind, min(12, len(index[kind])))
    if kind not in ("film.country", "city.country"):
        return draws[0]
    wanted = rng.choice(sorted({index[kind][entity] for entity in draws}))
    return next(entity for entity in draws if index[kind][entity] == wanted)
