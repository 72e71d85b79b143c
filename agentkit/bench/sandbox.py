"""The sandbox against plain ``subprocess`` and, where it is installed, bubblewrap: latency and throughput of
each tier.

The peer of every case is ``subprocess.run([python, "-I", "-S", "-c", code])``, which confines nothing. They
take turns. Seconds are wall clock as the caller sees them. Leaves out memory, and what the machine does
besides: run it on an idle one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentkit import sandbox
from agentkit.bench.common import report, spread

PRINT = "print(1)"
SYMPY = "import sympy\nprint(sympy.Integer(2) ** 10)"
TURN = 10  # warm runs of one runner before the next one's turn: another runner's leave the caches cold
FULL, QUICK = (300, 5, 300), (40, 2, 24)  # warm runs, cold starts, programs in a batch

Runner = Callable[[str], str]  # code -> what it printed


def bench_sandbox(quick: bool = False) -> dict[str, Any]:
    """Cold and warm latency and runs a second, per tier.

    Args:
        quick: fewer repeats, to end within 50 seconds.

    Returns:
        The bench JSON. ``ours`` is the strongest tier, ``peer`` plain subprocess, ``ratio`` ours / peer:
        below 1 is faster for cold and warm (ms), above 1 for throughput (runs/s). ``others`` holds every
        other runner that works here.
    """
    runners = _runners()
    if "ours" not in runners:
        raise OSError(f"there is no sandbox to measure here: {sandbox.current_tier().why}")
    warm, cold, batch = QUICK if quick else FULL
    cases = [
        _latency("warm", runners, PRINT, warm),
        _latency("warm_sympy", runners, SYMPY, max(5, warm // 10)),
        _cold(runners, cold),
        _throughput(runners, batch, 3),
    ]
    return report("sandbox", cases)


def _runners() -> dict[str, Runner]:
    """By name; a tier or bubblewrap that does not work here is left out."""
    found: dict[str, Runner] = {"subprocess": _subprocess([])}
    best = sandbox.current_tier().name
    for tier in ("A", "B"):
        runner = _tier(tier)
        if sandbox.run_python(PRINT, tier=tier).status == "ok":
            found["ours" if tier == best else f"tier {tier}"] = runner
    bubblewrap = shutil.which("bwrap")
    if bubblewrap:
        wrapped = _subprocess(
            [bubblewrap, "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-all", "--die-with-parent"]
        )
        try:
            wrapped(PRINT)
        except (subprocess.SubprocessError, ValueError):  # installed, and not allowed to work
            return found
        found["bubblewrap"] = wrapped
    return found


def _tier(name: str) -> Runner:
    def run(code: str) -> str:
        result = sandbox.run_python(code, tier=name, timeout_s=60)
        if result.status != "ok":
            raise ValueError(f"tier {name}: {result.status} {result.stderr}")
        return result.stdout

    return run


def _subprocess(prefix: list[str]) -> Runner:
    packages = sysconfig.get_paths()["purelib"]

    def run(code: str) -> str:
        if "sympy" in code:
            code = f"import sys; sys.path.append({packages!r})\n{code}"
        command = [*prefix, sys.executable, "-I", "-S", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={}).stdout

    return run


def _timed(runner: Runner, code: str) -> float:
    """Milliseconds of one run."""
    start = time.perf_counter()
    runner(code)
    return 1000 * (time.perf_counter() - start)


def _latency(name: str, runners: dict[str, Runner], code: str, repeats: int) -> dict[str, Any]:
    for runner in runners.values():
        runner(code)  # warm-up, not counted
    times: dict[str, list[float]] = {runner: [] for runner in runners}
    for start in range(0, repeats, TURN):
        for runner, run in runners.items():
            times[runner] += [_timed(run, code) for _ in range(start, min(start + TURN, repeats))]
    return _case(name, "ms", times, p95=True)


def _cold(runners: dict[str, Runner], repeats: int) -> dict[str, Any]:
    """From no zygote to the first result, canaries included."""
    times: dict[str, list[float]] = {runner: [] for runner in runners}
    for _ in range(repeats):
        for runner, run in runners.items():
            sandbox.close()
            times[runner].append(_timed(run, PRINT))
    return _case("cold", "ms", times)


def _throughput(runners: dict[str, Runner], batch: int, repeats: int) -> dict[str, Any]:
    """Programs with sympy, two threads a core."""
    rates: dict[str, list[float]] = {runner: [] for runner in runners}
    for run in runners.values():
        run(SYMPY)  # warm-up, not counted
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        for _ in range(repeats):
            for runner, run in runners.items():
                count = (
                    batch
                    if "subprocess" not in runner and "bubblewrap" not in runner
                    else max(4, batch // 10)
                )
                start = time.perf_counter()
                list(pool.map(run, [SYMPY] * count))
                rates[runner].append(count / (time.perf_counter() - start))
    return _case("throughput", "runs/s", rates)


def _case(name: str, unit: str, values: dict[str, list[float]], p95: bool = False) -> dict[str, Any]:
    ours, peer = values["ours"], values["subprocess"]
    case = {
        "case": name,
        "unit": unit,
        "tier": sandbox.current_tier().name,
        "ours": spread(ours),
        "peer": spread(peer),
    }
    case["ratio"] = spread([a / b for a, b in zip(ours, peer, strict=True)])
    case["others"] = {
        runner: spread(found) for runner, found in values.items() if runner not in ("ours", "subprocess")
    }
    if p95:
        case["p95"] = {runner: sorted(found)[int(0.95 * len(found))] for runner, found in values.items()}
    return case
