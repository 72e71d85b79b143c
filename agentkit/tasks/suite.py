"""A task suite: built from families, validated by its own verifiers, split without leaks, saved as tasks.jsonl."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from agentkit.knowledge import Corpus
from agentkit.records import Task
from agentkit.runs import read_tasks, write_tasks
from agentkit.tasks import lookup, multihop
from agentkit.tasks.expert import PlanError, Tools, solve
from agentkit.tools import calculate, search_passages
from agentkit.verifiers import normalize, verify

Draft = Callable[[Corpus, random.Random], Task | None]
FAMILIES: dict[str, Draft] = {"A": lookup.draft, "B": multihop.draft}
ALIASES = {"lookup": "A", "multihop": "B"}
SPLITS = {"train": 0.70, "validation": 0.15, "test": 0.15}
MAX_SHARE = 0.02  # of a suite: no answer text and no entity combination may own more
MAX_MISSES = 3_000  # drafts in a row that give no new task before a family counts as exhausted
REFUSAL = "I could not find this."


class SuiteError(ValueError):
    """A suite cannot be built as asked, or does not pass its own checks."""


class Suite:
    """Tasks with splits. Iterable, in a fixed order."""

    def __init__(self, tasks: Sequence[Task]):
        self.tasks = tuple(tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def split(self, name: str) -> list[Task]:
        """The tasks of one split: train, validation or test."""
        return [task for task in self.tasks if task.split == name]

    @classmethod
    def load(cls, path: str | Path) -> Suite:
        """Read tasks.jsonl, or the run folder that holds it. Raises runs.RunError when it is missing or damaged."""
        path = Path(path)
        return cls(read_tasks(path / "tasks.jsonl" if path.is_dir() else path))

    def save(self, path: str | Path) -> Path:
        """Write tasks.jsonl atomically, after checking every gold answer. Raises SuiteError when one fails."""
        self._check("not saved")
        path = Path(path)
        return write_tasks(path / "tasks.jsonl" if path.is_dir() else path, self.tasks)

    @classmethod
    def build(
        cls,
        spec: dict[str, Any],
        *,
        corpus: Corpus | None = None,
        families: dict[str, Draft] | None = None,
        tools: Tools | None = None,
    ) -> Suite:
        """Draft, solve, validate and split a suite.

        Args:
            spec: ``families`` (names in FAMILIES or in ``families``), ``n_tasks`` and ``seed``.
            corpus: where facts come from; the shipped one by default.
            families: more families, as {name: draft function}.
            tools: more tools that plans may use, as {name: function}.

        Raises:
            SuiteError: an unknown key or family, a corpus too small for that many different tasks, or a failing check.
        """
        known = FAMILIES | (families or {})
        names, n_tasks, seed = _read_spec(spec, known)
        corpus = corpus or Corpus.open()
        tools = {"search": partial(search_passages, corpus), "calculator": calculate, **(tools or {})}
        drafted, prompts = [], set()
        for position, name in enumerate(names):
            count = n_tasks // len(names) + (position < n_tasks % len(names))
            rng = random.Random(f"{seed}-{name}")
            drafted += _draft_family(known[name], corpus, tools, count, rng, name, prompts)
        numbered = [dataclasses.replace(t, id=f"{t.family}-{number:05d}") for number, t in enumerate(drafted)]
        suite = cls(_assign_splits(numbered, random.Random(f"{seed}-splits")))
        suite._check("not built")
        return suite

    def _check(self, consequence: str) -> None:
        failures = [row for row in self.audit() if not row["passed"]]
        if failures:
            raise SuiteError(f"{consequence}: {len(failures)} checks failed, the first: {failures[0]}")

    def audit(self) -> list[dict]:
        """One row a check and task that failed, or one passing row a check: gold passes, mutated golds fail, scoring repeats."""
        failed = defaultdict(list)
        other = _other_entities(self.tasks)
        for task in self.tasks:
            for check, answer, wanted in _audit_cases(task, other.get(task.id)):
                first, second = verify(task, answer), verify(task, answer)
                if first != second or first.value is None or (first.value == 1.0) != wanted:
                    failed[check].append({"check": check, "passed": False, "task": task.id, "answer": answer, "why": first.why})
        checks = ["gold", "perturbed", "other entity", "empty", "prompt echo", "both answers", "refusal"]
        return [row for c in checks for row in failed[c] or [{"check": c, "passed": True, "tasks": len(self.tasks)}]]


def _audit_cases(task: Task, other: str | None) -> Iterator[tuple[str, str, bool]]:
    perturbed = _perturb(task.answer)
    yield "gold", task.answer, True
    yield "perturbed", perturbed, False
    if other is not None:
        yield "other entity", other, False
    yield "empty", "", False
    yield "prompt echo", task.prompt, False
    yield "both answers", f"{task.answer} or {perturbed}", False
    yield "refusal", REFUSAL, False


def _other_entities(tasks: Sequence[Task]) -> dict[str, str]:
    """For each task answered with text: the answer of another task of its template, where they differ."""
    named = defaultdict(list)
    for task in tasks:
        if task.verifier == "exact":
            named[_stratum(task)].append(task)
    pairs = ((a, b) for alike in named.values() for a, b in zip(alike, alike[1:] + alike[:1], strict=True))
    return {a.id: b.answer for a, b in pairs if normalize(a.answer) != normalize(b.answer)}


def _perturb(answer: str) -> str:
    """Another answer of the same look: the first digit raised, or another word in front."""
    for position, character in enumerate(answer):
        if character.isdecimal():
            return f"{answer[:position]}{(int(character) + 1) % 10}{answer[position + 1 :]}"
    return f"New {answer}"


def _read_spec(spec: dict[str, Any], known: dict[str, Draft]) -> tuple[list[str], int, int]:
    unknown = set(spec) - {"families", "n_tasks", "seed"}
    if unknown:
        raise SuiteError(f"unknown suite key {sorted(unknown)[0]!r}: use families, n_tasks and seed")
    names = spec.get("families", list(FAMILIES))
    names = [str(n).strip() for n in (names.split(",") if isinstance(names, str) else names)]
    names = [n if n in known else ALIASES.get(n, n) for n in names]
    missing = [n for n in names if n not in known]
    if missing or not names:
        raise SuiteError(f"unknown task family {missing[0] if missing else ''!r}: use {', '.join(sorted(known))}")
    if len(set(names)) < len(names):
        raise SuiteError(f"a task family is named twice: {', '.join(names)}")
    n_tasks, seed = spec.get("n_tasks", 1200), spec.get("seed", 0)
    if not isinstance(n_tasks, int) or n_tasks < 20:
        raise SuiteError(f"n_tasks is {n_tasks!r}; it must be a whole number of at least 20")
    if not isinstance(seed, int):
        raise SuiteError(f"seed is {seed!r}; it must be a whole number")
    return names, n_tasks, seed


def _draft_family(
    draft: Draft, corpus: Corpus, tools: Tools, count: int, rng: random.Random, name: str, prompts: set[str]
) -> list[Task]:
    """``count`` tasks of one family whose normalised prompts are not in ``prompts`` yet; adds them there."""
    tasks: list[Task] = []
    uses: Counter[str] = Counter()
    limit, misses, why = max(3, int(count * MAX_SHARE)), 0, ""
    while len(tasks) < count and misses < MAX_MISSES:
        misses += 1
        task = draft(corpus, rng)
        if task is None or normalize(task.prompt) in prompts:
            continue
        keys = {task.answer, *_combinations(task)}
        if any(uses[key] >= limit for key in keys):
            continue
        try:
            solution = solve(task, tools)
        except PlanError as error:
            why = f" (last failure: {error})"
            continue
        if verify(task, solution.answer).value != 1.0:
            raise SuiteError(f"the gold answer {task.answer!r} of {task.prompt!r} fails: the tools give {solution.answer!r}")
        misses = 0
        prompts.add(normalize(task.prompt))
        uses.update(keys)
        tasks.append(dataclasses.replace(task, family=name, difficulty=difficulty(len(solution.calls))))
    if len(tasks) < count:
        raise SuiteError(f"family {name} gave only {len(tasks)} different tasks of the {count} asked for; ask for fewer{why}")
    return tasks


def difficulty(calls: int) -> str:
    """easy 1-2, medium 3-4, hard 5 or more tool calls of the scripted expert."""
    return "easy" if calls <= 2 else "medium" if calls <= 4 else "hard"


def _combinations(task: Task) -> list[str]:
    """What splits must not share: every pair of the task's entities, or its one entity."""
    entities = sorted(set(task.meta.get("entities", [])))
    return [" + ".join(pair) for pair in combinations(entities, 2)] or entities


def _assign_splits(tasks: list[Task], rng: random.Random) -> list[Task]:
    """70/15/15 within each template, tasks that share an entity combination kept together."""
    components = _components(tasks)
    rng.shuffle(components)
    components.sort(key=len, reverse=True)
    wanted = Counter(_stratum(t) for t in tasks)
    given: Counter[tuple[str, str]] = Counter()
    split_of: dict[str, str] = {}
    for component in components:
        stratum = Counter(_stratum(t) for t in component).most_common(1)[0][0]

        def need(split: str, stratum: str = stratum) -> float:
            filled = sum(n for (_, s), n in given.items() if s == split) / (SPLITS[split] * len(tasks))
            return SPLITS[split] * wanted[stratum] - given[stratum, split] - 3 * filled  # small suites: no split stays empty

        chosen = max(SPLITS, key=need)
        for task in component:
            split_of[task.id] = chosen
            given[_stratum(task), chosen] += 1
    return [dataclasses.replace(task, split=split_of[task.id]) for task in tasks]


def _stratum(task: Task) -> str:
    return f"{task.family} {task.meta.get('template', '')}"


def _components(tasks: list[Task]) -> list[list[Task]]:
    """Groups of tasks connected by a shared entity combination (union-find)."""
    parent = list(range(len(tasks)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    owner: dict[str, int] = {}
    for i, task in enumerate(tasks):
        for key in _combinations(task):
            parent[root(i)] = root(owner.setdefault(key, i))
    groups = defaultdict(list)
    for i, task in enumerate(tasks):
        groups[root(i)].append(task)
    return list(groups.values())
