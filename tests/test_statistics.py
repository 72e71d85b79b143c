"""Literals, equality with scipy and statsmodels, and a small part of the simulated studies, with fixed seeds."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint

from agentkit.evaluation import statistics as st
from agentkit.evaluation.sweeps import differences


@pytest.mark.parametrize("scores", [[0.0], [1.0], [1.0, 0.0, 0.0, 0.0], [1.0] * 8, [0.2, 0.9, 0.2, 0.5]])
def test_the_best_of_k_equals_enumeration(scores):
    for k in range(1, len(scores) + 1):
        drawn = list(combinations(scores, k))
        assert st.best_of(scores, k) == pytest.approx(np.mean([max(d) for d in drawn]))
        assert -st.best_of([-x for x in scores], k) == pytest.approx(np.mean([min(d) for d in drawn]))


# ---- equality with scipy and statsmodels
def test_single_samples_give_wilsons_interval():
    for solved, n in [(0, 10), (2, 3), (7, 20), (50, 50)]:
        rates = np.repeat([1.0, 0.0], [solved, n - solved])
        want = proportion_confint(solved, n, method="wilson")
        assert st.success_interval(rates, n) == pytest.approx(want, abs=1e-12)


def test_means_over_tasks_equal_scipy():
    values = np.random.default_rng(0).normal(0.1, 0.3, 25)
    test, found = stats.ttest_1samp(values, 0.0), st.over_tasks(values)
    assert found.interval(-1, 1) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.p == pytest.approx(test.pvalue)


def test_unequal_clusters_have_the_freedom_of_as_many_equal_ones():
    """10 tasks in clusters of 8, 1 and 1: 100 / 66 equal ones, so the least freedom, 1; of 4, 3 and 3: 100 / 34."""
    values = np.linspace(0, 1, 10)
    assert st.over_clusters(values, np.repeat([0, 1, 2], [8, 1, 1])).freedom == 1.0
    assert st.over_clusters(values, np.repeat([0, 1, 2], [4, 3, 3])).freedom == pytest.approx(100 / 34 - 1)


def test_few_tasks_that_differ_show_nothing():
    for differ in range(6):
        values = np.repeat([1.0, 0.0], [differ, 200 - differ])
        assert st.over_tasks(values).p > 0.05, differ
    assert st.over_tasks(np.repeat([1.0, 0.0], [8, 192])).p < 0.05
    assert st.over_tasks(np.ones(20)).interval(-1, 1) == pytest.approx([0.025 ** (1 / 20), 1.0])


def test_holm_and_power_equal_statsmodels():
    pvalues = [0.01, 0.04, 0.03, 0.5]
    assert st.holm(pvalues) == pytest.approx(multipletests(pvalues, method="holm")[1]) and st.holm([]) == []
    smallest = st.detectable_mean(60, 0.4)
    power = TTestPower().power(smallest / 0.4, 60, 0.05)
    assert power == pytest.approx(0.8, abs=0.005)
    assert st.detectable_mean(5, 0.4) is None


def test_dunnett_equals_scipy_and_its_critical_value_gives_back_the_level():
    rng = np.random.default_rng(0)
    control, *arms = (rng.normal(m, 1, 40) for m in (0, 0.3, 0.5, 0.1))
    want = stats.dunnett(*arms, control=control, rng=rng)
    p = [st.dunnett_p(float(t), 3, 4 * 39) for t in want.statistic]
    assert p == pytest.approx(want.pvalue, abs=2e-3)
    assert st.dunnett_p(2.26, 1, 9) == pytest.approx(2 * stats.t.sf(2.26, 9), rel=1e-9), "one arm: Student's"
    for tests, freedom in ((1, 4.0), (3, 12.5), (6, 40.0)):
        critical = st.dunnett_critical(tests, freedom)
        assert st.dunnett_p(critical, tests, freedom) == pytest.approx(0.05, abs=5e-4)


def test_seeds_and_tasks_are_both_random():
    rng = np.random.default_rng(0)
    seeds, tasks = rng.normal(0, 0.1, (3, 1)), rng.normal(0, 0.1, (1, 400))
    found = st.over_seeds(seeds + tasks)
    assert found.error == pytest.approx(np.std(seeds, ddof=1) / 3**0.5, rel=0.05), "seeds are the few"
    assert 2 <= found.freedom < 2.5
    same = st.over_seeds(np.repeat(tasks, 3, axis=0))
    assert same.error == pytest.approx(st.over_tasks(tasks[0]).error)


# ---- simulated studies: each task has a chance of success of its own, and its samples are drawn with it
def chances(rng, shape, mean, alike):
    """Chances of success of tasks whose samples correlate by ``alike``."""
    more = (1 - alike) / alike
    return rng.beta(mean * more, (1 - mean) * more, shape)


@pytest.mark.parametrize(("n", "k", "mean"), [(60, 2, 0.05), (60, 4, 0.5), (216, 4, 0.95)])
def test_success_intervals_cover(n, k, mean):
    rng = np.random.default_rng(1)
    rates = rng.binomial(k, chances(rng, (1000, n), mean, 0.3)) / k
    low, high = np.array([st.success_interval(own, n * k) for own in rates]).T
    assert 0.925 <= np.mean((low <= mean) & (mean <= high)) <= 0.975


@pytest.mark.parametrize(("n", "k", "mean"), [(60, 4, 0.5), (216, 2, 0.3)])
def test_the_paired_test_keeps_its_level_and_its_interval_covers_8_points(n, k, mean):
    rng = np.random.default_rng(1)
    chance = chances(rng, (1000, n), mean, 0.3)
    raised = chance + 0.08 / (1 - mean) * (1 - chance)
    before, same, after = (rng.binomial(k, c) / k for c in (chance, chance, raised))
    assert 0.03 <= np.mean([st.over_tasks(d).p < 0.05 for d in same - before]) <= 0.07
    low, high = np.array([st.over_tasks(d).interval(-1, 1) for d in after - before]).T
    assert 0.93 <= np.mean((low <= 0.08) & (high >= 0.08)) <= 0.97


def equal_arms(rng, arms, seeds, tasks, spread):
    """Success of shape (A, S, N) of arms that are equal but for luck: in seeds, and in what suits them."""
    chance = rng.uniform(0.25, 0.75, tasks)
    for own, size in ((spread, (arms, seeds, 1)), (0.1, (arms, 1, tasks))):
        chance = chance + rng.normal(0, own / np.sqrt(2), size)
    return rng.binomial(4, np.clip(chance, 0, 1)) / 4


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "spread"), [((4, 3, 216), 0.0), ((4, 5, 216), 0.03)])
def test_a_sweep_keeps_its_family_wise_error(shape, spread):
    """Without the intervals of against_one, which take long."""
    rng, tests = np.random.default_rng(1), shape[0] - 1

    def is_shown(found):
        return found.p < 0.05 and st.dunnett_p(found.mean / found.error, tests, found.freedom) < 0.05

    studies = (differences(equal_arms(rng, *shape, spread)) for _ in range(1500))
    assert 0.035 <= np.mean([any(map(is_shown, own)) for own in studies]) <= 0.065
