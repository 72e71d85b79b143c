"""A sweep: arms x seeds from one file, each cell an ordinary run folder, with common stages made once.

The folders are the truth: a cell is done when its notebooks are, with these parameters, so that a sweep goes
on after any kill; sweep.json says how far it is. Leaves out several cells at once (sweep_slots), whether a
sweep is worth starting (preflight) and what it showed (evaluation.sweeps).
"""

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any

from agentkit.recipe import FILES, Recipe, beside, find_file, read_recipe, read_yaml
from agentkit.records import AgentkitError, RecipeError, RunError
from agentkit.runs.children import end_all, repeated, signals
from agentkit.runs.files import (
    append_to,
    held_elsewhere,
    located,
    open_file,
    read_json,
    read_jsonl,
    read_text,
    write_bytes,
    write_json,
    writing,
)
from agentkit.runs.run import MANIFEST, Run, check_name, versions
from agentkit.runs.schemas import fault
from agentkit.runs.stages import RUNNING, STAGES, compared, file_digests, is_done, run_stages

KEYS = ("recipe", "question", "seeds", "against", "margin", "arms", "grid", "stop_hopeless")
LOCK = ".lock"  # in a sweep's folder
ALARMS = ("train", "alarms.jsonl")  # of a cell
TRIES = 2  # of a cell that crashes
WRITTEN = {  # what the notebooks leave in a run's folder, and others after them
    "02_baseline": ("baseline.json", "pass_rates.json", "sft", "eval"),
    "03_grpo": ("preflight.*", "train", "train-[0-9]*", "adapter", "merged"),
    "05_compare": ("grpo*.parquet", "comparison.json", "measures.json", "gaia.json", "tables", "notes.jsonl",
                   "sft_more*", "rft*"),
}  # fmt: skip
LOOK_S = 2.0  # between two looks at what the others have written
CELL_VARIABLE = "AGENTKIT_CELL"  # in the environment of whatever works on a cell: its folder
MARGIN = 0.05  # of success within which two arms count as equal
_OWN = frozenset(("all", "stop", "skip", "shared", "tables", "sweep.json", "ablations.json", "report.html",
                  "06_ablations.ipynb", MANIFEST))  # fmt: skip  # in a sweep's folder, so names of no arm


@dataclass(frozen=True, slots=True)
class Arm:
    """One choice that is compared: a recipe, and the policy of its runs that is measured."""

    name: str
    recipe: Recipe
    policy: str = "grpo"  # or sft, base, or one of the recipe's controls

    @property
    def last(self) -> int:
        """Index in STAGES of the last notebook its cells need."""
        return 1 if self.policy in ("base", "sft") else len(STAGES) - 1

    @property
    def choices(self) -> dict[str, Any]:
        """All that makes it what it is."""
        shared = {name: v for name, v in self.recipe.everything().items() if name not in ("run", "seed")}
        return shared | {"policy": self.policy, "files": self.files}

    @property
    def files(self) -> dict[str, str]:
        """Digests of the files that it names."""
        return file_digests(self.recipe.everything())

    @property
    def meaning(self) -> dict[str, Any]:
        """What its cells run, however it is written: a default may be left out, a file have two names."""
        keys = {name for stage in STAGES[: self.last + 1] for name in Recipe.keys_of(stage)} - {"run", "seed"}
        recipe = self.recipe
        recipe = recipe.but(clip_epsilon_high=recipe.clip_epsilon_high or recipe.clip_epsilon)
        found = {name: getattr(recipe, name) for name in keys}
        files = {name: Path(found[name]).resolve() for name in keys & set(FILES)}
        found |= {name: str(path) for name, path in files.items() if found[name] and path.exists()}
        number = recipe.processes if "processes" in recipe.given else None  # left out: one for each GPU
        own = {"policy": self.policy, "template_arguments": recipe.chat[1], "processes": number}
        return found | self.files | own


@dataclass(frozen=True, slots=True)
class Design:
    """A sweep file, read and checked."""

    question: str
    seeds: tuple[int, ...]
    against: str  # the arm that the others are compared with
    arms: tuple[Arm, ...]
    margin: float
    stop_hopeless: bool  # end an arm when a critical alarm fires in one of its cells
    file: dict[str, Any]  # as it was written

    def arm(self, name: str) -> Arm:
        """An arm by its name."""
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True, slots=True)
class Job:
    """A run folder to bring to a stage: a cell, or what several cells have in common."""

    folder: Path
    recipe: dict[str, Any]
    last: int  # index in STAGES
    files: dict[str, str]  # their digests
    parent: Path | None  # the folder it begins as a copy of
    arm: str = ""  # "" for what is shared
    seed: int = 0

    def is_done(self) -> bool:
        """Whether all its notebooks are executed with these parameters."""
        return self.done_in(self.folder) > self.last

    def was_asked_to_stop(self) -> bool:
        """Whether its training ended because somebody asked, and goes on at the next call."""
        run = Run(self.folder)
        stages = run.manifest["stages"].values() if run.file(MANIFEST).exists() else ()
        return any(entry.get("ended") == "asked" for entry in stages)

    def done_in(self, folder: Path | None, *, of_another: bool = False) -> int:
        """How many of its notebooks a folder has, executed with these keys; of another sweep with all."""
        if not folder or not (run := Run(folder)).file(MANIFEST).exists():
            return 0
        lab = self.files.get("lab", "")
        free = {"free": ()} if of_another else {}
        done = [is_done(run, stage, self.recipe, lab, **free) for stage in STAGES[: self.last + 1]]
        return [*done, False].index(False)


# ---- the file
def read_design(path: str | Path) -> Design:
    """Read a sweep file. Raises RecipeError with a sentence for whatever would make the sweep worthless."""
    file = read_yaml(path := located(path))
    try:
        return _design(path, file)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None


def _design(path: Path, file: dict[str, Any]) -> Design:
    _check(file)
    own = path.parent / str(file["recipe"])
    base, arms = read_recipe(own if own.is_file() else find_file(str(file["recipe"]))), {}
    given = [(name, dict(changes or {})) for name, changes in file.get("arms", {}).items()]
    for name, changes in [*given, *_grid(file.get("grid"))]:
        arm = _arm(name, base, beside(path, changes))
        if len(arms) >= len(given) and arm.meaning in [arms[own].meaning for own, _ in given]:
            continue  # the grid's own of an arm that is given
        if name in arms:
            raise RecipeError(f"two arms are called {name!r}: give each a name of its own")
        arms[name] = arm
    if len(arms) < 2:
        raise RecipeError("a sweep compares at least two arms: give arms, or a grid such as beta: [0.0, 0.1]")
    for one, other in itertools.combinations(arms.values(), 2):
        if one.name.casefold() == other.name.casefold():
            raise RecipeError(
                f"two arms are called {one.name!r} and {other.name!r}, one folder on some disks"
            )
        if one.meaning == other.meaning:
            why = f"the arms {one.name!r} and {other.name!r} are equal in all that their cells run"
            raise RecipeError(f"{why}: leave one of them out")
    against, margin = file.get("against", "default"), float(file.get("margin", MARGIN))
    unchanged = Arm("", Recipe.from_mapping(base)).choices
    same = [name for name, arm in arms.items() if arm.choices == unchanged]
    if against not in arms and not (against == "default" and same):
        raise RecipeError(f"there is no arm {against!r} to compare with; there are {', '.join(arms)}")
    for seed in file["seeds"]:
        Recipe.from_mapping({**base, "seed": seed})  # raises where it lies out of bounds
    against = against if against in arms else same[0]
    question, hopeless = str(file.get("question", "")), file.get("stop_hopeless", False)
    seeds, arms = tuple(file["seeds"]), tuple(arms.values())
    file = json.loads(json.dumps(file, default=str))  # YAML has dates
    return Design(question, seeds, against, arms, margin, hopeless, file)


def _check(values: Mapping[str, Any]) -> None:
    for name in values:
        if name not in KEYS:
            raise RecipeError(f"unknown key {name[:60]!r}; a sweep file has {', '.join(KEYS)}")
    if missing := [name for name in ("recipe", "seeds") if name not in values]:
        raise RecipeError(f"it lacks {missing[0]!r}: write recipe: params/nano.yaml, seeds: [1, 2, 3]")
    if problem := fault("sweep file", values):
        raise RecipeError(problem)


def _grid(grid: Mapping[str, list] | None) -> list[tuple[str, dict[str, Any]]]:
    """An arm for each combination of a grid's values, named after them: beta-0.1."""
    arms = []
    for values in itertools.product(*grid.values()) if grid else ():
        changes = dict(zip(grid, values, strict=True))
        name = "_".join(f"{key}-{value}" for key, value in changes.items())
        arms.append((re.sub(r"[^\w.+-]+", "-", name)[:100].replace("+", ""), changes))
    return arms


def _arm(name: str, base: Mapping[str, Any], changes: dict[str, Any]) -> Arm:
    try:
        if check_name(name).casefold() in _OWN:
            raise RecipeError("a file of the sweep has this name: give it another")
        policy = changes.pop("policy", "grpo")
        if own := changes.keys() & {"run", "seed"}:
            raise RecipeError(f"an arm may not set {min(own)}: the sweep does, from seeds and --run")
        recipe = Recipe.from_mapping({**base, **changes})
        known = ["sft", "grpo", *["base"] * (recipe.measure_base and recipe.sft), *recipe.controls]
        if policy not in known:
            raise RecipeError(f"its runs measure no policy {policy!r:.40}, only {', '.join(known)}")
    except (RecipeError, RunError) as error:
        raise RecipeError(f"arm {name[:60]!r}: {error}") from None
    return Arm(name, recipe, policy)


# ---- cells and what they have in common
def plan(design: Design, folder: Path) -> list[Job]:
    """Every folder to make, in order: one seed of every arm first, what is shared before what needs it."""
    cells = [_cell(folder, arm, seed) for seed in design.seeds for arm in design.arms]
    chains = [_chain(job) for job in cells]
    count, jobs, donors = Counter(), {}, {}
    for job, chain in zip(cells, chains, strict=True):
        if job.is_done():  # what an arm that was added later begins with
            donors = dict.fromkeys(chain, job.folder) | donors
        if job.is_done() or not job.folder.exists():  # what has begun goes on by itself
            count.update(chain)
    for job, chain in zip(cells, chains, strict=True):
        parent, has_begun = None, job.folder.exists() and not job.is_done()
        for last, name in enumerate(chain):
            parts = last == len(chain) - 1 or count[chain[last + 1]] < count[name]
            shared = folder / "shared" / name
            if shared.exists() or (not has_begun and (last < 2 or (count[name] > 1 and parts))):
                parent = parent if shared.exists() else donors.get(name, parent)
                jobs.setdefault(shared, replace(job, folder=shared, last=last, parent=parent, arm="", seed=0))
                parent = shared
        jobs[job.folder] = replace(job, parent=None if has_begun else parent)  # which it would not copy
    return list(jobs.values())


def _cell(folder: Path, arm: Arm, seed: int) -> Job:
    recipe = {name: value for name, value in arm.recipe.used().items() if name != "run"} | {"seed": seed}
    own = folder / arm.name / f"seed-{seed}"
    return Job(own, recipe, arm.last, arm.files, None, arm.name, seed)


def _chain(job: Job) -> list[str]:
    """A name for each stage of a cell, equal where all that went before is equal too."""
    fixed, names = [job.files, versions()], []
    for stage in STAGES[: job.last + 1]:
        text = json.dumps([names[-1:], compared(stage, job.recipe), fixed], sort_keys=True)
        names.append(hashlib.sha256(text.encode()).hexdigest()[:12])
    return names


class _LeftOut(KeyboardInterrupt):
    """As Ctrl-C, for what ``skip`` or ``stop`` names: a training leaves a checkpoint."""


def _leave(name: str) -> None:
    raise _LeftOut


def make(job: Job) -> None:
    """Bring a folder to its stage, in this process's main thread.

    Raises RunError with the failing notebook cell, or where it was left out meanwhile.
    """
    told: list[bool] = []

    def look() -> None:
        if not told and left_out(job):
            told.append(True)
            if callable(signal.getsignal(signal.SIGUSR1)):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            else:  # in another thread than the main one
                end_strays(job.folder)

    os.environ[CELL_VARIABLE] = str(job.folder)
    try:
        if job.parent and not job.folder.exists():
            _begin_as(job.parent, job)
        run = Run.create(job.folder)
        with (
            os.fdopen(append_to(run.file("cell.log")), "a", encoding="utf-8") as log,
            contextlib.redirect_stdout(log),
            signals(_leave, "SIGUSR1"),
            repeated(look, LOOK_S),
        ):
            run_stages(run, job.recipe, 0, job.last, files=job.files)
    except _LeftOut:
        end_strays(job.folder)
        raise RunError(f"{job.folder} was left out") from None
    finally:
        os.environ.pop(CELL_VARIABLE, None)


def left_out(job: Job) -> str:
    """The status of a job that ``skip`` or ``stop`` in the sweep's folder names, itself or its arm."""
    folder = job.folder.parents[1]
    for name, status in (("skip", "skipped"), ("stop", "stopped")):
        with contextlib.suppress(RunError):  # there is none
            named = read_text(folder / name).split()
            if {"all", job.arm, str(job.folder.relative_to(folder))} & set(named):
                return status
    return ""


def _begin_as(parent: Path, job: Job) -> None:
    """A job's folder as a copy of another, whole or not at all, but for what later notebooks than its last
    left there. A link would let a cell change what others use.
    """
    job.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary, manifest = job.folder.with_name(f"{job.folder.name}.new"), Run(parent).manifest
    shutil.rmtree(temporary, ignore_errors=True)
    later, keys = STAGES[job.last + 1 :], {key for s in STAGES[: job.last + 1] for key in Recipe.keys_of(s)}
    left = [name for stage in later for name in (f"{stage}.ipynb", *WRITTEN.get(stage, ()))] + [RUNNING]
    shutil.copytree(parent, temporary, ignore=shutil.ignore_patterns("cell.log", "report.html", *left))
    manifest["stages"] = {name: x for name, x in manifest["stages"].items() if name not in later}
    manifest["hashes"] = {name: x for name, x in manifest["hashes"].items() if (temporary / name).exists()}
    manifest["recipe"] = {key: x for key, x in manifest["recipe"].items() if key in keys}
    manifest["recipe"] |= {"run": str(job.folder)}
    write_json(temporary / MANIFEST, manifest | {"shared": {"from": str(parent)}})
    temporary.rename(job.folder)


def reuse(design: Design, folder: Path, others: Sequence[Path]) -> list[Path]:
    """Copy what other sweeps have made with the same parameters, files and versions. Returns the folders.

    Raises RunError where one of the others is no sweep.
    """
    states = {(sweep := Sweep(other)).folder: sweep.state for other in others}
    same = [other for other, state in states.items() if state["versions"] == versions()]
    cells = [
        other / cell["run"] for other in same for cell in states[other]["cells"] if cell["status"] == "done"
    ]
    copied = []
    for job in plan(design, folder):
        found = cells if job.arm else [other / "shared" / job.folder.name for other in same]
        for made in found if not job.folder.exists() else ():
            if job.done_in(made, of_another=True) > job.last:
                _begin_as(made, job)
                copied.append(job.folder)
                break
    return copied


# ---- the folder
class Sweep:
    """A sweep's folder: sweep.json and the cells."""

    def __init__(self, folder: str | Path):
        self.folder = Run(folder).path.resolve()

    def file(self, *parts: str) -> Path:
        """A path inside the sweep."""
        return self.folder.joinpath(*parts)

    @cached_property
    def state(self) -> dict[str, Any]:
        """sweep.json. Raises RunError where there is none, or a part of it is of the wrong kind."""
        state = read_json(self.file("sweep.json"))
        why = fault("sweep", state)
        if why or not {*state["order"], *(cell["arm"] for cell in state["cells"])} <= state["arms"].keys():
            why = f"{self.file('sweep.json')} is no sweep ({why or 'it names an arm that it does not hold'})"
            raise RunError(f"{why}. Restore it, or use another folder.")
        entries = [e for e in [*state["cells"], *state["shared"].values()] if e["status"] == "running"]
        for entry in entries if entries and not self.is_held else ():  # its driver was killed
            entry["status"] = "interrupted"
        return state

    def adopt(self, design: Design, slots: int) -> None:
        """Take a design up: new arms and seeds are added, what is done is kept.

        Raises RecipeError where an arm is another than when the sweep began.
        """
        old, arms = self._old, self.unchanged(design)
        if old.get("versions", versions()) != versions() and any(c["status"] == "done" for c in old["cells"]):
            why = "this sweep has cells made with other versions of Python or libraries"
            warnings.warn(
                f"{why} (see their run.json): for a fair comparison use another --run.", stacklevel=2
            )
        known = {(cell["arm"], cell["seed"]): cell for cell in old["cells"]}
        cells = []
        for seed, arm in itertools.product(design.seeds, design.arms):
            fresh = {"arm": arm.name, "seed": seed, "run": f"{arm.name}/seed-{seed}", "status": "waiting"}
            cells.append(known.get((arm.name, seed), fresh | {"seconds": 0.0, "error": ""}))
        self.state = {
            "question": design.question, "against": design.against, "margin": design.margin,
            "seeds": list(design.seeds), "file": design.file, "arms": old["arms"] | arms,
            "order": list(arms), "cells": cells,
            "shared": old.get("shared", {}), "slots": slots, "versions": versions(),
        }  # fmt: skip
        self.save()

    @property
    def _old(self) -> dict[str, Any]:
        return self.state if self.file("sweep.json").exists() else {"arms": {}, "cells": []}

    def unchanged(self, design: Design) -> dict[str, Any]:
        """What the arms choose. Raises RecipeError where one is another than when the sweep began."""
        arms = {arm.name: json.loads(json.dumps(arm.choices)) for arm in design.arms}
        for name, choices in arms.items():
            before = self._old["arms"].get(name, choices)
            before = before | {"files": choices["files"] | before.get("files", {})}  # older: no model folders
            for key in sorted(k for k in choices.keys() & before.keys() if choices[k] != before[k]):
                why = f"arm {name!r} has changed since this sweep began: {key} was {before[key]!r:.60}"
                raise RecipeError(f"{why} and is {choices[key]!r:.60}. Rename it, or name another --run.")
        return arms

    def save(self) -> None:
        """Write sweep.json."""
        write_json(self.file("sweep.json"), self.state)

    def keep(self, folders: set[Path]) -> None:
        """Forget what was shared and is none of these folders, as with other versions of libraries."""
        shared = self.state["shared"].items()
        self.state["shared"] = {name: e for name, e in shared if self.file("shared", name) in folders}

    def entry(self, job: Job) -> dict[str, Any]:
        """What sweep.json says of a job."""
        if not job.arm:
            return self.state["shared"].setdefault(job.folder.name, {"stages": STAGES[: job.last + 1]})
        found = (c for c in self.state["cells"] if (c["arm"], c["seed"]) == (job.arm, job.seed))
        return next(found, {})  # the file may have lost it while it ran

    def runs(self, arm: str) -> dict[int, Run]:
        """The runs of an arm that are done, by seed."""
        cells = [cell for cell in self.state["cells"] if cell["arm"] == arm and cell["status"] == "done"]
        return {cell["seed"]: Run(self.folder / cell["run"]) for cell in cells}

    @property
    def is_held(self) -> bool:
        """Whether a driver is at work on it."""
        try:
            with open_file(self.file(LOCK)) as lock:  # which may be on a disk that cannot be written
                return not _locked(lock, fcntl.LOCK_SH)
        except PermissionError:  # it is somebody else's: it may be
            return True
        except OSError:
            return False

    def leave_out(self, **named: Sequence[str]) -> None:
        """Name arms, cells or all in the files ``stop`` and ``skip``, which a driver reads within seconds.

        Raises RunError, with nothing written, where there is no such cell, or nothing runs that could stop.
        """
        cells = [name for cell in self.state["cells"] for name in (cell["arm"], cell["run"])]
        known = ["all", *dict.fromkeys(cells), *(f"shared/{name}" for name in self.state["shared"])]
        if odd := [name for names in named.values() for name in names if name not in known]:
            raise RunError(f"{self.folder} has no cell {odd[0][:60]!r}; there are {', '.join(known)}")
        if named.get("stop") and not self.is_held:
            raise RunError(f"no sweep runs in {self.folder} now that could be stopped")
        for file, names in named.items():
            if names:  # an empty stop would end the whole sweep
                path = self.file(file)
                before = read_text(path) if path.exists() else ""
                write_bytes(path, (before + "".join(f"{name}\n" for name in names)).encode())

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other drivers out, and end what an earlier one may have left or this one leaves."""
        if self.file(MANIFEST).exists() and not self.file("sweep.json").exists():
            raise RunError(f"{self.folder} is a run, which a sweep would write into: name another --run.")
        with os.fdopen(append_to(self.file(LOCK))) as lock:
            if not _locked(lock, fcntl.LOCK_EX, tries=5):
                raise RunError(f"{self.folder} is being worked on by another agentkit sweep.")
            end_strays(self.folder)
            with writing(self.file("stop")):
                self.file("stop").unlink(missing_ok=True)  # it was meant for an earlier call
            try:
                yield
            finally:
                end_strays(self.folder)


def _locked(lock: IO[Any], how: int, tries: int = 1) -> bool:
    """Lock a file; a driver tries more than once, as who only looks holds the lock for a moment."""
    for _ in range(tries):
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            return True
        except OSError as error:
            held_elsewhere(error)
        time.sleep(0.1)
    return False


def end_strays(folder: Path) -> None:
    """End processes that work on a cell below this folder though nobody waits for them."""
    end_all(CELL_VARIABLE, lambda cell: Path(cell).is_relative_to(folder))


# ---- running
def run_sweep(
    path: str | Path,
    sweep: Sweep,
    submit: Callable[[Job], Future],
    slots: int,
    tell: Callable[[str], None],
    check: Callable[[Design], None] = lambda design: None,
) -> None:
    """Make every cell that is not done, at most ``slots`` at once; the file is read again before each.

    So arms and seeds may be added while it runs. Files in the sweep's folder name arms, or cells such as
    default/seed-2: ``stop`` those that are ended until the next call, ``skip`` those that are left out for as
    long as it names them. An empty ``stop`` ends the sweep after what is running.
    """
    hopeless, path = _Hopeless(sweep, tell), located(path)
    stamp, jobs, running, tries, ended = None, [], {}, Counter(), ("failed", "stopped")
    with repeated(hopeless.look, LOOK_S):  # one slot is busy itself
        while True:
            if stamp != (stamp := _stamp(path, stamp)):
                kept = {job.folder for job in jobs if sweep.entry(job).get("status") in ended}
                try:
                    check(design := read_design(path))
                    planned = plan(design, sweep.folder)
                    sweep.adopt(design, slots)
                    jobs, hopeless.asked = planned, design.stop_hopeless
                except AgentkitError as error:
                    if not jobs:
                        raise
                    tell(f"the changed sweep file is not taken up: {error}")
                at_work = {job.folder for job, _ in running.values()}
                sweep.keep({job.folder for job in jobs} | at_work)
                for job in jobs:
                    if job.folder in at_work:
                        _mark(sweep, job, "running")
                    elif job.folder not in kept:
                        _mark(sweep, job, "done" if job.is_done() else "waiting")
            for job in _startable(sweep, jobs)[: slots - len(running)]:
                _mark(sweep, job, "running")
                hopeless.begin(job)
                is_copy = not job.folder.exists() and job.done_in(job.parent) > job.last  # it takes no slot
                way = in_this_process if is_copy else submit
                running[way(job)] = job, time.monotonic()
            if not running:
                return
            hopeless.look()
            for future in wait(running, timeout=2, return_when=FIRST_COMPLETED).done:
                job, start = running.pop(future)
                hopeless.cells.pop(job.folder, None)
                tries[job.folder] += 1
                _finished(sweep, job, future, time.monotonic() - start, tries[job.folder] < TRIES, tell)


@dataclass(slots=True)
class _Hopeless:
    """Stops an arm, until the next call, when a critical alarm fires in one of its cells."""

    sweep: Sweep
    tell: Callable[[str], None]
    asked: bool = False
    cells: dict[Path, tuple[Job, list[str]]] = field(default_factory=dict)  # with alarms they began with

    def begin(self, job: Job) -> None:
        """A cell, which may go on with a training or begin as a copy, is to be made."""
        self.cells[job.folder] = job, _critical(job.folder if job.folder.exists() else job.parent)

    def look(self) -> None:
        """Look at the alarms of the cells that are being made."""
        for folder, (job, before) in list(self.cells.items()) if self.asked else ():
            fresh = [alarm for alarm in _critical(folder) if alarm not in before]
            if fresh and self.cells.pop(folder, None) and not left_out(job):
                self.sweep.leave_out(stop=[job.arm or f"shared/{folder.name}"])
                name = f"arm {job.arm}" if job.arm else "what arms share"
                self.tell(f"{name}: stopped until the next call, as {folder.name} has the alarm {fresh[0]}")


def _critical(folder: Path | None) -> list[str]:
    """The critical alarms of a training."""
    with contextlib.suppress(AgentkitError):  # there are none, or they are being written
        rows = read_jsonl(folder.joinpath(*ALARMS)) if folder else []
        critical = [row for row in rows if row.get("severity") == "critical"]
        return [f"{row.get('alarm')} at step {row.get('step')}" for row in critical]
    return []


def _stamp(path: str | Path, before: tuple[int, int] | None = None) -> tuple[int, int]:
    """When the file was changed, and its size; as before while an editor is replacing it."""
    try:
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    except OSError:
        return before or (0, 0)


def _startable(sweep: Sweep, jobs: Sequence[Job]) -> list[Job]:
    """Waiting jobs whose parent is done, in order; what fails in common keeps its cells from being tried."""
    with contextlib.suppress(RunError):  # there is none
        if not read_text(sweep.file("stop")).strip():
            return []
    status, ready, needed = {}, [], set()
    for job in jobs:
        entry = sweep.entry(job)
        if entry["status"] == "skipped" and not left_out(job):
            entry.update(status="waiting", error="")
        if entry["status"] == "waiting" and (named := left_out(job)):
            _mark(sweep, job, named)
        parent = sweep.state["shared"].get(job.parent.name, {}) if job.parent else {}
        if entry["status"] == "waiting" and status.get(job.parent) in ("failed", "skipped", "stopped"):
            why, where = parent.get("error", ""), f" (shared/{job.parent.name}, which it begins with)"
            _mark(sweep, job, status[job.parent], error=why if " (shared/" in why else why + where)
        if entry["status"] == "waiting" and status.get(job.parent, "done") == "done":
            ready.append(job)
        status[job.folder] = entry["status"]
    for job in reversed(jobs):  # what is shared comes before its cells
        if sweep.entry(job)["status"] == "waiting" and (job.arm or job.folder in needed):
            needed.add(job.parent)
    return [job for job in ready if job.arm or job.folder in needed]


def _finished(
    sweep: Sweep, job: Job, future: Future, seconds: float, again: bool, tell: Callable[[str], None]
) -> None:
    name, error = job.folder.relative_to(sweep.folder), future.exception()
    error = getattr(error, "cause", None) or error  # Ray's own says a traceback
    seconds = round(seconds + sweep.entry(job).get("seconds", 0.0), 1)
    if error is None:
        _mark(sweep, job, "stopped" if job.was_asked_to_stop() else "done", seconds=seconds, error="")
        return
    end_strays(job.folder)
    if named := left_out(job):
        _mark(sweep, job, named, seconds=seconds, error="")
        tell(f"{name}: {named}")
        return
    why = " ".join(f"{error if isinstance(error, AgentkitError) else repr(error)}".split())[:600]
    again = again and not isinstance(error, RecipeError)  # which fails the same way
    _mark(sweep, job, "waiting" if again else "failed", seconds=seconds, error=why)
    tell(f"{name}: {why}{'; it is tried once more' if again else ''}")


def _mark(sweep: Sweep, job: Job, status: str, **more: Any) -> None:
    sweep.entry(job).update(status=status, **more)
    sweep.save()


def in_this_process(job: Job) -> Future:
    """Make a job at once: one slot, without Ray."""
    future: Future = Future()
    try:
        future.set_result(make(job))
    except Exception as error:
        future.set_exception(error)
    return future


# ---- watching
def progress(sweep: Sweep) -> list[dict[str, Any]]:
    """A row a cell: arm, seed, status, stage, step, validation, alarms, minutes left of its training."""
    rows = [
        {"arm": f"shared/{name}", "seed": "", "status": entry["status"], "stage": entry["stages"][-1]}
        for name, entry in sweep.state["shared"].items()
        if entry["status"] in ("running", "interrupted")
    ]
    for cell in sweep.state["cells"]:
        run = Run(sweep.folder / cell["run"])
        row = {"arm": cell["arm"], "seed": cell["seed"], "status": cell["status"]}
        why = {"why": cell["error"]} if cell["error"] else {}
        rows.append(row | (_look(run) if run.file(MANIFEST).exists() else {}) | why)
    return rows


def progress_table(sweep: Sweep) -> Any:
    """The table that is watched, a pandas DataFrame."""
    import pandas as pd

    return pd.DataFrame(progress(sweep), dtype=object).fillna("")


def as_text(sweep: Sweep) -> str:
    """The table as a terminal shows it."""
    return progress_table(sweep).to_string(index=False, max_colwidth=60)


@contextlib.contextmanager
def watched(sweep: Sweep, say: Callable[[str], None]) -> Iterator[None]:
    """Say the table whenever it changes, and at least a minute apart while only steps are counted."""
    shown: tuple[Any, float] = (None, 0.0)

    def look() -> None:
        nonlocal shown
        looked = Sweep(sweep.folder)
        now = [(row["status"], row.get("stage")) for row in progress(looked)], time.monotonic()
        if now[0] != shown[0] or now[1] > shown[1] + 60:
            say(f"{as_text(looked)}\n")
            shown = now

    with repeated(look, LOOK_S):
        yield


def _look(run: Run) -> dict[str, Any]:
    files = run.file(MANIFEST), run.file("train", "metrics.jsonl"), run.file(*ALARMS)
    return _seen(run.path, tuple(map(_stamp, files)))


@lru_cache(maxsize=1024)
def _seen(path: Path, stamps: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """What the files of a cell say, read anew where their ``stamps`` are others."""
    manifest = (run := Run(path)).manifest
    metrics = run.metric_rows() if run.file("train", "metrics.jsonl").exists() else []
    seen = {"stage": max(manifest["stages"], default="")}
    validated = [row["val_success"] for row in metrics if row.get("val_success") is not None]
    if metrics:
        alarms = run.file(*ALARMS)
        seconds = [row["seconds"] for row in metrics if row.get("seconds")]
        counted = [row["planned_steps"] for row in metrics if row.get("planned_steps")]  # epochs as steps
        planned = counted[-1] if counted else manifest["recipe"].get("steps", 0)
        to_go = max(0, planned - int(metrics[-1]["step"]))
        seen |= {"step": f"{metrics[-1]['step']}", "validation": " ".join(f"{v:.0%}" for v in validated[-6:])}
        seen["alarms"] = str(read_text(alarms).count("\n") if alarms.exists() else 0)
        seen["left"] = f"{to_go * sum(seconds) / len(seconds) / 60:.0f} min" if to_go and seconds else ""
    return seen
