"""Our alarms beside those of rl-doctor and rlwatch: the same histories as a TRL log, to all three.

    pip install rldoctor==0.2.0 rlwatch==0.5.1 --target peers && PYTHONPATH=.:peers python tests/compare_alarms.py [--runs 40]

Histories of tests/histories.py, with seeds no threshold was set on, and of rl-doctor's own simulator. Only columns
that TRL logs are handed over, so alarms that count in rollouts cannot look. A tool's hit is a warning that names
the planted fault; in a healthy run any warning is false. Leaves out how early a warning comes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import histories
import numpy as np
import pandas as pd
from rl_doctor import Severity, diagnose, run_from_records
from rl_doctor.simulate import SCENARIOS, simulate
from rlwatch.config import RLWatchConfig
from rlwatch.detectors import DetectorSuite

from agentkit.diagnostics import observe, scan
from agentkit.runs.logs import read_log

Rows = list[dict[str, Any]]
FIRST_SEED = 7_000_000
TRL = {
    "step": "step", "planned_steps": "max_steps", "learning_rate": "learning_rate", "kl": "kl", "entropy": "entropy",
    "grad_norm": "grad_norm", "clip_fraction": "clip_ratio/region_mean", "reward": "reward",
    "completion_tokens": "completions/mean_length", "truncated": "completions/clipped_ratio",
    "zero_variance": "frac_reward_zero_std", "success": "rewards/accuracy_reward/mean", "val_success": "eval/accuracy",
}  # fmt: skip
NAMES = {  # a planted fault, and what each tool calls it
    "zero_variance": (("zero_variance",), ("advantage_collapse",), ()),
    "entropy_collapse": (("entropy_collapse",), ("entropy_collapse",), ("entropy_collapse",)),
    "kl_spike": (("kl_spike",), ("kl_drift",), ("kl_explosion",)),
    "gradient_spike": (("gradient_spike",), ("gradient_pathology",), ("gradient_norm_spike",)),
    "clip_drift": (("clip_drift",), ("clip_saturation",), ()),
    "length_explosion": (("length_explosion",), ("length_pathology",), ()),
    "truncation": (("truncation",), ("length_pathology",), ()),
    "overfitting": (("overfitting", "reward_hacking"), ("reward_hacking",), ("reward_hacking", "reward_mean_drift")),
    "stalled_learning": (("stalled_learning",), ("plateau",), ()),
}  # fmt: skip
THEIRS = {  # rl-doctor's scenarios
    "saturated_groups": "zero_variance", "too_hard": "zero_variance", "entropy_collapse": "entropy_collapse",
    "kl_blowup": "kl_spike", "grad_spikes": "gradient_spike", "clip_saturation": "clip_drift",
    "length_hacking": "length_explosion", "truncation": "truncation", "reward_hacking": "overfitting",
    "plateau": "stalled_learning",
}  # fmt: skip


def agentkit(rows: Rows, config: Mapping[str, Any]) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        columns = {"val_success": "eval/accuracy"} if any("eval/accuracy" in row for row in rows) else {}
        rows, _ = read_log(path, columns)
    return {alarm.alarm for alarm in scan([observe(row) for row in rows]) if alarm.severity != "info"}


def rl_doctor(rows: Rows, config: Mapping[str, Any]) -> set[str]:
    findings = diagnose(run_from_records(rows, config=config)).findings
    return {finding.detector for finding in findings if finding.severity >= Severity.WARNING}


def rlwatch(rows: Rows, config: Mapping[str, Any]) -> set[str]:
    suite = DetectorSuite(RLWatchConfig())
    names = {"entropy": "entropy", "kl_divergence": "kl", "reward_mean": "reward", "grad_norm": "grad_norm"}
    names["reward_std"] = "reward_std"
    return {
        alert.detector
        for row in rows
        for alert in suite.check_step(row["step"], **{ours: row.get(name) for ours, name in names.items()})
    }


TOOLS: dict[str, Callable[[Rows, Mapping[str, Any]], set[str]]] = {
    "agentkit": agentkit, "rl-doctor": rl_doctor, "rlwatch": rlwatch,
}  # fmt: skip


def runs(count: int) -> Iterator[tuple[str, str | None, Rows, Mapping[str, Any]]]:
    """Where it comes from, its fault (None: healthy), its rows and what is known of its settings."""
    for fault in (None, *NAMES):
        for seed in range(FIRST_SEED, FIRST_SEED + count):
            steps = [row for row, _ in histories.history(fault, seed).steps]
            yield "ours", fault, [{TRL[k]: v for k, v in row.items() if k in TRL} for row in steps], {}
    for scenario in SCENARIOS:
        for seed in range(count):
            if scenario == "healthy" or scenario in THEIRS:
                yield "rl-doctor's", THEIRS.get(scenario), *simulate(scenario, seed=FIRST_SEED + seed)


def table(judged: Sequence[tuple[str, str | None, str, bool, bool]]) -> pd.DataFrame:
    frame = pd.DataFrame(judged, columns=["histories", "fault", "tool", "named", "any"])
    frame["fault"] = frame["fault"].fillna("healthy: any warning")
    frame["share"] = np.where(frame["fault"].str.startswith("healthy"), frame["any"], frame["named"])
    shares = frame.pivot_table(index=["histories", "fault"], columns="tool", values="share", sort=False)
    return (100 * shares[list(TOOLS)]).round().astype(int)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40, help="of each fault and of healthy ones")
    judged = []
    for origin, fault, rows, config in runs(parser.parse_args().runs):
        for place, (tool, look) in enumerate(TOOLS.items()):
            warned = look(rows, config)
            named = fault is not None and bool(warned & set(NAMES[fault][place]))
            judged.append((origin, fault, tool, named, bool(warned)))
    print(table(judged).to_string())


if __name__ == "__main__":
    main()
