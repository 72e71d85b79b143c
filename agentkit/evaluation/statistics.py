"""Estimators, intervals, tests and power for success over tasks: pure functions of arrays.

The task is the cluster: every interval and test is over tasks, whatever the number of samples of each. The
rules were chosen by simulation (tests/test_statistics.py): a percentile bootstrap over tasks covers 88 to 94
% where a 95 % interval is asked of 15 to 30 tasks, so there is none here. Leaves out records and tables.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
from scipy import special, stats
from scipy.optimize import brentq

ALPHA = 0.05  # level of every test; intervals are at 1 - ALPHA
POWER = 0.8  # at which a smallest detectable effect is stated
_TINY = 1e-12  # differences below this are none
_FEW = 10  # differing tasks below which a mid-p is not used
_SMALLEST_P = sys.float_info.min  # an exact p underflows for thousands of tasks


# ---- several samples of one task
def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k samples is right: 1 - C(n-c, k) / C(n, k), of n with c right ones.

    Unbiased (Chen et al. 2021, arXiv 2107.03374); samples are drawn without replacement.
    """
    _check_draw(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Chance that all of k samples are right: C(c, k) / C(n, k) (Yao et al. 2024, arXiv 2406.12045)."""
    _check_draw(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check_draw(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"k = {k} of n = {n} samples with c = {c} right: use 1 <= k <= n and 0 <= c <= n.")


# ---- intervals
def success_interval(rates: np.ndarray, samples: int | None = None) -> list[float]:
    """95 % interval of a mean success over tasks; ``rates`` has shape (N,).

    Wilson's interval. Where rates lie between 0 and 1, ``samples`` (of all tasks together) is given and
    bounds the effective sample size p (1-p) / var(mean), and Student's quantile is used: the modified Wilson
    interval for clustered samples (Franco et al. 2019, J. Survey Stat. Methodol. 7:334).
    """
    _check(rates)
    n, p = rates.size, float(rates.mean())
    effective, z2 = float(n), _student(math.inf) ** 2
    if samples is not None:
        variance = float(rates.var(ddof=1)) / n if n > 1 else 0.0
        z2 = _student(max(n - 1, 1)) ** 2
        if variance > _TINY:
            effective = min(p * (1 - p) / variance, max(samples, n))
    centre = p + z2 / (2 * effective)
    half = math.sqrt(z2 * (max(p * (1 - p), 0.0) / effective + z2 / (4 * effective**2)))
    scale = 1 + z2 / effective
    return [max((centre - half) / scale, 0.0), min((centre + half) / scale, 1.0)]


def mean_interval(values: np.ndarray, *, low: float, high: float) -> list[float]:
    """95 % interval of a mean over tasks by Student's t, within [low, high]; ``values`` has shape (N,).

    Where all values are equal t would claim certainty. Then the exact binomial bound on the unseen says how
    many tasks could differ, and the interval is what the mean would be if those lay at ``low`` or ``high``.
    """
    _check(values)
    n, mean = values.size, float(values.mean())
    if np.ptp(values) < _TINY:
        unseen = 1 - (ALPHA / 2) ** (1 / n)
        return [mean - (mean - low) * unseen, mean + (high - mean) * unseen]
    half = _student(n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return [max(mean - half, low), min(mean + half, high)]


def difference_interval(differences: np.ndarray, single: bool) -> list[float]:
    """95 % interval of a mean paired difference, of shape (N,).

    For one right-or-wrong sample a task (``single``) Agresti and Min's, Wald's with half a task added to
    each of the four cells (Statistics in Medicine 24:729, 2005); otherwise Student's t over tasks.
    """
    if not single:
        return mean_interval(differences, low=-1.0, high=1.0)
    _check(differences)
    gained, lost = float(np.sum(differences > 0)) + 0.5, float(np.sum(differences < 0)) + 0.5
    n = differences.size + 2
    mean = (gained - lost) / n
    half = _student(math.inf) * math.sqrt(((gained + lost) / n - mean**2) / n)
    return [max(mean - half, -1.0), min(mean + half, 1.0)]


def ratio_influence(numerators: np.ndarray, denominators: np.ndarray) -> tuple[float, np.ndarray]:
    """The ratio of two totals over tasks (N,), and each task's influence on it (Cochran 1977, section 6.3).

    The influence is (numerator - ratio * denominator) / mean denominator, whose mean is 0.
    """
    _check(numerators)
    _check(denominators)
    assert numerators.shape == denominators.shape and denominators.sum() != 0
    ratio = float(numerators.sum() / denominators.sum())
    return ratio, (numerators - ratio * denominators) / denominators.mean()


def ratio_interval(ratio: float, influence: np.ndarray, *, high: float) -> list[float] | None:
    """95 % interval of a ratio within [0, high]; None where one task, or equal ones, say nothing of it."""
    bounds = mean_interval(ratio + influence, low=0.0, high=high) if influence.size > 1 else [math.inf]
    return bounds if math.isfinite(bounds[-1]) else None


def seeds_spread(rates: np.ndarray) -> tuple[float, float]:
    """Standard error of the mean over S >= 2 seeds and N tasks, both random, and its degrees of freedom.

    The two-way layout without replication: var = (MS_seed + MS_task - MS_rest) / (S N), with Satterthwaite's
    degrees of freedom. A bootstrap of seeds, then tasks, converges to the first two terms, but is too
    narrow by sqrt((S-1)/S) in the seeds: with three of them its 95 % interval covered 87 to 96 % where
    seeds matter.
    """
    assert rates.ndim == 2 and rates.shape[0] > 1 and rates.dtype == np.float64
    s, n = rates.shape
    seed = float(rates.mean(axis=1).var(ddof=1)) / s
    task = float(rates.mean(axis=0).var(ddof=1)) / n if n > 1 else 0.0
    rest = rates - rates.mean(axis=0) - rates.mean(axis=1, keepdims=True) + rates.mean()
    inner = float((rest**2).sum()) / ((s - 1) * max(n - 1, 1)) / (s * n)
    variance = max(seed + task - inner, seed, task)
    parts = seed**2 / (s - 1) + task**2 / max(n - 1, 1) + inner**2 / ((s - 1) * max(n - 1, 1))
    return math.sqrt(variance), variance**2 / parts if parts > 0 else float(s - 1)


def seeds_interval(rates: np.ndarray, *, low: float, high: float) -> list[float]:
    """95 % interval of the mean over seeds and tasks, shape (S, N), within [low, high]."""
    error, freedom = seeds_spread(rates)
    if error < _TINY:
        return mean_interval(rates.mean(axis=0), low=low, high=high)
    mean, half = float(rates.mean()), _student(freedom) * error
    return [max(mean - half, low), min(mean + half, high)]


# ---- tests
def mcnemar_p(before: np.ndarray, after: np.ndarray) -> float:
    """Two-sided exact McNemar p of two right-or-wrong outcomes of the same tasks, each of shape (N,).

    Its level is mostly 2 to 4 % where under some 200 tasks differ; ``sign_flip_p`` of the differences,
    McNemar's mid-p for such outcomes, comes closer to 5 % (Fagerland et al. 2013, BMC Med. Res. Methodol.
    13:91).
    """
    assert before.shape == after.shape and before.ndim == 1
    gained, lost = int(np.sum(after > before)), int(np.sum(before > after))
    return max(float(stats.binomtest(gained, gained + lost).pvalue), _SMALLEST_P) if gained + lost else 1.0


def sign_flip_p(differences: np.ndarray, *, mid: bool = True) -> float:
    """Two-sided p of "the two policies are exchangeable within each task", from differences of shape (N,).

    Fisher's randomisation test of the mean, exact: differences of rates are whole multiples of some 1/L, so
    the distribution over all 2^N flips is a convolution. Where there is no L up to 1000 it is Monte Carlo
    (scipy), and over 1,000 tasks Student's t, which by then is the same. Rates have few values, so sums often
    tie with the observed one and the plain p rejects in 3 to 4 % of null studies. ``mid`` counts ties by half
    (Lancaster 1961, JASA 56:223), which brings that to 5 %, where at least 10 tasks differ; with fewer its
    level could pass 6 %.
    """
    _check(differences)
    differing = differences[np.abs(differences) > _TINY]  # a sign flip leaves zeros alone
    if differing.size < 2:
        return 1.0
    steps = _whole_steps(differing)
    if steps is None or int(np.abs(steps).sum()) > 30_000:
        return _monte_carlo_p(differing) if differing.size <= 1000 else mean_p(differences)
    total, observed = int(np.abs(steps).sum()), abs(int(steps.sum()))
    chances = np.ones(1)  # of the sum of the positive ones
    for step, count in zip(*np.unique(np.abs(steps), return_counts=True), strict=True):
        positive = np.zeros(step * count + 1)
        positive[::step] = stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.convolve(chances, positive)
    sums = np.abs(2 * np.arange(total + 1) - total)
    ties = 0.5 if mid and differing.size >= _FEW else 1.0
    p = float(chances[sums > observed].sum() + ties * chances[sums == observed].sum())
    return max(min(p, 1.0), _SMALLEST_P)


def _monte_carlo_p(differing: np.ndarray) -> float:
    test = stats.permutation_test(
        (differing,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=9_999,
        batch=1000,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def _whole_steps(values: np.ndarray, limit: int = 1000) -> np.ndarray | None:
    """Values as whole multiples of one 1/L with the smallest L, or None."""
    for scale in range(1, limit + 1):
        steps = np.rint(values * scale)
        if np.max(np.abs(values * scale - steps)) < 1e-6:
            return steps.astype(np.int64)
    return None


def mean_p(values: np.ndarray) -> float:
    """Two-sided p of "the mean over tasks is 0" by Student's t; a sign test where there is no spread."""
    _check(values)
    n, mean = values.size, float(values.mean())
    if n < 2:
        return 1.0
    if np.ptp(values) >= _TINY:
        return _two_sided(mean, float(values.std(ddof=1)) / math.sqrt(n), n - 1)
    return 1.0 if abs(mean) < _TINY else max(0.5 ** (n - 1), _SMALLEST_P)


def seeds_p(rates: np.ndarray) -> float:
    """Two-sided p of "the mean over seeds and tasks is 0" of differences, shape (S, N)."""
    error, freedom = seeds_spread(rates)
    return mean_p(rates.mean(axis=0)) if error < _TINY else _two_sided(float(rates.mean()), error, freedom)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's adjusted p values of one family of tests (Scandinavian J. of Statistics 6:65, 1979)."""
    adjusted = np.array(pvalues, dtype=float)  # a copy
    order = np.argsort(adjusted)
    steps = np.maximum.accumulate(adjusted[order] * np.arange(adjusted.size, 0, -1))
    adjusted[order] = np.minimum(steps, 1)
    return adjusted.tolist()


# ---- effect sizes
def effect_sizes(before: np.ndarray, after: np.ndarray) -> dict[str, float | None]:
    """Sizes of a paired difference, of two shapes (N,), that do not depend on the number of tasks.

    cohens_h is the difference of the means on the arcsine scale (0.2 small, 0.5 medium, 0.8 large; Cohen
    1988), cohens_dz the mean difference over its standard deviation (None without spread), odds_ratio the
    tasks that rose for each that fell, half a task added to both.
    """
    assert before.shape == after.shape
    difference = after - before
    spread = float(difference.std(ddof=1)) if difference.size > 1 else 0.0
    return {
        "cohens_h": 2 * (math.asin(math.sqrt(after.mean())) - math.asin(math.sqrt(before.mean()))),
        "cohens_dz": float(difference.mean()) / spread if spread > _TINY else None,
        "odds_ratio": float((np.sum(difference > _TINY) + 0.5) / (np.sum(difference < -_TINY) + 0.5)),
    }


# ---- power
def mcnemar_power(n: int, difference: float, discordant: float) -> float:
    """Power of the exact McNemar test at 5 %, summed over all outcomes.

    ``difference`` is the true one, ``discordant`` the share of the n tasks on which the policies differ.
    """
    assert n > 0 and 0 <= difference <= 1 and 0 <= discordant <= 1
    discordant = max(discordant, difference)
    if discordant == 0:
        return 0.0
    spread = 10 * math.sqrt(n * discordant * (1 - discordant)) + 10
    m = np.arange(max(1, math.floor(n * discordant - spread)), min(n, math.ceil(n * discordant + spread)) + 1)
    critical = stats.binom.ppf(ALPHA / 2, m, 0.5)
    critical -= stats.binom.cdf(critical, m, 0.5) > ALPHA / 2  # the last that rejects
    gain = (discordant + difference) / (2 * discordant)
    rejects = stats.binom.cdf(critical, m, gain) + stats.binom.sf(m - critical - 1, m, gain)
    return float(np.sum(stats.binom.pmf(m, n, discordant) * rejects))


def mean_power(n: int, difference: float, spread: float) -> float:
    """Power at 5 % of a t test of a mean difference over n tasks with this spread between them."""
    critical, shift = _student(n - 1), difference / spread * math.sqrt(n)
    return float(stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift))


def detectable_mcnemar(n: int, discordant: float) -> float | None:
    """Smallest difference that exact McNemar sees with 80 % power; None where it can see none."""
    if mcnemar_power(n, 1.0, 1.0) < POWER:
        return None
    return float(brentq(lambda d: mcnemar_power(n, d, discordant) - POWER, 0.0, 1.0, xtol=1e-4))


def detectable_mean(n: int, spread: float) -> float | None:
    """Smallest mean difference seen with 80 % power; None where none can be. 6 tasks are the least."""
    if n < 6 or spread < _TINY:
        return detectable_mcnemar(n, 0.0)
    largest = 8 * spread / math.sqrt(n)  # eight standard errors: power is above 99 % there even for n = 6
    seen = brentq(lambda d: mean_power(n, d, spread) - POWER, 0.0, largest, xtol=1e-4 * largest)
    return min(float(seen), 1.0)


def detectable_seeds(error: float, freedom: float) -> float:
    """Smallest mean difference seen with 80 % power, from ``seeds_spread``."""
    return min((_student(freedom) + _student(freedom, POWER)) * error, 1.0)


def _student(freedom: float, share: float = 1 - ALPHA / 2) -> float:
    """Quantile of Student's t; of the normal distribution for infinite degrees of freedom."""
    return float(special.ndtri(share) if math.isinf(freedom) else special.stdtrit(freedom, share))


def _two_sided(mean: float, error: float, freedom: float) -> float:
    return max(min(2 * float(special.stdtr(freedom, -abs(mean) / error)), 1.0), _SMALLEST_P)


def _check(values: np.ndarray) -> None:
    assert values.ndim == 1 and values.size and values.dtype == np.float64
