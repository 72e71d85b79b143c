"""Loss and gradient equal stock TRL's, with masks, for every loss a recipe can ask for; weights for engine
mismatch by hand.
"""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks import update as bench
from benchmarks.peer import SharingTrainer, StockTrainer, as_batch, logprobs, make_trainer, update
from peft import LoraConfig
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl.trainer.utils import split_tensor_dict

from agentkit.recipe import LOSSES, Recipe, RecipeError
from agentkit.training.grpo_config import grpo_config
from agentkit.training.mismatch import mismatch_weights

GROUP, VOCABULARY = 4, 97


def tiny_model() -> Qwen3ForCausalLM:
    torch.manual_seed(3)
    shape = dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    return Qwen3ForCausalLM(
        Qwen3Config(**shape, num_key_value_heads=2, head_dim=8, pad_token_id=0, eos_token_id=1)
    )


def make(kind, tokenizer, tmp_path, lora=None, beta=0.0, **recipe):
    """A trainer of the kind, its model and adapters the same whatever the kind; batches bring reference
    log-probabilities.
    """
    values = {
        "beta": 0.0,
        "group_size": GROUP,
        "prompts_per_step": 2,
        "micro_batch": GROUP,
        "steps": 1,
        "temperature": 0.7,
        "max_tokens": 16,
    }
    args = grpo_config(Recipe.from_mapping(values | recipe), tmp_path)
    made = make_trainer(kind, tiny_model(), tokenizer, args, lora)
    made.beta = beta
    return made


@pytest.fixture(scope="module")
def batch():
    """Two groups: prompts of two lengths, turns in common, a row that repeats another, tool tokens masked,
    moved policies.
    """
    torch.manual_seed(0)
    draw = lambda n: torch.randint(2, VOCABULARY, (n,)).tolist()  # noqa: E731
    prompts = [row for row in (draw(9), draw(6)) for _ in range(GROUP)]
    first = draw(5)
    completions = [first + draw(n) for n in (4, 7, 2)] + [draw(12)] + [draw(n) for n in (3, 8, 5)]
    completions.append(list(completions[-1]))
    masks = [[int(t % 4 != 2) for t in range(len(row))] for row in completions]
    made = as_batch(prompts, completions, masks, [1.0, -0.5, 0.3, -0.8, 0.7, -1.2, 0.2, 0.2])
    own = made["completion_mask"] * made["tool_mask"]
    for name, spread in (("old_per_token_logps", 0.4), ("ref_per_token_logps", 0.8)):
        made[name] = (torch.randn(own.shape) * spread - 4.5) * own
    return made


def assert_same(ours, peer, batch, parts=1):
    _, loss, gradient = update(ours, batch, parts)
    _, expected, reference = update(peer, batch, parts)
    assert reference.norm() > 1e-4
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert (gradient - reference).norm() / reference.norm() < 1e-5


CASES = [
    *[{"loss_type": loss, "beta": 0.0} for loss in LOSSES if loss != "cispo"],
    *[{"loss_type": loss, "beta": 0.04} for loss in LOSSES if loss != "cispo"],
    {"loss_type": "cispo", "clip_epsilon_high": 1.5, "beta": 0.0},
    {"loss_type": "cispo", "clip_epsilon_high": 1.5, "beta": 0.04},
    {"loss_type": "dapo", "clip_epsilon_high": 0.28, "beta": 0.0},
    {"loss_type": "grpo", "dual_clip": 1.3, "clip_epsilon": 0.2, "beta": 0.0},
    {
        "loss_type": "grpo",
        "importance_level": "sequence",
        "clip_epsilon": 3e-4,
        "clip_epsilon_high": 4e-4,
        "beta": 0.0,
    },
    {"loss_type": "grpo", "importance_level": "sequence", "clip_epsilon": 0.5, "beta": 0.04},
]


@pytest.mark.parametrize("recipe", CASES, ids=lambda r: "-".join(str(v) for v in r.values()))
def test_loss_and_gradient_equal_stock_trl(recipe, batch, tokenizer, tmp_path):
    ours, peer = (make(kind, tokenizer, tmp_path, **recipe) for kind in (SharingTrainer, StockTrainer))
    for option in ("epsilon_high", "beta", "loss_type", "importance_sampling_level"):
        assert getattr(ours, option) == getattr(peer, option)
    given = ("old_per_token_logps",) if not recipe["beta"] else ("old_per_token_logps", "ref_per_token_logps")
    # the old policy near the one that is trained, so that some ratios are clipped and others are not
    own = batch["completion_mask"] * batch["tool_mask"]
    moved = batch | {
        "old_per_token_logps": logprobs(peer, batch) + (batch["old_per_token_logps"] + 4.5) * own
    }
    keep = [name for name in moved if not name.endswith("_logps") or name in given]
    assert_same(ours, peer, {name: moved[name] for name in keep})


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo", "bnpo"])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_with_lora_micro_batches_and_a_group_without_advantage(loss, beta, batch, tokenizer, tmp_path):
    """Without KL the dead group is not computed, and everything is as if it were; with KL it is."""
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    ours, peer = (
        make(kind, tokenizer, tmp_path, lora, loss_type=loss, beta=beta)
        for kind in (SharingTrainer, StockTrainer)
    )
    dead = batch | {"advantages": batch["advantages"] * torch.tensor([1.0] * GROUP + [0.0] * GROUP)}
    seen = []
    count = lambda module, inputs, output: seen.append(output[0].shape[1])  # noqa: E731
    hook = ours.model.get_decoder().register_forward_hook(count)
    assert_same(ours, peer, dead, parts=2)
    hook.remove()
    dead_tokens = 6 + int(batch["completion_mask"][GROUP:].sum())
    assert len(seen) == 2 and (seen[1] <= 6 + 3 if beta == 0 else seen[1] > dead_tokens / 2)
    if beta == 0:
        kept = peer._metrics["train"], ours._metrics["train"]
        assert kept[0]["clip_ratio/region_mean"] == pytest.approx(kept[1]["clip_ratio/region_mean"], abs=1e-6)


def test_the_entropy_metric_leaves_out_what_is_not_computed(batch, tokenizer, tmp_path):
    ours, peer = (make(kind, tokenizer, tmp_path, beta=0.0) for kind in (SharingTrainer, StockTrainer))
    dead = batch | {"advantages": batch["advantages"] * torch.tensor([1.0] * GROUP + [0.0] * GROUP)}
    alive = {name: x[:GROUP] if x.ndim else x for name, x in batch.items()}
    update(ours, dead), update(peer, alive)
    assert ours._metrics["train"]["entropy"][-1] == pytest.approx(
        peer._metrics["train"]["entropy"][-1], rel=1e-5
    )


def test_what_a_micro_batch_has_nothing_of_is_unknown_and_not_its_first_tokens(batch, tokenizer, tmp_path):
    """TRL's log looks past NaN; a first token's entropy, or 0, would stand for the whole micro-batch."""
    ours, peer = (make(kind, tokenizer, tmp_path, beta=0.0) for kind in (SharingTrainer, StockTrainer))
    dead = batch | {"advantages": batch["advantages"] * torch.tensor([1.0] * GROUP + [0.0] * GROUP)}
    alive = {name: x[:GROUP] if x.ndim else x for name, x in batch.items()}
    update(ours, dead, 2), update(peer, alive)
    first, second = ours._metrics["train"]["entropy"][-2:]
    assert first == pytest.approx(peer._metrics["train"]["entropy"][-1], rel=1e-5) and math.isnan(second)
    for clipped, changes in (
        ("clip_ratio/region_mean", {"beta": 0.04}),
        ("cispo_clip_ratio", {"loss_type": "cispo", "clip_epsilon_high": 1.5, "beta": 0.0}),
    ):
        held = make(SharingTrainer, tokenizer, tmp_path, **changes)
        update(held, batch | {"tool_mask": batch["tool_mask"] * 0})
        names = "entropy", clipped, *["kl"] * bool(held.beta)
        assert all(math.isnan(held._metrics["train"][name][-1]) for name in names)


def test_a_batch_that_is_dead_or_masked_altogether_has_zero_gradient(batch, tokenizer, tmp_path):
    ours = make(SharingTrainer, tokenizer, tmp_path, beta=0.0)
    for change in ({"advantages": batch["advantages"] * 0}, {"tool_mask": batch["tool_mask"] * 0}):
        _, loss, gradient = update(ours, batch | change)
        assert loss == 0 and not gradient.any()


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("loss", ["grpo", "cispo", "dapo"])
def test_mismatch_weights_act_as_trl_s_own_for_vllm(loss, mode, batch, tokenizer, tmp_path):
    """Ours folds them into the advantages; TRL multiplies the loss when its vLLM switch is on."""
    recipe = {"loss_type": loss, "beta": 0.04, "clip_epsilon_high": 1.2}
    ours, peer = (make(kind, tokenizer, tmp_path, **recipe) for kind in (SharingTrainer, StockTrainer))
    own = (batch["completion_mask"] * batch["tool_mask"]).bool()
    ours.args.per_device_train_batch_size = 8
    sampled = (logprobs(peer, batch) + 0.5 * torch.sin(torch.arange(own.numel()).reshape(own.shape))) * own
    output = {name: x for name, x in batch.items() if name != "old_per_token_logps"}
    metrics = ours.correct_mismatch(output, sampled, mode, 1.2)
    assert 0 < metrics["mismatch_weight"] < 1.2 and 0 < metrics["effective_samples"] < 1
    weights = mismatch_weights(output["old_per_token_logps"], sampled, own, mode, 1.2)
    peer.use_vllm, peer.vllm_importance_sampling_correction = True, True
    theirs = batch | {
        "old_per_token_logps": output["old_per_token_logps"],
        "importance_sampling_ratio": weights,
    }
    _, loss_value, gradient = update(ours, output)
    _, expected, reference = update(peer, theirs)
    assert loss_value == pytest.approx(expected, rel=1e-5)
    assert (gradient - reference).norm() / reference.norm() < 1e-5


def test_without_correction_the_engine_is_the_old_policy(batch, tokenizer, tmp_path):
    ours = make(SharingTrainer, tokenizer, tmp_path)
    output = dict(batch)
    assert ours.correct_mismatch(output, batch["old_per_token_logps"] - 1, "off", 2.0) == {}
    assert torch.equal(output["old_per_token_logps"], batch["old_per_token_logps"] - 1)
    assert torch.equal(output["advantages"], batch["advantages"])


def test_the_bench_compares_both_on_one_batch(monkeypatch):
    monkeypatch.setattr(bench, "QUICK", {256: 1, 80: 2})
    monkeypatch.setattr(bench, "COMPLETION", 64)
    found = bench.bench_update(quick=True)
    assert found["bench"] == "update" and [case["case"] for case in found["cases"]] == ["p256", "p80"]
    for case in found["cases"]:
        assert case["ratio"]["min"] <= case["ratio"]["median"] <= case["ratio"]["max"]
        assert case["logp_diff"] < 1e-5 and case["grad_diff"] < 1e-5
        assert case["ours"]["min"] > 0 and case["peak_mb"]["peer"] > 0
    full = found["cases"][0]
    assert full["logp_diff_full"] < 1e-5 and full["grad_diff_full"] < 1e-5


LOG2, LOG3 = 0.6931472, 1.0986123


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_truncate", [[0.5, 2.0, 2.0, 1.0], [1.0, 0.5, 1.0, 1.0]]),  # ratios 1/2, 2, 3 and a tool token
        ("token_mask", [[0.5, 2.0, 0.0, 1.0], [1.0, 0.5, 1.0, 1.0]]),
        ("sequence_truncate", [[2.0], [0.5]]),  # 1/2 * 2 * 3 = 3, and 1/2
        ("sequence_mask", [[0.0], [0.5]]),
    ],
)
def test_mismatch_weights_by_hand(mode, expected):
    trained = torch.tensor([[-1 - LOG2, -1.0, -1.0, -5.0], [-2.0, -2.0 - LOG2, -1.0, -9.0]])
    sampled = torch.tensor([[-1.0, -1.0 - LOG2, -1.0 - LOG3, 0.0], [-2.0, -2.0, -1.0, 0.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0]]).bool()
    weights = mismatch_weights(trained, sampled, mask, mode, 2.0 + 1e-5)
    assert torch.allclose(weights, torch.tensor(expected), atol=2e-5)


def test_mismatch_weights_survive_ratios_beyond_float32():
    trained, sampled = torch.tensor([[0.0, -200.0]]), torch.tensor([[-200.0, 0.0]])
    found = mismatch_weights(trained, sampled, torch.ones(1, 2, dtype=torch.bool), "token_truncate", 2.0)
    assert found.tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"loss_type": "ppo"}, "loss_type is 'ppo'; use grpo"),
        ({"importance_level": "turn"}, "use token, sequence"),
        ({"mismatch": "tis"}, "use auto, off, token_truncate"),
        ({"mismatch_cap": 0.5}, "mismatch_cap is 0.5"),
        ({"loss_type": "cispo"}, "clip_epsilon_high, which is 0.2; set it to 1 or more"),
        ({"loss_type": "cispo", "clip_epsilon_high": 5.0, "dual_clip": 9.0}, "leave dual_clip out"),
        ({"dual_clip": 1.2}, "above 1 \\+ the clip range = 1.2"),
        ({"dual_clip": 1.25, "clip_epsilon_high": 0.28}, "dual_clip is 1.25; it must lie above"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(wrong, says):
    with pytest.raises(RecipeError, match=says):
        Recipe.from_mapping(wrong)


def test_micro_batches_keep_groups_whole(batch, tokenizer, tmp_path, monkeypatch):
    ours = make(SharingTrainer, tokenizer, tmp_path, num_iterations=2)
    ours.model.train()
    given = {name: x for name, x in batch.items()}
    asked = []
    monkeypatch.setattr(ours, "_generate_and_score_completions", lambda rows: asked.append(rows) or given)
    expected = split_tensor_dict(given, 2)
    for step in range(4):
        ours._step = step
        part = ours._prepare_inputs(["rows"])
        assert torch.equal(part["completion_ids"], expected[step % 2]["completion_ids"])
        assert torch.equal(part["prompt_ids"], part["prompt_ids"][:1].expand(GROUP, -1))
    assert len(asked) == 1, "both iterations use one batch of rollouts"
