"""The rows of train/metrics.jsonl: every column with its meaning, and the only code that makes a row.

Leaves out what the numbers say (diagnostics) and how they are drawn (views).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from agentkit.diagnostics import audit_metrics, audited
from agentkit.records import Step, Trajectory
from agentkit.rewards import Reward
from agentkit.trajectories import results_of

COLUMNS = {
    "step": "number of the optimiser step; 0 is the validation before the first",
    "seconds": "wall clock of the step, s",
    "rollout_seconds": "of which sampling and scoring, s",
    "val_seconds": "of which validation, s",
    "update_seconds": "of which all the rest, s",
    # the update, as TRL logs it
    "loss": "loss of the step; not finite where the step was skipped",
    "grad_norm": "norm of the gradient before clipping",
    "learning_rate": "learning rate of the step",
    "reward": "mean reward of the batch",
    "reward_std": "standard deviation of the rewards in the batch",
    "kl": "mean KL divergence to the reference, nats a token",
    "entropy": "mean entropy of the next-token distribution, nats",
    "clip_fraction": "share of tokens whose probability ratio was clipped",
    "skipped_steps": "steps so far whose gradient was not finite, in all",
    # rollouts
    "success": "mean verdict of the verifier",
    "unscored": "share of trajectories without a verdict",
    "turns": "mean turns of a trajectory",
    "tool_calls": "mean tool calls of a trajectory",
    "tool_failure_rate": "share of tool calls that failed",
    "completion_tokens": "mean length of a completion, tool replies included, tokens",
    "tool_seconds": "mean time a trajectory's tools took, s",
    "tool_slowest_seconds": "time of the slowest tool call, s",
    "tool_cache_hits": "share of tool calls that the cache or another call under way answered",
    "cache_mismatches": "replayed tool calls of the step that gave another answer than the cache",
    # groups
    "dead_groups": "share of groups that teach nothing, as trained on",
    "dead_groups_sampled": "share of groups that teach nothing, as first sampled",
    "groups_replaced": "dead groups in whose place a fresh task came",
    "groups_dropped": "dead groups left out of the loss",
    "extra_rollouts": "trajectories sampled to replace dead groups",
    "left_out": "share of trajectories left out of the loss",
    "lessons": "relabelled transcripts that the loss imitates besides",
    # rewards
    "reward_unscored": "share of trajectories without a reward",
    "audited": "trajectories that the auditor judged",
    "audit_success": "share of those that both verifier and auditor accept",
    "audit_disagreement": "of those the verifier accepts, the share that the auditor refuses",
    # engine and trainer
    "sync_gap": "mean difference of log-probabilities between engine and trainer after the sync, nats",
    "mismatch": "mean difference of log-probabilities between engine and trainer on the batch, nats",
    "mismatch_weight": "mean weight of a token that corrects this difference",
    # validation
    "val_success": "success on the validation tasks",
    "val_ci_low": "lower end of its 95 % interval",
    "val_ci_high": "upper end of its 95 % interval",
}
FAMILIES = {
    "reward/": "mean of a reward component, unweighted, where it is scored",
    "weighted/": "the same times the component's weight",
}
_TRL_NAMES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "reward": "reward",
    "reward_std": "reward_std",
    "kl": "kl",
    "entropy": "entropy",
    "clip_ratio/region_mean": "clip_fraction",
    "cispo_clip_ratio": "clip_fraction",
}


def row(
    number: int, logs: Mapping[str, Any], measured: Mapping[str, float], seconds: float | None = None
) -> dict[str, Any]:
    """One row of train/metrics.jsonl.

    Args:
        number: of the optimiser step.
        logs: what TRL logged, under its names.
        measured: what the kit measured, in the columns' names; it comes before what TRL says.
        seconds: wall clock since the row before; None for the row before the first step.
    """
    values = {"step": number} | {ours: logs[trl] for trl, ours in _TRL_NAMES.items() if trl in logs}
    values |= measured
    if seconds is not None:
        other = values.get("rollout_seconds", 0.0) + values.get("val_seconds", 0.0)
        values |= {"seconds": seconds, "update_seconds": seconds - other}
    unknown = [name for name in values if name not in COLUMNS and not name.startswith(tuple(FAMILIES))]
    assert not unknown, f"columns that agentkit.training.metrics does not list: {', '.join(unknown)}"
    return values


def joined(steps: Sequence[Step]) -> Step:
    """What several processes sampled for one step, as one step."""
    return Step(
        steps[0].number,
        tuple(task for step in steps for task in step.tasks),
        tuple(t for step in steps for t in step.trajectories),
        tuple(mask for step in steps for mask in step.trained),
        dict(sum((Counter(step.counts) for step in steps), Counter())),
        max(step.seconds for step in steps),
    )


def rollout_metrics(step: Step) -> dict[str, float]:
    """What a step's rollouts say of the policy, its tools and its groups."""
    trajectories, counts = step.trajectories, Counter(step.counts)
    calls = [result.ok for t in trajectories for result in results_of(t)]
    verdicts = [t.success for t in trajectories if t.success is not None]
    policy = {
        "success": fmean(verdicts) if verdicts else math.nan,
        "unscored": 1 - len(verdicts) / len(trajectories),
        "turns": fmean(len(t.turns) for t in trajectories),
        "tool_calls": len(calls) / len(trajectories),
        "tool_failure_rate": 1 - fmean(calls) if calls else 0.0,
        "completion_tokens": fmean(len(t.completion_ids) for t in trajectories),
        "rollout_seconds": step.seconds,
    }
    groups = {
        "dead_groups": counts["dead"] / len(step.tasks),
        "dead_groups_sampled": counts["dead_sampled"] / len(step.tasks),
        "groups_replaced": counts["replaced"],
        "groups_dropped": counts["dropped"],
        "extra_rollouts": counts["extra"],
        "left_out": counts["left_out"] / len(trajectories),
    }
    return policy | tool_metrics(trajectories) | groups


def tool_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Time and cache hits of the tools."""
    results = [result for t in trajectories for result in results_of(t)]
    return {
        "tool_seconds": sum(result.seconds for result in results) / max(len(trajectories), 1),
        "tool_slowest_seconds": max((result.seconds for result in results), default=0.0),
        "tool_cache_hits": sum(result.cached for result in results) / max(len(results), 1),
    }


def reward_metrics(step: Step, reward: Reward) -> dict[str, float]:
    """Mean components of a step's rewards, the share without one, and what the auditor says of them."""
    metrics = {"reward_unscored": sum(t.reward is None for t in step.trajectories) / len(step.trajectories)}
    for name, (_, weight) in reward.items():
        values = [t.components[name] for t in step.trajectories if t.components.get(name) is not None]
        metrics[f"reward/{name}"] = fmean(values) if values else math.nan
        metrics[f"weighted/{name}"] = weight * metrics[f"reward/{name}"]
    return metrics | audit_metrics(audited({task.id: task for task in step.tasks}, step.trajectories))


def validation_metrics(summary: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """The columns of a validation, from ``evaluation.summarize``."""
    low, high = summary["ci95"]
    return {"val_success": summary["success"], "val_ci_low": low, "val_ci_high": high, "val_seconds": seconds}
