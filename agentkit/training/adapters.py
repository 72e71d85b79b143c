"""LoRA adapters: their settings, folding them in for sampling, saving them whole.

Leaves out training them (sft, grpo) and exporting them with their model (merge).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer

from agentkit.runs.recipe import Recipe


def lora(recipe: Recipe) -> LoraConfig:
    """LoRA on every linear layer, no dropout: sampling and training must see the same network."""
    return LoraConfig(
        r=recipe.lora_r,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """The model with its LoRA adapter folded in, which samples faster; the weights come back bit for bit.

    Only in float32: in half precision the folded network is not quite the one that is trained.
    """
    layers = [layer.get_base_layer() for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    if not layers or any(layer.weight.dtype != torch.float32 for layer in layers):
        yield
        return
    kept = [layer.weight.detach().clone() for layer in layers]
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
        for layer, weight in zip(layers, kept, strict=True):
            layer.weight.data.copy_(weight)


def save_adapter(model: Any, tokenizer: Any, out: Path) -> None:
    """Save a LoRA adapter so that a reader sees the old one or the new one, never half of one."""
    temporary = out.with_name(f".{out.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    (temporary / "README.md").unlink(missing_ok=True)  # PEFT's model card is an empty form
    replace_folder(temporary, out)


def replace_folder(new: Path, out: Path) -> None:
    """Rename a folder to ``out``; what was there is gone afterwards."""
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)
