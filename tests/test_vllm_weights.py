"""Weights for another engine: what is written is what is computed. No vLLM needed."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentkit.policies.engine_weights import folded, save_weights
from agentkit.policies.loading import load_tokenizer
from agentkit.policies.precision import surviving_share
from agentkit.policies.serve import _servable
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


def test_the_text_part_of_a_larger_model_says_its_architecture_and_is_served_by_its_own_names(tmp_path):
    """As Qwen3.5: AutoModelForCausalLM takes the text part, whose configuration names no architecture."""
    small = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4}
    config = AutoConfig.for_model("qwen3_5", text_config=small, vision_config={"depth": 1, "hidden_size": 16})
    model = AutoModelForCausalLM.from_config(config)
    assert model.config.architectures is None and type(model.config) is not type(config)
    names = model.state_dict().keys()
    save_weights(with_lora(model), tmp_path / "written")
    written = AutoConfig.from_pretrained(tmp_path / "written")
    assert written.architectures == [type(model).__name__] == ["Qwen3_5ForCausalLM"]
    assert model.config.architectures is None
    hub = tmp_path / "hub"
    AutoModelForImageTextToText.from_config(config).save_pretrained(hub)
    load_tokenizer("nano").save_pretrained(hub)
    source, _, _ = _servable(str(hub), tmp_path / "served", (), "float32")
    assert source == str(tmp_path / "served")
    assert load_file(tmp_path / "served" / "model.safetensors").keys() == names
    tiny().save_pretrained(tmp_path / "plain")
    assert _servable(str(tmp_path / "plain"), tmp_path / "other", (), "float32")[0] == str(tmp_path / "plain")
