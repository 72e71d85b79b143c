"""The update of stock TRL, to compare ours with, and one measured step of either.

Stock TRL 1.15 gets its log-probabilities from ``model(..., fused_lm_head=True)``, a kernel for GPUs.
``StockTrainer`` is TRL's GRPOTrainer with the method TRL 1.14.2 had in that place, which runs anywhere: one
forward of the padded batch, logits of the completion only (``logits_to_keep``), divided by the temperature,
then TRL's own ``selective_log_softmax`` and ``entropy_from_logits``. All else is TRL's. ``SharingTrainer`` is
the same trainer with our update. Leaves out rollouts, and the race itself (update.py, end_to_end.py).
"""

import time
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOConfig
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from agentkit.training.trl_trainer import GRPOTrainer
from agentkit.training.update import Update, sequences


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


class SharingTrainer(Update, GRPOTrainer):
    """TRL's GRPOTrainer with our update."""


def make_trainer(
    kind: type[StockTrainer] | type[SharingTrainer],
    model: Any,
    tokenizer: Any,
    args: GRPOConfig,
    lora: LoraConfig | None = None,
) -> GRPOTrainer:
    """A trainer of the kind, its adapters away from zero alike; ValueError where it cannot share prefixes."""
    rows = Dataset.from_list([{"prompt": "unused"}])
    trainer = kind(model, lambda **_: [0.0], args, rows, processing_class=tokenizer, peft_config=lora)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in trainer.model.named_parameters():
        if "lora_A" in name or "lora_B" in name:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    if isinstance(trainer, SharingTrainer):
        trainer.share_prefixes()
        if trainer.unshared:
            raise ValueError(f"the update of this model shares nothing: {trainer.unshared}")
    return trainer


def as_batch(
    prompts: list[list[int]],
    completions: list[list[int]],
    masks: list[list[int]],
    advantages: list[float],
    pad: int = 0,
) -> dict[str, torch.Tensor]:
    """A batch as TRL hands it to its loss: prompts padded on the left, completions and masks on the right."""
    ones = [[1] * len(row) for row in completions]
    completion_mask, tool_mask = _padded(ones, 0), _padded(masks, 0)
    return {
        "prompt_ids": _padded(prompts, pad, "left"),
        "prompt_mask": _padded([[1] * len(row) for row in prompts], 0, "left"),
        "completion_ids": _padded(completions, pad),
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }


def _padded(rows: list[list[int]], value: int, side: str = "right") -> torch.Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)


def update(
    trainer: GRPOTrainer, batch: dict[str, torch.Tensor], parts: int = 1
) -> tuple[float, float, torch.Tensor]:
    """One batch forward and backward in micro-batches: seconds, loss, and the flat gradient in float32."""
    trainer.model.train()
    trainer.model.zero_grad(set_to_none=True)
    trainer.current_gradient_accumulation_steps = parts
    start, total = time.perf_counter(), 0.0
    size = len(batch["advantages"]) // parts
    for i in range(parts):
        part = {name: x[i * size : (i + 1) * size] if x.ndim else x for name, x in batch.items()}
        loss = trainer.compute_loss(trainer.model, part)
        loss.backward()
        total += loss.item()
    seconds = time.perf_counter() - start
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    return seconds, total, torch.cat([gradient.flatten().float() for gradient in gradients])


def logprobs(trainer: GRPOTrainer, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, T) log-probabilities as the trainer computes them, zero outside the loss."""
    ids, real = sequences(batch)
    with torch.no_grad():
        values, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, real, batch["completion_ids"].shape[1]
        )
    return values * batch["completion_mask"] * batch["tool_mask"]
