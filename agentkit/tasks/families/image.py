"""An image agent that grounds its prompts in facts (the model card Qwen3.5-27B Agent GRPO v2), in six cases.

The case names are the card's; its tasks and tools were never published. Looked up are places, films and
people; each looked-up value stands in the prompt as the tools gave it. A scene that is imaginary needs no
lookup, and some requests need no tool at all. Leaves out the pictures (tools.pictures), who judges
(verifiers.pictures) and the reward (rewards.components).
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from agentkit.records import Image, Task, Trajectory
from agentkit.tasks.families.facts import FactIndex, fact_index, lookup_step, tag
from agentkit.tools.corpus import Corpus, passage
from agentkit.tools.environments import SearchEnvironment
from agentkit.tools.gazetteer import COLUMNS, coordinates, look_up, read_query
from agentkit.tools.pictures import COLOURS, name_of, paint
from agentkit.tools.runtime import tool
from agentkit.trajectories import plan_of, results_of
from agentkit.verifiers.pictures import facts_right

TOOLS = ("search", "database", "generate_image")
CREATURES = ("dragon", "castle", "tower", "garden", "ship", "bridge", "giant", "forest")
TRIES = 20  # at one case, before another is drawn
SYLLABLES = "lu mo ra ve na tor el in dar sa mi ko ren al ba tis or fen ga li".split()


class PictureEnvironment(SearchEnvironment):
    """Search, a database of places and films, and a picture for a prompt, which is drawn when looked at."""

    system_prompt = (
        "Draw what is asked with generate_image. Look up every fact with search or database, put it into the "
        'prompt, and end with a line "Answer: ..." that names the picture.'
    )

    @tool(pure=True, version=lambda environment: environment._corpus.version)
    def database(self, query: str) -> str:
        """Look up a value.

        Args:
            query: Which value of the city, country or film.
        """
        return look_up(self._corpus, *read_query(query))

    @tool(pure=True)
    def generate_image(self, prompt: str) -> str:
        """Draw a picture.

        Args:
            prompt: What it shows.
        """
        return name_of(prompt)

    @classmethod
    def render(cls, task: Task, trajectory: Trajectory, turn: int) -> Image | None:
        """The last picture that this turn made."""
        made = [r for r in trajectory.turns[turn].results if r.name == "generate_image" and r.ok]
        return paint(made[-1].arguments["prompt"]) if made else None


# ---- what its trajectories are measured by
def facts_held(task: Task, trajectory: Trajectory) -> float | None:
    """The share of facts that the last prompt holds and tools showed."""
    options = {name: value for name, value in task.verifier.items() if name != "kind"}
    if trajectory.success is None or not options.get("holds"):
        return None
    *held, _ = facts_right(trajectory.answer, task.answer, results_of(trajectory), task.prompt, **options)
    return sum(held) / len(held)


def no_needless_call(task: Task, trajectory: Trajectory) -> float | None:
    """Whether there are no more calls than the expert makes."""
    return None if trajectory.success is None else float(len(results_of(trajectory)) <= len(plan_of(task)))


MEASURES = {"facts in the prompt": facts_held, "no needless call": no_needless_call}


# ---- tasks
class _Request:
    """A request as it is put together: what is looked up on the way, and what the prompt must hold."""

    def __init__(self, index: FactIndex):
        self.index = index
        self.plan: list[dict[str, Any]] = []
        self.shown: list[dict[str, Any]] = []
        self.tags: list[str] = []

    def search(self, kind: str, name: str, row: Sequence[str] | None = None) -> str | None:
        """A fact's value, looked up by a search; None where it is not known."""
        value = self.index[kind].get((name,))
        if value is None:
            return None
        step = lookup_step(self.index, kind, (name,))
        given = f"{{{len(self.plan) - 1}}}"
        if self.plan and self.plan[-1].get("expect") == name:  # the value of the step before
            query = step["arguments"]["query"].replace(name, given)
            step["arguments"] = {"query": query}
        self.plan.append(step)
        fact = {"value": str(value), "passage": passage(kind, (name,), value)}
        self.shown.append(fact | ({"row": list(row)} if row else {}))
        self.tags.append(tag(kind, (name,)))
        return str(value)

    def database(self, table: str, name: str, column: str) -> str | None:
        """A value, looked up in the database; the careless expert takes another column."""
        try:
            value = look_up(self.index.corpus, table, name, column)
        except ValueError:
            return None
        before = next((i for i, step in enumerate(self.plan) if step.get("expect") == name), None)
        row = f"the {table} {name if before is None else f'{{{before}}}'}"
        others = [{"query": f"{other} of {row}"} for other in COLUMNS[table] if other != column]
        step = {"tool": "database", "arguments": {"query": f"{column} of {row}"}, "expect": value}
        self.plan.append(step | {"wrong": others})
        kind = f"{table}.{column}"
        fact = {"value": value, "row": [table, name, column]}
        if (name,) in self.index[kind]:
            fact["passage"] = passage(kind, (name,), self.index[kind][name,])
        self.shown.append(fact)
        self.tags.append(tag(kind, (name,)))
        return value

    def drawn(self, case: str, text: str, parts: Sequence[str], **more: Any) -> Task:
        """The task to draw a prompt of these parts; the careless expert draws the first only."""
        prompt = f"picture of {', '.join(parts)}"
        values = [step["expect"] for step in self.plan]
        given = [f"{{{values.index(part)}}}" if part in values else part for part in parts]
        wrong = [{"prompt": f"picture of {given[0]}"}]
        filled = f"picture of {', '.join(given)}"
        step = {"tool": "generate_image", "arguments": {"prompt": filled}, "expect": name_of(prompt)}
        self.plan.append(step | {"wrong": wrong})
        verifier = {"kind": "picture", "holds": list(parts), "shown": self.shown, **more}
        meta = {"template": case, "case": case, "plan": self.plan, "entities": self.tags}
        return Task("", text, name_of(prompt), verifier, tools=TOOLS, meta=meta)


def _with_columns(
    request: _Request,
    rng: Random,
    case: str,
    row: tuple[str, str],
    columns: Sequence[str],
    texts: Sequence[str],
    named: str = "",
) -> Task | None:
    """The task to draw a row, which is of a table, with values of these columns; None where it lacks one."""
    table, name = row
    values = [request.database(table, name, column) for column in columns]
    text = rng.choice(texts).format(named or name, " and ".join(columns))
    return None if None in values else request.drawn(case, text, [name, *values])


def _location(request: _Request, rng: Random, case: str, more: bool) -> Task | None:
    (city,) = rng.choice(_cities(request.index))
    columns = ["coordinates", "country"] if more else ["coordinates"]
    texts = ["Draw the city {} at its {}.", "A picture of the city {} with its {}, please."]
    return _with_columns(request, rng, case, ("city", city), columns, texts)


def _steps(request: _Request, rng: Random, case: str, more: bool) -> Task | None:
    if rng.random() < 0.5:
        return _capital(request, rng, case, more)
    ((director,),) = request.index.draw(rng, "director.first_film")
    film = request.search("director.first_film", director)
    columns = rng.sample(["year", "runtime", "country"], 2 if more else 1)
    texts = [
        "Draw a poster of the first film of {} with its {}.",
        "The first film of {} as a poster with its {}.",
    ]
    return _with_columns(request, rng, case, ("film", film), columns, texts, director)


def _capital(request: _Request, rng: Random, case: str, more: bool) -> Task | None:
    ((country,),) = request.index.draw(rng, "country.capital")
    capital = _capital_of(request, country)
    if capital is None:
        return None
    columns = ["coordinates", "population"] if more else ["coordinates"]
    texts = ["Draw the capital of {} at its {}.", "A picture of the capital of {} with its {}, please."]
    return _with_columns(request, rng, case, ("city", capital), columns, texts, country)


def _poster(request: _Request, rng: Random, case: str, more: bool) -> Task | None:
    ((film,),) = request.index.draw(rng, "film.year")
    columns = rng.sample(COLUMNS["film"], rng.randint(2, 3) if more else 1)
    texts = ["Draw a poster of the film {} with its {}.", "The film {} as a poster with its {}, please."]
    task = _with_columns(request, rng, case, ("film", film), columns, texts)
    return task if task and len(set(task.verifier["holds"])) > len(columns) else None


def _scene(request: _Request, rng: Random, case: str, more: bool) -> Task | None:
    name = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3 + more))).capitalize()
    colour, creature = rng.choice(sorted(COLOURS)), rng.choice(CREATURES)
    request.tags.append(f"scene:{name}")
    text = rng.choice(
        ["Draw the {2} {1} of the imaginary city {0}.", "The imaginary city {0} with a {2} {1}, please."]
    )
    others = [other for other in COLOURS if other != colour]
    return request.drawn(
        case, text.format(name, creature, colour), [name, f"{colour} {creature}"], without=others
    )


def _nothing(request: _Request, rng: Random, case: str, more: bool) -> Task | None:
    (name,), kind = (rng.choice(_cities(request.index)), "city")
    if rng.random() < 0.5:
        ((name,),), kind = request.index.draw(rng, "film.year"), "film"
    colour = rng.choice(sorted(COLOURS))
    text = rng.choice(["Draw nothing. Which {1} is on a {2} poster of the {1} {0}?",
                       "Which {1} would a {2} picture of the {1} {0} show? Draw nothing."])  # fmt: skip
    verifier = {"kind": "picture", "holds": []}
    meta = {"template": case, "case": case, "plan": [], "entities": [tag(kind, (name,))]}
    return Task("", text.format(name, kind, colour), name, verifier, tools=TOOLS, meta=meta)


def _pipeline(request: _Request, rng: Random, case: str, more: bool) -> Task | None:
    draws = request.index.draw(rng, "film.country", 12)  # country by country: most films were made in one
    wanted = rng.choice(sorted({request.index["film.country"][film] for film in draws}))
    (film,) = next(each for each in draws if request.index["film.country"][each] == wanted)
    country = request.search("film.country", film, ("film", film, "country"))
    capital = _capital_of(request, country)
    values = [request.database("city", capital or "", "coordinates")]
    values += [request.database("film", film, "year")] if more else []
    if None in (capital, *values):
        return None
    asked = " and the film's year" if more else ""
    capital_of = f"the capital of the country of the film {film}"
    text = rng.choice(["Draw {} at its coordinates{}.", "A picture of {} with its coordinates{}, please."])
    return request.drawn(case, text.format(capital_of, asked), [capital, *values])


def _capital_of(request: _Request, country: str) -> str | None:
    """Looked up; None where the city of that name that the database has lies in another country."""
    capital = request.search("country.capital", country, ("country", country, "capital"))
    return capital if request.index["city.country"].get((capital,)) == country else None


def _cities(index: FactIndex) -> list[tuple]:
    return [city for city in index["city.country"] if city[0] in coordinates()]


CASES: dict[str, Callable[[_Request, Random, str, bool], Task | None]] = {
    "Real location": _location,
    "Multi-step": _steps,
    "Database search": _poster,
    "Fictional scene": _scene,
    "No tools needed": _nothing,
    "Full pipeline": _pipeline,
}


def draft(corpus: Corpus, rng: Random, wide: bool = False) -> Task | None:
    """A request of one of the six cases, with at most four calls; a wide one has more facts in its prompt."""
    index, case = fact_index(corpus), rng.choice(list(CASES))
    tries = (CASES[case](_Request(index), rng, case, wide) for _ in range(TRIES))
    return next(filter(None, tries), None)
