"""How often the intervals and tests of a comparison hold, on simulated studies.

Each task has a chance of success of its own, drawn from a beta distribution, and its samples are drawn with it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np

from agentkit.evaluation import statistics
from agentkit.evaluation.sweeps import differences

MEANS = (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
ALIKE = (0.1, 0.3, 0.6)  # correlation of a task's samples
SEED_SPREAD, TASK_SPREAD = (0.0, 0.03, 0.06), 0.1  # standard deviations of a difference between two arms


def chances(rng: np.random.Generator, shape: tuple[int, ...], mean: float, alike: float) -> np.ndarray:
    """Chances of success of tasks whose samples correlate by ``alike``."""
    more = (1 - alike) / alike
    return rng.beta(mean * more, (1 - mean) * more, shape)


def coverage(
    studies: int, rng: np.random.Generator, cells: Sequence = tuple(product((60, 216), (2, 4), MEANS, ALIKE))
) -> Iterator[tuple]:
    """Coverage of a success interval: tasks, samples, mean, correlation."""
    for n, k, mean, alike in cells:
        rates = rng.binomial(k, chances(rng, (studies, n), mean, alike)) / k
        low, high = np.array([statistics.success_interval(own, n * k) for own in rates]).T
        yield (n, k, mean, alike), float(np.mean((low <= mean) & (mean <= high)))


def paired(
    studies: int,
    rng: np.random.Generator,
    cells: Sequence = tuple(product((60, 216), (1, 2, 4), (0.1, 0.3, 0.5, 0.8), (0.1, 0.3, 0.6))),
) -> Iterator[tuple]:
    """Level of the paired test of equal policies, and coverage of the interval of 8 points."""
    for n, k, mean, alike in cells:
        chance = chances(rng, (studies, n), mean, alike)
        raised = chance + 0.08 / (1 - mean) * (1 - chance)
        before, same, after = (rng.binomial(k, c) / k for c in (chance, chance, raised))
        false = np.mean([statistics.over_tasks(d).p < 0.05 for d in same - before])
        low, high = np.array([statistics.over_tasks(d).interval(-1, 1) for d in after - before]).T
        yield (n, k, mean, alike), (float(false), float(np.mean((low <= 0.08) & (high >= 0.08))))


def arms_of(rng: np.random.Generator, shape: tuple[int, int, int], spread: float) -> np.ndarray:
    """Success of shape (A, S, N) of arms that are equal but for luck: in seeds, and in what suits them."""
    arms, seeds, tasks = shape
    chance = rng.uniform(0.25, 0.75, tasks)
    for own, size in ((spread, (arms, seeds, 1)), (TASK_SPREAD, (arms, 1, tasks))):
        chance = chance + rng.normal(0, own / np.sqrt(2), size)
    return rng.binomial(4, np.clip(chance, 0, 1)) / 4


SWEEPS = tuple(product(((2, 3, 216), (4, 3, 216), (6, 3, 60), (4, 5, 216)), SEED_SPREAD))


def sweeps(studies: int, rng: np.random.Generator, cells: Sequence = SWEEPS) -> Iterator[tuple]:
    """Family-wise error of a sweep: arms, seeds, tasks, spread between seeds."""
    for shape, spread in cells:
        found = (differences(arms_of(rng, shape, spread)) for _ in range(studies))
        yield (*shape, spread), sum(any(map(partial(is_shown, shape[0] - 1), own)) for own in found) / studies


def is_shown(tests: int, found: statistics.Estimate) -> bool:
    """Whether a sweep calls this difference better or worse, without its interval, which takes long."""
    return found.p < 0.05 and statistics.dunnett_p(found.mean / found.error, tests, found.freedom) < 0.05
