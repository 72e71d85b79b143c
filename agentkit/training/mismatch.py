"""Importance weights where the policy that sampled is not quite the one that is trained.

An engine with weights or kernels of its own gives other log-probabilities than the trainer. Leaves out how
far the two may differ where their weights are the same (policies/sync_guard.py), and several steps on one
batch, which the ratio of GRPO's own loss corrects.
"""

import torch


def mismatch_weights(
    trained: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor, mode: str, high: float, low: float = 0.0
) -> torch.Tensor:
    """Importance weights (B, T), or (B, 1) for sequences, pi_train_old / pi_rollout, kept in bounds.

    Truncated importance sampling is min(ratio, C) (Yao et al. 2025, "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training"); masking drops what lies beyond the bounds (IcePop). Over a sequence
    the ratio is the product of its tokens', or their geometric mean (as in GSPO, arXiv 2507.18071).
    ``trained`` and ``sampled`` are (B, T) log-probabilities, ``mask`` is true on sampled tokens; ``mode`` is
    a level, and what is done beyond the bounds: token_truncate, geometric_mask and so on.
    """
    assert trained.ndim == 2 and trained.shape == sampled.shape == mask.shape and mask.dtype == torch.bool
    level, _, kind = mode.partition("_")
    difference = (trained - sampled).where(mask, 0.0)
    if level != "token":
        difference = difference.sum(1, keepdim=True)
    if level == "geometric":
        difference = difference / mask.sum(1, keepdim=True).clamp(min=1)
    ratio = torch.exp(difference)
    if kind == "truncate":
        return ratio.clamp(low, high)
    return ratio.where((ratio >= low) & (ratio <= high), 0.0)
