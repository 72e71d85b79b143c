"""The update of stock TRL, to compare ours with, and one measured step of either.

Stock TRL 1.15 gets its log-probabilities from ``model(..., fused_lm_head=True)``, a kernel for GPUs.
``StockTrainer`` is TRL's GRPOTrainer with the method TRL 1.14.2 had in that place, which runs anywhere: one
forward of the padded batch, logits of the completion only (``logits_to_keep``), divided by the temperature,
then TRL's own ``selective_log_softmax`` and ``entropy_from_logits``. All else is TRL's.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from agentkit import Lab, Recipe, Run, Task
from agentkit.training.adapters import lora
from agentkit.training.loop import GRPO
from agentkit.training.loss import Batch


class StockTrainer(GRPOTrainer):
    """TRL's GRPOTrainer, with the log-probabilities of TRL 1.14.2 so that it runs without a GPU."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int,
        batch_size: int | None = None, compute_entropy: bool = False, **unused: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:  # fmt: skip
        """Log-probabilities (B, T) of the last T tokens, and entropies (B, T) where asked."""
        logprobs, entropies = [], []
        for rows in torch.arange(len(input_ids)).split(batch_size or len(input_ids)):
            ids, mask = input_ids[rows], attention_mask[rows]
            out = model(
                input_ids=ids, attention_mask=mask, logits_to_keep=logits_to_keep + 1, use_cache=False
            )
            logits = out.logits[:, :-1][:, -logits_to_keep:] / self.temperature
            logprobs.append(selective_log_softmax(logits, ids[:, -logits_to_keep:]))
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(entropy_from_logits(logits))
        return torch.cat(logprobs), torch.cat(entropies) if compute_entropy else None, None


def stock_config(recipe: Recipe, out: Path) -> GRPOConfig:
    """TRL's configuration of the recipe."""
    rollouts = recipe.prompts_per_step * recipe.group_size
    config = GRPOConfig(
        output_dir=str(out), max_steps=recipe.steps, per_device_train_batch_size=recipe.micro_batch,
        gradient_accumulation_steps=rollouts // recipe.micro_batch // recipe.minibatches,
        steps_per_generation=rollouts // recipe.micro_batch, num_generations=recipe.group_size,
        learning_rate=recipe.learning_rate, lr_scheduler_type=recipe.lr_schedule,
        warmup_steps=recipe.warmup_steps, optim="adamw_torch", weight_decay=0.0,
        max_grad_norm=recipe.max_grad_norm, temperature=recipe.temperature,
        max_completion_length=recipe.max_tokens, beta=recipe.beta, epsilon=recipe.clip_epsilon,
        epsilon_high=recipe.clip_epsilon_high or recipe.clip_epsilon, loss_type=recipe.loss_type,
        scale_rewards="group", mask_truncated_completions=False, seed=recipe.seed, data_seed=recipe.seed,
        use_cpu=not torch.cuda.is_available(), bf16=torch.cuda.is_available(), gradient_checkpointing=False,
        router_aux_loss_coef=0.0, logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    config._n_gpu = min(config.n_gpu, 1)  # as transformers itself sets it for a model on several
    return config


def stock_trainer(
    model: Any, tokenizer: Any, recipe: Recipe, kind: type[GRPOTrainer] = StockTrainer
) -> GRPOTrainer:
    """TRL's trainer of a recipe, whose prompts are nobody's."""
    config, rows = stock_config(recipe, Path(tempfile.mkdtemp())), Dataset.from_list([{"prompt": "unused"}])
    given = {"processing_class": tokenizer, "peft_config": lora(recipe, model)}
    return moved(kind(model, lambda **_: [0.0], config, rows, **given))


def our_trainer(model: Any, tokenizer: Any, recipe: Recipe, share: bool = True) -> GRPO:
    """Our trainer of a recipe, likewise; ValueError where it cannot share prefixes though asked to."""
    tasks = [Task(f"task-{i}", "unused", "", family="A") for i in range(recipe.prompts_per_step)]
    run = Run.create(Path(tempfile.mkdtemp()) / "run")
    trainer = GRPO(Lab.open(recipe), model, tokenizer, tasks, [], run, share_prefixes=share)
    if share and trainer.unshared:
        raise ValueError(f"the update of this model shares nothing: {trainer.unshared}")
    return moved(trainer)


def moved(trainer: Any) -> Any:
    """The trainer, its adapters away from zero, whichever it is."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in trainer.model.named_parameters():
        if "lora_A" in name or "lora_B" in name:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return trainer


Rows = list[list[int]]


def as_batch(
    prompts: Rows, completions: Rows, masks: Rows, advantages: list[float]
) -> dict[str, torch.Tensor]:
    """A batch as TRL hands it to its loss: prompts padded on the left, completions and masks on the right."""
    batch = {"prompt_ids": _padded(prompts, "left"), "prompt_mask": _padded(_ones(prompts), "left")}
    batch |= {"completion_ids": _padded(completions), "completion_mask": _padded(_ones(completions))}
    batch |= {"tool_mask": _padded(masks), "advantages": torch.tensor(advantages)}
    return batch | {"num_items_in_batch": (batch["completion_mask"] * batch["tool_mask"]).sum()}


def _ones(rows: Rows) -> Rows:
    return [[1] * len(row) for row in rows]


def _padded(rows: Rows, side: str = "right") -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_side=side)


def as_ours(batch: dict[str, torch.Tensor], old: torch.Tensor | None = None) -> Batch:
    """The same batch as our loss reads it: all columns behind the first, prompts masked."""
    ids, real = sequences(batch)
    width, prompt = ids.shape[1] - 1, batch["prompt_ids"].shape[1]
    mask = torch.zeros(len(ids), width, dtype=torch.bool, device=ids.device)
    mask[:, prompt - 1 :] = (batch["completion_mask"] * batch["tool_mask"]).bool()
    before = torch.zeros(mask.shape, device=ids.device)
    if old is not None:
        before[:, prompt - 1 :] = old
    return Batch(ids, real, mask, batch["advantages"][:, None].expand(-1, width), before)


def sequences(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts with their completions (B, P + T), and 1 on real tokens."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    return ids, torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)


def update(trainer: Any, batch: dict[str, torch.Tensor]) -> tuple[float, float, torch.Tensor]:
    """One batch forward and backward: seconds, loss, and the flat gradient in float32."""
    trainer.model.train()
    trainer.model.zero_grad(set_to_none=True)
    old = logprobs(trainer, batch)
    start = time.perf_counter()
    if isinstance(trainer, GRPO):
        total = trainer.backward(as_ours(batch, old))["loss"]
    else:
        trainer.current_gradient_accumulation_steps = 1
        loss = trainer.compute_loss(trainer.model, batch | {"old_per_token_logps": old})
        loss.backward()
        total = loss.item()
    seconds = time.perf_counter() - start
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    return seconds, total, torch.cat([gradient.flatten().float() for gradient in gradients])


def logprobs(trainer: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, T) log-probabilities as the trainer computes them, zero outside the loss."""
    width, mask = batch["completion_ids"].shape[1], batch["completion_mask"] * batch["tool_mask"]
    if isinstance(trainer, GRPO):
        given = as_ours(batch)
        return trainer.logprobs(given, given.mask)[:, -width:]
    with torch.no_grad():
        values, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, *sequences(batch), width)
    return values * mask
