"""Estimates over tasks, with Student's t: pure functions of arrays.

Samples of a task are averaged first, so that the task is the unit of evidence (Miller 2024, Adding Error
Bars to Evals, arXiv 2411.00640). Training seeds are a second random effect. A share of right answers has
Wilson's interval, which holds near 0 and 1. tests/test_statistics.py measures how often all this holds.
Leaves out records and tables.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # scipy.stats, half a second, where it is used
from scipy import special
from scipy.optimize import brentq

ALPHA = 0.05  # level of every test; intervals are at 1 - ALPHA
POWER = 0.8  # at which a smallest detectable difference is stated
Z95 = float(special.ndtri(1 - ALPHA / 2))
SEEDS = 3  # training seeds below which an interval is given and no verdict
PRIOR, PRIOR_WEIGHT = 0.6, 1.0  # correlation within tasks before anything is seen, and its weight in tasks
_TINY = 1e-12  # differences below this are none


def best_of(scores: Sequence[float], k: int) -> float:
    """The best of k of these scores, expected over all draws without replacement.

    Of right and wrong ones it is pass@k, 1 - C(n - right, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).
    The worst of k, pass^k (Yao et al. 2024, arXiv 2406.12045), is minus the best of the negated scores.
    """
    assert 1 <= k <= len(scores)
    ways = (score * math.comb(i, k - 1) for i, score in enumerate(sorted(scores)))
    return sum(ways) / math.comb(len(scores), k)


# ---- means
@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and degrees of freedom."""

    mean: float
    error: float
    freedom: float
    least_p: float = sys.float_info.min  # what so few that differ can show at best, as a sign test says

    @property
    def p(self) -> float:
        """Two-sided p of "the mean is 0"."""
        tails = 2 * float(special.stdtr(self.freedom, -abs(self.mean) / self.error))
        return min(max(tails, self.least_p), 1.0)

    def interval(self, low: float, high: float, critical: float | None = None) -> list[float]:
        """95 % interval within [low, high], or ``critical`` standard errors to either side."""
        half = (_student(self.freedom, 1 - ALPHA / 2) if critical is None else critical) * self.error
        return [max(self.mean - half, low), min(self.mean + half, high)]

    def detectable(self, critical: float | None = None) -> float | None:
        """The smallest true difference that the test shows with 80 % power; None where none is."""
        critical = _student(self.freedom, 1 - ALPHA / 2) if critical is None else critical
        smallest = (critical + _student(self.freedom, POWER)) * self.error
        return smallest if self.error and smallest <= 1 else None


def mean_of(table: np.ndarray) -> Estimate:
    """The mean over seeds and tasks, shape (S, N); of one seed that over its tasks."""
    return over_seeds(table) if len(table) > 1 else over_tasks(table[0])


def over_tasks(values: np.ndarray) -> Estimate:
    """The mean of a value in [-1, 1] for each task, shape (N,)."""
    _check(values, 1)
    n, error = values.size, float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else 0.0
    least = max(0.5 ** max(np.count_nonzero(np.abs(values) > _TINY) - 1, 0), sys.float_info.min)
    return Estimate(float(values.mean()), _seen(error, n), max(n - 1, 1), least)


def over_clusters(values: np.ndarray, clusters: np.ndarray) -> Estimate:
    """The mean over tasks, shape (N,), if tasks of one cluster stand for each other.

    The degrees of freedom are of as many clusters as would be equally large.
    """
    _check(values, 1)
    sizes, rest = np.bincount(clusters).astype(float), np.bincount(clusters, values - values.mean())
    if sizes.size < 2 or float(np.abs(rest).max()) < _TINY:
        return over_tasks(np.bincount(clusters, values) / sizes)
    error = math.sqrt(sizes.size / (sizes.size - 1) * float(rest @ rest)) / values.size
    return Estimate(float(values.mean()), error, max(values.size**2 / float(sizes @ sizes) - 1, 1.0))


def over_seeds(table: np.ndarray, seed: tuple[float, int] | None = None) -> Estimate:
    """The mean over S >= 2 seeds and N tasks, shape (S, N), both random.

    The two-way layout without replication: var = (MS_seed + MS_task - MS_rest) / (S N), with Satterthwaite's
    degrees of freedom. ``seed`` is the seeds' part and its degrees of freedom where more tables tell of it.
    """
    _check(table, 2)
    s, n = table.shape
    between, freedom = seed or (float(table.mean(axis=1).var(ddof=1)) / s, s - 1)
    task = float(table.mean(axis=0).var(ddof=1)) / n if n > 1 else 0.0
    inner = interaction(table) / ((s - 1) * max(n - 1, 1)) / (s * n)
    rest = max(task - inner, 0.0)
    if between + rest < _TINY**2:
        return over_tasks(table.mean(axis=0))
    known = max(between, inner)  # it holds the inner part: one that is less by luck would seem well known
    parts = known**2 / freedom + task**2 / max(n - 1, 1) + inner**2 / ((s - 1) * max(n - 1, 1))
    return Estimate(float(table.mean()), math.sqrt(between + rest), max((known + rest) ** 2 / parts, freedom))


def interaction(table: np.ndarray) -> float:
    """Sum of squares of a two-way table, shape (S, N), that neither its rows nor its columns explain."""
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return float((rest**2).sum())


def detectable_mean(n: int, spread: float) -> float | None:
    """Smallest mean difference over n tasks seen with 80 % power; None where none is. It takes six tasks."""
    return Estimate(0.0, spread / math.sqrt(n), n - 1).detectable() if n >= 6 else None


# ---- shares
def success_interval(rates: np.ndarray, samples: int) -> list[float]:
    """95 % interval of a success over tasks, shape (N,), of so many ``samples``, each right or wrong."""
    return share_interval(rates, np.ones_like(rates), samples)


def share_interval(
    numerators: np.ndarray, denominators: np.ndarray, samples: float | None = None
) -> list[float]:
    """95 % interval of a share, the ratio of two totals over clusters of shape (N,), within [0, 1].

    Clusters are tasks: what went right of the occasions of each. Clusters with no occasion say nothing. For a
    mean of rates, where every denominator is 1, ``samples`` says how many lie behind them all. Wilson's
    interval on an effective sample size: samples / (1 + (size - 1) correlation), where size is the mean
    cluster that a sample lies in. The correlation within clusters is estimated from the linearised variance
    (Cochran 1977, section 6.3) and drawn to a prior, as few events say little of it; without that intervals
    near 0 and 1 cover 81 to 90 % (tests/test_statistics.py).
    """
    x, m = numerators[denominators > 0], denominators[denominators > 0]
    _check(x, 1)
    total = float(m.sum())
    samples = total if samples is None else float(samples)
    size = float(m @ m) / total * samples / total
    share = min(max(float(x.sum()) / total, 0.0), 1.0)
    spread, correlation = share * (1 - share), 0.0
    if size > 1:
        influence = (x - share * m) / m.mean()
        variance = float(influence @ influence) / (x.size * max(x.size - 1, 1))
        excess = (variance / max(spread / samples, _TINY) - 1) / (size - 1)
        seen = 4 * spread * total**2 / float(m @ m)  # how many clusters tell of the correlation
        correlation = (PRIOR_WEIGHT * PRIOR + seen * min(max(excess, 0.0), 1.0)) / (PRIOR_WEIGHT + seen)
    effective, z2 = samples / (1 + max(size - 1, 0.0) * correlation), Z95**2
    centre, scale = share + z2 / (2 * effective), 1 + z2 / effective
    half = math.sqrt(z2 * (spread / effective + z2 / (4 * effective**2)))
    low, high = (centre - half) / scale, (centre + half) / scale
    return [min(max(low, 0.0), share), max(min(high, 1.0), share)]


# ---- several tests
def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's adjusted p values of one family of tests (Scandinavian J. of Statistics 6:65, 1979)."""
    order = np.argsort(pvalues, kind="stable")
    adjusted = np.empty(len(order))
    steps = [pvalues[test] * (len(order) - done) for done, test in enumerate(order)]
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1) if steps else steps
    return adjusted.tolist()


def dunnett_p(t: float, tests: int, freedom: float) -> float:
    """Chance that the largest of so many |t| exceeds this one, all against one arm that they equal.

    As the tests share one arm, each two of them correlate by a half (Dunnett, JASA 50:1096, 1955).
    """
    if tests == 1:  # Student's, without the error of an integral
        return 2 * float(special.stdtr(freedom, -abs(t)))
    correlation = np.full((tests, tests), 0.5) + 0.5 * np.eye(tests)
    largest = scipy.stats.multivariate_t(shape=correlation, df=freedom)
    bound = np.full(tests, abs(t))
    return max(1 - float(largest.cdf(bound, lower_limit=-bound, random_state=0)), 0.0)


def dunnett_critical(tests: int, freedom: float) -> float:
    """The |t| that so many tests against one arm exceed by chance in 5 % of families."""
    least, most = (_student(freedom, 1 - level / 2) for level in (ALPHA, ALPHA / tests))
    return float(brentq(lambda t: dunnett_p(t, tests, freedom) - ALPHA, 0.99 * least, 1.01 * most, xtol=1e-4))


def _student(freedom: float, share: float) -> float:
    return float(special.stdtrit(freedom, share))


def _seen(error: float, n: int) -> float:
    """The standard error; where n tasks are all equal, what those that may differ unseen would make it."""
    if error > _TINY:
        return error
    return (1 - (ALPHA / 2) ** (1 / n)) / _student(max(n - 1, 1), 1 - ALPHA / 2)


def _check(values: np.ndarray, rank: int) -> None:
    assert values.ndim == rank and values.size and values.dtype == np.float64
