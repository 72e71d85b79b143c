"""An image agent that grounds its prompts in facts (the model card Qwen3.5-27B Agent GRPO v2), in six cases.

The case names are the card's; its tasks, tools and reward table were never published, and are ours. The agent
looks up places, films and people, and puts each value into the prompt as the tools gave it. An imaginary
scene needs no lookup, and some requests need no tool at all. One page: environment, measures, tasks,
verifier, reward, database, pictures. Leaves out a diffusion model: pictures are composed when looked at.
"""

import functools
import hashlib
import random
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from xml.sax.saxutils import escape

from agentkit import Family, Score, Task, Trajectory, tool
from agentkit.records import Image, ToolResult
from agentkit.rewards import calls, product
from agentkit.tasks.families.facts import FactIndex, fact_index, lookup_step, tag
from agentkit.tools.corpus import Corpus, passage
from agentkit.tools.environments import SearchEnvironment
from agentkit.trajectories import plan_of, results_of
from agentkit.verifiers import check

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


# ---- measures beside success
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


# ---- the verifier
LOOKUPS = ("search", "database")
SPARE, PICTURES = 2, 2  # lookups beyond those needed, and pictures in all, that are no fault
_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?!\w|\.\d)")
_PAIR = re.compile(r"(-?\d+(?:\.\d+)?) (-?\d+(?:\.\d+)?)")  # latitude and longitude
_STATED = re.compile(r"^\[\d+\] .* is (.+?)(?: [a-z ]+)?\.$", re.MULTILINE)  # what a passage gives


def picture(
    answer: str,
    gold: str,
    *,
    trajectory: Trajectory | None = None,
    question: str = "",
    holds: Sequence[str] = (),
    shown: Sequence[Mapping[str, Any]] = (),
    without: Sequence[str] = (),
) -> Score:
    """The verifier: 1 when the last picture's prompt holds what it must and the answer names that picture.

    Nothing that a reply says of the picture is believed: its name follows from the prompt.

    Args:
        answer: the picture's name, or the gold answer where nothing is to be drawn.
        gold: the name of the expert's picture; any other prompt that holds the facts is right too.
        trajectory: with calls of search, database and generate_image.
        question: what was asked: what it says may stand in the prompt.
        holds: what the prompt must hold; nothing: no tool was needed, and none may be called.
        shown: the facts to be looked up: ``value``, with the ``passage`` or the ``row`` that shows it.
        without: what it must not hold.
    """
    results = results_of(trajectory) if trajectory else []
    if fault := needless(results, holds, shown):
        return Score(0.0, fault)
    if not holds:
        return check("exact", answer, gold)
    made, before = _made(results)
    if made is None:
        return Score(0.0, "no picture was made")
    for fact in shown:
        if not _shows(before, fact):
            return Score(0.0, f"no tool showed {fact['value']!r} before the picture was made")
    prompt = made.arguments["prompt"]
    if lacks := [fact for fact in holds if not within(fact, prompt)]:
        return Score(0.0, f"the prompt lacks {lacks[0]!r}")
    if fault := strange(prompt, question, results, holds, shown, without):
        return Score(0.0, f"the prompt holds {fault!r}, which nobody asked for")
    return check("exact", answer, name_of(prompt), aliases=[name_of(prompt).split()[-1]])


def facts_right(
    answer: str | None,
    gold: str,
    results: Sequence[ToolResult],
    question: str = "",
    holds: Sequence[str] = (),
    shown: Sequence[Mapping[str, Any]] = (),
    without: Sequence[str] = (),
) -> list[bool]:
    """For each fact whether the prompt holds it and a tool showed it; last, whether the answer is right."""
    made, before = _made(results)
    name = gold if not holds else name_of(made.arguments["prompt"]) if made else None
    answered = bool(
        name and answer and check("exact", answer, name, aliases=[name.removeprefix("picture ")]).value
    )
    if made is None:
        return [*(False for _ in holds), answered]
    prompt = made.arguments["prompt"]
    sources = {str(fact["value"]): fact for fact in shown}
    clean = not strange(prompt, question, results, holds, shown, without)
    held = [
        clean and within(fact, prompt) and (fact not in sources or _shows(before, sources[fact]))
        for fact in holds
    ]
    return [*held, answered]


def needless(results: Sequence[ToolResult], holds: Sequence[str], shown: Sequence[Mapping[str, Any]]) -> str:
    """Which calls were not needed, in words; "" where all were."""
    if not holds:
        return f"no tool was needed, and {results[0].name or 'one'} was called" if results else ""
    lookups = [result for result in results if result.name in LOOKUPS]
    if lookups and not shown:
        return f"nothing had to be looked up, and {lookups[0].name} was called"
    if sum(result.ok for result in lookups) > len(shown) + SPARE:
        return f"{len(lookups)} facts were looked up where {len(shown)} were needed"
    pictures = sum(result.ok and result.name == "generate_image" for result in results)
    return f"{pictures} pictures were made" if pictures > PICTURES else ""


def within(fact: str, text: str) -> bool:
    """Whether a text holds a fact in words of its own, whatever its case; two numbers in their order."""
    pair = _PAIR.fullmatch(fact)
    parts = pair.groups() if pair else (fact,)
    held = r"\D*?".join(rf"(?<![\w.-]){re.escape(_plain(part))}(?!\w|\.\d)" for part in parts)
    return re.search(held, _plain(text)) is not None


def strange(
    prompt: str,
    question: str,
    results: Sequence[ToolResult],
    holds: Sequence[str],
    shown: Sequence[Mapping[str, Any]],
    without: Sequence[str],
) -> str | None:
    """What the prompt must not hold: a number from nowhere, what other passages state, what is forbidden."""
    known = " ".join([question, *holds, *(str(fact["value"]) for fact in shown)])
    numbers = set(_NUMBER.findall(_plain(prompt))) - set(_NUMBER.findall(_plain(known)))
    stated = [
        value for r in results if r.ok and r.name == "search" for value in _STATED.findall(r.observation)
    ]
    others = [value for value in (*stated, *without) if len(value) > 2 and not within(value, known)]
    return next((value for value in (*sorted(numbers), *others) if within(value, prompt)), None)


def _made(results: Sequence[ToolResult]) -> tuple[ToolResult | None, Sequence[ToolResult]]:
    """The last picture, and what was called before it."""
    places = [place for place, r in enumerate(results) if r.name == "generate_image" and r.ok]
    return (results[places[-1]], results[: places[-1]]) if places else (None, ())


def _shows(results: Sequence[ToolResult], fact: Mapping[str, Any]) -> bool:
    """Whether a search found the passage that states the fact, or the database was asked for it."""
    passage, row = fact.get("passage"), fact.get("row")
    for result in filter(lambda r: r.ok, results):
        if result.name == "search" and passage and passage in result.observation:
            return True
        if result.name == "database" and row and _asked(result) == [part.casefold() for part in row]:
            return result.observation.strip() == str(fact["value"])
    return False


def _asked(result: ToolResult) -> list[str]:
    """Table, name and column that the database was asked for; empty where it was asked in another form."""
    try:
        return [part.casefold() for part in read_query(str(result.arguments.get("query", "")))]
    except ValueError:
        return []


def _plain(text: str) -> str:
    """Folded, with one kind of dash and space, and no commas within numbers."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    thousands = r"(?<![\d.])\d{1,3}(?:,\d{3})+(?![\d.,])"
    return re.sub(thousands, lambda found: found[0].replace(",", ""), " ".join(folded.split()))


# ---- the reward: ToolRLA's product, as the card names it, R = R_fmt + S_name * S_acc * S_eff. What differs:
# S_acc is about facts, as no two prompts are equal. S_comp is left out, which counts names of calls, where
# search and database may show the same. Efficiency is a factor of at most 1: added, as published, an answer
# without any call would earn as much as a perfect trajectory.
def prompt_accuracy(task: Task, trajectory: Trajectory) -> float | None:
    """S_acc: the share of facts that the last prompt holds and tools showed, the answer counted as one more.

    None for a task that asks for no picture's facts.
    """
    if "holds" not in task.verifier:
        return None
    options = {name: value for name, value in task.verifier.items() if name != "kind"}
    right = facts_right(
        trajectory.answer, task.answer, results_of(trajectory), **{"question": task.prompt, **options}
    )
    return sum(right) / len(right)


def leanness(task: Task, trajectory: Trajectory) -> float | None:
    """S_eff: ToolRLA's efficiency, at most 1: what is left out is no virtue."""
    efficiency = calls.plan_efficiency(task, trajectory)
    return None if efficiency is None else min(1.0, efficiency)


# ---- the database: one value by table, name and column, from the corpus
COLUMNS = {
    "city": ("coordinates", "country", "population"),
    "country": ("capital", "continent", "currency", "population", "area"),
    "film": ("year", "runtime", "director", "country"),
}
_QUERY = re.compile(r"\s*(\w+)\s+of\s+(?:the\s+)?(\w+)\s+(\S(?:.*\S)?)\s*", re.DOTALL)
LONGEST = 1_000  # characters of a query that are read
CELL = 3  # degrees, of the map of land


def read_query(query: str) -> tuple[str, str, str]:
    """Table, name and column of "capital of the country Peru". Raises ValueError saying how to ask."""
    found = _QUERY.fullmatch(query[:LONGEST])
    if not found:
        raise ValueError('ask for "<column> of the <table> <name>", such as "capital of the country Peru"')
    column, table, name = found.groups()
    return table, name, column


def look_up(corpus: Corpus, table: str, name: str, column: str) -> str:
    """A value of the database. Raises ValueError saying what there is instead."""
    table, column = table.casefold(), column.casefold()
    if table not in COLUMNS:
        raise ValueError(f"there is no table {table[:40]!r}; there are {', '.join(COLUMNS)}")
    if column not in COLUMNS[table]:
        columns = ", ".join(COLUMNS[table])
        raise ValueError(f"{table} has no column {column[:40]!r}; it has {columns}")
    name = name.encode("utf-8", "replace").decode()
    if column == "coordinates":
        query = "SELECT printf('%.2f %.2f', latitude, longitude) FROM place WHERE name = ? COLLATE NOCASE"
        rows = corpus.rows(query, name)
    else:
        query = (
            "SELECT value FROM fact JOIN kind ON kind.id = kind WHERE name = ? AND entity = ? COLLATE NOCASE"
        )
        rows = corpus.rows(query, f"{table}.{column}", name)
    if not rows:
        raise ValueError(f"the database has no {column} of a {table} {name[:40]!r}")
    return str(rows[0][0])


@functools.cache
def coordinates() -> dict[str, str]:
    """Latitude and longitude in degrees, such as "48.85 2.35", of cities with a name of their own."""
    rows = Corpus().rows("SELECT name, latitude, longitude FROM place")
    return {name: f"{latitude:.2f} {longitude:.2f}" for name, latitude, longitude in rows}


@functools.cache
def land() -> tuple[tuple[int, int, int], ...]:
    """The world as runs of cells that hold a city: column, row and length, in cells of CELL degrees.

    From land.txt, since a picture must not wait for 34,006 cities: from north to south, a line CELL degrees
    high, a # where GeoNames knows a city of 15,000.
    """
    lines = Path(__file__).with_name("land.txt").read_text(encoding="ascii").splitlines()
    runs = ((row, run) for row, line in enumerate(lines) for run in re.finditer("#+", line))
    return tuple((run.start(), row, len(run[0])) for row, run in runs)


# ---- pictures, composed from their prompts, which name them: the place on a map where the prompt has
# coordinates, else a landscape, with the prompt's first part as title, the others as facts, in its colour
MAX_PROMPT = 1_000  # characters
COLOURS = {  # by name: a dark and a light shade
    "blue": ("#1d3f72", "#a9c8ee"),
    "red": ("#7d1f24", "#f0b4ad"),
    "green": ("#1f5b3a", "#b5ddbf"),
    "gold": ("#6b4b0c", "#f1d68a"),
    "black": ("#1c1c22", "#c3c4cc"),
    "white": ("#55606b", "#f4f6f8"),
    "violet": ("#47296f", "#d2bdec"),
    "orange": ("#7a3a0b", "#f6c493"),
}
WIDE, HIGH, MAP = 480, 300, 200  # of a composed picture, and how high its upper part is
_PLACE = re.compile(r"(?<![\w.])([-−]?\d{1,2}\.\d{1,6})(?:[,;] *| +)([-−]?\d{1,3}\.\d{1,6})(?![\w.])")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def name_of(prompt: str) -> str:
    """The name of a prompt's picture, such as "picture 482193". Raises ValueError for what is no prompt."""
    if not prompt.strip():
        raise ValueError("the prompt is empty; say what to draw")
    if len(prompt) > MAX_PROMPT:
        raise ValueError(f"the prompt has {len(prompt)} characters; the limit is {MAX_PROMPT}")
    return f"picture {100_000 + int(_digest(prompt), 16) % 900_000}"


def paint(prompt: str) -> Image:
    """The composed picture of a prompt. Raises ValueError as ``name_of`` does."""
    return Image(f"{name_of(prompt)}: {prompt}", compose(prompt).encode(), "svg+xml")


def _digest(prompt: str) -> str:
    return hashlib.sha256(" ".join(prompt.split()).encode("utf-8", "backslashreplace")).hexdigest()


def compose(prompt: str) -> str:
    """An SVG for a prompt: the same text, byte by byte, on every machine."""
    dark, light = _shades(prompt)
    place = _PLACE.search(prompt)
    latitude, longitude = (float(part.replace("−", "-")) for part in place.groups()) if place else (99.0, 0.0)
    on_map = place is not None and abs(latitude) <= 90 and abs(longitude) <= 180
    title, *facts = _parts(prompt)
    upper = _map(latitude, longitude, dark, light) if on_map else _landscape(prompt, dark, light)
    size = max(11, min(24, int(1.7 * (WIDE - 32) / max(len(title), 1))))
    lines = [_text(16, MAP + 34, size, title, 'font-weight="700"')]
    lines += [_text(16, MAP + 56 + 18 * i, 14, fact) for i, fact in enumerate(facts[:3])]
    size = f'width="{WIDE}" height="{HIGH}"'
    ground, words = f'<rect {size} fill="{dark}"/>', f'<g fill="{light}">{"".join(lines)}</g>'
    frame = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" {size}'
    return f"<svg {frame}>{ground}{upper}{words}</svg>"


def _shades(prompt: str) -> tuple[str, str]:
    words = re.findall(r"[a-z]+", prompt.casefold())
    named = next((word for word in words if word in COLOURS), None)
    return COLOURS[named or sorted(COLOURS)[int(_digest(prompt)[:4], 16) % len(COLOURS)]]


def _parts(prompt: str) -> list[str]:
    """Title and facts: what commas divide, each on one line."""
    parts = [" ".join(part.split()) for part in re.split(r"[,;\n]", prompt)]
    parts = [part if len(part) <= 60 else f"{part[:59]}…" for part in parts if part]
    return parts or [" ".join(prompt.split())[:60]]


def _text(x: int, y: int, size: int, text: str, more: str = "") -> str:
    font = 'font-family="Georgia, serif"'
    return f'<text x="{x}" y="{y}" font-size="{size}" {font} {more}>{escape(_NO_XML.sub("�", text))}</text>'


def _map(latitude: float, longitude: float, dark: str, light: str) -> str:
    """The world as cells with cities, 70 degrees north to 60 south, and a mark at the place."""
    scale = WIDE / 360
    top = 75 - 15 * (latitude < -50)  # of the part of the world that is shown
    cells = "".join(f"M{CELL * column} {CELL * row + CELL / 2:g}h{CELL * run}" for column, row, run in land())
    x, y = (longitude + 180) * scale, max(6.0, (top - latitude) * scale)
    return (
        f'<svg width="{WIDE}" height="{MAP}" viewBox="0 {90 - top} 360 {MAP / scale:g}">'
        f'<rect width="360" height="180" fill="{light}"/>'
        f'<path d="{cells}" stroke="{dark}" stroke-opacity=".55" stroke-width="{CELL - 0.4:g}"/></svg>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="13" fill="none" stroke="#e4322b" stroke-width="3"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#e4322b"/>'
    )


def _landscape(prompt: str, dark: str, light: str) -> str:
    """Hills under a sun, which follow from the prompt."""
    rng = random.Random(_digest(prompt))
    x, y, radius = rng.randint(60, WIDE - 60), rng.randint(40, 100), rng.randint(18, 34)
    sun = f'<circle cx="{x}" cy="{y}" r="{radius}" fill="#fff" fill-opacity=".8"/>'
    hills = []
    for number, opacity in enumerate((0.25, 0.45, 0.75)):
        base = 90 + 35 * number
        heights = [base + rng.randint(-30, 25) for _ in range(7)]
        curve = "".join(f"S{80 * i - 40} {y} {80 * i} {y}" for i, y in enumerate(heights[1:], start=1))
        hills.append(f'<path d="M0 {heights[0]}{curve}V{MAP}H0Z" fill="{dark}" fill-opacity="{opacity}"/>')
    return f'<rect width="{WIDE}" height="{MAP}" fill="{light}"/>{sun}{"".join(hills)}'


families = {"image": Family(draft, partial(PictureEnvironment, top_k=2), measures=MEASURES)}
verifiers = {"picture": picture}
rewards = {
    "format": (calls.whole_format, 1.0),
    "grounded": (product(calls.tool_names, prompt_accuracy, leanness), 1.0),
}
