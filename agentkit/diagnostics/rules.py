"""Alarms: every rule, each a pure function of the steps so far, and what holds at the last of them.

How often each rule is right, and how late, is measured on simulated runs (agentkit.bench.alarms).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from agentkit.diagnostics import behaviour_rules as behaviour
from agentkit.diagnostics import optimiser_rules as optimiser
from agentkit.diagnostics import reward_rules as reward
from agentkit.diagnostics.finding import Finding, History

Rule = Callable[[History], Finding | None]
_FUNCTIONS: tuple[Rule, ...] = (
    *(reward.zero_variance, reward.dead_component, reward.reward_hacking, reward.dominance),
    *(behaviour.tool_abandonment, behaviour.truncation, behaviour.slow_tools, behaviour.stale_cache),
    *(optimiser.entropy_collapse, optimiser.kl_spike, optimiser.gradient_spike, optimiser.clip_drift),
    *(optimiser.engine_mismatch, optimiser.overfitting, optimiser.stalled_learning),
)
RULES: dict[str, Rule] = {rule.__name__: rule for rule in _FUNCTIONS}
RULES |= {name: partial(behaviour.grown, habit) for name, habit in behaviour.HABITS.items()}


@dataclass(frozen=True, slots=True)
class Alarm:
    """A rule that began to hold."""

    step: int
    alarm: str  # name of the rule
    severity: str  # info, warning or critical
    value: float
    evidence: tuple[str, ...]  # trajectories as step:task#sample
    cause: str
    advice: str


def holding(history: History) -> dict[str, Alarm]:
    """Every rule that holds at the last step of a history."""
    if not history:
        return {}
    step = history[-1]
    found = {name: rule(history) for name, rule in RULES.items()}
    return {
        name: Alarm(step.number, name, f.severity, f.value, step.evidence.get(f.shows, ()), f.cause, f.advice)
        for name, f in found.items()
        if f is not None
    }
