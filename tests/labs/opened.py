"""The lab files of params/labs, opened for a test."""

from types import ModuleType
from typing import Any

from agentkit import Lab
from agentkit.recipe import project_root
from agentkit.runs.labfile import load_module

LABS = project_root() / "params" / "labs"


def lab_file(name: str) -> ModuleType:
    return load_module(LABS / f"{name}.py")


def opened(name: str, **changes: Any) -> Lab:
    """A lab whose one family has the file's name, with the file's own reward."""
    recipe = {"lab": str(LABS / f"{name}.py"), "families": name, "reward": "none", "suite_seed": 1}
    return Lab.open(recipe | changes)
