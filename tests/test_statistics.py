"""Literals, equality with scipy and statsmodels, and simulated studies: coverage, level and power, all with
fixed seeds.

The bounds of the simulated studies allow for the noise of a finite number of studies, about three standard
errors.
"""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint

from agentkit.evaluation import statistics as st


# ---- several samples of one task
@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (4, 0), (4, 1), (5, 3), (8, 8), (9, 2)])
def test_draws_equal_enumeration(n, c):
    outcomes = [1] * c + [0] * (n - c)
    for k in range(1, n + 1):
        drawn = list(combinations(outcomes, k))
        assert st.pass_at_k(n, c, k) == pytest.approx(np.mean([max(d) for d in drawn]))
        assert st.pass_hat_k(n, c, k) == pytest.approx(np.mean([min(d) for d in drawn]))


def test_draws_are_unbiased_and_refuse_what_is_no_draw():
    p, n, k = 0.3, 6, 3
    weights = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert sum(w * st.pass_at_k(n, c, k) for c, w in enumerate(weights)) == pytest.approx(1 - 0.7**k)
    assert sum(w * st.pass_hat_k(n, c, k) for c, w in enumerate(weights)) == pytest.approx(0.3**k)
    assert st.pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)  # no overflow
    for n, c, k in [(4, 5, 1), (4, 2, 5), (4, 2, 0)]:
        with pytest.raises(ValueError, match=f"k = {k} of n = {n}"):
            st.pass_at_k(n, c, k)


# ---- equality with scipy and statsmodels
def test_single_samples_give_wilsons_interval():
    for solved, n in [(0, 10), (2, 3), (7, 20), (50, 50)]:
        rates = np.repeat([1.0, 0.0], [solved, n - solved])
        want = proportion_confint(solved, n, method="wilson")
        assert st.success_interval(rates) == pytest.approx(want, abs=1e-12)


def test_intervals_and_p_of_means_equal_scipy():
    values = np.random.default_rng(0).normal(0.1, 0.3, 25)
    test = stats.ttest_1samp(values, 0.0)
    assert st.mean_interval(values, low=-1, high=1) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert st.mean_p(values) == pytest.approx(test.pvalue)


def test_mcnemar_equals_statsmodels_and_literals():
    rng = np.random.default_rng(1)
    for _ in range(20):
        before, after = (rng.integers(0, 2, 40).astype(float) for _ in range(2))
        table = [[np.sum((before == i) & (after == j)) for j in (1, 0)] for i in (1, 0)]
        gained, lost = table[1][0], table[0][1]
        assert gained + lost >= 10
        assert st.mcnemar_p(before, after) == pytest.approx(min(mcnemar(table, exact=True).pvalue, 1.0))
        assert st.mcnemar_p(before, after) == pytest.approx(
            stats.binomtest(int(gained), int(gained + lost)).pvalue
        )
        mid = st.mcnemar_p(before, after) - stats.binom.pmf(min(gained, lost), gained + lost, 0.5)
        assert gained == lost or st.sign_flip_p(after - before) == pytest.approx(mid)
    before, after = np.array([0, 0, 0, 0, 0, 0, 1, 1.0]), np.array([1, 1, 1, 1, 1, 0, 0, 1.0])
    assert st.mcnemar_p(before, after) == pytest.approx(2 * (1 + 6) / 2**6)  # 5 against 1 of 6
    assert st.mcnemar_p(before, before) == 1.0
    assert st.mcnemar_p(np.zeros(3000), np.ones(3000)) > 0


def test_sign_flips_equal_scipy_and_literals():
    rng = np.random.default_rng(2)
    for n in (2, 5, 9, 12):
        for _ in range(5):
            values = rng.integers(-4, 5, n) / 4
            exact = stats.permutation_test(
                (values,), np.sum, permutation_type="samples", n_resamples=2**n
            ).pvalue
            assert st.sign_flip_p(values, mid=False) == pytest.approx(exact)
    assert st.sign_flip_p(np.array([0.5, 0.25, 0.25, 1.0, 0.0])) == pytest.approx(
        2 / 16
    )  # all 4 differing one way
    assert st.sign_flip_p(np.array([0.5, -0.5])) == 1.0 and st.sign_flip_p(np.array([0.5])) == 1.0
    assert st.sign_flip_p(np.full(200, 0.25)) == pytest.approx(1 / 2**200)  # far beyond any resampling
    assert st.sign_flip_p(np.full(4000, 1 / 3)) > 0


def test_sign_flips_of_outcomes_are_exact_mcnemar():
    rng = np.random.default_rng(3)
    before, after = (rng.integers(0, 2, 60).astype(float) for _ in range(2))
    assert st.sign_flip_p(after - before, mid=False) == pytest.approx(st.mcnemar_p(before, after))


def test_sign_flips_of_scores_on_no_lattice_agree_with_the_t_test():
    for n in (80, 5000):
        values = np.random.default_rng(4).normal(0.3 / n**0.5, 0.2, n)
        assert st.sign_flip_p(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.02)


def test_exact_sign_flips_and_student_agree_where_one_takes_over_from_the_other():
    values = np.random.default_rng(18).integers(-8, 9, 3000) / 8 + 1 / 48
    assert st.sign_flip_p(values[:1500]) == pytest.approx(st.mean_p(values[:1500]), abs=0.002)


def test_holm_of_a_literal():
    assert st.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx(
        [0.04, 0.09, 0.09, 0.5]
    )  # 4 x, then 3 x, kept increasing
    assert st.holm([]) == []


def test_holm_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 40):
        pvalues = np.round(rng.uniform(0, 4 / size, size), 2).clip(max=1)  # with ties
        wanted = multipletests(pvalues, method="holm")[1]
        assert st.holm(pvalues) == pytest.approx(wanted) and st.holm(pvalues) == pytest.approx(wanted), (
            "it changes nothing"
        )


def test_effect_sizes_of_literals():
    before, after = np.array([0.0, 0.0, 1.0, 0.5]), np.array([1.0, 0.0, 1.0, 0.0])
    got = st.effect_sizes(before, after)
    assert got["odds_ratio"] == 1.0 and got["cohens_dz"] == pytest.approx(
        0.125 / np.std([1, 0, 0, -0.5], ddof=1)
    )
    assert got["cohens_h"] == pytest.approx(2 * np.arcsin(0.5**0.5) - 2 * np.arcsin(0.375**0.5))
    assert st.effect_sizes(before, before) == {"cohens_h": 0.0, "cohens_dz": None, "odds_ratio": 1.0}


def test_seeds_spread_equals_a_hierarchical_bootstrap_where_that_is_right():
    """Many seeds: resampling seeds, then tasks, gives the same standard error."""
    rng = np.random.default_rng(5)
    rates = 0.5 + rng.normal(0, 0.1, (40, 1)) + rng.normal(0, 0.3, (1, 90)) + rng.normal(0, 0.05, (40, 90))
    draws = [rates[rng.integers(0, 40, 40)][:, rng.integers(0, 90, 90)].mean() for _ in range(3000)]
    assert st.seeds_spread(rates)[0] == pytest.approx(np.std(draws), rel=0.06)


# ---- degenerate inputs
@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_equal_outcomes_do_not_claim_certainty(n, value):
    low, high = st.success_interval(np.full(n, value), samples=4 * n)
    assert 0 <= low <= value <= high <= 1 and high - low > 0.1
    low, high = st.mean_interval(np.full(n, value), low=-1.0, high=1.0)
    assert -1 <= low <= value <= high <= 1 and high - low > 0.1
    if n == 20 and value == 1.0:
        assert low == pytest.approx(
            1 - 2 * 0.1684, abs=1e-4
        )  # Clopper and Pearson's 0.8316 of 20, on a scale of 2


def test_the_smallest_samples_are_defined():
    one = np.array([1.0])
    assert st.mean_p(one) == st.sign_flip_p(one) == 1.0
    assert st.detectable_mean(5, 0.2) is st.detectable_mcnemar(5, 0.3) is None
    assert st.detectable_mcnemar(6, 0.0) is not None
    assert st.seeds_interval(np.full((2, 1), 0.5), low=0, high=1)[1] > 0.5
    assert st.seeds_p(np.zeros((3, 8))) == 1.0


# ---- simulated studies
def outcomes(rng, studies, n, k, shape, lift=0.0):
    """Two policies' rates in many studies: samples of a task share its own success chance. Shapes (R, N) and
    the true lift.
    """
    chance = rng.beta(*shape, (studies, n))
    raised = chance + lift * (1 - chance)
    truth = lift * (1 - shape[0] / sum(shape))
    return rng.binomial(k, chance) / k, rng.binomial(k, raised) / k, truth


def covered(intervals, truth):
    low, high = np.array(intervals).T
    return float(np.mean((low <= truth) & (truth <= high)))


SHAPES = [(0.5, 0.5), (2, 2), (0.6, 2.4)]  # tasks mostly clear-cut, mostly unclear, mostly hard


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "k"), [(30, 4), (60, 8), (180, 4)])
def test_success_intervals_cover(n, k, shape):
    rates, _, _ = outcomes(np.random.default_rng(6), 2000, n, k, shape)
    assert 0.93 <= covered([st.success_interval(r, n * k) for r in rates], shape[0] / sum(shape)) <= 0.97


@pytest.mark.parametrize(("n", "p"), [(40, 0.3), (100, 0.5), (180, 0.85)])
def test_success_intervals_of_single_samples_cover(n, p):
    solved = np.random.default_rng(7).binomial(n, p, 3000)
    known = {s: st.success_interval(np.repeat([1.0, 0.0], [s, n - s])) for s in set(solved)}
    assert 0.93 <= covered([known[s] for s in solved], p) <= 0.97


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "k"), [(20, 8), (60, 4), (180, 1)])
@pytest.mark.parametrize("lift", [0.0, 0.3])
def test_difference_intervals_cover(n, k, shape, lift):
    before, after, truth = outcomes(np.random.default_rng(8), 2000, n, k, shape, lift)
    assert 0.93 <= covered([st.difference_interval(d, k == 1) for d in after - before], truth) <= 0.97


@pytest.mark.parametrize(
    ("seeds", "n", "spread"), [(3, 40, 0.08), (5, 120, 0.05), (5, 60, 0.0), (10, 60, 0.08)]
)
def test_intervals_over_seeds_cover(seeds, n, spread):
    rng = np.random.default_rng(10)
    noise = (
        rng.normal(0, spread, (2000, seeds, 1))
        + rng.normal(0, 0.3, (2000, 1, n))
        + rng.normal(0, 0.3, (2000, seeds, n))
    )
    assert 0.93 <= covered([st.seeds_interval(0.1 + e, low=-9, high=9) for e in noise], 0.1) <= 0.98


def rejected(pvalues):
    return float(np.mean(np.array(pvalues) < 0.05))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "k"), [(30, 8), (60, 4), (180, 4)])
def test_sign_flips_hold_their_level_on_clustered_samples(n, k, shape):
    before, after, _ = outcomes(np.random.default_rng(11), 2000, n, k, shape)
    assert 0.04 <= rejected([st.sign_flip_p(d) for d in after - before]) <= 0.06


def mcnemar_ps(function, n, discordant, gain, studies=4000, seed=12):
    """P values of studies with this share of differing tasks, of which the share ``gain`` rose."""
    rng = np.random.default_rng(seed)
    differ = rng.binomial(n, discordant, studies)
    known = {}
    for m, rose in zip(differ, rng.binomial(differ, gain), strict=True):
        if (m, rose) not in known:
            before = np.r_[np.zeros(rose), np.ones(m - rose), np.zeros(n - m)]
            known[m, rose] = function(before, np.r_[np.ones(rose), np.zeros(n - rose)])
        yield known[m, rose]


@pytest.mark.parametrize(("n", "discordant"), [(40, 0.5), (100, 0.4), (180, 0.2), (600, 0.3)])
def test_mcnemar_holds_its_level(n, discordant):
    exact = rejected(list(mcnemar_ps(st.mcnemar_p, n, discordant, 0.5)))
    assert 0.01 <= exact <= 0.055  # exact is conservative: at most 5 %
    assert 0.04 <= rejected(list(mcnemar_ps(lambda a, b: st.sign_flip_p(b - a), n, discordant, 0.5))) <= 0.06


def test_pooling_samples_as_if_they_were_tasks_does_not_hold_its_level():
    """Why the task is the unit: tasks that favour one policy by chance make its eight samples agree."""
    rng = np.random.default_rng(13)
    before, after = (rng.binomial(8, rng.beta(0.3, 0.3, (2000, 40))) / 8 for _ in range(2))
    pooled = [stats.norm.sf(abs(d.sum() * 8) / np.sqrt(2 * 40 * 8 * 0.25)) * 2 for d in after - before]
    assert rejected(pooled) > 0.2
    assert 0.04 <= rejected([st.sign_flip_p(d) for d in after - before]) <= 0.06


def test_a_family_of_three_errs_in_five_percent_of_studies():
    rng = np.random.default_rng(14)
    chance = rng.beta(2, 2, (1500, 60))
    policies = [rng.binomial(4, chance) / 4 for _ in range(3)]
    families = [[st.sign_flip_p(b[i] - a[i]) for a, b in combinations(policies, 2)] for i in range(1500)]
    assert np.mean([min(ps) < 0.05 for ps in families]) > 0.08  # uncorrected
    assert (
        np.mean([3 * min(ps) < 0.05 for ps in families]) <= 0.06
    )  # Holm rejects something when its first step does
    assert all(min(st.holm(ps)) == pytest.approx(min(3 * min(ps), 1.0)) for ps in families[:10])


def test_tests_over_seeds_hold_their_level():
    rng = np.random.default_rng(15)
    for seeds, spread in ((3, 0.08), (5, 0.05), (10, 0.05)):
        noise = (
            rng.normal(0, spread, (2000, seeds, 1))
            + rng.normal(0, 0.3, (2000, 1, 60))
            + rng.normal(0, 0.3, (2000, seeds, 60))
        )
        assert 0.025 <= rejected([st.seeds_p(e) for e in noise]) <= 0.065


@pytest.mark.parametrize(("n", "discordant"), [(40, 0.5), (180, 0.2), (600, 0.3)])
def test_mcnemar_power_agrees_with_simulation(n, discordant):
    smallest = st.detectable_mcnemar(n, discordant)
    assert st.mcnemar_power(n, smallest, discordant) == pytest.approx(0.8, abs=0.005)
    discordant = max(discordant, smallest)
    gain = (discordant + smallest) / (2 * discordant)
    assert rejected(list(mcnemar_ps(st.mcnemar_p, n, discordant, gain))) == pytest.approx(0.8, abs=0.025)


@pytest.mark.parametrize(("n", "k"), [(30, 4), (120, 4)])
def test_power_of_the_sign_flip_agrees_with_simulation(n, k):
    rng = np.random.default_rng(16)
    before, after, truth = outcomes(rng, 3000, n, k, (2, 2), 0.5 / np.sqrt(n / 4))
    differences = after - before
    want = st.mean_power(n, truth, float(differences.std(ddof=1)))
    assert rejected([st.sign_flip_p(d) for d in differences]) == pytest.approx(want, abs=0.03)
    smallest = st.detectable_mean(n, 0.3)
    assert TTestPower().power(smallest / 0.3, n, 0.05) == pytest.approx(0.8, abs=1e-3)


def test_power_over_seeds_agrees_with_simulation():
    rng = np.random.default_rng(17)
    noise = (
        rng.normal(0, 0.05, (2000, 5, 1))
        + rng.normal(0, 0.3, (2000, 1, 60))
        + rng.normal(0, 0.3, (2000, 5, 60))
    )
    error = np.sqrt(0.05**2 / 5 + 0.3**2 / 60 + 0.3**2 / 300)
    freedom = float(np.median([st.seeds_spread(e)[1] for e in noise]))
    lift = st.detectable_seeds(error, freedom)
    assert rejected([st.seeds_p(lift + e) for e in noise]) == pytest.approx(0.8, abs=0.05)
