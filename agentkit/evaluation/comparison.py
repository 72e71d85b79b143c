"""Several policies on the same tasks: every pair tested, with a verdict, and the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from agentkit.evaluation import statistics, tables
from agentkit.evaluation.statistics import ALPHA
from agentkit.evaluation.summary import (
    SOLVED,
    Samples,
    Values,
    easy_first,
    labels_of,
    measure,
    rate,
    rates,
    same_tasks,
    single_samples,
    split_by,
    summarize,
    values_of,
)
from agentkit.evaluation.tables import percent
from agentkit.evaluation.wording import briefly, column, paired_cells, points, sentence, tidy_rows
from agentkit.records import Task
from agentkit.runs import RunError

CATEGORIES = {"A": "math", "B": "multi-hop", "C": "code"}  # what the families of the default suite are about


@dataclass(frozen=True)
class Comparison:
    """Policies measured on the same tasks. ``to_json`` is comparison.json; ``from_json`` reads it back."""

    n_tasks: int
    policies: dict[
        str, dict[str, Any]
    ]  # summarize() of each, with "greedy": {success, ci95, n} where it was measured
    paired: list[
        dict[str, Any]
    ]  # for each pair (earlier, later): a, b, diff, ci95, p, test, n and what paired_test adds
    flipped: dict[str, dict[str, list[str]]]  # "a->b": ids of the tasks that went to_right and to_wrong

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, place: object = "comparison.json") -> Comparison:
        """What ``to_json`` gave, in this version or an earlier one. Raises RunError naming ``place`` where it
        cannot be shown.
        """
        try:
            found = cls(**{field.name: value[field.name] for field in fields(cls)})
            found.table(), found.paired_table(), found.sentences()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            raise RunError(
                f"{place} holds no comparison that can be shown ({why}). Run notebook 05 for this run again."
            ) from None
        return found

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy, as text with intervals."""
        return policy_table(self.policies)

    def paired_table(self) -> pd.DataFrame:
        """One row a paired comparison: overall, then by category and by difficulty, each family with Holm's
        correction.
        """
        rows = []
        for pair in self.paired:
            blocks = {"all tasks": pair} | {
                f"category {k}": v for k, v in pair.get("by_category", {}).items()
            }
            blocks |= {f"difficulty {k}": v for k, v in pair.get("by_difficulty", {}).items()}
            rows += [
                {"comparison": f"{pair['a']} → {pair['b']}", "tasks": name} | paired_cells(b)
                for name, b in blocks.items()
            ]
        return pd.DataFrame(rows)

    def tidy(self) -> pd.DataFrame:
        """Every measured number as one row: policy, measure, value, low, high, n; for CSV files and further
        work.
        """
        columns = ["policy", "measure", "value", "low", "high", "n"]
        rows = [
            row
            for name, entry in self.policies.items()
            for row in tidy_rows(name, entry, _rows(self.policies.values()))
        ]
        return pd.DataFrame(rows, columns=columns)

    def sentences(self) -> list[str]:
        """Each paired result in words, with its verdict."""
        return [
            sentence(pair, self.flipped[f"{pair['a']}->{pair['b']}"], len(self.paired))
            for pair in self.paired
        ]

    def where(self, a: str, b: str) -> str:
        """For which categories and difficulties policy b differs from policy a, in one sentence."""
        pair = next((p for p in self.paired if (p["a"], p["b"]) == (a, b)), {})
        blocks = {f"category {k}": v for k, v in pair.get("by_category", {}).items()}
        blocks |= {f"difficulty {k}": v for k, v in pair.get("by_difficulty", {}).items()}
        parts = [
            f"{name} {points(block['diff'])} points ({briefly(block)})" for name, block in blocks.items()
        ]
        return (
            f"{pair['a']} → {pair['b']}: {'; '.join(parts)}."
            if parts
            else "There is no breakdown to compare."
        )

    def draws(self) -> list[str]:
        """What sampling more than once would give, one sentence a policy."""
        said = []
        for name, entry in self.policies.items():
            k = max(entry.get("pass_at_k") or ["1"], key=int)
            if int(k) > 1 and entry["pass_at_k"][k]["n"]:
                one, most = (
                    entry["pass_at_k"]["1"],
                    {key: entry[key][k] for key in ("pass_at_k", "maj_at_k", "pass_hat_k")},
                )
                some, majority, every = (percent(block["success"]) for block in most.values())
                said.append(
                    f"{name}: {percent(one['success'])} with one sample; of {k} samples, {some} if any right "
                    "one counts, "
                    f"{majority} by majority, {every} if all must be right."
                )
        return said

    def _repr_html_(self) -> str:
        caption = f"{self.n_tasks} tasks; 95 % intervals over tasks in brackets"
        return tables.to_html(self.table(), caption, self.sentences())


def policy_table(policies: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
    """Entries of comparison.json as text with intervals: one row a measure, one column a policy."""
    rows = _rows(policies.values())
    return pd.DataFrame({name: column(entry, rows) for name, entry in policies.items()})


def _rows(entries: Iterable[dict[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
    """Row titles with the path of each in a policy's entry."""
    entries = list(entries)
    categories = sorted({c for e in entries for c in e["by_category"]})
    difficulties = easy_first({d for e in entries for d in e["by_difficulty"]})
    greedy = any("greedy" in e for e in entries)
    k = min((max(map(int, e.get("pass_at_k") or ["1"])) for e in entries), default=1)
    draws = [("pass@", "pass_at_k"), ("pass^", "pass_hat_k"), ("maj@", "maj_at_k")] if k > 1 else []
    money = any(e.get("cost_per_solved") is not None for e in entries)
    return [
        ("Overall success", ()),
        *([("Overall success, greedy", ("greedy",))] if greedy else []),
        *(
            (f"Category {c}" + (f" ({CATEGORIES[c]})" if c in CATEGORIES else ""), ("by_category", c))
            for c in categories
        ),
        *((f"Difficulty {d}", ("by_difficulty", d)) for d in difficulties),
        *((f"{title}{k}", (key, str(k))) for title, key in draws),
        ("Average turns (successful tasks)", ("turns_solved",)),
        ("Tool call failure rate", ("tool_failure_rate",)),
        ("Average tokens per task", ("tokens",)),
        ("Tokens per solved task", ("tokens_per_solved",)),
        *([("Cost per solved task", ("cost_per_solved",))] if money else []),
        *([("Trajectories not scored", ("unscored",))] if any(e.get("unscored") for e in entries) else []),
    ]


def compare(
    policies: Mapping[str, Samples],
    tasks: Iterable[Task] | None = None,
    greedy: Mapping[str, Samples] | None = None,
    *,
    price: float | None = None,
) -> Comparison:
    """Measure policies on the same tasks and test every pair (earlier, later).

    The test is exact McNemar where every task has one right-or-wrong sample (its mid-p stands beside it),
    else a sign-flip permutation test on task means, and a t test over seeds and tasks where a policy was
    trained with several seeds. A task that either policy of a pair has no scored sample of is left out of
    that pair. Holm's correction is over the pairs, and within a pair over its categories and over its
    difficulties; the verdict follows the corrected p.

    Args:
        policies: trajectories by policy name, the baseline first; {training seed: trajectories} where there
            are several.
        tasks: a suite that holds at least these tasks, for the breakdowns.
        greedy: greedy trajectories by policy name, measured beside the sampled ones.
        price: money for a million tokens, for the cost of a solved task.

    Raises:
        ValueError: policies cover different tasks or different seeds, share no scored task, or have nothing
            to measure.
    """
    if not policies:
        raise ValueError("there is no policy to compare. Pass {'sft': trajectories, 'grpo': trajectories}.")
    tasks = None if tasks is None else list(tasks)
    values = {name: _named(name, values_of, trajectories) for name, trajectories in policies.items()}
    first, covered = next(iter(values.items()))
    entries = {
        name: _named(name, lambda t: summarize(t, tasks, price=price), t) for name, t in policies.items()
    }
    for name, own in values.items():
        same_tasks(first, covered, name, own)
    for name, trajectories in (greedy or {}).items():
        if name not in entries:
            raise ValueError(
                f"greedy trajectories of {name!r}, which is not among the policies {sorted(entries)}."
            )
        own = _named(f"{name}, greedy", values_of, trajectories)
        same_tasks(name, values[name], f"{name}, greedy", own)
        entries[name] = entries[name] | {"greedy": measure(own)}
    pairs = list(combinations(values, 2))
    for a, b in pairs:
        _same_seeds(a, policies[a], b, policies[b])
    labels = dict(zip(("by_category", "by_difficulty"), labels_of(covered, tasks), strict=True))
    paired = with_verdicts(
        [paired_test(a, b, values[a], values[b]) | paired_by(values[a], values[b], labels) for a, b in pairs]
    )
    flipped = {f"{a}->{b}": _flips(values[a], values[b]) for a, b in pairs}
    return Comparison(len(covered), entries, paired, flipped)


def _named(name: str, function: Callable, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _same_seeds(a: str, samples_a: Samples, b: str, samples_b: Samples) -> None:
    seeds = [list(map(str, own)) if isinstance(own, Mapping) else [] for own in (samples_a, samples_b)]
    if min(map(len, seeds)) > 1 and seeds[0] != seeds[1]:
        raise ValueError(
            f"{a} has the training seeds {', '.join(seeds[0])} and {b} has {', '.join(seeds[1])}. "
            "Pass the same seeds in the same order, or one of them alone."
        )


def paired_test(a: str, b: str, values_a: Values, values_b: Values) -> dict[str, Any]:
    """One pair's entry of comparison.json, over the tasks that are scored for both."""
    both = [i for i in values_a if all(values_a[i]) and all(values_b[i])]
    if not both:
        raise ValueError(f"{a} and {b} share no task that is scored for both. Score more trajectories.")
    moved = np.array([rate(values_b[i]) - rate(values_a[i]) for i in both], dtype=np.float64)
    return {
        "a": a,
        "b": b,
        **_difference(values_a, values_b, both),
        "bootstrap_ci95": statistics.bootstrap_interval(moved),
    }


def paired_by(values_a: Values, values_b: Values, labels: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The same for each category and each difficulty."""
    both = {i: None for i in values_a if all(values_a[i]) and all(values_b[i])}
    kinds = {"by_category": sorted, "by_difficulty": easy_first}
    found: dict[str, Any] = {}
    for kind, order in kinds.items():
        groups = split_by(both, labels[kind], order) if labels[kind] else {}
        found[kind] = {
            name: _difference(values_a, values_b, list(own)) for name, own in groups.items() if own
        }
    return found


def _difference(values_a: Values, values_b: Values, tasks: list[str]) -> dict[str, Any]:
    """Difference in success over these tasks: size, interval, test, and what the test could have seen."""
    rates_a, rates_b = rates(values_a, tasks), rates(values_b, tasks)
    before, after = rates_a.mean(axis=0), rates_b.mean(axis=0)
    differences = rates_b - rates_a  # (S, N); a policy with one seed stands beside each of the other's
    if len(differences) > 1:
        error, freedom = statistics.seeds_spread(differences)
        tested = {
            "ci95": statistics.seeds_interval(differences, low=-1.0, high=1.0),
            "p": statistics.seeds_p(differences),
            "test": "seeds_and_tasks_t",
            "detectable": statistics.detectable_seeds(error, freedom) if error else None,
        }
    else:
        tested = _one_seed(before, after, single_samples(v[i] for v in (values_a, values_b) for i in tasks))
    return {
        "diff": float(differences.mean()),
        **tested,
        "n": len(tasks),
        "effect": statistics.effect_sizes(before, after),
    }


def _one_seed(before: np.ndarray, after: np.ndarray, single: bool) -> dict[str, Any]:
    differences, n = after - before, before.size
    interval = statistics.difference_interval(differences, single)
    if single:
        discordant = float(np.mean(before != after))
        tested = {"p": statistics.mcnemar_p(before, after), "test": "mcnemar_exact"}
        tested |= {"mid_p": statistics.sign_flip_p(differences)}
        return {"ci95": interval, **tested, "detectable": statistics.detectable_mcnemar(n, discordant)}
    spread = float(differences.std(ddof=1)) if n > 1 else 0.0
    tested = {"p": statistics.sign_flip_p(differences), "test": "sign_flip_permutation"}
    return {"ci95": interval, **tested, "detectable": statistics.detectable_mean(n, spread)}


def with_verdicts(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs with p_holm and a verdict, overall and in each breakdown."""
    found = _judged(pairs)
    for pair in found:
        for kind in ("by_category", "by_difficulty"):
            pair[kind] = dict(zip(pair[kind], _judged(list(pair[kind].values())), strict=True))
    return found


def _judged(family: list[dict[str, Any]]) -> list[dict[str, Any]]:
    corrected = statistics.holm([test["p"] for test in family])
    return [
        test | {"p_holm": p, "verdict": _verdict(test["diff"], p)}
        for test, p in zip(family, corrected, strict=True)
    ]


def _verdict(difference: float, p: float) -> str:
    return "no difference shown" if p >= ALPHA else "better" if difference > 0 else "worse"


def _flips(values_a: Values, values_b: Values) -> dict[str, list[str]]:
    both = [i for i in values_a if all(values_a[i]) and all(values_b[i])]
    solved = {i: (rate(values_a[i]) > SOLVED, rate(values_b[i]) > SOLVED) for i in both}
    return {
        "to_right": [i for i, now in solved.items() if now == (False, True)],
        "to_wrong": [i for i, now in solved.items() if now == (True, False)],
    }
