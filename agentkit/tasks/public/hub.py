"""Public data sets as tasks, from the Hugging Face hub or from local files of the same schema.

A broken row is left out and named. Leaves out what the rows of each
data set mean (rows, gaia), and downloading by any other way than ``datasets.load_dataset``.
"""

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agentkit.records import DataError, Task
from agentkit.rows import numbered_rows
from agentkit.tasks.family import with_content_id
from agentkit.tasks.public.rows import SOURCES, Source
from agentkit.trajectories import verifier_kind
from agentkit.verifiers import MAX_ANSWER, MAX_CODE, verify
from agentkit.verifiers.programs import MAX_TESTS

MAX_PROMPT = 50_000  # characters
FILES = (".jsonl", ".json", ".parquet")
NumberedRows = Iterable[tuple[int, Any]]


def load(
    name: str, source: str | Path | None = None, *, limit: int | None = None
) -> tuple[list[Task], list[str]]:
    """Tasks of one of SOURCES, from the hub or from local files of the same schema, and a sentence for each
    broken row that is left out.

    ``source`` is a .jsonl, .json or .parquet file, or a folder with one named after the split. Of a data set
    that has several sources, ``limit`` tasks are shared evenly among them. Raises DataError for a hub that
    refuses and where no row is a task, RunError for a file that cannot be read.
    """
    spec = SOURCES[name]
    rows = (
        numbered_rows(local_file(Path(source), spec.split))
        if source
        else hub_rows(spec.path, spec.config, spec.split)
    )
    some = rows if spec.sources else itertools.islice(rows, limit)
    tasks, broken = to_tasks(some, partial(_task, spec, name), str(source or spec.path))
    return evenly(tasks, limit) if spec.sources else tasks, broken


def evenly(tasks: list[Task], limit: int | None) -> list[Task]:
    """At most so many tasks, as many of each family as can be, in their order."""
    seen: Counter[str] = Counter()
    turns = {}
    for task in tasks:
        turns[task.id] = seen[task.family] = seen[task.family] + 1
    kept = {task.id for task in sorted(tasks, key=lambda task: turns[task.id])[:limit]}
    return [task for task in tasks if task.id in kept]


def to_tasks(
    rows: NumberedRows, convert: Callable[[int, Any], Task], place: str
) -> tuple[list[Task], list[str]]:
    """Numbered rows as tasks with different ids and contents, and a sentence for each row that is none."""
    tasks: dict[str, Task] = {}
    contents: dict[str, int] = {}
    broken = []
    for number, row in rows:
        try:
            if isinstance(row, ValueError):
                raise DataError(str(row))
            task = convert(number, row)
            if task.id in tasks:
                raise DataError(f"its id {task.id[:60]!r} occurs twice")
            first = contents.setdefault(with_content_id(task).id, number)
            if first != number:
                raise DataError(f"it is the same task as row {first}")
            tasks[task.id] = task
        except DataError as error:
            broken.append(f"{place}, row {number}: {error}")
    if not tasks:
        first = "".join(f"; {sentence}" for sentence in broken[:1])
        raise DataError(f"{place} holds no usable task ({len(broken)} broken rows){first}")
    return list(tasks.values()), broken


def _task(spec: Source, name: str, number: int, row: Any) -> Task:
    try:
        task = spec.convert(row)
    except DataError:
        raise
    except Exception as error:  # a row may hold anything
        raise DataError(
            f"it does not fit the schema of {name} ({type(error).__name__}: {str(error)[:80]})"
        ) from None
    _check(task)
    return replace(
        task,
        id=f"{name}-{task.id or f'{spec.split}-{number:06d}'}",
        family=name if task.family == "custom" else task.family,
        split=spec.split,
        meta=task.meta | {"source": spec.path, "licence": spec.licence},
    )


def _check(task: Task) -> None:
    """Refuse texts of bad length, answers that fail their verifier, and tests that cannot be run."""
    kind = verifier_kind(task)
    question, answer = len(task.prompt.strip()), len(task.answer.strip())
    limit = MAX_CODE if kind == "code" else MAX_ANSWER
    if not 0 < question <= MAX_PROMPT:
        raise DataError(f"its question has {question} characters; 1 to {MAX_PROMPT} are allowed")
    without = kind == "code" and not task.answer  # tests may come without a program that passes them
    if not (0 < answer <= limit or without):
        raise DataError(f"its answer has {answer} characters; 1 to {limit} are allowed")
    # the others take their time, and may be too busy to say: the audit asks them
    if kind in ("exact", "numeric") and (score := verify(task, task.answer)).value != 1.0:
        raise DataError(f"its answer fails its own verifier: {score.why[:200]}")
    tests = task.verifier.get("tests", ())
    if len(tests) > MAX_TESTS:
        raise DataError(f"it has {len(tests)} tests; {MAX_TESTS} are allowed")
    try:
        json.dumps(tests, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"its tests hold a value that cannot be tested: {error}") from None


def hub_rows(path: str, config: str | None, split: str) -> NumberedRows:
    """Numbered rows of a data set on the hub. Raises DataError that says what to do."""
    from datasets import load_dataset

    try:
        rows = load_dataset(path, config, split=split)
    except Exception as error:  # the libraries raise many kinds
        said = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise DataError(
            f"{path} could not be loaded from the hub ({said}): go online (unset HF_HUB_OFFLINE); where it "
            f"is gated, accept its terms at https://huggingface.co/datasets/{path} and log in with 'hf auth "
            "login'; or pass the path of local files of the same schema"
        ) from None
    return enumerate(rows, start=1)


def local_file(path: Path, *names: str) -> Path:
    """A file, or that in a folder which has one of these names."""
    if not os.path.isdir(path):  # unlike Path's, false for a name that no file can have
        return path
    for file in (path / f"{name}{suffix}" for name in names for suffix in FILES):
        if file.exists():
            return file
    raise DataError(f"{path} holds no {names[-1]}.jsonl, .json or .parquet: name a file, or another folder")
