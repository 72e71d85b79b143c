"""What every benchmark reports: the machine, versions, and cases with the spread of their repeats."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any

from agentkit.runs import versions


def report(name: str, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The bench JSON."""
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
    }
    return {"bench": name, "machine": machine, "versions": versions(), "cases": list(cases)}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Smallest, median and largest."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}
