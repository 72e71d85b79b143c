"""The recipes for real models, on a tiny model of the same architecture with the official chat template."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import trl
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from agentkit import nano
from agentkit.runs import Run, project_root
from agentkit.runs.recipe import Recipe, read_recipe
from agentkit.training import memory

QWEN = {  # Qwen/Qwen2.5-3B-Instruct's config.json
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 2, "tie_word_embeddings": True, "max_position_embeddings": 32_768,
}  # fmt: skip
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1}  # fmt: skip
BUDGET = {"families": "A", "n_tasks": 24, "test_samples": 1, "steps": 1, "prompts_per_step": 2, "group_size": 2,
          "micro_batch": 2, "max_turns": 2, "max_turn_tokens": 12, "max_tokens": 300, "val_tasks": 1, "max_batch": 8,
          "preflight": "off", "precision": "bfloat16", "load_in_4bit": False}  # fmt: skip
GB = {"plan-3b": {24: 26, 48: 26, 80: 35, 141: 56}, "plan-3b-unsloth": {24: 24, 48: 34}}  # as they say


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """Qwen2's architecture, small and random, with the small agent's words and Qwen2.5's template."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(nano.DATA)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    torch.manual_seed(0)
    config = Qwen2Config(
        **(QWEN | SMALL | {"vocab_size": len(tokenizer)}), eos_token_id=tokenizer.eos_token_id
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", GB)
def test_its_notebooks_run_to_training(name, stand_in, tmp_path):
    recipe = project_root() / "params" / f"{name}.yaml"
    words = ["--run", str(tmp_path / "run"), "--to", "03", "-p", f"model={stand_in}"]
    words += [word for key, value in BUDGET.items() for word in ("-p", f"{key}={value}")]
    command = [sys.executable, "-m", "agentkit.cli", "run", str(recipe), *words]
    done = subprocess.run(command, cwd=project_root(), capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    run = Run(tmp_path / "run")
    assert len(run.metrics) == 2 and run.metrics["clip_fraction"].max() == 0.0
    found = run.trajectories(1)
    assert all(t.completion_ids and any(t.action_mask) for t in found) and len(found) == 4
    shown = AutoTokenizer.from_pretrained(stand_in).decode(found[0].prompt_ids)
    assert "<tools>" in shown and shown.endswith("<|im_start|>assistant\n"), "as the template has it"


def test_what_they_say_of_memory_is_what_the_plan_counts(tmp_path):
    Qwen2Config(**QWEN).save_pretrained(tmp_path)
    counted = None
    for name, needed in GB.items():
        path = project_root() / "params" / f"{name}.yaml"
        recipe, text = Recipe.from_mapping(read_recipe(path) | {"model": str(tmp_path)}), path.read_text()
        counted = counted or memory.plan(recipe)  # the model's, and so the same for both
        own = {"micro_batch": recipe.micro_batch, "sleeps": recipe.engine == "vllm"}
        plan = replace(counted, engine_share=recipe.engine_memory, **own)
        for size, gb in needed.items():
            assert plan.needed(size) / 1e9 == pytest.approx(gb, rel=0.1)
            assert f"{gb} GB of {size}" in text or f"{gb} of {size}" in text
        assert plan.needed(48) < 48e9 and recipe.engine_memory * 48e9 > plan.weights * 1.5
