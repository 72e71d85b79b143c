"""Where the policy that sampled is not quite the one that is trained: how far they are apart, and importance
weights that correct it.

An engine with weights or kernels of its own gives other log-probabilities than the trainer. Leaves out how
far the two may differ where their weights are the same (policies/sync_guard.py), and several steps on one
batch, which the ratio of GRPO's own loss corrects.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from agentkit.policies.sync_guard import NOISE, Gap, gap
from agentkit.recipe import Recipe
from agentkit.records import EngineError
from agentkit.rollouts.policy import Policy
from agentkit.training.loss import Batch

# the largest weight and the smallest: as published, and IcePop's
BOUNDS = {"truncate": (2.0, 0.0), "mask": (5.0, 0.5)}
GAP_ROWS = 4  # trajectories on which an engine that needs no correction is compared all the same
Score = Callable[[Batch, Tensor], Tensor]  # a batch, what is asked (B, T) -> log-probabilities (B, T)


class Correction:
    """Corrects batches by the recipe's ``mismatch``: off, or a level and a kind of BOUNDS."""

    def __init__(self, policy: Policy, model: Any, score: Score, recipe: Recipe):
        self._model, self._score, self._mode = model, score, recipe.mismatch
        if self._mode == "auto":
            same = policy.shares_weights and model.dtype == torch.float32
            self._mode = "off" if same else "token_truncate"
        self._rows = recipe.micro_batch  # that are computed without the adapter
        self._before: float | None = None  # what the batch before differed by

    def __call__(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """The batch, whose ``old`` log-probabilities are the engine's, corrected; and metrics.

        The old policy is then the trainer's own. As no weight is negative, an advantage times a weight is the
        weighted loss, and leaves the KL term alone.

        Raises:
            EngineError: the batch was sampled by another policy than the one that is trained.
        """
        sampled = batch.old
        if self._mode == "off":
            found = {"mismatch": self._distance(batch)} | kl_median(batch)
            return batch, found if batch.mask.any() else {}
        trained = self._score(batch, batch.mask)
        weights = mismatch_weights(trained, sampled, batch.mask, self._mode)
        batch = replace(batch, old=trained, advantages=batch.advantages * weights)
        compared = self._compared(sampled, batch)
        if compared is None:
            return batch, {}
        if why := compared.problem(self._model.dtype, before=self._before or math.inf):
            raise EngineError(
                f"in the rollouts of this step {why}: they were sampled by another policy than the one that "
                "is trained, or at another temperature. The run stops before it learns from them"
            )
        self._before = compared.mean
        found = compared.metrics("mismatch") | weight_metrics(weights, batch.mask) | kl_median(batch)
        return batch, found

    def _compared(self, sampled: Tensor, batch: Batch) -> Gap | None:
        """How far engine and trainer are apart, and what the adapter does; without a reference on some rows,
        which are computed once more with the adapter off. None where the loss reads no token of them.
        """
        if batch.reference is None:
            some = _with_tokens(batch, self._rows)
            batch, sampled = batch[some], sampled[some]
            with self._model.disable_adapter():
                batch = replace(batch, reference=self._score(batch, batch.mask))
        if not batch.mask.any():
            return None
        rows = (x.float()[batch.mask].tolist() for x in (sampled, batch.old, batch.reference))
        return gap(*([row] for row in rows), self._before or NOISE[self._model.dtype])

    def _distance(self, batch: Batch) -> float:
        """Mean distance of the engine from the trainer in log-probabilities, on a few rows of the loss."""
        batch = batch[_with_tokens(batch, GAP_ROWS)]
        return float((self._score(batch, batch.mask) - batch.old).abs()[batch.mask].mean())


def _with_tokens(batch: Batch, count: int) -> Tensor:
    """The first rows with tokens in the loss, then others."""
    return batch.mask.any(1).int().argsort(descending=True, stable=True)[:count]


def mismatch_weights(
    trained: Tensor, sampled: Tensor, mask: Tensor, mode: str, bounds: tuple[float, float] | None = None
) -> Tensor:
    """Importance weights (B, T), or (B, 1) for sequences, pi_train_old / pi_rollout, kept in bounds.

    Truncated importance sampling is min(ratio, C) (Yao et al. 2025, "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training"); masking drops what lies beyond the bounds (IcePop). Over a sequence
    the ratio is the product of its tokens', or their geometric mean (as in GSPO, arXiv 2507.18071).
    ``trained`` and ``sampled`` are (B, T) log-probabilities, ``mask`` is true on sampled tokens; ``mode`` is
    a level, and what is done beyond the bounds: token_truncate, geometric_mask and so on; ``bounds`` are the
    largest and the smallest weight, by default those of BOUNDS.
    """
    assert trained.ndim == 2 and trained.shape == sampled.shape == mask.shape and mask.dtype == torch.bool
    level, _, kind = mode.partition("_")
    high, low = bounds or BOUNDS[kind]
    difference = (trained - sampled).where(mask, 0.0)
    if level != "token":
        difference = difference.sum(1, keepdim=True)
    if level == "geometric":
        difference = difference / mask.sum(1, keepdim=True).clamp(min=1)
    ratio = torch.exp(difference)
    if kind == "truncate":
        return ratio.clamp(low, high)
    return ratio.where((ratio >= low) & (ratio <= high), 0.0)


def weight_metrics(weights: Tensor, mask: Tensor) -> dict[str, float]:
    """Mean and effective sample size of weights, (B, T) of tokens or (B, 1) of sequences."""
    used = (weights[mask] if weights.shape == mask.shape else weights[mask.any(1)]).double()
    mean, square = float(used.mean()), float(used.square().mean())
    # Kish's effective sample size over the number: 0 where all are left out
    return {"mismatch_weight": mean, "effective_samples": min(mean**2 / square, 1.0) if square else 0.0}


def kl_median(batch: Batch) -> dict[str, float]:
    """The median over trajectories of their mean k3, nats a token, before the update; {} without a reference.

    Beside the mean over tokens, of which one token in thousands can make the most.
    """
    if batch.reference is None:
        return {}
    gap = (batch.reference - batch.old).float().where(batch.mask, 0.0)
    means = (gap.exp() - gap - 1).sum(1) / batch.mask.sum(1)
    return {"kl_median": float(means.nanmedian())}  # nan of those that the loss leaves out
