"""Benchmarks: this kit against its peer, in one run on one machine, reported as ratios.

    python -m tests.benchmarks.rollouts|update [--quick]

``python -m tests.benchmarks.alarms`` measures the alarms on simulated runs. Leaves out what the figures ought
to be (docs/results.md has those that were measured).
"""
