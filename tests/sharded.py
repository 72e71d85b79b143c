"""Jobs for two processes: updates with base weights that are sharded or whole, to be compared."""

from typing import Any

import torch
from benchmarks.peer import as_batch, as_ours, moved
from survive import tasks
from torch.distributed.tensor import DTensor

from agentkit import Lab, Run
from agentkit.policies.loading import load_agent
from agentkit.policies.process_group import gathered, on_main_process, rank
from agentkit.training.loop import GRPO
from agentkit.training.loss import Batch

STEPS = 3
ROWS = {0: (5, 9, 13, 7, 6, 8), 1: (30, 0, 0, 0, 0, 0)}  # scored tokens of each process' trajectories


def both(lab: Lab, run: Run, tell: Any, shares: bool) -> dict[str, Any]:
    """``updates`` with whole base weights, then with shards of them: the bytes that each process holds."""
    return {"held": [updates(lab, run, f"shards-{shards}", shards, shares) for shards in (False, True)]}


def updates(lab: Lab, run: Run, name: str, shards: bool, shares: bool) -> list[int]:
    """GRPO's own update, some optimiser steps: what each process holds of the base weights, in bytes, and a
    file with losses, log-probabilities and norms, and the adapter in the end.
    """
    recipe = lab.recipe
    agent, tokenizer = load_agent(recipe.model, precision=recipe.precision, shards=shards)
    held = sum((p.to_local() if isinstance(p, DTensor) else p).nbytes for p in agent.parameters())
    trainer = moved(GRPO(lab, agent, tokenizer, tasks(), [], run, share_prefixes=shares))
    found = []
    for step in range(STEPS):
        given = batch(step)
        row = trainer.update(given)
        read = trainer.logprobs(given, given.mask).cpu()
        found.append({name: row[name] for name in ("loss", "grad_norm")} | {"logprobs": read})
    found.append({"adapter": torch.cat([p.detach().flatten() for p in trainer.trained])})
    everybody = gathered([found])
    on_main_process(lambda: torch.save(everybody, run.file(f"{name}.pt")))
    return gathered([held])


def batch(step: int) -> Batch:
    """Six trajectories of two prompts; one process has a single one with tokens to score, which is long."""
    generator = torch.Generator().manual_seed(10 * step + rank())
    draw = lambda n: torch.randint(5, 900, (n,), generator=generator).tolist()  # noqa: E731
    prompts = [draw(11)] * 3 + [draw(7)] * 3
    scored = ROWS[rank()]
    completions = [draw(max(n, 4)) for n in scored]
    masks = [[int(bool(n))] * len(c) for n, c in zip(scored, completions, strict=True)]
    made = as_batch(prompts, completions, masks, [1.0, -1.0, 0.5, -0.5, 2.0, -2.0])
    return as_ours(made, torch.full(made["completion_ids"].shape, -7.0))  # about what a random model says
