"""One fingerprint a stage: its recipe keys, the files that they name, and the fingerprint before.

A stage is done where the fingerprint in run.json is the one that its recipe has now. Versions of libraries
are left out, and keys on which no result depends.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentkit.nano import NANO
from agentkit.recipe import FILES, SCRIPTED, Recipe, find_file, project_root
from agentkit.records import RecipeError
from agentkit.runs.files import digest
from agentkit.runs.labfile import lab_digest

STAGES = ("01_tasks", "02_baseline", "03_grpo", "04_diagnostics", "05_compare")


def chosen(stage: str, recipe: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """The values of a stage's keys, defaults included; of a file its digest, however it is spelt."""
    keys = Recipe.keys()
    return {name: files.get(name, recipe.get(name, keys[name].default)) for name in Recipe.keys_of(stage)}


def fingerprint(stage: str, recipe: Mapping[str, Any], files: Mapping[str, str], before: str) -> str:
    """What one execution of a stage depends on; ``before`` is the fingerprint of the stage before."""
    text = json.dumps([stage, chosen(stage, recipe, files), before], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def fingerprints(recipe: Mapping[str, Any]) -> dict[str, str]:
    """The fingerprint of each stage where all of them follow this recipe."""
    files, found, before = file_digests(recipe), {}, ""
    for stage in STAGES:
        before = found[stage] = fingerprint(stage, recipe, files, before)
    return found


def file_digests(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Digests by key of the files that a recipe names, with the lab file's imports and a model's folder."""
    found = {}
    for name in (name for name in FILES if recipe.get(name)):
        with contextlib.suppress(RecipeError):  # chat_template may be a name
            found[name] = (lab_digest if name == "lab" else digest)(find_file(str(recipe[name])))
    source, _, rows = str(recipe.get("tasks", "")).partition(":")  # rows of a public data set
    if rows and f"_{source}".isidentifier() and "tasks" not in found:
        found["tasks"] = f"{source} {_listing(project_root() / rows)}"
    model = recipe.get("model") or NANO
    if model not in (NANO, SCRIPTED) and (project_root() / model).is_dir():  # too large to be read each time
        found["model"] = _listing(project_root() / model)
    return found


def _listing(path: Path) -> str:
    """A digest of a file, or of a folder's files: their names, their sizes and when they were written."""
    files = sorted(path.glob("[!.]*")) if path.is_dir() else [path]
    about = [
        f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files if file.is_file()
    ]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
