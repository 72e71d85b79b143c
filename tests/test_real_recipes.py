"""Every recipe that no other file of tests runs, from 01 to 05; those for real models on a tiny model of Qwen2's
architecture with the official chat template.
"""

import copy
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen3_5TextConfig, Qwen3Config

from agentkit.policies.loading import longest
from agentkit.policies.vllm import engine_arguments
from agentkit.recipe import Recipe
from agentkit.runs import Run, project_root
from agentkit.training import memory

BUDGET = {"n_tasks": 20, "sft_tasks": 0, "sft_transcripts": 1, "sft_epochs": 1, "test_samples": 1, "steps": 1, "prompts_per_step": 2,
          "group_size": 2, "micro_batch": 2, "max_turns": 2, "max_turn_tokens": 12, "max_tokens": 300, "val_every": 1, "val_tasks": 1,
          "max_batch": 8, "preflight": "off"}  # fmt: skip
# in test_notebooks, _image, _tcr, _ordebug, _drawing and _autopsies
ELSEWHERE = set(
    "nano nano-image image-27b nano-tcr tcr-4b nano-ordebug nano-drawing drawing-0.5b autopsies".split()
)
RECIPES = sorted({path.stem for path in (project_root() / "params").glob("*.yaml")} - ELSEWHERE - {"prices"})


def qwen(kind, *sizes, **more):
    names = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads".split()
    return kind(**{"vocab_size": 151_936} | dict(zip(names, sizes, strict=True)) | more)


LONG, HEAD = {"max_position_embeddings": 40_960}, {"head_dim": 128}
REAL = {  # as their config.json has them
    "Qwen/Qwen2.5-0.5B-Instruct": qwen(Qwen2Config, 896, 4864, 24, 14, 2, tie_word_embeddings=True),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": qwen(Qwen2Config, 896, 4864, 24, 14, 2, tie_word_embeddings=True),
    "Qwen/Qwen2.5-3B-Instruct": qwen(Qwen2Config, 2048, 11_008, 36, 16, 2, tie_word_embeddings=True),
    "Qwen/Qwen3-4B-Instruct-2507": qwen(
        Qwen3Config, 2560, 9728, 36, 32, 8, tie_word_embeddings=True, max_position_embeddings=262_144, **HEAD
    ),
    "Qwen/Qwen3-8B": qwen(Qwen3Config, 4096, 12_288, 36, 32, 8, tie_word_embeddings=False, **LONG, **HEAD),
    "Qwen/Qwen3.5-27B": qwen(
        Qwen3_5TextConfig, 5120, 17_408, 64, 24, 4, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=48,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 16,
        **{"vocab_size": 248_320, "max_position_embeddings": 262_144, "tie_word_embeddings": False},
    ),
}  # fmt: skip
ROOT = project_root()
WITH_REAL = sorted(p.stem for p in (ROOT / "params").glob("*.yaml") if "Never run" in p.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_its_notebooks_run_to_the_comparison(name, stand_in, tmp_path):
    recipe = ROOT / "params" / f"{name}.yaml"
    real = Recipe.load(recipe).model != "nano"
    own = {"model": stand_in, "precision": "bfloat16", "load_in_4bit": False} if real else {}
    budget = BUDGET | own
    words = ["--run", str(tmp_path / "run")]
    words += [word for key, value in budget.items() for word in ("-p", f"{key}={value}")]
    command = [sys.executable, "-m", "agentkit.cli", "run", str(recipe), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    run = Run(tmp_path / "run")
    assert len(run.metrics) == 2 and {"sft", "grpo"} <= run.comparison["policies"].keys()
    found = run.trajectories(1)
    assert all(t.completion_ids and any(t.action_mask) for t in found) and len(found) == 4
    if real:
        shown = AutoTokenizer.from_pretrained(stand_in).decode(found[0].prompt_ids)
        assert "<tools>" in shown and shown.endswith("<|im_start|>assistant\n"), "as the template has it"


def vllm_check(recipe, config, made, size, folder):
    """vLLM's own check of its cache against the longest trajectory, for a card of so many GB."""
    from vllm.v1.core.kv_cache_utils import check_enough_kv_cache_memory
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    config.architectures = [{"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[config.model_type]]
    config.save_pretrained(folder)
    room = longest(config, recipe), recipe.engine_memory, recipe.max_batch
    chosen = engine_arguments(folder, torch.bfloat16, *room, True, False).create_engine_config()
    size_of_head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = {"num_kv_heads": config.num_key_value_heads, "head_size": size_of_head}
    layer = FullAttentionSpec(block_size=16, **heads, dtype=torch.bfloat16)
    chosen.cache_config.kv_cache_layout = "LBNHC"  # as the engine would settle it
    assert chosen.model_config.max_model_len == room[0]
    layers = {f"layers.{i}": layer for i in range(config.num_hidden_layers)}
    check_enough_kv_cache_memory(chosen, layers, int(recipe.engine_memory * size * 1e9 - made.engine_fixed))


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_REAL)
def test_every_recipe_fits_the_cards_it_names_and_vllm_starts_on_them(name, tmp_path):
    """Asleep and awake, on these cards and larger ones; header and guide say what is planned."""
    path, sizes = ROOT / "params" / f"{name}.yaml", (*memory.SIZES, 8)
    recipe = Recipe.load(path)
    least = int(re.search(r"Fits [^.]*?(\d+) GB", path.read_text())[1])
    config, start = copy.deepcopy(REAL[recipe.model]), time.process_time()
    made = memory.plan(recipe, config=config)
    assert time.process_time() - start < 90, "layers are counted, not traced one by one"
    assert made.sleeps == (recipe.engine == "vllm")
    for size in (size for size in sizes if size >= least):
        assert {replace(made, sleeps=sleeps).advice(size) for sleeps in (made.sleeps, False)} == {"fits"}
        if made.engine_fixed:
            vllm_check(recipe, config, made, size, tmp_path)
    cells = " | ".join(f"{made.needed(size) / 1e9:.0f}" if size >= least else "no" for size in memory.SIZES)
    assert f"| {name} | {least} | {cells} |" in (ROOT / "docs" / "gpus.md").read_text()


@pytest.mark.slow
def test_too_small_a_share_is_refused_by_vllm_and_by_the_plan_whose_advice_vllm_takes(tmp_path):
    pytest.importorskip("vllm")
    recipe = Recipe.load(ROOT / "params" / "tcr-4b.yaml").but(engine_memory=0.46)
    config = copy.deepcopy(REAL[recipe.model])
    made = memory.plan(recipe, config=config)
    advised = float(re.search(r"engine_memory: ([\d.]+)$", made.advice(24))[1])
    with pytest.raises(ValueError, match="KV cache is needed, which is larger than the available"):
        vllm_check(recipe, config, made, 24, tmp_path)
    vllm_check(recipe.but(engine_memory=advised), config, made, 24, tmp_path)
