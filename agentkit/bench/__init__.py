"""Benchmarks: this kit against its peer, in one run on one machine, reported as ratios (see docs of each)."""

from agentkit.bench.rollouts import bench_rollouts
from agentkit.bench.sandbox import bench_sandbox

BENCHES = {"rollouts": bench_rollouts, "sandbox": bench_sandbox}
__all__ = ["BENCHES", "bench_rollouts", "bench_sandbox"]
