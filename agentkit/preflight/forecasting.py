"""What a run will take, from a preflight's measured rollouts and update: time, memory and money.

Leaves out rates without measurements, and what a run did take (runs.cost), and whether memory suffices
(training.memory).
"""

import math
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from statistics import fmean

from agentkit.preflight.report import Item
from agentkit.records import Trajectory
from agentkit.runs import Recipe, Run, cost

WITHIN = 0.25  # of a forecast from about a hundred rollouts, on either side: an aim, not a measurement


def forecast(
    recipe: Recipe,
    rollout_seconds: float,
    update_seconds: float | None = None,
    longer: float = 1.0,
    device: str = "",
    n_test: int = 0,
    dead: float = 0.0,
    run: Run | None = None,
) -> Item:
    """Time, memory and money of the run, from measured seconds of a trajectory's rollout and of its update.

    Without the second the rate of params/prices.yaml is scaled; what is no trajectory takes what it says. In
    training trajectories will be ``longer`` times as long: an agent that learns comes to work as the expert
    does; the interval's lower end is without that, and both ends allow for WITHIN. Money is for a ``device``
    GPU only, by default what the rates are for. ``dead`` is the share of groups that others may replace. Of a
    ``run`` the manifest holds the keys of the other notebooks, and what those took so far.
    """
    recipe = whole(recipe, run)
    prices, told = cost.read_prices(), cost.told(run, recipe, n_test) if run else {}
    known = prices.rates_of(recipe)
    rates = _rates(known, told, rollout_seconds, update_seconds, longer)
    phases = cost.forecast(recipe, rates, n_test, dead)
    over, done = cost.PHASES[0], cost.actual(run) if run else {}  # the only phase before training
    phases |= {over: done[over]} if over in done else {}
    training, total = sum(phases[p] for p in cost.PHASES[1:4]), sum(phases.values())
    low, high = (total - training * (1 - 1 / longer)) * (1 - WITHIN), total * (1 + WITHIN)
    dearest, rent = max(prices.providers.items(), key=itemgetter(1), default=("", 0.0))
    money = f"{prices.currency}{total / 3600 * rent:,.2f} at {dearest}; " if dearest else ""
    rented = f"{cost.hours(total / 3600)} GPU-hours, {money}" if (device or known.device) == "GPU" else ""
    source = "scaled from params/prices.yaml" if update_seconds is None else "measured"
    grown = f"; {longer:.1f} times as much, for trajectories as long as the expert's" if longer > 1.05 else ""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    finding = (
        f"Training {cost.duration(training)}, the whole run {cost.duration(total)} "
        f"[{cost.duration(low)}, {cost.duration(high)}] on one device "
        f"({rollout_seconds:.3g} s a rollout measured, {rates.update / longer:.3g} s an update "
        f"{source}{grown}); {rented}{peak / 1e9:.1f} GB of memory so far."
    )
    values = {
        "training_seconds": training,
        "total_seconds": total,
        "interval": [low, high],
        "phases": phases,
        "rollout": rates.rollout,
        "update": rates.update,
    }
    return Item("Forecast", "green", finding, values=values)


def whole(recipe: Recipe, run: Run | None) -> Recipe:
    """The recipe of a run, but what this one gives or is notebook 03's alone."""
    own = {
        name for name, key in Recipe.keys().items() if key.json_schema_extra["stages"] == "3"
    } | recipe.given
    return Recipe.of(run).but(**{name: getattr(recipe, name) for name in own}) if run else recipe


def _rates(
    known: cost.Rates, told: Mapping[str, float], rollout: float, update: float | None, longer: float
) -> cost.Rates:
    """The rates of params/prices.yaml with those that were measured, as trajectories will be in training."""
    slower = longer * rollout / known.rollout  # than the machine of params/prices.yaml
    return replace(
        known,
        rollout=longer * rollout,
        update=slower * known.update if update is None else longer * update,
        evaluation=longer * told["evaluation"] if "evaluation" in told else slower * known.evaluation,
        demonstration=slower * known.demonstration,
        task=told.get("task", known.task),
    )


def longer_by_expert(sampled: Sequence[Trajectory], golden: Sequence[Trajectory], at_once: int) -> float:
    """How many times as long a step of the expert would take as one of now, ``at_once`` rollouts; at least 1.

    Between the ratio of the tokens, which holds where an engine is full, and that of the longest
    trajectories' own tokens, each a pass of the model, which holds where it is not: their geometric mean.
    Tokens of the same tasks, where some are, since tasks differ more than agents do.
    """
    both = {t.task_id for t in sampled} & {t.task_id for t in golden}
    tokens = [
        fmean([len(t.completion_ids) for t in some if t.task_id in both or not both] or [0])
        for some in (sampled, golden)
    ]
    tasks = len({t.task_id for t in sampled[:at_once]}) or 1
    samples = [sampled[i :: at_once // tasks] for i in range(at_once // tasks)]  # one a task, as the expert's
    now, then = fmean(_longest(sample, tasks) for sample in samples), _longest(golden, tasks)
    if not tokens[0] or not now:
        return 1.0
    return max(1.0, math.sqrt(tokens[1] / tokens[0] * then / now))


def _longest(trajectories: Sequence[Trajectory], at_once: int) -> float:
    """The mean of the most own tokens of a trajectory among each ``at_once``."""
    own = [sum(t.action_mask) for t in trajectories]
    return fmean([max(own[i : i + at_once]) for i in range(0, len(own), at_once)] or [0])
