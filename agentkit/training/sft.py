"""SFT: LoRA on transcripts, loss on the assistant's own tokens only, through TRL's SFTTrainer.

Demonstrations are trajectories of the scripted policy, so the tokens trained on are those a rollout would
hold. Leaves out reading a messages data set (transcripts).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import Trainer
from trl import SFTConfig, SFTTrainer

from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.records import Task, Trajectory
from agentkit.rollouts import rollout
from agentkit.runs.recipe import Recipe, RecipeError, find_file
from agentkit.training.adapters import lora, save_adapter
from agentkit.training.trainers import Progress, only_own_progress, quiet_trainer
from agentkit.training.transcripts import read_transcripts

if TYPE_CHECKING:
    from agentkit.lab import Lab


class _PlainLossTrainer(SFTTrainer):
    """TRL's SFTTrainer with the model's own loss: TRL 1.15 computes it with a kernel that needs a GPU."""

    def compute_loss(
        self, model: Any, inputs: dict, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Cross-entropy over labels, as transformers' Trainer computes it."""
        return Trainer.compute_loss(self, model, inputs, return_outputs, num_items_in_batch)


def demonstrations(
    lab: Lab, tasks: Sequence[Task], tokenizer: Any, seed: int | None = None
) -> list[Trajectory]:
    """What the cold start imitates: the recipe's ``transcripts``, or ``sft_transcripts`` a task by the
    scripted expert.

    Raises:
        RecipeError: no task has a plan that an expert could follow, and there are no transcripts.
    """
    recipe = lab.recipe
    if recipe.transcripts:
        return read_transcripts(find_file(recipe.transcripts), tokenizer, lab)
    planned = [task for task in tasks if task.meta.get("plan") is not None]
    if not planned:
        raise RecipeError(
            "these tasks have no plans that the scripted expert could demonstrate: set transcripts to a "
            "messages "
            "data set, or sft: false"
        )
    policy = ScriptedPolicy(tokenizer, Flaws(**recipe.flaws), name="expert")
    seed = recipe.seed if seed is None else seed
    options = lab.options(group_size=recipe.sft_transcripts, seed=seed, progress="demonstrations")
    return rollout(planned, policy, **options)


def sft_dataset(trajectories: Sequence[Trajectory]) -> Dataset:
    """Rows of token ids with TRL's ``assistant_masks``: 1 on tokens the assistant wrote."""
    return Dataset.from_list(
        [
            {
                "input_ids": [*t.prompt_ids, *t.completion_ids],
                "assistant_masks": [*[0] * len(t.prompt_ids), *t.action_mask],
            }
            for t in trajectories
        ]
    )


def right_ones(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Rejection sampling: trajectories whose answer is right, each different completion of a task once."""
    found = {(t.task_id, t.completion_ids): t for t in trajectories if t.success == 1.0}
    return list(found.values())


def token_count(trajectories: Sequence[Trajectory]) -> int:
    """Tokens that a forward and backward pass over these trajectories processes, prompts included."""
    return sum(len(t.prompt_ids) + len(t.completion_ids) for t in trajectories)


def cold_start(
    model: Any, tokenizer: Any, trajectories: Sequence[Trajectory], recipe: Recipe, out: Path
) -> list[dict]:
    """Fine-tune ``model`` on demonstrations, save the LoRA adapter to ``out``, and return the log."""
    return fine_tune(model, tokenizer, trajectories, recipe, out)[1]


def fine_tune(
    model: Any, tokenizer: Any, trajectories: Sequence[Trajectory], recipe: Recipe, out: Path, **changes: Any
) -> tuple[Any, list[dict]]:
    """Fine-tune a new LoRA adapter with loss on sampled tokens only, and save it to ``out``.

    Args:
        model: is changed: the adapter is put into it.
        tokenizer: of the model.
        trajectories: what is imitated.
        recipe: LoRA and the numbers of the cold start.
        out: folder of the adapter.
        **changes: arguments of TRL's SFTConfig in place of the recipe's.

    Returns:
        The model with the adapter merged, and the log, one row a step with ``step`` and ``loss`` (mean
        negative log-likelihood of a trained token, nats).
    """
    cuda = torch.cuda.is_available()
    settings = {
        "output_dir": str(out.parent / ".sft-trainer"),
        "num_train_epochs": recipe.sft_epochs,
        "per_device_train_batch_size": recipe.sft_batch,
        "learning_rate": recipe.sft_learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 10,
        "weight_decay": 0.0,
        "max_length": None,
        "packing": False,
        "gradient_checkpointing": cuda,
        "train_sampling_strategy": "group_by_length",
    }
    trainer = _PlainLossTrainer(
        model=model,
        args=SFTConfig(**(settings | quiet_trainer(recipe.seed, cuda) | changes)),
        train_dataset=sft_dataset(trajectories),
        processing_class=tokenizer,
        peft_config=lora(recipe),
        callbacks=[Progress("SFT")],
    )
    only_own_progress(trainer)
    trainer.train()
    save_adapter(trainer.model, tokenizer, out)
    log = [{"step": row["step"], "loss": row["loss"]} for row in trainer.state.log_history if "loss" in row]
    return trainer.model.merge_and_unload(), log
