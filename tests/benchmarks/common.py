"""What every benchmark reports: the machine, versions, and cases with the spread of their repeats.

Leaves out what is measured (the benchmarks).
"""

import argparse
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from agentkit.records import Task
from agentkit.runs import encode_json, versions
from agentkit.tools.environments import SYSTEM_PROMPT


def main(bench: Callable[[bool], dict[str, Any]]) -> None:
    """The command line of a benchmark, which prints JSON."""
    parser = argparse.ArgumentParser(description=(bench.__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within about a minute")
    result = bench(parser.parse_args().quick)
    print(encode_json(result, indent=1).decode().rstrip())


def report(name: str, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    machine = {"cpu": cpu, "cores": os.cpu_count(), "system": platform.system()}
    return {"bench": name, "machine": machine, "versions": versions(), "cases": list(cases)}


def case(
    name: str, unit: str, ours: Sequence[float], peer: Sequence[float], inverse: bool = False, **more: Any
) -> dict[str, Any]:
    """One case: both sides, and ours / peer of each pair of repeats; peer / ours where ``inverse``."""
    ratios = [b / a if inverse else a / b for a, b in zip(ours, peer, strict=True)]
    spreads = {"ours": spread(ours), "peer": spread(peer), "ratio": spread(ratios)}
    return {"case": name, "unit": unit} | spreads | more


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def messages(task: Task) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task.prompt}]
