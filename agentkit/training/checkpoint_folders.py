"""Checkpoints as folders on disk: each is there as a whole or not at all, and proves that it is unharmed.

A checkpoint is filled under a temporary name, its files are hashed into a manifest and brought to the disk,
and only then it is renamed to checkpoint-N, N the optimiser step. Also: what an earlier training left in
train/ is cut back or set aside. Leaves out what a checkpoint holds (resume).
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from agentkit.runs import Run, RunError, cut_jsonl, secure, write_json
from agentkit.runs.files import step_of, steps

MANIFEST = "manifest.json"
KEEP = 2  # the newest, and one to fall back to


class CheckpointError(RunError):
    """A checkpoint is damaged or does not fit. The message says what is wrong with it."""


def begin(folder: Path, step: int) -> Path:
    """An empty folder to fill with the checkpoint of a step; what a killed writer left there is removed."""
    for left in folder.glob(".checkpoint-*"):
        shutil.rmtree(left, ignore_errors=True)
    new = folder / f".checkpoint-{step}"
    new.mkdir(parents=True, mode=0o700)
    return new


def commit(new: Path, about: Mapping[str, Any]) -> Path:
    """Turn a filled folder into a checkpoint and remove all but the newest ``KEEP``.

    Args:
        new: what ``begin`` gave.
        about: goes into the manifest; JSON values.
    """
    names = sorted(str(path.relative_to(new)) for path in new.rglob("*") if path.is_file())
    manifest = {"about": dict(about), "files": {name: _digest(new / name) for name in names}}
    write_json(new / MANIFEST, manifest | {"sha256": _seal(manifest)})
    secure(new)
    for path in [*new.rglob("*"), new]:
        _sync(path)
    final, folder = new.with_name(new.name[1:]), new.parent
    if final.exists():  # of an earlier attempt that got no further than being damaged
        final.rename(new.with_name(f"{new.name}.old"))
    new.rename(final)
    _sync(folder)
    for old in [*folder.glob(".checkpoint-*"), *steps(folder)[KEEP:]]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def verify(path: Path) -> dict[str, Any]:
    """What the manifest says about a checkpoint all of whose files are as they were written.

    Raises:
        CheckpointError: a file is missing or changed, or the manifest is.
    """
    try:
        with open(path / MANIFEST, "rb") as file:
            manifest = json.load(file)
        seal, files, about = manifest.pop("sha256"), manifest["files"], manifest["about"]
        if seal != _seal(manifest):
            raise ValueError("its seal is another")
    except OSError as error:
        raise CheckpointError(f"{path.name}: its {MANIFEST} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path.name}: its {MANIFEST} is damaged") from None
    for name, written in files.items():
        try:
            digest = _digest(path / name)
        except OSError as error:
            raise CheckpointError(f"{path.name}: {name} cannot be read ({error.strerror})") from None
        if digest != written:
            raise CheckpointError(f"{path.name}: {name} is not as it was written")
    return about


def newest_sound(folder: Path, fits: Callable[[Path, dict[str, Any]], None]) -> Path | None:
    """The newest checkpoint that is unharmed and ``fits``, with a warning for each that is not; or None.

    ``fits`` is called with a sound checkpoint and its manifest; it raises CheckpointError where that cannot
    be used.
    """
    newest_first = steps(folder)
    for path, older in zip_longest(newest_first, newest_first[1:]):
        try:
            fits(path, verify(path))
            return path
        except CheckpointError as error:
            then = f"falling back to {older.name}" if older else "there is no older one"
            warnings.warn(f"a checkpoint is damaged and is not used: {error}; {then}.", stacklevel=2)
    return None


def cut_back(run: Run, checkpoint: Path) -> None:
    """Remove what was written after a checkpoint; newer ones, which are damaged, are kept as damaged-..."""
    step = step_of(checkpoint)
    for name in ("metrics.jsonl", "alarms.jsonl"):
        cut_jsonl(run.file("train", name), step)
    run.file("train", "metrics.jsonl").touch(0o600)
    for number in run.steps:
        if number > step:
            run.file("train", "trajectories", f"step_{number:05d}.parquet").unlink()
    for path in steps(checkpoint.parent):
        if step_of(path) > step:
            path.rename(_unused(path.with_name(f"damaged-{path.name}")))


def set_aside(folder: Path) -> None:
    """Rename a folder that holds anything to folder-1, folder-2 and so on."""
    if any(path.is_file() for path in folder.rglob("*")):
        folder.rename(_unused(folder))


def _unused(path: Path) -> Path:
    return next(other for n in count(1) if not (other := path.with_name(f"{path.name}-{n}")).exists())


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
