"""GRPO's loss as a weighted sum over tokens, with weights that are known for a whole optimiser step.

So any split of a batch into passes and processes adds up to the loss of the batch. Position j of every
(B, T) tensor stands for token j + 1 of a row. Leaves out log-probabilities (prefix) and advantages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentkit.records import Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """B trajectories as the update reads them: prompt and completion in one row, padded on the right."""

    ids: Tensor  # (B, T + 1) int64
    real: Tensor  # (B, T + 1), 1 on tokens
    mask: Tensor  # (B, T) bool: what the loss reads
    advantages: Tensor  # (B, T)
    old: Tensor  # (B, T) log-probabilities of the policy before the update
    reference: Tensor | None = None  # (B, T) those of the SFT model, where beta asks for them

    def __getitem__(self, rows: Tensor) -> Batch:
        values = (getattr(self, field.name) for field in fields(self))
        return Batch(*(None if value is None else value[rows] for value in values))

    def split(self, count: int) -> list[Batch]:
        return [self[rows] for rows in torch.arange(len(self.ids)).tensor_split(count)]

    @classmethod
    def of(
        cls, trajectories: Sequence[Trajectory], trained: Sequence[Sequence[int]], values: Tensor, device: Any
    ) -> Batch:
        """A batch of trajectories; the old policy is the one that sampled.

        ``trained`` are their masks in the loss, ``values`` their advantages, (B,) or (B, T) over completions.
        """

        def rows(of_prompt: int, completions: Iterable[Sequence[float]], dtype: torch.dtype) -> Tensor:
            both = zip(trajectories, completions, strict=True)
            made = [torch.tensor([of_prompt] * len(t.prompt_ids) + list(own), dtype=dtype) for t, own in both]
            return pad_sequence(made, batch_first=True).to(device)

        ids = [torch.tensor([*t.prompt_ids, *t.completion_ids], dtype=torch.int64) for t in trajectories]
        lengths = [len(t.completion_ids) for t in trajectories]
        values = values if values.ndim == 2 else values[:, None].expand(-1, max(lengths))
        gains = [value[:n].tolist() for value, n in zip(values, lengths, strict=True)]
        return cls(
            pad_sequence(ids, batch_first=True).to(device),
            rows(1, [[1] * n for n in lengths], torch.int64),
            rows(0, trained, torch.bool)[:, 1:],
            rows(0, gains, torch.float32)[:, 1:],
            rows(0, [t.old_logprobs for t in trajectories], torch.float32)[:, 1:],
        )


@dataclass(frozen=True, slots=True)
class Loss:
    """One of GRPO's losses."""

    kind: str  # grpo, dapo, dr_grpo, bnpo or cispo
    low: float = 0.2  # how far the ratio may lie below 1
    high: float = 0.2  # and above; for cispo the largest ratio itself
    beta: float = 0.0  # weight of the KL divergence from the reference
    level: str = "token"  # of the ratio; sequence is GSPO's (arXiv 2507.18071)
    longest: int = 1  # tokens of a completion at the most, which dr_grpo divides by

    def weights(self, mask: Tensor, rows: int, tokens: int) -> Tensor:
        """(B, T) what each token counts in an optimiser step with so many rows and tokens of the loss in all.

        bnpo's own mean over a micro-batch is one over the optimiser step here, and thus dapo's.
        """
        assert mask.ndim == 2 and mask.dtype == torch.bool, "mask: (B, T) bool"
        if self.kind == "grpo":  # a mean over rows of means over tokens
            return mask / mask.sum(1, keepdim=True).clamp(min=1) / rows
        return mask / (rows * self.longest if self.kind == "dr_grpo" else max(tokens, 1))

    def of_tokens(self, logprobs: Tensor, part: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T) losses; whether each token's ratio is clipped; k3 divergences (0 without a reference)."""
        assert logprobs.shape == part.mask.shape == part.advantages.shape, "(B, T) each"
        log_ratio, advantages = logprobs - part.old, part.advantages
        if self.level == "sequence":
            tokens = part.mask.sum(1, keepdim=True).clamp(min=1)
            log_ratio = (log_ratio * part.mask).sum(1, keepdim=True) / tokens
        ratio = log_ratio.exp()
        if self.kind == "cispo":  # MiniMax-M1 (arXiv 2506.13585)
            losses = -ratio.clamp(max=self.high).detach() * advantages * logprobs
            clipped = (ratio > self.high) & (advantages > 0)
        else:
            clipped = (ratio < 1 - self.low) & (advantages < 0) | (ratio > 1 + self.high) & (advantages > 0)
            within = ratio.clamp(1 - self.low, 1 + self.high)
            losses = -torch.min(ratio * advantages, within * advantages)
        if part.reference is None:
            return losses, clipped, torch.zeros_like(losses)
        gap = part.reference - logprobs
        kl = gap.exp() - gap - 1
        return losses + self.beta * kl, clipped, kl
