"""How often each alarm is right, and how late: precision, recall and delay on simulated runs that no threshold was set on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from agentkit.diagnostics.history import observe
from agentkit.diagnostics.rules import RULES, Alarm
from agentkit.diagnostics.synthetic import CONSEQUENCES, Simulated, simulate
from agentkit.diagnostics.watch import scan
from agentkit.runs import read_json, write_json

RUNS, HEALTHY = 20, 60  # simulated runs of each fault, and without any
HELD_BACK = 1_000_000  # the first seed that no threshold was set on
EARLY = 1  # steps before its fault at which an alarm counts as false
STORED = Path(__file__).parent / "measured.json"
Judged = tuple[Simulated, Sequence[Alarm]]


def judge(run: Simulated) -> list[Alarm]:
    """The alarms of a simulated run, those that only inform left out."""
    return [alarm for alarm in scan(observe(row, rollouts) for row, rollouts in run.steps) if alarm.severity != "info"]


def measured(runs: int = RUNS, healthy: int = HEALTHY, *, held_back: bool = True, progress: bool = False) -> pd.DataFrame:
    """Simulate, judge and count.

    Args:
        runs: simulated runs of each fault.
        healthy: simulated runs without a fault.
        held_back: use seeds that no threshold was set on (from HELD_BACK on), rather than those it was set on (from 0 on).
        progress: show a progress bar.

    Returns:
        As ``table``.
    """
    from tqdm.auto import tqdm

    wanted = [(None, i) for i in range(healthy)] + [(fault, i) for fault in CONSEQUENCES for i in range(runs)]
    judged = []
    for fault, i in tqdm(wanted, desc="simulated runs", disable=not progress):
        run = simulate(fault, HELD_BACK + i if held_back else i)
        judged.append((Simulated(run.fault, run.onset, []), judge(run)))  # the rollouts are not needed any more
    return table(judged)


def table(judged: Iterable[Judged]) -> pd.DataFrame:
    """Count what fired where.

    Returns:
        One row an alarm: ``runs`` with its fault, ``found`` of them and ``recall``; ``false`` alarms (in a run without its
        fault, or before it set in; what the run's fault brings with it by its nature counts neither way), ``in_healthy`` of
        them in healthy runs, ``precision`` (right alarms among right and false ones), and the median and the largest
        ``delay`` in steps.
    """
    judged = list(judged)
    rows = []
    for name in RULES:
        own = [(run, _first(alarms, name, run.onset - EARLY)) for run, alarms in judged if run.fault == name]
        delays = [max(0, step - run.onset) for run, step in own if step is not None]
        early = sum(
            any(a.alarm == name and a.step < run.onset - EARLY for a in alarms) for run, alarms in judged if run.fault == name
        )
        fired = [(run.fault, name) for run, alarms in judged if run.fault != name and any(a.alarm == name for a in alarms)]
        elsewhere = [fault for fault, _ in fired if fault is None or name not in CONSEQUENCES[fault]]
        false = early + len(elsewhere)
        rows.append(
            {
                "alarm": name, "runs": len(own), "found": len(delays), "recall": len(delays) / len(own) if own else np.nan,
                "false": false, "in_healthy": elsewhere.count(None),
                "precision": len(delays) / (len(delays) + false) if delays or false else np.nan,
                "delay": float(np.median(delays)) if delays else np.nan, "longest": max(delays, default=np.nan),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _first(alarms: Sequence[Alarm], name: str, start: int) -> int | None:
    return next((alarm.step for alarm in alarms if alarm.alarm == name and alarm.step >= start), None)


def save_measured(found: pd.DataFrame, path: Path = STORED) -> Path:
    """Keep a measurement; the one beside this module is what notebook 04 shows."""
    return write_json(path, found.to_dict("records"))


def read_measured(path: Path = STORED) -> pd.DataFrame:
    """The kept measurement."""
    return pd.DataFrame(read_json(path))
