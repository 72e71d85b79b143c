"""A task suite: built from families, validated by its own verifiers, split without leaks, saved as
tasks.jsonl.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentkit.records import SuiteError, Task
from agentkit.runs import read_tasks, task_problem, write_tasks
from agentkit.tasks.audit import audit
from agentkit.tasks.expert import PlanError, Tools, solve
from agentkit.tasks.families import code, lookup, multihop, wide
from agentkit.tasks.splits import assign_splits, entity_combinations
from agentkit.tools import calculate, search_passages
from agentkit.tools.corpus import Corpus
from agentkit.tools.python import run_program
from agentkit.verifiers import KINDS, normalize, verify

Draft = Callable[[Corpus, random.Random], Task | None]
FAMILIES: dict[str, Draft] = {"A": lookup.draft, "B": multihop.draft, "C": code.draft}
VARIETIES: dict[str, dict[str, Draft]] = {
    "plain": FAMILIES,
    "wide": {"A": wide.lookup_draft, "B": wide.multihop_draft, "C": code.draft_wide},
}
DEFAULT_FAMILIES = ("A", "B", "C")
ALIASES = {"lookup": "A", "multihop": "B", "code": "C"}
MAX_SHARE = 0.02  # of a suite: no answer text and no entity combination may own more
MAX_MISSES = 3_000  # drafts in a row that give no new task before a family counts as exhausted


class Suite:
    """Tasks with splits. Iterable, in a fixed order."""

    def __init__(self, tasks: Sequence[Task]):
        self.tasks = tuple(tasks)
        self._audited: tuple[dict, list[dict]] | None = None  # the verifiers at the time, and what they found

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def split(self, name: str) -> list[Task]:
        """The tasks of one split: train, validation or test."""
        return [task for task in self.tasks if task.split == name]

    @classmethod
    def load(cls, path: str | Path) -> Suite:
        """Read tasks.jsonl, or the run folder that holds it. Raises runs.RunError when it is missing or
        damaged.
        """
        return cls(read_tasks(_file(path)))

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write tasks.jsonl atomically, after the audit.

        Raises:
            SuiteError: a check fails, and ``force`` is not set.
            RunError: ``load`` would not give the same tasks back.
        """
        if not force:
            self._check("not saved")
        return write_tasks(_file(path), self.tasks)

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
            spec: ``families`` (names in FAMILIES or in ``families``), ``n_tasks``, ``seed`` and ``variety``:
                "plain", or "wide" for more kinds of questions in every family.
            corpus: where facts come from; the shipped one by default.
            families: more families, as {name: draft function}.
            tools: more tools that plans may use, as {name: function}.

        Raises:
            SuiteError: an unknown key or family, a corpus too small for that many different tasks, or a
                failing check.
        """
        known = _variety(spec) | (families or {})
        names, n_tasks, seed = _read_spec(spec, known)
        corpus = corpus or Corpus.open()
        tools = default_tools(corpus) | dict(tools or {})
        drafted, prompts = [], set()
        for position, name in enumerate(names):
            count = n_tasks // len(names) + (position < n_tasks % len(names))
            rng = random.Random(f"{seed}-{name}")
            drafted += _draft_family(known[name], corpus, tools, count, rng, name, prompts)
        numbered = [dataclasses.replace(t, id=f"{t.family}-{number:05d}") for number, t in enumerate(drafted)]
        suite = cls(assign_splits(numbered, random.Random(f"{seed}-splits")))
        suite._check("not built")
        return suite

    def _check(self, consequence: str) -> None:
        failures = [row for row in self.audit() if not row["passed"]]
        if failures:
            first = " ".join(f"{key} {failures[0][key]!r}" for key in ("check", "task", "answer", "why"))
            raise SuiteError(f"{consequence}: {len(failures)} checks of the audit failed, the first: {first}")

    def audit(self) -> list[dict]:
        """agentkit.tasks.audit.audit of the tasks: one row a check, or one for every task that fails it.

        Done once; again where a verifier was added or replaced since.
        """
        if self._audited is None or self._audited[0] != KINDS:
            self._audited = dict(KINDS), audit(self.tasks)
        return [dict(row) for row in self._audited[1]]


def _file(path: str | Path) -> Path:
    """tasks.jsonl in a folder, or the file itself."""
    return (
        Path(path, "tasks.jsonl") if os.path.isdir(path) else Path(path)
    )  # false for a name that no file can have


def _variety(spec: dict[str, Any]) -> dict[str, Draft]:
    if not isinstance(spec, dict):
        raise SuiteError(
            f"the suite's spec is {spec!r}; give an object such as {{'families': ['A'], 'n_tasks': 100}}"
        )
    name = spec.get("variety", "plain")
    if not isinstance(name, str) or name not in VARIETIES:
        raise SuiteError(f"unknown variety {name!r}: use {' or '.join(VARIETIES)}")
    return VARIETIES[name]


def _read_spec(spec: dict[str, Any], known: dict[str, Draft]) -> tuple[list[str], int, int]:
    unknown = set(spec) - {"families", "n_tasks", "seed", "variety"}
    if unknown:
        raise SuiteError(
            f"unknown suite key {sorted(unknown, key=str)[0]!r}: use families, n_tasks, seed and variety"
        )
    names = spec.get("families", list(DEFAULT_FAMILIES))
    if not isinstance(names, str | list | tuple):
        raise SuiteError(f"families is {names!r}; it must be a list of {', '.join(sorted(known))}")
    names = [str(n).strip() for n in (names.split(",") if isinstance(names, str) else names)]
    names = [n if n in known else ALIASES.get(n, n) for n in names]
    missing = [n for n in names if n not in known]
    if missing or not names:
        raise SuiteError(
            f"unknown task family {missing[0] if missing else ''!r}: use {', '.join(sorted(known))}"
        )
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
    limit, misses, why = max(3, int(count * MAX_SHARE)), 0, " (its draft returned None each time)"
    while len(tasks) < count and misses < MAX_MISSES:
        misses += 1
        task = draft(corpus, rng)
        if task is None:
            continue
        if problem := task_problem(task):
            raise SuiteError(f"family {name} drafted what cannot be used: {problem}")
        why = ""
        if normalize(task.prompt) in prompts:
            continue
        keys = {task.answer, *entity_combinations(task)}
        if any(uses[key] >= limit for key in keys):
            continue
        try:
            solution = solve(task, tools)
        except PlanError as error:
            why = f" (last failure: {error})"
            continue
        score = verify(task, solution.answer)
        if score.value is None:
            why = f" (last verdict missing: {score.why})"
            continue
        if score.value != 1.0:
            raise SuiteError(
                f"the gold answer {task.answer!r} of {task.prompt!r} fails: the tools give "
                f"{solution.answer!r}; {score.why}"
            )
        misses = 0
        prompts.add(normalize(task.prompt))
        uses.update(keys)
        tasks.append(dataclasses.replace(task, family=name, difficulty=difficulty(len(solution.calls))))
    if len(tasks) < count:
        raise SuiteError(
            f"family {name} gave only {len(tasks)} different tasks of the {count} asked for; ask for "
            f"fewer{why}"
        )
    return tasks


def default_tools(corpus: Corpus) -> dict[str, Callable[..., str]]:
    """The tools that plans may use, by name."""
    return {
        "search": partial(search_passages, corpus),
        "calculator": calculate,
        "python": lambda code: run_program(code)[0],
    }


def difficulty(calls: int) -> str:
    """easy 1-2, medium 3-4, hard 5 or more tool calls of the scripted expert."""
    return "easy" if calls <= 2 else "medium" if calls <= 4 else "hard"
