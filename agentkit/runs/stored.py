"""Trajectories and suites on disk: what was written is read back as it was, or an error says why not.

Leaves out writing files safely (files) and where they lie in a run (run).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentkit.records import RunError, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs.files import finite, parquet_rows, read_jsonl, write_jsonl, write_table

SPLITS = ("train", "validation", "test")
TEXTS = ("turns", "components")  # fields of a trajectory that are stored as JSON
TOKENS = ("prompt_ids", "completion_ids", "action_mask", "old_logprobs")


# ---- trajectories as Parquet
def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> Path:
    """Write trajectories as one Parquet file: token fields as lists, turns and components as JSON text."""
    import pyarrow as pa

    ids, text, number = pa.list_(pa.int32()), pa.string(), pa.float64()
    columns = {
        "task_id": text,
        "policy": text,
        "sample": pa.int32(),
        "seed": pa.int64(),
        "prompt_ids": ids,
        "completion_ids": ids,
        "action_mask": pa.list_(pa.int8()),
        "old_logprobs": pa.list_(pa.float32()),
        "turns": text,
        "stop_reason": text,
        "answer": text,
        "success": number,
        "why": text,
        "components": text,
        "reward": number,
        "advantage": number,
        "step": pa.int32(),
        "sandbox": text,
    }
    rows = [_trajectory_row(trajectory) for trajectory in trajectories]
    return write_table(path, pa.Table.from_pylist(rows, schema=pa.schema(columns)))


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read what write_trajectories wrote. Raises RunError when the file is missing or damaged."""
    what, way = "trajectory file", "Run the stage that writes it again"
    rows = parquet_rows(Path(path), what, way)
    try:
        return [trajectory_from(row | {k: json.loads(row[k]) for k in TEXTS}) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RunError(f"{path} is not a {what} ({why}). {way}.") from None


def _trajectory_row(trajectory: Trajectory) -> dict[str, Any]:
    row = {field.name: getattr(trajectory, field.name) for field in dataclasses.fields(Trajectory)}
    turns = [dataclasses.asdict(turn) for turn in trajectory.turns]
    row["turns"] = json.dumps(finite(turns), ensure_ascii=True)  # ASCII: a model may emit lone surrogates
    row["components"] = json.dumps(finite(trajectory.components))
    row["stop_reason"] = trajectory.stop_reason.value
    return {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in row.items()}


def trajectory_from(row: Mapping[str, Any]) -> Trajectory:
    """A trajectory from its fields as ``dataclasses.asdict`` and JSON give them.

    Raises:
        KeyError, TypeError, ValueError: a field is missing, unknown or of another form.
    """
    turns = tuple(
        Turn(t["text"], tuple(t["span"]), tuple(ToolResult(**r) for r in t["results"]), t["seconds"])
        for t in row["turns"]
    )
    tokens = {name: tuple(row[name]) for name in TOKENS}
    return Trajectory(**(row | tokens | {"turns": turns, "stop_reason": StopReason(row["stop_reason"])}))


# ---- tasks as JSON lines
def read_tasks(path: str | Path) -> list[Task]:
    """Read a suite's tasks.jsonl. A damaged line is an error: a suite with holes would shift every split."""
    rows = read_jsonl(path, tolerant=False)
    if problem := _suite_problem(rows):
        raise RunError(f"{path}: {problem}. Build the suite again with notebook 01.")
    return [Task(**(row | ({"tools": tuple(row["tools"])} if "tools" in row else {}))) for row in rows]


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> Path:
    """Write a suite's tasks.jsonl atomically. Raises RunError where ``read_tasks`` would not give it back."""
    tasks = list(tasks)
    if problem := _suite_problem(map(_task_row, tasks)):  # rows of 50,000 tasks are not held
        raise RunError(f"{path} is not written: {problem}. Mend the suite and save it again.")
    return write_jsonl(path, map(dataclasses.asdict, tasks))


def task_problem(task: Any) -> str | None:
    """Why something is no task that can be used and written, or None."""
    if not isinstance(task, Task):
        return f"it is of type {type(task).__name__}; return a Task"
    try:
        return _task_problem(_task_row(task))
    except RunError as error:
        return str(error)


def _suite_problem(rows: Iterable[dict]) -> str | None:
    """What is wrong with the rows of a suite, or None."""
    known = {field.name for field in dataclasses.fields(Task)}
    seen = set()
    for number, row in enumerate(rows, start=1):
        if missing := {"id", "prompt", "answer"} - row.keys():
            return f"task {number} lacks {sorted(missing)}"
        if unknown := row.keys() - known:
            return f"task {number} has unknown fields {sorted(unknown)}"
        if problem := _task_problem(row):
            return f"task {number} ({row['id']!r:.60}): {problem}"
        if row["id"] in seen:
            return f"task {row['id']} occurs twice"
        seen.add(row["id"])
    return None if seen else "it holds no task"


def _task_problem(row: dict) -> str | None:
    """What is wrong with a task's fields, or None."""
    for name in ("id", "prompt", "answer", "family", "difficulty", "split"):
        if not isinstance(row.get(name, ""), str):
            return f"{name} must be text"
    verifier = row.get("verifier", "")
    if isinstance(verifier, dict):
        verifier = verifier.get("kind")
    if not isinstance(verifier, str):
        return 'verifier must be text or an object with a "kind"'
    if row.get("split", "train") not in SPLITS:
        return f"split is {row['split']!r:.60}; it must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}"
    if not _texts(row.get("tools", [])):
        return "tools must be a list of names"
    meta = row.get("meta", {})
    if not isinstance(meta, dict):
        return "meta must be an object"
    if not _texts(meta.get("entities", [])):
        return "meta['entities'] must be a list of texts"
    plan = meta.get("plan", [])
    if not isinstance(plan, list | tuple) or not all(map(_is_step, plan)):
        step = {"tool": "calculator", "arguments": {"expression": "1 + 1"}}
        return f"meta['plan'] must be a list of steps such as {json.dumps(step)}"
    return None


def _texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


def _is_step(step: Any) -> bool:
    if not isinstance(step, dict):
        return False
    return isinstance(step.get("tool"), str) and isinstance(step.get("arguments"), dict)


def _task_row(task: Task) -> dict[str, Any]:
    """A task as it is written. Raises RunError where JSON would not give the same back."""
    try:
        row = dataclasses.asdict(task)
        json.dumps(row, allow_nan=False)
        odd = [key for key in _keys(row) if not isinstance(key, str)]
    except (TypeError, ValueError, RecursionError) as error:
        raise RunError(
            f"task {task.id!r:.60} cannot be written ({error}): give it values that JSON has."
        ) from None
    if odd:
        raise RunError(f"task {task.id!r:.60} cannot be written: the key {odd[0]!r:.60} must be text.")
    return row


def _keys(value: Any) -> Iterator[Any]:
    """The keys of every object in a value."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _keys(inner)
