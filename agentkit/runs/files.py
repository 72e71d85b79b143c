"""Files that are never half written: atomic JSON, JSONL and Parquet, trajectories and suites among them.

Files are written under a temporary name and renamed, so a reader never sees half a file. JSONL readers
survive a torn last line and say so. Leaves out where files lie in a run (run) and what they mean (evaluation,
diagnostics).
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentkit.records import RunError, StopReason, Task, ToolResult, Trajectory, Turn

SPLITS = ("train", "validation", "test")


# ---- files
# -----------------------------------------------------------------------------------------------------------
def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a file atomically (temporary name, fsync, rename), readable by its owner only."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp creates it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_json(path: str | Path, value: Any) -> Path:
    """Write JSON atomically. NaN and infinity become null, since JSON has neither."""
    return write_bytes(path, encode_json(value, indent=1))


def read_json(path: str | Path) -> Any:
    """Read one JSON file. Raises RunError naming the file when it is missing or damaged."""
    path = Path(path)
    try:
        return parse_json(_read_bytes(path))
    except ValueError as error:
        raise RunError(
            f"{path} is not valid JSON ({error}). Restore it or run the stage that writes it."
        ) from None


def parse_json(text: str | bytes) -> Any:
    """The value of JSON that anybody may have written. Raises ValueError where it is broken or nested too deeply."""
    try:
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path} does not exist. Run the notebook that writes it first.") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        why = getattr(error, "strerror", None) or error
        raise RunError(
            f"{path} cannot be read ({why}). Restore it or run the stage that writes it."
        ) from None


def encode_json(value: Any, indent: int | None = None) -> bytes:
    """JSON as UTF-8 with a line end; text with lone surrogates, which UTF-8 lacks, is escaped."""
    try:
        return (json.dumps(_finite(value), indent=indent, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(_finite(value), indent=indent) + "\n").encode()


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> Path:
    """Write one JSON object a line, atomically."""
    return write_bytes(path, b"".join(map(encode_json, rows)))


def append_jsonl(path: str | Path, row: dict) -> None:
    """Append one line with one write and fsync, so that a kill leaves at most a torn last line.

    Any number of processes and threads may append to one file: they take turns, and the lock of one that is
    killed is free at once. A torn tail left by a kill is closed off first, so that it cannot swallow this
    line.

    Raises:
        OSError: the disk took none or only part of the line, such as when it is full; the file is then as it
            was before.
    """
    path, line = Path(path), encode_json(row)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(
            handle, fcntl.LOCK_EX
        )  # else a tear between the look at the tail and the write would swallow the line
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        line = b"\n" + line if torn else line
        if os.write(handle, line) != len(line):
            os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, "the disk took only part of a line, which was taken back", str(path))
        os.fsync(handle)
    finally:
        os.close(handle)


def cut_jsonl(path: str | Path, step: int) -> int:
    """Keep the rows up to an optimiser step, as when training goes on from there; how many lines went."""
    path = Path(path)
    if not path.exists():
        return 0
    lines = [line for line in _read_bytes(path).split(b"\n") if line.strip()]
    kept = [line for line in lines if _step(line) <= step]
    if len(kept) < len(lines):
        write_bytes(path, b"".join(line + b"\n" for line in kept))
    return len(lines) - len(kept)


def _step(line: bytes) -> float:
    """The step of a JSON line: 0 where it has none, infinity where it is torn."""
    try:
        row = parse_json(line)
    except ValueError:
        return float("inf")
    found = row.get("step", 0) if isinstance(row, dict) else None
    return found if isinstance(found, int | float) else 0


def read_jsonl(path: str | Path, *, tolerant: bool = True) -> list[dict]:
    """Read JSON objects, one a line.

    Args:
        path: the file.
        tolerant: drop a torn line with a warning, as a killed writer leaves one; otherwise any bad line is an error.

    Raises:
        RunError: the file cannot be read, or (when not tolerant) a line is not a JSON object in UTF-8.
    """
    rows = []
    for number, row in _lines(Path(path)):
        if isinstance(row, dict):
            rows.append(row)
        elif tolerant:
            warnings.warn(f"{path}, line {number} is torn and was left out ({row}).", stacklevel=2)
        else:
            raise RunError(f"{path}, line {number} is damaged: {row}. Rebuild it, or remove that line.")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, dict | ValueError]]:
    """The object on each line that is not blank, with the line's number, or why there is none."""
    for number, line in enumerate(
        _read_bytes(path).split(b"\n"), start=1
    ):  # bytes: a kill may cut a character
        if not line.strip():
            continue
        try:
            yield number, _object(parse_json(line))
        except ValueError as error:
            yield number, ValueError(f"it is not valid JSON ({error})")


def _object(value: Any) -> dict | ValueError:
    return value if isinstance(value, dict) else ValueError(f"it is {type(value).__name__}, not an object")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def write_table(path: str | Path, table: Any) -> Path:
    """Write a pyarrow table as Parquet, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return write_bytes(path, sink.getvalue().to_pybytes())


def numbered_rows(path: str | Path) -> Iterator[tuple[int, dict | ValueError]]:
    """The rows of a .jsonl, .json or .parquet file that others wrote, numbered from 1; a broken one as its fault.

    Raises:
        RunError: the file as a whole is missing, damaged or of another form.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        yield from _lines(path)
        return
    if path.suffix == ".json":
        rows = read_json(path)
        rows = rows.get("data") if isinstance(rows, dict) else rows
    elif path.suffix == ".parquet":
        rows = _parquet_rows(path)
    else:
        raise RunError(f"{path} is no .jsonl, .json or .parquet file. Name another one.")
    if not isinstance(rows, list):
        raise RunError(f"{path} must hold a list of objects. Name another file.")
    yield from enumerate(map(_object, rows), start=1)


def read_rows(path: str | Path) -> list[dict]:
    """All rows of such a file. Raises RunError where one of them is broken, too."""
    rows = []
    for number, row in numbered_rows(path):
        if isinstance(row, ValueError):
            raise RunError(f"{path}, row {number}: {row}. Mend it, or remove it.")
        rows.append(row)
    return rows


def _parquet_rows(path: Path, **options: Any) -> list[dict]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = _read_bytes(path)
    try:
        return pq.read_table(pa.BufferReader(data), **options).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RunError(
            f"{path} is not a readable Parquet file ({' '.join(str(error).split())[:160]}). Copy it again."
        ) from None


def digest(path: str | Path) -> str:
    """SHA-256 of a file, first 16 hex digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


# ---- trajectories as Parquet
# -----------------------------------------------------------------------------------------
def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> Path:
    """Write trajectories as one Parquet file: token fields as lists, turns and components as JSON text."""
    import pyarrow as pa

    return write_table(
        path, pa.Table.from_pylist([_trajectory_row(t) for t in trajectories], schema=_trajectory_schema())
    )


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read trajectories written by write_trajectories. Raises RunError when the file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    source = pa.BufferReader(_read_bytes(path))
    try:
        return [
            _row_trajectory(row) for row in pq.read_table(source, page_checksum_verification=True).to_pylist()
        ]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RunError(
            f"{path} is not a trajectory file ({why}). Run the stage that writes it again."
        ) from None


def _trajectory_schema() -> Any:
    import pyarrow as pa

    ids, floats = pa.list_(pa.int32()), pa.list_(pa.float32())
    columns = {"task_id": pa.string(), "policy": pa.string(), "sample": pa.int32(), "seed": pa.int64()}
    columns |= {
        "prompt_ids": ids,
        "completion_ids": ids,
        "action_mask": pa.list_(pa.int8()),
        "old_logprobs": floats,
    }
    columns |= {
        "turns": pa.string(),
        "stop_reason": pa.string(),
        "answer": pa.string(),
        "success": pa.float64(),
    }
    columns |= {
        "why": pa.string(),
        "components": pa.string(),
        "reward": pa.float64(),
        "advantage": pa.float64(),
    }
    return pa.schema(columns | {"step": pa.int32(), "sandbox": pa.string()})


def _trajectory_row(trajectory: Trajectory) -> dict:
    row = {f.name: getattr(trajectory, f.name) for f in dataclasses.fields(Trajectory)}
    turns = [dataclasses.asdict(turn) for turn in trajectory.turns]
    row["turns"] = json.dumps(_finite(turns), ensure_ascii=True)  # ASCII: a model may emit lone surrogates
    row["components"] = json.dumps(_finite(trajectory.components))
    row["stop_reason"] = trajectory.stop_reason.value
    return {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in row.items()}


def _row_trajectory(row: dict) -> Trajectory:
    return trajectory_from(row | {name: json.loads(row[name]) for name in ("turns", "components")})


def trajectory_from(row: Mapping[str, Any]) -> Trajectory:
    """A trajectory from its fields as ``dataclasses.asdict`` and JSON give them. Raises KeyError, TypeError
    or ValueError.
    """
    turns = tuple(
        Turn(t["text"], tuple(t["span"]), tuple(ToolResult(**r) for r in t["results"]), t["seconds"])
        for t in row["turns"]
    )
    tokens = {
        name: tuple(row[name]) for name in ("prompt_ids", "completion_ids", "action_mask", "old_logprobs")
    }
    return Trajectory(**(row | tokens | {"turns": turns, "stop_reason": StopReason(row["stop_reason"])}))


# ---- tasks
# -----------------------------------------------------------------------------------------------------------
def read_tasks(path: str | Path) -> list[Task]:
    """Read a suite's tasks.jsonl. Any damaged line is an error: a suite with holes would shift every split."""
    rows = read_jsonl(path, tolerant=False)
    if problem := _suite_problem(rows):
        raise RunError(f"{path}: {problem}. Build the suite again with notebook 01.")
    return [Task(**(row | ({"tools": tuple(row["tools"])} if "tools" in row else {}))) for row in rows]


def _suite_problem(rows: Iterable[dict]) -> str | None:
    """What is wrong with the rows of a suite, or None."""
    fields = {f.name: f for f in dataclasses.fields(Task)}
    required = {
        n
        for n, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    seen = set()
    for number, row in enumerate(rows, start=1):
        missing, unknown = required - row.keys(), row.keys() - fields.keys()
        if missing or unknown:
            return f"task {number} " + (
                f"lacks {sorted(missing)}" if missing else f"has unknown fields {sorted(unknown)}"
            )
        if problem := _task_problem(row):
            return f"task {number} ({row['id']!r:.60}): {problem}"
        if row["id"] in seen:
            return f"task {row['id']} occurs twice"
        seen.add(row["id"])
    return None if seen else "it holds no task"


def _task_problem(row: dict) -> str | None:
    """What is wrong with a task's fields, or None."""
    for name in ("id", "prompt", "answer", "family", "difficulty", "split"):
        if name in row and not isinstance(row[name], str):
            return f"{name} must be text"
    verifier, tools = row.get("verifier", ""), row.get("tools", [])
    if not isinstance(verifier, str) and not (
        isinstance(verifier, dict) and isinstance(verifier.get("kind"), str)
    ):
        return 'verifier must be text or an object with a "kind"'
    if row.get("split", "train") not in SPLITS:
        return f"split is {row['split']!r:.60}; it must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}"
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, str) for tool in tools):
        return "tools must be a list of names"
    meta = row.get("meta", {})
    if not isinstance(meta, dict):
        return "meta must be an object"
    entities, plan = meta.get("entities", []), meta.get("plan", [])
    if not isinstance(entities, list | tuple) or not all(isinstance(entity, str) for entity in entities):
        return "meta['entities'] must be a list of texts"
    if not isinstance(plan, list | tuple) or not all(map(_is_step, plan)):
        return 'meta[\'plan\'] must be a list of steps such as {"tool": "calculator", "arguments": {"expression": "1 + 1"}}'
    return None


def _is_step(step: Any) -> bool:
    return (
        isinstance(step, dict)
        and isinstance(step.get("tool"), str)
        and isinstance(step.get("arguments"), dict)
    )


def task_problem(task: Any) -> str | None:
    """Why something is no task that can be used and written, or None."""
    if not isinstance(task, Task):
        return f"it is of type {type(task).__name__}; return a Task"
    try:
        return _task_problem(_task_row(task))
    except RunError as error:
        return str(error)


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> Path:
    """Write a suite's tasks.jsonl atomically. Raises RunError and writes nothing where ``read_tasks`` would
    not give it back.
    """
    tasks = list(tasks)
    if problem := _suite_problem(
        map(_task_row, tasks)
    ):  # a pass of its own: rows of 50,000 tasks are not held
        raise RunError(f"{path} is not written: {problem}. Mend the suite and save it again.")
    return write_jsonl(path, map(dataclasses.asdict, tasks))


def _task_row(task: Task) -> dict:
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
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for inner in value:
        yield from _keys(inner)
