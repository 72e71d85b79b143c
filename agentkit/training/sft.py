"""SFT: LoRA on transcripts, loss on the assistant's own tokens only, through TRL's SFTTrainer.

Demonstrations are trajectories of the scripted policy, so the tokens trained on are those a rollout would
hold. Leaves out reading a messages data set (transcripts).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from huggingface_hub import constants
from peft import PeftModel
from transformers import PrinterCallback, ProgressCallback
from trl import SFTConfig, SFTTrainer

from agentkit.policies.precision import checkpoints, precision_of
from agentkit.policies.process_group import on_main_process, world
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.policies.shards import leave_shards
from agentkit.recipe import Recipe, RecipeError, find_file
from agentkit.records import RunError, Task, Trajectory
from agentkit.rollouts import rollout
from agentkit.runs.topology import patience
from agentkit.training.adapters import lora, save_adapter, settled
from agentkit.training.prefix import scorer
from agentkit.training.transcripts import read_transcripts

if TYPE_CHECKING:
    from agentkit.lab import Lab

WARMUP = 10  # steps
MICRO_BATCH = 8  # demonstrations in one forward and backward pass, at most
IGNORED = -100  # the label of a token that is not trained on


class _Trainer(SFTTrainer):
    """TRL's SFTTrainer with the update's log-probabilities: what demonstrations share is computed once
    where the model can share (prefix), and logits exist a chunk at a time on any device.
    """

    score: Callable[..., tuple[torch.Tensor, Any]]

    def compute_loss(
        self, model: Any, inputs: dict, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        scored = inputs["labels"][:, 1:] != IGNORED
        logprobs, _ = self.score(model, inputs["input_ids"], inputs["attention_mask"], scored, 1.0)
        if num_items_in_batch is None:
            return -logprobs.sum() / scored.sum().clamp(min=1)
        # it counts the tokens of every process, whose gradients are then averaged
        return -logprobs.sum() / num_items_in_batch * self.accelerator.num_processes


class _Progress(ProgressCallback):
    """transformers' progress bar with the latest loss, which is else printed row by row."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        if self.training_bar is not None and "loss" in (logs or {}):
            self.training_bar.set_postfix(loss=f"{logs['loss']:.4g}")


def demonstrations(
    lab: Lab, tasks: Sequence[Task], tokenizer: Any, seed: int | None = None
) -> list[Trajectory]:
    """What the cold start imitates: ``transcripts``, or ``sft_transcripts`` a task by the expert."""
    recipe = lab.recipe
    seed = recipe.seed if seed is None else seed
    if recipe.transcripts:
        return read_transcripts(find_file(recipe.transcripts), tokenizer, lab, tasks)
    planned = [task for task in tasks if task.meta.get("plan") is not None]
    if not planned:
        raise RecipeError(
            "these tasks have no plans that the scripted expert could demonstrate: set transcripts to a "
            "messages data set, or sft: false"
        )
    if 0 < recipe.sft_tasks < len(planned):
        planned = random.Random(f"{seed}-sft").sample(planned, recipe.sft_tasks)
    policy = ScriptedPolicy(tokenizer, Flaws(**recipe.flaws), name="expert")
    options = lab.options(
        group_size=recipe.sft_transcripts,
        seed=seed,
        progress="demonstrations",
        tool_failures=recipe.sft_tool_failures,
    )
    return rollout(planned, policy, **options)


def sft_dataset(trajectories: Sequence[Trajectory]) -> Dataset:
    """Rows of token ids with TRL's ``assistant_masks``: 1 on tokens the assistant wrote.

    Raises RunError where there is none.
    """
    rows = [
        {
            "input_ids": [*t.prompt_ids, *t.completion_ids],
            "assistant_masks": [*[0] * len(t.prompt_ids), *t.action_mask],
        }
        for t in trajectories
        if any(t.action_mask)  # else it teaches nothing
    ]
    if not rows:
        raise RunError(f"none of {len(trajectories)} trajectories has a turn: there is nothing to imitate")
    return Dataset.from_list(rows)


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

    ``model`` is changed, and goes on training its adapter where it has one; ``changes`` are arguments of
    TRL's SFTConfig in place of the recipe's. Returns the model with the adapter, ``settled``, and the log:
    ``step`` and ``loss``, nats a trained token.
    """
    trainer = _Trainer(
        model=model,
        args=_settings(recipe, out, changes),
        train_dataset=sft_dataset(trajectories),
        processing_class=tokenizer,
        peft_config=None if isinstance(model, PeftModel) else lora(recipe, model),
        callbacks=[_Progress()],
    )
    trainer.remove_callback(PrinterCallback)
    leave_shards(trainer.model)
    trainer.score, _ = scorer(trainer.accelerator.unwrap_model(trainer.model), True)
    trainer.train()
    on_main_process(lambda: save_adapter(trainer.model, tokenizer, out))
    log = [{"step": row["step"], "loss": row["loss"]} for row in trainer.state.log_history if "loss" in row]
    return (trainer.model if recipe.engine == "server" else settled(trainer.model)), log


def _settings(recipe: Recipe, out: Path, changes: dict[str, Any]) -> SFTConfig:
    """Seeded, one log row a step, no reports elsewhere, no checkpoints."""
    constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL reports every trainer to the hub
    share = max(1, recipe.sft_batch // world())
    rows = max(n for n in range(1, min(share, MICRO_BATCH) + 1) if share % n == 0)
    dtype = precision_of(recipe.precision)
    settings = {
        "output_dir": str(out.parent),  # nothing is written there
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "num_train_epochs": recipe.sft_epochs,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": share // rows,
        "learning_rate": recipe.sft_learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": WARMUP,
        "weight_decay": 0.0,
        "max_length": None,
        "train_sampling_strategy": "group_by_length",
        "use_cpu": not torch.cuda.is_available(),
        "bf16": dtype != torch.float32,
        "gradient_checkpointing": checkpoints(dtype),
        "ddp_timeout": int(patience(recipe)),
        "ddp_broadcast_buffers": False,  # constants; processes may make unlike numbers of passes
        "dataloader_pin_memory": False,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    config = SFTConfig(**(settings | changes))
    config._n_gpu = min(config.n_gpu, 1)  # with several GPUs in sight transformers would split batches
    return config
