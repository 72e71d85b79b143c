"""Labs for tests: a recipe's own, with the environment or the reward that a test brings."""

from collections.abc import Callable, Mapping
from typing import Any

from agentkit import Family, Lab, Recipe
from agentkit.tools.environments import CorpusEnvironment

Factory = Callable[[], object]


def lab_with(
    recipe: Recipe | Mapping[str, Any],
    environment: Factory | Mapping[str, Factory] | None = None,
    reward: Mapping[str, tuple[Callable, float]] | None = None,
) -> Lab:
    """The recipe's lab, which knows the families of tests; ``environment`` is that of each, or one such by family."""
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.from_mapping(recipe)
    recipe = recipe.but(reward="none") if reward is not None else recipe
    makers = environment if isinstance(environment, Mapping) else {}
    usual = environment if callable(environment) else CorpusEnvironment
    families = {name: Family(environment=makers.get(name, usual)) for name in {"tiny", "custom", *makers}}
    return Lab.open(recipe).extended(families=families, rewards=reward)
