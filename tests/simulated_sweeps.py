"""Sweeps simulated from known effects: how often is a difference shown where there is none, and where there is one?

    python tests/simulated_sweeps.py --sweeps 2000

Each has several arms, seeds and tasks: tasks differ in difficulty, arms in which tasks suit them, seeds in luck, and each
task is sampled four times. The tests are those of agentkit.evaluation.sweeps; the power is the dry run's.
"""

from __future__ import annotations

import sys

import numpy as np
from options import options

from agentkit.evaluation.sweeps import Spread, _shown, _thresholds, against_one, smallest

SAMPLES = 4


def simulate(
    rng: np.random.Generator, arms: int, seeds: int, tasks: int, spread: Spread, effect: float = 0.0
) -> np.ndarray:
    """Success of shape (A, S, N); the second arm is better than the first by ``effect``, the others are equal to it."""
    chance = rng.uniform(0.25, 0.75, tasks)  # away from 0 and 1, so that effects stay what they are
    noise = [
        rng.normal(0, own / np.sqrt(2), shape)
        for own, shape in ((spread.tasks, (arms, 1, tasks)), (spread.seeds, (arms, seeds, 1)))
    ]
    chance = chance + sum(noise) + effect * (np.arange(arms) == 1)[:, None, None]
    return rng.binomial(SAMPLES, np.clip(chance, 0, 1)) / SAMPLES


def sampling_spread(rng: np.random.Generator, spread: Spread) -> Spread:
    """The same spread with what four samples a task add to a difference."""
    success = simulate(rng, 2, 2, 200_000, Spread(0.0, 0.0, 0.0))
    difference = success[1, 0] - success[0, 0]
    return Spread(spread.seeds, spread.tasks, float(difference.std()))


def power(shift: float, freedom: float, tests: int) -> float:
    """Chance that a true difference of ``shift`` standard errors is shown, at the first step's level."""
    return _shown(shift, _thresholds(freedom, tests))


def levels(
    sweeps: int, arms: int, seeds: int, tasks: int, spread: Spread, seed: int = 0
) -> tuple[float, float, float]:
    """Family-wise error where no arm differs; the planned power of a true difference; how often it was shown."""
    rng = np.random.default_rng(seed)
    planned = sampling_spread(rng, spread)
    error, freedom = planned.error(seeds, tasks, arms)
    effect = smallest(error, freedom, arms - 1)
    false = sum(
        any(
            t["verdict"] in ("better", "worse")
            for t in against_one(simulate(rng, arms, seeds, tasks, spread), 0.05)
        )
        for _ in range(sweeps)
    )
    shown = sum(
        against_one(simulate(rng, arms, seeds, tasks, spread, effect), 0.05)[0]["verdict"] == "better"
        for _ in range(sweeps)
    )
    return false / sweeps, power(effect / error, freedom, arms - 1), shown / sweeps


def main() -> int:
    chosen = options(__doc__, sweeps=2000)
    print("arms seeds tasks, spread of seeds: family-wise error; power planned and realised")
    for arms, seeds, tasks in ((2, 3, 183), (4, 3, 183), (4, 5, 183), (8, 3, 183)):
        for between in (0.0, 0.03, 0.06):
            false, planned, shown = levels(chosen.sweeps, arms, seeds, tasks, Spread(between, 0.1, 0.0))
            print(
                f"{arms} {seeds} {tasks}, {between:.2f}: {false:.3f}; {planned:.2f} {shown:.2f}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
