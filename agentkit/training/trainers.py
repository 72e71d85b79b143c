"""What every trainer here shares: quiet settings, seeded, and one progress bar.

Leaves out what each of them trains on (sft, grpo).
"""

from typing import Any

import torch
from huggingface_hub import constants
from transformers import ProgressCallback

from agentkit.policies.precision import precision_of
from agentkit.recipe import Recipe


def checkpoints(dtype: torch.dtype) -> bool:
    """Whether activations are computed again in the backward pass, to save memory."""
    return dtype != torch.float32 or torch.cuda.is_available()


def quiet_trainer(recipe: Recipe) -> dict[str, Any]:
    """Arguments of every trainer here: seeded, one log row a step, no reports elsewhere, no checkpoints."""
    constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL reports every trainer to the hub
    dtype = precision_of(recipe.precision)
    return {
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": dtype != torch.float32,
        "gradient_checkpointing": checkpoints(dtype),
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "ddp_broadcast_buffers": False,  # constants; processes may make unlike numbers of passes
    }


def on_one_card(arguments: Any) -> Any:
    """A trainer's configuration for one GPU: with several in sight transformers would split batches."""
    arguments._n_gpu = min(arguments.n_gpu, 1)  # as transformers itself sets it for a model on several
    return arguments


class Progress(ProgressCallback):
    """transformers' progress bar over the steps of SFT, with the latest loss."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description("SFT")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        """Show the loss, where transformers prints the whole row."""
        if self.training_bar is not None and "loss" in (logs or {}):
            self.training_bar.set_postfix(loss=f"{logs['loss']:.4g}")
