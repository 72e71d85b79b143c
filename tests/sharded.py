"""Jobs for two processes: updates with base weights that are sharded or whole, to be compared."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from benchmarks.peer import SharingTrainer, as_batch, logprobs, make_trainer, update
from torch.distributed.tensor import DTensor

from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.policies.process_group import gathered, on_main_process, rank
from agentkit.policies.shards import leave_shards
from agentkit.runs import Run
from agentkit.training.adapters import lora
from agentkit.training.grpo_config import grpo_config

STEPS = 3
ROWS = {0: (5, 9, 13, 7, 6, 8), 1: (30, 0, 0, 0, 0, 0)}  # scored tokens of each process' trajectories


def both(lab: Lab, run: Run, tell: Any, shares: bool) -> dict[str, Any]:
    """``updates`` with whole base weights, then with shards of them: the bytes that each process holds."""
    return {"held": [updates(lab, run, f"shards-{shards}", shards, shares) for shards in (False, True)]}


def updates(lab: Lab, run: Run, name: str, shards: bool, shares: bool) -> list[int]:
    """GRPO's own update, some optimiser steps: what each process holds of the base weights, in bytes, and a
    file with losses, log-probabilities, gradients and the adapter in the end.
    """
    torch.manual_seed(0)  # the adapter is a new process' own
    recipe = lab.recipe
    agent, tokenizer = load_agent(recipe.model, precision=recipe.precision, shards=shards)
    held = sum((p.to_local() if isinstance(p, DTensor) else p).nbytes for p in agent.parameters())
    trainer = make_trainer(
        SharingTrainer, agent, tokenizer, grpo_config(recipe, run.file(name)), lora(recipe, agent)
    )
    leave_shards(trainer.model)
    trainer.share_prefixes(shares)
    trainer.token_budget = recipe.micro_batch_tokens
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    with _as_on_gpus():
        trainer.model, optimizer = trainer.accelerator.prepare(trainer.model, optimizer)
    found = []
    for step in range(STEPS):
        _, loss, gradient = update(trainer, batch(step))
        optimizer.step()
        found.append({"loss": loss, "gradient": gradient, "logprobs": logprobs(trainer, batch(step)).cpu()})
    found.append({"adapter": torch.cat([p.detach().flatten() for p in trained])})
    everybody = gathered([found])
    on_main_process(lambda: torch.save(everybody, run.file(f"{name}.pt")))
    return gathered([held])


def _as_on_gpus() -> Any:
    """Within, accelerate wraps a model as on several GPUs, but for naming the card."""
    os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
    return patch.object(Accelerator, "multi_device", True)


def batch(step: int) -> dict[str, Any]:
    """Six trajectories of two prompts; one process has a single one with tokens to score, which is long."""
    generator = torch.Generator().manual_seed(10 * step + rank())
    draw = lambda n: torch.randint(5, 900, (n,), generator=generator).tolist()  # noqa: E731
    prompts = [draw(11)] * 3 + [draw(7)] * 3
    scored = ROWS[rank()]
    completions = [draw(max(n, 4)) for n in scored]
    masks = [[int(bool(n))] * len(c) for n, c in zip(scored, completions, strict=True)]
    return as_batch(prompts, completions, masks, [1.0, -1.0, 0.5, -0.5, 2.0, -2.0])
