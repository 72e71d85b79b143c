"""Loading models, LoRA adapters merged into them, and the policies that sample from them.

Leaves out what Unsloth loads (unsloth.py) and servers that run elsewhere (serve.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from agentkit.nano import model_path
from agentkit.policies.guard import sync
from agentkit.policies.server import ServerPolicy
from agentkit.policies.transformers import TransformersPolicy
from agentkit.policies.vllm import VllmPolicy
from agentkit.rollouts.policy import Policy
from agentkit.runs.recipe import Recipe

PROMPT_ROOM = 8192  # tokens that vLLM keeps room for, before a trajectory's own


def load_agent(model: str, merge: Sequence[str | Path] = ()) -> tuple[Any, Any]:
    """A model and its tokenizer, on the GPU in bfloat16 where there is one, else on the CPU in float32.

    Args:
        model: "nano", a folder or a hub name.
        merge: adapter folders merged in, in order.

    Raises:
        FileNotFoundError: the model or an adapter cannot be loaded; the message says what to do.
    """
    cuda = torch.cuda.is_available()
    logging.disable_progress_bar()  # a bar for each load says nothing here
    source = model_path(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        loaded = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16 if cuda else torch.float32)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"cannot load the model {model!r}: {str(error)[:200]}. Use 'nano', a folder or a hub name."
        ) from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    for adapter in merge:
        loaded = PeftModel.from_pretrained(loaded, str(adapter)).merge_and_unload()
    return loaded.to("cuda" if cuda else "cpu"), tokenizer


def longest(model: Any, recipe: Recipe) -> int:
    """Prompt and completion tokens of one trajectory that an engine is made for."""
    return min(model.config.get_text_config().max_position_embeddings, recipe.max_tokens + PROMPT_ROOM)


def make_policy(model: Any, tokenizer: Any, name: str, recipe: Recipe, engine: Any = None) -> Policy:
    """The policy that samples from a loaded model on the recipe's engine. Close it, or use it in a ``with``.

    An engine with weights of its own is given the model's and must then compute the same (``guard.sync``).

    ``name`` is recorded in trajectories; ``engine`` is vLLM's where Unsloth loaded the model
    (``unsloth.adapted``).

    Raises:
        EngineError: the engine is not installed, does not answer or computes something else.
    """
    lora = recipe.weight_sync == "lora"
    if recipe.engine == "transformers" or (recipe.engine == "unsloth" and not torch.cuda.is_available()):
        return TransformersPolicy(model, tokenizer, name, recipe.max_batch, recipe.deterministic)
    if recipe.engine == "server":
        policy = ServerPolicy(recipe.servers, tokenizer, name, lora=lora)
    else:
        memory = {"max_length": longest(model, recipe), "memory_share": recipe.engine_memory}
        policy = VllmPolicy(model, tokenizer, name, lora=lora, engine=engine, **memory)
    try:
        sync(policy, model, recipe.temperature, recipe.sync_threshold)
    except BaseException:
        policy.close()
        raise
    return policy
