"""Family C: write a function, test it with the python tool, then submit it or say what it gives.

A function chains one to five blocks (specifications). The gold code runs here, on inputs drawn at random, to
make the hidden tests; only the example in the prompt is ever seen by the policy. Every draft is tried against
its own near misses (a parameter off by one, a step left out, two steps swapped, another last step): hidden
tests that would let one of them pass make it no task. Leaves out running what a model wrote.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import lru_cache
from random import Random
from types import CodeType
from typing import Any

from agentkit.records import Task
from agentkit.tasks.families.specifications import BLOCKS, INPUTS, Block
from agentkit.tools.corpus import Corpus

TESTS = 8  # hidden tests a task
CANDIDATES = 24  # inputs they are chosen from
TELLING = 3  # inputs, at least, must tell the solution from a near miss
MAX_VALUE = 160  # characters of a value as text
MAX_NUMBER, MAX_COUNTED = 10**6, 300  # between two steps; where the next step counts up to it
LENGTHS = {1: 2, 2: 3, 3: 4, 4: 4, 5: 6}  # steps in a chain, with weights
KINDS = {"numbers": 5, "text": 4, "number": 3, "date": 2}  # what a chain starts from, with weights
IDENTITY = "def f(x): return x"  # the near miss of a function that has no other
_DATES = ["from datetime import date, timedelta", "x = date.fromisoformat(x)"]

Steps = tuple[tuple[Block, Any], ...]  # blocks with their parameters
Program = Steps | str  # a chain, or code


def draft(
    corpus: Corpus, rng: Random, lengths: Mapping[int, int] = LENGTHS, question: bool | None = None
) -> Task | None:
    """One random task as a suite completes it, or None when the draw gave an unusable one.

    Its chain has one of these lengths, drawn by their weights; ``question`` says whether it asks for a
    number, and None leaves that to chance.
    """
    steps = _chain(rng, lengths)
    names, takes = [block.name for block, _ in steps], steps[0][0].takes
    numeric = steps[-1][0].gives == "number"
    if len(set(names)) < len(names) or (question and not numeric):
        return None
    inputs = _inputs(takes, rng)
    swapped = list(_swaps(steps))
    # steps that may stand in either order would make two tasks of one function: only one order is asked for
    if any(_differing(steps, other, inputs) == 0 for other in swapped):
        if names != sorted(names):
            return None
        swapped = []
    misses = [*dict.fromkeys(_near_misses(steps, rng)), *swapped] or [IDENTITY]
    words = ", then ".join(_filled(block.words, k) for block, k in steps)
    meta = {"template": f"{takes} {len(steps)}", "entities": ["code:" + "+".join(sorted(names))]}
    if (numeric and rng.random() < 0.4) if question is None else question:
        return _question(words, steps, misses, inputs, meta)
    stages = [steps[: i + 1] for i in range(len(steps))]
    return _function_task(words, takes, stages, misses, inputs, meta)


def _function_task(
    words: str,
    takes: str,
    stages: Sequence[Program],
    misses: Sequence[Program],
    inputs: list[str],
    meta: dict,
) -> Task | None:
    """The task to write and submit the last stage, tested by stages on the example."""
    solution = stages[-1]
    tests = _tests(solution, misses, inputs)
    examples = [x for x in inputs if x not in tests and all(_printed(stage, x) for stage in stages)]
    if not tests or not examples:
        return None
    example = max(examples[:8], key=lambda x: sum(_differing(miss, solution, [x]) for miss in misses))
    plan = [_call(stage, example) for stage in stages]
    asked = f"Write f(x) for {INPUTS[takes][0]}: {words}."
    prompt = f"{asked} Example: f({json.loads(example)!r}) is {_gives(solution, example)!r}."
    verifier = {
        "kind": "code",
        "entry": "f",
        "tests": [[[json.loads(x)], _gives(solution, x)] for x in tests],
    }
    meta |= {"plan": plan, "answer_if": {plan[-1]["expect"]: source(solution)}, **_gold(solution, misses)}
    return Task("", prompt, source(solution), verifier, tools=("python",), meta=meta)


def _question(
    words: str, solution: Steps, misses: Sequence[Program], inputs: list[str], meta: dict
) -> Task | None:
    for x in inputs:
        if _printed(solution, x) and all(_differing(miss, solution, [x]) for miss in misses):
            prompt = f"Take x = {json.loads(x)!r}: {words}. What is the result?"
            meta |= {"template": f"{meta['template']} question", "plan": [_call(solution, x)]}
            meta |= _gold(solution, misses)
            return Task("", prompt, str(_gives(solution, x)), "numeric", tools=("python",), meta=meta)
    return None


def _gold(solution: Program, misses: Sequence[Program]) -> dict:
    """What a careless expert needs (policies/scripted.py): the right code, and code that is nearly right."""
    return {"solution": source(solution), "near_misses": [source(m) for m in misses[:3]]}


def _call(program: Program, given: str) -> dict:
    code = f"{source(program)}\nprint(f({json.loads(given)!r}))"
    return {"tool": "python", "arguments": {"code": code}, "expect": _printed(program, given)}


def _tests(solution: Program, misses: Sequence[Program], inputs: list[str]) -> list[str]:
    """Inputs that distinguish the solution from every near miss; none where there are no such."""
    usable = [x for x in inputs if _result(solution, x) is not None]
    if len(usable) <= TESTS:
        return []
    chosen: dict[str, None] = {}
    for wrong in misses:
        telling = [x for x in usable if _differing(wrong, solution, [x])]
        if len(telling) < TELLING:
            return []
        if chosen.keys().isdisjoint(telling):
            chosen[telling[0]] = None
    for x in usable[: 2 * TESTS]:
        if len(chosen) < TESTS:
            chosen[x] = None
    return list(chosen) if len({_result(solution, x) for x in chosen}) > 1 else []


def _printed(program: Program, given: str) -> str:
    """What printing the result shows; empty where that would not be recognised."""
    text = "" if _result(program, given) is None else str(_gives(program, given))
    return text if text == text.strip() else ""


def _gives(program: Program, given: str) -> Any:
    return json.loads(str(_result(program, given)))


def _differing(one: Program, other: Program, inputs: list[str]) -> int:
    return sum(_result(one, x) != _result(other, x) for x in inputs)


def _inputs(takes: str, rng: Random) -> list[str]:
    return list(dict.fromkeys(json.dumps(INPUTS[takes][1](rng)) for _ in range(CANDIDATES)))


def source(program: Program) -> str:
    """A program's code; a chain is one line of Python: ``def f(x): x = ...; return ...``."""
    if isinstance(program, str):
        return program
    expressions = [_filled(block.code, k) for block, k in program]
    opening = _DATES if program[0][0].takes == "date" else []
    last = f"str({expressions[-1]})" if program[-1][0].gives == "date" else expressions[-1]
    return "def f(x): " + "; ".join([*opening, *(f"x = {e}" for e in expressions[:-1]), f"return {last}"])


def _filled(text: str, k: Any) -> str:
    return text.replace("{k}", str(k))


def evaluate(steps: Steps, value: Any) -> Any:
    """What a chain gives for one input. Raises ValueError where a number gets too large to count up to."""
    value = date.fromisoformat(value) if steps[0][0].takes == "date" else value
    for block, k in steps:
        largest = MAX_COUNTED if "range(" in block.code else MAX_NUMBER
        if block.takes == "number" and abs(value) > largest:
            raise ValueError(f"{value} is too large")
        value = eval(_compiled(_filled(block.code, k)), {"x": value, "date": date, "timedelta": timedelta})
    return str(value) if steps[-1][0].gives == "date" else value


@lru_cache(maxsize=2048)
def _compiled(expression: str) -> CodeType:
    return compile(expression, "block", "eval")


def run(code: str, value: Any) -> Any:
    """What code of ours gives for one input; raises what it raises. Never called on anybody else's code."""
    scope: dict[str, Any] = {}
    exec(code, scope)
    return scope["f"](value)


@lru_cache(maxsize=4096)
def _result(program: Program, given: str) -> str | None:
    """What a program gives, as JSON, or None where it fails or gives too much."""
    value = json.loads(given)
    try:
        text = json.dumps(run(program, value) if isinstance(program, str) else evaluate(program, value))
    except Exception:  # a near miss may do anything
        return None
    return text if len(text) <= MAX_VALUE else None


def _chain(rng: Random, lengths: Mapping[int, int]) -> Steps:
    (kind,) = rng.choices(list(KINDS), weights=list(KINDS.values()))
    (length,) = rng.choices(list(lengths), weights=list(lengths.values()))
    steps: list[tuple[Block, Any]] = []
    for position in range(length):
        gives = rng.choice(sorted({block.gives for block in BLOCKS if block.takes == kind}))
        if position < length - 1 and rng.random() < 0.7:
            gives = kind  # most steps keep the kind: long chains stay about one thing
        block = rng.choice([block for block in BLOCKS if (block.takes, block.gives) == (kind, gives)])
        steps.append((block, rng.choice(block.values) if block.values else None))
        kind = gives
    return tuple(steps)


def _near_misses(steps: Steps, rng: Random) -> Iterator[Steps]:
    """Chains that somebody careless might write: another parameter, a step left out, another last step."""
    for i, (block, k) in enumerate(steps):
        if isinstance(k, int):
            others = [k - 1, k + 1]
        elif k:
            others = rng.sample([value for value in block.values if value != k], 2)
        else:
            others = []
        yield from (_with(steps, i, (block, other)) for other in others)
        if block.takes == block.gives and len(steps) > 1:
            yield _with(steps, i)
    last = steps[-1][0]
    alike = [
        b for b in BLOCKS if (b.takes, b.gives) == (last.takes, last.gives) and b is not last and not b.values
    ]
    if alike:
        yield _with(steps, len(steps) - 1, (rng.choice(alike), None))


def _swaps(steps: Steps) -> Iterator[Steps]:
    for i, ((a, _), (b, _)) in enumerate(zip(steps, steps[1:], strict=False)):
        if a.takes == a.gives == b.takes == b.gives:
            yield (*steps[:i], steps[i + 1], steps[i], *steps[i + 2 :])


def _with(steps: Steps, position: int, *replacement: tuple[Block, Any]) -> Steps:
    return (*steps[:position], *replacement, *steps[position + 1 :])
