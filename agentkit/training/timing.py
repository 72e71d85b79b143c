"""How long an update takes on this machine, measured before a training on trajectories that are at hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from torch.nn.utils.rnn import pad_sequence

from agentkit.records import Trajectory
from agentkit.runs.recipe import Recipe
from agentkit.training.common import lora
from agentkit.training.prefix import plain_logprobs, prepare, shared_logprobs

PARTS = 4  # micro-batches that are timed


def update_seconds(model: Any, trajectories: Sequence[Trajectory], recipe: Recipe) -> float:
    """Seconds of one device for one trajectory in a GRPO update: the reference's forward pass, the policy's,
    the backward pass.

    Args:
        model: the one that will be trained; without an adapter, it gets one for the moment, and loses it
            again.
        trajectories: as training would sample them, group by group.
        recipe: for micro_batch, beta, share_prefixes, temperature and LoRA.
    """
    parts = [
        trajectories[i : i + recipe.micro_batch] for i in range(0, len(trajectories), recipe.micro_batch)
    ]
    parts = [parts[i * len(parts) // PARTS] for i in range(PARTS)] if len(parts) > PARTS else parts
    own = isinstance(model, PeftModel)
    with torch.random.fork_rng():
        adapted = model if own else get_peft_model(model, lora(recipe))
    try:
        shares = recipe.share_prefixes and prepare(adapted) is None
        adapted.train()
        _pass(adapted, parts[0], recipe, shares)  # not counted: the first pass sets up what the others find
        start = time.perf_counter()
        for part in parts:
            _pass(adapted, part, recipe, shares)
        return (time.perf_counter() - start) / sum(map(len, parts))
    finally:
        adapted.zero_grad(set_to_none=True)
        (adapted if own else adapted.unload()).eval()


def _pass(model: Any, trajectories: Sequence[Trajectory], recipe: Recipe, shares: bool) -> float:
    """The log-probabilities that GRPO's loss asks for, and a backward pass through them."""
    rows = [torch.tensor([*t.prompt_ids, *t.completion_ids], device=model.device) for t in trajectories]
    masks = [
        torch.tensor([0] * len(t.prompt_ids) + list(t.action_mask), device=model.device) for t in trajectories
    ]
    ids = pad_sequence(rows, batch_first=True)
    real = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    scored = pad_sequence(masks, batch_first=True)[:, 1:].bool()
    score = shared_logprobs if shares else plain_logprobs
    if recipe.beta:
        with torch.no_grad(), model.disable_adapter():
            score(model, ids, real, scored, recipe.temperature)
    found, _ = score(model, ids, real, scored, recipe.temperature, True)
    (found * scored).sum().backward()
    return float(found.detach().sum())  # waits for the device
