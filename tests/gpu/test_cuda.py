"""What only a GPU shows: rollouts and the update on CUDA, vLLM's GPU build, Unsloth's GPU classes; else skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from benchmarks.peer import logprobs, update
from benchmarks.update import GROUP, _batch, _pair

from agentkit.lab import Lab
from agentkit.policies import sync_guard as guard
from agentkit.policies.loading import load_agent, make_policy
from agentkit.recipe import Recipe
from agentkit.rollouts import rollout
from agentkit.runs import Run
from agentkit.runs.topology import Topology, visible
from agentkit.training import launch
from agentkit.training.sft import demonstrations

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")]
RECIPE = Recipe(
    steps=2, prompts_per_step=2, group_size=4, micro_batch=4, learning_rate=1e-3, lora_r=4, lora_alpha=8, max_tokens=256,
    val_every=2, val_tasks=2,
)  # fmt: skip


without_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="the vllm extra is not installed")


@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=without_vllm)])
def test_sampled_logprobs_are_the_models(engine, suite):
    model, tokenizer = load_agent("nano")
    recipe = Recipe(engine=engine, max_tokens=256)
    assert model.device.type == "cuda"
    with make_policy(model, tokenizer, "cuda", recipe) as policy:
        for t in rollout(suite.split("train")[:4], policy, **Lab.open(recipe).options(group_size=2, seed=1)):
            found = guard.sampled_logprobs(model, list(t.prompt_ids), list(t.completion_ids), 0.7)
            pairs = [abs(a - b) for a, b, m in zip(found, t.old_logprobs, t.action_mask, strict=True) if m]
            assert t.prompt_ids and sum(pairs) / len(pairs) < guard.LIMITS[model.dtype]


def test_the_update_is_stock_trls():
    ours, peer = _pair()
    for trainer in (ours, peer):
        trainer.model.float()
    batch = _batch(ours.tokenizer, "cuda", 256)
    (_, loss, gradient), (_, expected, reference) = (update(trainer, batch) for trainer in (ours, peer))
    assert len(batch["prompt_ids"]) == GROUP and loss == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert (gradient - reference).norm() / reference.norm() < 0.05, "autocast to bfloat16"
    assert (logprobs(ours, batch) - logprobs(peer, batch)).abs().max() < 0.2


HERE, APART = Topology("here", 1, visible(1)), Topology("colocate", 1, visible(1))
FAILS = """
import torch
from agentkit.policies.loading import agent_of

def fails(lab, run, tell):
    agent, _ = agent_of(run, lab.recipe, "sft")
    raise RuntimeError(f"{agent.device} holds {torch.cuda.memory_allocated()} bytes")
"""


def test_this_process_holds_no_memory_of_a_gpu_while_children_train(suite, tmp_path, monkeypatch):
    """By CUDA's own allocator: after a cold start and a training here, and an error that IPython keeps."""
    (tmp_path / "failing.py").write_text(FAILS)
    monkeypatch.syspath_prepend(tmp_path)
    lab, run = Lab.open(RECIPE.but(sft=True, sft_batch=4)), Run.create(tmp_path / "run")
    suite.save(run.file("tasks.jsonl"))
    work = launch.Work(lab, run)

    def held() -> set[int]:
        """Bytes, whenever a child tells its metrics, and in the end."""
        work.topology, told = APART, []
        assert work.train(lambda row: told.append(torch.cuda.memory_allocated()))["steps"] == 2
        work.topology = HERE
        return {*told, torch.cuda.memory_allocated()}

    work.topology = HERE  # where it trains two steps itself
    work.cold_start(demonstrations(lab, suite.split("train")[:8], load_agent("nano")[1]))
    assert torch.cuda.memory_allocated() and held() == {0}
    assert work.train()["steps"] == 2 and torch.cuda.memory_allocated() and held() == {0}
    with pytest.raises(RuntimeError, match=r"cuda:0 holds [1-9]\d+ bytes") as kept:
        work.do("failing:fails")
    assert held() == {0} and kept.value.__traceback__ is not None


@pytest.mark.skipif(find_spec("unsloth") is None, reason="Unsloth is not installed")
def test_two_steps_of_unsloth_with_vllm_on_the_same_weights(tmp_path):
    command = [sys.executable, str(Path(__file__).parents[1] / "unsloth_run.py"), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["loaded"] and found["adapters"] == ["default"] and found["same_layers"]
    assert found["steps"] == 2 and found["moved"] > 0
    assert found["grad_diff"] < 0.1 and found["loss_diff"] < 0.02, "kernels of its own, in bfloat16"
