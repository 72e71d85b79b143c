"""A run's folder: where it lies, its manifest, and what lies in it.

Leaves out: what the files mean (evaluation, diagnostics) and how notebooks are executed (stages).
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from agentkit.records import Task, Trajectory
from agentkit.runs.files import (
    RunError,
    digest,
    read_json,
    read_jsonl,
    read_tasks,
    read_trajectories,
    write_json,
)

MANIFEST = "run.json"
RUN_VARIABLE = "AGENTKIT_RUN"  # in the environment of a notebook that plain papermill executes
SECTIONS = ("recipe", "stages", "hashes", "versions", "git")  # of the manifest, each a mapping
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VERSIONED = (
    "agentkit",
    "torch",
    "transformers",
    "trl",
    "peft",
    "datasets",
    "accelerate",
    "plotly",
    "papermill",
)


def check_name(name: str) -> str:
    """Return a run name, or raise RunError: letters, digits, dot, dash and underscore, at most 100, no
    leading dot.
    """
    if not _NAME.fullmatch(name):
        raise RunError(
            f"run name {name[:40]!r} is refused: use letters, digits, '.', '_' and '-', at most 100 "
            "characters."
        )
    return name


def project_root(start: str | Path | None = None) -> Path:
    """The nearest folder at or above ``start`` that holds notebooks/ and params/, else ``start`` itself."""
    start = Path(start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "notebooks").is_dir() and (folder / "params").is_dir():
            return folder
    return start


def default_folder() -> Path:
    """Where a notebook writes when its recipe names no run: outputs/lab, or what papermill's plug-in named."""
    return Path(os.environ.get(RUN_VARIABLE) or project_root() / "outputs" / "lab")


class Run:
    """One folder under outputs/. Opening one creates nothing; ``create`` makes the folder and its manifest."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        for part in self.path.parts[:-1]:
            if "\0" in part or len(part.encode("utf-8", "replace")) > 255:
                raise RunError(
                    f"run folder {str(path)[:80]!r} is refused: no file system holds the name {part[:40]!r}."
                )
        check_name(self.path.name)

    @classmethod
    def create(cls, path: str | Path) -> Run:
        """Make the folder (0700) and run.json where they are missing; an existing run is kept as it is."""
        run = cls(path)
        try:
            run.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            run.path.chmod(0o700)
        except OSError as error:
            raise RunError(
                f"{run.path} cannot be made a run folder ({error.strerror}). Choose another folder."
            ) from None
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
            if all(
                isinstance(entry, dict) and isinstance(entry.get("parameters", {}), dict) for entry in entries
            ):
                return found
        raise RunError(
            f"{path} is no run manifest: a part of it is of the wrong type. Move it away and run the stages "
            "again."
        )

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
        self.update(
            stages={name: stage | {"status": status, "seconds": round(time.time() - started, 1)} | extra}
        )
        hashes = {
            f: digest(self.file(f))
            for f in ("tasks.jsonl", "adapter/adapter_model.safetensors")
            if self.file(f).exists()
        }
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
        stems = (
            p.stem.removeprefix("step_") for p in self.file("train", "trajectories").glob("step_*.parquet")
        )
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    @property
    def comparison(self) -> dict:
        """comparison.json."""
        return read_json(self.file("comparison.json"))


def load_run(path: str | Path) -> Run:
    """Open a finished or running run. Raises RunError when there is none at ``path``."""
    run = Run(path)
    if not (run.path / MANIFEST).exists():
        raise RunError(
            f"there is no run at {run.path} (no {MANIFEST}). Start one with notebook 01 or 'agentkit run'."
        )
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
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10
        )
        dirty = subprocess.run(
            ["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return (
        {"commit": commit.stdout.strip(), "dirty": bool(dirty.stdout.strip())}
        if commit.returncode == 0
        else {}
    )


def _producer(needed: str) -> str:
    notebook = {
        "tasks.jsonl": "01_tasks",
        "baseline.json": "02_baseline",
        "sft": "02_baseline",
        "adapter": "03_grpo",
    }
    for prefix, name in (notebook | {"train": "03_grpo", "eval": "05_compare"}).items():
        if needed.startswith(prefix):
            return f"Run notebook {name} for this run first."
    return "Run the notebook that writes it first."


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
