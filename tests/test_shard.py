"""Base weights spread over two processes: the update is that of whole ones, and checkpoints go on in either."""

import pytest
import torch
from safetensors.torch import load_file
from survive import tasks, tiny_agent
from test_launch import folder, prepared  # noqa: F401  (a fixture)

from agentkit import Recipe, rollout
from agentkit.policies.shards import shard, sharded
from agentkit.policies.transformers import TransformersPolicy
from agentkit.records import RecipeError
from agentkit.runs.topology import choose
from agentkit.training.launch import Work

REFUSED = {
    "samples with the weights": {},
    "engine: unsloth": {"engine": "unsloth"},
    "not as many": {"engine": "vllm", "hindsight_weight": 0.1},
}


def test_what_cannot_wait_for_the_others_is_refused():
    for says, keys in REFUSED.items():
        with pytest.raises(RecipeError, match=says):
            Recipe.from_mapping({"shard": True} | keys)


def test_one_process_has_nobody_to_share_weights_with():
    recipe = Recipe.from_mapping({"shard": True, "engine": "vllm"})
    with pytest.raises(RecipeError, match="shard spreads.* over the processes that train, and there is one"):
        choose(recipe, 1)
    assert choose(recipe, 4).processes == 4


def test_a_model_whose_layers_are_not_known_is_refused():
    model, _ = tiny_agent()
    model._no_split_modules = None
    with pytest.raises(RecipeError, match="does not know the layers of a qwen3 model"):
        shard(model, None)
    assert not sharded(model)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "shares"), [("float32", False), ("bfloat16", True)])
def test_losses_and_gradients_are_those_of_whole_weights(folder, shares, precision):  # noqa: F811
    """One process has more passes to make than the other; with checkpoints where it is bfloat16."""
    changes = {"precision": precision, "beta": 0.0, "max_tokens": 40, "learning_rate": 1e-2}
    run, lab = prepared(folder, f"updates-{shares}-{precision}", **changes)
    held = Work(lab, run).do("sharded:both", processes=2, shares=shares)["held"]
    found = {shards: torch.load(run.file(f"shards-{shards}.pt")) for shards in (False, True)}
    for whole, parts in zip(*found.values(), strict=True):  # of each process
        for expected, given in zip(whole, parts, strict=True):
            for name, values in expected.items():
                torch.testing.assert_close(given[name], values, rtol=0, atol=1e-5)
    assert any(step["grad_norm"] > 1e-3 for step in found[True][0][:-1]), "there was something"
    moved = [process[-1]["adapter"] for process in found[True]]
    assert torch.equal(*moved), "both processes have one adapter"
    assert held[True][0] < held[False][0] and held[True] == held[True][::-1]


@pytest.mark.slow
def test_a_cold_start_on_shards_leaves_the_adapter_of_one_on_whole_weights(folder):  # noqa: F811
    adapters = []
    for shards in (False, True):
        changes = {"sft_batch": 2, "engine": "vllm", "deterministic": False, "shard": shards}
        run, lab = prepared(folder, f"cold-{shards}", **changes)
        shown = rollout(tasks(), TransformersPolicy(*tiny_agent()), **lab.options(seed=1))
        assert Work(lab, run).cold_start(shown)
        adapters.append(load_file(run.file("sft", "adapter_model.safetensors")))
    for name, values in adapters[0].items():
        torch.testing.assert_close(adapters[1][name], values, rtol=0, atol=1e-5)
