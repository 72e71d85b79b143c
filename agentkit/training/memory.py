"""How much memory a recipe's update and rollouts need, before anything is loaded.

The model's own code runs on tensors that have shapes and no content, with LoRA, autocast and checkpointing
as in training, and what is alive is counted: whatever can be traced is planned for, with no formula to
follow it. Leaves out what kernels need for themselves, what an allocator loses between blocks (MARGIN), and
reading prompts in rollouts, which takes less than an update.
"""

import copy
import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from peft import get_peft_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentkit.policies.loading import told
from agentkit.policies.precision import checkpoints
from agentkit.policies.shards import layers_of
from agentkit.policies.slot_cache import GROWTH, token_bytes, unkept
from agentkit.policies.vllm import can_sleep
from agentkit.recipe import Recipe
from agentkit.records import RecipeError
from agentkit.runs.files import model_path
from agentkit.training.adapters import lora
from agentkit.training.prefix import chunked_logprobs

PROMPT = 1024  # tokens of system prompt, tools and question
SIZES = (24, 48, 80, 141)  # GB of GPUs
MARGIN = 1.1  # of what is counted
# Bytes that an engine keeps while it sleeps: CUDA graphs, workspaces, the buffer of logits. Never measured:
# sleep mode needs CUDA. A round figure above the 0.5 to 1 GB that such graphs are reported to take.
ASLEEP = 2e9
GB = 1e9
UNMASKED = "agentkit_unmasked"  # SDPA without the masks that transformers makes where a model is only traced


class Alive(TorchDispatchMode):
    """Bytes of the storages that are alive, counted at every operation within; ``peak`` is the most."""

    def __init__(self, known: Iterable[torch.Tensor] = ()):
        super().__init__()
        self.peak = self._alive = 0
        self._seen: set[int] = set()
        for tensor in known:
            self._add(tensor)

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self._alive += size
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._alive -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._add(value)
        return result


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What one process needs on its GPU, in bytes, without MARGIN."""

    weights: float  # of the trained model, without what other processes hold of it
    update_fixed: float  # of an update: weights, adapter, optimiser
    update_row: float  # and of each trajectory of a micro-batch
    micro_batch: int  # trajectories in one
    engine_share: float  # of the GPU, that an engine takes, or keys and values of engine transformers at most
    kept: float = 0.0  # these keys and values, of all trajectories that are sampled together
    engine_least: float = 0.0  # that another engine needs: its weights and one trajectory
    sleeps: bool = False  # it gives its share back during the update

    def update(self, micro_batch: int | None = None) -> float:
        """Bytes at the peak of an update, with MARGIN."""
        return (self.update_fixed + (micro_batch or self.micro_batch) * self.update_row) * MARGIN

    def sampling(self, size_gb: float) -> float:
        """Bytes at the peak of rollouts on a GPU of this size, with MARGIN."""
        share = self.engine_share * size_gb * GB
        return self.weights * MARGIN + (min(self.kept * MARGIN, share) if self.kept else share)

    def needed(self, size_gb: float, micro_batch: int | None = None) -> float:
        """Bytes at the most, on a GPU of this size."""
        beside = 0.0 if self.kept else self.engine_share * size_gb * GB  # what an engine keeps
        beside = min(beside, ASLEEP) if self.sleeps else beside
        return max(self.update(micro_batch) + beside, self.sampling(size_gb))

    def advice(self, size_gb: float) -> str:
        """Whether it fits a GPU of this size, and what to change where it does not."""
        room, least = size_gb * GB, self.engine_least * MARGIN
        if 0 < self.engine_share * room < least:
            share = math.ceil(100 * least / room) / 100
            change = f"engine_memory: {share:g}" if share < 0.95 else "a smaller model"
            return f"the engine's weights with one trajectory take {least / GB:.1f} GB: {change}"
        if self.needed(size_gb) <= room:
            return "fits"
        fitting = [n for n in range(1, self.micro_batch) if self.needed(size_gb, n) <= room]
        if fitting:
            return f"micro_batch: {fitting[-1]}"
        if self.update_fixed * MARGIN > room:
            return "a smaller model, shard on more cards, or load_in_4bit with engine: unsloth"
        return "lower max_tokens" + (" or max_batch" if self.sampling(size_gb) > room else "")


def plan(
    recipe: Recipe, dtype: torch.dtype = torch.bfloat16, config: Any = None, device: str = "cuda"
) -> MemoryPlan:
    """The memory plan of a recipe for weights of this data type, on a GPU or ("cpu") in main memory.

    Raises RecipeError where the model's configuration cannot be read, or its code not traced.
    """
    config = copy.deepcopy(config) if config else _config(recipe)  # its attention is set here
    tokens, rows = PROMPT + recipe.max_tokens, recipe.micro_batch
    scored = min(recipe.max_tokens, recipe.max_turns * recipe.max_turn_tokens)
    own_cache = recipe.engine == "transformers"
    try:
        why = unkept(config) if own_cache else None
        one, most = (update_peak(config, recipe, dtype, n, tokens, scored, device) for n in (1, max(rows, 2)))
        model = _adapted(config, recipe, dtype)
        elsewhere, gathered = _spread(model, recipe)
    except Exception as error:  # whatever an architecture raises that cannot be traced without content
        raise RecipeError(
            f"memory is not planned: the model {recipe.model!r} ({config.model_type}) cannot be traced "
            f"without its weights ({type(error).__name__}: {str(error)[:160]}); the first step will tell"
        ) from error
    if why:
        raise RecipeError(f"memory is not planned: {why}")
    each = (most - one) / (max(rows, 2) - 1)
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    cached = tokens * token_bytes(config, dtype)
    together = min(recipe.max_batch, recipe.prompts_per_step * recipe.group_size // recipe.processes)
    return MemoryPlan(
        weights=weights - elsewhere,
        update_fixed=one - each - elsewhere + gathered,
        update_row=each,
        micro_batch=rows,
        engine_share=0.0 if recipe.engine == "server" else recipe.engine_memory,
        kept=GROWTH * together * cached if own_cache else 0.0,
        # in 4 bits weights are less than what is counted here
        engine_least=0.0 if own_cache or recipe.load_in_4bit else weights + cached,
        sleeps=recipe.engine == "vllm" and can_sleep(),
    )


def _spread(model: Any, recipe: Recipe) -> tuple[float, float]:
    """Bytes of the weights that other processes hold, and of what is gathered while a layer computes: the
    largest, and the next one.
    """
    if not recipe.shard:
        return 0.0, 0.0
    sizes = [sum(p.nbytes for p in layer.parameters()) for layer in layers_of(model)]
    processes = (
        recipe.processes if "processes" in recipe.model_fields_set else max(torch.cuda.device_count(), 1)
    )
    return sum(sizes) * (1 - 1 / processes), 2.0 * max(sizes) * (processes > 1)


def _config(recipe: Recipe) -> Any:
    try:
        return AutoConfig.from_pretrained(model_path(recipe.model), local_files_only=True)
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"memory is not planned: the configuration of {recipe.model!r} is not on this machine "
            f"({told(error)}). Bring it with: hf download {recipe.model} config.json"
        ) from None


def table(made: MemoryPlan) -> pd.DataFrame:
    """GB needed on GPUs of several sizes, and what to change where it does not fit."""
    rows = [(f"{size} GB", made.needed(size) / GB, made.advice(size)) for size in SIZES]
    return pd.DataFrame(rows, columns=["memory", "needed, GB", "set"]).round(1)


def update_peak(
    config: Any, recipe: Recipe, dtype: torch.dtype, rows: int, tokens: int, scored: int, device: str = "cpu"
) -> float:
    """Bytes at the peak of one optimiser step on ``rows`` trajectories of ``tokens``, ``scored`` of each.

    ``device`` is the kind whose way of computing logits is counted.
    """
    model = _adapted(config, recipe, dtype)
    with FakeTensorMode(allow_non_fake_inputs=True):
        _materialize(model)
        if checkpoints(dtype):
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained)
        ids = torch.randint(0, config.get_text_config().vocab_size, (rows, tokens))
        with Alive([*model.parameters(), *model.buffers()]) as alive:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float32):
                hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
                states, targets = hidden[:, -scored - 1 : -1].flatten(0, 1), ids[:, -scored:].flatten()
                loss = chunked_logprobs(model, states, targets, 1.0, False, device)[0].sum()
            del hidden, states
            loss.backward()
            optimizer.step()
    return float(alive.peak)


def _adapted(config: Any, recipe: Recipe, dtype: torch.dtype) -> Any:
    AttentionInterface.register(UNMASKED, sdpa_attention_forward)
    AttentionMaskInterface.register(UNMASKED, lambda *unused, **also_unused: None)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model.set_attn_implementation(UNMASKED)
        return get_peft_model(model, lora(recipe, model)).train()


def _materialize(model: Any) -> None:
    """Give a model without memory parameters that have shapes and no content, tied ones once."""
    model.to_empty(device="cpu")
    model.get_base_model().tie_weights()
