"""How often each alarm is right, and how late: precision, recall and delay on simulated runs that no
threshold was set on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from agentkit.bench.synthetic import CONSEQUENCES, Simulated, simulate
from agentkit.diagnostics.measures import observe
from agentkit.diagnostics.rules import MEASURED, RULES, Alarm
from agentkit.diagnostics.watch import scan
from agentkit.runs import write_json

RUNS, HEALTHY = 20, 60  # simulated runs of each fault, and without any
HELD_BACK = 1_000_000  # the first seed that no threshold was set on
EARLY = 1  # steps before its fault at which an alarm counts as false
Judged = tuple[Simulated, Sequence[Alarm]]


def judge(run: Simulated) -> list[Alarm]:
    """The alarms of a simulated run, those that only inform left out."""
    return [
        alarm
        for alarm in scan(observe(row, rollouts) for row, rollouts in run.steps)
        if alarm.severity != "info"
    ]


def measured(
    runs: int = RUNS, healthy: int = HEALTHY, *, first_seed: int = HELD_BACK, progress: bool = False
) -> pd.DataFrame:
    """Simulate, judge and count.

    Args:
        runs: simulated runs of each fault.
        healthy: simulated runs without a fault.
        first_seed: of the runs; thresholds are set on those from 0 on.
        progress: show a progress bar.

    Returns:
        As ``table``.
    """
    from tqdm.auto import tqdm

    wanted = [(None, i) for i in range(healthy)] + [(fault, i) for fault in CONSEQUENCES for i in range(runs)]
    judged = []
    for fault, i in tqdm(wanted, desc="simulated runs", disable=not progress):
        run = simulate(fault, first_seed + i)
        judged.append(
            (Simulated(run.fault, run.onset, []), judge(run))
        )  # the rollouts are not needed any more
    return table(judged)


def table(judged: Iterable[Judged]) -> pd.DataFrame:
    """Count what fired where.

    Returns:
        One row an alarm: ``runs`` with its fault, ``found`` of them and ``recall``; ``false`` alarms (in a
            run without its
        fault, or before it set in; what the run's fault brings with it by its nature counts neither way),
        ``in_healthy`` of them in healthy runs, ``precision`` (right alarms among right and false ones), and
        the median and the largest ``delay`` in steps.
    """
    rows = {name: {"runs": 0, "found": 0, "false": 0, "in_healthy": 0} for name in RULES}
    delays: dict[str, list[int]] = {name: [] for name in RULES}
    for run, alarms in judged:
        if run.fault is not None:
            rows[run.fault]["runs"] += 1
        for name in {alarm.alarm for alarm in alarms}:
            fired = [alarm.step for alarm in alarms if alarm.alarm == name]
            if name == run.fault:
                in_time = [step for step in fired if step >= run.onset - EARLY]
                delays[name] += [max(0, step - run.onset) for step in in_time[:1]]
                rows[name]["false"] += len(in_time) < len(fired)
            elif run.fault is None or name not in CONSEQUENCES[run.fault]:
                rows[name]["false"] += 1
                rows[name]["in_healthy"] += run.fault is None
    found = pd.DataFrame.from_dict(rows, orient="index").rename_axis("alarm").reset_index()
    found["found"] = [len(delays[name]) for name in found["alarm"]]
    found["recall"] = found["found"] / found["runs"]
    found["precision"] = found["found"] / (found["found"] + found["false"])
    found["delay"] = [np.median(delays[name]) if delays[name] else np.nan for name in found["alarm"]]
    found["longest"] = [max(delays[name], default=np.nan) for name in found["alarm"]]
    return found


def save_measured(measurement: pd.DataFrame) -> Path:
    """Keep a measurement for notebook 04 (diagnostics.read_measured)."""
    return write_json(MEASURED, measurement.to_dict("records"))
