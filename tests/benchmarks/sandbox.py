"""The sandbox against plain ``subprocess``: latency and throughput.

The peer of every case is ``subprocess.run([python, "-I", "-S", "-c", code])``, which confines nothing. They
take turns. Seconds are wall clock as the caller sees them. Leaves out memory, and what the machine does
besides: run it on an idle one.
"""

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentkit import sandbox
from agentkit.records import SandboxError

from .common import case, main, report

PRINT = "print(1)"
SYMPY = "import sympy\nprint(sympy.Integer(2) ** 10)"
TURN = 10  # warm runs of one runner before the next one's turn: another runner's leave the caches cold
FULL, QUICK = (300, 5, 300), (40, 2, 24)  # warm runs, cold starts, programs in a batch

Runner = Callable[[str], str]  # code -> what it printed
Figures = dict[str, list[float]]  # by runner


def bench_sandbox(quick: bool = False) -> dict[str, Any]:
    """Cold and warm latency and runs a second.

    ``ratio`` is ours / plain subprocess: below 1 is faster for cold and warm (ms), above 1 for throughput.
    """
    runners = _runners()
    warm, cold, batch = QUICK if quick else FULL
    cases = [
        _case("warm", "ms", _latencies(runners, PRINT, warm)),
        _case("warm_sympy", "ms", _latencies(runners, SYMPY, max(5, warm // 10))),
        _case("cold", "ms", _cold_starts(runners, cold)),
        _case("throughput", "runs/s", _throughput(runners, batch, 3)),
    ]
    return report("sandbox", cases)


def _runners() -> dict[str, Runner]:
    if why := sandbox.missing():
        raise SandboxError(f"there is no sandbox to measure here: {why}")
    return {"subprocess": _subprocess, "ours": _confined}


def _confined(code: str) -> str:
    result = sandbox.run_python(code, timeout_s=60)
    if result.status != "ok":
        raise ValueError(f"{result.status} {result.stderr}")
    return result.stdout


def _subprocess(code: str) -> str:
    if "sympy" in code:
        code = f"import sys; sys.path.append({sysconfig.get_paths()['purelib']!r})\n{code}"
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={}).stdout


def _milliseconds(runner: Runner, code: str) -> float:
    start = time.perf_counter()
    runner(code)
    return 1000 * (time.perf_counter() - start)


def _latencies(runners: dict[str, Runner], code: str, repeats: int) -> Figures:
    for runner in runners.values():
        runner(code)  # warm-up, not counted
    times: Figures = {name: [] for name in runners}
    for start in range(0, repeats, TURN):
        for name, runner in runners.items():
            times[name] += [_milliseconds(runner, code) for _ in range(start, min(start + TURN, repeats))]
    return times


def _cold_starts(runners: dict[str, Runner], repeats: int) -> Figures:
    """From no zygote to the first result, canaries included."""
    times: Figures = {name: [] for name in runners}
    for _ in range(repeats):
        for name, runner in runners.items():
            sandbox.close()
            times[name].append(_milliseconds(runner, PRINT))
    return times


def _throughput(runners: dict[str, Runner], batch: int, repeats: int) -> Figures:
    """Programs with sympy, two threads a core."""
    rates: Figures = {name: [] for name in runners}
    for runner in runners.values():
        runner(SYMPY)  # warm-up, not counted
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        for _ in range(repeats):
            for name, runner in runners.items():
                count = max(4, batch // 10) if name == "subprocess" else batch
                start = time.perf_counter()
                list(pool.map(runner, [SYMPY] * count))
                rates[name].append(count / (time.perf_counter() - start))
    return rates


def _case(name: str, unit: str, figures: Figures) -> dict[str, Any]:
    p95 = {n: sorted(values)[int(0.95 * len(values))] for n, values in figures.items()}
    return case(name, unit, figures["ours"], figures["subprocess"], p95=p95)


if __name__ == "__main__":
    main(bench_sandbox)
