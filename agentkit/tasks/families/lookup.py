"""Family A: arithmetic over looked-up facts, one to five tool calls.

``draft`` makes one random task: facts, a question about them and an expression over their values. The gold
answer is the expression over the corpus' tables, computed here; the plan in ``meta`` says which searches and
which calculation lead there, and the suite checks that both agree. Leaves out units, percentages and false
premises.
"""

from random import Random

from agentkit.records import Task
from agentkit.tasks.families.facts import QUESTIONS, Entity, FactIndex, fact_index, lookup_step, tag
from agentkit.tools import calculate
from agentkit.tools.corpus import Corpus

WORDINGS, YEARS, TOTALS = QUESTIONS["wordings"], QUESTIONS["years"], QUESTIONS["totals"]
COMPARISONS, OPERATIONS, TEMPLATES = QUESTIONS["comparisons"], QUESTIONS["operations"], QUESTIONS["templates"]
Fact = tuple[str, Entity]  # kind and entity


def draft(corpus: Corpus, rng: Random) -> Task | None:
    """One random task as a suite completes it, or None when the draw gave an unusable one."""
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
    """A task whose answer is an expression over looked-up facts, {0}, {1} ...; "{0}" alone needs no
    calculation.

    None where rounding would eat the answer or digits explode. ``tags`` are the entities that count for
    splits, by default those of the facts.
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
    return Task("", prompt, answer, verifier, meta=meta)


def calculation(expression: str) -> dict:
    """A calculator step of a plan; {0}, {1} ... stand for the results of earlier steps."""
    return {"tool": "calculator", "arguments": {"expression": expression}}


def _single(index: FactIndex, rng: Random, template: str) -> Task | None:
    kind = rng.choice(list(WORDINGS))
    (entity,) = index.draw(rng, kind)
    wording = rng.choice(WORDINGS[kind]).format(*entity)
    question = rng.choice(["What is {}?", "Tell me {}."]).format(wording)
    return computed(template, question, index, [(kind, entity)], "{0}")


def converted(
    index: FactIndex, rng: Random, template: str, questions: list[list[str]] = QUESTIONS["convert"]
) -> Task | None:
    """A value in another unit."""
    kind, question, expression = rng.choice(questions)
    (entity,) = index.draw(rng, kind)
    return computed(template, question.format(*entity), index, [(kind, entity)], expression)


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
    return Task("", COMPARISONS[kind].format(first[0], second[0]), winner[0], "exact", meta=meta)


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
    "convert": converted,
    "compare": _compare,
    "density": _density,
    "change": _change,
    **dict.fromkeys(OPERATIONS, _two_values),
    **dict.fromkeys(("total", "mean", "total4", "ratio_of_sums"), _sums),
}
