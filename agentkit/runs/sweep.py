"""A sweep: arms x seeds from one file, each cell an ordinary `agentkit run` in a folder of its own.

Tasks and baselines that cells have in common are made once, in shared/, by fingerprint. A cell is done where
its run.json says so: the same command goes on with a sweep that was killed. Leaves out where cells run
(slots), whether a sweep is worth starting (preflight) and what it showed (evaluation.sweeps).
"""

import contextlib
import itertools
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, ValidationError

from agentkit.recipe import Count, Recipe, beside, find_file, located, read_recipe, read_yaml, sentence
from agentkit.records import RecipeError, RunError
from agentkit.rows import read_json
from agentkit.runs.children import CELL, end_all
from agentkit.runs.files import alone, write_json
from agentkit.runs.fingerprints import STAGES, fingerprints
from agentkit.runs.run import MANIFEST, Run, check_name, versions
from agentkit.runs.schemas import fault
from agentkit.runs.slots import Deal, one_by_one
from agentkit.runs.stages import RUNNING

SHARED = 2  # stages that are made once for all cells that agree in them
TRIES = 2  # of a cell that crashes
ASKED = 130  # exit status of a run whose training was asked to stop
LOG = "cell.log"  # in a cell's folder
ALWAYS = {"measure_last": True}  # of every cell, so that an arm that does harm is seen to
_TAKEN = frozenset(("shared", "tables"))  # folders of the sweep itself


class File(BaseModel):
    """A sweep file as it is written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    recipe: str
    question: str = ""
    seeds: Annotated[list[Count], MinLen(1)]
    against: str = ""  # the arm that the others are compared with; by default the recipe unchanged
    arms: Annotated[dict[str, dict[str, Any] | None], MinLen(1)] | None = None
    grid: Annotated[dict[str, Annotated[list[Any], MinLen(1)]], MinLen(1)] | None = None


@dataclass(frozen=True, slots=True)
class Arm:
    """One choice that is compared: a recipe, and the policy of its runs that is measured."""

    recipe: Recipe
    changes: dict[str, Any]  # of the sweep's recipe
    policy: str = "grpo"  # or sft, base, or one of the recipe's controls

    def keys(self, **changes: Any) -> tuple[str, ...]:
        """The fingerprints of the stages that its cells need."""
        keys = tuple(fingerprints(self.recipe.everything() | changes).values())
        return keys[:SHARED] if self.policy in ("base", "sft") else keys


@dataclass(frozen=True, slots=True)
class Design:
    """A sweep file, read and checked."""

    recipe: Path
    file: File
    arms: dict[str, Arm]
    against: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A run folder to bring to a stage: an arm with a seed, or what several of these begin with."""

    name: str  # the folder, in the sweep's
    folder: Path
    recipe: Recipe
    changes: dict[str, Any]  # of the sweep's recipe
    keys: tuple[str, ...]  # fingerprints of its stages
    parent: "Cell | None" = None  # which it begins as a copy of

    def is_done(self) -> bool:
        """Whether all its stages are executed with these fingerprints."""
        run = Run(self.folder)
        return run.file(MANIFEST).exists() and all(map(run.is_done, STAGES, self.keys))

    def is_ready(self) -> bool:
        """Whether it can be gone on with, or begun."""
        begun = self.parent is None or self.folder.exists() or self.parent.is_done()
        return begun and not self.is_done()

    def command(self, recipe: Path) -> list[str]:
        """The ``agentkit run`` that makes it."""
        words = [word for key, value in self.changes.items() for word in ("-p", f"{key}={json.dumps(value)}")]
        run = ["run", str(recipe), "--run", str(self.folder), "--to", STAGES[len(self.keys) - 1]]
        return [sys.executable, "-m", "agentkit.cli", *run, *words]


# ---- the file
def read_design(
    path: str | Path, recipe: str | Path | None = None, changes: Mapping[str, Any] = MappingProxyType({})
) -> Design:
    """A sweep file, of another ``recipe`` or with ``changes`` to it in every arm. Raises RecipeError with a
    sentence for whatever would make the sweep worthless.
    """
    values = read_yaml(path := located(path))
    try:
        file = File.model_validate(values)
        own = path.parent / file.recipe
        base = located(recipe) if recipe else own if own.is_file() else find_file(file.recipe)
        return _design(path, file, base.resolve(), changes)
    except (RecipeError, ValidationError) as error:
        said = sentence(error) if isinstance(error, ValidationError) else error
        raise RecipeError(f"{path}: {said}") from None


def _design(path: Path, file: File, recipe: Path, more: Mapping[str, Any]) -> Design:
    if len({*file.seeds}) < len(file.seeds):
        raise RecipeError(f"seeds is {file.seeds}: list different whole numbers, as in [1, 2, 3]")
    base, arms, known = read_recipe(recipe) | ALWAYS, {}, {}
    for name, changes in [*(file.arms or {}).items(), *_grid(file.grid or {})]:
        arm = arms[name] = _arm(name, base, {**more, **beside(path, changes or {}), **ALWAYS})
        equal = known.setdefault((arm.keys()[-1], arm.policy), name)
        if equal != name:
            why = f"the arms {equal!r} and {name!r} are equal in all that their cells run"
            raise RecipeError(f"{why}: leave one of them out")
    if len(arms) < 2:
        raise RecipeError("a sweep compares at least two arms: give arms, or a grid such as beta: [0.0, 0.1]")
    against = file.against or "default"
    if against == "default" and against not in arms:
        unchanged = Arm(Recipe.from_mapping(base), {})
        against = known.get((unchanged.keys()[-1], unchanged.policy), against)
    if against not in arms:
        raise RecipeError(f"there is no arm {against!r} to compare with; there are {', '.join(arms)}")
    return Design(recipe, file, arms, against)


def _grid(grid: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """An arm for each combination of a grid's values, named after them: beta-0.1."""
    for values in itertools.product(*grid.values()) if grid else ():
        changes = dict(zip(grid, values, strict=True))
        name = "_".join(f"{key}-{value}" for key, value in changes.items())
        yield re.sub(r"[^\w.-]+", "-", name)[:100], changes


def _arm(name: str, base: Mapping[str, Any], changes: dict[str, Any]) -> Arm:
    try:
        if check_name(name, "arm") in _TAKEN:
            raise RecipeError("a folder of the sweep has this name: give it another")
        policy = changes.pop("policy", "grpo")
        if own := changes.keys() & {"run", "seed"}:
            raise RecipeError(f"an arm may not set {min(own)}: the sweep does, from seeds and --run")
        recipe = Recipe.from_mapping({**base, **changes})
        known = ["sft", *["grpo"] * recipe.can_train, *recipe.controls]
        known += ["base"] * (recipe.measure_base and recipe.sft)
        if policy not in known:
            raise RecipeError(f"its runs measure no policy {policy!r:.40}, only {', '.join(known)}")
    except (RecipeError, RunError) as error:
        raise RecipeError(f"arm {name[:60]!r}: {error}") from None
    return Arm(recipe, changes, policy)


# ---- the folder
def open_sweep(file: str | Path, folder: str | Path, changes: Mapping[str, Any]) -> "Sweep":
    """The sweep in a folder; where there is none yet, that of a file is made, a cell after the other."""
    sweep = Sweep(folder)
    if not sweep.file("sweep.json").exists():
        Driver(read_design(file, changes=changes), sweep, one_by_one, print).run()
    return sweep


class Sweep:
    """A sweep's folder: sweep.json and the cells."""

    def __init__(self, folder: str | Path):
        self.folder = Run(folder).path.resolve()

    def file(self, *parts: str) -> Path:
        """A path inside the sweep."""
        return self.folder.joinpath(*parts)

    @cached_property
    def state(self) -> dict[str, Any]:
        """sweep.json. Raises RunError where there is none, or it is of another form."""
        state = read_json(self.file("sweep.json"))
        if why := fault("sweep", state):
            raise RunError(f"{self.file('sweep.json')} is no sweep ({why}): name another folder")
        return state

    def runs(self, arm: str) -> dict[int, Run]:
        """The runs of an arm that are done, by seed."""
        cells = [cell for cell in self.state["cells"] if cell["arm"] == arm and cell["status"] == "done"]
        return {cell["seed"]: Run(self.folder / cell["run"]) for cell in cells}

    def check(self, design: Design) -> dict[str, Any]:
        """The arms, for sweep.json. Raises RunError where the folder is a run, and RecipeError where an arm
        is another than when the sweep began.
        """
        has_begun = self.file("sweep.json").exists()
        if self.file(MANIFEST).exists() and not has_begun:
            raise RunError(f"{self.folder} is a run, which a sweep would write into: name another --run")
        before = self.state["arms"] if has_begun else {}
        chosen = {}
        for name, arm in design.arms.items():
            chosen[name] = arm.recipe.model_dump(mode="json") | {"policy": arm.policy, "key": arm.keys()[-1]}
            if name in before and before[name].get("key") != chosen[name]["key"]:
                why = f"arm {name!r}, or a file that it names, has changed since this sweep began"
                raise RecipeError(f"{why}: rename it, or name another --run")
        return chosen


# ---- running
def plan(design: Design, folder: Path) -> dict[str, Cell]:
    """What is made, by name: one seed of every arm first, and what is shared before what begins with it."""
    made, first = {}, {}
    for seed, (arm_name, arm) in itertools.product(design.file.seeds, design.arms.items()):
        name, keys, changes = f"{arm_name}/seed-{seed}", arm.keys(seed=seed), arm.changes | {"seed": seed}
        cell = Cell(name, folder / name, arm.recipe, changes, keys)
        if not cell.folder.exists():  # what has begun goes on by itself
            for number in range(1, SHARED + 1):
                own = f"shared/{keys[number - 1]}"
                shared = replace(cell, name=own, folder=folder / own, keys=keys[:number])
                cell = replace(cell, parent=made.setdefault(own, shared))
        twin = first.setdefault(keys, cell)  # of which another policy is measured
        made[name] = cell if twin is cell else replace(cell, parent=twin)
    return made


class Driver:
    """Makes the cells of a sweep that are not done."""

    def __init__(self, design: Design, sweep: Sweep, deal: Deal, say: Callable[[str], None]):
        self.design, self.sweep, self.deal, self.say = design, sweep, deal, say
        self.arms, self.cells = sweep.check(design), plan(design, sweep.folder)
        self.failed: dict[str, str] = {}  # why, by name

    def run(self) -> bool:
        """Make the cells; whether all are done now. Raises RunError where another process is at it."""
        self.sweep.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tries = Counter()
        with alone(self.sweep.file(".lock"), f"running the sweep in {self.sweep.folder}"):
            _end_below(self.sweep.folder)  # what a driver that was killed may have left
            self._write()
            try:
                while ready := [c for c in self.cells.values() if tries[c.name] < TRIES and c.is_ready()]:
                    todo = [cell for cell in ready if not _begin_as_parent(cell).is_done()]
                    with contextlib.closing(self.deal(todo, self._begin)) as ended:
                        for cell, status in ended:
                            tries[cell.name] += TRIES if status == ASKED else 1
                            self._ended(cell)
            finally:
                _end_below(self.sweep.folder)
                self._write()
        return not self.failed

    def _begin(self, cell: Cell) -> tuple[list[str], Path]:
        """The command that makes a cell, and its log."""
        cell.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.say(f"{cell.name}: to {STAGES[len(cell.keys) - 1]}")
        return cell.command(self.design.recipe), cell.folder / LOG

    def _ended(self, cell: Cell) -> None:
        self.failed.pop(cell.name, None)
        if not cell.is_done():
            self.failed[cell.name] = _last_line(cell.folder / LOG)
            _end_below(cell.folder)
        self.say(f"{cell.name}: {self.failed.get(cell.name, 'done')}")
        self._write()

    def _write(self) -> None:
        """Write sweep.json, from the cells' folders."""
        pairs = itertools.product(self.design.file.seeds, self.arms)
        rows = [{"arm": arm, "seed": seed} | self._row(f"{arm}/seed-{seed}") for seed, arm in pairs]
        file = self.design.file.model_dump(mode="json")
        self.sweep.state = {
            "question": file["question"], "against": self.design.against,
            "recipe": str(self.design.recipe), "file": file, "arms": self.arms,
            "versions": versions(), "cells": rows,
        }  # fmt: skip
        write_json(self.sweep.file("sweep.json"), self.sweep.state)

    def _row(self, name: str) -> dict[str, Any]:
        cell = above = self.cells[name]
        why = self.failed.get(name, "")
        while not why and (above := above.parent):
            why = self.failed.get(above.name, "")
        stages = Run(cell.folder).manifest["stages"].values() if (cell.folder / MANIFEST).exists() else ()
        seconds = round(sum(entry.get("seconds", 0.0) for entry in stages), 1)
        status = "done" if cell.is_done() else "failed" if why else "waiting"
        return {"run": name, "status": status, "seconds": seconds, "error": why}


def _end_below(folder: Path) -> None:
    """End processes that work on a cell below a folder though nobody waits for them."""
    end_all(CELL, lambda cell: Path(cell).is_relative_to(folder))


def _begin_as_parent(cell: Cell) -> Cell:
    """A cell, its folder begun as a copy of its parent's, whole or not at all."""
    if cell.parent and not cell.folder.exists():
        cell.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = cell.folder.with_name(f"{cell.folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        others = shutil.ignore_patterns(LOG, RUNNING, "report.html")
        shutil.copytree(cell.parent.folder, new, ignore=others)
        new.rename(cell.folder)
    return cell


def _last_line(log: Path) -> str:
    """The sentence that a run ended with."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "it ended without a word")
    return said.removeprefix("agentkit: ")[:600]
