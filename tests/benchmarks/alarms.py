"""How often each alarm is right, and how late: precision, recall and delay on simulated runs.

    python -m tests.benchmarks.alarms

prints the table of docs/alarms.md. No threshold was set on its runs. Leaves out real trainings.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from agentkit.diagnostics.measures import observe
from agentkit.diagnostics.rules import RULES, Alarm
from agentkit.diagnostics.watch import scan

from .synthetic import CONSEQUENCES, Simulated, simulate

RUNS, HEALTHY = 20, 60  # simulated runs of each fault, and without any
HELD_BACK = 1_000_000  # the first seed that no threshold was set on
EARLY = 1  # steps before its fault at which an alarm counts as false


def judge(run: Simulated) -> list[Alarm]:
    """The alarms of a simulated run, those that only inform left out."""
    alarms = scan(observe(row, trajectories) for row, trajectories in run.steps)
    return [alarm for alarm in alarms if alarm.severity != "info"]


def measured(
    runs: int = RUNS, healthy: int = HEALTHY, *, first_seed: int = HELD_BACK, progress: bool = False
) -> pd.DataFrame:
    """Simulate so many runs of each fault and healthy ones, judge and count, as ``table``."""
    from tqdm.auto import tqdm

    planned = [(None, i) for i in range(healthy)]
    planned += [(fault, i) for fault in CONSEQUENCES for i in range(runs)]
    judged = []
    for fault, i in tqdm(planned, desc="simulated runs", disable=not progress):
        run = simulate(fault, first_seed + i)
        judged.append((Simulated(run.fault, run.onset, []), judge(run)))  # without rollouts, to save memory
    return table(judged)


def table(judged: Iterable[tuple[Simulated, Sequence[Alarm]]]) -> pd.DataFrame:
    """Count what fired where.

    Returns:
        One row an alarm: ``runs`` with its fault, ``found`` of them and ``recall``; ``false`` alarms (in a
        run without its fault, or before it set in; what the run's fault brings with it by its nature counts
        neither way), ``in_healthy`` of them in healthy runs, ``precision`` (right alarms among right and
        false ones), and the median and the largest ``delay`` in steps.
    """
    counts = pd.DataFrame(
        0, index=pd.Index(list(RULES), name="alarm"), columns=["runs", "found", "false", "in_healthy"]
    )
    delays: dict[str, list[int]] = {name: [] for name in RULES}
    for run, alarms in judged:
        if run.fault is not None:
            counts.loc[run.fault, "runs"] += 1
        for name in {alarm.alarm for alarm in alarms}:
            steps = [alarm.step for alarm in alarms if alarm.alarm == name]
            in_time = [step for step in steps if step >= run.onset - EARLY]
            if name == run.fault:
                delays[name] += [max(0, step - run.onset) for step in in_time[:1]]
                counts.loc[name, "false"] += len(in_time) < len(steps)
            elif run.fault is None or name not in CONSEQUENCES[run.fault]:
                counts.loc[name, "false"] += 1
                counts.loc[name, "in_healthy"] += run.fault is None
    counts["found"] = [len(values) for values in delays.values()]
    counts["recall"] = counts["found"] / counts["runs"]
    counts["precision"] = counts["found"] / (counts["found"] + counts["false"])
    counts["delay"] = [np.median(values) if values else np.nan for values in delays.values()]
    counts["longest"] = [max(values, default=np.nan) for values in delays.values()]
    return counts.reset_index()


if __name__ == "__main__":
    print(measured(progress=True).round(2).to_string(index=False))
