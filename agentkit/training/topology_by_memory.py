"""The topology where the memory plan may have a say in it: what notebooks start and doctor tells.

torch is loaded only where a plan can change the choice. Leaves out which GPUs do what (runs.topology) and the
plan (memory).
"""

import contextlib
from collections.abc import Callable

from agentkit.recipe import Recipe
from agentkit.runs.topology import Topology, choose


def placed(recipe: Recipe, count: int, size_gb: Callable[[], float]) -> Topology:
    """``choose`` for ``count`` GPUs, the smallest of ``size_gb()`` GB (1e9 bytes). Raises RecipeError."""
    fits = "fits"
    if count > 1 and recipe.topology == "auto" and recipe.engine == "vllm":  # no other engine is split off
        from agentkit.training import memory

        with contextlib.suppress(Exception):  # a model that cannot be planned for is tried
            size, needs = size_gb(), memory.plan(recipe)
            if max(needs.update(), needs.sampling(size)) <= size * memory.GB:  # else a split helps neither
                fits = needs.advice(size)
    return choose(recipe, count, fits)
