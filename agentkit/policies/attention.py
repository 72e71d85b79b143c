"""Attention in transformers that one call of a model may bring along, where every other call stays plain
SDPA.

Rollouts attend to keys and values where they lie (policies.slots), and the update computes shared prefixes
once (training.shared_prefix); both do so on the same model, which therefore keeps one implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "agentkit"


def attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    attend: Callable[..., tuple[torch.Tensor, None]] | None = None, **options: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attention in transformers' form: what the model was called with as ``attend``, else SDPA.

    Args:
        module: the attention layer.
        query: (B, heads, W, head size); key and value (B, key-value heads, K, head size).
        attention_mask: of four dimensions, or None.
        attend: takes the same arguments and returns the same.
        options: as transformers passes them (scaling, dropout).

    Returns:
        (B, W, heads, head size), and no weights.
    """
    return (attend or sdpa_attention_forward)(module, query, key, value, attention_mask, **options)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def allow_other_attention(model: Any) -> str | None:
    """Let calls of a model bring their own attention.

    Args:
        model: a transformers model, with or without PEFT adapters. Saved, it is as before.

    Returns:
        None, or why this model cannot; it is then as it was.
    """
    before = model.config.get_text_config()._attn_implementation
    if before == ATTENTION:
        return None
    if before != "sdpa":
        return f"its attention is {before!r}, not 'sdpa'"
    model.set_attn_implementation(ATTENTION)
    return None
