"""Weights for another engine: what is written is what is computed. No vLLM needed."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from agentkit.policies.engine_weights import folded
from agentkit.policies.precision import surviving_share
from agentkit.recipe import Recipe
from agentkit.training.adapters import lora, merged

pytestmark = pytest.mark.slow
SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 97}  # fmt: skip
IDS = torch.arange(3, 43)[None] % 97


def tiny(kind=Qwen3ForCausalLM, config=Qwen3Config, **more):
    torch.manual_seed(1)
    model = kind(config(**SIZES, **{"num_key_value_heads": 2, "head_dim": 24} | more)).eval()
    for parameter in model.parameters():  # norms and biases away from one and zero
        torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim == 2 else 1.0)
    return model


def with_lora(model):
    found = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    for name, parameter in found.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return found.eval()


@torch.no_grad()
def logprobs(model):
    return torch.log_softmax(model(IDS).logits.double(), -1)


@pytest.mark.parametrize("kind", ["qwen3_moe", "glm4_moe"])
def test_a_mixture_of_experts_is_adapted_outside_its_mlps_and_all_of_that_is_handed_over(kind):
    experts = {"num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = AutoConfig.for_model(
        kind, **SIZES, **experts, num_key_value_heads=2, head_dim=12, first_k_dense_replace=1
    )
    model = AutoModelForCausalLM.from_config(config)
    plain = {name: x.clone() for name, x in model.state_dict().items()}
    model = get_peft_model(model, lora(Recipe(lora_r=4), model))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model(IDS, labels=IDS).loss.backward()
    trained = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert len(trained) == 2 * 2 * 4 and all(".self_attn." in name for name in trained)
    with merged(model.eval()):
        whole = logprobs(model)
    assert torch.allclose(whole, logprobs(model), atol=1e-5)
    handed = folded(copy.deepcopy(model)).state_dict()
    assert handed.keys() == plain.keys()
    assert {name for name in plain if not torch.equal(handed[name], plain[name])} == {
        f"model.layers.{i}.self_attn.{letter}_proj.weight" for i in range(2) for letter in "qkvo"
    }
    assert surviving_share(model) > 0.99 and torch.allclose(logprobs(folded(model)), whole, atol=1e-5)
