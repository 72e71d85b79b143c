"""A recipe and a lab file to start from, copied from params/example.yaml and params/example.py.

Leaves out reading them (recipe, lab).
"""

from __future__ import annotations

import re
from pathlib import Path

from agentkit.records import RecipeError
from agentkit.runs.files import write_bytes
from agentkit.runs.run import project_root


def new_lab(name: str) -> tuple[Path, Path]:
    """Write params/NAME.yaml and params/NAME.py. Raises RecipeError for a bad name or one that is taken."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,60}", name):
        raise RecipeError(
            f"the name {name[:40]!r} is refused: use a letter, then letters, digits, '_' and '-'"
        )
    folder = project_root() / "params"
    recipe, lab = folder / f"{name}.yaml", folder / f"{name}.py"
    for path in (recipe, lab):
        if path.exists():
            raise RecipeError(f"{path} exists already: choose another name, or move it away")
    for path in (recipe, lab):
        example = folder / f"example{path.suffix}"
        if not example.exists():
            raise RecipeError(f"there is no {example}: call agentkit from inside the project's folder")
        write_bytes(path, example.read_bytes().replace(b"example.py", lab.name.encode()))
    return recipe, lab
