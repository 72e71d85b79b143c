"""Is this run worth starting? A report from a few dozen rollouts of the starting policy, before any training.

``examine`` rolls out, scores several times, scores the scripted expert under the same reward, probes each
component and forecasts the cost. A red item refuses the run (PreflightError), unless the recipe says
``preflight: warn``. Leaves out training itself: a learning rate can be wrong and the report green.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from agentkit.lab import Lab
from agentkit.policies.scripted import ScriptedPolicy
from agentkit.preflight import checks, reward_checks
from agentkit.preflight.probe import Probed, probe
from agentkit.preflight.report import Item, Preflight, PreflightError
from agentkit.records import Task, Trajectory
from agentkit.rewards import Reward, score_all
from agentkit.rollouts import rollout
from agentkit.rollouts.policy import Policy
from agentkit.rollouts.tokens import exact_decode
from agentkit.runs import cost
from agentkit.runs.recipe import Recipe
from agentkit.trajectories import groups_by_task

TASKS, REPEATS, GOLD, PROBED = 12, 4, 24, 3
SHIFT = 7_919  # between the seeds of repeated scorings, on which no reward may depend


def examine(
    lab: Lab,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    model: Any = None,
    n_test: int = 0,
    progress: bool = False,
) -> tuple[Preflight, list[Trajectory]]:
    """Roll out the starting policy on some training tasks and report.

    Args:
        lab: the run's; its recipe's group_size, temperature and limits are used.
        policy: the starting policy.
        tasks: training tasks; of them TASKS, spread over the list, are rolled out, and GOLD by the scripted
        expert.
        model: the one that will be trained, to time an update on; without it the update's rate is scaled from
        params/prices.yaml.
        n_test: tasks in the test split.
        progress: show progress bars.

    Returns:
        The report, and the scored rollouts it rests on.
    """
    start = time.monotonic()
    recipe, chosen = lab.recipe, _spread(tasks, TASKS)
    planned = _spread([task for task in tasks if task.meta.get("plan")], GOLD)
    options = lab.options(seed=recipe.seed)
    title = "preflight" if progress else None
    clock = time.monotonic()
    sampled = rollout(chosen, policy, group_size=recipe.group_size, progress=title, **options)
    seconds = (time.monotonic() - clock) / len(sampled)
    expert = ScriptedPolicy(policy.tokenizer, name="gold")
    golden = rollout(planned, expert, **options) if planned else []
    update = None
    if model is not None:
        from agentkit.training.timing import update_seconds  # loads torch

        update = update_seconds(model, sampled, recipe)
    options = {"n_test": n_test, "decode": exact_decode(policy.tokenizer)}
    preflight = report(recipe, sampled, golden, [*chosen, *planned], lab.reward, **options)
    items = (*preflight.items, forecast(recipe, seconds, update, _longer(sampled, golden)))
    return Preflight(items, len(sampled), time.monotonic() - start), lab.score(chosen, sampled)


def report(
    recipe: Recipe,
    sampled: Sequence[Trajectory],
    golden: Sequence[Trajectory],
    tasks: Sequence[Task],
    reward: Reward,
    *,
    n_test: int = 0,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Preflight:
    """The report on recorded rollouts: everything but the forecast.

    Args:
        recipe: the run's.
        sampled: groups of the starting policy, with verdicts.
        golden: trajectories of the scripted expert, one a task, with verdicts.
        tasks: of both.
        reward: components with their weights.
        n_test: tasks in the test split.
        decode: ids to text, to check that no text drifted from its tokens.
    """
    start = time.monotonic()
    shifted = [[replace(t, seed=t.seed + i * SHIFT) for t in sampled] for i in range(REPEATS)]
    scorings = [score_all(tasks, trajectories, reward) for trajectories in shifted]
    golden = score_all(tasks, golden, reward)
    groups = groups_by_task(scorings[0])
    by_id = {task.id: task for task in tasks}
    right = [t for t in golden if t.success == 1.0]
    probed_on = [(by_id[t.task_id], t) for t in (right or scorings[0])[:PROBED]]
    probed = {name: probe(component, probed_on) for name, (component, _) in reward.items()}
    items = (
        checks.success(groups),
        checks.dead_groups(groups, recipe.group_size),
        checks.scoring_noise(scorings),
        reward_checks.gold(golden, groups, reward),
        *reward_checks.components(groups, golden, reward, probed),
        checks.tools(groups),
        checks.diversity(groups, recipe.temperature),
        checks.masks(groups, decode),
        checks.power(groups, n_test, recipe.test_samples),
    )
    return Preflight(items, len(sampled), time.monotonic() - start)


def forecast(
    recipe: Recipe, rollout_seconds: float, update_seconds: float | None = None, longer: float = 1.0
) -> Item:
    """Time, memory and money of the run, from measured seconds of a trajectory's rollout and of its update.

    Without the second the rate of params/prices.yaml is scaled. In training trajectories will be ``longer``
    times as long: an agent that learns comes to work as the expert does.
    """
    prices = cost.read_prices()
    known = prices.rates_of(recipe.model)
    slower = longer * rollout_seconds / known.rollout  # than the machine of params/prices.yaml
    rates = replace(
        known,
        rollout=longer * rollout_seconds,
        update=slower * known.update if update_seconds is None else longer * update_seconds,
        evaluation=slower * known.evaluation,
        demonstration=slower * known.demonstration,
        other=slower * known.other,
    )
    phases = cost.forecast(recipe, rates)
    training, total = sum(phases[p] for p in cost.PHASES[1:4]), sum(phases.values())
    dearest = max(prices.providers, key=prices.providers.get)
    money = f"{prices.currency}{total / 3600 * prices.providers[dearest]:,.2f} at {dearest}"
    source = "scaled from params/prices.yaml" if update_seconds is None else "measured"
    grown = f"; {longer:.1f} times as much, for trajectories as long as the expert's" if longer > 1.05 else ""
    finding = (
        f"Training {cost.duration(training)}, the whole run {cost.duration(total)} on one device "
        f"({rollout_seconds:.3g} s a rollout measured, {rates.update / longer:.3g} s an update "
        f"{source}{grown}); {cost.hours(total / 3600)} GPU-hours, {money}; {_memory()}."
    )
    values = {"training_seconds": training, "total_seconds": total, "phases": phases}
    values |= {"rollout": rates.rollout, "update": rates.update}
    return Item("Forecast", "green", finding, values=values)


def _memory() -> str:
    """The largest memory of this process so far, rollouts included."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f"{peak / 1e9:.1f} GB of memory so far"


def _longer(sampled: Sequence[Trajectory], golden: Sequence[Trajectory]) -> float:
    """How many times as many tokens the expert's trajectories have as those of now; at least 1."""
    if not golden:
        return 1.0
    now, then = (fmean(len(t.completion_ids) for t in some) for some in (sampled, golden))
    return max(1.0, then / now) if now else 1.0


def _spread(tasks: Sequence[Task], n: int) -> list[Task]:
    """At most ``n`` tasks, evenly spread over the list, so that every family and difficulty has its share."""
    return [tasks[i * len(tasks) // n] for i in range(n)] if len(tasks) > n else list(tasks)


__all__ = ["Item", "Preflight", "PreflightError", "Probed", "examine", "forecast", "probe", "report"]
