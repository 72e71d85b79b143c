"""How long an update takes on this machine, measured before a training on trajectories that are at hand.

Leaves out rollouts, whose time preflight's own tell, and the optimiser's step.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from peft import get_peft_model

from agentkit.policies.precision import checkpoints
from agentkit.recipe import Recipe
from agentkit.records import Trajectory
from agentkit.training.adapters import lora
from agentkit.training.loss import Batch
from agentkit.training.prefix import scorer

PARTS = 4  # micro-batches that are timed, at most


def update_seconds(model: Any, trajectories: Sequence[Trajectory], recipe: Recipe) -> float | None:
    """Seconds of one device for one trajectory in a GRPO update: reference, policy, backward pass.

    The model gets an adapter for the moment. The trajectories come group by group, as in training, and
    activations are checkpointed where training does so. None where no trajectory has a token of its own.
    """
    trajectories = [t for t in trajectories if any(t.action_mask)]
    if not trajectories:
        return None
    size = recipe.micro_batch
    parts = [trajectories[i : i + size] for i in range(0, len(trajectories), size)]
    parts = parts[:: math.ceil(len(parts) / PARTS)]
    with torch.random.fork_rng():
        adapted = get_peft_model(model, lora(recipe, model)).train()
    score, _ = scorer(adapted, True)
    again = checkpoints(adapted.dtype)
    if again:
        adapted.enable_input_require_grads()
        adapted.gradient_checkpointing_enable()
    try:
        _pass(adapted, parts[0], recipe, score)  # not counted: the first pass sets up what the others find
        start = time.perf_counter()
        for part in parts:
            _pass(adapted, part, recipe, score)
        return (time.perf_counter() - start) / sum(map(len, parts))
    finally:
        if again:
            adapted.gradient_checkpointing_disable()
            adapted.disable_input_require_grads()
        adapted.unload().eval().zero_grad(set_to_none=True)


def _pass(model: Any, trajectories: Sequence[Trajectory], recipe: Recipe, score: Callable) -> None:
    """The log-probabilities that GRPO's loss asks for, and a backward pass through them."""
    masks = [t.action_mask for t in trajectories]
    batch = Batch.of(trajectories, masks, torch.zeros(len(masks)), model.device)
    own = model, batch.ids, batch.real, batch.mask, recipe.temperature
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model.dtype != torch.float32):
        if recipe.beta:
            with torch.no_grad(), model.disable_adapter():
                score(*own)
        logprobs, _ = score(*own, True)
    logprobs.sum().backward()
    logprobs.sum().item()  # waits for the device
