"""Family A: arithmetic over looked-up facts, one to five tool calls.

``draft`` makes one random task: facts, a question about them and an expression over their values. The gold
answer is the expression over the corpus' tables, computed here; the plan in ``meta`` says which searches and
which calculation lead there, and the suite checks that both agree. Leaves out units, percentages and false
premises (wide).
"""

from __future__ import annotations

from random import Random

from agentkit.records import Task
from agentkit.tasks.families.facts import Entity, FactIndex, fact_index, lookup_step, tag
from agentkit.tools import calculate
from agentkit.tools.corpus import Corpus

FAMILY = "A"
# How a question may name each quantity: as the corpus does, and in words that the policy must map to that.
WORDINGS = {
    "country.population": ("the population of {0}", "the number of people in {0}"),
    "country.area": ("the area of {0}", "the size in square km of {0}"),
    "city.population": ("the population of the city {0}", "the number of people in the city {0}"),
    "element.weight": ("the atomic weight of {0}", "the atomic mass of {0}"),
    "film.runtime": ("the runtime of the film {0}", "the length in minutes of the film {0}"),
    "indicator.life_expectancy": ("the life expectancy in {0} in {1}",),
    "indicator.gdp_per_head": ("the income per head in {0} in {1}",),
}
YEARS = {
    "film.year": ("the release year of the film {0}",),
    "element.discovered": ("the discovery year of {0}",),
}
TOTALS = {
    "country.population": "population of {}",
    "country.area": "area of {}",
    "element.weight": "atomic weight of {}",
    "film.runtime": "runtime of the films {}",
}
COMPARISONS = {
    "country.population": "Which country has more people, {0} or {1}?",
    "country.area": "Which country has the larger area, {0} or {1}?",
    "city.population": "Which city has more people, the city {0} or the city {1}?",
    "element.weight": "Which element has the larger atomic weight, {0} or {1}?",
    "film.runtime": "Which film is longer, the film {0} or the film {1}?",
}
CONVERSIONS = (  # kind, question, divisor
    ("film.runtime", "How many hours does the film {0} run?", 60),
    ("country.population", "How many million people live in {0}?", 1_000_000),
    ("element.weight", "What is half of the atomic weight of {0}?", 2),
)
OPERATIONS: dict[str, tuple[str, tuple[str, ...]]] = {  # expression, and how to ask for it
    "ratio": ("{0} / {1}", ("What is {0} divided by {1}?", "How many times as large as {1} is {0}?")),
    "difference": ("{0} - {1}", ("What is {0} minus {1}?", "By how much does {0} exceed {1}?")),
    "sum": ("{0} + {1}", ("What is {0} plus {1}?", "What is the sum of {0} and {1}?")),
    "product": ("{0} * {1}", ("What is {0} times {1}?", "What is the product of {0} and {1}?")),
    "years": ("{0} - {1}", ("How many years lie between {1} and {0}?", "What is {0} minus {1}?")),
}
TEMPLATES = {"single": 3, "convert": 3, "ratio": 5, "difference": 4, "sum": 4, "product": 3, "years": 3,
             "compare": 4, "density": 3, "change": 3, "total": 4, "mean": 3, "total4": 6,
             "ratio_of_sums": 6}  # with weights  # fmt: skip
Fact = tuple[str, Entity]  # kind and entity


def draft(corpus: Corpus, rng: Random) -> Task | None:
    """One random task without id, split and difficulty, or None when the draw gave an unusable one."""
    template = rng.choices(list(TEMPLATES), weights=list(TEMPLATES.values()))[0]
    return _DRAFTS[template](fact_index(corpus), rng, template)


def computed(
    template: str,
    prompt: str,
    index: FactIndex,
    facts: list[Fact],
    expression: str,
    tags: list[str] | None = None,
) -> Task | None:
    """A task whose answer is an expression over facts, or None where rounding would eat it or digits explode.

    Args:
        template: its name.
        prompt: the question; that the answer is to be rounded is added where it is not whole.
        index: the facts.
        facts: those that are looked up, in this order.
        expression: over their values, {0}, {1} ...; "{0}" alone needs no calculation.
        tags: the entities that count for splits; by default those of the facts.
    """
    values = [index[kind][entity] for kind, entity in facts]
    size = abs(float(calculate(expression.format(*values))))
    if 0 < size < 0.1 or size >= 1e12:
        return None
    plan = [lookup_step(index, kind, entity) for kind, entity in facts]
    whole = "/" not in expression and not any(isinstance(value, float) for value in values)
    rounded = expression if whole else f"round({expression}, 2)"
    if expression != "{0}":
        plan.append(calculation(rounded))
        prompt += "" if whole else " Round to 2 decimals."
    answer = calculate(rounded.format(*values))
    entities = [tag(*fact) for fact in facts] if tags is None else tags
    verifier = {"kind": "numeric", "abs_tol": 0.0 if whole else 0.0051}
    meta = {"template": template, "entities": entities, "plan": plan}
    return Task("", prompt, answer, verifier, FAMILY, meta=meta)


def calculation(expression: str) -> dict:
    """A calculator step of a plan; {0}, {1} ... stand for the results of earlier steps."""
    return {"tool": "calculator", "arguments": {"expression": expression}}


def _single(index: FactIndex, rng: Random, template: str) -> Task | None:
    kind = rng.choice(list(WORDINGS))
    (entity,) = index.draw(rng, kind)
    wording = rng.choice(WORDINGS[kind]).format(*entity)
    question = rng.choice(["What is {}?", "Tell me {}."]).format(wording)
    return computed(template, question, index, [(kind, entity)], "{0}")


def _convert(index: FactIndex, rng: Random, template: str) -> Task | None:
    kind, question, divisor = rng.choice(CONVERSIONS)
    (entity,) = index.draw(rng, kind)
    return computed(template, question.format(*entity), index, [(kind, entity)], f"{{0}} / {divisor}")


def _two_values(index: FactIndex, rng: Random, template: str) -> Task | None:
    wordings = YEARS if template == "years" else WORDINGS
    kinds = list(wordings)
    if template == "product":
        kinds = ["element.weight", "film.runtime", "indicator.life_expectancy"]
    kind = rng.choice(kinds)
    first, second = index.draw(rng, kind, 2)
    if template in ("difference", "years") and index[kind][first] < index[kind][second]:
        first, second = second, first
    expression, questions = OPERATIONS[template]
    wording = rng.choice(wordings[kind])
    question = rng.choice(questions).format(wording.format(*first), wording.format(*second))
    return computed(template, question, index, [(kind, first), (kind, second)], expression)


def _compare(index: FactIndex, rng: Random, template: str) -> Task | None:
    kind = rng.choice(list(COMPARISONS))
    first, second = index.draw(rng, kind, 2)
    if index[kind][first] == index[kind][second]:
        return None
    steps = [lookup_step(index, kind, first), lookup_step(index, kind, second), calculation("{0} > {1}")]
    winner = first if index[kind][first] > index[kind][second] else second
    meta = {"template": template, "entities": [tag(kind, first), tag(kind, second)], "plan": steps,
            "answer_if": {"true": first[0], "false": second[0]}}  # fmt: skip
    return Task("", COMPARISONS[kind].format(first[0], second[0]), winner[0], "exact", FAMILY, meta=meta)


def _density(index: FactIndex, rng: Random, template: str) -> Task | None:
    (entity,) = index.draw(rng, "country.area")
    facts = [("country.population", entity), ("country.area", entity)]
    if entity not in index["country.population"]:
        return None
    prompt = rng.choice(
        ["How many people per square km live in {0}?", "What is the population density of {0}?"]
    )
    return computed(template, prompt.format(*entity), index, facts, "{0} / {1}", [tag("country", entity)])


def _change(index: FactIndex, rng: Random, template: str) -> Task | None:
    kind = rng.choice(["indicator.life_expectancy", "indicator.gdp_per_head"])
    (later,) = index.draw(rng, kind)
    earlier = rng.choice([e for e in index[kind] if e[0] == later[0] and e[1] < later[1]] or [None])
    if earlier is None:
        return None
    prompt = f"How much higher was {WORDINGS[kind][0].format(*later)} than in {earlier[1]}?"
    tags = [tag(kind, later[:1]), str(later[1]), str(earlier[1])]
    return computed(template, prompt, index, [(kind, later), (kind, earlier)], "{0} - {1}", tags)


def _sums(index: FactIndex, rng: Random, template: str) -> Task | None:
    kind = rng.choice(list(TOTALS))
    entities = index.draw(rng, kind, 3 if template in ("total", "mean") else 4)
    names = [entity[0] for entity in entities]
    plus = " + ".join(f"{{{i}}}" for i in range(len(names)))
    quantity = TOTALS[kind].format(f"{', '.join(names[:-1])} and {names[-1]}")
    match template:
        case "ratio_of_sums":
            left, right = (TOTALS[kind].format(" and ".join(pair)) for pair in (names[:2], names[2:]))
            question = f"What is the total {left} divided by the total {right}?"
            expression = "({0} + {1}) / ({2} + {3})"
        case "mean":
            question, expression = f"What is the average {quantity}?", f"({plus}) / {len(names)}"
        case _:
            question, expression = f"What is the total {quantity}?", plus
    return computed(template, question, index, [(kind, entity) for entity in entities], expression)


_DRAFTS = {
    "single": _single,
    "convert": _convert,
    "compare": _compare,
    "density": _density,
    "change": _change,
}
_DRAFTS |= dict.fromkeys(OPERATIONS, _two_values)
_DRAFTS |= dict.fromkeys(("total", "mean", "total4", "ratio_of_sums"), _sums)
