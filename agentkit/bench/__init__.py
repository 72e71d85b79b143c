"""Benchmarks: this kit against its peer, in one run on one machine, reported as ratios (see docs of each)."""

from agentkit.bench.rollouts import bench_rollouts
from agentkit.bench.sandbox import bench_sandbox
from agentkit.bench.update import bench_update
from agentkit.bench.verifiers import bench_verifiers

BENCHES = {"rollouts": bench_rollouts, "sandbox": bench_sandbox, "update": bench_update, "verifiers": bench_verifiers}
__all__ = ["BENCHES", "bench_rollouts", "bench_sandbox", "bench_update", "bench_verifiers"]
