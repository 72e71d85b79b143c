"""Benchmarks: this kit against its peer, in one run on one machine, reported as ratios (see docs of each)."""

from agentkit.bench.end_to_end import bench_end_to_end
from agentkit.bench.rollouts import bench_rollouts
from agentkit.bench.sandbox import bench_sandbox
from agentkit.bench.update import bench_update
from agentkit.bench.verifiers import bench_verifiers

BENCHES = {
    "rollouts": bench_rollouts,
    "update": bench_update,
    "sandbox": bench_sandbox,
    "verifiers": bench_verifiers,
    "end-to-end": bench_end_to_end,
}
__all__ = [
    "BENCHES",
    "bench_end_to_end",
    "bench_rollouts",
    "bench_sandbox",
    "bench_update",
    "bench_verifiers",
]
