"""Benchmarks: this kit against its peer, in one run on one machine, reported as ratios.

Each is a module of its own that is loaded, torch and TRL with it, when it runs. Leaves out what the figures
ought to be (docs/log.md has those that were measured).
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any


def run(name: str, quick: bool = False) -> dict[str, Any]:
    """The JSON of a benchmark; ``quick`` ends within a minute."""
    module = name.replace("-", "_")
    return getattr(import_module(f"agentkit.bench.{module}"), f"bench_{module}")(quick)


NAMES = ("rollouts", "update", "sandbox", "verifiers", "end-to-end")
BENCHES: dict[str, Callable[..., dict[str, Any]]] = {name: partial(run, name) for name in NAMES}
