"""The weights of the trained network, in the form that another engine loads.

LoRA adapters are folded in or saved apart. vLLM's CPU attention knows a few head sizes only; a model with
another is padded with zeros to the next one, which leaves the function it computes unchanged. Leaves out
quantised models.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file

from agentkit.policies.precision import LEAST_SHARE, surviving_share
from agentkit.policies.shards import whole
from agentkit.rollouts.policy import EngineError

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # vLLM 0.32's cpu_attn.py
ADAPTER = "adapter_model.safetensors"  # PEFT's name for it
_PADDED = frozenset(("llama", "qwen2", "qwen3"))  # model types whose attention HeadPadding knows


def folded(model: PeftModel) -> Any:
    """The model with its adapter folded into its weights; warns where rounding loses too much of it."""
    if model.dtype != torch.float32 and (share := surviving_share(model)) < LEAST_SHARE:
        warnings.warn(
            f"folding an adapter into {str(model.dtype).removeprefix('torch.')} weights keeps {share:.0%} of "
            "it: train it longer or with a larger learning rate, or set precision: float32",
            stacklevel=3,
        )
    return model.merge_and_unload()


@torch.no_grad()
def full_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of the network as it now computes, active LoRA adapters folded in.

    Every process must ask for all of them where the weights are sharded.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    modules = dict(base.named_modules())
    for name, tensor in base.state_dict().items():
        if ".lora_" in name:
            continue
        tensor = whole(tensor)
        layer = modules.get(name.removesuffix(".base_layer.weight"))
        if isinstance(layer, LoraLayer) and not layer.merged and not layer.disable_adapters:
            for adapter in layer.active_adapters:
                tensor = (tensor.float() + layer.get_delta_weight(adapter).float()).to(tensor.dtype)
        yield name.replace(".base_layer.", "."), tensor


def bare(model: Any) -> Any:
    """The model without adapter layers, such as a trainer that was interrupted left in it."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            model.set_submodule(name, layer.get_base_layer())
    vars(model).pop("peft_config", None)
    return model


def save_weights(model: Any, folder: Path, padding: HeadPadding | None = None) -> None:
    """Write ``full_weights`` and their config, padded where asked, so that an engine can load them."""
    folder.mkdir(parents=True, exist_ok=True)
    tied = getattr(model, "_tied_weights_keys", None) if model.config.tie_word_embeddings else None
    weights = {
        name: (padding.tensor(name, tensor) if padding else tensor).detach().cpu().contiguous().clone()
        for name, tensor in full_weights(model)
        if name not in (tied or ())
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (padding.config(model.config) if padding else model.config).save_pretrained(folder)


def save_lora(model: PeftModel, folder: Path, padding: HeadPadding | None) -> None:
    """Write the active LoRA adapter as an engine with padded heads, or with none, expects it."""
    model.save_pretrained(folder, selected_adapters=[model.active_adapter], save_embedding_layers=False)
    if padding:
        tensors = load_file(folder / ADAPTER).items()
        save_file({name: padding.tensor(name, x).contiguous() for name, x in tensors}, folder / ADAPTER)


@dataclass(frozen=True, slots=True)
class HeadPadding:
    """Attention heads of ``size`` D as heads of ``padded`` D' > D dimensions that compute the same.

    A head's two halves, which the rotary embedding pairs, each keep their place at the start of a half. With
    s = sqrt(D'/D): queries are scaled by s, since attention divides by sqrt(D') instead of sqrt(D). Where
    queries and keys are normalised, their projections are scaled by s, so that the mean square over D' equals
    that over D, and the key's norm by 1/s. The rotary base t becomes t^(D'/D), which keeps every frequency
    t^(-2i/D).
    """

    size: int
    padded: int
    normed: bool  # queries and keys are normalised

    @classmethod
    def needed(cls, config: Any, sizes: tuple[int, ...] = CPU_HEAD_SIZES) -> HeadPadding | None:
        """The padding a model needs for these head sizes, or None; EngineError where it cannot be padded."""
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if size in sizes:
            return None
        if (
            config.model_type not in _PADDED
            or config.rope_parameters.get("rope_type") != "default"
            or size > max(sizes)
        ):
            raise EngineError(
                f"vLLM has no attention for heads of {size} dimensions on a CPU, and a {config.model_type} "
                "model cannot be padded to fit; use engine: transformers"
            )
        return cls(size, next(s for s in sizes if s > size), config.model_type == "qwen3")

    def config(self, config: Any) -> Any:
        padded = copy.deepcopy(config)
        padded.head_dim = self.padded
        padded.rope_parameters["rope_theta"] **= self.padded / self.size
        return padded

    def tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the padded model, or of a LoRA adapter on it, from the original's."""
        scale, parts = math.sqrt(self.padded / self.size), set(name.split("."))
        if "o_proj" in parts:
            return self._spread(tensor, 1) if "weight" in parts and "lora_B" not in parts else tensor
        if "lora_A" in parts or not parts & {"q_proj", "k_proj", "v_proj", "q_norm", "k_norm"}:
            return tensor
        padded = self._spread(tensor, 0)
        if "q_proj" in parts or ("k_proj" in parts and self.normed):
            return padded * scale
        return padded / scale if "k_norm" in parts else padded

    def _spread(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """Each half head of D/2 entries along an axis at the start of one of D'/2, zeros after it."""
        moved = tensor.movedim(axis, 0)
        halves = moved.reshape(-1, self.size // 2, *moved.shape[1:])
        out = halves.new_zeros(halves.shape[0], self.padded // 2, *moved.shape[1:])
        out[:, : self.size // 2] = halves
        return out.reshape(-1, *moved.shape[1:]).movedim(0, axis)
