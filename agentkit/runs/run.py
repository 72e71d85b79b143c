"""A run's folder: where it lies, its manifest, and what lies in it.

Leaves out what the files mean (evaluation, diagnostics) and how notebooks are executed (stages).
"""

import importlib.metadata
import itertools
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from agentkit.recipe import FILES, Recipe, find_file
from agentkit.records import RecipeError, RunError, Task, Trajectory
from agentkit.runs.files import MANIFEST, digest, located, project_root, read_json, read_jsonl, write_json
from agentkit.runs.schemas import SECTIONS, fault
from agentkit.runs.trajectory_files import Choose, misplaced, read_tasks, read_trajectories, step_rows

WRITERS = {"tasks.jsonl": "01_tasks", "baseline.json": "02_baseline", "sft": "02_baseline",
           "pass_rates.json": "02_baseline", "eval/sft": "02_baseline",
           "adapter": "03_grpo", "train": "03_grpo", "eval": "05_compare"}  # fmt: skip
ADAPTER = "adapter/adapter_model.safetensors"
HASHED = ("tasks.jsonl", "baseline.json", "preflight.json", "comparison.json", "eval/*.parquet",
          ADAPTER, "train/metrics.jsonl")  # fmt: skip
# recipe keys that say where and how fast a run is executed, not what it is: notebooks may differ in them
_MAY_DIFFER = (
    "run engine server_urls sync_threshold engine_memory tool_cache max_batch tool_timeout_s "
    "trajectory_timeout_s deterministic gpus shard"
).split()
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


def default_folder() -> Path:
    """Where a notebook writes when its recipe names no run: outputs/lab."""
    return project_root() / "outputs" / "lab"


class Run:
    """One folder under outputs/. Opening one creates nothing; ``create`` makes folder and manifest."""

    def __init__(self, path: str | Path):
        self.path = located(path)
        for part in self.path.parts[:-1]:
            if "\0" in part or len(part.encode("utf-8", "replace")) > 255:
                raise RunError(
                    f"run folder {str(path)[:80]!r} is refused: no file system holds the name {part[:40]!r}."
                )
        check_name(self.path.name)

    @classmethod
    def create(cls, path: str | Path) -> Self:
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

    def __repr__(self) -> str:
        try:
            stages = self.manifest["stages"].items()
        except RunError:  # none yet, or damaged
            stages = ()
        done = [name for name, stage in stages if stage.get("status") == "done"]
        return f"Run({str(self.path)!r}, finished: {', '.join(done) or 'none'})"

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
        """Mark a stage as running, with the lab file's digest; warn where earlier ones do not go with it.

        Raises RunError where an input is missing.
        """
        for needed in inputs:
            if not self.file(needed).exists():
                writer = next(
                    (w for prefix, w in WRITERS.items() if needed.startswith(prefix)), "that writes it"
                )
                raise RunError(
                    f"{name} needs {self.file(needed)}, which does not exist. Run notebook {writer} for this "
                    "run first."
                )
        if name[:1].isdigit():  # drawing has no place in their order
            self._warn_of_earlier(name, recipe)
            self.warn_of_other_lab(name, lab)
        entry = {
            "status": "running",
            "started": _now(),
            "_clock": time.time(),
            "parameters": recipe,
            "lab": lab,
        }
        if self.manifest["stages"].get(name, {}).get("status", "done") != "done":
            entry["interrupted"] = True  # so it goes on from where an earlier attempt was stopped
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            entry["gpus"] = os.environ["CUDA_VISIBLE_DEVICES"]
        handed = {s: x.get("parameters", {}).keys() for s, x in self.manifest["stages"].items()}
        before = set(handed.get(name, ()))
        if name[:1].isdigit():  # papermill may hand over others'
            others = {key for s, keys in handed.items() for key in keys & {*Recipe.keys_of(s)}}
            before = (before | others & {*_MAY_DIFFER}) & {*Recipe.keys_of(name)}
        self.update(recipe=recipe, versions=versions(), git=git_state(), stages={name: entry})
        if gone := before - recipe.keys():  # back at their defaults
            manifest = self.manifest
            manifest["recipe"] = {key: x for key, x in manifest["recipe"].items() if key not in gone}
            write_json(self.path / MANIFEST, manifest)

    def _warn_of_earlier(self, name: str, recipe: Mapping[str, Any]) -> None:
        """Warn of earlier stages executed in another order, or with other keys that this one has too."""
        stages = sorted(self.manifest["stages"].items())
        done = [(stage, entry) for stage, entry in stages if stage in WRITERS.values() and stage < name]
        for (first, entry), (then, later) in itertools.pairwise(done):
            if started(entry) > started(later):
                warnings.warn(f"{first} was executed after {then}: run {then} again first.", stacklevel=3)
        for stage, entry in done:
            keys, other = Recipe.keys(), []
            for key in set(Recipe.keys_of(stage)) & set(Recipe.keys_of(name)) - set(_MAY_DIFFER):
                was, now = (x.get(key, keys[key].default) for x in (entry.get("parameters", {}), recipe))
                if placed(key, was) != placed(key, now):
                    other.append(f"{key} {was!r:.60} (here {now!r:.60})")
            if other:
                warnings.warn(
                    f"{stage} was executed with {', '.join(sorted(other))}: set the same in this notebook's "
                    f"parameters cell, or run {stage} again, unless they are meant to differ.",
                    stacklevel=3,
                )

    def warn_of_other_lab(self, name: str, lab: str) -> None:
        """Warn of stages before ``name`` that were executed with another lab file than the one with this
        digest.
        """
        stages = sorted(self.manifest["stages"].items())
        earlier = [(stage, entry) for stage, entry in stages if stage in WRITERS.values() and stage < name]
        others = [stage for stage, entry in earlier if entry.get("judged", entry.get("lab", lab)) != lab]
        if others:
            warnings.warn(
                f"the lab file has changed since {', '.join(others)} (executed with another one than here), "
                f"so results of both are mixed: restore it, or run {others[0]} and what follows again.",
                stacklevel=3,
            )

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
        self.warn_if_changed("tasks.jsonl")
        return read_tasks(self.file("tasks.jsonl"))

    def warn_if_changed(self, name: str) -> None:
        """Warn of a file that is not as a finished stage left it; not while one runs, which may write it."""
        path = self.path / name
        if not (self.path / MANIFEST).exists() or not path.is_file():
            return
        manifest = self.manifest
        running = any(stage.get("status") == "running" for stage in manifest["stages"].values())
        recorded = manifest["hashes"].get(name)
        if recorded is not None and not running and digest(path) != recorded:
            remedy = "restore it, or run the stage again that writes it"
            warnings.warn(f"{path} is not as its stage left it: {remedy}.", stacklevel=3)

    @property
    def metrics(self) -> Any:
        """train/metrics.jsonl as a pandas DataFrame, one row a step."""
        import pandas as pd

        rows = self.metric_rows()
        return pd.DataFrame(rows, columns=None if rows else ["step"])

    def metric_rows(self, last: int = 0) -> list[dict[str, float | None]]:
        """train/metrics.jsonl: the last row of each step, with the values that are numbers or null.

        One warning says what is left out, and which steps have no row though later ones or ``last`` have.
        """
        path = self.file("train", "metrics.jsonl")
        rows, faults = step_rows(read_jsonl(path), last)
        if faults:
            more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
            warnings.warn(f"{path}: {'; '.join(faults[:3])}{more}.", stacklevel=2)
        return rows

    def trajectories(
        self, which: int | str, *, tokens: bool = True, choose: Choose | None = None
    ) -> list[Trajectory]:
        """Training trajectories of a step (int), or the evaluation trajectories of a policy (str).

        ``tokens`` and ``choose`` say what of them, as for ``read_trajectories``.

        Raises:
            RunError: the file is missing or damaged, or its rows are not what its name and the suite say.
        """
        if isinstance(which, str):
            path, step = self.file("eval", f"{check_name(which, 'policy')}.parquet"), None
            policies = {which}
            self.warn_if_changed(f"eval/{path.name}")
        else:
            path, step = self.file("train", "trajectories", f"step_{which:05d}.parquet"), int(which)
            policies = None
        trajectories = read_trajectories(path, tokens=tokens, choose=choose)
        suite = self.tasks if self.file("tasks.jsonl").exists() else None
        if fault := misplaced(trajectories, policies, step, suite):
            raise RunError(f"{path}: {fault}. Restore the file, or run the stage that writes it again.")
        return trajectories

    def rollouts(
        self, steps: Iterable[int] | None = None, *, tokens: bool = True
    ) -> Iterator[tuple[int, list[Trajectory]]]:
        """Training trajectories of steps, or of all that are stored; one warning names the files left out.

        ``tokens`` says what of them, as for ``read_trajectories``.

        Raises:
            RunError: none of the files can be used.
        """
        unread, numbers = [], list(self.steps if steps is None else steps)
        for step in with_progress(numbers, "stored steps", "step"):
            try:
                yield step, self.trajectories(step, tokens=tokens)
            except RunError as error:
                unread.append(error)
        if unread and len(unread) == len(numbers):
            raise unread[0]
        if unread:
            warnings.warn(f"{unread[0]} Steps whose rollouts are left out: {len(unread)}.", stacklevel=2)

    @property
    def measured(self) -> list[str]:
        """Policies whose evaluation trajectories are stored, by name."""
        stems = (path.stem for path in self.file("eval").glob("*.parquet"))
        return sorted(
            stem for stem in stems if not stem.endswith("_greedy")
        )  # earlier versions wrote these too

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
        with warnings.catch_warnings(), suppress(RunError):
            warnings.simplefilter("ignore")  # whoever shows these rows tells what is wrong with them
            norms = [row.get("grad_norm") for row in self.metric_rows() if 0 < row["step"] <= step]
            return 0 if norms and all(norm == 0 for norm in norms) else step
        return step

    @property
    def comparison(self) -> dict:
        """comparison.json."""
        return read_json(self.file("comparison.json"))


def load_run(path: str | Path) -> Run:
    """Open a finished or running run. Raises RunError when there is none at ``path``."""
    run = Run(path)
    if not (run.path / MANIFEST).exists():
        why = f"there is no run at {run.path}, which has no {MANIFEST}"
        if not run.path.exists():
            why = f"there is no run at {run.path}, which does not exist"
        elif run.path.is_file():
            why = f"{run.path} is a file, not a run folder"
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


def placed(key: str, value: Any) -> Any:
    """A recipe key's value; of a file or folder where it lies, however it is spelt."""
    if key not in FILES:
        return value
    source, mark, name = str(value).rpartition(":")  # tasks: rows of a public data set
    try:
        path = find_file(name)
    except RecipeError:
        path = project_root() / name
    return source + mark + os.path.realpath(path)


def started(entry: Mapping[str, Any]) -> float:
    """When a stage began, in seconds; 0 where its entry does not say."""
    with suppress(TypeError, ValueError):
        return datetime.fromisoformat(entry.get("started")).timestamp()
    return 0.0


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
