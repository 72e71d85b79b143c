"""The update of GRPO: TRL's loss on log-probabilities that share prefixes, and nothing computed in vain.

``Update`` goes in front of TRL's GRPOTrainer and keeps its loss. TRL shuffles the sequences of a batch before
it splits it into micro-batches; here they stay in the order sampled, so that a group's prompt is shared
(prefix). Log-probabilities are computed only where the loss reads them. Trajectories without advantage are
not computed where their part of loss and gradient is exactly zero; they still count in every denominator.
With a budget of tokens, micro-batches hold as many trajectories as fit (micro_batches), and loss and gradient
are those of fixed ones. Leaves out the loss itself, and what a batch holds (grpo).
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import split_tensor_dict

from agentkit.policies.process_group import gathered
from agentkit.policies.shards import sharded
from agentkit.policies.sync_guard import Gap, gap
from agentkit.policies.unsloth import return_logits
from agentkit.training.micro_batches import packed
from agentkit.training.mismatch import mismatch_weights
from agentkit.training.prefix import PLAIN_ROWS, scorer

GAP_ROWS = 4  # trajectories on which an engine that needs no correction is compared all the same


class Update:
    """Goes in front of GRPOTrainer in the bases of a trainer."""

    unshared: str | None = None  # why prefixes are not shared
    lesson_weight: float = 0.0
    token_budget: int = 0  # of one forward and backward pass; 0: as many trajectories as TRL says
    _sharded = False  # every process must then call the model equally often
    _scored: torch.Tensor | None = None  # (B, T) bool: what ``_only`` says; None asks ``sampled_mask``
    _entropies: torch.Tensor | None = None  # (B, T) of the loss that is being computed

    def share_prefixes(self, wanted: bool = True) -> None:
        """Compute shared prefixes once from now on; warns where the model cannot."""
        model = self.accelerator.unwrap_model(self.model)
        self._sharded = sharded(model)
        self._score, self.unshared = scorer(model, wanted)
        if wanted and self.unshared:
            warnings.warn(
                f"every trajectory is computed in full, prompt included: {self.unshared}", stacklevel=2
            )

    def sampled_mask(self, completion_mask: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T) of the batch just sampled whose log-probabilities matter; all by default."""
        return completion_mask

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """TRL's in training, without its shuffle: which tasks come together is random all the same."""
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, parts)
        return self._buffered_inputs[self._step % parts]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """TRL's; Unsloth puts a loss of its own here, on log-probabilities that it computes itself.

        With a budget of tokens TRL's micro-batch is a whole optimiser step. Each of its parts goes backward
        at once, but for the last, which TRL's caller takes backward: the value is that of all.
        """
        if not self.token_budget:
            return self._compute_loss(model, inputs)
        before = {name: len(values) for name, values in self._metrics["train"].items()}
        *earlier, last = parts = self._parts(inputs)
        done = torch.zeros((), device=inputs["completion_ids"].device)
        with self._unlike_rows():
            for rows in earlier:
                with self.accelerator.no_sync(model):
                    loss = self._part_loss(model, inputs, rows)
                    self.accelerator.backward(loss)
                done += loss.detach()
            loss = self._part_loss(model, inputs, last) + done
        by_sequence = self.importance_sampling_level == "sequence" and inputs["advantages"].ndim == 1
        masks = _loss_mask(inputs), self._loss_tokens(inputs)
        sizes = [(int(masks[0][rows].sum()), len(rows), int(masks[1][rows].sum())) for rows in parts]
        self._join_metrics(before, sizes, by_sequence)
        return loss

    @contextmanager
    def _unlike_rows(self) -> Iterator[None]:
        """Within, processes may gather unlike numbers of rows, filled up with NaN, which TRL looks past."""
        gather, padded = self.accelerator.gather, self.accelerator.pad_across_processes
        self.accelerator.gather = lambda x: gather(padded(x, pad_index=math.nan) if x.ndim else x)
        try:
            yield
        finally:
            del self.accelerator.gather

    def _join_metrics(self, before: dict[str, int], sizes: list[tuple[int, ...]], by_sequence: bool) -> None:
        """What TRL has measured of each part since ``before``, as one figure of the optimiser step.

        TRL takes each over a part's tokens, or its rows where ratio and advantage are a sequence's, the
        entropy over those scored; ``sizes`` has all three.
        """
        world = np.array(gathered(sizes), dtype=float).reshape(-1, len(sizes), 3).sum(0)
        for name, values in self._metrics["train"].items():
            new = values[before.get(name, 0) :]
            if len(new) != len(sizes):
                continue
            by_row = "clip_ratio" in name and by_sequence
            known = ~np.isnan(new)
            weights = world[:, 2 if name == "entropy" else int(by_row)] * known
            end = {"min": np.nanmin, "max": np.nanmax}.get(name.rpartition("_")[2])
            unsaid = "clip_ratio" in name or name == "entropy"  # of a part with nothing to score
            if not np.isfinite(np.asarray(new, float)[world[:, 0] > 0]).all() and not unsaid:
                values[-len(new) :] = [float("nan")]  # a part with tokens diverged
                continue
            mean = np.nan_to_num(new) @ weights / max(weights.sum(), 1.0)
            values[-len(new) :] = [float(end(new) if end and known.any() else mean)]

    def _parts(self, inputs: dict[str, Any]) -> list[torch.Tensor]:
        """Row indices of an optimiser step's parts; as many in every process, since TRL's loss gathers."""
        given = *sequences(inputs), self._loss_tokens(inputs)
        beside = inputs["lesson_mask"].sum(1) if self.lesson_weight else 0
        parts = self._micro_batches(*given, beside=beside)
        return self._micro_batches(*given, least=max(gathered([len(parts)])), beside=beside)

    def _micro_batches(
        self, ids: torch.Tensor, real: torch.Tensor, scored: torch.Tensor, size: int = 1, least: int = 1,
        beside: torch.Tensor | int = 0,
    ) -> list[torch.Tensor]:  # fmt: skip
        """Row indices of what is computed at a time: ``size`` rows, or as many as the token budget holds.

        Of sequences (B, T) and their scored tokens (B, K); rows without any cost nothing but what is computed
        ``beside`` them: (B,) tokens of lessons.
        """
        if not self.token_budget:
            return list(torch.arange(len(ids)).split(size))
        start, any_scored = ids.shape[1] - scored.shape[1], scored.any(1)
        prompts = (real[:, :start].sum(1) * any_scored).tolist()
        own = (real[:, start:].sum(1) * any_scored + beside).tolist()
        groups = list(range(len(ids)))
        if not self.unshared:
            groups = torch.unique(ids[:, :start], dim=0, return_inverse=True)[1].tolist()
        return [torch.tensor(part) for part in packed(prompts, groups, own, self.token_budget, least)]

    def _part_loss(self, model: Any, inputs: dict[str, Any], rows: torch.Tensor) -> torch.Tensor:
        """The part of an optimiser step's loss that is these rows'.

        TRL's losses are means over a micro-batch's rows (grpo, dr_grpo) or tokens (bnpo), or sums over what
        the whole batch has (dapo, cispo).
        """
        whole, count = _loss_mask(inputs), len(inputs["completion_ids"])
        part = {n: x[rows] if torch.is_tensor(x) and x.ndim else x for n, x in inputs.items()}
        weight = {"bnpo": float(whole[rows].sum() / whole.sum().clamp(min=1)), "dapo": 1.0, "cispo": 1.0}.get(
            self.loss_type, len(rows) / count
        )
        return self._compute_loss(model, part, weight)

    def _compute_loss(self, model: Any, inputs: dict[str, Any], weight: float = 1.0) -> torch.Tensor:
        """TRL's loss times ``weight``, and the lessons', computed only on the tokens that move it.

        The trick: TRL's loss calls back ``_get_per_token_logps_and_entropies``, whose arguments cannot say
        which tokens matter; ``_only`` lays that aside for it. Elsewhere new and old log-probabilities are 0,
        so their ratio is 1, and TRL's own mask and zero advantages take the rest out.
        """
        moving = self._loss_tokens(inputs)
        scored = moving.clone()
        if not scored.any():  # one row must make the graph; the loss takes it times 0
            shortest = inputs["completion_mask"].sum(1).argmin()
            scored[shortest, 0] = True  # which the policy wrote
        given = [name for name in ("old_per_token_logps", "ref_per_token_logps") if name in inputs]
        with self._only(scored):
            loss = super()._compute_loss(model, inputs | {name: inputs[name] * scored for name in given})
        self._measure_again(moving, _loss_mask(inputs))
        loss = loss * weight
        return loss + self.lesson_weight * self._lesson_loss(model, inputs) if self.lesson_weight else loss

    def _measure_again(self, moving: torch.Tensor, mask: torch.Tensor) -> None:
        """TRL's entropy over the tokens that were scored for the loss, not all of its mask, (B, T) both; and
        NaN, which TRL's log looks past, where there are none; so for the KL and what was clipped.
        """
        metrics, entropies = self._metrics["train"], self._entropies
        if entropies is None or not metrics["entropy"]:
            return
        sums = torch.stack(
            [(entropies.detach() * moving).sum().float(), moving.sum().float(), mask.sum().float()]
        )
        total, scored, tokens = self.accelerator.reduce(sums, reduction="sum").tolist()
        metrics["entropy"][-1] = total / scored if scored else math.nan
        for name, values in metrics.items() if not tokens else ():
            if name == "kl" or "clip_ratio" in name:
                values[-1] = math.nan
        self._entropies = None

    def _loss_tokens(self, inputs: dict[str, Any]) -> torch.Tensor:
        """(B, T) bool: the tokens that can move the loss."""
        scored = _loss_mask(inputs)
        if self.beta == 0 and not self._entropy_bonus_enabled and self.top_entropy_quantile == 1:
            has_advantage = inputs["advantages"].reshape(len(scored), -1).any(1, keepdim=True)
            scored = scored & has_advantage  # nothing else would count on the others
        return scored

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
        parts = [torch.arange(len(input_ids))]
        if batch_size:  # not a micro-batch already
            parts = self._micro_batches(input_ids, attention_mask, scored, batch_size)
        parts, asked, idle = self._alike(parts, scored) if self._sharded else (parts, scored, [])
        given = ((input_ids[rows], attention_mask[rows], asked[rows]) for rows in [*parts, *idle])
        with self.accelerator.autocast():
            found = [self._score(model, *part, self.temperature, compute_entropy) for part in given]
        found, others = found[: len(parts)], found[len(parts) :]
        back = torch.cat(parts).argsort()
        logprobs = torch.cat([values for values, _ in found])[back]
        if self._sharded:
            logprobs = logprobs * scored + sum(0.0 * values.sum() for values, _ in others)
        if not compute_entropy:
            return logprobs, None, None
        self._entropies = entropies = torch.cat([values for _, values in found])[back]
        return logprobs, entropies.where(scored, entropies[scored].mean()), None

    def _alike(
        self, parts: list[torch.Tensor], scored: torch.Tensor
    ) -> tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
        """Parts that are one forward pass each, what they score (B, K), and passes in vain that make them as
        many in every process: sharded weights are gathered by all at once.

        A part with nothing to score scores its first completion token, which no caller looks at.
        """
        if self.unshared:
            parts = [rows for part in parts for rows in part.split(PLAIN_ROWS)]
        asked = scored.clone()
        idle = [parts[0][:1]] * (max(gathered([len(parts)])) - len(parts))
        for rows in [*parts, *idle]:
            if not asked[rows].any():
                asked[rows[0], 0] = True
        return parts, asked, idle

    def correct_mismatch(
        self, output: dict[str, Any], sampled: torch.Tensor, mode: str, high: float, low: float = 0.0
    ) -> dict[str, float]:
        """Say what the old policy was, and weigh tokens where engine and trainer disagree; returns metrics.

        TRL multiplies a token's loss by such a weight for vLLM only. As no weight is negative, multiplying
        its advantage is the same in every loss used here, and leaves the KL term alone. With ``mode`` off the
        old policy is the engine's ``sampled`` log-probabilities (B, T); else as in ``mismatch_weights``,
        whose bounds are ``high`` and ``low``.
        """
        if mode == "off":
            output["old_per_token_logps"] = sampled
            return {}
        mask = _loss_mask(output)
        trained = output.get("old_per_token_logps")  # TRL's, of the same function, mask and weights
        if trained is None:
            trained = self._batch_logprobs(output, mask)
        weights = mismatch_weights(trained, sampled, mask, mode, high, low)
        advantages = output["advantages"]
        output["old_per_token_logps"] = trained
        output["advantages"] = (advantages if advantages.ndim == 2 else advantages[:, None]) * weights
        if not mask.any():
            return {}
        counted = weights.expand_as(mask)[mask] if weights.shape == mask.shape else weights[mask.any(1)]
        counted = counted.double()
        mean, square = float(counted.mean()), float(counted.square().mean())
        # Kish's effective sample size over the number: 0 where all are left out
        return {"mismatch_weight": mean, "effective_samples": min(mean**2 / square, 1.0) if square else 0.0}

    @torch.no_grad()
    def _batch_logprobs(self, output: dict[str, Any], mask: torch.Tensor) -> torch.Tensor:
        """(B, T) log-probabilities of a batch's completions by the model as it is, where the mask is true."""
        ids, real = sequences(output)
        size = self.args.per_device_train_batch_size
        with self._only(mask):
            return self._get_per_token_logps_and_entropies(self.model, ids, real, mask.shape[1], size)[0]

    def engine_gap(self, output: dict[str, Any], sampled: torch.Tensor) -> float:
        """Mean distance of the engine from the trainer in log-probabilities, on GAP_ROWS rows of the loss."""
        mask = _loss_mask(output)
        mask = mask & (mask.any(1).cumsum(0) <= GAP_ROWS)[:, None]
        own = self._batch_logprobs(output, mask)
        return float((own - sampled).abs()[mask].mean()) if mask.any() else math.nan

    def compare_engine(self, output: dict[str, Any], sampled: torch.Tensor, noise: float) -> Gap | None:
        """How far the engine was from the trainer on a corrected batch, and what the adapter does there.

        Without the reference's log-probabilities (``beta`` 0) the first micro-batch is looked at, which is
        computed once more with the adapter off. None where the loss reads no token of it.
        """
        mask, off = _loss_mask(output), output.get("ref_per_token_logps")
        trained, model = output["old_per_token_logps"], self.accelerator.unwrap_model(self.model)
        if off is None:
            rows = self._micro_batches(*sequences(output), mask, self.args.per_device_train_batch_size)[0]
            first = torch.zeros(len(mask), 1, dtype=torch.bool, device=mask.device)
            first[rows] = True
            mask = mask & first
            with model.disable_adapter():
                off = self._batch_logprobs(output, mask)
        if not mask.any():
            return None
        return gap(*([x.float()[mask].tolist()] for x in (sampled, trained, off)), noise)


def sequences(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts with their completions (B, P + T), and 1 on real tokens."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    return ids, torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)


def kl_median(output: dict[str, Any]) -> dict[str, float]:
    """The median over trajectories of their mean k3, nats a token, before the update; {} without a reference.

    Beside the mean over tokens, of which one token in thousands can make the most.
    """
    mask, reference = _loss_mask(output), output.get("ref_per_token_logps")
    if reference is None or not mask.any():
        return {}
    gap = (reference - output["old_per_token_logps"]).float().where(mask, 0.0)
    means = (gap.exp() - gap - 1).sum(1)[mask.any(1)] / mask.sum(1)[mask.any(1)]
    return {"kl_median": float(means.median())}


def _loss_mask(inputs: dict[str, Any]) -> torch.Tensor:
    """(B, T) bool: the tokens TRL's loss reads."""
    return (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()
