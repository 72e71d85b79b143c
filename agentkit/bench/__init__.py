"""Benchmarks: this kit against its peer, in one run on one machine, reported as ratios.

Each is a module of its own that is loaded, torch and TRL with it, when it runs. Leaves out what the figures
ought to be (docs/results.md has those that were measured).
"""

from importlib import import_module
from typing import Any


def run(name: str, quick: bool) -> dict[str, Any]:
    """The JSON of a benchmark, named as its module; ``quick`` ends within a minute."""
    module = name.replace("-", "_")
    return getattr(import_module(f"agentkit.bench.{module}"), f"bench_{module}")(quick)
