"""The loss against TRL's own, on literals: for each loss type and level, whole and in parts."""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import trl
from trl import GRPOTrainer

from agentkit.training.loss import Batch, Loss

KNOWN = ("1.15", "1.16")  # whose ``_compute_loss`` reads what ``trl_loss`` gives it
LONGEST = 6
CASES = [
    *[Loss(kind, 0.2, 0.28, beta) for kind in ("grpo", "dapo", "dr_grpo", "bnpo") for beta in (0.0, 0.04)],
    *[Loss("cispo", 0.2, 1.05, beta) for beta in (0.0, 0.04)],
    *[Loss(kind, 3e-2, 4e-2, 0.04, level="sequence") for kind in ("grpo", "dr_grpo")],
    Loss("dapo", 0.1, 0.1, 0.1),
]
CASES = [replace(case, longest=LONGEST) for case in CASES]


@pytest.fixture
def batch():
    """Four rows of six tokens: tool replies are masked, one row is left out altogether, one has no advantage."""
    mask = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 0, 0], [1, 1, 1, 1, 0, 0], [0] * 6]).bool()
    wave = torch.arange(24.0).reshape(4, 6)
    old = -1.5 + 0.4 * torch.sin(wave)
    reference = -1.2 + 0.5 * torch.cos(wave)
    advantages = torch.tensor([1.0, -0.5, 0.0, 2.0])[:, None].expand(4, 6)
    ids = torch.zeros(4, 7, dtype=torch.int64)
    return Batch(ids, torch.ones_like(ids), mask, advantages, old, reference)


def moved(batch: Batch) -> torch.Tensor:
    """Log-probabilities after some updates: ratios on both sides of every bound."""
    own = batch.old + 0.5 * torch.sin(3 * torch.arange(24.0).reshape(4, 6))
    return own.requires_grad_()


def trl_loss(loss: Loss, batch: Batch, logprobs: torch.Tensor, parts: int) -> tuple[float, dict[str, float]]:
    """TRL's loss of the batch, in so many equal micro-batches of one optimiser step, and its clip fractions."""
    trainer = object.__new__(GRPOTrainer)  # no model: log-probabilities are given
    alone = {"num_processes": 1, "gather": lambda x: x, "reduce": lambda x, reduction: x, "device": "cpu"}
    accelerator = SimpleNamespace(**alone)
    args = SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=parts)
    vars(trainer).update(
        args=args, accelerator=accelerator, model=SimpleNamespace(training=True), loss_type=loss.kind,
        beta=loss.beta, epsilon_low=loss.low, epsilon_high=loss.high, max_completion_length=LONGEST,
        importance_sampling_level=loss.level, current_gradient_accumulation_steps=parts, use_vllm=False,
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        _entropy_bonus_enabled=False, vllm_importance_sampling_correction=False,
        _metrics={"train": defaultdict(list)},
    )  # fmt: skip
    total = torch.zeros(())
    for rows in torch.arange(4).chunk(parts):
        trainer._get_per_token_logps_and_entropies = lambda *a, r=rows, **k: (
            logprobs[r], torch.zeros_like(logprobs[r]), None,
        )  # fmt: skip
        part = batch[rows]
        total = total + trainer._compute_loss(None, as_trl(part, batch.mask.sum()))
    total.backward()
    return total.item(), {name: values[-1] for name, values in trainer._metrics["train"].items()}


def as_trl(part: Batch, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    given = {"prompt_ids": part.ids[:, :1], "prompt_mask": part.real[:, :1]}
    given |= {"completion_ids": part.ids[:, 1:], "completion_mask": part.real[:, 1:]}
    given |= {"tool_mask": part.mask.long(), "num_items_in_batch": tokens, "advantages": part.advantages}
    return given | {"old_per_token_logps": part.old, "ref_per_token_logps": part.reference}


def our_loss(loss: Loss, batch: Batch, logprobs: torch.Tensor, split: list[torch.Tensor]) -> float:
    """Ours, in passes of any rows."""
    weights = loss.weights(batch.mask, len(batch.ids), int(batch.mask.sum()))
    total = torch.zeros(())
    for rows in split:
        losses, _, _ = loss.of_tokens(logprobs[rows], batch[rows])
        total = total + (losses * weights[rows]).sum()
    total.backward()
    return total.item()


@pytest.mark.skipif(not trl.__version__.startswith(KNOWN), reason="a TRL that the referee does not know")
@pytest.mark.parametrize("loss", CASES, ids=lambda c: f"{c.kind}-{c.level}-{c.beta:g}")
def test_loss_gradient_clipping_and_divergence_are_trls_in_any_parts(loss, batch):
    for parts in (1, 2)[: 1 if loss.kind == "bnpo" else 2]:  # TRL's bnpo is a mean over each micro-batch
        theirs, ours = moved(batch), moved(batch)
        expected, told = trl_loss(loss, batch, theirs, parts)
        found = our_loss(loss, batch, ours, [torch.tensor([0, 1, 2]), torch.tensor([3])])
        assert found == pytest.approx(expected, abs=1e-6) and theirs.grad.abs().sum() > 0.01
        torch.testing.assert_close(ours.grad * batch.mask, theirs.grad, rtol=1e-5, atol=1e-7)
        assert not (ours.grad * ~batch.mask).any(), "what the mask leaves out has no gradient"
        if parts > 1:
            continue
        _, clipped, kl = loss.of_tokens(moved(batch).detach(), batch)
        name = "cispo_clip_ratio" if loss.kind == "cispo" else "clip_ratio/region_mean"
        if loss.level == "token":
            share = (clipped & batch.mask).sum() / batch.mask.sum()
            assert float(share) == pytest.approx(told[name]) and 0 < told[name] < 1
        if loss.beta:
            assert float((kl * batch.mask).sum() / batch.mask.sum()) == pytest.approx(told["kl"])


def test_the_weights_by_hand():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    assert Loss("grpo").weights(mask, 4, 9).tolist() == [[0.125, 0.125, 0], [0.25, 0, 0], [0, 0, 0]]
    for kind in ("dapo", "bnpo", "cispo"):
        assert Loss(kind).weights(mask, 4, 12).sum().item() == pytest.approx(3 / 12)
    assert Loss("dr_grpo", longest=5).weights(mask, 4, 9).sum().item() == pytest.approx(3 / 20)
    assert not Loss("dapo").weights(mask & False, 4, 0).any(), "no token at all: no division by zero"
