"""Alarms: every rule as data (rules.toml), and what holds at the last of some steps.

A rule is a condition, a severity, and what is said: usual causes and what to change. How often each is right,
and how late, is measured on simulated runs (docs/alarms.md). Leaves out when an alarm fires (watch).
"""

import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentkit.diagnostics import conditions


@dataclass(frozen=True, slots=True)
class Rule:
    """One form of a fault."""

    alarm: str
    holds: Callable[[conditions.History], conditions.Numbers | None]
    measure: str  # the one whose trajectories are the evidence
    cause: str  # what it is and what usually causes it, with numbers of ``holds``
    advice: str  # what to change, likewise
    needs: str  # how the measures that ``holds`` cannot do without begin; by default its option ``measure``
    severity: str = "warning"  # info: nothing to mend; critical: stop and mend; a condition's own goes first


@dataclass(frozen=True, slots=True)
class Alarm:
    """A rule that began to hold."""

    step: int
    alarm: str  # name of the rule
    severity: str  # info, warning or critical
    value: float | None  # None where it is not finite
    evidence: tuple[str, ...]  # trajectories as step:task#sample
    cause: str
    advice: str


def holding(history: conditions.History, own: tuple[Rule, ...] = ()) -> dict[str, Alarm]:
    """Every alarm whose rule holds at the last step of a history; of its forms the first that does. ``own``
    are a lab's rules.
    """
    alarms: dict[str, Alarm] = {}
    for rule in (*_FORMS, *own) if history else ():
        numbers = None if rule.alarm in alarms else rule.holds(history)
        if numbers is None:
            continue
        alarms[rule.alarm] = Alarm(
            step=history[-1].number,
            alarm=rule.alarm,
            severity=numbers.get("severity", rule.severity),
            value=numbers["value"],
            evidence=history[-1].evidence.get(rule.measure, ()),
            cause=re.sub(r"\bnan\b%?", "an unknown share", rule.cause.format(**numbers)),
            advice=rule.advice.format(**numbers),
        )
    return alarms


def lacks(history: conditions.History) -> list[str]:
    """The alarms that cannot look at a history, as it lacks every measure that they need."""
    known = {name for step in history for name, value in step.values.items() if math.isfinite(value)}
    can_look = {rule.alarm for rule in _FORMS if any(name.startswith(rule.needs) for name in known)}
    return [alarm for alarm in RULES if alarm not in can_look]


def _forms() -> tuple[Rule, ...]:
    """The table of rules.toml; a condition with options becomes a function of the history alone."""
    rules = []
    for row in tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))["rule"]:
        options = row.pop("options", {})
        condition = partial(getattr(conditions, row.pop("holds")), **options)
        rules.append(Rule(holds=condition, **{"needs": options.get("measure", "")} | row))
    return tuple(rules)


_FORMS = _forms()
RULES = tuple(dict.fromkeys(rule.alarm for rule in _FORMS))  # the alarms' names
