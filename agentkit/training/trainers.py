"""What every trainer here shares: quiet settings, seeded, and one progress bar.

Leaves out what each of them trains on (sft, grpo).
"""

from __future__ import annotations

from typing import Any

from transformers import ProgressCallback


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


def only_own_progress(trainer: Any) -> None:
    """Remove the printers that transformers adds where its own progress bar is off."""
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ in ("PrinterCallback", "NotebookProgressCallback"):
            trainer.remove_callback(callback)
