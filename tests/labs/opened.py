"""The lab files of params/labs, opened for a test."""

from types import ModuleType
from typing import Any

from agentkit import Lab
from agentkit.recipe import project_root
from agentkit.rollouts.call_formats import format_call
from agentkit.runs.labfile import load_module

LABS = project_root() / "params" / "labs"


def call(tool: str, /, **arguments: Any) -> str:
    """A turn that calls a tool."""
    return format_call(tool, arguments, "hermes")


def lab_file(name: str) -> ModuleType:
    return load_module(LABS / f"{name}.py")


def opened(name: str, **changes: Any) -> Lab:
    """A lab whose one family has the file's name, with the file's own reward."""
    recipe = {"lab": str(LABS / f"{name}.py"), "families": name, "reward": "none", "suite_seed": 1}
    return Lab.open(recipe | changes)
