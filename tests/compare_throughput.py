"""The estimate of trajectories a second against measured rollouts of one and two processes and slow tools.

    OMP_NUM_THREADS=1 python tests/compare_throughput.py --repeats 6

The small agent samples the same 64 trajectories in each setting, and the settings take turns. Predictions come from
one process without latency, measured in the same repeat. The load of the machine is told: use the medians of ratios.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from statistics import median

from options import options

from agentkit.runs.throughput import Batch

LATENCIES, SLOTS = (0.0, 0.05, 0.4, 2.0), 128


def work(pipe) -> None:
    """One process: rolls out the tasks it is told to, and answers with their turns and its processor time."""
    from benchmarks.rollouts import _rollout, _slow

    from agentkit.policies.loading import load_agent
    from agentkit.policies.transformers import TransformersPolicy
    from agentkit.tasks import Suite
    from agentkit.tools.corpus import Corpus

    corpus, policy = Corpus.open(), TransformersPolicy(*load_agent("nano"))
    tasks = Suite.build({"families": ["A", "B"], "n_tasks": 40, "seed": 11}, corpus=corpus).tasks
    _rollout(tasks[:1], policy, _slow(0.0, corpus), 0)
    pipe.send("ready")
    while asked := pipe.recv():
        first, last, latency, seed = asked
        begun = time.process_time()
        made = _rollout(tasks[first:last], policy, _slow(latency, corpus), seed)
        pipe.send((made, time.process_time() - begun))


def measured(pipes: list, latency: float, seed: int) -> tuple[float, list, float]:
    """Seconds until the last of the processes has its trajectories; these; processor time."""
    share, begun = 8 // len(pipes), time.perf_counter()
    for number, pipe in enumerate(pipes):
        pipe.send((number * share, (number + 1) * share, latency, seed))
    answers = [pipe.recv() for pipe in pipes]
    seconds = time.perf_counter() - begun
    return seconds, [t for made, _ in answers for t in made], sum(spent for _, spent in answers)


def main() -> int:
    repeats = options(__doc__, repeats=6).repeats
    spawn, pipes, children = multiprocessing.get_context("spawn"), [], []
    for _ in range(2):
        ours, theirs = spawn.Pipe()
        pipes.append(ours)
        children.append(spawn.Process(target=work, args=(theirs,), daemon=True))
        children[-1].start()
    print([pipe.recv() for pipe in pipes], flush=True)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(repeats):
        start = None
        for latency in LATENCIES:
            for processes in (1, 2):
                seconds, made, spent = measured(pipes[:processes], latency, seed)
                start = start or Batch(made, seconds, 1, SLOTS)
                told = start.seconds(processes, latency * 1000 or None)
                name = f"{processes} x {latency * 1000:g} ms"
                found.setdefault(name, []).append((told, seconds, spent))
                row = {"case": name, "predicted": told, "measured": seconds, "processor": spent}
                print(json.dumps(row | {"load": os.getloadavg()[0]}), flush=True)
    for name, rows in found.items():
        told, took, spent = (median(values) for values in zip(*rows, strict=True))
        ratio = sorted(a / b for a, b, _ in rows)
        print(
            f"{name}: predicted {64 / told:.2f}/s, measured {64 / took:.2f}/s, processor {spent:.2f} s, ratio of"
        )
        print(f"  seconds predicted / measured {ratio[0]:.2f} to {ratio[-1]:.2f}, median {median(ratio):.2f}")
    for pipe in pipes:
        pipe.send(None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
