"""The rows of train/metrics.jsonl: every column with its meaning (columns.toml), and the only code that
makes a row.

Leaves out what the numbers say (diagnostics) and how they are drawn (views).
"""

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from agentkit.diagnostics import audit_metrics, audited
from agentkit.evaluation import task_success
from agentkit.records import Step, StopReason, Trajectory
from agentkit.rewards import Reward
from agentkit.runs import Run
from agentkit.trajectories import results_of

if TYPE_CHECKING:
    from agentkit.lab import Lab

_TABLE = tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))
COLUMNS, FAMILIES = _TABLE["columns"], _TABLE["families"]  # with their meaning; families by prefix


def row(number: int, measured: Mapping[str, float], seconds: float | None = None) -> dict[str, Any]:
    """One row of train/metrics.jsonl."""
    values = {"step": number} | measured
    if seconds is not None:
        other = values.get("rollout_seconds", 0.0) + values.get("val_seconds", 0.0)
        values |= {"seconds": seconds, "update_seconds": seconds - other}
    unknown = [name for name in values if name not in COLUMNS and not name.startswith(tuple(FAMILIES))]
    assert not unknown, f"columns that agentkit.training.metrics does not list: {', '.join(unknown)}"
    return values


def reporter(kind: str, run: Run | None) -> Callable[[Mapping[str, Any]], None]:
    """What shows the rows elsewhere (recipe key ``report_to``) beside metrics.jsonl; None shows nothing."""
    if kind == "none" or run is None:
        return lambda row: None
    if kind == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(run.file("train", "tensorboard")))
        return lambda row: [writer.add_scalar(f"train/{n}", x, row["step"]) for n, x in numbers(row)]
    import wandb

    name = "/".join(run.path.absolute().parts[-3:])  # of a sweep its arm and seed
    started = wandb.init(name=name, dir=run.file("train"))
    return lambda row: started.log({f"train/{n}": x for n, x in numbers(row)}, step=row["step"])


def numbers(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The columns of a row that are finite numbers."""
    return [(n, x) for n, x in row.items() if isinstance(x, int | float) and math.isfinite(x)]


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


def mean_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of what several processes measured, each over those that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: fmean(row[name] for row in rows if name in row) for name in names}


def of_step(step: Step, lab: "Lab") -> dict[str, float]:
    """All that a step's trajectories and rewards show, the lab's own columns too."""
    own = {f"lab/{name}": count(step) for name, count in lab.own_columns.items()}
    return rollout_metrics(step) | reward_metrics(step, lab.reward) | own


def rollout_metrics(step: Step) -> dict[str, float]:
    trajectories, counts = step.trajectories, Counter(step.counts)
    calls = [result.ok for t in trajectories for result in results_of(t)]
    verdicts = [t.success for t in trajectories if t.success is not None]
    policy = {
        "success": fmean(verdicts) if verdicts else math.nan,
        "unscored": 1 - len(verdicts) / len(trajectories),
        "out_of_time": fmean(t.stop_reason is StopReason.TIME_LIMIT for t in trajectories),
        "no_turn": fmean(not t.turns for t in trajectories),
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
    results = [result for t in trajectories for result in results_of(t)]
    return {
        "tool_seconds": sum(result.seconds for result in results) / max(len(trajectories), 1),
        "tool_slowest_seconds": max((result.seconds for result in results), default=0.0),
        "tool_cache_hits": sum(result.cached for result in results) / max(len(results), 1),
    }


def reward_metrics(step: Step, reward: Reward) -> dict[str, float]:
    """Mean components of a step's rewards, the share without one, and what the auditor says of them."""
    known = [t.reward for t in step.trajectories if t.reward is not None]
    metrics = {
        "reward": fmean(known) if known else math.nan,
        "reward_std": stdev(known) if len(known) > 1 else math.nan,
        "reward_unscored": 1 - len(known) / len(step.trajectories),
    }
    for name, (_, weight) in reward.items():
        values = [t.components[name] for t in step.trajectories if t.components.get(name) is not None]
        metrics[f"reward/{name}"] = fmean(values) if values else math.nan
        metrics[f"weighted/{name}"] = weight * metrics[f"reward/{name}"]
    return metrics | audit_metrics(audited({task.id: task for task in step.tasks}, step.trajectories))


def validation_metrics(
    summary: Mapping[str, Any], trajectories: Sequence[Trajectory], seconds: float
) -> dict[str, float]:
    """Success on the validation tasks, on either half of them too, so that one can choose for the other."""
    low, high = summary["ci95"]
    row = {"val_success": summary["success"], "val_ci_low": low, "val_ci_high": high}
    row["val_seconds"] = round(seconds, 3)
    rates, tasks = task_success(trajectories), list(dict.fromkeys(t.task_id for t in trajectories))
    for name, half in (("val_odd", tasks[::2]), ("val_even", tasks[1::2])):
        if known := [rates[task] for task in half if task in rates]:
            row[name] = round(fmean(known), 4)
    return row
