"""What a sweep showed: every arm against one on the verifier's success, with tasks and seeds both as random.

Arms are compared on the same test tasks and the same seeds, never on shaped rewards. The spread between seeds
is taken to be the same in every arm and pooled over all of them, as Dunnett's comparisons with one control
do: three seeds of one arm alone say next to nothing of it. Leaves out running a sweep (runs.sweep) and
drawing it (views).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import scipy  # scipy.stats, half a second, where it is used
from scipy import special
from scipy.optimize import brentq

from agentkit.evaluation import tables
from agentkit.evaluation.statistics import (
    ALPHA,
    POWER,
    SEEDS,
    dunnett,
    dunnett_level,
    holm,
    holm_levels,
    interaction,
)
from agentkit.evaluation.summary import Values, easy_first, measure, rates, same_tasks, summarize, values_of
from agentkit.records import RunError, Trajectory
from agentkit.runs import Recipe, Run, cost, with_progress
from agentkit.runs.sweep import Sweep
from agentkit.trajectories import UNKNOWN_TOOL

_TINY = 1e-9
EQUAL = "equal within the margin"  # a verdict
LEVELS = (
    "Intervals are over seeds and tasks: of success at 95 %, of a difference at the level that decides its "
    "verdict (Dunnett's, or Holm's where arms are equal within the margin), at 95 % where there is none."
)
HOURS = (
    "Hours to make: device time of the notebooks that made the measured policy, 02 and for GRPO 03; for a "
    "control its own part of 05 with its measurement, or all of 05 where a run does not say."
)


# ---- tests and power
@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of the difference between two arms' success, as shares."""

    seeds: float = 0.03  # between seeds, beyond what tasks and sampling add
    tasks: float = 0.10  # between tasks, whatever the seed
    rest: float = 0.30  # of one task and seed: sampling, and chance in training

    def error(self, seeds: int, tasks: int, arms: int) -> tuple[float, float]:
        """Standard error of a mean difference, and its degrees of freedom; ``arms`` counts all."""
        if tasks < 2:  # a test that compares tasks needs two
            return math.inf, 1.0
        inner = self.rest**2 / (seeds * tasks)
        return _combined(
            self.seeds**2 / seeds + inner, self.tasks**2 / tasks + inner, inner, seeds, tasks, arms
        )


def _combined(seed: float, task: float, inner: float, s: int, n: int, arms: int) -> tuple[float, float]:
    """Error and Satterthwaite's degrees of freedom from mean squares over their numbers."""
    if s < 2:
        return math.sqrt(task), n - 1
    between = max(task - inner, 0.0)
    expected = max(seed, inner)  # it holds the inner one: one that is less by luck would seem well known
    freedom = ((arms - 1) * (s - 1), n - 1, (s - 1) * (n - 1))
    parts = sum(part**2 / f for part, f in zip((expected, task, inner), freedom, strict=True))
    least = float(min(freedom))  # what is subtracted would leave less than any of the three has
    return math.sqrt(seed + between), max((expected + between) ** 2 / parts, least) if parts > 0 else least


def errors(success: np.ndarray) -> list[tuple[float, float, float]]:
    """Difference of each arm from the first, its standard error and degrees of freedom; shape (A, S, N)."""
    assert success.ndim == 3 and success.shape[0] > 1 and success.shape[2] > 1, success.shape
    arms, s, n = success.shape
    means = success.mean(axis=2)
    seed = 2 * interaction(means) / max((arms - 1) * (s - 1), 1) / s
    found = []
    for difference in success[1:] - success[0]:
        task = float(difference.mean(axis=0).var(ddof=1)) / n
        inner = interaction(difference) / max((s - 1) * (n - 1), 1) / (s * n)
        found.append((float(difference.mean()), *_combined(seed, task, inner, s, n, arms)))
    return found


def _thresholds(freedom: float, tests: int) -> np.ndarray:
    """What a difference must exceed, in true standard errors, over the error that will be estimated."""
    estimated = np.sqrt(scipy.stats.chi2.ppf((np.arange(500) + 0.5) / 500, freedom) / freedom)
    return scipy.stats.t.isf(dunnett_level(freedom, tests) / 2, freedom) * estimated


def _shown(shift: float, thresholds: np.ndarray) -> float:
    """Chance that a true difference of ``shift`` standard errors exceeds them."""
    # scipy's noncentral t is not a number for large shifts
    return float(np.mean(special.ndtr(shift - thresholds) + special.ndtr(-shift - thresholds)))


def smallest(error: float, freedom: float, tests: int) -> float | None:
    """The smallest difference shown with 80 % power; None where none could be, as with equal outcomes."""
    largest, thresholds = 1 / max(error, _TINY), _thresholds(freedom, tests)
    if error < _TINY or _shown(largest, thresholds) < POWER:
        return None
    return error * float(brentq(lambda shift: _shown(shift, thresholds) - POWER, 0.0, largest, xtol=1e-4))


def against_one(success: np.ndarray, margin: float) -> list[dict[str, Any]]:
    """Tests of every arm against the first, shape (A, S, N), and of equality within a margin.

    Differences are decided by Dunnett's step-down test, equality by Holm's; ``p_holm`` is what Holm's would
    say of a difference. A verdict and its interval are at one level, the one at which it is decided; that of
    ``ci_difference`` is always Dunnett's, so that it leaves 0 out where that is better or worse. Fewer
    than SEEDS seeds give an interval, and neither p nor verdict.
    """
    seeds, found = success.shape[1], []
    for difference, error, freedom in errors(success):
        if error < _TINY:  # equal everywhere: as many tasks as a binomial bound allows may differ unseen
            error = (1 - (ALPHA / 2) ** (1 / success.shape[2])) / float(scipy.stats.t.isf(ALPHA / 2, freedom))
        interval = _interval(difference, error, freedom, ALPHA)
        found.append({
            "diff": difference, "ci95": interval, "ci_difference": interval, "level": ALPHA,
            "p": max(2 * float(scipy.stats.t.sf(abs(difference) / error, freedom)), np.finfo(float).tiny),
            # two one-sided tests (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15:657)
            "p_equal": float(scipy.stats.t.sf((margin - abs(difference)) / error, freedom)),
            "could_show": smallest(error, freedom, len(success) - 1),
            "error": error, "freedom": freedom,
        })  # fmt: skip
    if seeds < SEEDS:
        none = dict.fromkeys(("p", "p_equal", "p_dunnett", "p_holm", "p_equal_holm", "could_show"))
        verdict = f"{'one seed' if seeds == 1 else f'{seeds} seeds'}, no verdict"
        return [test | none | {"verdict": verdict} for test in found]
    for name, corrected in (("p", "p_holm"), ("p_equal", "p_equal_holm")):
        for test, p in zip(found, holm([test[name] for test in found]), strict=True):
            test[corrected] = p
    adjusted, levels = dunnett([test["p"] for test in found], [test["freedom"] for test in found])
    alike_levels = holm_levels([test["p_equal"] for test in found])
    for test, p, level, alike in zip(found, adjusted, levels, alike_levels, strict=True):
        test["p_dunnett"] = p
        test["verdict"] = _verdict(test)
        # two one-sided tests at a level are an interval at twice the level
        test["level"] = 2 * alike if test["verdict"] == EQUAL else level
        for name, at in (("ci95", test["level"]), ("ci_difference", level)):
            test[name] = _interval(test["diff"], test["error"], test["freedom"], at)
    return found


def _interval(difference: float, error: float, freedom: float, level: float) -> list[float]:
    half = float(scipy.stats.t.isf(level / 2, freedom)) * error
    return [max(difference - half, -1.0), min(difference + half, 1.0)]


def _verdict(test: Mapping[str, Any]) -> str:
    if test["p_dunnett"] < ALPHA:
        return "better" if test["diff"] > 0 else "worse"
    return EQUAL if test["p_equal_holm"] < ALPHA else tables.NO_DIFFERENCE


# ---- a sweep's cells
class Ablation:
    """The cells of a sweep that are done, measured and tested. Raises RunError where there are too few."""

    def __init__(self, sweep: Sweep):
        self.sweep, state = sweep, sweep.state
        self.against, self.margin = state["against"], state["margin"]
        order = sorted(state["order"], key=lambda name: name != self.against)  # it comes first
        self.runs: dict[str, dict[int, Run]] = {name: runs for name in order if (runs := sweep.runs(name))}
        self.missing = [f"{c['arm']}/seed-{c['seed']}" for c in state["cells"] if c["status"] != "done"]
        if self.against not in self.runs or len(self.runs) < 2:
            raise RunError(
                f"{sweep.folder}: no two arms are done yet, {self.against} among them. Run it again."
            )
        whole = [name for name, runs in self.runs.items() if runs.keys() >= self.runs[self.against].keys()]
        self.tested = whole if len(whole) > 1 else list(self.runs)  # an arm that lacks seeds takes none away
        self.seeds = sorted(set.intersection(*(set(self.runs[name]) for name in self.tested)))
        if not self.seeds:
            raise RunError(f"{sweep.folder}: no seed is done in every arm yet. Run the sweep again.")

    @cached_property
    def test(self) -> list[Any]:
        """The test tasks, which all cells share."""
        return [task for task in self.runs[self.against][self.seeds[0]].tasks if task.split == "test"]

    @cached_property
    def samples(self) -> dict[str, dict[int, list[Any]]]:
        """Test trajectories by arm and seed, without their texts: those of a large sweep fill the memory."""
        samples: dict[str, dict[int, list[Any]]] = {name: {} for name in self.runs}
        cells = [(name, seed, run) for name, runs in self.runs.items() for seed, run in runs.items()]
        for name, seed, run in with_progress(cells, "cells", "cell"):
            stored = run.trajectories(self.sweep.state["arms"][name]["policy"])
            samples[name][seed] = [_slim(trajectory) for trajectory in stored]
        return samples

    @cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Each arm's measurements over the seeds that it has."""
        return {name: summarize(samples, self.test) for name, samples in self.samples.items()}

    @cached_property
    def values(self) -> dict[str, Values]:
        """Scores by tested arm and task, of the seeds that these all have."""
        values = {n: values_of({s: self.samples[n][s] for s in self.seeds}) for n in self.tested}
        same_tasks(values)
        return values

    @cached_property
    def scored(self) -> list[str]:
        """The tasks that are scored everywhere. Raises RunError where there are no two."""
        scored = [i for i in self.values[self.against] if all(all(own[i]) for own in self.values.values())]
        if len(scored) < 2:
            n = len(self.values[self.against])
            raise RunError(
                f"{self.sweep.folder}: {len(scored)} of {n} test tasks are scored in every cell, and two are "
                "the least to compare. Look at the verifier of these cells."
            )
        return scored

    @cached_property
    def success(self) -> np.ndarray:
        """Success by arm, seed and task, shape (A, S, N), of the tasks that are scored everywhere."""
        return np.array([rates(own, self.scored) for own in self.values.values()])

    @cached_property
    def paired(self) -> list[dict[str, Any]]:
        """Every arm against the one, in the order of the file."""
        tests = against_one(self.success, self.margin)
        return [{"arm": name} | test for name, test in zip(self.tested[1:], tests, strict=True)]

    @cached_property
    def training(self) -> dict[str, dict[int, pd.DataFrame]]:
        """Metrics of the arms that are trained, by seed, with the million completion tokens so far."""
        return {
            name: {seed: _with_tokens(run) for seed, run in runs.items()}
            for name, runs in self.runs.items()
            if self.sweep.state["arms"][name]["policy"] == "grpo"
        }

    @cached_property
    def arms(self) -> dict[str, dict[str, Any]]:
        """Each arm's entry of ablations.json."""
        same = ("success", "ci95", "turns", "tool_failure_rate", "tokens", "by_category", "by_difficulty")
        arms = {}
        for name, entry in self.summaries.items():
            own = {"n_tasks": entry["n"], "seeds": sorted(self.runs[name]), "by_seed": entry["seeds"]}
            arms[name] = {key: entry[key] for key in same} | own | self._training_of(name)
        return arms

    def to_json(self) -> dict[str, Any]:
        """ablations.json."""
        question = self.sweep.state["question"]
        head = {"question": question, "against": self.against, "margin": self.margin, "missing": self.missing}
        return head | {"arms": self.arms, "paired": self.paired, "answer": self.answer()}

    def _training_of(self, name: str) -> dict[str, Any]:
        rows = self.training.get(name, {}).values()
        spent = [s for run, s in self._seconds_of(name) if cost.device_of(run) == "GPU"]
        return {
            "rollouts": fmean(t["rollouts"].sum() for t in rows) if rows else 0,
            "million_tokens": fmean(t["million_tokens"].iloc[-1] for t in rows) if rows else 0.0,
            "dead_groups": fmean(t["dead_groups"].mean() for t in rows) if rows else None,
            "gpu_hours": fmean(spent) / 3600 if spent else None,
        }

    def _seconds_of(self, name: str) -> list[tuple[Run, float]]:
        policy = self.sweep.state["arms"][name]["policy"]
        return [(run, cost.made_in(run, policy)) for run in self.runs[name].values()]

    def sweet_spot(self) -> str:
        """The trained arm that samples least of those not shown to be worse than the best.

        Empty where there are fewer than SEEDS seeds, or none is trained.
        """
        success = dict(zip(self.tested, self.success, strict=True))
        trained = sorted((n for n in self.tested if n in self.training), key=lambda n: -success[n].mean())
        if not trained or len(self.seeds) < SEEDS:
            return ""
        best, *others = trained
        tests = against_one(np.array([success[n] for n in trained]), self.margin) if others else []
        worse = {name for name, test in zip(others, tests, strict=True) if test["verdict"] == "worse"}
        return min(trained, key=lambda n: (n in worse, self.arms[n]["million_tokens"]))

    def verdict(self, name: str) -> str:
        """What the tests say of an arm, in a few words."""
        found = {test["arm"]: test["verdict"] for test in self.paired}
        return found.get(name, "compared with" if name == self.against else "lacks seeds")

    # ---- in words
    def answer(self) -> str:
        """The conclusion, computed from the tests."""
        own, m, seeds = self.values[self.against], len(self.scored), len(self.seeds)
        reference = measure({task: own[task] for task in self.scored})
        of = f"{m} tasks" if m == len(own) else f"the {m} tasks that are scored everywhere, of {len(own)},"
        head = f"{self.against} solves {tables.percent(reference['success'], reference['ci95'])} of {of}"
        parts = [f"{head} ({seeds} seed{'s' * (seeds > 1)})"]
        heads = {
            "better": "better than it",
            "worse": "worse than it",
            EQUAL: f"equal within {100 * self.margin:g} points",
            tables.NO_DIFFERENCE: "no difference shown",
        }
        arms = {v: ", ".join(_said(t) for t in self.paired if t["verdict"] == v) for v in heads}
        parts += [f"{head}: {arms[verdict]}" for verdict, head in heads.items() if arms[verdict]]
        seen = max((t["could_show"] for t in self.paired if t["could_show"]), default=None)
        if seen and arms[tables.NO_DIFFERENCE]:
            parts.append(f"differences from {100 * seen:.1f} points on would have been shown (80 % power)")
        if seeds < SEEDS:
            parts.append(f"no verdict: {', '.join(map(_said, self.paired))}")
        if short := [name for name in self.runs if name not in self.tested]:
            parts.append(f"not compared, as they lack seeds: {', '.join(short)}")
        few = f" A verdict needs {SEEDS} seeds that every arm has: add seeds to the file." * (seeds < SEEDS)
        one = " One seed says nothing of the spread between seeds." * (seeds < 2)
        return "; ".join(parts) + "." + few + one + self._by_hardest() + self._cheapest()

    def _by_hardest(self) -> str:
        """Of arms trained on one difficulty: what all solve of the hardest test tasks."""
        recipes, named = self.sweep.state["arms"], []
        only = {n: d for n in self.arms if (d := recipes[n].get("train_difficulty"))}
        blocks = {name: arm["by_difficulty"] for name, arm in self.arms.items()}
        if not only or not blocks[self.against]:
            return ""
        hardest = easy_first(blocks[self.against])[-1]
        for name, block in blocks.items():
            why = f", trained on {only[name]} tasks alone," if name in only else ""
            success = block.get(hardest, {}).get("success")  # None where nothing was scored
            named += [f"{name}{why} {tables.percent(success)}"] if success is not None else []
        n = blocks[self.against][hardest]["n"]
        return f" Success on the {n} {hardest} tasks ({tables.DESCRIBED}): {'; '.join(named)}." * bool(named)

    def _cheapest(self) -> str:
        """The sweet spot, of arms that differ in their group size."""
        sizes = {self.sweep.state["arms"][name].get("group_size") for name in self.training}
        if len(sizes) < 2 or not (spot := self.sweet_spot()):
            return ""
        spent = self.arms[spot]["million_tokens"]
        tokens = f"{spent:.2f} million completion tokens (tool replies included) in training"
        return f" The sweet spot is {spot}, with {tokens} the cheapest not shown to be worse than the best."

    def table(self) -> pd.DataFrame:
        """One row an arm: success, the test, and what it took."""
        rows, tests = {}, {test["arm"]: test for test in self.paired}
        for name, arm in self.arms.items():
            test, trained = tests.get(name), name in self.training
            dead = arm["dead_groups"]
            rows[name] = {
                "success": tables.percent(arm["success"], arm["ci95"]),
                "difference, points": tables.spanned(test["diff"], test["ci95"]) if test else "–",
                "p, Dunnett": f"{p:.2g}" if test and (p := test["p_dunnett"]) is not None else "–",
                "verdict": self.verdict(name),
                "turns": f"{arm['turns']:.2f}",
                "failed calls": "–"
                if arm["tool_failure_rate"] is None
                else f"{arm['tool_failure_rate']:.1%}",
                "tokens a task": f"{arm['tokens']:.0f}",
                "rollouts": f"{arm['rollouts']:.0f}" if trained else "–",
                "hours to make": cost.hours(fmean(seconds for _, seconds in self._seconds_of(name)) / 3600),
                "dead groups": "–" if dead is None else f"{dead:.0%}",
            }
        return tables.text_table(rows)

    def cells(self) -> pd.DataFrame:
        """One row a cell: its success and where its run lies."""
        rows = {}
        for cell in self.sweep.state["cells"]:
            seeds = self.summaries[cell["arm"]]["seeds"] if cell["arm"] in self.runs else {}
            shown = seeds.get(str(cell["seed"]))
            row = {"status": cell["status"], "success": "–" if shown is None else tables.percent(shown)}
            rows[f"{cell['arm']}, seed {cell['seed']}"] = row | {"run": cell["run"], "why": cell["error"]}
        return tables.text_table(rows)


def _slim(trajectory: Trajectory) -> Trajectory:
    """With what is counted only: turns and calls, which failed and how, the verdict and the answer."""
    turns, begins = [], len(UNKNOWN_TOOL)
    for turn in trajectory.turns:
        results = (replace(r, arguments={}, observation=r.observation[:begins]) for r in turn.results)
        turns.append(replace(turn, text="", results=tuple(results)))
    return replace(trajectory, turns=tuple(turns), why="", components={})


def _with_tokens(run: Run) -> pd.DataFrame:
    metrics = run.metrics
    rollouts = cost.sampled(metrics, Recipe.of(run))
    tokens = (rollouts * metrics["completion_tokens"].fillna(0)).cumsum() / 1e6
    return metrics.assign(rollouts=rollouts, million_tokens=tokens)


def _said(test: Mapping[str, Any]) -> str:
    return f"{test['arm']} ({tables.briefly(test)})"


def measured_spread(success: Sequence[np.ndarray]) -> Spread:
    """The spread that finished cells show, each of shape (A, S >= 2, N), for planning more."""
    parts = []
    for cube in success:
        _, s, n = cube.shape
        for d in cube[1:] - cube[0]:
            rest = interaction(d) / ((s - 1) * (n - 1))
            seeds, tasks = float(d.mean(axis=1).var(ddof=1)), float(d.mean(axis=0).var(ddof=1))
            parts.append((max(seeds - rest / n, 0.0), max(tasks - rest / s, 0.0), rest))
    return Spread(*(math.sqrt(v) for v in np.mean(parts, axis=0)))
