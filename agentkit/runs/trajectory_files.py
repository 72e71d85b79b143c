"""Trajectories and suites on disk: what was written is read back as it was, or an error says why not.

What is read is checked against the records' own types, so that no later code meets a field of a wrong kind.
Leaves out writing files safely (files) and where they lie in a run (run).
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.records import DataError, RunError, Task, Trajectory
from agentkit.rows import decoded, parquet_rows, parse_json, prompt_of, read_rows
from agentkit.runs.files import finite, write_jsonl, write_table
from agentkit.runs.schemas import fault, read_as

TEXTS = ("turns", "components")  # fields of a trajectory that are stored as JSON
TOKENS = ("completion_ids", "action_mask", "old_logprobs")  # fields as long as each other
_FIELDS = tuple(field.name for field in dataclasses.fields(Trajectory))


# ---- trajectories as Parquet
def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> Path:
    """Write trajectories as one Parquet file: token fields as lists; turns, components and state as JSON."""
    import pyarrow as pa

    kinds: dict[str, Any] = dict.fromkeys(("success", "reward", "advantage"), pa.float64())
    kinds |= dict.fromkeys(("sample", "step"), pa.int32()) | {"seed": pa.int64()}
    kinds |= dict.fromkeys(("prompt_ids", "completion_ids"), pa.list_(pa.int32()))
    kinds |= {"action_mask": pa.list_(pa.int8()), "old_logprobs": pa.list_(pa.float32())}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in _FIELDS])
    return write_table(path, pa.Table.from_pylist(list(map(_row, trajectories)), schema=schema))


def _row(trajectory: Trajectory) -> dict[str, Any]:
    row = {name: getattr(trajectory, name) for name in _FIELDS}
    row["turns"] = json.dumps(finite([dataclasses.asdict(turn) for turn in trajectory.turns]))
    row["components"] = json.dumps(finite(trajectory.components))
    row["state"] = None if trajectory.state is None else json.dumps(finite(trajectory.state))
    row["stop_reason"] = trajectory.stop_reason.value
    # a model may emit lone surrogates, which UTF-8 lacks
    return {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in row.items()}


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read what write_trajectories wrote.

    Raises RunError where the file is missing, damaged, or of another version.
    """
    trajectories: list[Trajectory] = []
    for row in parquet_rows(Path(path)):
        try:
            texts = {name: parse_json(row[name]) for name in TEXTS}
            texts["state"] = parse_json(row.get("state") or "null")  # older files have none
            trajectories.append(trajectory_from(row | texts))
        except (ValueError, TypeError, KeyError) as error:
            why = " ".join(f"row {len(trajectories) + 1}: {error}".split())[:300]
            way = "run the stage that writes it again"
            raise RunError(f"{path} is not a trajectory file of this version ({why}): {way}") from None
    return trajectories


def trajectory_from(row: Mapping[str, Any]) -> Trajectory:
    """A trajectory from its fields as ``dataclasses.asdict`` and JSON give them.

    Raises ValueError where a field is missing, of another kind, or does not fit the others.
    """
    trajectory = read_as(Trajectory, row)
    length = len(trajectory.completion_ids)
    if any(len(getattr(trajectory, name)) != length for name in TOKENS):
        raise ValueError("its token fields differ in length")
    if any(not 0 <= begin <= end <= length for begin, end in (turn.span for turn in trajectory.turns)):
        raise ValueError(f"a turn spans more than its {length} completion tokens")
    return trajectory


# ---- tasks as JSON lines
_MEND = "Mend it, or, where a run made the file, build it again with notebook 01."


def read_tasks(path: str | Path) -> list[Task]:
    """Read a suite's tasks.jsonl, or the tasks of others. A broken row is an error: a suite with holes would
    shift every split.

    A row without an id is known by its place.
    """
    tasks = read_rows(path, _task)
    if twice := _twice(task.id for task in tasks):
        raise RunError(f"{path}: {twice}. {_MEND}")
    return tasks


def _task(row: dict[str, Any], place: str) -> Task:
    row = {"id": f"task-{place.rpartition(' ')[2]}"} | row
    row |= {name: decoded(row[name]) for name in ("verifier", "tools", "meta") if name in row}
    row |= {"prompt": prompt_of(row["prompt"])} if "prompt" in row else {}
    if problem := _row_problem(row):
        raise DataError(f"{problem}. {_MEND}")
    return Task(**(row | ({"tools": tuple(row["tools"])} if "tools" in row else {})))


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> Path:
    """Write a suite's tasks.jsonl atomically. Raises RunError where ``read_tasks`` would not give it back."""
    rows = [dataclasses.asdict(task) for task in tasks]
    if problem := _suite_problem(rows):
        raise RunError(f"{path} is not written: {problem}. Mend the suite and save it again.")
    return write_jsonl(path, rows)


def task_problem(task: Any) -> str | None:
    """Why something is no task that can be used and written, or None."""
    if not isinstance(task, Task):
        return f"it is of type {type(task).__name__}; return a Task"
    return _row_problem(dataclasses.asdict(task))


def _suite_problem(rows: Sequence[dict]) -> str | None:
    """What is wrong with the rows of a suite, or None."""
    for number, row in enumerate(rows, start=1):
        if problem := _row_problem(row):
            return f"task {number} ({row['id']!r:.60}): {problem}"
    return _twice(row["id"] for row in rows) if rows else "it holds no task"


def _twice(ids: Iterable[str]) -> str | None:
    often = [name for name, count in Counter(ids).items() if count > 1]
    return f"task {often[0]} occurs twice" if often else None


def _row_problem(row: dict) -> str | None:
    """Why a task's row is none, or cannot be written."""
    if missing := {"prompt", "answer"} - row.keys():
        return f"it lacks {sorted(missing)}, and has {sorted(row.keys() - {'id'})!s:.100}"
    if problem := fault("task", row):
        return f"{problem}; what is yours goes into meta" if "unknown key" in problem else problem
    try:
        json.dumps(row, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"it cannot be written ({error}): give it values that JSON has"
    return None
