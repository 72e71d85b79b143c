"""The update of GRPO: TRL's loss on log-probabilities that share prefixes, and nothing computed in vain.

``Update`` goes in front of TRL's GRPOTrainer and keeps its loss. TRL shuffles the sequences of a batch before
it splits it into micro-batches; here they stay in the order sampled, so that a group's prompt is shared
(prefix). Log-probabilities are computed only where the loss reads them. Trajectories without advantage are
not computed where their part of loss and gradient is exactly zero; they still count in every denominator.
Leaves out the loss itself, and what a batch holds (grpo).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from trl.trainer.utils import split_tensor_dict

from agentkit.policies.unsloth import return_logits
from agentkit.training.prefix import plain_logprobs, prepare, shared_logprobs


class Update:
    """Goes in front of GRPOTrainer in the bases of a trainer.

    Attributes:
        unshared: why prefixes are not shared; None where they are.
        lesson_weight: of imitating the lessons that a batch brings (hindsight.lesson_batch); 0 where it
            brings none.
    """

    unshared: str | None = None
    lesson_weight: float = 0.0
    _scored: torch.Tensor | None = None  # (B, T) bool: what ``_only`` says; None asks ``sampled_mask``

    def share_prefixes(self, wanted: bool = True) -> None:
        """Compute shared prefixes once from now on; warns where the model cannot."""
        self.unshared = "it was not asked for"
        if wanted:
            self.unshared = prepare(self.accelerator.unwrap_model(self.model))
        if wanted and self.unshared:
            warnings.warn(
                f"every trajectory is computed in full, prompt included: {self.unshared}", stacklevel=2
            )

    def sampled_mask(self, completion_mask: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T) of the batch just sampled whose log-probabilities matter; all by default."""
        return completion_mask

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """TRL's, without its shuffle of sequences; which tasks come together is random all the same."""
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, parts)
        return self._buffered_inputs[self._step % parts]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """TRL's; Unsloth puts a loss of its own here, on log-probabilities that it computes itself."""
        return self._compute_loss(model, inputs)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's loss, computed only on the tokens that move it.

        The trick: TRL's loss calls back ``_get_per_token_logps_and_entropies``, whose arguments cannot say
        which tokens matter; ``_only`` lays that aside for it. Elsewhere new and old log-probabilities are 0,
        so their ratio is 1, and TRL's own mask and zero advantages take the rest out.
        """
        scored = _loss_mask(inputs)
        if self.beta == 0 and not self._entropy_bonus_enabled and self.top_entropy_quantile == 1:
            has_advantage = inputs["advantages"].reshape(len(scored), -1).any(1, keepdim=True)
            scored = scored & has_advantage  # nothing else would count on the others
        if not scored.any():  # one row must make the graph; the loss takes it times 0
            shortest = inputs["completion_mask"].sum(1).argmin()
            scored[shortest] = inputs["completion_mask"][shortest].bool()
        given = [name for name in ("old_per_token_logps", "ref_per_token_logps") if name in inputs]
        with self._only(scored):
            loss = super()._compute_loss(model, inputs | {name: inputs[name] * scored for name in given})
        return loss + self.lesson_weight * self._lesson_loss(model, inputs) if self.lesson_weight else loss

    def _lesson_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """This micro-batch's part of the lessons' mean negative log-likelihood, nats a token."""
        scored = inputs["lesson_scored"][:, 1:].bool()
        if not scored.any():
            return torch.zeros((), device=scored.device)
        with self.accelerator.autocast():
            logprobs, _ = self._score(model, inputs["lesson_ids"], inputs["lesson_mask"], scored, 1.0)
        return -logprobs.sum() / inputs["lesson_tokens"]

    @contextmanager
    def _only(self, scored: torch.Tensor) -> Iterator[None]:
        """Within, log-probabilities are computed for these tokens (B, T) only."""
        self._scored = scored
        try:
            yield
        finally:
            self._scored = None

    @property
    def _score(self) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
        return plain_logprobs if self.unshared else shared_logprobs

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int,
        batch_size: int | None = None, compute_entropy: bool = False, **unused: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:  # fmt: skip
        """Log-probabilities (B, T) of the last T tokens at the sampling temperature, entropies where asked.

        Where the loss does not look they are 0 and the mean entropy of the other tokens, which leaves TRL's
        mean as it is.
        """
        return_logits()
        completion_mask = attention_mask[:, -logits_to_keep:].bool()
        scored = self.sampled_mask(completion_mask) if self._scored is None else self._scored
        size = batch_size or len(input_ids)
        parts = zip(input_ids.split(size), attention_mask.split(size), scored.split(size), strict=True)
        with self.accelerator.autocast():
            parts = [self._score(model, *part, self.temperature, compute_entropy) for part in parts]
        logprobs = torch.cat([values for values, _ in parts])
        if not compute_entropy:
            return logprobs, None, None
        entropies = torch.cat([values for _, values in parts])
        return logprobs, entropies.where(scored, entropies[scored].mean()), None

    def correct_mismatch(
        self, output: dict[str, Any], sampled: torch.Tensor, mode: str, cap: float
    ) -> dict[str, float]:
        """Say what the old policy was, and weigh tokens where engine and trainer disagree.

        TRL multiplies a token's loss by such a weight for vLLM only. As no weight is negative, multiplying
        its advantage is the same in every loss used here, and leaves the KL term alone.

        Args:
            output: a batch as TRL makes it; its old log-probabilities and advantages are replaced.
            sampled: (B, T) log-probabilities by the engine that sampled.
            mode: "off" takes ``sampled`` as the old policy's; else as in ``mismatch_weights``.
            cap: C.

        Returns:
            Metrics: the mean absolute difference in nats and the mean weight; nothing where the mode is off.
        """
        if mode == "off":
            output["old_per_token_logps"] = sampled
            return {}
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        real = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        mask, size = _loss_mask(output), self.args.per_device_train_batch_size
        with torch.no_grad(), self._only(mask):
            trained, _, _ = self._get_per_token_logps_and_entropies(
                self.model, ids, real, sampled.shape[1], size
            )
        weights = mismatch_weights(trained, sampled, mask, mode, cap)
        advantages = output["advantages"]
        output["old_per_token_logps"] = trained
        output["advantages"] = (advantages if advantages.ndim == 2 else advantages[:, None]) * weights
        if not mask.any():
            return {"mismatch": 0.0, "mismatch_weight": 1.0}
        difference = (trained - sampled).abs()[mask].mean()
        return {"mismatch": float(difference), "mismatch_weight": float(weights.expand_as(mask)[mask].mean())}


def _loss_mask(inputs: dict[str, Any]) -> torch.Tensor:
    """(B, T) bool: the tokens TRL's loss reads."""
    return (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()


def mismatch_weights(
    trained: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor, mode: str, cap: float
) -> torch.Tensor:
    """Importance weights of tokens that another engine sampled, pi_train_old / pi_rollout, kept below a cap.

    Truncated importance sampling is min(ratio, C) (Yao et al. 2025, "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training"); masking drops what lies beyond C. Over a sequence the ratio is the
    product of its tokens'. The modes are those of TRL's ``vllm_importance_sampling_mode``.

    Args:
        trained: (B, T) float log-probabilities by the trainer, before the update.
        sampled: (B, T) by the engine, when sampling.
        mask: (B, T) bool, true on sampled tokens.
        mode: token_truncate, token_mask, sequence_truncate or sequence_mask.
        cap: C, above 0.

    Returns:
        (B, T), or (B, 1) for sequences.

    Raises:
        ValueError: another mode.
    """
    assert trained.ndim == 2 and trained.shape == sampled.shape == mask.shape and mask.dtype == torch.bool
    level, _, kind = mode.partition("_")
    if level not in ("token", "sequence") or kind not in ("truncate", "mask"):
        raise ValueError(
            f"mismatch is {mode!r}; use token_truncate, token_mask, sequence_truncate or sequence_mask"
        )
    difference = (trained - sampled).where(mask, 0.0)
    ratio = torch.exp(difference if level == "token" else difference.sum(1, keepdim=True))
    return ratio.clamp(max=cap) if kind == "truncate" else ratio.where(ratio <= cap, 0.0)
