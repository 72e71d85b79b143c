"""Published rewards, put together from components, and the one a recipe asks for.

Leaves out the formulas themselves (components, calls).
"""

from collections.abc import Mapping
from types import MappingProxyType

from agentkit.recipe import Recipe, RecipeError
from agentkit.rewards import calls, components
from agentkit.rewards.scoring import Component, Reward, product


def plan(
    correctness_weight: float = 1.0, format_weight: float = 0.1, efficiency_weight: float = 1.0
) -> Reward:
    """The additive reward of "RLVR for Agents": 1 when right (a program: when all its tests pass), 0.1 *
    share of valid calls, -0.02 a turn when right.

    It differs from the document in one thing: a valid call also ran, where there one that parses is enough.
    """
    return {
        "correctness": (components.correctness, correctness_weight),
        "format": (components.format_score, format_weight),
        "efficiency": (components.efficiency, efficiency_weight),
    }


def toolrl() -> Reward:
    """ToolRL (arXiv 2504.13958): R = R_format in {0, 1} + R_correct in [-3, 3]."""
    return {"format": (calls.whole_format, 1.0), "match": (calls.toolrl_correctness, 1.0)}


def toolrla() -> Reward:
    """ToolRLA (arXiv 2603.01620): R = R_fmt + R_cor + R_eff + R_cpl, with R_cor = S_name * S_comp * S_acc."""
    return {
        "format": (calls.whole_format, 1.0),
        "correct_calls": (product(calls.tool_names, calls.completeness, calls.argument_accuracy), 1.0),
        "efficiency": (calls.plan_efficiency, 1.0),
        "compliance": (calls.compliance, 1.0),
    }


def tcr(max_tokens: int = 10_480, buffer: int = 3_000) -> Reward:
    """Tool Call Reward, as GRPO-TCR-Qwen3-4B-quarter reads TCR and Open-AgentRL has it, with overlong."""
    return {
        "tool_call_reward": (components.tool_call_reward, 1.0),
        "overlong": (components.tcr_overlong(max_tokens, buffer), 1.0),
    }


def tcr_paper(max_tokens: int = 10_480, buffer: int = 3_000) -> Reward:
    """The reward half of TCR as arXiv 2510.11701 reads it: eq. 8 and overlong Reward shaping as in DAPO.

    The other half, Token-level loss and Clip-higher, is the recipe's ``loss_type: dapo`` and a higher upper
    clip.
    """
    return {
        "tool_call_bonus": (components.tool_call_bonus, 1.0),
        "overlong": (components.dapo_overlong(max_tokens, buffer), 1.0),
    }


def from_recipe(recipe: Recipe, own: Reward = MappingProxyType({})) -> Reward:
    """The recipe's preset, or the presets and components that it weighs, and a lab's ``own``."""
    # published with 3,000 of 10,480 tokens; shorter answers get as large a share
    overlong = recipe.max_tokens, min(3_000, recipe.max_tokens * 5 // 16)
    presets = {
        "plan": plan(),
        "none": {},
        "toolrl": toolrl(),
        "toolrla": toolrla(),
        "tcr": tcr(*overlong),
        "tcr_paper": tcr_paper(*overlong),
    }
    if isinstance(recipe.reward, dict):
        named = {name: part for name, (part, _) in own.items()}
        named |= {name: part for name, (part, _) in plan().items()}
        named |= {"process": components.process, "overlong": components.dapo_overlong(*overlong)}
        named |= {"judge": components.judged()}
        reward = {**_scaled(recipe.reward, presets, named), **own}
        reward |= {name: (named[name], weight) for name, weight in recipe.reward.items() if name in named}
    else:
        reward = {**presets[recipe.reward], **own}
    if not reward:
        raise RecipeError("reward none starts from nothing: name components in the lab file's rewards")
    return reward


def _scaled(
    weights: Mapping[str, float], presets: Mapping[str, Reward], named: Mapping[str, Component]
) -> dict[str, tuple[Component, float]]:
    """The components of the presets that a recipe weighs, times their weights; ``named`` are its others."""
    found: dict[str, tuple[Component, float]] = {}
    for name in [name for name in weights if name not in named]:
        if name not in presets:
            known = f"the components are {', '.join(named)}, and the presets {', '.join(presets)}"
            raise RecipeError(f"reward names {name[:60]!r}; {known}")
        if both := found.keys() & presets[name].keys():
            raise RecipeError(f"reward names two presets that have {min(both)!r}: leave one of them out")
        found |= {key: (part, weight * weights[name]) for key, (part, weight) in presets[name].items()}
    return found
