"""Every recipe that no other file of tests runs, from 01 to 05; those for real models on a tiny model of Qwen2's
architecture with the official chat template.
"""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from transformers import AutoTokenizer, Qwen2Config, Qwen3Config

from agentkit.recipe import Recipe, read_recipe
from agentkit.runs import Run, project_root
from agentkit.training import memory

QWEN = {  # Qwen/Qwen2.5-3B-Instruct's config.json
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 2, "tie_word_embeddings": True, "max_position_embeddings": 32_768,
}  # fmt: skip
BUDGET = {"n_tasks": 20, "sft_tasks": 0, "sft_transcripts": 1, "sft_epochs": 1, "test_samples": 1, "steps": 1, "prompts_per_step": 2,
          "group_size": 2, "micro_batch": 2, "max_turns": 2, "max_turn_tokens": 12, "max_tokens": 300, "val_every": 1, "val_tasks": 1,
          "max_batch": 8, "preflight": "off"}  # fmt: skip
ELSEWHERE = {  # in test_notebooks, _image, _tcr, _ordebug and _drawing
    *("nano", "nano-image", "image-27b", "nano-tcr", "tcr-4b"),
    *("nano-ordebug", "nano-drawing", "drawing-0.5b"),
}
RECIPES = sorted({path.stem for path in (project_root() / "params").glob("*.yaml")} - ELSEWHERE - {"prices"})
QWEN3 = {  # Qwen/Qwen3-4B's
    "vocab_size": 151_936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    "max_position_embeddings": 40_960,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_its_notebooks_run_to_the_comparison(name, stand_in, tmp_path):
    recipe = project_root() / "params" / f"{name}.yaml"
    real = Recipe.load(recipe).model != "nano"
    own = {"model": stand_in, "precision": "bfloat16", "load_in_4bit": False} if real else {}
    budget = BUDGET | own
    words = ["--run", str(tmp_path / "run")]
    words += [word for key, value in budget.items() for word in ("-p", f"{key}={value}")]
    command = [sys.executable, "-m", "agentkit.cli", "run", str(recipe), *words]
    done = subprocess.run(command, cwd=project_root(), capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    run = Run(tmp_path / "run")
    assert len(run.metrics) == 2 and {"sft", "grpo"} <= run.comparison["policies"].keys()
    found = run.trajectories(1)
    assert all(t.completion_ids and any(t.action_mask) for t in found) and len(found) == 4
    if real:
        shown = AutoTokenizer.from_pretrained(stand_in).decode(found[0].prompt_ids)
        assert "<tools>" in shown and shown.endswith("<|im_start|>assistant\n"), "as the template has it"
        return


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "config"), [("3B", Qwen2Config(**QWEN)), ("Qwen3-4B", Qwen3Config(**QWEN3))]
)
def test_what_guide_and_headers_say_of_memory_is_what_the_plan_counts(model, config, monkeypatch):
    """Rounded to GB, and the key to change first. Both recipes have the same trajectories, traced once."""
    guide, count = (project_root() / "docs" / "gpus.md").read_text(), memory.update_peak
    counted = {}

    def once(config, recipe, dtype, rows, *sizes, **options):
        if rows not in counted:
            counted[rows] = count(config, recipe, dtype, rows, *sizes, **options)
        return counted[rows]

    monkeypatch.setattr(memory, "update_peak", once)
    for name in ("plan-3b", "plan-3b-unsloth") if model == "3B" else ("plan-3b",):
        path = project_root() / "params" / f"{name}.yaml"
        recipe, header = Recipe.from_mapping(read_recipe(path)), path.read_text()
        made = memory.plan(recipe, config=config)
        for state in ("asleep", "awake") if recipe.engine == "vllm" else ("awake",):
            plan = replace(made, sleeps=state == "asleep")
            needed = {size: f"{plan.needed(size) / 1e9:.0f}" for size in memory.SIZES}
            advised = {size: re.findall(r"\w+: [\d.]+$", plan.advice(size)) for size in memory.SIZES}
            cells = (", ".join([gb, *advised[size]]) for size, gb in needed.items())
            assert " | ".join([f"| {name}, {model}", state, *cells]) + " |" in guide
            listed = ", ".join(f"{gb} of {size}" for size, gb in needed.items())
            assert model != "3B" or f"vLLM {state}: {listed} GB" in header
        assert plan.needed(48) < 48e9 and recipe.engine_memory * 48e9 > plan.weights * 1.5
