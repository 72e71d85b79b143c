"""Skill or format? A difference between two policies as four parts that add up to it.

An attempt succeeds where its calls parse, it does not give up, its answer is right in substance, and that
stands in the asked form: success is the product of four rates. Each part is what its rate's change does to
the product, averaged over the orders in which the four can change (Shapley 1953), within each family of
tasks. Leaves out why a rate changed, and what right in substance means (substance).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd

from agentkit.evaluation import statistics, tables
from agentkit.evaluation.comparison import Pair
from agentkit.evaluation.substance import gave_up_on, right_in_substance, unparsed
from agentkit.evaluation.summary import Samples, all_in, by_seed, clusters_of, same_tasks, values_of
from agentkit.records import Task, Trajectory
from agentkit.trajectories import by_task

PARTS = {
    "calls": "calls that parse",
    "giving up": "not giving up",
    "skill": "right in substance (what is left)",
    "form": "the asked form",
}
RATES = (
    "Calls parse: of all trajectories, those that did not fail with a malformed call that nothing made good.",
    "Not giving up: of these, those that did not fail by saying that there is no answer, or by giving none.",
    "Right in substance: of these, those that a lenient verifier takes. It reads whole sentences by our own "
    "rules, takes an answer that was rounded further, code in any block under any name, and right answers "
    "without the tool they should have used; it takes no list and no alternatives. It is a reading of our "
    "own that errs (309 of 863 wrong answers written to tempt a verifier, before its last mend), and the "
    "simulation tests the arithmetic, not it.",
    "It reads answers to exact and numeric tasks, programs, and symbolic answers that are a plain number or "
    "words; for every other kind of verifier (expressions, regex, judges, pictures, repairs and verifiers of "
    "your own) there is no such reading, and better form counts as skill.",
    "The asked form: of these, those that the strict verifier takes, whose verdicts are success.",
    "The four multiply to success. A part is named where its p after Holm is below 1 %, it goes the way of "
    "the difference, and it is a tenth of that or more. All of it is shown where its p after Holm over the "
    "pairs is below 5 %.",
)
SHOWN = 0.01  # level at which a part is named: at 5 % one too many is, in 4 of 100 simulated gains
LARGE = 0.1  # of the difference: a smaller part is not named
FEW = 10  # tasks of a family below which it is taken together with the other small ones
OUTCOMES = ("right", "form", "giving up", "calls")  # of a trajectory; what is left is the fifth
_ORDERS = list(permutations(range(len(PARTS))))


@dataclass(frozen=True)
class Gains:
    """The parts of each pair's difference; ``asdict`` of it is gains.json.

    A pair has a, b, n, diff, ci95, p, p_holm (over the pairs), rates {policy: {success, lenient, and the
    four}}, parts {name: {diff, ci95, p, p_holm, by_template}} and named, those that the difference came from.
    """

    pairs: list[dict[str, Any]]

    def table(self) -> pd.DataFrame:
        """One row a pair and part: both rates, and points with an interval; the parts add up to the last."""
        rows = {}
        for pair in self.pairs:
            before, after = (pair["rates"][pair[policy]] for policy in "ab")
            blocks = {name: (PARTS[name], part) for name, part in pair["parts"].items()}
            for name, (title, block) in (blocks | {"success": ("all of it", pair)}).items():
                rows[f"{pair['a']} → {pair['b']}: {title}"] = {
                    "before": tables.percent(before[name]),
                    "after": tables.percent(after[name]),
                    "difference": tables.briefly(block),
                    "p, Holm": "–" if (p := block.get("p_holm")) is None else f"{p:.2g}",
                }
        return tables.text_table(rows)

    def sentences(self) -> list[str]:
        """One a pair: which parts its difference came from."""
        return [_sentence(pair) for pair in self.pairs]

    def _repr_html_(self) -> str:
        caption = "Rates before and after, and what their change did to success; 95 % intervals in brackets"
        return tables.to_html(self.table(), caption, self.sentences(), RATES)


def gains(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> Gains:
    """Where the difference of every pair (earlier, later) came from.

    Args:
        policies: scored trajectories by policy name, the baseline first; {training seed: trajectories} where
            there are several.
        tasks: a suite that holds at least these tasks.

    Raises:
        DataError: policies cover different tasks, or tasks that are not given.
    """
    by_id = {task.id: task for task in tasks}
    values = {name: values_of(samples) for name, samples in policies.items()}
    same_tasks(values)
    all_in("the trajectories", {task for own in values.values() for task in own}, "the given tasks", by_id)
    shares = {name: _shares(samples, by_id) for name, samples in policies.items()}
    pairs = []
    for a, b in combinations(policies, 2):
        pair = Pair.of(a, b, values[a], values[b])
        whole = {"diff": float(pair.differences.mean()), "ci95": pair.interval(p=pair.p), "p": pair.p}
        before, after = np.broadcast_arrays(
            *(np.stack([shares[name][task] for task in pair.tasks], axis=1) for name in (a, b))
        )  # (S, N, 5)
        cells = _by_family(before, after, [by_id[task].family for task in pair.tasks])
        templates = list(clusters_of(pair.tasks, by_id.values()).values())
        parts = {name: _tested(cells[..., i], templates) for i, name in enumerate(PARTS)}
        means = before.mean((0, 1)), after.mean((0, 1))
        pairs.append(_entry((a, b), len(pair.tasks), whole, parts, means))
    _correct(pairs)
    return Gains(pairs)


def gain_of_counts(counts: Mapping[str, Mapping[str, int]]) -> Gains:
    """The same of a published table of two policies: each counts its ``n`` trajectories, and of these those
    ``right``, off ``form``, ``giving up`` and failed by ``calls``. Trajectories are the evidence, unpaired.
    """
    known = [[own.get(name, 0) for name in OUTCOMES] for own in counts.values()]
    left = [own["n"] - sum(row) for own, row in zip(counts.values(), known, strict=True)]
    rows = [np.repeat(np.eye(5), [*row, rest], axis=0) for row, rest in zip(known, left, strict=True)]
    means = tuple(own.mean(axis=0) for own in rows)
    cells = [_linear(rows[0], means[1]), _linear(means[0], rows[1])]
    values = [np.column_stack([own, own.sum(axis=1)]) for own in cells]  # the parts and all of it
    errors = np.sqrt(sum(own.var(axis=0, ddof=1) / len(own) for own in values))
    diffs, blocks = _parts(*means), {}
    for name, diff, error in zip((*PARTS, "all"), (*diffs, diffs.sum()), errors, strict=True):
        bounds = [float(diff - statistics.Z95 * error), float(diff + statistics.Z95 * error)]
        p = math.erfc(abs(diff) / max(error, 1e-12) / math.sqrt(2))
        blocks[name] = {"diff": float(diff), "ci95": bounds, "p": p}
    return Gains([_entry(tuple(counts), min(map(len, rows)), blocks.pop("all"), blocks, means)])


def _entry(
    names: tuple[str, ...],
    n: int,
    whole: dict[str, Any],
    parts: dict[str, dict[str, Any]],
    means: Sequence[np.ndarray],
) -> dict[str, Any]:
    """One pair: Holm over its parts, and which of them the difference came from, the largest first."""
    _correct(parts.values())
    size = {
        name: part["diff"] * whole["diff"] for name, part in parts.items() if part.get("p_holm", 1) < SHOWN
    }
    large = [name for name in size if size[name] >= LARGE * whole["diff"] ** 2 > 0]
    named = sorted(large, key=size.get, reverse=True)
    rates = {
        name: {"success": float(own[0]), "lenient": float(own[0] + own[1])}
        | dict(zip(PARTS, np.nan_to_num(_rates(own)).tolist(), strict=True))
        for name, own in zip(names, means, strict=True)
    }
    return {"a": names[0], "b": names[1], "n": n, **whole, "rates": rates, "parts": parts, "named": named}


def _correct(blocks: Iterable[dict[str, Any]]) -> None:
    """Holm over those that have a p."""
    tested = [block for block in blocks if block["p"] is not None]
    for block, p in zip(tested, statistics.holm([block["p"] for block in tested]), strict=True):
        block["p_holm"] = p


# ---- what became of each attempt
def _shares(samples: Samples, tasks: Mapping[str, Task]) -> dict[str, np.ndarray]:
    """By task the shares (S, 5) of its scored samples that are right or failed in each way, and the rest."""
    seeds = [by_task(t for t in own if t.success is not None) for own in by_seed(samples).values()]
    return {
        task: np.array([np.mean([_outcome(t, tasks[task]) for t in own[task]], axis=0) for own in seeds])
        for task in seeds[0]
        if all(task in own for own in seeds)
    }


def _outcome(t: Trajectory, task: Task) -> np.ndarray:
    """Shares (5,) of one trajectory: what was right, and how it failed for the rest."""
    right = float(t.success)
    form = 0.0 if right >= 1 else max(right_in_substance(t, task) - right, 0.0)
    ways = np.zeros(5)
    ways[:2] = right, form
    ways[3 if unparsed(t) else 2 if gave_up_on(t, task) else 4] = 1 - right - form
    return ways


# ---- the parts
def _rates(shares: np.ndarray) -> np.ndarray:
    """The four rates (4, ..) of shares (.., 5), in the order of PARTS; nan where there was no occasion."""
    right, form, up, calls, _ = np.moveaxis(shares, -1, 0)
    left = np.stack([np.ones_like(right), 1 - calls, 1 - calls - up, right + form, right])
    return np.divide(left[1:], left[:-1], out=np.full(left[1:].shape, np.nan), where=left[:-1] > 1e-9)


def _parts(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Parts (.., 4) of the difference in success of shares (.., 5); a rate of no occasion does not change."""
    a, b = map(_rates, np.broadcast_arrays(before, after))
    a, b = np.nan_to_num(np.where(np.isnan(a), b, a)), np.nan_to_num(np.where(np.isnan(b), a, b))
    parts = np.zeros(a.shape)
    for order in _ORDERS:
        mixed = a.copy()
        for factor in order:
            was, mixed[factor] = mixed.prod(axis=0), b[factor]
            parts[factor] += mixed.prod(axis=0) - was
    return np.moveaxis(parts / len(_ORDERS), 0, -1)


def _linear(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Jackknife values (M, 4), shifted so that their mean is the parts; their sums are the differences.

    Of M cells with shares (M, 5); one that is (5,) is taken as known. Without the shift, a rate that has a
    single occasion would have the mean tell of the samples without it.
    """
    m = max(own.size for own in (before, after)) // 5
    whole = _parts(*(own.reshape(-1, 5).mean(axis=0) for own in (before, after)))
    if m == 1:
        return whole[None]
    others = (own if own.ndim == 1 else (own.sum(axis=0) - own) / (m - 1) for own in (before, after))
    values = m * whole - (m - 1) * _parts(*others)
    return values + whole - values.mean(axis=0)


def _by_family(before: np.ndarray, after: np.ndarray, families: Sequence[str]) -> np.ndarray:
    """Jackknife values (S, N, 4) within each family, so that what differs between families is no change."""
    sizes = Counter(families)
    labels = np.array([name if sizes[name] >= FEW else "" for name in families])
    values = np.zeros((*before.shape[:2], len(PARTS)))
    for label in set(labels):
        own = labels == label
        cells = _linear(*(shares[:, own].reshape(-1, 5) for shares in (before, after)))
        values[:, own] = cells.reshape(len(values), -1, len(PARTS))
    return values


def _tested(values: np.ndarray, templates: Sequence[int]) -> dict[str, Any]:
    """A part's points, 95 % interval over tasks (with templates beside it) and p, from its values (S, N)."""
    block: dict[str, Any] = {"diff": float(values.mean())}
    if len(values) > 1:
        p = statistics.seeds_p(values) if len(values) >= statistics.SEEDS else None
        return block | {"ci95": statistics.seeds_interval(values, low=-1.0, high=1.0), "p": p}
    block |= {"ci95": statistics.mean_interval(values[0], low=-1.0, high=1.0)}
    if templates:
        block["by_template"] = statistics.clustered(values[0], np.unique(templates, return_inverse=True)[1])
    return block | {"p": statistics.mean_p(values[0])}


def _sentence(pair: Mapping[str, Any]) -> str:
    """What the difference came from; the table has the other parts."""
    whole = f"{pair['a']} → {pair['b']}: {tables.briefly(pair)}"
    named = ", ".join(f"{PARTS[name]} ({tables.briefly(pair['parts'][name])})" for name in pair["named"])
    if pair["p"] is None:
        said = ". Two training seeds say too little to name what it came from"
    elif pair.get("p_holm", pair["p"]) < statistics.ALPHA:  # one alone has none
        said = f" came from {named}" if named else ". No single part of it is shown"
    else:
        said = (
            f" is not shown as a whole, but a part is: {named}" if named else " is not shown, nor is any part"
        )
    lenient = (tables.percent(pair["rates"][pair[policy]]["lenient"]) for policy in "ab")
    return f"{whole}{said}. By a lenient verifier {' and '.join(lenient)} are right."
