"""How often the intervals, tests and powers of a comparison hold, on simulated studies.

    python tests/simulated_statistics.py [--studies 2000] [--seed 1]

Studies go through the functions that users call (compare, behaviour); trajectories are drawn with a chance of
success for each task. A small part of it is a test (test_statistics).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from options import options

from agentkit.evaluation import compare, statistics
from agentkit.evaluation.comparison import Pair, judged
from agentkit.records import StopReason, Task, Trajectory


def chances(rng: np.random.Generator, n: int, mean: float, alike: float) -> np.ndarray:
    """Chances of success of n tasks; ``alike`` is the correlation of a task's samples, 0 for equal tasks."""
    if not alike:
        return np.full(n, mean)
    more = (1 - alike) / alike
    return rng.beta(mean * more, (1 - mean) * more, n)


def lifted(chance: np.ndarray, lift: float) -> np.ndarray:
    """Chances with a higher mean: part of what is missing is gained (or of what is there lost)."""
    return chance + lift * (1 - chance) if lift >= 0 else chance * (1 + lift)


def inside(intervals: Sequence, truth: float) -> float:
    low, high = np.array(intervals).T
    return float(np.mean((low <= truth + 1e-12) & (truth <= high + 1e-12)))


def values(rng: np.random.Generator, chance: np.ndarray, k: int) -> dict[str, list[list[float]]]:
    """Values of one policy, as ``values_of`` gives them."""
    return {
        str(i): [row.tolist()] for i, row in enumerate((rng.random((len(chance), k)) < chance[:, None]) * 1.0)
    }


# ---- the targets, each a function of studies and a generator
SUCCESS = tuple(
    cell
    for cell in product((20, 60, 183), (1, 4, 8), (0.05, 0.1, 0.3, 0.5, 0.8, 0.95), (0.1, 0.3, 0.6))
    if cell[1] > 1 or cell[3] == 0.1
)


def success(studies: int, rng: np.random.Generator, cells: Sequence = SUCCESS) -> Iterator[tuple]:
    """Coverage of a success interval: n tasks, k samples, mean, correlation within tasks."""
    for n, k, mean, alike in cells:
        intervals = []
        for _ in range(studies):
            rates = rng.binomial(k, chances(rng, n, mean, alike)) / k
            intervals.append(statistics.success_interval(rates, n * k))
        yield (n, k, mean, alike), inside(intervals, mean)


PAIRED = tuple(product((40, 60, 183), (1, 4, 8), (0.3, 0.5, 0.8), (0.1, 0.5)))


def paired(studies: int, rng: np.random.Generator, cells: Sequence = PAIRED) -> Iterator[tuple]:
    """Level of the paired test, and coverage of its interval under no difference and one of 8 points."""
    for n, k, mean, alike in cells:
        ps, intervals, contradictions = [], [], 0
        for _ in range(studies):
            chance = chances(rng, n, mean, alike)
            before, after = (rng.binomial(k, c) / k for c in (chance, chance))
            ps.append(p := statistics.sign_flip_p(after - before))
            low, high = statistics.difference_interval(after - before, k == 1, p)
            contradictions += (p < 0.05) == (low <= 0 <= high)
            raised = rng.binomial(k, lifted(chance, 0.08 / (1 - mean))) / k
            p = statistics.sign_flip_p(raised - before)
            intervals.append(statistics.difference_interval(raised - before, k == 1, p))
        assert not contradictions, "an interval contradicts its test"
        yield (n, k, mean, alike), (float(np.mean(np.array(ps) < 0.05)), inside(intervals, 0.08))


RATES = tuple(product((0.05, 0.13, 0.3, 0.6), (1, 4), (0.1, 0.3, 0.6, 0.9), (0.1, 0.4)))


def occasions(rng: np.random.Generator, n: int, share: float, k: int) -> np.ndarray:
    """Occasions of n tasks, a ``share`` of which has any."""
    return (rng.random(n) < share) * np.maximum(rng.binomial(k, 0.6, n), 1).astype(float)


def behaviour_rates(studies: int, rng: np.random.Generator, cells: Sequence = RATES) -> Iterator[tuple]:
    """Coverage of a behaviour's rate over 183 tasks, and the level of the test of its change."""
    for share, k, mean, alike in cells:
        intervals, ps = [], []
        for _ in range(studies):
            chance = chances(rng, 183, mean, alike)
            counts = [np.array([rng.binomial(m.astype(int), chance), m]) * 1.0
                      for m in (occasions(rng, 183, share, k) for _ in range(2))]  # fmt: skip
            if min(own[1].sum() for own in counts) > 1:
                intervals.append(statistics.share_interval(*counts[0]))
                ps.append(statistics.shares_change(*counts)[2])
        yield (share, k, mean, alike), (inside(intervals, mean), float(np.mean(np.array(ps) < 0.05)))


TABLES = tuple(product((2, 3, 4), (1, 4), (60, 183)))


def null_tables(studies: int, rng: np.random.Generator, cells: Sequence = TABLES) -> Iterator[tuple]:
    """Tables of equal policies in which anything is called better or worse, breakdowns included."""
    stop = StopReason.ANSWER
    for policies, k, n in cells:
        tasks = [
            Task(f"t{i}", "?", "1", family="ABC"[i % 3], difficulty=("easy", "hard")[i % 2]) for i in range(n)
        ]
        false = 0
        for _ in range(studies):
            chance = chances(rng, n, 0.5, 0.4)
            drawn = {
                f"p{a}": [
                    Trajectory(task.id, f"p{a}", s, 0, (1,), (1,), (1,), (0.0,), (), stop, "", float(right))
                    for task, row in zip(tasks, rng.random((n, k)) < chance[:, None], strict=True)
                    for s, right in enumerate(row)
                ]
                for a in range(policies)
            }
            shown = compare(drawn, tasks).paired_table()["verdict"]
            false += bool(shown.isin(["better", "worse"]).any())
        yield (policies, k, n), false / studies


POWERS = tuple(product((60, 183), (1, 4), (2, 3, 4)))


def could_see(studies: int, rng: np.random.Generator, cells: Sequence = POWERS) -> Iterator[tuple]:
    """Share of studies that find a true difference of what equal policies were told they could have seen."""
    for n, k, policies in cells:

        def study(lift: float) -> list[dict]:
            chance = chances(rng, n, 0.5, 0.3)  # noqa: B023 - called within its turn
            own = [values(rng, lifted(chance, lift if a else 0.0), k) for a in (1, *[0] * (policies - 1))]  # noqa: B023
            return judged([Pair.of(str(a), str(b), own[b], own[a]) for a in range(policies) for b in range(a + 1, policies)])  # noqa: E501, B023 # fmt: skip

        said = np.median([study(0.0)[0]["detectable"] for _ in range(min(studies, 60))])
        found = [entry["verdict"] == "better" for _ in range(studies) for entry in study(2 * said)[:1]]
        yield (n, k, policies), (float(said), float(np.mean(found)))


def seeds(studies: int, rng: np.random.Generator, cells: Sequence = (2, 3, 5)) -> Iterator[tuple]:
    """Share of studies with any verdict, and coverage, of policies trained with several seeds that are equal."""
    for s in cells:
        shown, intervals = 0, []
        for _ in range(studies):
            chance = chances(rng, 60, 0.5, 0.4)
            own = [values(rng, chance, 4)] + [
                values(rng, np.clip(chance + rng.normal(0, 0.06), 0, 1), 4) for _ in range(s)
            ]
            after = {task: [one[task][0] for one in own[1:]] for task in own[0]}
            (entry,) = judged([Pair.of("a", "b", own[0], after)])
            shown += entry["verdict"] in ("better", "worse")
            intervals.append(entry["ci95"])
        yield (s,), (shown / studies, inside(intervals, 0.0))


TARGETS = {"success": success, "paired": paired, "behaviour": behaviour_rates, "null tables": null_tables,
           "could see": could_see, "seeds": seeds}  # fmt: skip


def main() -> None:
    chosen = options(__doc__, studies=2000, seed=1, only=TARGETS)
    for name in chosen.only:
        rng, figures = np.random.default_rng(chosen.seed), []
        print(f"---- {name}: {TARGETS[name].__doc__}")
        for cell, figure in TARGETS[name](chosen.studies, rng):
            print(*cell, np.round(figure, 3), flush=True)
            figures.append(np.atleast_1d(figure))
        for column in np.array(figures).T:
            good = np.mean((column >= 0.93) & (column <= 0.97))
            print(f"   least {column.min():.3f}, most {column.max():.3f}, within 93 to 97 %: {good:.0%}")


if __name__ == "__main__":
    main()
