"""Rewards: named components of a trajectory, weighted and summed.

A component is any function (task, trajectory) -> float | None, and a reward is a mapping of names to
components with their weights, so one of your own is ``plan() | {"brevity": (brevity, 0.1)}``. ``None`` is
"not scored" and is never 0.
Modules: ``scoring`` combines components and logs them; ``components`` and ``calls`` hold them, each with its
formula's source; ``presets`` puts together published ones. Leaves out advantages,
which compare rewards with each other.
"""

from agentkit.rewards.components import (
    correctness,
    dapo_overlong,
    efficiency,
    format_score,
    judged,
    of_environments,
    process,
    tcr_overlong,
    tool_call_bonus,
    tool_call_reward,
)
from agentkit.rewards.presets import from_recipe, plan, tcr, tcr_paper, toolrl, toolrla
from agentkit.rewards.scoring import Component, Reward, check_reward, is_read, product, score, score_all

__all__ = [
    "Component",
    "Reward",
    "check_reward",
    "correctness",
    "dapo_overlong",
    "efficiency",
    "format_score",
    "from_recipe",
    "is_read",
    "judged",
    "of_environments",
    "plan",
    "process",
    "product",
    "score",
    "score_all",
    "tcr",
    "tcr_overlong",
    "tcr_paper",
    "tool_call_bonus",
    "tool_call_reward",
    "toolrl",
    "toolrla",
]
