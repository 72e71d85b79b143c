"""Attention that one call of a transformers model may bring along; every other call stays plain SDPA.

Rollouts attend to keys and values where they lie (slot_cache), and the update computes shared prefixes
once (training.prefix); both do so on the same model, which therefore keeps one implementation. Also, eval
mode for the time of a few calls. Leaves out what is brought along.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "agentkit"


def attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, attend: Any = None, **options: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attention in transformers' form by ``attend``, which the model was called with; without one, SDPA.

    Takes query (B, heads, W, head size), key and value (B, key-value heads, K, head size) and a mask of four
    dimensions or None, and returns (B, W, heads, head size) and no weights, as ``attend`` does.
    """
    device = query.device.type
    if attend and torch.is_autocast_enabled(device):
        # as plain SDPA has it; named masks pass autocast by
        kind = torch.get_autocast_dtype(device)
        query, key, value = query.to(kind), key.to(kind), value.to(kind)
    return (attend or sdpa_attention_forward)(module, query, key, value, attention_mask, **options)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in eval mode, and afterwards in the mode it was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def allow_other_attention(model: Any) -> str | None:
    """Let calls of a model bring their own attention; returns why not, or None. Saved, it is as before."""
    before = model.config.get_text_config()._attn_implementation
    if before not in ("sdpa", ATTENTION):
        return f"its attention is {before!r}, not 'sdpa'"
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    if before == "sdpa":
        model.set_attn_implementation(ATTENTION)
    return None
