"""From scored trajectories to numbers that can be defended: success with intervals, paired tests, the comparison table.

The task is the unit of evidence: samples of one task are averaged first, and every interval and test is over tasks. A policy
trained with several seeds is a mapping from seed to trajectories; seeds are then a second random effect beside the tasks.
Leaves out: the formulas (statistics), sampling and scoring (rollouts, verifiers), behaviour and failures (behaviour), figures
(plots) and showing trajectories (widgets).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from agentkit import statistics, tables
from agentkit.records import Task, Trajectory
from agentkit.statistics import ALPHA, POWER
from agentkit.tables import percent

SOLVED = 0.5  # a task is solved when its success rate is above this: more than half of its samples are right
CATEGORIES = {"A": "math", "B": "multi-hop", "C": "code"}  # what the families of the default suite are about
_DIFFICULTIES = ("easy", "medium", "hard")
_TESTS = {
    "mcnemar_exact": "exact McNemar",
    "sign_flip_permutation": "sign-flip permutation",
    "seeds_and_tasks_t": "t test over seeds and tasks",
}

Samples = Sequence[Trajectory] | Mapping[int, Sequence[Trajectory]]  # of one policy; a mapping is by training seed
Values = dict[str, list[list[float]]]  # by task and seed: the scored successes


# ---- one policy ------------------------------------------------------------------------------------------------------
def summarize(trajectories: Samples, tasks: Iterable[Task] | None = None, *, price: float | None = None) -> dict[str, Any]:
    """Measure one policy.

    Args:
        trajectories: one or several samples a task, or such a list for each training seed; those with success None are left
            out of success and counted.
        tasks: a suite that holds at least these tasks; without it there is no breakdown by category and difficulty.
        price: money for a million tokens, prompt and completion alike; gives ``cost_per_solved``.

    Returns:
        The policy's entry of comparison.json. A figure with nothing to measure (no tool call, no success) is None.

    Raises:
        ValueError: there is nothing to measure, a success is outside [0, 1], or a task is not in ``tasks``.
    """
    values, flat = _values(trajectories), flatten(trajectories)
    if not any(any(seeds) for seeds in values.values()):
        raise ValueError(f"none of the {len(flat)} trajectories is scored. Verify them first.")
    family, difficulty = _labels(values, tasks)
    entry = {
        **_measure(values),
        "samples": _whole(len(flat) / len(values)),
        "unscored": sum(t.success is None for t in flat),
        "by_category": _breakdown(values, family, sorted),
        "by_difficulty": _breakdown(values, difficulty, _easy_first),
        **_ratios(flat, price),
    }
    if isinstance(trajectories, Mapping):
        entry["seeds"] = {str(seed): _measure(_values(own))["success"] for seed, own in trajectories.items()}
    return entry | _draws(trajectories)


def task_success(trajectories: Samples) -> dict[str, float]:
    """Mean success of each task's scored samples (of each seed's mean, for several). A task with none is left out."""
    return {task: _rate(seeds) for task, seeds in _values(trajectories).items() if all(seeds)}


def flatten(trajectories: Samples) -> list[Trajectory]:
    """All trajectories of a policy, of whatever training seed."""
    return [t for own in trajectories.values() for t in own] if isinstance(trajectories, Mapping) else list(trajectories)


def _values(trajectories: Samples) -> Values:
    """Scored successes by task id, in order of first appearance, then by seed; empty lists where no sample is scored."""
    by_seed = list(trajectories.values()) if isinstance(trajectories, Mapping) else [trajectories]
    values: Values = {}
    for seed, own in enumerate(by_seed):
        for t in own:
            scored = values.setdefault(t.task_id, [[] for _ in by_seed])[seed]
            if t.success is None:
                continue
            if not 0.0 <= t.success <= 1.0:  # also catches NaN
                raise ValueError(f"task {t.task_id}, sample {t.sample}: success is {t.success}, which is not in [0, 1].")
            scored.append(float(t.success))
    if not values:
        raise ValueError("there is no trajectory to measure. Roll out the policy first.")
    return values


def _rate(seeds: list[list[float]]) -> float:
    return fmean(fmean(samples) for samples in seeds)


def _rates(values: Values, tasks: Iterable[str]) -> np.ndarray:
    """Success by seed and task, shape (S, N)."""
    return np.array([[fmean(samples) for samples in values[task]] for task in tasks], dtype=np.float64).T


def _measure(values: Values) -> dict[str, Any]:
    """Success, its 95 % interval and the number of tasks with a scored sample (of every seed)."""
    scored = {task: seeds for task, seeds in values.items() if all(seeds)}
    if not scored:
        return {"success": None, "ci95": None, "n": 0}
    rates = _rates(scored, scored)
    if len(rates) > 1:
        interval = statistics.seeds_interval(rates, low=0.0, high=1.0)
    else:
        samples = None if _single(scored.values()) else sum(len(seeds[0]) for seeds in scored.values())
        interval = statistics.success_interval(rates[0], samples)
    return {"success": float(rates.mean()), "ci95": interval, "n": len(scored)}


def _single(scored: Iterable[list[list[float]]]) -> bool:
    """One sample a task, each right or wrong: what Wilson's interval and McNemar's test are about."""
    return all(len(seeds) == 1 and len(seeds[0]) == 1 and seeds[0][0] in (0.0, 1.0) for seeds in scored)


def _ratios(trajectories: Sequence[Trajectory], price: float | None) -> dict[str, Any]:
    """Measures that are a total over tasks divided by another, with intervals clustered by task."""
    counts: dict[str, Counter] = {}
    for t in trajectories:
        count, solved = counts.setdefault(t.task_id, Counter()), t.success is not None and t.success > SOLVED
        calls = [result.ok for turn in t.turns for result in turn.results]
        tokens = len(t.completion_ids)
        count.update(samples=1, tokens=tokens, calls=len(calls), failed=calls.count(False))
        count.update(solved=solved, turns_solved=len(t.turns) * solved)
        if t.success is not None:
            count.update(scored_tokens=tokens, paid=tokens + len(t.prompt_ids))
    ratios = {
        "turns_solved": ("turns_solved", "solved", 1.0),
        "tool_failure_rate": ("failed", "calls", 1.0),
        "tokens": ("tokens", "samples", 1.0),
        "tokens_per_solved": ("scored_tokens", "solved", 1.0),
    }
    if price is not None:
        ratios["cost_per_solved"] = ("paid", "solved", price / 1e6)
    found: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for name, (above, below, unit) in ratios.items():
        numerators, denominators = (np.array([c[key] for c in counts.values()], dtype=np.float64) for key in (above, below))
        found[name], intervals[name] = None, None
        if denominators.sum():
            ratio, pull = statistics.ratio_influence(numerators * unit, denominators)
            high = 1.0 if name == "tool_failure_rate" else math.inf
            bounds = statistics.mean_interval(ratio + pull, low=0.0, high=high) if pull.size > 1 else [math.inf]
            found[name], intervals[name] = ratio, bounds if math.isfinite(bounds[-1]) else None
    return found | {"intervals": intervals}


def _draws(trajectories: Samples) -> dict[str, Any]:
    """pass@k, pass^k and maj@k of each task and seed, for k = 1, 2, 4 ... up to the samples that half of the tasks have.

    A task with fewer than k scored samples is left out of that k; its n says so.
    """
    pools: dict[str, list[list[Trajectory]]] = {}
    by_seed = list(trajectories.values()) if isinstance(trajectories, Mapping) else [trajectories]
    for seed, own in enumerate(by_seed):
        for t in own:
            if t.success is not None:
                pools.setdefault(t.task_id, [[] for _ in by_seed])[seed].append(t)
    sizes = {task: min(map(len, seeds)) for task, seeds in pools.items()}
    most = sorted(sizes.values())[(len(sizes) - 1) // 2]
    ks = [k for k in (2**i for i in range(11)) if k < most] + [most] * (most > 0)
    estimates = {"pass_at_k": _pass_at, "pass_hat_k": _pass_hat, "maj_at_k": _majority}
    return {
        name: {
            str(k): _measure({i: [[f(p, k)] * len(p) for p in seeds] for i, seeds in pools.items() if sizes[i] >= k}) for k in ks
        }
        for name, f in estimates.items()
    }


def _pass_at(pool: Sequence[Trajectory], k: int) -> float:
    return statistics.pass_at_k(len(pool), sum(t.success > SOLVED for t in pool), k)


def _pass_hat(pool: Sequence[Trajectory], k: int) -> float:
    return statistics.pass_hat_k(len(pool), sum(t.success > SOLVED for t in pool), k)


def _majority(pool: Sequence[Trajectory], k: int) -> float:
    """Right answers are one answer; wrong ones are alike where their texts are, white space and case aside."""
    wrong = Counter(" ".join(t.answer.casefold().split()) for t in pool if t.success <= SOLVED and t.answer is not None)
    right = sum(t.success > SOLVED for t in pool)
    return statistics.maj_at_k(right, list(wrong.values()), k, silent=len(pool) - right - wrong.total())


def _labels(values: Mapping[str, Any], tasks: Iterable[Task] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Family and difficulty of each measured task; both empty without tasks."""
    if tasks is None:
        return {}, {}
    known = {task.id: task for task in tasks}
    _same_tasks("the trajectories", values, "the given tasks", known, both_ways=False)
    return {i: known[i].family for i in values}, {i: known[i].difficulty for i in values}


def _breakdown(values: Values, label: Mapping[str, str], order: Callable) -> dict[str, dict]:
    return {name: _measure(own) for name, own in _split(values, label, order).items()}


def _split(values: Mapping[str, Any], label: Mapping[str, str], order: Callable) -> dict[str, dict]:
    names = order(set(label.values()))
    return {name: {i: v for i, v in values.items() if label[i] == name} for name in names}


def _easy_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda n: (_DIFFICULTIES.index(n) if n in _DIFFICULTIES else len(_DIFFICULTIES), n))


def _whole(number: float) -> int | float:
    return int(number) if number == int(number) else round(number, 2)


# ---- several policies ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Comparison:
    """Policies measured on the same tasks. ``to_json`` is comparison.json; ``Comparison(**json)`` reads it back."""

    n_tasks: int
    policies: dict[str, dict[str, Any]]  # summarize() of each, with "greedy": {success, ci95, n} where it was measured
    paired: list[dict[str, Any]]  # for each pair (earlier, later): a, b, diff, ci95, p, test, n and what _pair adds
    flipped: dict[str, dict[str, list[str]]]  # "a->b": ids of the tasks that went to_right and to_wrong

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None."""
        return asdict(self)

    def table(self) -> pd.DataFrame:
        """One row a measure, one column a policy, as text with intervals."""
        return pd.DataFrame({name: _column(entry, self._rows()) for name, entry in self.policies.items()})

    def paired_table(self) -> pd.DataFrame:
        """One row a paired comparison: overall, then by category and by difficulty, each family with Holm's correction."""
        rows = []
        for pair in self.paired:
            blocks = {"all tasks": pair} | {f"category {k}": v for k, v in pair.get("by_category", {}).items()}
            blocks |= {f"difficulty {k}": v for k, v in pair.get("by_difficulty", {}).items()}
            rows += [{"comparison": f"{pair['a']} → {pair['b']}", "tasks": name} | _paired_cells(b) for name, b in blocks.items()]
        return pd.DataFrame(rows)

    def tidy(self) -> pd.DataFrame:
        """Every measured number as one row: policy, measure, value, low, high, n; for CSV files and further work."""
        columns = ["policy", "measure", "value", "low", "high", "n"]
        rows = [row for name, entry in self.policies.items() for row in _tidy(name, entry, self._rows())]
        return pd.DataFrame(rows, columns=columns)

    def _rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Row titles with the path of each in a policy's entry."""
        entries = self.policies.values()
        categories = sorted({c for e in entries for c in e["by_category"]})
        difficulties = _easy_first({d for e in entries for d in e["by_difficulty"]})
        greedy = any("greedy" in e for e in entries)
        k = min((max(map(int, e.get("pass_at_k") or ["1"])) for e in entries), default=1)
        draws = [("pass@", "pass_at_k"), ("pass^", "pass_hat_k"), ("maj@", "maj_at_k")] if k > 1 else []
        money = any(e.get("cost_per_solved") is not None for e in entries)
        return [
            ("Overall success", ()),
            *([("Overall success, greedy", ("greedy",))] if greedy else []),
            *((f"Category {c}" + (f" ({CATEGORIES[c]})" if c in CATEGORIES else ""), ("by_category", c)) for c in categories),
            *((f"Difficulty {d}", ("by_difficulty", d)) for d in difficulties),
            *((f"{title}{k}", (key, str(k))) for title, key in draws),
            ("Average turns (successful tasks)", ("turns_solved",)),
            ("Tool call failure rate", ("tool_failure_rate",)),
            ("Average tokens per task", ("tokens",)),
            ("Tokens per solved task", ("tokens_per_solved",)),
            *([("Cost per solved task", ("cost_per_solved",))] if money else []),
            *([("Trajectories not scored", ("unscored",))] if any(e.get("unscored") for e in entries) else []),
        ]

    def sentences(self) -> list[str]:
        """Each paired result in words, with its verdict."""
        return [_sentence(pair, self.flipped[f"{pair['a']}->{pair['b']}"], len(self.paired)) for pair in self.paired]

    def where(self, a: str, b: str) -> str:
        """For which categories and difficulties policy b differs from policy a, in one sentence."""
        pair = next((p for p in self.paired if (p["a"], p["b"]) == (a, b)), {})
        blocks = {f"category {k}": v for k, v in pair.get("by_category", {}).items()}
        blocks |= {f"difficulty {k}": v for k, v in pair.get("by_difficulty", {}).items()}
        parts = [f"{name} {_points(block['diff'])} points ({_briefly(block)})" for name, block in blocks.items()]
        return f"{pair['a']} → {pair['b']}: {'; '.join(parts)}." if parts else "There is no breakdown to compare."

    def draws(self) -> list[str]:
        """What sampling more than once would give, one sentence a policy."""
        said = []
        for name, entry in self.policies.items():
            k = max(entry.get("pass_at_k") or ["1"], key=int)
            if int(k) > 1 and entry["pass_at_k"][k]["n"]:
                one, most = entry["pass_at_k"]["1"], {key: entry[key][k] for key in ("pass_at_k", "maj_at_k", "pass_hat_k")}
                some, majority, every = (percent(block["success"]) for block in most.values())
                said.append(
                    f"{name}: {percent(one['success'])} with one sample; of {k} samples, {some} if any right one counts, "
                    f"{majority} by majority, {every} if all must be right."
                )
        return said

    def _repr_html_(self) -> str:
        caption = f"{self.n_tasks} tasks; 95 % intervals over tasks in brackets"
        return tables.to_html(self.table(), caption, self.sentences())


def compare(
    policies: Mapping[str, Samples],
    tasks: Iterable[Task] | None = None,
    greedy: Mapping[str, Samples] | None = None,
    *,
    price: float | None = None,
) -> Comparison:
    """Measure policies on the same tasks and test every pair (earlier, later).

    The test is exact McNemar where every task has one right-or-wrong sample (its mid-p stands beside it), else a sign-flip
    permutation test on task means, and a t test over seeds and tasks where a policy was trained with several seeds. A task
    that either policy of a pair has no scored sample of is left out of that pair. Holm's correction is over the pairs, and
    within a pair over its categories and over its difficulties; the verdict follows the corrected p.

    Args:
        policies: trajectories by policy name, the baseline first; {training seed: trajectories} where there are several.
        tasks: a suite that holds at least these tasks, for the breakdowns.
        greedy: greedy trajectories by policy name, measured beside the sampled ones.
        price: money for a million tokens, for the cost of a solved task.

    Raises:
        ValueError: policies cover different tasks or different seeds, share no scored task, or have nothing to measure.
    """
    if not policies:
        raise ValueError("there is no policy to compare. Pass {'sft': trajectories, 'grpo': trajectories}.")
    tasks = None if tasks is None else list(tasks)
    values = {name: _named(name, _values, trajectories) for name, trajectories in policies.items()}
    first, covered = next(iter(values.items()))
    entries = {name: _named(name, lambda t: summarize(t, tasks, price=price), t) for name, t in policies.items()}
    for name, own in values.items():
        _same_tasks(first, covered, name, own)
    for name, trajectories in (greedy or {}).items():
        if name not in entries:
            raise ValueError(f"greedy trajectories of {name!r}, which is not among the policies {sorted(entries)}.")
        own = _named(f"{name}, greedy", _values, trajectories)
        _same_tasks(name, values[name], f"{name}, greedy", own)
        entries[name] = entries[name] | {"greedy": _measure(own)}
    pairs = list(combinations(values, 2))
    for a, b in pairs:
        _same_seeds(a, policies[a], b, policies[b])
    labels = dict(zip(("by_category", "by_difficulty"), _labels(covered, tasks), strict=True))
    paired = _verdicts([_pair(a, b, values[a], values[b]) | _paired_by(values[a], values[b], labels) for a, b in pairs])
    flipped = {f"{a}->{b}": _flips(values[a], values[b]) for a, b in pairs}
    return Comparison(len(covered), entries, paired, flipped)


def _named(name: str, function: Callable, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _same_tasks(a: str, ids_a: Iterable[str], b: str, ids_b: Iterable[str], both_ways: bool = True) -> None:
    for holder, lacking, missing in [(a, b, set(ids_a) - set(ids_b)), (b, a, set(ids_b) - set(ids_a))]:
        if missing and (both_ways or lacking == b):
            shown = ", ".join(sorted(missing)[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise ValueError(f"tasks of {holder} missing in {lacking} ({len(missing)}): {shown}. Use the same tasks.")


def _same_seeds(a: str, samples_a: Samples, b: str, samples_b: Samples) -> None:
    seeds = [list(map(str, own)) if isinstance(own, Mapping) else [] for own in (samples_a, samples_b)]
    if min(map(len, seeds)) > 1 and seeds[0] != seeds[1]:
        raise ValueError(
            f"{a} has the training seeds {', '.join(seeds[0])} and {b} has {', '.join(seeds[1])}. "
            "Pass the same seeds in the same order, or one of them alone."
        )


def _pair(a: str, b: str, values_a: Values, values_b: Values) -> dict[str, Any]:
    both = [i for i in values_a if all(values_a[i]) and all(values_b[i])]
    if not both:
        raise ValueError(f"{a} and {b} share no task that is scored for both. Score more trajectories.")
    moved = np.array([_rate(values_b[i]) - _rate(values_a[i]) for i in both], dtype=np.float64)
    return {"a": a, "b": b, **_difference(values_a, values_b, both), "bootstrap_ci95": statistics.bootstrap_interval(moved)}


def _paired_by(values_a: Values, values_b: Values, labels: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The same for each category and each difficulty."""
    both = {i: None for i in values_a if all(values_a[i]) and all(values_b[i])}
    kinds = {"by_category": sorted, "by_difficulty": _easy_first}
    found: dict[str, Any] = {}
    for kind, order in kinds.items():
        groups = _split(both, labels[kind], order) if labels[kind] else {}
        found[kind] = {name: _difference(values_a, values_b, list(own)) for name, own in groups.items() if own}
    return found


def _difference(values_a: Values, values_b: Values, tasks: list[str]) -> dict[str, Any]:
    """Difference in success over these tasks: size, interval, test, and what the test could have seen."""
    rates_a, rates_b = _rates(values_a, tasks), _rates(values_b, tasks)
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
        tested = _one_seed(before, after, _single(v[i] for v in (values_a, values_b) for i in tasks))
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


def _verdicts(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs with p_holm and a verdict, overall and in each breakdown."""
    found = _judged(pairs)
    for pair in found:
        for kind in ("by_category", "by_difficulty"):
            pair[kind] = dict(zip(pair[kind], _judged(list(pair[kind].values())), strict=True))
    return found


def _judged(family: list[dict[str, Any]]) -> list[dict[str, Any]]:
    corrected = statistics.holm([test["p"] for test in family])
    return [test | {"p_holm": p, "verdict": _verdict(test["diff"], p)} for test, p in zip(family, corrected, strict=True)]


def _verdict(difference: float, p: float) -> str:
    return "no difference shown" if p >= ALPHA else "better" if difference > 0 else "worse"


def _flips(values_a: Values, values_b: Values) -> dict[str, list[str]]:
    both = [i for i in values_a if all(values_a[i]) and all(values_b[i])]
    solved = {i: (_rate(values_a[i]) > SOLVED, _rate(values_b[i]) > SOLVED) for i in both}
    return {
        "to_right": [i for i, now in solved.items() if now == (False, True)],
        "to_wrong": [i for i, now in solved.items() if now == (True, False)],
    }


# ---- cases -----------------------------------------------------------------------------------------------------------
def case_of(task: Task) -> str:
    """The case a task is listed under: its own meta["case"], else the shape of its plan, from no tool to a full pipeline."""
    if case := task.meta.get("case"):
        return str(case)
    if not isinstance(plan := task.meta.get("plan"), list):
        return f"Family {task.family}"
    tools = {step.get("tool") for step in plan}
    if len(plan) < 2:
        return "One tool call" if plan else "No tools needed"
    if len(tools) == 1:
        return "Multi-step, one tool"
    return (
        "Two tools, one call each"
        if len(plan) == 2
        else "Full pipeline, 4 or more calls"
        if len(plan) > 3
        else "Multi-step, several tools"
    )


def case_scores(trajectories: Samples, tasks: Iterable[Task]) -> dict[str, float]:
    """Mean success of the tasks of each case, for ``case_table``."""
    success, cases = task_success(trajectories), {}
    for task in tasks:
        if task.id in success:
            cases.setdefault(case_of(task), []).append(success[task.id])
    return {case: fmean(own) for case, own in cases.items()}


def case_table(scores: Mapping[str, Mapping[str, float]]) -> tuple[pd.DataFrame, list[str]]:
    """Cases by policies with the average over cases, and what such a table can show: one sentence a pair of policies.

    The cases are the sample here, so the test is over cases. Six of them rarely show anything.

    Args:
        scores: mean score in [0, 1] by policy and case, the baseline first.

    Raises:
        ValueError: policies are scored on different cases.
    """
    (first, cases), *others = scores.items()
    for name, own in others:
        if own.keys() != cases.keys():
            raise ValueError(f"{first} and {name} are scored on different cases: {sorted(own.keys() ^ cases.keys())}.")
    table = pd.DataFrame({name: {case: f"{own[case]:.2f}" for case in cases} for name, own in scores.items()})
    table.loc["Average"] = {name: f"{fmean(own.values()):.2f}" for name, own in scores.items()}
    values = {name: {case: [[own[case]]] for case in cases} for name, own in scores.items()}
    pairs = _verdicts([_pair(a, b, values[a], values[b]) | _paired_by({}, {}, _NO_LABELS) for a, b in combinations(values, 2)])
    return table, [_sentence(pair, None, len(pairs), unit="cases") for pair in pairs]


_NO_LABELS: dict[str, dict] = {"by_category": {}, "by_difficulty": {}}


# ---- numbers as text -------------------------------------------------------------------------------------------------
def _column(entry: dict[str, Any], rows: list[tuple[str, tuple[str, ...]]]) -> pd.Series:
    return pd.Series({title: _cell(entry, path) for title, path in rows}, dtype=object)


def _at(entry: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = entry
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


_FORMATS = {"turns_solved": "{:.2f}", "tool_failure_rate": "{:.1%}", "cost_per_solved": "{:.3g}"}


def _cell(entry: dict[str, Any], path: tuple[str, ...]) -> str:
    value = _at(entry, path)
    if isinstance(value, dict):
        return "–" if value["success"] is None else percent(value["success"], value["ci95"])
    if value is None:
        return "–"
    interval = (entry.get("intervals") or {}).get(path[-1])
    if path[-1] == "tool_failure_rate":
        return percent(value, interval)
    shown = _FORMATS.get(path[-1], "{:.0f}")
    bounds = f" [{shown.format(interval[0])}, {shown.format(interval[1])}]" if interval else ""
    return shown.format(value) + bounds


def _tidy(name: str, entry: dict[str, Any], rows: list[tuple[str, tuple[str, ...]]]) -> Iterable[tuple]:
    for title, path in rows:
        value = _at(entry, path)
        if isinstance(value, dict):
            yield name, title, value["success"], *(value["ci95"] or (None, None)), value["n"]
        elif value is not None:
            yield name, title, value, *((entry.get("intervals") or {}).get(path[-1]) or (None, None)), entry["n"]


def _paired_cells(block: dict[str, Any]) -> dict[str, str]:
    low, high = block["ci95"]
    seen = block.get("detectable")
    return {
        "difference, points": f"{_points(block['diff'])} [{_points(low)}, {_points(high)}]",
        "p": f"{block['p']:.2g}",
        "p, Holm": f"{block.get('p_holm', block['p']):.2g}",
        "verdict": block.get("verdict", ""),
        "could see, points": "–" if seen is None else f"{100 * seen:.1f}",
        "n": str(block["n"]),
    }


def _briefly(block: dict[str, Any]) -> str:
    if block["verdict"] != "no difference shown" or block["detectable"] is None:
        return block["verdict"]
    return f"{block['verdict']}, could have seen {100 * block['detectable']:.1f}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _sentence(pair: dict[str, Any], flips: dict[str, list[str]] | None, family: int, unit: str = "tasks") -> str:
    low, high = pair["ci95"]
    holm = f"; Holm over {family} comparisons {pair['p_holm']:.2g}" if family > 1 and "p_holm" in pair else ""
    moved = (
        f"; {len(flips['to_right'])} tasks went from wrong to right, {len(flips['to_wrong'])} from right to wrong"
        if flips
        else ""
    )
    return (
        f"{pair['a']} → {pair['b']}: {_points(pair['diff'])} points [{_points(low)}, {_points(high)}], p = {pair['p']:.2g} "
        f"({_TESTS.get(pair['test'], pair['test'])}, {pair['n']} {unit}{holm}){moved}.{_verdict_sentence(pair, unit)}"
    )


def _verdict_sentence(pair: dict[str, Any], unit: str) -> str:
    if "verdict" not in pair:  # a comparison.json from before there were verdicts
        return ""
    if pair["verdict"] != "no difference shown":
        return f" {pair['b']} is {pair['verdict']}."
    if pair["detectable"] is None:
        return f" No difference shown (with {pair['n']} {unit} the test could have seen none)."
    return (
        f" No difference shown (the test could have seen {100 * pair['detectable']:.1f} points with {100 * POWER:.0f} % power)."
    )
