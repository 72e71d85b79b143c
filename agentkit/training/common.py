"""What SFT and GRPO share: LoRA settings, quiet trainers, a progress bar, saving adapters whole.

Leaves out what either of them trains on.
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
from transformers import ProgressCallback

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


def quiet_trainer(seed: int, cuda: bool) -> dict[str, Any]:
    """Arguments of every trainer here: seeded, one log row a step, no reports elsewhere, no checkpoints."""
    return {
        "seed": seed,
        "data_seed": seed,
        "use_cpu": not cuda,
        "bf16": cuda,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


class Progress(ProgressCallback):
    """transformers' progress bar over optimiser steps, with a label and the latest loss."""

    def __init__(self, label: str):
        super().__init__()
        self._label = label

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar."""
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description(self._label)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        """Show the loss, where transformers prints the whole row."""
        if self.training_bar is not None and "loss" in (logs or {}):
            self.training_bar.set_postfix(loss=f"{logs['loss']:.4g}")


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


def only_own_progress(trainer: Any) -> None:
    """Remove the printers that transformers adds where its own progress bar is off."""
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ in ("PrinterCallback", "NotebookProgressCallback"):
            trainer.remove_callback(callback)


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
