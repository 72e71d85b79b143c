"""Base weights spread over two processes: the update is that of whole ones, and checkpoints go on in either."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from survive import tasks, tiny_agent
from test_launch import folder, prepared  # noqa: F401  (a fixture)

from agentkit.policies import server_processes
from agentkit.policies.shards import shard, sharded
from agentkit.policies.transformers import TransformersPolicy
from agentkit.recipe import Recipe, read_recipe
from agentkit.records import RecipeError
from agentkit.rollouts import rollout
from agentkit.runs import Run, project_root, read_jsonl
from agentkit.runs.stages import parameters_of
from agentkit.runs.topology import choose
from agentkit.training.launch import Work

REFUSED = {
    "samples with the weights": {},
    "engine: unsloth": {"engine": "unsloth"},
    "adapter alone": {"engine": "vllm", "weight_sync": "merged"},
    "not as many": {"engine": "vllm", "hindsight_weight": 0.1},
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_cannot_wait_for_the_others_is_refused(says):
    with pytest.raises(RecipeError, match=says):
        Recipe.from_mapping({"shard": True} | REFUSED[says])


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
@pytest.mark.parametrize(("precision", "shares"), [("float32", True), ("float32", False), ("bfloat16", True)])
def test_losses_and_gradients_are_those_of_whole_weights(folder, shares, precision):  # noqa: F811
    """On unlike batches, where one process has more passes to make than the other, and checkpoints where it
    is bfloat16.
    """
    changes = {"precision": precision, "beta": 0.0, "micro_batch_tokens": 40, "max_tokens": 40}
    run, lab = prepared(folder, f"updates-{shares}-{precision}", **changes)
    held = Work(lab, run).do("sharded:both", processes=2, shares=shares)["held"]
    found = {shards: torch.load(run.file(f"shards-{shards}.pt")) for shards in (False, True)}
    for whole, parts in zip(*found.values(), strict=True):  # of each process
        for expected, given in zip(whole, parts, strict=True):
            for name, values in expected.items():
                torch.testing.assert_close(given[name], values, rtol=0, atol=1e-5)
    assert any(step["gradient"].abs().max() > 1e-3 for step in found[True][0][:-1]), "there was something"
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


SPLIT = {"topology": "split", "replicas": 1, "engine": "vllm"}
HALVES = {"deterministic": False, "steps": 4, "weight_sync": "lora", "val_every": 4, "save_every": 2}


@pytest.fixture(scope="module")
def whole(folder):  # noqa: F811
    """Four steps at once, sharded, with a server that the training starts."""
    pytest.importorskip("vllm")
    run, lab = prepared(folder, "whole", shard=True, **SPLIT, **HALVES)
    Work(lab, run).train()
    return read_jsonl(run.file("train", "metrics.jsonl"))


@pytest.fixture(params=["its own", "another's"])
def server(folder, request):  # noqa: F811
    """Recipe keys of a server that the training starts, or that nobody of it has started."""
    pytest.importorskip("vllm")
    if request.param == "its own":
        yield SPLIT
        return
    run, lab = prepared(folder, "served", engine="vllm", **HALVES)
    run.update(recipe=lab.recipe.everything())
    with server_processes.replicas(lab.recipe, run, [""]) as made:
        yield {"engine": "server", "server_urls": made.urls[0]}


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_shards_and_without(folder, whole, server):  # noqa: F811
    """GRPO with a server that rolls out, four steps at once and in two halves, of which one is sharded."""
    name, first = f"halves-{server['engine']}", server is SPLIT

    def stop_after_two(row):
        if row["step"] == 2:
            raise KeyboardInterrupt

    run, lab = prepared(folder, name, shard=first, **server, **HALVES)
    with pytest.raises(KeyboardInterrupt):
        Work(lab, run).train(stop_after_two)
    _, other = prepared(folder, name, shard=not first, **server, **HALVES)
    assert Work(other, run).train()["steps"] == 4
    halves = read_jsonl(run.file("train", "metrics.jsonl"))
    assert [row["step"] for row in halves] == [0, 1, 2, 3, 4], "it went on"
    for name in ("loss", "grad_norm", "kl", "reward"):
        found, expected = ([row[name] for row in rows[1:]] for rows in (halves, whole))
        assert found == pytest.approx(expected, abs=1e-5)
    assert all(row["sync_gap"] < 1e-5 for row in [*halves[1:], *whole[1:]]), "the server has the adapter"


def test_a_server_takes_as_many_cards_as_its_model_is_spread_over():
    values = {"topology": "split", "engine": "vllm", "tensor_parallel": 2, "shard": True}
    made = choose(Recipe.from_mapping(values), 4)
    assert (made.training, made.serving, made.replicas) == (("0", "1"), ("2,3",), 1)
    made = choose(Recipe.from_mapping(values), 8)
    assert made.serving == ("4,5", "6,7") and made.processes == 4
    with pytest.raises(RecipeError, match="replicas: 2 of 2 GPUs leave none of 4 GPUs to train: set 1"):
        choose(Recipe.from_mapping(values | {"replicas": 2}), 4)
    with pytest.raises(RecipeError, match="leave none of 2 GPUs to train: lower tensor_parallel"):
        choose(Recipe.from_mapping(values), 2)
    with pytest.raises(RecipeError, match="tensor_parallel: 2 is for the servers of topology: split"):
        Recipe.from_mapping({"tensor_parallel": 2, "engine": "vllm"})


def test_each_notebook_that_samples_gets_the_servers_of_the_recipe_with_a_model_larger_than_a_card(tmp_path):
    values, run = read_recipe(project_root() / "params" / "image-27b.yaml"), Run.create(tmp_path / "run")
    run.update(recipe=values)
    for stage in ("02_baseline", "03_grpo", "05_compare"):
        recipe = Recipe.from_mapping(parameters_of(stage, values))
        made = choose(recipe, 4)
        assert (made.training, made.serving) == (("0", "1"), ("2,3",)), stage
        options = server_processes._command(recipe, run, gpu=True)
        assert {"--tensor-parallel=2", "--lora-rank=32"} <= set(options), stage
