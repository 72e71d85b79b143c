"""Micro-batches by tokens: what goes together, and that loss and gradient are those of fixed micro-batches."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.peer import SharingTrainer, StockTrainer, update
from hypothesis import given
from hypothesis import strategies as st
from survive import make_trainer as trainer_of
from test_losses import batch, make  # noqa: F401

from agentkit.recipe import Recipe
from agentkit.records import RecipeError
from agentkit.runs import read_jsonl
from agentkit.training.grpo import train
from agentkit.training.grpo_config import grpo_config
from agentkit.training.micro_batches import packed


def test_parts_by_hand():
    """Two groups with prompts of 10 tokens; a prompt counts once in a part."""
    own, groups = [5, 30, 8, 2, 6, 7], [0, 0, 0, 1, 1, 1]
    assert packed([10] * 6, groups, own, budget=50) == [[1, 2], [0, 5, 4, 3]]  # 48 and 40 tokens
    assert packed([10] * 6, range(6), own, budget=40) == [[1], [2, 5], [4, 0], [3]]  # 40, 35, 31 and 12
    assert packed([10] * 6, groups, own, budget=50, least=3) == [[1, 2], [0, 5], [3, 4]]
    assert packed([10], [0], [100], budget=50) == [[0]], "longer than the budget: alone"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=20),
    st.integers(1, 120),
    st.integers(1, 4),
)
def test_parts_hold_everyone_once_and_no_more_than_the_budget_and_the_largest_is_first(rows, budget, least):
    groups, own = zip(*rows, strict=True)
    prompts = [(7 + g) * bool(n) for g, n in rows]  # rows without an advantage cost nothing
    least = min(least, len(rows))
    parts = packed(prompts, groups, own, budget, least)
    assert sorted(i for part in parts for i in part) == list(range(len(rows))) and len(parts) >= least
    tokens = [
        sum(7 + g for g in {groups[i] for i in part if own[i]}) + sum(own[i] for i in part) for part in parts
    ]
    assert tokens == sorted(tokens, reverse=True)
    assert all(len(part) == 1 or n <= budget for part, n in zip(parts, tokens, strict=True))
    assert not max(own) or max(own) + 7 <= tokens[0]


@pytest.mark.parametrize(
    ("loss", "beta"), [("grpo", 0.0), ("grpo", 0.04), ("dapo", 0.04), ("dr_grpo", 0.0), ("cispo", 0.0)]
)
@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
def test_loss_and_gradient_are_those_of_fixed_micro_batches(loss, beta, share, batch, tokenizer, tmp_path):  # noqa: F811
    """Against stock TRL with micro-batches of four rows; a group without advantage among them."""
    changes = {"loss_type": loss, "beta": beta, "clip_epsilon_high": 1.5 if loss == "cispo" else 0.3}
    peer = make(StockTrainer, tokenizer, tmp_path, **changes)
    ours = make(SharingTrainer, tokenizer, tmp_path, micro_batch_tokens=30, **changes)
    ours.share_prefixes(share)
    ours.token_budget = 30
    given = batch | {"advantages": batch["advantages"] * torch.tensor([1.0] * 4 + [0.0] * 4)}
    passes, compute = [], ours._compute_loss
    ours._compute_loss = lambda *args: passes.append(len(args[1]["advantages"])) or compute(*args)
    _, value, gradient = update(ours, given)
    _, expected, reference = update(peer, given, parts=2)
    assert sum(passes) == 8 and len(passes) > 1
    assert value == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert (gradient - reference).norm() / reference.norm() < 1e-5


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_metrics_are_those_of_the_whole_optimiser_step(level, batch, tokenizer, tmp_path):  # noqa: F811
    """Parts of unlike length weigh by their tokens, or rows: as stock TRL on all rows at once."""
    changes = {"beta": 0.04, "importance_level": level, "clip_epsilon": 0.05}
    peer, ours = (make(kind, tokenizer, tmp_path, **changes) for kind in (StockTrainer, SharingTrainer))
    ours.token_budget = 30
    noise = torch.randn(batch["completion_ids"].shape, generator=torch.Generator().manual_seed(3))
    names = ("kl", "entropy", "clip_ratio/low_mean", "clip_ratio/region_mean", "clip_ratio/high_max")
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    own = ours._batch_logprobs(batch, mask)
    given = batch | {"old_per_token_logps": own + 0.2 * noise, "ref_per_token_logps": own + 0.5 * noise}
    update(ours, given), update(peer, given)
    for name in names:
        (found,), (expected,) = ours._metrics["train"][name], peer._metrics["train"][name]
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    assert ours._metrics["train"]["clip_ratio/region_mean"][0] > 0


def test_the_entropy_is_that_of_what_is_scored_where_groups_are_dead(batch, tokenizer, tmp_path):  # noqa: F811
    """Dead rows cost nothing and share a part with live ones: they have no weight in the mean."""
    peer, ours = (make(kind, tokenizer, tmp_path, beta=0.0) for kind in (StockTrainer, SharingTrainer))
    ours.token_budget = 30
    live = torch.arange(len(batch["advantages"])) % 4 != 0
    alive = {name: x[live] if x.ndim else x for name, x in batch.items()}
    update(ours, batch | {"advantages": batch["advantages"] * live}), update(peer, alive)
    (found,), (expected,) = (trainer._metrics["train"]["entropy"] for trainer in (ours, peer))
    assert found == pytest.approx(expected, rel=1e-5)


def test_means_over_tokens_are_those_of_the_whole_optimiser_step(batch, tokenizer, tmp_path):  # noqa: F811
    """bnpo divides by the tokens of a micro-batch, and so depends on it in TRL: here that is the step."""
    peer, ours = (
        make(kind, tokenizer, tmp_path, loss_type="bnpo") for kind in (StockTrainer, SharingTrainer)
    )
    ours.token_budget = 30
    (_, value, gradient), (_, expected, reference) = update(ours, batch), update(peer, batch)
    assert value == pytest.approx(expected, rel=1e-5)
    assert (gradient - reference).norm() / reference.norm() < 1e-5


def test_log_probabilities_of_a_batch_do_not_depend_on_the_budget(batch, tokenizer, tmp_path):  # noqa: F811
    ours, found = make(SharingTrainer, tokenizer, tmp_path), []
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    for budget in (0, 25, 60):
        ours.token_budget = budget
        found.append(ours._batch_logprobs(batch, mask))
    assert torch.allclose(found[0], found[1], atol=1e-5) and torch.allclose(found[0], found[2], atol=1e-5)


def test_lessons_count_in_the_budget_also_where_nothing_else_is_computed(batch, tokenizer, tmp_path):  # noqa: F811
    ours = make(SharingTrainer, tokenizer, tmp_path, beta=0.0)
    ours.token_budget, ours.lesson_weight = 30, 1.0
    lessons = torch.zeros(8, 20, dtype=torch.int64)
    lessons[::2] = 1
    dead = batch | {"advantages": batch["advantages"] * 0, "lesson_mask": lessons}
    assert sorted(int(lessons[part].sum()) for part in ours._parts(dead)) == [20, 20, 20, 20]


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_training_by_tokens_is_one_with_fixed_micro_batches(tmp_path, minibatches):
    """The same rollouts, steps and weights; the number of optimiser steps a batch is split into stays."""
    rows, weights = [], []
    sizes = {"steps": 4, "prompts_per_step": 4, "minibatches": minibatches, "val_tasks": 1, "val_every": 4}
    for name, change in (("fixed", {"micro_batch": 4}), ("tokens", {"micro_batch_tokens": 150})):
        trainer = trainer_of(tmp_path / name, **sizes, **change)
        train(trainer)
        rows.append(read_jsonl(tmp_path / name / "train" / "metrics.jsonl")[1:])
        weights.append(torch.cat([p.flatten() for n, p in trainer.model.named_parameters() if "lora_B" in n]))
    for fixed, tokens in zip(*rows, strict=True):
        assert ("rollout_seconds" in fixed) == ("rollout_seconds" in tokens)
        for key in ("loss", "grad_norm", "reward_mean"):
            assert math.isclose(fixed.get(key, 0), tokens.get(key, 0), rel_tol=2e-3, abs_tol=2e-5), key
    assert torch.allclose(*weights, atol=1e-4)


def test_trl_s_micro_batch_is_an_optimiser_step_where_tokens_count(tmp_path):
    recipe = {
        "prompts_per_step": 3,
        "group_size": 4,
        "minibatches": 2,
        "micro_batch_tokens": 9000,
        "micro_batch": 5,
    }
    args = grpo_config(Recipe.from_mapping(recipe), tmp_path)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (6, 1)
    assert args.steps_per_generation == 2
    with pytest.raises(RecipeError, match="micro_batch_tokens 100 is less than max_tokens 200"):
        Recipe.from_mapping({"micro_batch_tokens": 100, "max_tokens": 200})
    with pytest.raises(RecipeError, match="minibatches 5 must divide the 12"):
        Recipe.from_mapping(recipe | {"minibatches": 5})
