"""Checkpoints as folders on disk: each is there as a whole or not at all, and proves that it is unharmed.

A checkpoint is filled under a temporary name, a digest of all it holds goes into its manifest, and only then
it is renamed to checkpoint-N, N the optimiser step. What a power cut leaves of it the digest finds out. Also:
what an earlier training left in train/ is cut back or set aside. Leaves out what a checkpoint holds (saves).
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from agentkit.runs import Run, RunError, cut_jsonl, secure, write_json
from agentkit.runs.files import step_of, steps

MANIFEST = "manifest.json"
VERSION = 2  # of what a checkpoint holds
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
        about: goes into the manifest; JSON values, the ``step`` among them.
    """
    write_json(new / MANIFEST, {"version": VERSION, "about": about, "sha256": _digest(new, about)})
    secure(new)
    final, folder = new.with_name(new.name[1:]), new.parent
    new.rename(final)
    for old in steps(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def verify(path: Path) -> dict[str, Any]:
    """What the manifest says about a checkpoint whose files are as they were written.

    Raises:
        CheckpointError: they are not, or the manifest is not.
        RunError: an earlier version wrote it.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        about = manifest["about"]
        is_old, digest = manifest.get("version") != VERSION, manifest["sha256"]
        is_sound = not is_old and digest == _digest(path, about) and about["step"] == step_of(path)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path.name} cannot be read ({type(error).__name__})") from None
    if is_old:
        raise RunError(
            f"{path} was written by an earlier version of agentkit, which this one cannot go on from: name "
            "another run folder, or remove this run's train/ to begin anew"
        )
    if not is_sound:
        raise CheckpointError(f"{path.name} is not as it was written")
    return about


def newest_sound(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that is unharmed, and what it says of itself; warns of each that is not."""
    for path in steps(folder):
        try:
            return path, verify(path)
        except CheckpointError as error:
            warnings.warn(f"a checkpoint is damaged and is not used: {error}", stacklevel=2)
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


def _digest(folder: Path, about: Mapping[str, Any]) -> str:
    """Of what is said about a checkpoint, and of the names and contents of all its files but the manifest."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST):
        with open(path, "rb") as file:
            own = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder)}\0{own}\0".encode())
    return digest.hexdigest()
