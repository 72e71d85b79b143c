"""TRL's AsyncGRPOTrainer beside ours (compare_async.py): it trains from our agent, with our tools and reward, against
a real server. Leaves out what needs a GPU: its attention, its head, weights by NCCL.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import compare_async
import pytest

from agentkit.policies.loading import load_agent
from agentkit.runs import Recipe, Run, write_tasks

VALUES = compare_async.ALIKE | {
    "families": "A,B", "seed": 1, "steps": 2, "prompts_per_step": 2, "group_size": 4, "micro_batch": 4, "lora_r": 4,
    "max_turn_tokens": 128, "max_tokens": 1024, "tool_cache": "off", "val_tasks": 2, "server_urls": "http://none",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="the vllm extra is not installed")
def test_trls_trainer_learns_from_our_agent_with_our_tools(suite, tmp_path):
    write_tasks(Run.create(tmp_path / "start").file("tasks.jsonl"), suite.tasks)
    for part in load_agent("nano"):
        part.save_pretrained(tmp_path / "agent")
    with compare_async.serving(tmp_path / "agent", Recipe.from_mapping(VALUES), "") as url:
        found = compare_async.theirs(tmp_path, VALUES, url)
    assert found["trajectories"] == 8, "the recipe's batch"
    assert abs(found["kl"]) < 1e-6, "the server samples what is trained, and says with which probability"
    assert found["calls"] > 0 and found["reward"] > 0, "our tools ran: their share is a part of the reward"
    assert found["staleness"] <= compare_async.AHEAD and 0 <= found["success"] <= 1
    handed = {path.name for path in (tmp_path / "trl-1" / ".vllm_lora").iterdir()}
    assert {"trl-policy-v2", "trl-policy-v3"} <= handed, "the adapter, after each step"


def test_without_a_gpu_the_race_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare_async.py"])
    monkeypatch.setattr(compare_async, "gpu_count", lambda: 0)
    assert compare_async.main() == 1
    said = capsys.readouterr().err
    assert "needs a GPU" in said and "--rehearse 1" in said and said.count("\n") == 1
