"""bfloat16 on the CPU: an adapter stays an adapter, and a guard sees whether the engine has it.

Small changes are lost where they are folded into bfloat16 weights, and rounding moves log-probabilities by
more than they do, so that a plain difference of engine and trainer cannot tell.
"""

import copy
import warnings

import numpy as np
import pytest
import torch
from engines import FAULTS, adapter_on, move, plant_in_batch, planted_in_sync
from peft import PeftModel, get_peft_model
from survive import make_trainer, tiny_agent
from transformers import AutoConfig, AutoModelForCausalLM

from agentkit.policies import sync_guard as guard
from agentkit.policies.engine_weights import folded
from agentkit.policies.loading import agent_of, load_agent, make_policy
from agentkit.policies.precision import surviving_share
from agentkit.recipe import Recipe
from agentkit.records import EngineError, TrainingError
from agentkit.runs import Run, read_jsonl
from agentkit.training.adapters import lora, merged, save_adapter


def half_agent():
    return load_agent("nano", precision="bfloat16")


def test_a_loaded_agent_does_not_attend_with_cudnn():
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_agent("nano")
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "a setting of the process, with or without a GPU"


# ---- folding
def test_a_small_adapter_is_lost_in_bfloat16_weights_and_a_large_one_is_not():
    model, _ = half_agent()
    assert surviving_share(adapter_on(model, 2e-4)) < 0.3
    assert surviving_share(adapter_on(half_agent()[0], 1e-2)) > 0.99
    with pytest.warns(UserWarning, match=r"bfloat16 weights keeps \d+% of it: train it longer"):
        folded(adapter_on(half_agent()[0], 2e-4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folded(adapter_on(load_agent("nano")[0], 2e-4))  # float32 loses nothing


@pytest.mark.parametrize("name", ["grpo", "sft_more"])
def test_a_trained_agent_keeps_its_adapter_in_half_precision(tmp_path, name):
    run = Run.create(tmp_path / "run")
    model, tokenizer = load_agent("nano")
    trained = adapter_on(model, 2e-4)
    save_adapter(trained, tokenizer, run.file("adapter" if name == "grpo" else name))
    half, _ = agent_of(run, Recipe(precision="bfloat16"), name)
    assert isinstance(half, PeftModel) and half.dtype == torch.bfloat16
    kept = {k: v for k, v in half.named_parameters() if "lora_B" in k}
    assert kept and all(v.dtype == torch.float32 and (v.abs() == 2e-4).all() for v in kept.values())
    single, _ = agent_of(run, Recipe(), name)
    assert not isinstance(single, PeftModel)  # folded in, where that is exact


@torch.no_grad()
def logprobs(model):
    return torch.log_softmax(model(torch.arange(3, 43)[None]).logits.double(), -1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3_moe", "glm4_moe"])
def test_a_mixture_of_experts_is_adapted_outside_its_mlps_and_all_of_that_is_handed_over(kind):
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_dim": 12, "vocab_size": 97, "first_k_dense_replace": 1}
    sizes |= {"num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    plain = {name: x.clone() for name, x in model.state_dict().items()}
    model = move(get_peft_model(model, lora(Recipe(lora_r=4), model)), 0.1).eval()
    assert sum(x.requires_grad for x in model.parameters()) == 2 * 2 * 4, "two matrices, layers, four each"
    with merged(model):
        whole = logprobs(model)
    assert torch.allclose(whole, logprobs(model), atol=1e-5)
    handed = folded(copy.deepcopy(model)).state_dict()
    assert handed.keys() == plain.keys()
    changed = {name for name in plain if not torch.equal(handed[name], plain[name])}
    assert changed == {f"model.layers.{i}.self_attn.{x}_proj.weight" for i in range(2) for x in "qkvo"}
    assert surviving_share(model) > 0.99 and torch.allclose(logprobs(folded(model)), whole, atol=1e-5)


# ---- the guard's arithmetic
def test_the_share_tells_an_engine_with_the_adapter_from_one_without():
    off = [[-1.0, -2.0, -3.0, -0.5]]
    on = [[-1.2, -1.9, -3.3, -0.4]]
    rounded = [[x + e for x, e in zip(on[0], (0.01, -0.01, 0.01, 0.0), strict=True)]]
    assert guard.gap(on, on, off, 0.015).share == pytest.approx(1.0)
    assert guard.gap(off, on, off, 0.015).share == pytest.approx(0.0)
    healthy = guard.gap(rounded, on, off, 0.015)
    assert 0.9 < healthy.share < 1.1 and healthy.problem(torch.bfloat16) is None
    withheld = guard.gap(off, on, off, 0.015)
    assert "shows 0% of what the trainer's adapter does" in withheld.problem(torch.bfloat16, limit=1.0)
    twice = [[a + a - b for a, b in zip(on[0], off[0], strict=True)]]
    assert "shows 200%" in guard.gap(twice, on, off, 0.015).problem(torch.bfloat16, limit=1.0)


def test_a_token_that_a_whole_group_says_is_one_observation():
    """As in a healthy run of the small agent: bfloat16 moves two sure tokens by 3 %, alike in all copies."""
    on = [[-0.018972, -0.018865, -0.000601, -0.000542] + [-1e-6] * 8] * 4
    off = [[-0.019673, -0.019314, -0.000661, -0.000544] + [-1e-6] * 8] * 4
    engine = [[-0.018385, -0.018427, -0.00057, -0.000513] + [-1e-6] * 8] * 4
    assert guard.gap(engine, on, off, 2e-5).share is None
    for off in ([[-1.0, -0.5]] * 6, [[-1.0]]):
        on = [[row[0] - 0.3, *row[1:]] for row in off]
        engine = [[row[0] - 0.1, *row[1:]] for row in off]
        assert guard.gap(engine, on, off, 1e-3).share is None


def test_an_engine_nearer_to_the_adapter_off_is_refused_wherever_a_share_is_told():
    rng = np.random.default_rng(0)
    shares = {}
    for wanted in (0.4, 1.0):
        told = []
        for _ in range(200):
            off = rng.normal(-2, 1, 60)
            on = off + rng.normal(0, 0.04, 60)
            engine = off + wanted * (on - off) + rng.normal(0, 0.035, 60)
            found = guard.gap(*([list(row)] for row in (engine, on, off)), 0.015)
            told += [found] if found.share is not None else []
        shares[wanted] = np.mean([found.problem(torch.bfloat16) is not None for found in told])
        assert len(told) > 50 and max(found.error for found in told) <= guard.SURELY
    assert shares[0.4] > 0.7 and shares[1.0] == 0, shares


def test_an_effect_below_the_noise_tells_nothing():
    off, on = [[-1.0, -2.0, -3.0]], [[-1.001, -2.001, -2.999]]
    engine = [[-1.01, -1.99, -3.01]]
    result = guard.gap(engine, on, off, 0.015)
    assert result.share is None and result.problem(torch.bfloat16) is None
    assert result.metrics("sync_gap") == {"sync_gap": pytest.approx(0.01, abs=2e-3)}


def test_a_sudden_jump_is_a_problem_well_below_the_limit():
    """As with a prefix cache of old weights: 0.02 nats after batches of 0.002 is no rounding."""
    found = guard.Gap(0.02, 1.6, 400)
    assert found.problem(torch.bfloat16) is None and found.problem(torch.bfloat16, before=0.01) is None
    assert "the limit is 0.015" in found.problem(torch.bfloat16, before=0.002)
    assert found.problem(torch.bfloat16, limit=0.05, before=0.002) is None  # asked for


# ---- a training in half precision
def half_trainer(path, **changes):
    model, tokenizer = tiny_agent()
    agent = (model.to(torch.bfloat16), tokenizer)
    return make_trainer(path, agent=agent, precision="bfloat16", **changes)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_first_step_is_on_policy(tmp_path, level):
    """The trainer's own log-probabilities are the old policy's: the sampler's rounding clips nothing."""
    changes = {"importance_level": level, "clip_epsilon": 3e-4 if level == "sequence" else 0.2}
    trainer = half_trainer(tmp_path / "run", steps=2, **changes)
    trainer.train()
    rows = read_jsonl(tmp_path / "run" / "train" / "metrics.jsonl")
    assert [row["clip_fraction"] for row in rows[1:]] == [0.0, 0.0]
    assert 0.99 < rows[1]["effective_samples"] <= 1.0 and rows[1]["mismatch"] < 0.05


@pytest.mark.parametrize(
    "fault", ["withheld", *(pytest.param(f, marks=pytest.mark.slow) for f in FAULTS[1:])]
)
def test_rollouts_of_another_policy_stop_the_run(tmp_path, fault):
    """On every engine: the batch itself is compared, with thousands of tokens instead of a few probes."""
    changes = {"beta": 0.0 if fault == "withheld" else 0.02, "precision": "bfloat16", "max_turn_tokens": 64}
    trainer = make_trainer(tmp_path / "run", agent=half_agent(), steps=2, max_tokens=128, **changes)
    move(trainer.model, 0.03)
    plant_in_batch(trainer, fault)
    with pytest.raises((EngineError, TrainingError), match="rollouts of this step .*(shows|differ)"):
        trainer.train()


def test_a_healthy_training_in_half_precision_is_not_stopped(tmp_path):
    trainer = half_trainer(tmp_path / "run", steps=10, learning_rate=0.1)
    trainer.train()
    rows = read_jsonl(tmp_path / "run" / "train" / "metrics.jsonl")
    shares = [row["mismatch_share"] for row in rows if "mismatch_share" in row]
    assert rows[-1]["step"] == 10 and shares and all(0.5 < share < 1.5 for share in shares)


# ---- vLLM: what an engine with weights of its own gets wrong; last: trainers must not meet its process group
@pytest.fixture(scope="module")
def served():
    pytest.importorskip("vllm", reason="make setup-test installs vLLM where torch is its CPU build")
    model, tokenizer = half_agent()
    model = adapter_on(model, 0.03)
    recipe = Recipe.from_mapping({"engine": "vllm", "precision": "bfloat16", "temperature": 1.0})
    with make_policy(model, tokenizer, "grpo", recipe) as policy:
        yield policy, model


@pytest.mark.slow
def test_an_engine_in_half_precision_is_handed_the_adapter_and_no_healthy_one_is_stopped(served):
    policy, model = served
    assert policy._lora
    for number, size in enumerate([0.0, 2e-4, 1e-3, 3e-3, 1e-2, 2e-2, 3e-2, 4e-2, 5e-2, 3e-2]):
        result = guard.sync(policy, move(model, size, number), 1.0)
        assert (result.share is not None) == (size >= 1e-2) or 3e-3 <= size <= 1e-2, (size, result)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_what_an_engine_gets_wrong_is_caught(served, fault):
    policy, model = served
    stops = pytest.raises(EngineError, match="engine (shows|and trainer differ)")
    with planted_in_sync(policy, model, fault), stops:
        guard.sync(policy, model, 1.0)
    assert guard.sync(policy, model, 1.0).share == pytest.approx(1.0, abs=0.3)
