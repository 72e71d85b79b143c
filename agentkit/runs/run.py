"""A run's folder: where it lies, its manifest, and what lies in it.

Leaves out what the files mean (evaluation, diagnostics) and how notebooks are executed (stages).
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from agentkit.recipe import located, project_root
from agentkit.records import RunError, Task, Trajectory
from agentkit.rows import read_json, read_jsonl
from agentkit.runs.files import MANIFEST, digest, finite, write_json
from agentkit.runs.fingerprints import STAGES, chosen, file_digests, fingerprint
from agentkit.runs.schemas import SECTIONS, fault
from agentkit.runs.topology import CARDS
from agentkit.runs.trajectory_files import read_tasks, read_trajectories

ADAPTER = "adapter/adapter_model.safetensors"
CONTROL = ("train", ".control")  # in a run: the word stop, for its training
HASHED = ("tasks.jsonl", "baseline.json", "preflight.json", "comparison.json", "eval/*.parquet",
          ADAPTER, "train/metrics.jsonl")  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VERSIONED = "agentkit torch transformers trl peft datasets accelerate plotly papermill".split()


def check_name(name: str, of: str = "run") -> str:
    """Return the name of a run or policy, or raise RunError where it might not be one file everywhere."""
    if not _NAME.fullmatch(name):
        raise RunError(
            f"{of} name {name[:40]!r} is refused: use letters, digits, '.', '_' and '-', at most 100 "
            "characters."
        )
    return name


class Run:
    """One folder under outputs/. Opening one creates nothing; ``create`` makes folder and manifest."""

    def __init__(self, path: str | Path):
        self.path = located(path)
        check_name(self.path.name)

    @classmethod
    def create(cls, path: str | Path) -> Self:
        """Make the folder (0700) and run.json where they are missing; an existing run is kept as it is."""
        run = cls(path)
        try:
            run.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            run.path.chmod(0o700)
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL
            why = getattr(error, "strerror", None) or error
            raise RunError(f"{run.path} cannot be made a run folder ({why}). Choose another.") from None
        if not (run.path / MANIFEST).exists():
            write_json(run.path / MANIFEST, {"created": _now()} | {name: {} for name in SECTIONS})
        return run

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def file(self, *parts: str) -> Path:
        """A path inside the run."""
        return self.path.joinpath(*parts)

    @property
    def manifest(self) -> dict:
        """run.json: recipe as used, versions, git state, data hashes, stage status and timings."""
        manifest = read_json(path := self.path / MANIFEST)
        if problem := fault("manifest", manifest):
            raise RunError(f"{path} is no run manifest ({problem}). Move it away and run the stages again.")
        return manifest | {name: {} for name in SECTIONS if name not in manifest}

    def update(self, **sections: dict) -> None:
        """Merge sections into run.json, one level deep."""
        manifest = self.manifest
        for name, values in sections.items():
            manifest[name] = manifest.get(name, {}) | values
        write_json(self.path / MANIFEST, manifest)

    def begin(self, name: str, recipe: dict, inputs: Iterable[str] = (), lab: str = "") -> None:
        """Mark a stage as running, with the recipe keys that were set and the lab file's digest; one warning
        where an earlier stage does not go with it. Raises RunError where an input is missing.
        """
        if missing := [path for path in map(self.file, inputs) if not path.exists()]:
            before = STAGES[STAGES.index(name) - 1][:2] if name in STAGES[1:] else name
            raise RunError(
                f"{name} needs {missing[0]}, which does not exist: run the notebooks before it with the same "
                f"recipe and run, or agentkit run RECIPE --run {self.path} --to {before}"
            )
        files = file_digests(recipe) | ({"lab": lab} if lab else {})
        if name in STAGES:  # drawing has no place in their order
            self._warn_if_stale(name, recipe, files)
        entry = {"status": "running", "started": _now(), "_clock": time.time(), "parameters": recipe}
        entry |= {"lab": lab, "files": files}
        entry["fingerprint"] = fingerprint(name, recipe, files, self.fingerprint_before(name))
        manifest = self.manifest
        if manifest["stages"].get(name, {}).get("status", "done") != "done":
            entry["interrupted"] = True  # so it goes on from where an earlier attempt was stopped
        if CARDS in os.environ:
            entry["gpus"] = os.environ[CARDS]
        stages = manifest["stages"] | {name: entry}
        manifest |= {"recipe": recipe, "versions": versions(), "git": git_state(), "stages": stages}
        write_json(self.path / MANIFEST, manifest)

    def fingerprint_before(self, name: str) -> str:
        """The fingerprint of the stage before one; "" where there is none."""
        before = STAGES[STAGES.index(name) - 1] if name in STAGES[1:] else ""
        return self.manifest["stages"].get(before, {}).get("fingerprint", "")

    def is_done(self, name: str, key: str) -> bool:
        """Whether a stage was executed to its end with this fingerprint, and nobody asked it to stop."""
        entry = self.manifest["stages"].get(name, {})
        same = entry.get("fingerprint") == key and entry.get("status") == "done"
        return same and entry.get("ended") != "asked"

    def _warn_if_stale(self, name: str, recipe: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Warn of the first stage before this one that was made with something else than it has here."""
        for stage in STAGES[: STAGES.index(name)]:
            entry = self.manifest["stages"].get(stage, {})
            key = fingerprint(stage, recipe, files, self.fingerprint_before(stage))
            if entry.get("fingerprint", key) != key:
                was, now = chosen(stage, entry["parameters"], entry["files"]), chosen(stage, recipe, files)
                keys = [key for key in was if was[key] != now[key]] or ["an earlier notebook that ran again"]
                warnings.warn(
                    f"{stage} was made with something else than {name} has here "
                    f"({', '.join(keys)}): run it again, unless they are meant to differ.",
                    stacklevel=3,
                )
                return

    def end(self, name: str, status: str = "done", **extra: Any) -> None:
        """Mark a stage as done (or failed), with its seconds, and make every file of the run private."""
        stage = dict(self.manifest["stages"].get(name, {}))
        seconds = round(time.time() - stage.pop("_clock", time.time()), 1)
        files = [path for pattern in HASHED for path in sorted(self.path.glob(pattern)) if path.is_file()]
        self.update(
            stages={name: stage | {"status": status, "seconds": seconds} | extra},
            hashes={str(path.relative_to(self.path)): digest(path) for path in files},
        )
        secure(self.path)

    def remove(self, name: str) -> None:
        """Remove a file, and its hash from run.json."""
        self.file(name).unlink(missing_ok=True)
        manifest = self.manifest
        if manifest["hashes"].pop(name, None):
            write_json(self.path / MANIFEST, manifest)

    @cached_property
    def tasks(self) -> list[Task]:
        """The suite of this run."""
        return read_tasks(self.file("tasks.jsonl"))

    @property
    def metrics(self) -> Any:
        """train/metrics.jsonl as a pandas DataFrame, one row a step."""
        import pandas as pd

        rows = self.metric_rows()
        return pd.DataFrame(rows, columns=None if rows else ["step"])

    def metric_rows(self, last: int = 0) -> list[dict[str, float | None]]:
        """train/metrics.jsonl: the last row of each step, with the values that are numbers or null.

        One warning says how many rows are left out, and which steps up to ``last`` have none.
        """
        path = self.file("train", "metrics.jsonl")
        rows = [finite(row) for row in read_jsonl(path)]
        sound = [row for row in rows if not fault("metrics", row) and str(row.get("step")).isdecimal()]
        latest = {row["step"]: row for row in sound}
        lost = sorted(set(range(1, max([last + 1, *latest]))) - latest.keys())
        if len(sound) < len(rows) or lost:
            told = f"rows left out as no metrics of a step: {len(rows) - len(sound)}"
            gap = f"; steps without a row: {len(lost)}, the first of them {lost[0]}" if lost else ""
            warnings.warn(f"{path}: {told}{gap}.", stacklevel=2)
        return list(latest.values())

    def trajectories(self, which: int | str) -> list[Trajectory]:
        """Training trajectories of a step (int), or the evaluation trajectories of a policy (str).

        Raises:
            RunError: the file is missing or damaged, or holds rows of others than its name says.
        """
        if isinstance(which, str):
            path, step, policy = self.file("eval", f"{check_name(which, 'policy')}.parquet"), None, which
        else:
            path, step, policy = self.file("train", "trajectories", f"step_{which:05d}.parquet"), which, None
        trajectories = read_trajectories(path)
        known = {task.id for task in self.tasks} if self.file("tasks.jsonl").exists() else None
        for t in trajectories:
            if known is not None and t.task_id not in known:
                raise RunError(f"{path} holds a row of task {t.task_id!r:.60}, which the run's suite lacks")
            if (t.policy if policy else None, t.step) != (policy, step):
                raise RunError(
                    f"{path} holds a row of policy {t.policy!r:.60}, step {t.step}: restore the file"
                )
        return trajectories

    def rollouts(self, steps: Iterable[int] | None = None) -> Iterator[tuple[int, list[Trajectory]]]:
        """Training trajectories of steps, or of all that are stored; one warning names the files left out.

        Raises RunError where none of the files can be used.
        """
        unread, numbers = [], list(self.steps if steps is None else steps)
        for step in with_progress(numbers, "stored steps", "step"):
            try:
                yield step, self.trajectories(step)
            except RunError as error:
                unread.append(error)
        if unread and len(unread) == len(numbers):
            raise unread[0]
        if unread:
            warnings.warn(f"{unread[0]} Steps whose rollouts are left out: {len(unread)}.", stacklevel=2)

    @property
    def measured(self) -> list[str]:
        """Policies whose evaluation trajectories are stored, by name."""
        return sorted(path.stem for path in self.file("eval").glob("*.parquet"))

    @property
    def steps(self) -> list[int]:
        """Training steps whose trajectories are stored."""
        files = self.file("train", "trajectories").glob("step_*.parquet")
        numbers = [file.stem.removeprefix("step_") for file in files]
        return sorted(int(number) for number in numbers if number.isdecimal())

    @property
    def trained_step(self) -> int | None:
        """The step whose adapter GRPO kept; None where notebook 03 has not ended.

        It is 0 for the agent before training, so also where no step up to the kept one had a gradient.
        """
        step = self.manifest["stages"].get("03_grpo", {}).get("best_step")
        if not isinstance(step, int):
            return None
        norms = [row.get("grad_norm") for row in self.metric_rows() if 0 < row["step"] <= step]
        return 0 if norms and all(norm == 0 for norm in norms) else step

    @property
    def measured_step(self) -> int | None:
        """The last step, where ``measure_last`` put its adapter in the place of step 0's."""
        return self.manifest["stages"].get("03_grpo", {}).get("measured_step")

    @property
    def comparison(self) -> dict:
        """comparison.json."""
        return read_json(self.file("comparison.json"))


def load_run(path: str | Path) -> Run:
    """Open a finished or running run. Raises RunError when there is none at ``path``."""
    run = Run(path)
    if not os.path.isfile(run.path / MANIFEST):
        why = f"there is no run at {run.path}, which has no {MANIFEST}"
        raise RunError(f"{why}. Start one with notebook 01 or 'agentkit run'.")
    return run


def with_progress(rows: Iterable[Any], label: str, unit: str, total: int | None = None) -> Iterable[Any]:
    """The rows, of which a progress line tells from the fifth second on."""
    from tqdm.auto import tqdm

    return tqdm(rows, label, total, unit=unit, delay=5, leave=False)


def secure(folder: str | Path) -> None:
    """Make a run folder private: folders 0700, files 0600. Links are left alone."""
    for root, folders, files in os.walk(folder):
        for name, mode in [(f, 0o700) for f in folders] + [(f, 0o600) for f in files]:
            path = Path(root) / name
            if not path.is_symlink() and path.exists() and (path.stat().st_mode & 0o777) != mode:
                path.chmod(mode)


def versions() -> dict[str, str]:
    """Versions of Python and the packages that shape a result; absent ones are left out."""
    installed = {name: version for name in _VERSIONED if (version := version_of(name))}
    return {"python": sys.version.split()[0]} | installed


def version_of(package: str) -> str:
    """What is installed of a package; "" where nothing is."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def git_state() -> dict[str, Any]:
    """Commit and whether the tree was dirty, or nothing outside a git checkout."""
    options = {"cwd": project_root(), "capture_output": True, "text": True, "timeout": 10}
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **options)
        status = subprocess.run(["git", "status", "--porcelain"], **options)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if commit.returncode != 0:
        return {}
    return {"commit": commit.stdout.strip(), "dirty": bool(status.stdout.strip())}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
