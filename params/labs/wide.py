"""More questions for the families that ship, under their names: units, percentages, ages, longer chains,
distractors and false premises.

The drafts mix them with the plain templates; wide.toml holds the wordings. A question whose
premise may be false says how to answer then, whether it is or not, so that the wording gives nothing away.
Leaves out the plain templates themselves (lookup, multihop).
"""

import dataclasses
import tomllib
from functools import partial
from pathlib import Path
from random import Random

from agentkit import Family, Task
from agentkit.tasks.families import lookup, multihop
from agentkit.tasks.families.facts import FactIndex, fact_index, lookup_step, tag
from agentkit.tasks.families.lookup import calculation, computed, converted
from agentkit.tasks.family import Draft
from agentkit.tools.corpus import Corpus, passage

QUESTIONS = tomllib.loads(Path(__file__).with_name("wide.toml").read_text(encoding="utf-8"))
FALSE = "false premise"
_VERDICT = {"kind": "exact", "aliases": ["the premise is false", "the premise is wrong"]}
_SAY_SO = f' If the question assumes something wrong, answer "{FALSE}".'


def lookup_draft(corpus: Corpus, rng: Random) -> Task | None:
    """One random task of family A without id, split and difficulty, or None for an unusable draw."""
    index = fact_index(corpus)
    if rng.random() < 0.5:
        kinds = (_units, _percentage, _growth, _share, _largest, _age, _span, _premise, _distracted)
        return rng.choice(kinds)(index, rng)
    return lookup.draft(corpus, rng)


def multihop_draft(corpus: Corpus, rng: Random) -> Task | None:
    """One random task of family B without id, split and difficulty, or None for an unusable draw."""
    kind = rng.random()
    if kind < 0.5:
        return multihop.draft(corpus, rng)
    if kind < 0.75:
        return multihop.draft(corpus, rng, QUESTIONS["wide_chains"])
    return rng.choice((_capitals, _director, _distracted_chain))(fact_index(corpus), rng)


def _percentage(index: FactIndex, rng: Random) -> Task | None:
    kind = rng.choice(["country.population", "country.area", "city.population", "film.runtime"])
    whole, part = sorted(index.draw(rng, kind, 2), key=lambda entity: -index[kind][entity])
    wording = lookup.WORDINGS[kind][0]
    prompt = f"What percentage of {wording.format(*whole)} is {wording.format(*part)}?"
    return computed("percentage", prompt, index, [(kind, part), (kind, whole)], "100 * {0} / {1}")


def _growth(index: FactIndex, rng: Random) -> Task | None:
    kind = "indicator.gdp_per_head"
    ((country, year),) = index.draw(rng, kind)
    years = [earlier for earlier in range(1952, year, 5) if (country, earlier) in index[kind]]
    if not years:
        return None
    earlier = rng.choice(years)
    prompt = f"By what percentage did the income per head in {country} change from {earlier} to {year}?"
    facts = [(kind, (country, year)), (kind, (country, earlier))]
    tags = [f"indicator:{country}", str(year), str(earlier)]
    return computed("growth", prompt, index, facts, "100 * ({0} - {1}) / {1}", tags)


def _share(index: FactIndex, rng: Random) -> Task | None:
    entities = index.draw(rng, "country.population", 3)
    a, b, c = (entity[0] for entity in entities)
    prompt = f"What percentage of the total population of {a}, {b} and {c} lives in {a}?"
    facts = [("country.population", entity) for entity in entities]
    return computed("share", prompt, index, facts, "100 * {0} / ({0} + {1} + {2})")


def _largest(index: FactIndex, rng: Random) -> Task | None:
    kind = rng.choice(list(QUESTIONS["largest"]))
    word, choose = rng.choice([("most", max), ("fewest", min)])
    entities = index.draw(rng, kind, 3)
    names = {index[kind][entity]: entity[0] for entity in entities}
    if len(names) < 3:
        return None
    plan = [lookup_step(index, kind, entity) for entity in entities]
    plan.append(calculation(f"{choose.__name__}({{0}}, {{1}}, {{2}})"))
    meta = {"template": "largest", "entities": [tag(kind, entity) for entity in entities], "plan": plan,
            "answer_if": {str(value): name for value, name in names.items()}}  # fmt: skip
    prompt = QUESTIONS["largest"][kind].format(word, *names.values())
    return Task("", prompt, names[choose(names)], "exact", meta=meta)


def _age(index: FactIndex, rng: Random) -> Task | None:
    (film,) = index.draw(rng, "film.year")
    years = rng.randint(3, 60)
    then = index["film.year"][film] + years
    prompt, expression = f"In which year was the film {film[0]} {years} years old?", f"{{0}} + {years}"
    if rng.random() < 0.5:
        prompt, expression = f"How old was the film {film[0]} in {then}?", f"{then} - {{0}}"
    return computed("age", prompt, index, [("film.year", film)], expression)


def _span(index: FactIndex, rng: Random) -> Task | None:
    (film,), (element,) = index.draw(rng, "film.year"), index.draw(rng, "element.discovered")
    if index["film.year"][film] <= index["element.discovered"][element]:
        return None
    prompt = f"How many years after the discovery of {element[0]} was the film {film[0]} released?"
    facts = [("film.year", film), ("element.discovered", element)]
    return computed("span", prompt, index, facts, "{0} - {1}")


def _premise(index: FactIndex, rng: Random) -> Task | None:
    """A difference that the question takes to be positive; half of the time it is not."""
    kind = rng.choice(list(QUESTIONS["premises"]))
    first, second = index.draw(rng, kind, 2)
    prompt = QUESTIONS["premises"][kind].format(first[0], second[0]) + _SAY_SO
    task = computed("premise", prompt, index, [(kind, first), (kind, second)], "{0} - {1}")
    if task is None or task.answer == "0":
        return None
    return _with_false_premise(task) if task.answer.startswith("-") else task


def _with_false_premise(task: Task) -> Task:
    meta = task.meta | {"answer_if": {task.answer: FALSE}}
    return dataclasses.replace(task, answer=FALSE, verifier=_VERDICT, meta=meta)


def _distracted(index: FactIndex, rng: Random, draft: Draft = lookup.draft) -> Task | None:
    """A plain task after a true sentence about something else; as its entities stay, both go to one split."""
    task = draft(index.corpus, rng)
    kind = rng.choice(QUESTIONS["distractors"])
    (entity,) = index.draw(rng, kind)
    if task is None or str(entity[0]) in task.prompt or str(entity[0]) == task.answer:
        return None
    prompt = f"{passage(kind, entity, index[kind][entity])} {task.prompt}"
    meta = task.meta | {"template": f"{task.meta['template']} distractor"}
    return dataclasses.replace(task, prompt=prompt, meta=meta)


def _capitals(index: FactIndex, rng: Random) -> Task | None:
    """Two chains and a comparison, or a difference whose sign the question takes for granted."""
    first, second = index.draw(rng, "country.capital", 2)
    capitals = [(index["country.capital"][country],) for country in (first, second)]
    if any(capital not in index["city.population"] for capital in capitals) or capitals[0] == capitals[1]:
        return None
    plan = [
        lookup_step(index, kind, entity)
        for pair in zip((first, second), capitals, strict=True)
        for kind, entity in zip(("country.capital", "city.population"), pair, strict=True)
    ]
    a, b = (index["city.population"][capital] for capital in capitals)
    meta = {"template": "capitals", "entities": [tag("country", first), tag("country", second)]}
    if rng.random() < 0.5:
        meta |= {
            "plan": [*plan, calculation("{1} > {3}")],
            "answer_if": {"true": first[0], "false": second[0]},
        }
        prompt = f"Whose capital has more people, that of {first[0]} or that of {second[0]}?"
        return Task("", prompt, first[0] if a > b else second[0], "exact", meta=meta)
    prompt = f"How many more people live in the capital of {first[0]} than in the capital of {second[0]}?"
    meta["plan"] = [*plan, calculation("{1} - {3}")]
    task = Task("", prompt + _SAY_SO, str(a - b), "numeric", meta=meta)
    if a == b:
        return None
    return _with_false_premise(task) if a < b else task


def _director(index: FactIndex, rng: Random) -> Task | None:
    """A question about a film that names its director, half of the time another one."""
    film, other = index.draw(rng, "film.director", 2)
    director = index["film.director"][film]
    right = rng.random() < 0.5
    named = director if right else index["film.director"][other]
    if not right and named == director:
        return None
    kind, question = rng.choice(QUESTIONS["directed"])
    plan = [lookup_step(index, "film.director", film)]
    meta = {"template": "director", "entities": [tag("film", film), f"director:{named}"]}
    prompt = question.format(film[0], named) + _SAY_SO
    if right:
        meta["plan"] = [*plan, lookup_step(index, kind, film)]
        return Task("", prompt, str(index[kind][film]), "numeric", meta=meta)
    meta |= {"plan": plan, "answer_if": {director: FALSE}}
    return Task("", prompt, FALSE, _VERDICT, meta=meta)


_units = partial(converted, template="units", questions=QUESTIONS["units"])
_distracted_chain = partial(_distracted, draft=multihop.draft)

families = {"A": Family(lookup_draft), "B": Family(multihop_draft)}
