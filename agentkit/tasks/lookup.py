"""Family A: arithmetic over looked-up facts, one to five tool calls.

``draft`` makes one random task. Its gold answer is computed here, from the corpus' tables; the plan in ``meta`` tells the
scripted expert which tool calls lead there, and the suite checks that both agree.
"""

from __future__ import annotations

import random
from typing import Any

from agentkit.knowledge import Corpus
from agentkit.records import Task
from agentkit.tasks.facts import FactIndex, fact_index, lookup_step, tag

FAMILY = "A"
# How a question may name each quantity. The first form is the corpus' own; the policy must map the second to it.
WORDINGS = {
    "country.population": ("the population of {0}", "the number of people in {0}"),
    "country.area": ("the area of {0}", "the size in square km of {0}"),
    "city.population": ("the population of the city {0}", "the number of people in the city {0}"),
    "element.weight": ("the atomic weight of {0}", "the atomic mass of {0}"),
    "film.runtime": ("the runtime of the film {0}", "the length in minutes of the film {0}"),
    "indicator.life_expectancy": ("the life expectancy in {0} in {1}",),
    "indicator.gdp_per_head": ("the income per head in {0} in {1}",),
}
YEARS = {"film.year": "the release year of the film {0}", "element.discovered": "the discovery year of {0}"}
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
TEMPLATES = {"single": 3, "convert": 3, "ratio": 5, "difference": 4, "sum": 4, "product": 3, "years": 3, "compare": 4,
             "density": 3, "change": 3, "total": 4, "mean": 3, "total4": 6, "ratio_of_sums": 6}  # fmt: skip
ROUND = " Round to 2 decimals."


def draft(corpus: Corpus, rng: random.Random) -> Task | None:
    """One random task without id, split and difficulty, or None when the draw gave an unusable one."""
    template = rng.choices(list(TEMPLATES), weights=list(TEMPLATES.values()))[0]
    index = fact_index(corpus)
    if template in ("ratio", "difference", "sum", "product", "years"):
        return _two_values(index, rng, template)
    if template in ("total", "mean", "total4", "ratio_of_sums"):
        return _many_values(index, rng, template)
    return {"single": _single, "convert": _convert, "compare": _compare, "density": _density, "change": _change}[template](
        index, rng
    )


def numeric_task(template: str, prompt: str, steps: list[dict], tags: list[str], value: float) -> Task | None:
    """A task with a numeric answer; None where rounding would eat it or digits would explode."""
    if 0 < abs(value) < 0.1 or abs(value) >= 1e12:
        return None
    value = round(value, 2) if isinstance(value, float) else value
    verifier = {"kind": "numeric", "abs_tol": 0.0051 if isinstance(value, float) else 0.0}
    meta = {"template": template, "entities": tags, "plan": steps}
    return Task("", prompt, f"{value:.15g}", verifier, FAMILY, meta=meta)


def calculation(expression: str) -> dict:
    """A calculator step of a plan; {0}, {1} ... stand for the results of earlier steps."""
    return {"tool": "calculator", "arguments": {"expression": expression}}


def _single(index: FactIndex, rng: random.Random) -> Task | None:
    kind = rng.choice(list(WORDINGS))
    (entity,) = index.draw(rng, kind)
    wording = rng.choice(WORDINGS[kind]).format(*entity)
    prompt = rng.choice(["What is {}?", "Tell me {}."]).format(wording)
    return numeric_task("single", prompt, [lookup_step(index, kind, entity)], [tag(kind, entity)], index[kind][entity])


def _convert(index: FactIndex, rng: random.Random) -> Task | None:
    kind, question, divisor = rng.choice(
        [("film.runtime", "How many hours does the film {0} run?", 60),
         ("country.population", "How many million people live in {0}?", 1_000_000),
         ("element.weight", "What is half of the atomic weight of {0}?", 2)]
    )  # fmt: skip
    (entity,) = index.draw(rng, kind)
    steps = [lookup_step(index, kind, entity), calculation(f"round({{0}} / {divisor}, 2)")]
    value = float(index[kind][entity] / divisor)
    return numeric_task("convert", question.format(*entity) + ROUND, steps, [tag(kind, entity)], value)


_OPERATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ratio": ("round({0} / {1}, 2)", ("What is {0} divided by {1}?", "How many times as large as {1} is {0}?")),
    "difference": ("{0} - {1}", ("What is {0} minus {1}?", "By how much does {0} exceed {1}?")),
    "sum": ("{0} + {1}", ("What is {0} plus {1}?", "What is the sum of {0} and {1}?")),
    "product": ("{0} * {1}", ("What is {0} times {1}?", "What is the product of {0} and {1}?")),
    "years": ("{0} - {1}", ("How many years lie between {1} and {0}?", "What is {0} minus {1}?")),
}


def _apply(template: str, a: Any, b: Any) -> Any:
    return {"ratio": lambda: a / b, "sum": lambda: a + b, "product": lambda: a * b}.get(template, lambda: a - b)()


def _two_values(index: FactIndex, rng: random.Random, template: str) -> Task | None:
    products = ("element.weight", "film.runtime", "indicator.life_expectancy")
    kinds = {"years": list(YEARS), "product": list(products)}.get(template, list(WORDINGS))
    kind = rng.choice(kinds)
    first, second = index.draw(rng, kind, 2)
    values = index[kind]
    if template in ("difference", "years") and values[first] < values[second]:
        first, second = second, first
    wordings = WORDINGS.get(kind) or (YEARS[kind],)
    expression, questions = _OPERATIONS[template]
    wording = rng.choice(wordings)
    question = rng.choice(questions).format(wording.format(*first), wording.format(*second))
    value = _apply(template, values[first], values[second])
    if isinstance(value, float) and not expression.startswith("round"):
        expression = f"round({expression}, 2)"
    steps = [lookup_step(index, kind, first), lookup_step(index, kind, second), calculation(expression)]
    prompt = question + (ROUND if isinstance(value, float) else "")
    return numeric_task(template, prompt, steps, [tag(kind, first), tag(kind, second)], value)


def _compare(index: FactIndex, rng: random.Random) -> Task | None:
    kind = rng.choice(list(COMPARISONS))
    first, second = index.draw(rng, kind, 2)
    if index[kind][first] == index[kind][second]:
        return None
    steps = [lookup_step(index, kind, first), lookup_step(index, kind, second), calculation("{0} > {1}")]
    winner = first if index[kind][first] > index[kind][second] else second
    meta = {"template": "compare", "entities": [tag(kind, first), tag(kind, second)], "plan": steps,
            "answer_if": {"true": first[0], "false": second[0]}}  # fmt: skip
    return Task("", COMPARISONS[kind].format(first[0], second[0]), winner[0], "exact", FAMILY, meta=meta)


def _density(index: FactIndex, rng: random.Random) -> Task | None:
    (entity,) = index.draw(rng, "country.area")
    kinds = ("country.population", "country.area")
    if any(entity not in index[k] for k in kinds):
        return None
    prompt = rng.choice(["How many people per square km live in {0}?", "What is the population density of {0}?"])
    steps = [*(lookup_step(index, k, entity) for k in kinds), calculation("round({0} / {1}, 2)")]
    value = index[kinds[0]][entity] / index[kinds[1]][entity]
    return numeric_task("density", prompt.format(*entity) + ROUND, steps, [tag(kinds[0], entity)], value)


def _change(index: FactIndex, rng: random.Random) -> Task | None:
    kind = rng.choice(["indicator.life_expectancy", "indicator.gdp_per_head"])
    (later,) = index.draw(rng, kind)
    earlier = rng.choice([e for e in index[kind] if e[0] == later[0] and e[1] < later[1]] or [None])
    if earlier is None:
        return None
    prompt = f"How much higher was {WORDINGS[kind][0].format(*later)} than in {earlier[1]}?"
    steps = [lookup_step(index, kind, later), lookup_step(index, kind, earlier), calculation("round({0} - {1}, 2)")]
    value = float(index[kind][later] - index[kind][earlier])
    return numeric_task("change", prompt + ROUND, steps, [tag(kind, later[:1]), *map(str, (later[1], earlier[1]))], value)


def _many_values(index: FactIndex, rng: random.Random, template: str) -> Task | None:
    kind = rng.choice(list(TOTALS))
    entities = index.draw(rng, kind, 3 if template in ("total", "mean") else 4)
    values = [index[kind][e] for e in entities]
    names = [e[0] for e in entities]
    if template == "ratio_of_sums":
        left, right = (TOTALS[kind].format(" and ".join(pair)) for pair in (names[:2], names[2:]))
        question, expression = (
            f"What is the total {left} divided by the total {right}?",
            "round(({0} + {1}) / ({2} + {3}), 2)",
        )
        value = (values[0] + values[1]) / (values[2] + values[3])
    else:
        word = {"mean": "average"}.get(template, "total")
        question = f"What is the {word} {TOTALS[kind].format(', '.join(names[:-1]) + ' and ' + names[-1])}?"
        plus = " + ".join(f"{{{i}}}" for i in range(len(names)))
        value = sum(values) / len(values) if template == "mean" else sum(values)
        expression = f"round(({plus}) / {len(names)}, 2)" if template == "mean" else plus
        if template != "mean" and isinstance(value, float):
            expression = f"round({plus}, 2)"
    steps = [*(lookup_step(index, kind, e) for e in entities), calculation(expression)]
    prompt = question + (ROUND if isinstance(value, float) else "")
    return numeric_task(template, prompt, steps, [tag(kind, e) for e in entities], value)
