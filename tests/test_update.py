"""The update: what is computed of a batch, in which passes, and that passes change nothing."""

import math
from dataclasses import replace

import pytest
import torch
from survive import make_trainer

from agentkit.policies.loading import make_policy
from agentkit.records import EngineError, StopReason, Trajectory
from agentkit.training.loss import Batch
from agentkit.training.mismatch import Correction, mismatch_weights

GROUP = 4


@pytest.fixture(scope="module")
def trajectories():
    """Two groups of prompts of two lengths, turns in common, a row that repeats another, and tool tokens."""
    torch.manual_seed(0)
    draw = lambda n: torch.randint(5, 900, (n,)).tolist()  # noqa: E731
    prompts = [tuple(row) for row in (draw(9), draw(6)) for _ in range(GROUP)]
    first = draw(5)
    completions = [first + draw(n) for n in (4, 7, 2)] + [draw(12)] + [draw(n) for n in (3, 8, 5)]
    completions.append(completions[-1])
    found = []
    for i, (prompt, ids) in enumerate(zip(prompts, completions, strict=True)):
        mask = tuple(int(t % 4 != 2) for t in range(len(ids)))
        old = tuple(-7.0 * m + 0.3 * math.sin(i + t) * m for t, m in enumerate(mask))
        tokens = prompt, tuple(ids), mask, old
        found.append(Trajectory(f"t{i // GROUP}", "p", i % GROUP, 0, *tokens, (), StopReason.ANSWER))
    return found


def batch_of(trajectories, gains=(1.0, -0.5, 0.3, -0.8, 0.7, -1.2, 0.2, 0.2)):
    return Batch.of(trajectories, [t.action_mask for t in trajectories], torch.tensor(gains), "cpu")


def trainer_of(path, **changes):
    made = make_trainer(path, **{"micro_batch": GROUP} | changes)
    generator = torch.Generator().manual_seed(1)
    for parameter in made.trained:
        parameter.data.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return made


def gradient(trainer, batch):
    """The sums of a batch's passes, and its flat gradient."""
    trainer.model.zero_grad()
    sums = trainer.backward(batch)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainer.trained]
    return sums, torch.cat([grad.flatten() for grad in grads])


def test_a_batch_holds_prompts_and_completions_as_sampled(trajectories):
    batch = batch_of(trajectories)
    for i, t in enumerate(trajectories):
        ids, start = [*t.prompt_ids, *t.completion_ids], len(t.prompt_ids)
        assert batch.ids[i, : len(ids)].tolist() == ids and int(batch.real[i].sum()) == len(ids)
        own = slice(start - 1, len(ids) - 1)  # position j stands for token j + 1
        assert batch.mask[i, own].int().tolist() == list(t.action_mask)
        assert batch.old[i, own].tolist() == pytest.approx(t.old_logprobs)
        assert int(batch.mask[i].sum()) == sum(t.action_mask), "no token of a prompt, none of the padding"
    of_turns = torch.arange(12.0).expand(8, 12)
    spread = Batch.of(trajectories, [t.action_mask for t in trajectories], of_turns, "cpu").advantages
    assert spread[0, 8 : 8 + 9].tolist() == list(range(9)) and spread[0, :8].sum() == 0
    empty = replace(trajectories[0], prompt_ids=(), completion_ids=(), action_mask=(), old_logprobs=())
    assert not batch_of([empty, *trajectories[1:]]).real[0].any(), "one that never began"


@pytest.mark.parametrize(("kind", "beta"), [("grpo", 0.04), ("dapo", 0.0), ("dr_grpo", 0.04), ("cispo", 0.0)])
def test_passes_change_neither_loss_nor_gradient_nor_metrics(kind, beta, trajectories, tmp_path):
    """Four rows at a time, one at a time, plainly in full: one sum."""
    changes = {"loss_type": kind, "beta": beta, "clip_epsilon_high": 1.5 if kind == "cispo" else 0.3}
    batch, found = batch_of(trajectories), []
    for number, settings in enumerate(({}, {"micro_batch": 1}, {"share_prefixes": False})):
        trainer = trainer_of(tmp_path / str(number), **changes | settings)
        given = batch
        if beta:
            with trainer.model.disable_adapter():
                given = replace(batch, reference=trainer.logprobs(batch, batch.mask))
        found.append(gradient(trainer, given))
    (sums, expected), *others = found
    assert expected.norm() > 1e-4 and (sums["kl"] > 0) is bool(beta)
    for other, grad in others:
        assert (grad - expected).norm() < 1e-4 * expected.norm()
        assert other == pytest.approx(sums, rel=1e-4, abs=1e-6)


def test_what_teaches_nothing_is_not_computed_and_counts_in_every_denominator(trajectories, tmp_path):
    """Without a KL term a group without advantage costs nothing; with it, its tokens are scored."""
    dead = batch_of(trajectories, (1.0, -0.5, 0.3, -0.8, 0.0, 0.0, 0.0, 0.0))
    seen = []
    for beta in (0.0, 0.04):
        trainer = trainer_of(tmp_path / str(beta), beta=beta, loss_type="dapo")
        given = replace(dead, reference=dead.old) if beta else dead
        decoder = trainer.model.get_decoder()
        hook = decoder.register_forward_hook(lambda module, inputs, output: seen.append(output[0].shape[1]))
        sums, grad = gradient(trainer, given)
        hook.remove()
        assert sums["scored"] == int(dead.mask[: GROUP if not beta else None].sum())
        assert sums["tokens"] == int(dead.mask.sum())
    assert len(seen) == 1 + 2, "one pass of two was left out"


def test_observation_targets_change_neither_loss_nor_gradient(trajectories, tmp_path):
    """Targets, not inputs: what stands for tool tokens in the loss is replaced, the context stays."""
    trainer, batch = trainer_of(tmp_path / "run"), batch_of(trajectories)
    batch, outside = replace(batch, reference=batch.old), ~batch.mask
    gains, old = batch.advantages + 5.0 * outside, batch.old - 3.0 * outside
    changed = replace(batch, old=old, advantages=gains, reference=batch.reference - 2.0 * outside)
    (sums, expected), (other, grad) = gradient(trainer, batch), gradient(trainer, changed)
    assert sums == other and torch.equal(grad, expected)
    unmasked = replace(batch, mask=batch.real[:, 1:].bool())
    assert not torch.allclose(gradient(trainer, unmasked)[1], expected, atol=1e-6)


LOG2, LOG3 = 0.6931472, 1.0986123


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_truncate", [[0.5, 2.0, 2.0, 1.0], [1.0, 0.5, 1.0, 1.0]]),  # ratios 1/2, 2, 3 and a tool token
        ("token_mask", [[0.5, 2.0, 0.0, 1.0], [1.0, 0.5, 1.0, 1.0]]),
        ("sequence_truncate", [[2.0], [0.5]]),  # 1/2 * 2 * 3 = 3, and 1/2
        ("sequence_mask", [[0.0], [0.5]]),
        ("geometric_truncate", [[3 ** (1 / 3)], [0.5 ** (1 / 3)]]),
    ],
)
def test_mismatch_weights_by_hand(mode, expected):
    trained = torch.tensor([[-1 - LOG2, -1.0, -1.0, -5.0], [-2.0, -2.0 - LOG2, -1.0, -9.0]])
    sampled = torch.tensor([[-1.0, -1.0 - LOG2, -1.0 - LOG3, 0.0], [-2.0, -2.0, -1.0, 0.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0]]).bool()
    weights = mismatch_weights(trained, sampled, mask, mode, (2.0 + 1e-5, 0.0))
    assert torch.allclose(weights, torch.tensor(expected), atol=2e-5)
    icepop = mismatch_weights(trained, sampled, mask, "token_mask", (2.0 + 1e-5, 0.75))
    assert torch.allclose(icepop[0], torch.tensor([0.0, 2.0, 0.0, 1.0]), atol=2e-5), "both bounds"


def test_mismatch_weights_survive_ratios_beyond_float32():
    trained, sampled = torch.tensor([[0.0, -200.0]]), torch.tensor([[-200.0, 0.0]])
    found = mismatch_weights(trained, sampled, torch.ones(1, 2, dtype=torch.bool), "token_truncate")
    assert found.tolist() == [[2.0, 0.0]]


def test_an_engine_that_is_off_is_weighed_on_sampled_tokens(trajectories, tmp_path):
    """The old policy is then the trainer's own; an engine that saw a third has each weight capped at 2."""
    trainer = trainer_of(tmp_path / "run", mismatch="token_truncate")
    batch = batch_of(trajectories)
    trained = trainer.logprobs(batch, batch.mask)
    with make_policy(trainer.model, trainer.tokenizer, "grpo", trainer.recipe) as policy:
        correct = Correction(policy, trainer.model, trainer.logprobs, trainer.recipe)
    corrected, told = correct(replace(batch, old=trained))
    assert told["mismatch_weight"] == told["effective_samples"] == 1.0 and told["mismatch"] == 0.0
    assert torch.equal(corrected.old, trained) and torch.equal(corrected.advantages, batch.advantages)
    with pytest.raises(EngineError, match="rollouts of this step engine and trainer differ by 1.1 nats"):
        correct(replace(batch, old=trained - LOG3))
    weights = mismatch_weights(trained, trained - LOG3, batch.mask, "token_truncate")
    assert (weights[batch.mask] == 2.0).all() and (weights[~batch.mask] == 1.0).all()
    assert (mismatch_weights(trained, trained - 2 * LOG3, batch.mask, "token_mask")[batch.mask] == 0).all()
