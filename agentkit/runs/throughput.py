"""Trajectories a second that a run would make with other numbers of GPUs and slower tools, from its rollouts.

Its newest steps are replayed with the turns they had: an engine whose pass over the batch takes a time of its
own and one for each row, fitted to the turns; as many slots as a process has; tools that take their latency.
Leaves out servers, other batches, and what several cards cost each other.
"""

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from agentkit.records import RunError, Trajectory
from agentkit.runs.cost import duration
from agentkit.runs.recipe import Recipe
from agentkit.runs.run import Run

PROCESSES, LATENCIES_MS = (1, 2, 4, 8), (0, 50, 200, 1000)
STEPS = 3  # the newest, that are replayed
ASSUMED = (
    f"* is what the run did, validations left out. The rest replays its last {STEPS} steps: the batch stays, "
    "a cached call takes no time, a turn's calls come one after the other, updates divide evenly, and "
    "processes scale alike, one card each, which was checked with two on a CPU and never on GPUs."
)
Turn = tuple[int, float, float, int]  # tokens, seconds in the engine, seconds of its tools, calls that ran


def estimate(run: Run) -> pd.DataFrame:
    """Rows of ``processes`` (one a GPU), ``latency_ms`` of a call (NaN: as it was), ``seconds`` of a step,
    ``trajectories_per_second``, and ``measured``: whether this is what the run did.

    Raises RunError where it has no step that can be replayed.
    """
    recipe, stage = Recipe.of(run), run.manifest["stages"].get("03_grpo", {})
    if recipe.engine == "server" or str(stage.get("topology")).startswith("split"):
        raise RunError(
            f"trajectories a second are not estimated: in {run.path} servers sampled, and only "
            "processes that sample and then update are replayed: try a few steps"
        )
    metrics = run.metrics.reindex(columns=["step", "rollout_seconds", "update_seconds"]).set_index("step")
    took = metrics["rollout_seconds"].astype(float).dropna()
    here = _trained(stage, recipe)
    steps = [step for step in run.steps if step in took.index][-STEPS:]
    stored = {step: run.trajectories(step, tokens=False) for step in steps}
    if not any(t.turns for trajectories in stored.values() for t in trajectories):
        raise RunError(
            f"trajectories a second are not estimated: {run.path} has no step with its rollouts: run "
            "notebook 03"
        )
    update = here * metrics.loc[steps[0] :, "update_seconds"].sum() / len(took.loc[steps[0] :])
    batches = [Batch(stored[n], took[n], here, recipe.max_batch) for n in steps if stored[n]]
    rows = [
        (
            n,
            latency,
            fmean(b.seconds(n, latency) for b in batches) + update / n,
            n == here and latency is None,
        )
        for n in sorted({*(n for n in PROCESSES if recipe.prompts_per_step % n == 0), here})
        for latency in (None, *LATENCIES_MS)
    ]
    made = pd.DataFrame(rows, columns=["processes", "latency_ms", "seconds", "measured"])
    return made.assign(trajectories_per_second=fmean(len(b.turns) for b in batches) / made["seconds"])


def _trained(stage: dict[str, Any], recipe: Recipe) -> int:
    """How many processes trained together; cards that were left over measured only."""
    ranks = stage.get("ranks")
    each = ranks.get("train") if isinstance(ranks, dict) else None
    return max(1, len(each) if isinstance(each, list) else int(stage.get("devices", recipe.processes)))


class Batch:
    """The rollouts of one step, to be replayed: ``seconds`` is what they took ``processes`` together."""

    def __init__(self, trajectories: Sequence[Trajectory], seconds: float, processes: int, slots: int):
        self.turns, self.slots = [_turns(trajectory) for trajectory in trajectories], slots
        self.engine = _fitted(self._dealt(processes), slots)
        self.scale, self.rest = 1.0, 0.0
        told = self.seconds(processes)
        self.scale = min(1.0, seconds / told) if told else 1.0
        self.rest = seconds - self.scale * told  # scoring and so on, as if it were the same everywhere

    def _dealt(self, processes: int) -> list[list[list[Turn]]]:
        size = math.ceil(len(self.turns) / processes)
        return [self.turns[i : i + size] for i in range(0, len(self.turns), size)]

    def seconds(self, processes: int, latency_ms: float | None = None) -> float:
        """Until the last trajectory has ended; a turn's calls come one after the other."""

        def waits(turns: list[Turn]) -> list[tuple[int, float]]:
            slow = (latency_ms or 0.0) / 1000 / (self.scale or 1.0)  # an assumed latency is not scaled
            return [(n, took if latency_ms is None else ran * slow) for n, _, took, ran in turns]

        parts = [[waits(turns) for turns in part] for part in self._dealt(processes)]
        return self.rest + self.scale * max(replay(part, self.slots, *self.engine) for part in parts)


def _turns(trajectory: Trajectory) -> list[Turn]:
    return [
        (
            turn.span[1] - turn.span[0],
            turn.seconds,
            sum(result.seconds for result in turn.results),
            sum(result.seconds > 0 and not result.cached for result in turn.results),
        )
        for turn in trajectory.turns
    ]


def replay(rollouts: Sequence[Sequence[tuple[int, float]]], slots: int, alone: float, row: float) -> float:
    """Seconds until the last trajectory of a process ends; each is its turns' tokens and waits for tools.

    A pass, one token of every row, takes ``alone + row * rows`` seconds.
    """
    turns, clock, passes = [iter(turns) for turns in rollouts], 0.0, 0.0
    decoding: list[tuple[float, int, float]] = []  # the pass that ends a turn, its trajectory, its wait then
    asking, queue = [(0.0, number) for number in range(len(turns))][:slots], iter(range(slots, len(turns)))
    while decoding or asking:
        pace = alone + row * len(decoding)
        ends = clock + (decoding[0][0] - passes) * pace if decoding else math.inf
        if asking and asking[0][0] <= ends:
            then, number = heappop(asking)
            passes, clock = passes + (then - clock) / (pace or 1.0), then
            if turn := next(turns[number], None):
                heappush(decoding, (passes + turn[0], number, turn[1]))
            elif (following := next(queue, None)) is not None:
                heappush(asking, (clock, following))
        else:
            (passes, number, wait), clock = heappop(decoding), ends
            heappush(asking, (clock + wait, number))
    return clock


def _fitted(parts: Sequence[Sequence[Sequence[Turn]]], slots: int) -> tuple[float, float]:
    """Seconds of a pass, alone and for each row, from the turns of each process' trajectories in order."""
    found = [_shared(part, slots) for part in parts]
    tokens, rows, took = (np.concatenate(values) for values in zip(*found, strict=True))
    if not np.isfinite([*tokens, *rows, *took]).all():
        raise RunError("trajectories a second are not estimated: turns took times that are no seconds")
    alone, row = nnls(np.stack([tokens, tokens * rows], axis=1), took)[0]
    return float(alone), float(row)


def _shared(part: Sequence[Sequence[Turn]], slots: int) -> tuple[Any, Any, Any]:
    """Of each turn of a process: tokens, rows that were sampled beside it on average, itself included, and
    seconds. Slots are taken in the order of the trajectories, as the loop does.
    """
    free, found = [0.0] * slots, []
    for turns in part:
        clock = heappop(free)
        for tokens, took, tools, _ in turns:
            found.append((tokens, clock, clock + took))
            clock += took + tools
        heappush(free, clock)
    tokens, begins, ends = np.array(found, float).reshape(-1, 3).T
    times = np.concatenate([begins, ends])
    order = np.argsort(times, kind="stable")
    times, rows = times[order], np.cumsum(np.repeat([1, -1], len(begins))[order])
    area = np.concatenate([[0.0], np.cumsum(rows[:-1] * np.diff(times))])[: len(times)]
    shared = np.interp(ends, times, area) - np.interp(begins, times, area) if len(times) else area
    return tokens, shared / np.maximum(ends - begins, 1e-9), ends - begins


def table(made: pd.DataFrame, device: str) -> pd.DataFrame:
    """An ``estimate`` to print, with ASSUMED: a row for each number of GPUs, or of processes on a CPU."""

    def cell(row: Any) -> str:
        seconds = duration(row.seconds) if row.seconds >= 120 else f"{row.seconds:.3g} s"
        return f"{row.trajectories_per_second:.3g}/s, {seconds}{'*' * row.measured}"

    names = made["latency_ms"].map("{:g} ms".format).replace("nan ms", "tools as measured")
    shown = made.assign(cell=[cell(row) for row in made.itertuples()], names=names)
    unit = "Processes" if device == "CPU" else "GPUs"
    wide = shown.pivot(index="processes", columns="names", values="cell")[list(dict.fromkeys(names))]
    return wide.rename_axis(unit).rename_axis(columns=None).reset_index()
