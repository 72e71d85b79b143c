"""Literals, equality with scipy and statsmodels, and a small part of the simulated studies, with fixed seeds."""

from itertools import combinations, product
from math import comb

import numpy as np
import pytest
import simulated_statistics as simulated
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
        exact = min(mcnemar(table, exact=True).pvalue, 1.0)
        mid = exact - stats.binom.pmf(min(gained, lost), gained + lost, 0.5)
        assert gained == lost or st.sign_flip_p(after - before) == pytest.approx(mid)
    five_against_one = np.array([1.0, 1, 1, 1, 1, -1, 0, 0])
    assert st.sign_flip_p(five_against_one) == pytest.approx((2 * 1 + 6) / 2**6)
    assert st.sign_flip_p(np.ones(3000)) > 0


def test_sign_flips_equal_scipy_and_literals():
    rng = np.random.default_rng(2)
    for n in (2, 5, 9, 12):
        for _ in range(5):
            values = rng.integers(-4, 5, n) / 4
            exact = stats.permutation_test(
                (values,), np.sum, permutation_type="samples", n_resamples=2**n
            ).pvalue
            flips = np.array(list(product((1, -1), repeat=n))) @ values
            ties = np.mean(np.isclose(np.abs(flips), abs(values.sum())))
            if np.count_nonzero(values) > 1:
                assert st.sign_flip_p(values) == pytest.approx(exact - ties / 2)
    four_one_way = np.array([0.5, 0.25, 0.25, 1.0, 0.0])
    assert st.sign_flip_p(four_one_way) == pytest.approx(1 / 16)  # ties by half
    assert (
        st.sign_flip_p(np.array([0.5, -0.5])) == pytest.approx(0.75)
        and st.sign_flip_p(np.array([0.5])) == 1.0
    )
    assert st.sign_flip_p(np.full(200, 0.25)) == pytest.approx(1 / 2**200)  # far beyond any resampling
    assert st.sign_flip_p(np.full(4000, 1 / 3)) > 0


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


def test_an_interval_at_holms_level_decides_as_holm_does():
    assert st.holm_levels([0.001, 0.04, 0.03, 0.5]) == pytest.approx([0.05 / 4, *[0.05 / 3] * 3])
    assert st.holm_levels([0.01, 0.001, 0.02]) == pytest.approx([0.05 / 2, 0.05 / 3, 0.05])
    rng = np.random.default_rng(3)
    for _ in range(200):
        ps = rng.beta(0.3, 2, rng.integers(1, 8)).tolist()
        assert [p < level for p, level in zip(ps, st.holm_levels(ps), strict=True)] == [
            p < 0.05 for p in st.holm(ps)
        ]


def test_intervals_agree_with_the_test_and_keep_their_other_bound():
    rng = np.random.default_rng(4)
    for k, alpha in ((1, 0.05), (4, 0.05), (1, 0.05 / 3), (4, 0.05 / 6)):
        moved = 0
        for _ in range(300):
            d = (rng.binomial(k, 0.62, 30) - rng.binomial(k, 0.45, 30)) / k
            p = st.sign_flip_p(d)
            plain, own = (st.difference_interval(d, k == 1, q, alpha) for q in (None, p))
            assert (p < alpha) == (not own[0] <= 0 <= own[1])
            moved += plain != pytest.approx(own)
            assert sum(a != pytest.approx(b) for a, b in zip(plain, own, strict=True)) <= 1
        assert 0 < moved < 40, "the two tests differ near the border only"


def test_rates_are_over_the_tasks_with_an_occasion():
    happened, occasions = np.array([3.0, 0, 1, 2, 0]), np.array([4.0, 4, 4, 4, 4])
    alone = st.share_interval(happened, occasions)
    diluted = st.share_interval(np.r_[happened, np.zeros(178)], np.r_[occasions, np.zeros(178)])
    assert alone == pytest.approx(diluted) and alone[0] < 0.11 < 0.6 < alone[1]


def test_a_change_of_shares_is_judged_by_its_own_interval():
    never, always = np.array([[0.0] * 13, [3.0] * 13]), np.array([[3.0] * 13, [3.0] * 13])
    difference, interval, p = st.shares_change(never, always)
    assert difference == 1.0 and interval[0] > 0.5 and 0 < p < 1e-5
    assert st.shares_change(never, never)[0] == 0.0 and st.shares_change(never, never)[2] == 1.0
    rng = np.random.default_rng(5)
    for _ in range(100):
        m = rng.integers(0, 4, (2, 40)) + 0.0
        a, b = (
            np.array([rng.binomial(own.astype(int), q), own]) + 0.0
            for own, q in zip(m, (0.4, 0.55), strict=True)
        )
        _, (low, high), p = st.shares_change(a, b)
        assert (p < 0.05) == (not low <= 0 <= high)


def test_templates_as_the_evidence_widen_an_interval_where_they_agree():
    clusters = np.repeat(np.arange(12), 5)
    alike = np.repeat(np.random.default_rng(6).normal(0.1, 0.3, 12), 5)
    got = st.clustered(alike, clusters)
    twelve = stats.ttest_1samp(alike[::5], 0.0)
    assert got["n"] == 12 and got["p"] == pytest.approx(twelve.pvalue)
    assert got["ci95"] == pytest.approx(tuple(twelve.confidence_interval(0.95)))


def test_templates_that_all_agree_are_evidence_of_their_number():
    three, twelve = (st.clustered(np.ones(12), np.arange(12) % n) for n in (3, 12))
    assert three["p"] == 0.25 and three["ci95"] == pytest.approx([2 * 0.025 ** (1 / 3) - 1, 1.0])
    assert twelve["p"] == 0.5**11 and twelve["ci95"][0] > 0.4
    mixed = st.clustered(np.tile([1.0, 0.0], 6), np.repeat(np.arange(6), 2))
    assert mixed["p"] == 0.5**5 and 0 < mixed["ci95"][0] < 0.5, "interval and p agree"
    assert st.clustered(np.ones(12), np.zeros(12, int)) == {"ci95": [-1.0, 1.0], "p": 1.0, "n": 1}


def test_dunnetts_levels_are_those_of_his_table():
    """Dunnett 1964 (Biometrics 20:482), two-sided, 5 %: by degrees of freedom and arms beside the control."""
    table = {(10, 2): 2.57, (10, 3): 2.76, (20, 3): 2.54, (20, 4): 2.65, (60, 4): 2.51}
    for (freedom, tests), t in table.items():
        level = st.dunnett_level(freedom, tests)
        assert stats.t.isf(level / 2, freedom) == pytest.approx(t, abs=6e-3), (freedom, tests)
    assert st.dunnett_level(4.0, 1) == 0.05


def test_dunnett_steps_down_and_its_levels_decide_as_it_does():
    for ps in ([0.001, 0.018, 0.03, 0.5], [0.04, 0.04], [0.2, 0.9], [1e-300, 0.049], [0.03]):
        adjusted, levels = st.dunnett(ps, [6.0] * len(ps))
        assert all(p <= a <= h for p, a, h in zip(ps, adjusted, st.holm(ps), strict=True)), ps
        assert [p < level for p, level in zip(ps, levels, strict=True)] == [a < 0.05 for a in adjusted], ps
    assert st.dunnett([0.03, 0.5], [6.0, 6.0])[0][0] > 0.05 > st.dunnett([0.03, 0.001], [6.0, 6.0])[0][0]
    assert st.dunnett([], []) == ([], [])


def test_holm_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 40):
        pvalues = np.round(rng.uniform(0, 4 / size, size), 2).clip(max=1)  # with ties
        wanted = multipletests(pvalues, method="holm")[1]
        assert st.holm(pvalues) == pytest.approx(wanted) and st.holm(pvalues) == pytest.approx(wanted), (
            "it changes nothing"
        )


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
    assert st.detectable_mean(4, 0.2) is st.detectable_mcnemar(4, 0.3) is None
    assert st.detectable_mcnemar(6, 0.0) is not None and st.detectable_mcnemar(6, 0.0, 0.01) is None
    assert st.seeds_interval(np.full((2, 1), 0.5), low=0, high=1)[1] > 0.5
    assert st.seeds_p(np.zeros((3, 8))) == 1.0


# ---- simulated studies: a small part of simulated_statistics.py, with bounds of three standard errors
def test_success_intervals_cover():
    cells = [
        (60, 4, 0.05, 0.3),
        (60, 4, 0.95, 0.6),
        (183, 1, 0.5, 0.1),
        (20, 8, 0.3, 0.3),
        (183, 8, 0.1, 0.1),
    ]
    for cell, covered in simulated.success(1000, np.random.default_rng(6), cells):
        assert 0.91 <= covered <= 0.985, cell


def test_paired_tests_hold_their_level_and_intervals_cover():
    cells = [(60, 1, 0.5, 0.1), (60, 4, 0.5, 0.5), (183, 4, 0.8, 0.5)]
    for cell, (level, covered) in simulated.paired(1000, np.random.default_rng(7), cells):
        assert 0.03 <= level <= 0.07 and 0.925 <= covered <= 0.975, cell


def test_behaviour_rates_cover_where_few_tasks_have_an_occasion():
    cells = [(0.13, 4, 0.3, 0.4), (0.6, 4, 0.9, 0.1), (0.3, 1, 0.6, 0.4)]
    for cell, (covered, level) in simulated.behaviour_rates(500, np.random.default_rng(8), cells):
        assert 0.91 <= covered <= 0.985 and level <= 0.08, cell


def test_a_table_of_equal_policies_hardly_ever_calls_one_better():
    for cell, false in simulated.null_tables(60, np.random.default_rng(9), [(4, 1, 60)]):
        assert false <= 0.15, cell  # one by one its 42 rows would say so in a third of the tables


def test_what_could_be_seen_is_seen():
    for cell, (said, found) in simulated.could_see(300, np.random.default_rng(10), [(60, 1, 2), (60, 4, 3)]):
        assert 0.05 < said < 0.4 and 0.72 <= found <= 0.88, cell


def test_two_seeds_give_an_interval_and_never_a_verdict():
    (_, (two, _)), (_, (three, covered)) = simulated.seeds(200, np.random.default_rng(11), (2, 3))
    assert two == 0 and three <= 0.09 and covered >= 0.91


def rejected(pvalues):
    return float(np.mean(np.array(pvalues) < 0.05))


def test_pooling_samples_as_if_they_were_tasks_does_not_hold_its_level():
    """Why the task is the unit: tasks that favour one policy by chance make its eight samples agree."""
    rng = np.random.default_rng(13)
    before, after = (rng.binomial(8, rng.beta(0.3, 0.3, (2000, 40))) / 8 for _ in range(2))
    pooled = [stats.norm.sf(abs(d.sum() * 8) / np.sqrt(2 * 40 * 8 * 0.25)) * 2 for d in after - before]
    assert rejected(pooled) > 0.2
    assert 0.04 <= rejected([st.sign_flip_p(d) for d in after - before]) <= 0.06


@pytest.mark.parametrize(
    ("seeds", "n", "spread"), [(3, 40, 0.08), (5, 120, 0.05), (5, 60, 0.0), (10, 60, 0.08)]
)
def test_intervals_over_seeds_cover(seeds, n, spread):
    rng = np.random.default_rng(10)
    noise = (
        rng.normal(0, spread, (1000, seeds, 1))
        + rng.normal(0, 0.3, (1000, 1, n))
        + rng.normal(0, 0.3, (1000, seeds, n))
    )
    assert (
        0.925 <= simulated.inside([st.seeds_interval(0.1 + e, low=-9, high=9) for e in noise], 0.1) <= 0.985
    )
    assert 0.02 <= rejected([st.seeds_p(e) for e in noise]) <= 0.075


def test_power_of_the_t_test_is_that_of_statsmodels():
    smallest = st.detectable_mean(30, 0.3)
    assert TTestPower().power(smallest / 0.3, 30, 0.05) == pytest.approx(0.8, abs=1e-3)
    at_level = st.detectable_mean(30, 0.3, 0.05 / 6)
    assert TTestPower().power(at_level / 0.3, 30, 0.05 / 6) == pytest.approx(0.8, abs=1e-3)
    assert st.mean_power(183, 0.5, 0.1) == pytest.approx(1.0)


def test_few_odd_differences_are_never_called_significant():
    """Four tasks have 16 flips, so no permutation test can go under 1/16, whatever Student's t would say."""
    odd = np.array([0.31234567, 0.31334567, 0.31434561, 0.31534559]) + np.pi / 1e5
    assert st.mean_p(odd) < 0.001 and st.sign_flip_p(odd) == pytest.approx(2 / 16)
