"""Unsloth's CPU backend for real, in a process of its own. Its GPU classes: tests/gpu."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentkit.policies.unsloth import import_first
from agentkit.rollouts.policy import EngineError

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def test_two_steps_with_the_gradient_of_the_plain_engine_and_an_adapter_for_peft(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    command = [sys.executable, str(HERE / "unsloth_run.py"), str(tmp_path)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["loaded"] and found["same_layers"] and found["unshared"] is None
    assert found["adapters"] == ["default"]
    assert found["grad_norm"] > 1e-3 and found["grad_diff"] < 1e-4 and found["loss_diff"] < 1e-4
    assert found["steps"] == 2 and len(found["losses"]) == 2 and found["moved"] > 0
    assert found["best_step"] < 2 or found["adapter_gap"] < 1e-4
    assert found["base"] == "nano" and not list(work.iterdir()), "its generated code goes to the user's cache"


def test_it_comes_first_or_says_how(monkeypatch):
    import_first("transformers")  # nothing to do
    monkeypatch.delitem(sys.modules, "unsloth", raising=False)
    monkeypatch.setitem(sys.modules, "peft", None)
    says = "has imported .*peft.* already: start a fresh one .*restart the kernel"
    with pytest.raises(EngineError, match=says):
        import_first("unsloth")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    says = "pip install -c requirements-gpu.lock .* or use engine: transformers"
    with pytest.raises(EngineError, match=says):
        import_first("unsloth")
