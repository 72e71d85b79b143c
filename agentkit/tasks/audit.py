"""Can a suite's verifiers be trusted? Every task is scored on its gold answer and on answers that must fail.

A reward bug looks like a flat reward curve; here it is a row with the task's id. Leaves out: whether the gold
answer is true.
"""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from agentkit.records import Score, Task, Trajectory
from agentkit.tasks.expert import as_trajectory, solve
from agentkit.tools import search_passages
from agentkit.tools.corpus import Corpus
from agentkit.verifiers import KINDS, normalize, verify

CHECKS = ("data", "gold", "perturbed", "other entity", "empty", "prompt echo", "both answers", "refusal", "longest passage",
          "repeatable")  # fmt: skip
AT_ONCE = 4  # tasks
TRIES = 3  # for a verdict: a busy machine may give none the first time, a broken verifier never does
REFUSAL = "I could not find this."


def audit(
    tasks: Sequence[Task], environments: Mapping[str, Callable[[], object]] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Score every task on answers whose verdict is known, once its gold data can be read.

    The gold answer (``meta["right_answer"]`` where the gold answer is no answer itself, as for a pattern)
    must score 1. A perturbed one, another task's answer, nothing, the prompt, two answers, a refusal and the
    longest passage the tools show on the way must score 0, and the first two are scored twice. Tasks without
    a gold answer are left out where it is needed. Where a verifier looks at the trajectory, the answers are put
    into that of the scripted expert, who works in the family's environment.

    Returns:
        One row for every check and verifier that all tasks passed (``check``, ``verifier``, ``passed``,
        ``tasks``), one for every task that fails one (``task``, ``answer``, ``why``), and one of time a
        verifier (``ms`` mean and ``slowest_ms``).
    """
    failed, counts, seconds = defaultdict(list), defaultdict(int), defaultdict(list)
    other = _other_answers(tasks)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # programs are tested beside each other
        tried = pool.map(lambda task: _tried(task, other.get(task.id), environments), tasks)
        for task, verdicts in zip(tasks, tried, strict=True):
            kind = kind_of(task)
            for check, answer, passes, found, spent in verdicts:
                counts[check, kind] += 1
                seconds[kind] += spent
                if not passes:
                    failed[check, kind].append(_failure(check, task, answer, found))
    rows = []
    for key in sorted(counts, key=lambda key: (CHECKS.index(key[0]), key[1])):
        passed = {"check": key[0], "verifier": key[1], "passed": True, "tasks": counts[key]}
        rows += failed[key] or [passed]
    return rows + [_timing(kind, spent) for kind, spent in sorted(seconds.items()) if spent]


def _tried(
    task: Task, other: str | None, environments: Mapping[str, Callable[[], object]]
) -> list[tuple[str, str, bool, Score, list[float]]]:
    """Check, answer, whether the check is passed, the verdict and the seconds of every try, for all cases of
    a task.
    """
    try:
        cases = list(_cases(task, other))
        expert = _expert(task, environments)
    except ValueError as error:  # nothing else can be checked
        return [("data", "", False, Score(None, f"its gold data cannot be used: {error}"), [])]
    verdicts = [("data", "", True, Score(None), [])]
    for check, answer, wanted in cases:
        found, spent = _timed(task, answer, expert)
        passes = found.value is not None and (found.value == 1.0) == wanted
        verdicts.append((check, answer, passes, found, spent))
        if check in ("gold", "perturbed"):
            again, spent = _timed(task, answer, expert)
            verdicts.append(("repeatable", answer, again == found, again, spent))
    return verdicts


def _expert(task: Task, environments: Mapping[str, Callable[[], object]]) -> Trajectory | None:
    """The scripted expert's trajectory where the task's verifier looks at one; None elsewhere.

    Raises ValueError where the plan does not lead to an answer.
    """
    verifier = KINDS.get(kind_of(task))
    if verifier is None or "trajectory" not in inspect.signature(verifier).parameters:
        return None
    if task.family not in environments:
        raise ValueError(
            f"its verifier looks at trajectories, and no environment of family {task.family!r} is known"
        )
    return as_trajectory(task, solve(task, environments[task.family]()))


def kind_of(task: Task) -> str:
    """The name of a task's verifier."""
    return str(task.verifier.get("kind"))


def _timed(task: Task, answer: str, expert: Trajectory | None) -> tuple[Score, list[float]]:
    """The verdict, asked for again where there is none, and the seconds of every try."""
    spent: list[float] = []
    for _ in range(TRIES):
        start = time.perf_counter()
        try:
            score = verify(task, answer if expert is None else replace(expert, answer=answer))
        except (TypeError, ValueError) as error:  # an option that the verifier does not have, or no verifier
            return Score(None, str(error)), spent
        spent.append(time.perf_counter() - start)
        if score.value is not None:
            break
    return score, spent


def _failure(check: str, task: Task, answer: str, score: Score) -> dict[str, Any]:
    row = {
        "check": check,
        "verifier": kind_of(task),
        "passed": False,
        "task": task.id,
        "answer": answer[:500],
    }
    return row | {"value": score.value, "why": score.why}


def _timing(kind: str, seconds: Sequence[float]) -> dict[str, Any]:
    times = {"ms": 1000 * sum(seconds) / len(seconds), "slowest_ms": 1000 * max(seconds)}
    return {"check": "timing", "verifier": kind, "passed": True, "tasks": len(seconds)} | times


def _cases(task: Task, other: str | None) -> Iterator[tuple[str, str, bool]]:
    """Name of the check, answer, and whether the answer must pass. Raises ValueError on gold data of another
    form.
    """
    right = {normalize(answer) for answer in _right_answers(task)}
    gold = str(task.meta.get("right_answer", task.answer))
    if gold.strip():
        wrong = _wrong_program(task) if kind_of(task) == "code" else _wrong_answer(gold, right)
        both = (
            f"```python\n{gold}\n```\n```python\n{wrong}\n```"
            if kind_of(task) == "code"
            else f"{gold} or {wrong}"
        )
        yield "gold", gold, True
        yield "perturbed", wrong, False
        yield "both answers", both, False
    if other is not None and normalize(other) not in right:
        yield "other entity", other, False
    yield "empty", "", False
    yield "prompt echo", task.prompt, False
    yield "refusal", REFUSAL, False
    if (passage := longest_passage(task)) is not None:
        yield "longest passage", passage, False


def perturb(answer: str) -> str:
    """Another answer of the same look: the first digit raised, or another word in front."""
    for position, character in enumerate(answer):
        if character.isdecimal():
            return f"{answer[:position]}{(int(character) + 1) % 10}{answer[position + 1 :]}"
    return f"New {answer}"


def _wrong_answer(gold: str, right: set[str]) -> str:
    """The gold answer perturbed, again where an alias says that."""
    wrong = perturb(gold)
    for _ in right:
        wrong = perturb(wrong) if normalize(wrong) in right else wrong
    return wrong


def _wrong_program(task: Task) -> str:
    """A near miss the task names, or the gold program with its function replaced by one that gives nothing."""
    if near_misses := _texts(task.meta, "near_misses"):
        return near_misses[0]
    name = str(task.verifier.get("entry", ""))
    if name.isidentifier():
        return f"def {name}(*arguments, **named):\n    return None"
    owner, _, method = name.partition("().")
    return (
        f"class {owner}:\n    def {method}(self, *arguments, **named):\n        return None"
        if method
        else "print()"
    )


def _other_answers(tasks: Iterable[Task]) -> dict[str, str]:
    """For each task answered with words: the answer of another task of its family and template."""
    alike = defaultdict(list)
    for task in tasks:
        if kind_of(task) == "exact":
            alike[task.family, str(task.meta.get("template", ""))].append(task)
    pairs = ((a, b) for group in alike.values() for a, b in zip(group, group[1:] + group[:1], strict=True))
    return {a.id: b.answer for a, b in pairs}


def _right_answers(task: Task) -> list[str]:
    aliases = task.verifier.get("aliases")
    return [task.answer, *([aliases] if isinstance(aliases, str) else _texts(task.verifier, "aliases"))]


def _texts(data: dict[str, Any], name: str) -> list[str]:
    found = data.get(name, [])
    if not isinstance(found, list | tuple) or not all(isinstance(text, str) for text in found):
        raise ValueError(f"{name} is {found!r:.80}; it must be a list of texts")
    return list(found)


def longest_passage(task: Task) -> str | None:
    """The longest text the tools show on the way to the answer: the task's own passages, or what its plan
    searches for.
    """
    passages = _texts(task.meta, "passages")
    plan = task.meta.get("plan")
    steps = plan if isinstance(plan, list) else []
    for step in [s for s in steps if isinstance(s, dict) and s.get("tool") == "search"][-1:]:
        match step:
            case {"arguments": {"query": str(query)}}:
                passages += [search_passages(_corpus(), query)] if "{" not in query else []
            case _:
                raise ValueError(f"the plan has the step {step!r:.80}; a search needs arguments with a query")
    return max(passages, key=len, default=None)


@lru_cache(maxsize=1)
def _corpus() -> Corpus:
    return Corpus.open()
