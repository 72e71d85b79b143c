"""Files that are never half written: atomic JSON, JSONL and Parquet.

Files are written under a temporary name and renamed, so a reader never sees half a file. Leaves out reading
them (rows), trajectories and suites (trajectory_files), and where files lie in a run (run).
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from agentkit.nano import DATA, NANO
from agentkit.recipe import project_root
from agentkit.records import AgentkitError, DiskError, RunError
from agentkit.rows import json_lines, read_bytes, read_json

MANIFEST, ADAPTER = "run.json", "adapter_config.json"


def model_path(model: str) -> str:
    """The folder or hub name behind a recipe's ``model``: "nano" is the agent that ships, and a folder is the
    project's where it is not here.
    """
    folder = DATA if model == NANO else project_root() / model
    return model if model != NANO and (os.path.isdir(model) or not folder.is_dir()) else str(folder)


def adapter_base(model: str) -> str:
    """The model that the LoRA adapter in the folder ``model`` was trained on; "" where that is no adapter.

    Raises FileNotFoundError where that is no whole model.
    """
    about = Path(model_path(model)) / ADAPTER
    if not _is_adapter(model):
        return ""
    found = read_json(about)
    base = found.get("base_model_name_or_path") if isinstance(found, dict) else None
    way = "write its folder or hub name there, as base_model_name_or_path"
    if not isinstance(base, str) or not base:
        raise FileNotFoundError(f"{model} is a LoRA adapter, and {about} does not say of which model: {way}")
    if _is_adapter(base):
        raise FileNotFoundError(
            f"{model} is a LoRA adapter, and {about} names {base}, which is no whole model but an adapter "
            f"too: merge that one with its model first, and {way}"
        )
    if _on_cold_start(about.parent):
        run = about.parents[1]
        raise FileNotFoundError(
            f"{model} is half of what its run trained, and the other half is the cold start under it: run "
            f"agentkit merge {run}, then set model: {run / 'merged'}"
        )
    return base


def _is_adapter(model: str) -> bool:
    folder = Path(model_path(model))
    return (folder / ADAPTER).is_file() and not (folder / "config.json").is_file()


def _on_cold_start(adapter: Path) -> bool:
    """Whether a run trained this adapter on top of another one."""
    manifest = adapter.parent / MANIFEST
    found = read_json(manifest) if manifest.is_file() and adapter.name != "sft" else {}
    return isinstance(found, dict) and bool(dict(found.get("recipe") or {}).get("sft"))


def user_cache(name: str) -> Path:
    """A file or folder in agentkit's part of the user's cache folder; nothing is made."""
    root = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if root.startswith("~"):  # a user without a name, as containers have
        raise DiskError("this user has no home: set HOME, or XDG_CACHE_HOME, to a folder that can be written")
    return Path(root) / "agentkit" / name


@contextmanager
def alone(path: Path, doing: str, patience_s: float = 0.0) -> Iterator[None]:
    """Hold a lock file; a killed process loses it. Raises RunError where another one holds it longer."""
    until = time.monotonic() + patience_s
    with os.fdopen(append_to(path), "a+") as lock:
        while not _taken(lock):
            if time.monotonic() > until:
                lock.seek(0)
                way = "wait for it, stop it, or name another folder"
                raise RunError(f"process {lock.read(20).strip()} is {doing}: {way}")
            time.sleep(0.2)
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        yield


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Makes the folder of a file that is written. Raises DiskError with the file where the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield
    except AgentkitError:
        raise
    except Exception as error:  # libraries have errors of their own for a full disk
        if not isinstance(error, OSError) and not re.search("os error|No space left", str(error)):
            raise
        why = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        way = "make room there, or name another folder; the same command goes on from what is kept"
        raise DiskError(f"{path} cannot be written ({why}): {way}") from None


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a file atomically (temporary name, fsync, rename), readable by its owner only."""
    path = Path(path)
    with writing(path):
        # mkstemp creates it 0600
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:200]}.")
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


def append_to(path: Path) -> int:
    """A descriptor to append to a file, made private where it is missing; else DiskError."""
    with writing(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)


def encode_json(value: Any, indent: int | None = None) -> bytes:
    """JSON as UTF-8 with a line end; lone surrogates, which UTF-8 lacks, are escaped as JSON has it."""
    text = json.dumps(finite(value), indent=indent, ensure_ascii=False)
    return f"{text}\n".encode("utf-8", "backslashreplace")


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> Path:
    """Write one JSON object a line, atomically."""
    return write_bytes(path, b"".join(map(encode_json, rows)))


def append_jsonl(path: str | Path, row: dict) -> None:
    """Append one line with one write and fsync, so that a kill leaves at most a torn last line.

    Any number of processes and threads may append to one file: they take turns, and the lock of one that is
    killed is free at once. A torn tail left by a kill is closed off first, so that it cannot swallow this
    line.

    Raises:
        DiskError: the disk took none or only part of the line, such as when it is full; the file is then as
            it was before.
    """
    path, line = Path(path), encode_json(row)
    with writing(path), os.fdopen(append_to(path), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # else a tear after the look at the tail swallows the line
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(file.fileno(), line) != len(line):
            os.ftruncate(file.fileno(), size)
            raise OSError(errno.ENOSPC, "No space left for the whole line, which was taken back")
        os.fsync(file.fileno())


def cut_jsonl(path: str | Path, step: int) -> int:
    """Keep the rows up to an optimiser step, as when training goes on from there; how many lines went."""
    path = Path(path)
    rows = [row for _, row in json_lines(path)] if path.exists() else []
    kept = [row for row in rows if isinstance(row, dict) and not (row.get("step") or 0) > step]
    if len(kept) < len(rows):
        write_jsonl(path, kept)
    return len(rows) - len(kept)


def finite(value: Any) -> Any:
    """The value with text as keys, and null for NaN and infinity, which JSON lacks."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def write_table(path: str | Path, table: Any) -> Path:
    """Write a pyarrow table as Parquet, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return write_bytes(path, sink.getvalue().to_pybytes())


def steps(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first, sound or not."""
    numbered = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()]
    return sorted(numbered, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name[11:])


def digest(path: str | Path) -> str:
    """SHA-256 of a file, first 16 hex digits. Raises RunError where it cannot be read."""
    return hashlib.sha256(read_bytes(Path(path))).hexdigest()[:16]
