"""A transformers policy with weights of its own, which an update leaves alone until the next ``sync``.

Rollouts may then go on while the model trains (``max_staleness``). Frozen weights are shared with the trained
model, so that in half precision the twin costs an adapter; in float32, where the adapter is folded in because
that samples faster, it costs the layers that have one. Leaves out when to hand weights over (training.ahead).
"""

import copy
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from agentkit.policies.engine_weights import bare, full_weights
from agentkit.policies.transformers import TransformersPolicy


def twin_of(model: PeftModel) -> Any:
    """A model that computes what this one does, with every weight shared that training leaves as it is."""
    folds = model.dtype == torch.float32
    layers = [layer.get_base_layer() for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    own = {id(weight) for layer in layers if folds for weight in layer.parameters()}
    shared = [p for p in model.parameters() if not p.requires_grad and id(p) not in own]
    source = model.get_base_model() if folds else model
    twin = copy.deepcopy(source, {id(weight): weight for weight in shared})
    for module in twin.modules():  # TRL's add_fused_lm_head sets one that calls the trained model's
        vars(module).pop("forward", None)
    return (bare(twin) if folds else twin).requires_grad_(False).eval()


@torch.no_grad()
def refresh(twin: Any, model: PeftModel) -> None:
    """Bring a twin the weights that its model has now."""
    own = dict(twin.named_parameters())
    if isinstance(twin, PeftModel):
        weights = ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)
    else:
        weights = ((name, weight) for name, weight in full_weights(model) if name in own)
    for name, weight in weights:
        if own[name].data_ptr() != weight.data_ptr():
            own[name].copy_(weight)


class TwinPolicy(TransformersPolicy):
    """Samples from a copy of a PEFT model; arguments as TransformersPolicy's."""

    shares_weights = False

    def __init__(self, model: PeftModel, tokenizer: Any, *arguments: Any):
        super().__init__(twin_of(model), tokenizer, *arguments)

    def sync(self, model: PeftModel) -> None:
        """Take over the trained weights, and forget what was computed with the old ones."""
        self._between_batches(self._take_over, model)

    def _take_over(self, model: PeftModel) -> None:
        self._clear()
        refresh(self.model, model)
