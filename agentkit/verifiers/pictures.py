"""Is a picture grounded? The last one's prompt must hold the facts asked for, each shown by a tool before.

Looked at are calls that were needed and calls that were not. Nothing that a reply says of the picture is
believed: its name follows from the prompt. Leaves out the picture itself (tools.pictures).
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from agentkit.records import Score, ToolResult, Trajectory
from agentkit.tools.gazetteer import read_query
from agentkit.tools.pictures import name_of
from agentkit.trajectories import results_of
from agentkit.verifiers.normalisation import exact

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
    """1 when the last picture's prompt holds what it must and the answer names that picture.

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
        return exact(answer, gold)
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
    return exact(answer, name_of(prompt), aliases=[name_of(prompt).split()[-1]])


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
    answered = bool(name and answer and exact(answer, name, aliases=[name.removeprefix("picture ")]).value)
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
