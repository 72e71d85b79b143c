"""The weights of the trained network, in the form that another engine loads: base and adapter apart.

Leaves out quantised models.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
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


def bare(model: Any) -> Any:
    """The model without adapter layers, such as a trainer that was interrupted left in it."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            model.set_submodule(name, layer.get_base_layer())
    vars(model).pop("peft_config", None)
    return model


def save_weights(model: Any, folder: Path) -> None:
    """Write the weights under a model's adapter, and a configuration by which an engine loads them.

    What is the text part of a larger configuration does not name its architecture, so it is put in. Every
    process must call this at once where the weights are sharded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    tied = (getattr(base, "_tied_weights_keys", None) or ()) if base.config.tie_word_embeddings else ()
    weights = {
        name.replace(".base_layer.", "."): whole(tensor).detach().cpu().contiguous().clone()
        for name, tensor in base.state_dict().items()
        if ".lora_" not in name and name not in tied
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = copy.deepcopy(base.config)
    config.architectures = config.architectures or [type(base).__name__.removeprefix("FSDP")]
    config.save_pretrained(folder)


def save_lora(model: PeftModel, folder: Path) -> None:
    """Write the active LoRA adapter as an engine expects it."""
    model.save_pretrained(folder, selected_adapters=[model.active_adapter], save_embedding_layers=False)
