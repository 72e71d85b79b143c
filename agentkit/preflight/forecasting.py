"""What a run will take, from a preflight's measured rollouts and update: time, memory and money.

Leaves out rates without measurements, what a run did take (runs.cost), and whether memory suffices
(training.memory). An agent that learns may come to work longer or shorter than now.
"""

import resource
import sys
from dataclasses import replace
from operator import itemgetter

from agentkit.preflight.report import Item
from agentkit.runs import Recipe, Run, cost

WITHIN = 0.25  # of a forecast from about a hundred rollouts, on either side: an aim, not a measurement


def forecast(
    recipe: Recipe,
    rollout_seconds: float,
    update_seconds: float | None = None,
    device: str = "",
    n_test: int = 0,
    run: Run | None = None,
) -> Item:
    """Time, memory and money of the run, from measured seconds of a trajectory's rollout and of its update.

    Without the second the rate of params/prices.yaml is scaled, as are the others that were not measured.
    Money is for a ``device`` GPU only, by default what the rates are for. Of a ``run`` the
    manifest tells what its notebooks took so far.
    """
    prices = cost.read_prices()
    known = prices.rates_of(recipe)
    slower = rollout_seconds / known.rollout  # than the machine of params/prices.yaml
    rates = replace(
        known,
        rollout=rollout_seconds,
        update=slower * known.update if update_seconds is None else update_seconds,
        evaluation=slower * known.evaluation,
        demonstration=slower * known.demonstration,
    )
    phases = cost.forecast(recipe, rates, n_test)
    over, done = cost.PHASES[0], cost.actual(run) if run else {}  # the only phase before training
    phases |= {over: done[over]} if over in done else {}
    training, total = sum(phases[p] for p in cost.PHASES[1:4]), sum(phases.values())
    low, high = total * (1 - WITHIN), total * (1 + WITHIN)
    dearest, rent = max(prices.providers.items(), key=itemgetter(1), default=("", 0.0))
    money = f"{prices.currency}{total / 3600 * rent:,.2f} at {dearest}; " if dearest else ""
    rented = f"{cost.hours(total / 3600)} GPU-hours, {money}" if (device or known.device) == "GPU" else ""
    source = "scaled from params/prices.yaml" if update_seconds is None else "measured"
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    finding = (
        f"Training {cost.duration(training)}, the whole run {cost.duration(total)} "
        f"[{cost.duration(low)}, {cost.duration(high)}] on one device "
        f"({rollout_seconds:.3g} s a rollout measured, {rates.update:.3g} s an update {source}); "
        f"{rented}{peak / 1e9:.1f} GB of memory so far."
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
