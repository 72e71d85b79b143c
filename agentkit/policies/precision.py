"""Half precision: which data type a recipe means, and how much of an adapter survives in it.

Leaves out where operations run in which type, which is autocast's.
"""

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer

LEAST_SHARE = 0.95  # of an adapter, that folding it in must leave


def precision_of(name: str) -> torch.dtype:
    """The data type that the recipe key ``precision`` names."""
    if name == "auto":
        return torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def checkpoints(dtype: torch.dtype) -> bool:
    """Whether training computes activations again in the backward pass, to save memory."""
    return dtype != torch.float32 or torch.cuda.is_available()


@torch.no_grad()
def surviving_share(model: PeftModel, dtype: torch.dtype | None = None) -> float:
    """The part of an adapter's change D that would be left if it were folded into the weights W.

    ``dtype`` is that of the folded weights, by default what they are. With R = round(W + D) - W it is
    <R, D> / <D, D>: 1 where rounding adds noise only, near 0 where most changes are smaller than half the
    distance to the next number.
    """
    kept = whole = 0.0
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            weight, change = layer.get_base_layer().weight, layer.get_delta_weight(layer.active_adapters[0])
            left = (weight.float() + change.float()).to(dtype or weight.dtype).float() - weight.float()
            kept += float((left * change).sum())
            whole += float((change * change).sum())
    return kept / whole if whole else 1.0
