"""How long an update takes on this machine, measured before a training on trajectories that are at hand.

Leaves out rollouts, whose time preflight's own tell, and the optimiser's step.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from peft import PeftModel, get_peft_model

from agentkit.recipe import Recipe
from agentkit.records import Trajectory
from agentkit.training.adapters import lora
from agentkit.training.loss import Batch
from agentkit.training.prefix import scorer
from agentkit.training.trainers import checkpoints

PARTS = 4  # micro-batches that are timed


def update_seconds(model: Any, trajectories: Sequence[Trajectory], recipe: Recipe) -> float | None:
    """Seconds of one device for one trajectory in a GRPO update: reference, policy, backward pass.

    A model without an adapter gets one for the moment. The trajectories come group by group, as in training,
    and activations are checkpointed where training does so. None where no trajectory has a token of its own.
    """
    trajectories = [t for t in trajectories if any(t.action_mask)]
    if not trajectories:
        return None
    size = recipe.micro_batch
    parts = [trajectories[i : i + size] for i in range(0, len(trajectories), size)]
    parts = [parts[i * len(parts) // PARTS] for i in range(PARTS)] if len(parts) > PARTS else parts
    has_adapter = isinstance(model, PeftModel)
    with torch.random.fork_rng():
        adapted = model if has_adapter else get_peft_model(model, lora(recipe, model))
    try:
        score, _ = scorer(adapted, True)
        adapted.train()
        if checkpoints(adapted.dtype):
            adapted.enable_input_require_grads()
            adapted.gradient_checkpointing_enable()
        _pass(adapted, parts[0], recipe, score)  # not counted: the first pass sets up what the others find
        start = time.perf_counter()
        for part in parts:
            _pass(adapted, part, recipe, score)
        return (time.perf_counter() - start) / sum(map(len, parts))
    finally:
        adapted.zero_grad(set_to_none=True)
        if checkpoints(adapted.dtype):
            adapted.gradient_checkpointing_disable()
            adapted.disable_input_require_grads()
        (adapted if has_adapter else adapted.unload()).eval()


def _pass(model: Any, trajectories: Sequence[Trajectory], recipe: Recipe, score: Callable) -> None:
    """The log-probabilities that GRPO's loss asks for, and a backward pass through them."""
    masks = [t.action_mask for t in trajectories]
    batch = Batch.of(trajectories, masks, torch.zeros(len(masks)), model.device)
    half = torch.autocast(model.device.type, torch.bfloat16, enabled=model.dtype != torch.float32)
    if recipe.beta:
        with torch.no_grad(), half, model.disable_adapter():
            score(model, batch.ids, batch.real, batch.mask, recipe.temperature)
    with half:
        logprobs, _ = score(model, batch.ids, batch.real, batch.mask, recipe.temperature, True)
    logprobs.sum().backward()
    logprobs.sum().item()  # waits for the device
