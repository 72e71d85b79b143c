"""The arithmetic of groups: how many have no advantage, how large to make them, how much of it is noise.

Leaves out trajectories: it works on counts and rewards.
"""

import math
from collections.abc import Sequence

import numpy as np

GROUP_SIZES = (4, 8, 12, 16, 24, 32)
USEFUL = 0.5  # expected share of dead groups at which a group size is useful: at least every second teaches


def fit_beta(right: Sequence[int], n: Sequence[int]) -> tuple[float, float]:
    """The beta distribution of tasks' chances of success, by maximum likelihood of the beta-binomial.

    Of (P,) right rollouts among (P,) rollouts of each task. A few rollouts a task make plug-in shares p = k/n
    pile up at 0 and 1, which overstates dead groups; the fitted distribution does not.
    """
    from scipy.optimize import minimize
    from scipy.special import betaln

    k, m = np.asarray(right, dtype=float), np.asarray(n, dtype=float)
    assert k.ndim == 1 and k.shape == m.shape and len(k)
    assert (m >= 1).all() and (k >= 0).all() and (k <= m).all()

    def loss(logs: np.ndarray) -> float:
        a, b = np.exp(logs)
        prior = ((logs - math.log(0.5)) ** 2).sum() / 8  # weak: keeps all-right and all-wrong samples finite
        return float(prior - (betaln(k + a, m - k + b) - betaln(a, b)).sum())

    bounds = [(math.log(0.02), math.log(500.0))] * 2
    best = minimize(loss, np.log([0.5, 0.5]), bounds=bounds, method="L-BFGS-B")
    return float(np.exp(best.x[0])), float(np.exp(best.x[1]))


def dead_share(a: float, b: float, group_size: int) -> float:
    """Expected share of groups all right or all wrong, E[p^G + (1-p)^G] for p of a beta distribution.

    For one p this is DAPO's condition 0 < #correct < G (arXiv 2503.14476); the mean over p is a ratio of beta
    functions.
    """
    from scipy.special import betaln

    whole = betaln(a, b)
    return float(math.exp(betaln(a + group_size, b) - whole) + math.exp(betaln(a, b + group_size) - whole))


def smallest_useful(a: float, b: float) -> int | None:
    """The smallest group size of which at most every second group is expected dead, or None."""
    return next((size for size in range(2, GROUP_SIZES[-1] + 1) if dead_share(a, b, size) <= USEFUL), None)


def advantages(rewards: np.ndarray) -> np.ndarray:
    """GRPO's (r - mean) / (std + 1e-4) within each group, (P, G) to (P, G); sample std."""
    assert rewards.ndim == 2 and rewards.shape[1] > 1
    centred = rewards - rewards.mean(1, keepdims=True)
    return centred / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)


def repeatable(scorings: np.ndarray) -> float | None:
    """Share of the advantages' variance that scoring the same trajectories again explains.

    Of (S, P, G) rewards, scored S times: the mean product of the advantages of two scorings over their mean
    square (an intraclass correlation about zero). 1 for a reward that depends on the trajectory only, 0 for
    noise; None where no scoring gives any advantage.
    """
    assert scorings.ndim == 3 and len(scorings) > 1
    s = len(scorings)
    values = np.stack([advantages(rewards) for rewards in scorings]).reshape(s, -1)  # (S, P * G)
    square = float((values**2).mean())
    if square < 1e-12:
        return None
    products = (values.sum(0) ** 2 - (values**2).sum(0)) / (s * (s - 1))
    return float(min(1.0, max(0.0, products.mean() / square)))
