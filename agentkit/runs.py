"""A run's folder: where it lies, its manifest, and atomic reading and writing of everything in it.

Files are written under a temporary name and renamed, so a reader never sees half a file. JSONL readers survive a torn
last line and say so. Leaves out: what the files mean (evaluation, diagnostics) and how notebooks are executed (cli).
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn

MANIFEST = "run.json"
SECTIONS = ("recipe", "stages", "hashes", "versions", "git")  # of the manifest, each a mapping
SPLITS = ("train", "validation", "test")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VERSIONED = ("agentkit", "torch", "transformers", "trl", "peft", "datasets", "accelerate", "plotly", "papermill")


class RunError(RuntimeError):
    """A run folder or a file in it is missing, damaged or badly named. The message says what to do."""


# ---- files -----------------------------------------------------------------------------------------------------------
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
    return write_bytes(path, _encoded(value, indent=1))


def read_json(path: str | Path) -> Any:
    """Read one JSON file. Raises RunError naming the file when it is missing or damaged."""
    path = Path(path)
    try:
        return json.loads(_read_bytes(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not valid JSON ({error}). Restore it or run the stage that writes it.") from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path} does not exist. Run the notebook that writes it first.") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        why = getattr(error, "strerror", None) or error
        raise RunError(f"{path} cannot be read ({why}). Restore it or run the stage that writes it.") from None


def _encoded(value: Any, indent: int | None = None) -> bytes:
    """JSON as UTF-8 with a line end; text with lone surrogates, which UTF-8 lacks, is escaped."""
    try:
        return (json.dumps(_finite(value), indent=indent, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(_finite(value), indent=indent) + "\n").encode()


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> Path:
    """Write one JSON object a line, atomically."""
    return write_bytes(path, b"".join(map(_encoded, rows)))


def append_jsonl(path: str | Path, row: dict) -> None:
    """Append one line with one write and fsync, so that a kill leaves at most a torn last line.

    Any number of processes and threads may append to one file: they take turns, and the lock of one that is killed is free at
    once. A torn tail left by a kill is closed off first, so that it cannot swallow this line.

    Raises:
        OSError: the disk took none or only part of the line, such as when it is full; the file is then as it was before.
    """
    path, line = Path(path), _encoded(row)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # else a tear between the look at the tail and the write would swallow the line
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
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return float("inf")
    found = row.get("step", 0) if isinstance(row, dict) else None
    return found if isinstance(found, int | float) else 0


def read_jsonl(path: str | Path, *, tolerant: bool = True) -> list[dict]:
    """Read JSON objects, one a line.

    Args:
        path: the file.
        tolerant: drop a torn line with a warning, as a killed writer leaves one; otherwise any bad line is an error.

    Raises:
        RunError: the file is missing or cannot be read, or (when not tolerant) a line is not a JSON object in UTF-8.
    """
    path, rows = Path(path), []
    for number, line in enumerate(_read_bytes(path).split(b"\n"), start=1):  # bytes: a kill may cut inside a character
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
            if not isinstance(row, dict):
                raise ValueError(f"expected an object, found {type(row).__name__}")
        except (ValueError, RecursionError) as error:
            if not tolerant:
                raise RunError(f"{path}, line {number} is damaged: {error}. Rebuild it, or remove that line.") from None
            warnings.warn(f"{path}, line {number} is torn and was left out ({error}).", stacklevel=2)
            continue
        rows.append(row)
    return rows


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


def read_rows(path: str | Path) -> list[dict]:
    """The rows of a .jsonl, .json or .parquet file that others wrote.

    Raises:
        RunError: the file is missing or damaged, or holds anything but objects.
    """
    path = Path(path)
    if not path.exists():
        raise RunError(f"{path} does not exist. Name a .parquet, .jsonl or .json file.")
    if path.suffix == ".jsonl":
        return read_jsonl(path, tolerant=False)
    rows = read_json(path) if path.suffix == ".json" else _parquet_rows(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RunError(f"{path} must hold a list of objects. Name another file.")
    return rows


def _parquet_rows(path: Path, **options: Any) -> list[dict]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = _read_bytes(path)
    try:
        return pq.read_table(pa.BufferReader(data), **options).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RunError(f"{path} is not a readable Parquet file ({' '.join(str(error).split())[:160]}). Copy it again.") from None


def digest(path: str | Path) -> str:
    """SHA-256 of a file, first 16 hex digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


# ---- trajectories as Parquet -----------------------------------------------------------------------------------------
def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> Path:
    """Write trajectories as one Parquet file: token fields as lists, turns and components as JSON text."""
    import pyarrow as pa

    return write_table(path, pa.Table.from_pylist([_trajectory_row(t) for t in trajectories], schema=_trajectory_schema()))


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read trajectories written by write_trajectories. Raises RunError when the file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    source = pa.BufferReader(_read_bytes(path))
    try:
        return [_row_trajectory(row) for row in pq.read_table(source, page_checksum_verification=True).to_pylist()]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RunError(f"{path} is not a trajectory file ({why}). Run the stage that writes it again.") from None


def _trajectory_schema() -> Any:
    import pyarrow as pa

    ids, floats = pa.list_(pa.int32()), pa.list_(pa.float32())
    columns = {"task_id": pa.string(), "policy": pa.string(), "sample": pa.int32(), "seed": pa.int64()}
    columns |= {"prompt_ids": ids, "completion_ids": ids, "action_mask": pa.list_(pa.int8()), "old_logprobs": floats}
    columns |= {"turns": pa.string(), "stop_reason": pa.string(), "answer": pa.string(), "success": pa.float64()}
    columns |= {"why": pa.string(), "components": pa.string(), "reward": pa.float64(), "advantage": pa.float64()}
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
    """A trajectory from its fields as ``dataclasses.asdict`` and JSON give them. Raises KeyError, TypeError or ValueError."""
    turns = tuple(
        Turn(t["text"], tuple(t["span"]), tuple(ToolResult(**r) for r in t["results"]), t["seconds"]) for t in row["turns"]
    )
    tokens = {name: tuple(row[name]) for name in ("prompt_ids", "completion_ids", "action_mask", "old_logprobs")}
    return Trajectory(**(row | tokens | {"turns": turns, "stop_reason": StopReason(row["stop_reason"])}))


# ---- tasks -----------------------------------------------------------------------------------------------------------
def read_tasks(path: str | Path) -> list[Task]:
    """Read a suite's tasks.jsonl. Any damaged line is an error: a suite with holes would shift every split."""
    rows = read_jsonl(path, tolerant=False)
    if problem := _suite_problem(rows):
        raise RunError(f"{path}: {problem}. Build the suite again with notebook 01.")
    return [Task(**(row | ({"tools": tuple(row["tools"])} if "tools" in row else {}))) for row in rows]


def _suite_problem(rows: Iterable[dict]) -> str | None:
    """What is wrong with the rows of a suite, or None."""
    fields = {f.name: f for f in dataclasses.fields(Task)}
    required = {n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}
    seen = set()
    for number, row in enumerate(rows, start=1):
        missing, unknown = required - row.keys(), row.keys() - fields.keys()
        if missing or unknown:
            return f"task {number} " + (f"lacks {sorted(missing)}" if missing else f"has unknown fields {sorted(unknown)}")
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
    if not isinstance(verifier, str) and not (isinstance(verifier, dict) and isinstance(verifier.get("kind"), str)):
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
    return isinstance(step, dict) and isinstance(step.get("tool"), str) and isinstance(step.get("arguments"), dict)


def task_problem(task: Any) -> str | None:
    """Why something is no task that can be used and written, or None."""
    if not isinstance(task, Task):
        return f"it is of type {type(task).__name__}; return a Task"
    try:
        return _task_problem(_task_row(task))
    except RunError as error:
        return str(error)


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> Path:
    """Write a suite's tasks.jsonl atomically. Raises RunError and writes nothing where ``read_tasks`` would not give it back."""
    tasks = list(tasks)
    if problem := _suite_problem(map(_task_row, tasks)):  # a pass of its own: rows of 50,000 tasks are not held
        raise RunError(f"{path} is not written: {problem}. Mend the suite and save it again.")
    return write_jsonl(path, map(dataclasses.asdict, tasks))


def _task_row(task: Task) -> dict:
    try:
        row = dataclasses.asdict(task)
        json.dumps(row, allow_nan=False)
        odd = [key for key in _keys(row) if not isinstance(key, str)]
    except (TypeError, ValueError, RecursionError) as error:
        raise RunError(f"task {task.id!r:.60} cannot be written ({error}): give it values that JSON has.") from None
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


# ---- the run ---------------------------------------------------------------------------------------------------------
def check_name(name: str) -> str:
    """Return a run name, or raise RunError: letters, digits, dot, dash and underscore, at most 100, no leading dot."""
    if not _NAME.fullmatch(name):
        raise RunError(f"run name {name[:40]!r} is refused: use letters, digits, '.', '_' and '-', at most 100 characters.")
    return name


def project_root(start: str | Path | None = None) -> Path:
    """The nearest folder at or above ``start`` that holds notebooks/ and params/, else ``start`` itself."""
    start = Path(start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "notebooks").is_dir() and (folder / "params").is_dir():
            return folder
    return start


def default_folder() -> Path:
    """Where a notebook writes when no run is named: the folder papermill writes it to, else outputs/lab."""
    return _papermill_output_folder() or project_root() / "outputs" / "lab"


def _papermill_output_folder() -> Path | None:
    """Papermill tells its kernel nothing about the output path, so read it from the parent's command line."""
    import psutil  # comes with ipykernel

    try:
        parent = psutil.Process().parent()
        words, folder = (parent.cmdline(), parent.cwd()) if parent else ([], "")
    except psutil.Error:
        return None
    notebooks = [word for word in words if word.endswith(".ipynb")]
    if len(notebooks) < 2 or not any("papermill" in word for word in words[:4]):
        return None
    return (Path(folder) / notebooks[1]).resolve().parent


class Run:
    """One folder under outputs/. Opening one creates nothing; ``create`` makes the folder and its manifest."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        for part in self.path.parts[:-1]:
            if "\0" in part or len(part.encode("utf-8", "replace")) > 255:
                raise RunError(f"run folder {str(path)[:80]!r} is refused: no file system holds the name {part[:40]!r}.")
        check_name(self.path.name)

    @classmethod
    def create(cls, path: str | Path) -> Run:
        """Make the folder (0700) and run.json where they are missing; an existing run is kept as it is."""
        run = cls(path)
        try:
            run.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            run.path.chmod(0o700)
        except OSError as error:
            raise RunError(f"{run.path} cannot be made a run folder ({error.strerror}). Choose another folder.") from None
        if not (run.path / MANIFEST).exists():
            write_json(run.path / MANIFEST, {"created": _now()} | {name: {} for name in SECTIONS})
        return run

    def file(self, *parts: str) -> Path:
        """A path inside the run."""
        return self.path.joinpath(*parts)

    @property
    def manifest(self) -> dict:
        """run.json: recipe as used, versions, git state, data hashes, stage status and timings."""
        found, path = read_json(self.path / MANIFEST), self.path / MANIFEST
        sections = [found.setdefault(name, {}) for name in SECTIONS] if isinstance(found, dict) else [None]
        if all(isinstance(section, dict) for section in sections):
            entries = found["stages"].values()
            if all(isinstance(entry, dict) and isinstance(entry.get("parameters", {}), dict) for entry in entries):
                return found
        raise RunError(f"{path} is no run manifest: a part of it is of the wrong type. Move it away and run the stages again.")

    def update(self, **sections: dict) -> None:
        """Merge sections into run.json, one level deep."""
        manifest = self.manifest
        for name, values in sections.items():
            manifest[name] = manifest.get(name, {}) | values
        write_json(self.path / MANIFEST, manifest)

    def begin(self, name: str, recipe: dict, inputs: Iterable[str] = ()) -> None:
        """Mark a stage as running. Raises RunError when a file it needs is missing."""
        for needed in inputs:
            if not self.file(needed).exists():
                raise RunError(f"{name} needs {self.file(needed)}, which does not exist. {_producer(needed)}")
        entry = {"status": "running", "started": _now(), "_clock": time.time(), "parameters": recipe}
        if self.manifest["stages"].get(name, {}).get("status", "done") != "done":
            entry["interrupted"] = True  # so it goes on from where an earlier attempt was stopped
        self.update(recipe=recipe, versions=versions(), git=git_state(), stages={name: entry})

    def end(self, name: str, status: str = "done", **extra: Any) -> None:
        """Mark a stage as done (or failed), with its seconds, and make every file of the run private."""
        stage = dict(self.manifest["stages"].get(name, {}))
        started = stage.pop("_clock", time.time())
        self.update(stages={name: stage | {"status": status, "seconds": round(time.time() - started, 1)} | extra})
        hashes = {f: digest(self.file(f)) for f in ("tasks.jsonl", "adapter/adapter_model.safetensors") if self.file(f).exists()}
        self.update(hashes=hashes)
        secure(self.path)

    @cached_property
    def tasks(self) -> list[Task]:
        """The suite of this run."""
        return read_tasks(self.file("tasks.jsonl"))

    @property
    def metrics(self) -> Any:
        """train/metrics.jsonl as a pandas DataFrame, one row a step."""
        import pandas as pd

        return pd.DataFrame(read_jsonl(self.file("train", "metrics.jsonl")))

    def trajectories(self, which: int | str) -> list[Trajectory]:
        """Training trajectories of a step (int), or the evaluation trajectories of a policy (str)."""
        if isinstance(which, str):
            return read_trajectories(self.file("eval", f"{check_name(which)}.parquet"))
        return read_trajectories(self.file("train", "trajectories", f"step_{which:05d}.parquet"))

    @property
    def steps(self) -> list[int]:
        """Training steps whose trajectories are stored."""
        stems = (p.stem.removeprefix("step_") for p in self.file("train", "trajectories").glob("step_*.parquet"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    @property
    def comparison(self) -> dict:
        """comparison.json."""
        return read_json(self.file("comparison.json"))


def load_run(path: str | Path) -> Run:
    """Open a finished or running run. Raises RunError when there is none at ``path``."""
    run = Run(path)
    if not (run.path / MANIFEST).exists():
        raise RunError(f"there is no run at {run.path} (no {MANIFEST}). Start one with notebook 01 or 'agentkit run'.")
    return run


def secure(folder: str | Path) -> None:
    """Make a run folder private: folders 0700, files 0600. Links are left alone."""
    for root, folders, files in os.walk(folder):
        for name, mode in [(f, 0o700) for f in folders] + [(f, 0o600) for f in files]:
            path = Path(root) / name
            if not path.is_symlink() and path.exists() and (path.stat().st_mode & 0o777) != mode:
                path.chmod(mode)


def versions() -> dict[str, str]:
    """Versions of Python and the packages that shape a result; absent ones are left out."""
    found = {"python": sys.version.split()[0]}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any]:
    """Commit and whether the tree was dirty, or nothing outside a git checkout."""
    root = project_root()
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10)
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {"commit": commit.stdout.strip(), "dirty": bool(dirty.stdout.strip())} if commit.returncode == 0 else {}


def _producer(needed: str) -> str:
    notebook = {"tasks.jsonl": "01_tasks", "baseline.json": "02_baseline", "sft": "02_baseline", "adapter": "03_grpo"}
    for prefix, name in (notebook | {"train": "03_grpo", "eval": "05_compare"}).items():
        if needed.startswith(prefix):
            return f"Run notebook {name} for this run first."
    return "Run the notebook that writes it first."


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
