"""How much memory a recipe's update and rollouts need, before anything is loaded.

The model's own code runs on tensors that have shapes and no content, with LoRA, autocast and checkpointing
as in training, and what is alive is counted. Where layers repeat, one and two periods of them are traced, and
the others add as much. vLLM's own needs follow a formula of its start (engine_needs). Leaves out what kernels
need for themselves, what an allocator loses between blocks (MARGIN), and reading prompts in rollouts, which
takes less than an update.
"""

import copy
import math
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from peft import get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentkit.policies.loading import longest, told
from agentkit.policies.precision import checkpoints
from agentkit.policies.shards import layers_of
from agentkit.policies.slot_cache import GROWTH, token_bytes, unkept
from agentkit.policies.vllm import BATCHED_TOKENS, can_sleep
from agentkit.recipe import Recipe
from agentkit.records import RecipeError
from agentkit.runs.files import adapter_base, model_path
from agentkit.training.adapters import lora
from agentkit.training.prefix import chunked_logprobs

PROMPT = 1024  # tokens of system prompt, tools and question
SIZES = (24, 48, 80, 141)  # GB of GPUs
MARGIN = 1.1  # of what is counted
# Bytes that an engine keeps while it sleeps: CUDA graphs, workspaces, the buffer of logits. Never measured:
# sleep mode needs CUDA. A round figure above the 0.5 to 1 GB that such graphs are reported to take.
ASLEEP = 2e9
GRAPHS = 1e9  # the CUDA graphs alone, which vLLM takes from its share; as reported, never measured
LOGIT_BYTES = 32  # that vLLM's sampler holds for a row's logit at its start: float32, sorted, with indices
FOUR_BITS = 0.516  # bytes a weight of bitsandbytes' NF4, its scales quantised too
CHUNK = 64  # tokens that flash-linear-attention keeps a state for
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
    engine_fixed: float = 0.0  # that vLLM takes of its share: weights, activations, CUDA graphs
    engine_row: float = 0.0  # and keys and values of the longest trajectory, for which it must have room
    sleeps: bool = False  # it gives its share back during the update
    shares: bool = False  # its weights are those that are trained

    def update(self, micro_batch: int | None = None) -> float:
        """Bytes at the peak of an update, with MARGIN."""
        return (self.update_fixed + (micro_batch or self.micro_batch) * self.update_row) * MARGIN

    def sampling(self, size_gb: float) -> float:
        """Bytes at the peak of rollouts on a GPU of this size, with MARGIN."""
        share = self.engine_share * size_gb * GB
        own = 0.0 if self.shares else self.weights * MARGIN
        return own + (min(self.kept * MARGIN, share) if self.kept else share)

    def needed(self, size_gb: float, micro_batch: int | None = None) -> float:
        """Bytes at the most, on a GPU of this size."""
        beside = 0.0 if self.kept else self.engine_share * size_gb * GB  # what an engine keeps
        beside = min(beside, ASLEEP) if self.sleeps else beside
        beside -= self.weights * MARGIN if self.shares else 0.0  # an update counts them
        return max(self.update(micro_batch) + beside, self.sampling(size_gb))

    def advice(self, size_gb: float) -> str:
        """Whether it fits a GPU of this size, and what to change where it does not."""
        room, least = size_gb * GB, (self.engine_fixed + self.engine_row) * MARGIN
        if 0 < self.engine_share * room < least:
            share = math.ceil(100 * least / room) / 100
            change = f"engine_memory: {share:g}" if share < 0.95 else "a smaller model"
            return f"vLLM's weights, activations and longest trajectory take {least / GB:.1f} GB: {change}"
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
    own_cache, vllm = recipe.engine == "transformers", recipe.engine in ("vllm", "unsloth")
    try:
        why = unkept(config) if own_cache else None
        case = tokens, scored, device
        one, most = (_peak(config, recipe, dtype, n, *case) for n in (1, max(rows, 2)))
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
    saved, unpacked = _four_bits(model) if recipe.load_in_4bit else (0.0, 0.0)
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) - saved
    cached = token_bytes(config, dtype)
    together = min(recipe.max_batch, recipe.prompts_per_step * recipe.group_size // recipe.processes)
    return MemoryPlan(
        weights=weights - elsewhere,
        update_fixed=one - each - elsewhere + gathered - saved + unpacked,
        update_row=each,
        micro_batch=rows,
        engine_share=0.0 if recipe.engine == "server" else recipe.engine_memory,
        kept=GROWTH * together * tokens * cached if own_cache else 0.0,
        engine_fixed=weights + _activations(config, recipe, dtype) + GRAPHS if vllm else 0.0,
        engine_row=longest(config, recipe) * cached if vllm else 0.0,
        # CUDA's build can; here there may be none of it
        sleeps=recipe.engine == "vllm"
        and device == "cuda"
        and (can_sleep() or not torch.cuda.is_available()),
        shares=recipe.engine == "unsloth",
    )


def _activations(config: Any, recipe: Recipe, dtype: torch.dtype) -> float:
    """Bytes that vLLM finds taken when it tries its largest batch: a layer's tokens, and rows' logits."""
    text = config.get_text_config()
    inner = max(getattr(text, "intermediate_size", 0) or 0, text.hidden_size)
    layer = BATCHED_TOKENS * (3 * inner + 4 * text.hidden_size) * dtype.itemsize
    return float(layer + recipe.max_batch * text.vocab_size * LOGIT_BYTES)


def _four_bits(model: Any) -> tuple[float, float]:
    """Bytes that 4 bits save, in the layers that have an adapter; and the largest of them, unpacked."""
    layers = [layer.get_base_layer().weight for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    saved = sum(weight.nbytes - FOUR_BITS * weight.numel() for weight in layers)
    return saved, float(max(weight.nbytes for weight in layers))


def _peak(config: Any, *case: Any) -> float:
    """``update_peak``, from one and two periods of its layers where they repeat."""
    text = config.get_text_config()
    layers, lists = text.num_hidden_layers, _per_layer(text)
    period = next(n for n in range(1, layers + 1) if all(x[n:] == x[:-n] for x in lists.values()))
    short = [_with_layers(config, n * period) for n in (1, 2)] if 2 * period < layers else []
    more = layers / period - 1
    if short:  # layers may be unlike in what no list tells, such as experts from the second on
        one, two, all_of_them = map(_numbers, (*short, config))
        short = short if one + more * (two - one) == all_of_them else []
    if not short:
        return update_peak(config, *case)
    one, two = (update_peak(made, *case) for made in short)
    return one + more * (two - one)


def _per_layer(text: Any) -> dict[str, list]:
    """What a configuration says of each layer."""
    known = vars(text).items()
    return {key: x for key, x in known if isinstance(x, list) and len(x) == text.num_hidden_layers}


def _with_layers(config: Any, number: int) -> Any:
    config = copy.deepcopy(config)
    text = config.get_text_config()
    cut = {name: values[:number] for name, values in _per_layer(text).items()}
    for name, value in (cut | {"num_hidden_layers": number}).items():
        setattr(text, name, value)
    return config


def _numbers(config: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())


def _delta_rule(query: Any, key: Any, value: Any, g: Any, beta: Any, **unused: Any) -> tuple[Any, None]:
    """The tensors that flash-linear-attention's kernel holds, in place of transformers' loop over chunks: its
    arguments, a state a chunk, and what the backward pass makes of both.
    """
    states = key[:, ::CHUNK, :, :, None] * value[:, ::CHUNK, :, None, :]
    seen = (query * key).sum(-1, keepdim=True) + states.sum((1, 3))[:, None]
    return (value * (g + beta)[..., None]).to(value.dtype) + seen, None


@contextmanager
def _kernels(model: Any, device: str) -> Iterator[None]:
    """Within, gated delta rules take what their kernel on a GPU takes."""
    module, name = sys.modules[type(model.get_base_model()).__module__], "torch_chunk_gated_delta_rule"
    own = getattr(module, name, None)
    if device != "cuda" or own is None:
        yield
        return
    setattr(module, name, _delta_rule)
    try:
        yield
    finally:
        setattr(module, name, own)


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
    name = adapter_base(recipe.model) or recipe.model
    try:
        return AutoConfig.from_pretrained(model_path(name), local_files_only=True)
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"memory is not planned: the configuration of {name!r} is not on this machine "
            f"({told(error)}). Bring it with: hf download {name} config.json"
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
    with FakeTensorMode(allow_non_fake_inputs=True), _kernels(model, device):
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
