"""Estimators, intervals, tests and power for success over tasks: pure functions of arrays.

The task is the cluster: every interval and test is over tasks, whatever the number of samples of each. The
rules were chosen by simulation (tests/test_statistics.py): a percentile bootstrap over tasks covers 88 to 94
% where a 95 % interval is asked of 15 to 30 tasks, so there is none here. Leaves out records and tables.
"""

import math
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import scipy  # scipy.stats, half a second, where it is used
from scipy import special
from scipy.optimize import brentq

ALPHA = 0.05  # level of every test; intervals are at 1 - ALPHA
POWER = 0.8  # at which a smallest detectable effect is stated
Z95 = float(special.ndtri(1 - ALPHA / 2))
SEEDS = 3  # training seeds below which an interval is given and no verdict
PRIOR, PRIOR_WEIGHT = 0.6, 1.0  # correlation within tasks before anything is seen, and its weight in tasks
_TINY = 1e-12  # differences below this are none
_FAR = 37.0  # standard errors whose p is hardly a number any more
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
def share_interval(
    numerators: np.ndarray, denominators: np.ndarray, samples: float | None = None, critical: float = Z95
) -> list[float]:
    """95 % interval of a share, the ratio of two totals over clusters of shape (N,), within [0, 1].

    Clusters are tasks: what went right of the occasions of each. Clusters with no occasion say nothing and
    leave no trace. For a mean of rates, where every denominator is 1, ``samples`` says how many lie behind
    them all. Wilson's interval on an effective sample size: samples / (1 + (size - 1) correlation), where
    size is the mean cluster that a sample lies in. The correlation within clusters is estimated from the
    linearised variance and drawn to a prior, as few events say little of it, and without that intervals near
    0 and 1 cover 81 to 90 % (tests/simulated_statistics.py).
    """
    x, m = numerators[denominators > 0], denominators[denominators > 0]
    _check(x)
    total = float(m.sum())
    samples = total if samples is None else float(samples)
    size = float(m @ m) / total * samples / total
    share = min(max(float(x.sum()) / total, 0.0), 1.0)
    spread, correlation = share * (1 - share), 0.0
    if size > 1:
        _, influence = ratio_influence(x, m)
        variance = float(influence @ influence) / (x.size * max(x.size - 1, 1))
        excess = (variance / max(spread / samples, _TINY) - 1) / (size - 1)
        seen = 4 * spread * total**2 / float(m @ m)  # how many clusters tell of the correlation
        correlation = (PRIOR_WEIGHT * PRIOR + seen * min(max(excess, 0.0), 1.0)) / (PRIOR_WEIGHT + seen)
    effective, z2 = samples / (1 + max(size - 1, 0.0) * correlation), critical**2
    centre = share + z2 / (2 * effective)
    half = math.sqrt(z2 * (spread / effective + z2 / (4 * effective**2)))
    scale = 1 + z2 / effective
    low, high = (centre - half) / scale, (centre + half) / scale
    return [min(max(low, 0.0), share), max(min(high, 1.0), share)]


def success_interval(rates: np.ndarray, samples: int | None = None) -> list[float]:
    """95 % interval of a mean success over tasks, shape (N,), with so many ``samples`` of them all."""
    return share_interval(rates, np.ones_like(rates), samples)


def mean_interval(
    values: np.ndarray, *, low: float, high: float, alpha: float = ALPHA, p: float | None = None
) -> list[float]:
    """Interval at 1 - ``alpha`` of a mean over tasks by Student's t, in [low, high]; values have shape (N,).

    Where all values are equal t would claim certainty. Then the exact binomial bound on the unseen says how
    many tasks could differ, and the interval is what the mean would be if those lay at ``low`` or ``high``.
    A ``p`` of "the mean is 0" makes the interval ``agree`` with it.
    """
    _check(values)
    n, mean = values.size, float(values.mean())
    if np.ptp(values) < _TINY:
        unseen = 1 - (alpha / 2) ** (1 / n)
        bounds = [mean - (mean - low) * unseen, mean + (high - mean) * unseen]
    else:
        half = _student(n - 1, 1 - alpha / 2) * float(values.std(ddof=1)) / math.sqrt(n)
        bounds = [mean - half, mean + half]
    bounds = bounds if p is None else agree(bounds, mean, p, alpha, n - 1)
    return [max(bounds[0], low), min(bounds[1], high)]


def difference_interval(
    differences: np.ndarray, single: bool, p: float | None = None, alpha: float = ALPHA
) -> list[float]:
    """Interval at 1 - ``alpha`` of a mean paired difference, of shape (N,), that ``agree``s with ``p``.

    For one right-or-wrong sample a task (``single``) Agresti and Min's, Wald's with half a task added to
    each of the four cells (Statistics in Medicine 24:729, 2005); otherwise Student's t over tasks.
    """
    if not single:
        return mean_interval(differences, low=-1.0, high=1.0, alpha=alpha, p=p)
    _check(differences)
    gained, lost = float(np.sum(differences > 0)) + 0.5, float(np.sum(differences < 0)) + 0.5
    n = differences.size + 2
    mean = (gained - lost) / n
    half = _student(math.inf, 1 - alpha / 2) * math.sqrt(((gained + lost) / n - mean**2) / n)
    bounds = [mean - half, mean + half]
    bounds = bounds if p is None else agree(bounds, mean, p, alpha, math.inf)
    return [max(bounds[0], -1.0), min(bounds[1], 1.0)]


def agree(bounds: list[float], mean: float, p: float, alpha: float, freedom: float) -> list[float]:
    """An interval that holds 0 exactly where the test does not reject it.

    The values that an inverted test does not reject, where 0 is tested by ``p`` and the others by Student's
    t. Where the two differ on 0, which they do near the border only, the bound on the side of 0 is moved: to
    the mean's distance from 0 times the critical quantile over that of ``p``.
    """
    if (p < alpha) != (bounds[0] <= 0 <= bounds[1]) or mean == 0:
        return bounds
    quantile = max(_student(max(freedom, 1), 1 - p / 2), _TINY)
    near = mean - mean * _student(max(freedom, 1), 1 - alpha / 2) / quantile
    return [near, bounds[1]] if mean > 0 else [bounds[0], near]


def ratio_influence(numerators: np.ndarray, denominators: np.ndarray) -> tuple[float, np.ndarray]:
    """The ratio of two totals over tasks (N,), and each task's influence on it (Cochran 1977, section 6.3).

    The influence is (numerator - ratio * denominator) / mean denominator, whose mean is 0.
    """
    _check(numerators)
    _check(denominators)
    assert numerators.shape == denominators.shape and denominators.sum() != 0
    ratio = float(numerators.sum() / denominators.sum())
    return ratio, (numerators - ratio * denominators) / denominators.mean()


def clustered(values: np.ndarray, clusters: np.ndarray, alpha: float = ALPHA) -> dict[str, Any]:
    """``ci95``, ``p`` and the number ``n`` of clusters of a mean over tasks whose clusters are the evidence.

    Linearised, with Student's t; the degrees of freedom are of as many clusters as would be equally large.
    Clusters of one mean are as many values without spread to ``mean_interval`` and ``mean_p``.
    """
    sizes, mean = np.bincount(clusters).astype(float), float(values.mean())
    n, freedom = sizes.size, max(values.size**2 / float(sizes @ sizes) - 1, 1.0)
    rest = np.bincount(clusters, values - mean)
    error = math.sqrt(n / max(n - 1, 1) * float(rest @ rest)) / values.size
    if n < 2:
        return {"ci95": [-1.0, 1.0], "p": 1.0, "n": n}
    if error < _TINY:
        p = mean_p(means := np.bincount(clusters, values) / sizes)
        return {"ci95": mean_interval(means, low=-1.0, high=1.0, alpha=alpha, p=p), "p": p, "n": n}
    half = _student(freedom, 1 - alpha / 2) * error
    bounds = [max(mean - half, -1.0), min(mean + half, 1.0)]
    return {"ci95": bounds, "p": _two_sided(mean, error, freedom), "n": n}


def shares_change(before: np.ndarray, after: np.ndarray) -> tuple[float, list[float], float]:
    """Difference of two shares over the same tasks, its 95 % interval and its p.

    Both have shape (2, N): what happened and the occasions of each task. The two ``share_interval``s joined
    by the square-and-add rule with the correlation of the tasks' influences (Newcombe 1998, Statistics in
    Medicine 17:2635); the p is where that interval's bound is 0.
    """
    (a, u), (b, v) = ratio_influence(*before), ratio_influence(*after)
    norm = math.sqrt(float(u @ u) * float(v @ v))
    correlation = float(u @ v) / norm if norm > _TINY else 0.0

    def bounds(critical: float) -> list[float]:
        (a_low, a_high), (b_low, b_high) = (
            share_interval(*counts, critical=critical) for counts in (before, after)
        )
        down, up = (b - b_low, a_high - a), (b_high - b, a - a_low)
        halves = [math.sqrt(max(x * x + y * y - 2 * correlation * x * y, 0.0)) for x, y in (down, up)]
        return [b - a - halves[0], b - a + halves[1]]

    side = 0 if b > a else 1
    near = lambda critical: bounds(critical)[side] * (1 if b > a else -1)  # noqa: E731 - above 0: rejected
    if abs(b - a) < _TINY:
        p = 1.0
    elif near(_FAR) > 0:
        p = _SMALLEST_P
    else:
        p = 2 * float(special.ndtr(-brentq(near, 1e-6, _FAR))) if near(1e-6) > 0 else 1.0
    low, high = bounds(Z95)
    return b - a, [max(low, -1.0), min(high, 1.0)], p


def interaction(table: np.ndarray) -> float:
    """Sum of squares of a two-way table, shape (S, N), that neither its rows nor its columns explain."""
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return float((rest**2).sum())


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
    inner = interaction(rates) / ((s - 1) * max(n - 1, 1)) / (s * n)
    variance = max(seed + task - inner, seed, task)
    parts = seed**2 / (s - 1) + task**2 / max(n - 1, 1) + inner**2 / ((s - 1) * max(n - 1, 1))
    return math.sqrt(variance), variance**2 / parts if parts > 0 else float(s - 1)


def seeds_interval(rates: np.ndarray, *, low: float, high: float, alpha: float = ALPHA) -> list[float]:
    """Interval at 1 - ``alpha`` of the mean over seeds and tasks, shape (S, N), within [low, high]."""
    error, freedom = seeds_spread(rates)
    if error < _TINY:
        return mean_interval(rates.mean(axis=0), low=low, high=high, alpha=alpha)
    mean, half = float(rates.mean()), _student(freedom, 1 - alpha / 2) * error
    return [max(mean - half, low), min(mean + half, high)]


# ---- tests
def sign_flip_p(differences: np.ndarray) -> float:
    """Two-sided p of "the two policies are exchangeable within each task", from differences of shape (N,).

    Fisher's randomisation test of the mean, exact: differences of rates are whole multiples of some 1/L, so
    the distribution over all 2^N flips is a convolution. Where there is no L up to 1000 it is Monte Carlo
    (scipy), and over 1,000 tasks Student's t, which by then is the same. Rates have few values, so sums often
    tie with the observed one and the plain p rejects in 3 to 4 % of null studies. Ties count by half
    (Lancaster 1961, JASA 56:223), which brings that to 5 %. For right or wrong outcomes it is McNemar's mid-p
    (Fagerland et al. 2013, BMC Med. Res. Methodol. 13:91).
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
        positive[::step] = scipy.stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.convolve(chances, positive)
    sums = np.abs(2 * np.arange(total + 1) - total)
    p = float(chances[sums > observed].sum() + 0.5 * chances[sums == observed].sum())
    return max(min(p, 1.0), _SMALLEST_P)


def _monte_carlo_p(differing: np.ndarray) -> float:
    test = scipy.stats.permutation_test(
        (differing,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=9_999,
        batch=1000,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def _whole_steps(values: np.ndarray) -> np.ndarray | None:
    """Values as whole multiples of one 1/L with the smallest L, or None."""
    for scale in range(1, 1001):
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
    return _step_down(pvalues, lambda test, left: pvalues[test] * left)


def holm_levels(pvalues: Sequence[float]) -> list[float]:
    """The level at which Holm's procedure decides each test: an interval at it holds 0 where it accepts.

    ALPHA / m, ALPHA / (m - 1) ... for those it rejects, in order; the first level that failed for the others.
    """
    return _step_levels(pvalues, holm(pvalues), lambda test, left: ALPHA / left)


def dunnett(pvalues: Sequence[float], freedom: Sequence[float]) -> tuple[list[float], list[float]]:
    """Adjusted p values of t tests of several arms against one, and the level at which each is decided.

    Stepping down as Holm does. As the tests share one arm, each two of them correlate by a half, so that less
    of a correction keeps the family's error (Dunnett, JASA 50:1096, 1955; Dunnett and Tamhane, Statistics in
    Medicine 10:939, 1991). That takes arms that vary alike: with some ten tasks, or where the one arm hardly
    varies, simulated families err in 6 to 8 % instead of 5.
    """

    def corrected(test: int, left: int) -> float:
        p = pvalues[test]
        largest = _largest_of(left, float(scipy.stats.t.isf(p / 2, freedom[test])), freedom[test])
        return min(max(largest, p), left * p)  # which it lies between, whatever the quadrature's error

    adjusted = _step_down(pvalues, corrected)
    levels = _step_levels(pvalues, adjusted, lambda test, left: dunnett_level(freedom[test], left))
    # where degrees of freedom differ, a test behind one that failed may be below its own level
    return adjusted, [
        level if own < ALPHA else min(level, p)
        for level, own, p in zip(levels, adjusted, pvalues, strict=True)
    ]


@lru_cache(1024)
def dunnett_level(freedom: float, tests: int) -> float:
    """The level of one t test at which the family-wise error of so many against one arm is ALPHA."""
    if tests == 1:
        return ALPHA
    least, most = (float(scipy.stats.t.isf(level / 2, freedom)) for level in (ALPHA, ALPHA / tests / 1.1))
    t = float(brentq(lambda t: _largest_of(tests, t, freedom) - ALPHA, least, most, xtol=1e-6))
    return 2 * float(scipy.stats.t.sf(t, freedom))


@lru_cache(1024)
def _errors(freedom: float) -> np.ndarray:
    """Quantiles of an estimated standard error's share of the true one, shape (200,)."""
    return np.sqrt(scipy.stats.chi2.ppf((np.arange(200) + 0.5) / 200, freedom) / freedom)


def _largest_of(tests: int, t: float, freedom: float) -> float:
    """Chance that the largest of so many |t| is above ``t``, all against one arm that they equal."""
    error = _errors(freedom)[:, None]
    shared, weights = np.polynomial.hermite_e.hermegauss(40)  # the one arm's own error
    bound = math.sqrt(2) * t * error
    within = special.ndtr(shared + bound) - special.ndtr(shared - bound)
    return 1 - float(np.mean(within**tests @ weights)) / float(weights.sum())


def _step_down(pvalues: Sequence[float], corrected: Callable[[int, int], float]) -> list[float]:
    """Adjusted p values, the smallest first: ``corrected(test, left)`` where so many tests are left."""
    order = np.argsort(pvalues, kind="stable")
    steps = [corrected(test, len(order) - done) for done, test in enumerate(order)]
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1) if steps else steps
    return adjusted.tolist()


def _step_levels(
    pvalues: Sequence[float], adjusted: Sequence[float], level: Callable[[int, int], float]
) -> list[float]:
    ranks, rejected = np.argsort(np.argsort(pvalues, kind="stable")), sum(p < ALPHA for p in adjusted)
    return [level(test, len(adjusted) - min(int(rank), rejected)) for test, rank in enumerate(ranks)]


# ---- power
def mcnemar_power(n: int, difference: float, discordant: float, alpha: float = ALPHA) -> float:
    """Power of McNemar's mid-p test at ``alpha``, summed over all outcomes.

    ``difference`` is the true one, ``discordant`` the share of the n tasks on which the policies differ.
    """
    assert n > 0 and 0 <= difference <= 1 and 0 <= discordant <= 1
    discordant = max(discordant, difference)
    if discordant == 0:
        return 0.0
    spread = 10 * math.sqrt(n * discordant * (1 - discordant)) + 10
    m = np.arange(max(1, math.floor(n * discordant - spread)), min(n, math.ceil(n * discordant + spread)) + 1)
    critical = scipy.stats.binom.ppf(alpha / 2, m, 0.5)
    mid = scipy.stats.binom.cdf(critical, m, 0.5) - scipy.stats.binom.pmf(critical, m, 0.5) / 2
    critical -= mid >= alpha / 2  # the last that rejects
    gain = (discordant + difference) / (2 * discordant)
    rejects = scipy.stats.binom.cdf(critical, m, gain) + scipy.stats.binom.sf(m - critical - 1, m, gain)
    return float(np.sum(scipy.stats.binom.pmf(m, n, discordant) * rejects))


def mean_power(n: int, difference: float, spread: float, alpha: float = ALPHA) -> float:
    """Power at ``alpha`` of a t test of a mean difference over n tasks with this spread between them."""
    critical, shift = _student(n - 1, 1 - alpha / 2), difference / spread * math.sqrt(n)
    other = scipy.stats.nct.cdf(-critical, n - 1, shift)  # no number for the far tail
    return float(scipy.stats.nct.sf(critical, n - 1, shift) + np.nan_to_num(other))


def detectable_mcnemar(n: int, discordant: float, alpha: float = ALPHA, mean: float = 0.0) -> float | None:
    """Smallest difference that McNemar's mid-p sees with 80 % power; None where it can see none.

    A policy that is better by d on tasks of which the share ``mean`` is solved, in proportion to what each
    task lacks, differs from the other on ``discordant`` + d (1 - discordant / (1 - mean)) of them.
    """
    if mcnemar_power(n, 1.0, 1.0, alpha) < POWER:
        return None
    more = 1 - discordant / max(1 - mean, discordant / 2, _TINY)
    differing = lambda d: min(max(discordant + d * more, d), 1.0)  # noqa: E731 - where the difference is d
    return float(brentq(lambda d: mcnemar_power(n, d, differing(d), alpha) - POWER, 0.0, 1.0, xtol=1e-4))


def detectable_mean(n: int, spread: float, alpha: float = ALPHA, uneven: float = 0.0) -> float | None:
    """Smallest mean difference seen with 80 % power; None where none can be. 6 tasks are the least.

    ``spread`` is between the tasks' differences where there is none on average. A difference d differs
    between tasks by ``uneven`` d more: it is in proportion to what each lacks.
    """
    if n < 6 or spread < _TINY:
        return detectable_mcnemar(n, 0.0, alpha)
    short = lambda d: mean_power(n, d, math.hypot(spread, min(uneven, 1.0) * d), alpha) - POWER  # noqa: E731
    return float(brentq(short, 0.0, 1.0, xtol=1e-5)) if short(1.0) > 0 else None


def detectable_seeds(error: float, freedom: float, alpha: float = ALPHA) -> float:
    """Smallest mean difference seen with 80 % power, from ``seeds_spread``."""
    return min((_student(freedom, 1 - alpha / 2) + _student(freedom, POWER)) * error, 1.0)


def _student(freedom: float, share: float = 1 - ALPHA / 2) -> float:
    """Quantile of Student's t; of the normal distribution for infinite degrees of freedom."""
    return float(special.ndtri(share) if math.isinf(freedom) else special.stdtrit(freedom, share))


def _two_sided(mean: float, error: float, freedom: float) -> float:
    return max(min(2 * float(special.stdtr(freedom, -abs(mean) / error)), 1.0), _SMALLEST_P)


def _check(values: np.ndarray) -> None:
    assert values.ndim == 1 and values.size and values.dtype == np.float64
