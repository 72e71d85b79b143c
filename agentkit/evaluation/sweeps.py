"""What a sweep showed: every arm against one on the verifier's success, with tasks and seeds both as random.

Arms are compared on the same test tasks and the same seeds, never on shaped rewards. The spread between seeds
is taken to be the same in every arm and pooled over all of them: three seeds of one arm alone say next to
nothing of it. Leaves out running a sweep (runs.sweep) and drawing it (views).
"""

from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from agentkit.evaluation import statistics, tables
from agentkit.evaluation.headline import untrained
from agentkit.evaluation.statistics import SEEDS, Estimate
from agentkit.evaluation.summary import rates, same_tasks, summarize, values_of
from agentkit.recipe import Recipe
from agentkit.records import RunError, Trajectory
from agentkit.runs import Run, cost, with_progress
from agentkit.runs.sweep import Sweep

INTERVALS = (
    "Intervals are over seeds and tasks. That of a success is at 95 %. Those of the differences hold "
    "together in 95 of 100 sweeps (Dunnett). One that leaves out 0 gives the verdict better or worse."
)
HOURS = "Hours are device time: of notebook 02, and of 03 for GRPO or 05 for a control."

UNTRAINED = "step 0 kept, no verdict"


# ---- tests
def against_one(success: np.ndarray) -> list[dict[str, Any]]:
    """Every arm against the first by Dunnett's test; success has shape (A, S, N).

    Fewer than SEEDS seeds give an interval, and neither p nor verdict.
    """
    seeds, tests = success.shape[1], len(success) - 1
    found = differences(success)
    entries = []
    for own, p_holm in zip(found, statistics.holm([own.p for own in found]), strict=True):
        critical = statistics.dunnett_critical(tests, own.freedom)
        p = max(statistics.dunnett_p(own.mean / own.error, tests, own.freedom), own.p)
        tested = {"p": own.p, "p_holm": p_holm, "p_dunnett": p, "could_show": own.detectable(critical)}
        verdict = tables.verdict(p, own.mean)
        if seeds < SEEDS:
            tested = dict.fromkeys(tested)
            verdict = "one seed, no verdict" if seeds == 1 else tables.NO_VERDICT
        entry = {"diff": own.mean, "ci95": own.interval(-1.0, 1.0, critical)}
        entries.append(entry | tested | {"verdict": verdict})
    return entries


def differences(success: np.ndarray) -> list[Estimate]:
    """The difference of each arm from the first, shape (A, S, N), with the seeds' spread pooled over all."""
    assert success.ndim == 3 and success.shape[0] > 1 and success.dtype == np.float64, success.shape
    arms, seeds, _ = success.shape
    if seeds == 1:
        return [statistics.over_tasks(own[0]) for own in success[1:] - success[0]]
    freedom = (arms - 1) * (seeds - 1)
    pooled = 2 * statistics.interaction(success.mean(axis=2)) / freedom / seeds
    return [statistics.over_seeds(own, (pooled, freedom)) for own in success[1:] - success[0]]


# ---- a sweep's cells
class Ablation:
    """The cells of a sweep that are done, measured and tested. Raises RunError where there are too few."""

    def __init__(self, sweep: Sweep):
        self.sweep, state = sweep, sweep.state
        self.against = state["against"]
        order = sorted(state["arms"], key=lambda name: name != self.against)  # it comes first
        self.runs: dict[str, dict[int, Run]] = {name: runs for name in order if (runs := sweep.runs(name))}
        self.missing = [f"{c['arm']}/seed-{c['seed']}" for c in state["cells"] if c["status"] != "done"]
        wanted = self.runs.get(self.against, {}).keys()
        whole = [name for name, runs in self.runs.items() if runs.keys() >= wanted]
        self.tested = whole if len(whole) > 1 else list(self.runs)  # an arm that lacks seeds takes none away
        self.seeds = sorted(set(wanted).intersection(*(self.runs[name] for name in self.tested)))
        if not self.seeds or len(self.tested) < 2:
            raise RunError(
                f"{sweep.folder}: no seed is done in {self.against} and another arm yet. Run the sweep again."
            )

    def policy(self, arm: str) -> str:
        """The policy of its runs that an arm is measured by."""
        return self.sweep.state["arms"][arm]["policy"]

    @cached_property
    def samples(self) -> dict[str, dict[int, list[Trajectory]]]:
        """Test trajectories by arm and seed."""
        samples: dict[str, dict[int, list[Trajectory]]] = {name: {} for name in self.runs}
        cells = [(name, seed, run) for name, runs in self.runs.items() for seed, run in runs.items()]
        for name, seed, run in with_progress(cells, "cells", "cell"):
            samples[name][seed] = run.trajectories(self.policy(name))
        return samples

    @cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Each arm's measurements over the seeds that it has."""
        tasks = self.runs[self.against][self.seeds[0]].tasks
        return {name: summarize(samples, tasks) for name, samples in self.samples.items()}

    @cached_property
    def success(self) -> np.ndarray:
        """Success by arm, seed and task, shape (A, S, N), of the tasks that are scored everywhere."""
        values = {name: values_of({s: self.samples[name][s] for s in self.seeds}) for name in self.tested}
        same_tasks(values)
        asked = values[self.against]
        scored = [task for task in asked if all(all(own[task]) for own in values.values())]
        if len(scored) < 2:
            raise RunError(
                f"{self.sweep.folder}: {len(scored)} of {len(asked)} test tasks are scored in every cell, "
                "and two are the least to compare. Look at the verifier of these cells."
            )
        return np.array([rates(own, scored) for own in values.values()])

    @cached_property
    def paired(self) -> list[dict[str, Any]]:
        """Every arm against the one, in the order of the file."""
        tests = against_one(self.success)
        if self.started and all(len(own) == len(self.runs[arm]) for arm, own in self.started.items()):
            void = dict.fromkeys(("p", "p_holm", "p_dunnett", "could_show")) | {"verdict": UNTRAINED}
            tests = [test | void for test in tests]
        return [{"arm": name} | test for name, test in zip(self.tested[1:], tests, strict=True)]

    @cached_property
    def started(self) -> dict[str, list[int]]:
        """The seeds of each arm that GRPO trained in which validation kept step 0."""
        return {
            name: [seed for seed, run in self.runs[name].items() if run.trained_step == 0]
            for name in self.training
        }

    @cached_property
    def training(self) -> dict[str, dict[int, pd.DataFrame]]:
        """Metrics of the arms that GRPO trained, by seed, with the million completion tokens so far."""
        return {
            name: {seed: _with_tokens(run) for seed, run in runs.items()}
            for name, runs in self.runs.items()
            if self.policy(name) == "grpo"
        }

    @cached_property
    def arms(self) -> dict[str, dict[str, Any]]:
        """Each arm's entry of ablations.json."""
        same = ("success", "ci95", "turns", "tool_failure_rate", "tokens")
        return {
            name: {key: entry[key] for key in same}
            | {"n_tasks": entry["n"], "seeds": sorted(self.runs[name])}
            | self._training_of(name)
            for name, entry in self.summaries.items()
        }

    def _training_of(self, name: str) -> dict[str, Any]:
        """What an arm took, the mean over its seeds."""
        runs, metrics = self.runs[name].values(), self.training.get(name, {}).values()
        kept = [run.trained_step for run in runs if run.trained_step is not None]
        hours = fmean(_hours(run, self.policy(name)) for run in runs)
        on_gpus = all(not str(run.manifest["versions"].get("torch")).endswith("+cpu") for run in runs)
        return {
            "rollouts": fmean(t["rollouts"].sum() for t in metrics) if metrics else 0,
            "million_tokens": fmean(t["million_tokens"].iloc[-1] for t in metrics) if metrics else 0.0,
            "dead_groups": fmean(t["dead_groups"].mean() for t in metrics) if metrics else None,
            "hours": hours,
            "gpu_hours": hours if on_gpus else None,
            "kept_step": fmean(kept) if metrics and kept else None,
            "note": self._note(name),
        }

    def _note(self, name: str) -> str:
        """What to say of the seeds in which validation kept step 0."""
        if not (seeds := self.started.get(name)):
            return ""
        said = untrained(0, self.runs[name][seeds[0]].measured_step)
        return f"{name}, seed {', '.join(map(str, seeds))}: {said}"

    def to_json(self) -> dict[str, Any]:
        """ablations.json."""
        head = {"question": self.sweep.state["question"], "against": self.against, "missing": self.missing}
        return head | {"arms": self.arms, "paired": self.paired, "answer": self.answer()}

    def verdict(self, name: str) -> str:
        """What the tests say of an arm, in a few words."""
        found = {test["arm"]: test["verdict"] for test in self.paired}
        return found.get(name, "compared with" if name == self.against else "lacks seeds")

    # ---- in words
    def answer(self) -> str:
        """The conclusion, computed from the tests."""
        rate, seeds = tables.percent(float(self.success[0].mean())), len(self.seeds)
        counted = f"{self.success.shape[2]} tasks, {seeds} seed{'s' * (seeds > 1)}"
        parts = [f"{self.against} solves {rate} ({counted})"]
        for verdict in ("better", "worse", tables.NO_DIFFERENCE):
            parts += self._listed(verdict, verdict)
        unclear = [t["could_show"] for t in self.paired if t["verdict"] == tables.NO_DIFFERENCE]
        if seen := max(filter(None, unclear), default=None):
            parts.append(f"a difference of {100 * seen:.1f} points would have been shown (80 % power)")
        if self.paired[0]["p"] is None:
            why = "as validation preferred the start in every cell of GRPO"
            if seeds < SEEDS:
                why = f"as it needs {SEEDS} seeds of every arm"
            parts += self._listed(self.paired[0]["verdict"], f"no verdict, {why}")
        if short := [name for name in self.runs if name not in self.tested]:
            parts.append(f"not compared, as they lack seeds: {', '.join(short)}")
        notes = [arm["note"] for arm in self.arms.values() if arm["note"]]
        return " ".join(["; ".join(parts) + ".", *notes])

    def _listed(self, verdict: str, head: str) -> list[str]:
        """The arms of a verdict under a head, if there are any."""
        found = [test for test in self.paired if test["verdict"] == verdict]
        arms = [f"{t['arm']} ({tables.spanned(t['diff'], t['ci95'])} points)" for t in found]
        return [f"{head}: {', '.join(arms)}"] if arms else []

    def table(self) -> pd.DataFrame:
        """One row an arm: success, the test, and what it took."""
        rows, tests = {}, {test["arm"]: test for test in self.paired}
        for name, arm in self.arms.items():
            test, trained = tests.get(name), name in self.training
            rows[name] = {
                "success": tables.percent(arm["success"], arm["ci95"]),
                "difference, points": tables.spanned(test["diff"], test["ci95"]) if test else "–",
                "p, Dunnett": tables.p_value(test["p_dunnett"]) if test else "–",
                "verdict": self.verdict(name),
                "turns": f"{arm['turns']:.2f}",
                "failed calls": tables.cell(arm["tool_failure_rate"], "{:.1%}"),
                "tokens a task": tables.cell(arm["tokens"], "{:.0f}"),
                "rollouts": f"{arm['rollouts']:.0f}" if trained else "–",
                "hours": f"{arm['hours']:.2g}",
                "dead groups": tables.cell(arm["dead_groups"], "{:.0%}"),
                "step 0 kept": ", ".join(f"seed {seed}" for seed in self.started.get(name, ())) or "–",
            }
        return tables.text_table(rows)


def _with_tokens(run: Run) -> pd.DataFrame:
    metrics = run.metrics
    rollouts = cost.sampled(metrics, Recipe.of(run))
    tokens = (rollouts * metrics["completion_tokens"].fillna(0)).cumsum() / 1e6
    return metrics.assign(rollouts=rollouts, million_tokens=tokens)


def _hours(run: Run, policy: str) -> float:
    """Device hours of the notebooks that made a policy: 02, and for GRPO 03, for a control 05."""
    last = {"base": (), "sft": ("02_baseline",), "grpo": ("02_baseline", "03_grpo")}
    stages = [
        run.manifest["stages"].get(name, {}) for name in last.get(policy, ("02_baseline", "05_compare"))
    ]
    return sum(stage.get("seconds", 0.0) * stage.get("devices", 1) for stage in stages) / 3600
