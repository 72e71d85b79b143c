"""Training over several machines: here two process trees on one, which share a run's folder and no more."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_launch import _of, _untimed, _workers, folder, prepared  # noqa: F401

from agentkit.runs import Run
from agentkit.training import nodes
from agentkit.training.launch import Work

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def joined(run: Run, node: int = 1):
    """``agentkit join`` in a process of its own; what it printed lies in the run's join.log."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with run.file("join.log").open("ab") as log:
        command = [sys.executable, "-m", "agentkit.cli", "join", str(run.path), "--node", str(node)]
        child = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_two_machines_train_the_adapter_of_two_processes_on_one(folder):  # noqa: F811
    run, lab = prepared(folder, "machines", nodes=2)
    work = Work(lab, run)
    with joined(run) as member:
        assert work.train()["steps"] == 3
        ranks = work.record["ranks"]["train"]
        assert [rank["sampled"]["validation"] for rank in ranks] == [3, 3], "both have sampled"
        assert "2 machines of 1 process train on the CPU" in str(work) and member.poll() is None
        assert not run.file(nodes.ASKED).exists() and not _workers(run)
        nodes.over(run)
        assert member.wait(60) == 0 and not run.file(".node-1.json").exists()
    whole, same = prepared(folder, "one-machine")
    Work(same, whole).train()
    assert _untimed(run) == _untimed(whole)
    adapters = [made.file("adapter", "adapter_model.safetensors").read_bytes() for made in (run, whole)]
    assert adapters[0] == adapters[1]
