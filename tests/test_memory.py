"""The memory plan: counted on tensors without content, and checked against what a real update needs."""

import copy
import json
from dataclasses import replace

import pytest
import torch
import transformers
from survive import make_trainer, tiny_agent
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes

from agentkit import Recipe, nano
from agentkit.cli import main
from agentkit.policies.transformers import TransformersPolicy
from agentkit.records import RecipeError, Trajectory
from agentkit.training import memory, prefix, sft
from agentkit.training.loss import Batch
from agentkit.training.update_timing import update_seconds

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}  # fmt: skip
PROMPT, SIZES = 64, ((1, 256), (4, 512), (8, 128))  # tokens of a prompt; micro-batches and own tokens


@pytest.fixture
def masks_outside(monkeypatch):
    """``causal_lower_right`` works on no tensor that ``Alive`` has seen, so it is made where that looks away."""

    def made(*size):
        with _disable_current_modes():
            return causal_lower_right(*size)

    monkeypatch.setattr(prefix, "causal_lower_right", made)


def own_batch(rows, own, words):
    """What the loss reads of ``rows`` trajectories with one prompt."""
    prompt, completion = torch.randint(1, words, (1, PROMPT)), torch.randint(1, words, (rows, own))
    ids = torch.cat([prompt.repeat(rows, 1), completion], 1)
    mask = torch.zeros(rows, PROMPT + own - 1, dtype=torch.bool)
    mask[:, PROMPT - 1 :] = True
    return Batch(ids, torch.ones_like(ids), mask, mask.float(), torch.zeros(mask.shape))


def own_step_peak(trainer, batch):
    """Bytes at the peak of the trainer's reference, loss, backward pass and optimiser step."""
    trainer.optimizer.state.clear()
    trainer.model.zero_grad(set_to_none=True)
    with memory.Alive([*trainer.model.parameters(), *trainer.model.buffers()]) as alive:
        if trainer.recipe.beta:
            with trainer.model.disable_adapter():
                batch = replace(batch, reference=trainer.logprobs(batch, batch.mask))
        trainer.backward(batch)
        trainer.optimizer.step()
    return alive.peak


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "beta"), [("float32", 0.0), ("bfloat16", 0.05)])
def test_the_plan_is_what_the_trainers_own_update_takes(tmp_path, masks_outside, precision, beta):
    """Three micro-batches, each one pass. Prompts are short: the plan counts each row in full."""
    dtype = getattr(torch, precision)
    model, tokenizer = tiny_agent()
    changes = {"precision": precision, "beta": beta, "steps": 1, "micro_batch": 8}
    trainer = make_trainer(tmp_path / "run", agent=(model.to(dtype), tokenizer), **changes)
    taken, update = {}, trainer.update

    def measured(*given):
        for rows, own in SIZES:
            taken[rows, own] = own_step_peak(trainer, own_batch(rows, own, model.config.vocab_size))
        return update(*given)

    trainer.update = measured
    trainer.train()
    assert trainer.unshared is None
    for (rows, own), peak in taken.items():
        config = copy.deepcopy(model.config)
        planned = memory.update_peak(config, trainer.recipe, dtype, rows, PROMPT + own, own)
        assert planned == pytest.approx(peak, rel=0.15), (rows, own)


@pytest.mark.slow
def test_a_cold_start_takes_no_more_than_the_plan_of_an_update(tmp_path, masks_outside, monkeypatch):
    """Sixteen demonstrations are an optimiser step, and eight of them a pass."""
    model, tokenizer = tiny_agent()
    row = {"prompt_ids": (1,) * PROMPT, "completion_ids": (2,) * 256, "action_mask": (1,) * 256}
    own = {"old_logprobs": (0.0,) * 256, "turns": (), "stop_reason": "answer"}
    shown = [Trajectory("t", "expert", i, 0, **row, **own) for i in range(16)]
    recipe = Recipe(precision="float32", sft_batch=16, lora_r=2)
    step, peaks = sft._Trainer.training_step, []

    def measured(trainer, model, *rest, **named):
        with memory.Alive([*model.parameters(), *model.buffers()]) as alive:
            loss = step(trainer, model, *rest, **named)
        peaks.append(alive.peak)
        return loss

    monkeypatch.setattr(sft._Trainer, "training_step", measured)
    config = copy.deepcopy(model.config)
    planned = memory.update_peak(config, recipe, model.dtype, 8, PROMPT + 256, 256)
    sft.fine_tune(model, tokenizer, shown, recipe, tmp_path / "sft")
    assert len(peaks) == 2 and max(peaks) <= 1.15 * planned, (max(peaks), planned)


@pytest.mark.parametrize("alike", [True, False])
def test_layers_that_repeat_are_counted_from_two_of_them_and_others_are_traced(alike, monkeypatch):
    """A mixture of experts whose first two layers have none is no repetition, whatever its lists say."""
    more = {"num_hidden_layers": 6, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    more |= {"vocab_size": 500, "mlp_only_layers": [] if alike else [0, 1]}
    config = transformers.Qwen3MoeConfig(**SHAPE | more)
    traced, case = [], (Recipe(), torch.bfloat16, 2, 128, 120, "cpu")
    count = memory.update_peak
    counted = lambda c, *rest: traced.append(c.num_hidden_layers) or count(c, *rest)  # noqa: E731
    monkeypatch.setattr(memory, "update_peak", counted)
    found = memory._peak(config, *case)
    assert traced == ([1, 2] if alike else [6])
    assert found == pytest.approx(count(config, *case), rel=0.02)


def test_4_bits_are_counted_as_such_and_weights_that_vllm_shares_once():
    config = transformers.Qwen3Config(vocab_size=8000, max_position_embeddings=4096, **SHAPE)
    values = {"engine": "unsloth", "load_in_4bit": True, "max_tokens": 256, "micro_batch": 2}
    packed = memory.plan(Recipe(**values), config=config)
    half = memory.plan(Recipe(**values | {"load_in_4bit": False}), config=config)
    layers = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128)  # weights of two; embeddings stay in 16 bits
    saved = half.weights - packed.weights, half.engine_fixed - packed.engine_fixed
    assert saved == pytest.approx([layers * (2 - memory.FOUR_BITS)] * 2)
    assert packed.shares and packed.engine_row == 4096 * 2 * 2 * 2 * 16 * 2 and packed.engine_fixed > 0
    alone = replace(packed, shares=False)
    assert alone.needed(24) - packed.needed(24) == pytest.approx(packed.weights * memory.MARGIN)


def test_the_plan_of_a_micro_batch_is_the_peak_of_so_many_rows():
    config, recipe = transformers.Qwen3Config(vocab_size=500, **SHAPE), Recipe(max_tokens=256, micro_batch=4)
    made, case = memory.plan(recipe, config=config), (memory.PROMPT + 256, 256, "cuda")
    for rows in (1, 4):
        peak = memory.update_peak(copy.deepcopy(config), recipe, torch.bfloat16, rows, *case)
        assert made.update(rows) == pytest.approx(peak * memory.MARGIN), rows


def test_a_recipe_is_told_what_fits_and_what_to_change():
    plain = {"weights": 8e9, "update_fixed": 9e9, "update_row": 3e9, "micro_batch": 8, "engine_share": 1.0}
    crowded = memory.MemoryPlan(**(plain | {"update_row": 1e9, "kept": 30e9}))
    advice = [crowded.advice(size) for size in memory.SIZES]
    assert advice == ["lower max_tokens or max_batch", "fits", "fits", "fits"]
    own = plain | {"kept": 1e9}
    assert memory.MemoryPlan(**own).advice(24) == "micro_batch: 4"
    assert memory.MemoryPlan(**(own | {"update_fixed": 50e9})).advice(48).startswith("a smaller model")
    asked = memory.MemoryPlan(**(plain | {"engine_share": 0.3, "engine_fixed": 9e9, "engine_row": 1e9}))
    longest = "vLLM's weights, activations and longest trajectory take 11.0 GB: engine_memory: 0.46"
    assert asked.advice(24) == longest


def test_the_command_plans_the_small_recipe_and_names_a_model_it_cannot_read(capsys):
    assert main(["cost", "params/nano.yaml", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["memory"]
    assert [row["memory"] for row in rows] == ["24 GB", "48 GB", "80 GB", "141 GB"]
    assert all(row["set"] == "fits" and 0 < row["needed, GB"] < 24 for row in rows)
    missing = "configuration of 'no/such' is not on this machine.*hf download no/such"
    with pytest.raises(RecipeError, match=missing):
        memory.plan(Recipe(model="no/such"))


def tiny(kind, words, **changes):
    """A random model of one small layer."""
    shape = SHAPE | {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 4}
    return transformers.AutoModelForCausalLM.from_config(kind(vocab_size=words, **shape, **changes))


def test_a_model_that_scales_its_logits_is_computed_as_it_does_or_not_in_chunks():
    """Cohere's scale is known; an unknown one is found out, although it moves a random model by little."""
    model, ids = tiny(transformers.CohereConfig, 500).bfloat16(), torch.randint(0, 500, (2, 40))
    everywhere = torch.ones_like(ids)
    assert prefix.splits(model) and prefix.prepare(model) is None
    given = model, ids, everywhere, everywhere[:, 8:].bool(), 1.0
    found, expected = (score(*given)[0] for score in (prefix.shared_logprobs, prefix.plain_logprobs))
    assert (found - expected).abs().max() < 1e-2
    model.logit_scale *= 3
    assert not prefix.splits(model)
    assert "its logits are not what its output layer makes of its states" in prefix.prepare(model)


def test_the_timed_update_holds_a_chunk_of_logits_at_a_time(monkeypatch):
    """4 x 256 tokens of 32,000 words, with prefixes that are not shared, as in training."""
    monkeypatch.setitem(prefix.CHUNK_ELEMENTS, "cpu", 2**20)
    own = tuple(range(1, 257))
    tokens = own, (1,) * 256, (0.0,) * 256
    rows = [Trajectory("t", "p", i, 0, (i + 1,), *tokens, (), "answer") for i in range(4)]
    model = tiny(transformers.Gemma2Config, 32_000)
    with memory.Alive([*model.parameters(), *model.buffers()]) as alive:
        update_seconds(model, rows, Recipe(micro_batch=4, beta=0.05))
    assert alive.peak < 4 * 256 * 32_000 * 4 / 2, "half of what the logits alone would take"


def test_a_trajectory_that_ended_before_its_first_token_is_not_timed():
    """Alone in its micro-batch it has nothing to go backward through."""
    made = [((1, 2), (3,) * i, (1,) * i, (0.0,) * i) for i in (0, 4)]
    rows = [Trajectory("t", "p", i, 0, *tokens, (), "time_limit") for i, tokens in enumerate(made)]
    model, recipe = tiny(transformers.Qwen3Config, 500), Recipe(micro_batch=1)
    assert update_seconds(model, rows, recipe) > 0
    assert update_seconds(model, rows[:1], recipe) is None


def test_a_model_that_cannot_be_traced_is_named(tmp_path):
    """Llama 4's routers return two tensors, where LoRA expects one."""
    small = SHAPE | {"intermediate_size_mlp": 128, "num_local_experts": 2, "vocab_size": 500}
    transformers.Llama4TextConfig(**small).save_pretrained(tmp_path)
    recipe = Recipe(model=str(tmp_path), engine="vllm")
    says = r"not planned: the model '.*' \(llama4_text\) cannot be traced.*Error"
    with pytest.raises(RecipeError, match=says):
        memory.plan(recipe)


def test_keys_and_values_are_bounded_and_a_sleeping_engine_leaves_its_memory_to_the_update():
    values = {"weights": 8e9, "update_fixed": 10e9, "update_row": 1e9, "engine_share": 0.3, "micro_batch": 1}
    assert memory.MemoryPlan(**values, kept=100e9).sampling(80) == pytest.approx(8.8e9 + 24e9)
    assert memory.MemoryPlan(**values, kept=1e9).sampling(80) == pytest.approx(8.8e9 + 1.1e9)
    asleep, awake = (memory.MemoryPlan(**values, sleeps=sleeps) for sleeps in (True, False))
    assert awake.needed(24) == pytest.approx(11e9 * memory.MARGIN + 7.2e9)
    assert asleep.needed(24) == pytest.approx(8e9 * memory.MARGIN + 7.2e9), "rollouts take the most"


def test_a_plan_leaves_the_model_as_it_is(tokenizer):
    """Preflight plans with the configuration of the model that it samples from afterwards."""
    model = transformers.AutoModelForCausalLM.from_pretrained(nano.DATA)
    before = model.config.to_dict(), model.config._attn_implementation
    memory.plan(Recipe.from_mapping({"model": "nano"}), torch.float32, model.config, "cpu")
    assert (model.config.to_dict(), model.config._attn_implementation) == before
    TransformersPolicy(model, tokenizer).close()
