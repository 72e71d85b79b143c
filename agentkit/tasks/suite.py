"""A task suite: built from families, validated by its own verifiers, split without leaks, saved as
tasks.jsonl.

Leaves out what a task of a family asks (families) and how the agent's environment is chosen for it (lab).
"""

import dataclasses
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from agentkit import sandbox
from agentkit.recipe import located
from agentkit.records import SandboxError, SuiteError, Task
from agentkit.runs import read_tasks, task_problem, with_progress, write_tasks
from agentkit.runs.labfile import blame
from agentkit.tasks.audit import audit
from agentkit.tasks.expert import PlanError, solve
from agentkit.tasks.families import code, lookup, multihop
from agentkit.tasks.family import Draft, Family, difficulty, with_content_id
from agentkit.tasks.relabel import relabel_code
from agentkit.tasks.splits import assign_splits, entity_combinations, stratum
from agentkit.tools.corpus import Corpus
from agentkit.tools.environments import CodeEnvironment, CorpusEnvironment
from agentkit.tools.runtime import example
from agentkit.trajectories import results_of, verifier_kind
from agentkit.verifiers import KINDS, judges_state, verify

DEFAULT_FAMILIES = ("A", "B", "C")
MAX_SHARE = 0.02  # of a suite: no answer text and no entity combination may own more,
COMMON = 0.6  # but an answer where there are few, such as yes and no
REPEATED = "too many share a prompt, their entities (meta['entities']) or an answer"
MAX_MISSES = 3_000  # drafts in a row that give no new task before a family counts as exhausted


class Suite:
    """Tasks with splits. Iterable, in a fixed order."""

    def __init__(self, tasks: Sequence[Task], environments: Mapping[str, Callable[[], object]] | None = None):
        self.tasks = tuple(tasks)
        self.environments = environments or {}  # by family: where the expert solves tasks for the audit
        self._audited: tuple[dict, list[dict]] | None = None  # the verifiers at the time, and what they found

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def split(self, name: str) -> list[Task]:
        """The tasks of one split: train, validation or test."""
        return [task for task in self.tasks if task.split == name]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read tasks.jsonl, or the run folder that holds it. Raises RunError where that cannot be done."""
        return cls(read_tasks(_file(path)))

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write tasks.jsonl atomically, after the audit.

        Raises:
            SuiteError: a check fails, and ``force`` is not set.
            RunError: ``load`` would not give the same tasks back.
        """
        if not force:
            self.check("not saved")
        return write_tasks(_file(path), self.tasks)

    @classmethod
    def build(
        cls,
        spec: dict[str, Any],
        *,
        corpus: Corpus | None = None,
        families: Mapping[str, Family | Draft] | None = None,
    ) -> Self:
        """Draft, solve, validate and split a suite.

        Args:
            spec: ``families`` (names of shipped ones or in ``families``), ``n_tasks``, ``seed`` and
                ``new_templates``: such as "A total4", whose tasks are in the test split only.
            corpus: where facts come from; the shipped one by default.
            families: more families, as {name: Family or draft function}; a name that ships is replaced.

        Raises:
            SuiteError: an unknown family, a corpus too small for that many different tasks,
                ``new_templates`` that leave none to train on, or a failing check.
        """
        corpus = corpus or Corpus()
        known = shipped_families(corpus)
        known |= {name: f if isinstance(f, Family) else Family(f) for name, f in (families or {}).items()}
        names = family_names(spec.get("families", DEFAULT_FAMILIES), known)
        n_tasks, seed = spec.get("n_tasks", 1200), spec.get("seed", 0)
        new = set(spec.get("new_templates", ()))
        drafted, prompts, left_out = [], set(), []
        for position, name in enumerate(names):
            count = n_tasks // len(names) + (position < n_tasks % len(names))
            rng = random.Random(f"{seed}-{name}")
            drafts = _draft_family(known[name], corpus, count, rng, name, prompts, new)
            try:
                drafted += with_progress(drafts, f"family {name}", "task", count)
            except SandboxError as error:
                left_out.append(name)
                warnings.warn(f"family {name} is left out: {error}", stacklevel=2)
        if not drafted:
            raise SuiteError(f"every family needs the sandbox: {no_sandbox()}")
        for name in sorted(new - {stratum(task) for task in drafted}):
            warnings.warn(f"new_templates names {name!r}, of which no task was drafted", stacklevel=2)
        environments = {name: known[name].environment for name in names if name not in left_out}
        suite = cls(assign_splits(drafted, random.Random(f"{seed}-splits")), environments)
        if new and not suite.split("train"):
            raise SuiteError("new_templates names every template that was drafted: none is left to train on")
        suite.check("not built")
        return suite

    def check(self, consequence: str = "not to be trusted") -> None:
        """Raise SuiteError where a check of the audit fails, which says of the first what, where and why."""
        failures = [row for row in self.audit() if not row["passed"]]
        if failures:
            keys = "check", "task", "verifier", "answer", "why"
            first = " ".join(f"{key} {failures[0][key]!r}" for key in keys)
            raise SuiteError(f"{consequence}: {len(failures)} checks of the audit failed, the first: {first}")

    def audit(self) -> list[dict]:
        """agentkit.tasks.audit.audit of the tasks: one row a check, or one for every task that fails it.

        Done once; again where a verifier was added or replaced since.
        """
        if self._audited is None or self._audited[0] != KINDS:
            self._audited = dict(KINDS), audit(self.tasks, self.environments)
        return [dict(row) for row in self._audited[1]]


def no_sandbox() -> str:
    return f"{sandbox.NONE}: {sandbox.missing()}; {sandbox.WAY_OUT}"


def that_can_be_judged(tasks: Sequence[Task]) -> list[Task]:
    """The tasks without those whose verifier runs programs, where there is no sandbox; and a warning then."""
    families = sorted({task.family for task in tasks if verifier_kind(task) == "code"})
    if not families or not sandbox.missing():
        return list(tasks)
    warnings.warn(f"{', '.join(families)} left out: {no_sandbox()}", stacklevel=2)
    return [task for task in tasks if task.family not in families]


def _file(path: str | Path) -> Path:
    folder = os.path.isdir(path := located(path))  # false for a name that no file can have
    return Path(path, "tasks.jsonl") if folder else Path(path)


def shipped_families(corpus: Corpus, top_k: int = 3) -> dict[str, Family]:
    """The families that ship, with their tools: search and calculator, or python."""
    lookups = partial(CorpusEnvironment, corpus, top_k)
    return {
        "A": Family(lookup.draft, lookups),
        "B": Family(multihop.draft, lookups),
        "C": Family(code.draft, CodeEnvironment, relabel_code),
        "custom": Family(environment=lookups),  # of rows in a task file that name no family
    }


def family_names(names: Sequence[str], known: Mapping[str, Family]) -> Sequence[str]:
    """These names of families. Raises SuiteError where one is not known or stands twice."""
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SuiteError(f"unknown task family {''.join(unknown[:1])!r}: use {', '.join(sorted(known))}")
    if len(set(names)) < len(names):
        raise SuiteError(f"a task family is named twice: {', '.join(names)}")
    return names


def _draft_family(
    family: Family,
    corpus: Corpus,
    count: int,
    rng: random.Random,
    name: str,
    prompts: set[str],
    new: set[str],
) -> Iterator[Task]:
    """``count`` tasks whose prompts are new to ``prompts``; adds them there, and marks those in ``new``."""
    found, uses = 0, Counter[str]()
    limit = most = max(3, int(count * MAX_SHARE))  # tasks of an entity combination, of an answer
    misses, often, why = 0, False, "its draft returned None each time"
    while found < count:
        if misses == MAX_MISSES:
            if not often or most >= int(COMMON * count):
                advice = " (ask for fewer with n_tasks)" if found else ""
                raise SuiteError(
                    f"family {name} gave only {found} of the {count} tasks asked for{advice}: {why}"
                )
            misses, often, most = 0, False, min(2 * most, int(COMMON * count))
        misses += 1
        if (task := _drafted(family.draft, corpus, rng, name)) is None:
            continue
        combinations, question = entity_combinations(task), " ".join(task.prompt.casefold().split())
        asked = question in prompts or any(uses[key] >= limit for key in combinations)
        if asked or (uses[task.answer] >= most and not judges_state(verifier_kind(task))):
            often, why = often or not asked, f"{REPEATED}, such as {task.prompt[:200]!r}"
            continue
        try:
            calls = _solved(task, family)
        except PlanError as error:
            why = f"the last failure: {error}"
            if sandbox.NONE in why:
                raise SandboxError(no_sandbox()) from None
            continue
        misses, found = 0, found + 1
        prompts.add(question)
        uses.update({task.answer, *combinations})
        task = dataclasses.replace(task, family=name, difficulty=difficulty(calls))
        is_new = {"new_template": True} if stratum(task) in new else {}
        yield with_content_id(dataclasses.replace(task, meta=task.meta | is_new))


def _drafted(draft: Draft | None, corpus: Corpus, rng: random.Random, name: str) -> Task | None:
    """A task that can be used, or None where the draft gave none this time. Raises SuiteError."""
    if draft is None:
        raise SuiteError(
            f"family {name} drafts no tasks: give its tasks as a file, with the recipe key tasks"
        )
    try:
        task = draft(corpus, rng)
    except Exception as error:
        raise SuiteError(f"family {name} drafts no task: {blame(error)}") from error
    if task is not None and (problem := task_problem(task)):
        raise SuiteError(f"family {name} drafted what cannot be used: {problem}")
    return task


def _solved(task: Task, family: Family) -> int:
    """Calls with which the expert reaches the gold answer. Raises PlanError where it does not."""
    solution = solve(task, example(family.environment))
    try:
        score = verify(task, solution)
    except (TypeError, ValueError) as error:  # a verifier that is not there, or a wrong option of it
        raise SuiteError(f"{task.prompt!r}: {error}") from None
    if score.value is None:
        raise PlanError(f"no verdict: {score.why}")
    if score.value != 1.0 and judges_state(verifier_kind(task)):
        raise SuiteError(f"the plan of {task.prompt!r} leads to a state that fails: {score.why}")
    if score.value != 1.0:
        raise SuiteError(
            f"the gold answer {task.answer!r} of {task.prompt!r} fails: the tools give "
            f"{solution.answer!r}; {score.why}"
        )
    return len(results_of(solution))
