"""The memory plan: counted on tensors without content, and checked against what a real update needs."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from survive import make_trainer, tiny_agent
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Qwen3Config

from agentkit import nano
from agentkit.cli import main
from agentkit.policies.loading import told
from agentkit.policies.transformers import TransformersPolicy
from agentkit.records import RecipeError
from agentkit.runs.recipe import Recipe
from agentkit.training import memory, prefix

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}  # fmt: skip


@pytest.mark.parametrize("kind", [Qwen3Config, LlamaConfig])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [500, 8000])
@pytest.mark.parametrize(("rows", "tokens", "scored"), [(1, 128, 100), (4, 64, 20), (2, 256, 250)])
def test_what_is_counted_without_content_is_what_real_tensors_take(
    kind, dtype, vocabulary, rows, tokens, scored
):
    config = kind(vocab_size=vocabulary, **SHAPE)
    counted = memory.update_peak(config, Recipe(), dtype, rows, tokens, scored)
    taken = memory.update_peak(config, Recipe(), dtype, rows, tokens, scored, real=True)
    assert counted == pytest.approx(taken, rel=0.15)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_plan_is_what_the_trainers_own_update_takes(tmp_path, precision):
    """One real micro-batch, forward and backward, counted in the trainer."""
    dtype = getattr(torch, precision)
    model, tokenizer = tiny_agent()
    changes = {"share_prefixes": False, "max_turn_tokens": 64, "max_tokens": 64, "max_turns": 1, "beta": 0.0}
    trainer = make_trainer(
        tmp_path / "run", agent=(model.to(dtype), tokenizer), steps=1, precision=precision, **changes
    )
    taken, loss = [], trainer._compute_loss

    def counted(model, inputs):
        with memory.Alive([*model.parameters(), *model.buffers()]) as alive:
            value = loss(model, inputs)
            value.backward()
        rows, own = inputs["completion_ids"].shape
        taken.append((alive.peak, rows, own + inputs["prompt_ids"].shape[1], own))
        return value.detach().requires_grad_()

    trainer._compute_loss = counted
    trainer.train()
    peak, rows, tokens, own = taken[0]
    planned = memory.update_peak(model.config, trainer.recipe, dtype, rows, tokens, own)
    assert planned == pytest.approx(peak, rel=0.15)


def test_the_output_layer_does_not_grow_with_the_vocabulary_times_the_tokens():
    """Logits exist a chunk at a time: 4,096 scored tokens of a vocabulary of 32,000 would be 0.5 GB at once."""
    config = Qwen3Config(vocab_size=32_000, **SHAPE)
    short, long = (memory.update_peak(config, Recipe(), torch.bfloat16, 1, n + 8, n) for n in (1024, 4096))
    assert long - short < 0.1e9


def test_a_recipe_is_told_what_fits_and_what_to_change():
    config = {"weights": 8e9, "update_fixed": 9e9, "update_row": 3e9, "rollouts": 30e9, "engine_share": 0.0}
    made = memory.MemoryPlan(**config, micro_batch=8)
    assert [made.advice(size) for size in memory.SIZES] == [
        "lower max_tokens or max_batch", "fits", "fits", "fits"
    ]  # fmt: skip
    made = memory.MemoryPlan(**(config | {"rollouts": 10e9}), micro_batch=8)
    assert made.advice(24) == "micro_batch: 4"
    made = memory.MemoryPlan(**(config | {"update_fixed": 50e9}), micro_batch=8)
    assert made.advice(48).startswith("a smaller model")


def test_the_command_plans_the_small_recipe_and_names_a_model_it_cannot_read(capsys):
    assert main(["cost", "params/nano.yaml", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["memory"]
    assert [row["memory"] for row in rows] == ["24 GB", "48 GB", "80 GB", "141 GB"]
    assert all(row["set"] == "fits" and 0 < row["needed, GB"] < 24 for row in rows)
    with pytest.raises(
        RecipeError, match="configuration of 'no/such' is not on this machine.*hf download no/such"
    ):
        memory.plan(Recipe(model="no/such"))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("", ""),
        ("It has no config.json.", "It has no config.json"),
        ("It is gated.\nAsk at https://a.b/c.", "It is gated. Ask at https://a.b/c"),
        (f"We are offline.\nSee https://{'a' * 190}", "We are offline"),
        (f"{'long ' * 37}lines end at https://{'a' * 60}", f"{'long ' * 37}lines end at …"),
    ],
)
def test_what_the_hub_says_ends_with_a_line_or_a_word(error, says):
    assert told(OSError(error)) == says


@pytest.mark.parametrize("way", ["shared", "plain", "capped"])
def test_the_update_s_peak_does_not_grow_with_the_vocabulary_times_the_tokens(way):
    """Measured on real tensors: 2,048 scored tokens of 32,000 words would be 0.26 GB of logits at once."""
    kind, extra = (Gemma2Config, {"sliding_window": 64}) if way == "capped" else (Qwen3Config, {})
    model = AutoModelForCausalLM.from_config(kind(vocab_size=32_000, **SHAPE, **extra))
    score = prefix.shared_logprobs
    if way == "shared":
        assert prefix.prepare(model) is None
    else:
        assert prefix.splits(model)
        score = partial(prefix.plain_logprobs, split=True)
    peaks = []
    for tokens in (512, 2048):
        ids = torch.randint(0, 32_000, (2, tokens + 8))
        everywhere = torch.ones_like(ids)
        with memory.Alive([*model.parameters()]) as alive:
            logprobs, _ = score(model, ids, everywhere, everywhere[:, 8:].bool(), 1.0)
            logprobs.sum().backward()
        peaks.append(alive.peak)
        model.zero_grad(set_to_none=True)
        del logprobs
    assert peaks[1] - peaks[0] < 2 * 1536 * 32_000 * 4 / 2, "half of what the logits alone would take"


def test_a_plan_by_tokens_counts_trajectories_that_fit_them_and_advises_tokens():
    config = Qwen3Config(vocab_size=500, **SHAPE)
    sizes = {"max_tokens": 976, "max_turn_tokens": 200}
    rows = memory.plan(Recipe.from_mapping(sizes | {"micro_batch": 4}), config=config)
    tokens = memory.plan(Recipe.from_mapping(sizes | {"micro_batch_tokens": 8000}), config=config)
    assert (tokens.micro_batch, tokens.row_tokens) == (4, 2000) and rows.row_tokens == 0
    assert tokens.update() == pytest.approx(rows.update())
    values = {"weights": 1e9, "update_fixed": 9e9, "update_row": 3e9, "rollouts": 1e9, "engine_share": 0.0}
    made = memory.MemoryPlan(**values, micro_batch=8, row_tokens=2000)
    assert made.advice(24) == "micro_batch_tokens: 8000" and made.advice(48) == "fits"


def test_keys_and_values_are_bounded_and_a_sleeping_engine_leaves_its_memory_to_the_update():
    values = {"weights": 8e9, "update_fixed": 10e9, "update_row": 1e9, "engine_share": 0.3, "micro_batch": 1}
    own = memory.MemoryPlan(**values, rollouts=9e9, kept=100e9)
    assert own.sampling(80) == pytest.approx(9e9 * memory.MARGIN + 24e9) and own.advice(80) == "fits"
    assert memory.MemoryPlan(**values, rollouts=9e9, kept=1e9).sampling(80) == pytest.approx(11e9)
    asleep, awake = (memory.MemoryPlan(**values, rollouts=0.0, sleeps=sleeps) for sleeps in (True, False))
    assert awake.needed(24) == pytest.approx(11e9 * memory.MARGIN + 7.2e9)
    assert asleep.needed(24) == pytest.approx(8e9 * memory.MARGIN + 7.2e9), "rollouts take the most"


def test_a_plan_leaves_the_model_as_it_is(tokenizer):
    """Preflight plans with the configuration of the model that it samples from afterwards."""
    model = AutoModelForCausalLM.from_pretrained(nano.DATA)
    before = model.config.to_dict(), model.config._attn_implementation
    memory.plan(Recipe.from_mapping({"model": "nano"}), torch.float32, model.config, "cpu")
    assert (model.config.to_dict(), model.config._attn_implementation) == before
    TransformersPolicy(model, tokenizer).close()
