"""The weights of the trained network, in the form that another engine loads.

LoRA adapters are folded in or saved apart. Leaves out quantised models.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import save_file

from agentkit.policies.precision import LEAST_SHARE, surviving_share
from agentkit.policies.shards import whole


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


def save_weights(model: Any, folder: Path) -> None:
    """Write ``full_weights`` and their config, so that an engine can load them."""
    folder.mkdir(parents=True, exist_ok=True)
    tied = getattr(model, "_tied_weights_keys", None) if model.config.tie_word_embeddings else None
    weights = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in full_weights(model)
        if name not in (tied or ())
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    save_config(model, folder)


def save_config(model: Any, folder: Path) -> None:
    """Write a model's configuration, with the architecture that an engine goes by: what is the text part of a
    larger configuration does not name it.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    config = copy.deepcopy(base.config)
    config.architectures = config.architectures or [type(base).__name__.removeprefix("FSDP")]
    config.save_pretrained(folder)


def save_lora(model: PeftModel, folder: Path) -> None:
    """Write the active LoRA adapter as an engine expects it."""
    model.save_pretrained(folder, selected_adapters=[model.active_adapter], save_embedding_layers=False)
