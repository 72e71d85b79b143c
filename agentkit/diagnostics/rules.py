"""Alarms: every rule as data, and what holds at the last of some steps.

A rule is a condition, a severity, and what is said: usual causes and what to change. How often each is right,
and how late, is measured on simulated runs (agentkit.bench.alarms); ``read_measured`` gives that measurement.
Leaves out when an alarm fires (watch).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from agentkit.diagnostics import conditions
from agentkit.diagnostics.conditions import History, Numbers, Z, grown, high, risen
from agentkit.diagnostics.measures import StepMeasures
from agentkit.runs import read_json

MEASURED = Path(__file__).parent / "measured.json"


@dataclass(frozen=True, slots=True)
class Rule:
    """One form of a fault."""

    alarm: str
    holds: Callable[[History], Numbers | None]
    measure: str  # the one whose trajectories are the evidence
    cause: str  # what it is and what usually causes it, with numbers of ``holds``
    advice: str  # what to change, likewise
    severity: str = "warning"  # info: nothing to mend; critical: stop and mend; a condition's own goes first


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
    """Every alarm whose rule holds at the last step of a history; of its forms the first that does."""
    alarms: dict[str, Alarm] = {}
    for rule in _FORMS if history else ():
        numbers = None if rule.alarm in alarms else rule.holds(history)
        if numbers is not None:
            alarms[rule.alarm] = _alarm(rule, numbers, history[-1])
    return alarms


def _alarm(rule: Rule, numbers: Numbers, step: StepMeasures) -> Alarm:
    return Alarm(
        step=step.number,
        alarm=rule.alarm,
        severity=numbers.get("severity", rule.severity),
        value=numbers["value"],
        evidence=step.evidence.get(rule.measure, ()),
        cause=rule.cause.format(**numbers),
        advice=rule.advice.format(**numbers),
    )


def read_measured() -> pd.DataFrame:
    """How often each alarm was right on simulated runs, as ``agentkit.bench.alarms.table``."""
    return pd.DataFrame(read_json(MEASURED))


_FORMS = (
    # ---- the reward
    Rule(
        "zero_variance",
        partial(high, measure="stuck", least=0.65),  # two thirds of the batch are wasted
        "stuck",
        "In {value:.0%} of the groups of the last {steps} steps all rewards are equal although not all "
        "are right: they have no advantage and teach nothing. Usual causes: the reward is constant (a "
        "component that never fires or always does), or the tasks are far too hard.",
        "Score a gold trajectory: where it earns no more, mend the reward; "
        "else take easier tasks or a larger group_size.",
        severity="critical",
    ),
    Rule(
        "zero_variance",
        conditions.no_spread,
        "stuck",
        "{value:.0%} of the groups have equal rewards, {solved:.0%} because every rollout is right.",
        "Stop here, or go on with harder tasks.",
        severity="info",
    ),
    Rule(
        "dead_component",
        conditions.dead_component,
        "components",
        "The reward component {name} {what} of the last {steps} steps: it adds nothing to any advantage. "
        "Usual causes: an input it reads is never written, a pattern that matches nothing or everything, a "
        "tool that is never called.",
        "Run the preflight report: it says what {name} reads and what it gives gold trajectories. Mend "
        "or remove it.",
    ),
    Rule(
        "reward_hacking",
        conditions.audit_refuses,
        "audit_disagreement",
        "The independent auditor refuses {value:.0%} of the answers that the reward likes ({start:.0%} "
        "at the start): the policy has found answers that satisfy the verifier without being right.",
        "Read the listed answers, close the hole in the verifier, "
        "and train again from the last clean checkpoint.",
        severity="critical",
    ),
    Rule(
        "reward_hacking",
        conditions.wrong_is_paid,
        "reward",
        "Wrong trajectories earn {now:.3g} on average and earned {then:.3g} before, while success did "
        "not rise: the policy learns what the reward pays for beside being right.",
        "See which component rose, read the best-rewarded trajectories, and lower or bound that component.",
        severity="critical",
    ),
    Rule(
        "dominance",
        conditions.dominance,
        "components",
        "{name} explains {value:.0%} of the reward's variance within groups and success {success:.0%}: "
        "the policy is trained on {name}, not on being right. Usual cause: its weight or range is too large, "
        "or hardly any rollout is right.",
        "Lower the weight of {name}, or begin with tasks that are solved at times.",
    ),
    # ---- behaviour and tools
    Rule(
        "tool_abandonment",
        conditions.tool_abandonment,
        "no_tool",
        "Tool calls fell from {then:.2f} to {value:.2f} a trajectory; {silent:.0%} of the trajectories "
        "call none. Usual causes: a turn or length penalty that outweighs being right, tools that fail, or "
        "answers that pass by guessing.",
        "Lower reward_efficiency, mend failing tools, or require tools in the tasks.",
    ),
    Rule(
        "truncation",
        partial(risen, measure="truncated", least=0.2, by=0.2, middle=np.mean),
        "truncated",
        "{value:.0%} of the trajectories end at a limit of turns, tokens or time ({then:.0%} at the "
        "start) and earn nothing for what they had found.",
        "Raise max_tokens or max_turns, or mask truncated trajectories; read how they end.",
    ),
    Rule(
        "slow_tools",
        partial(high, measure="timeouts", least=0.05),
        "timeouts",
        "{value:.0%} of the tool calls of the last {steps} steps ended at their time limit.",
        "Look at that tool's service; cache it, or bound how many calls it gets at once.",
    ),
    Rule(
        "slow_tools",
        partial(risen, measure="call_seconds", least=1.0, times=4.0, middle=np.median),
        "call_seconds",
        "One call in ten takes {value:.2g} s or longer ({then:.2g} s at the start).",
        "Declare pure tools cacheable, raise their concurrency, or look at their service.",
    ),
    Rule(
        "stale_cache",
        conditions.stale_cache,
        "cache_conflicts",
        "{value:.0f} cached tool replies of this step differ from fresh replies to the same call: the "
        "tool is not pure, or its data changed.",
        "Raise the tool's version, or declare it stateful; empty the cache.",
        severity="critical",
    ),
    Rule(
        "call_inflation",
        # healthy runs of the small agent reach 1.5 times
        partial(grown, measure="calls", least=0.85, times=1.7, errors=Z),
        "calls",
        "Tool calls rose from {then:.2f} to {value:.2f} a trajectory while success did not: calls are "
        "paid for in themselves, or the policy repeats calls that do not help.",
        "Bound or remove the bonus for calls, raise reward_efficiency, lower max_turns.",
    ),
    Rule(
        "length_explosion",
        partial(grown, measure="completion_tokens", least=1.8, times=1.8, errors=Z),
        "completion_tokens",
        "Completions grew from {then:.0f} to {value:.0f} tokens while success did not rise. Usual "
        "causes: a loss averaged over each sequence, which favours long wrong answers; a bonus for turns; "
        "repetition.",
        "Use loss_type dapo or dr_grpo, add an overlong penalty, lower max_turn_tokens.",
    ),
    Rule(
        "answer_collapse",
        partial(grown, measure="answer_top", least=0.5, by=0.2),
        "answer_top",
        "One answer makes up {value:.0%} of all answers ({then:.0%} before): the policy no longer reads "
        "the task. Usual causes: it is the commonest gold answer, or the verifier accepts it too easily.",
        "Balance the gold answers, check the verifier on that answer, go back to an earlier adapter.",
        severity="critical",
    ),
    Rule(
        "mode_collapse",
        # a sharp but healthy small agent reaches 0.65
        partial(grown, measure="identical", least=0.8, by=0.2, excused=False),
        "identical",
        "{value:.0%} of the rollouts in unsolved groups repeat another one ({then:.0%} at the start): "
        "nothing is explored any more.",
        "Raise temperature or beta, lower learning_rate, or go back to an earlier adapter.",
    ),
    Rule(
        "template_collapse",
        # varied wording may hide that the first action no longer depends on the task
        partial(grown, measure="template", least=0.5, by=0.25, excused=False),
        "template",
        "{value:.0%} of the trajectories begin with an action that other tasks' trajectories begin with "
        "too ({then:.0%} at the start): the first action has become a template that does not depend on the "
        "task.",
        "Filter out groups with little spread, raise temperature, lower beta's pull or the learning rate.",
    ),
    # ---- optimisation
    Rule(
        "entropy_collapse",
        conditions.entropy_collapse,
        "identical",
        "The entropy fell from {then:.3g} to {value:.3g} nats a token with success at {success:.0%}: "
        "rollouts become alike and nothing new is tried.",
        "Raise the upper clip range or temperature, lower learning_rate, raise beta.",
    ),
    Rule(
        "kl_spike",
        conditions.kl_spike,
        "reward",
        "The KL to the reference is {value:.3g} nats a token (at most {usual:.3g} in the steps before): "
        "an update went too far. Usual causes: a learning rate that is too high, or a batch with a few huge "
        "advantages.",
        "Lower learning_rate or max_grad_norm, raise beta, go back to the best adapter.",
    ),
    Rule(
        "gradient_spike",
        partial(high, measure="not_finite", least=1, n=1),
        "reward",
        "Loss, gradient norm, KL or entropy is not finite: the update "
        "is worthless, and the weights may be too.",
        "Go back to the last good checkpoint; lower learning_rate; look for a reward of inf.",
        severity="critical",
    ),
    Rule(
        "gradient_spike",
        conditions.gradient_spike,
        "reward",
        "The gradient norm is {value:.3g}, {times:.0f} times the median of the {steps} steps before. "
        "Clipping bounds the step's length, not its direction. Usual causes: a group with tiny spread "
        "divided by it, an outlier reward.",
        "Keep max_grad_norm low, do not divide by the group's spread, look at this step's groups.",
    ),
    Rule(
        "clip_drift",
        partial(high, measure="clip_fraction", least=0.15),  # PPO's rule of thumb is a few percent
        "reward",
        "{value:.0%} of the tokens lie outside the clip range over the last {steps} steps: the policy "
        "moves too far from the one that sampled. Usual causes: too many updates on a batch, or a learning "
        "rate that is too high.",
        "Lower num_iterations or learning_rate.",
    ),
    Rule(
        "engine_mismatch",
        # nats; bf16 engines differ by 0.01 to 0.03 on average, stale weights or caches by 1
        partial(high, measure="mismatch", least=0.1, n=3, middle=np.median),
        "reward",
        "Sampled tokens have log-probabilities that differ by {value:.3g} nats between the engine and "
        "the trainer: training is off-policy without knowing it. Usual causes: weights not synchronised, a "
        "prefix cache not reset, quantised rollouts.",
        "Reset the engine's prefix cache after each update, check the weight sync, "
        "or correct with importance weights.",
        severity="critical",
    ),
    Rule(
        "overfitting",
        conditions.overfitting,
        "success",
        "Validation success fell from {top:.1%} around step {best} to {value:.1%} while success in "
        "training is {training:.1%}: the policy learns the training tasks by heart.",
        "Keep the adapter of step {best}; more or more varied tasks, a higher beta, fewer steps.",
    ),
    Rule(
        "stalled_learning",
        conditions.stalled_learning,
        "success",
        "After {step} steps success is {now:.1%}, and was {then:.1%} in the first {steps}: nothing was "
        "learnt. Usual causes: a learning rate that is too low, rewards dominated by noise, or hardly any "
        "group with an advantage.",
        "Read the preflight report (signal and dead groups); then raise learning_rate or group_size.",
    ),
)
RULES: dict[str, list[Rule]] = {rule.alarm: [] for rule in _FORMS}  # the forms of each alarm
for _rule in _FORMS:
    RULES[_rule.alarm].append(_rule)
