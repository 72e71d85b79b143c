"""The agent that ships: small, made from made-up worlds, and able to use its tools on real facts."""

import json
import random
import shutil
import subprocess
import sys
from functools import partial

import pytest
import torch
from engines import adapter_on
from peft import LoraConfig, get_peft_model
from pretrain import batches, make_world, transcripts
from transformers import AutoModelForCausalLM

from agentkit.nano import DATA
from agentkit.policies.loading import load_agent
from agentkit.policies.transformers import TransformersPolicy
from agentkit.rollouts import rollout
from agentkit.runs import Run, RunError, project_root
from agentkit.tools.corpus import Corpus, facts
from agentkit.tools.environments import CorpusEnvironment
from agentkit.training.merge import merge


def test_it_is_small_and_of_the_stated_architecture():
    model, tokenizer = load_agent("nano")
    assert 1e6 <= model.num_parameters() <= 4e6 and model.config.model_type == "qwen3"
    assert sum(f.stat().st_size for f in DATA.iterdir()) < 8e6
    assert "unfinished" not in json.loads((DATA / "pretraining.json").read_text())
    assert all(len(tokenizer(digits)["input_ids"]) == len(digits) for digits in ("7", "66987244", "2024"))


def test_made_up_worlds_state_no_fact_of_the_corpus(corpus, tmp_path):
    real = {(kind, entity, str(value)) for kind, entity, value in facts(corpus.connection)}
    for seed in range(3):
        world = Corpus(make_world(tmp_path / f"{seed}.sqlite", seed))
        made_up = {(kind, entity, str(value)) for kind, entity, value in facts(world.connection)}
        assert len(made_up) > 1000 and not made_up & real


def test_it_uses_its_tools_on_real_facts(suite, corpus):
    """Greedily it solves most easy tasks: the formats and the copying carry over to names it never saw."""
    tasks = [t for t in suite if t.difficulty == "easy"][:40]
    policy, make = TransformersPolicy(*load_agent("nano")), partial(CorpusEnvironment, corpus)
    found = rollout(tasks, policy, environment=make, temperature=0.0)
    assert sum(t.success for t in found) / len(found) > 0.6


def test_pretraining_data_train_the_expert_s_own_tokens_only(tmp_path):
    _, tokenizer = load_agent("nano")
    world = next(transcripts(tokenizer, range(7, 8), 12))
    for ids, labels, mask in batches(world, 4, random.Random(0), tokenizer.pad_token_id):
        text = tokenizer.decode(ids[labels != -100])
        assert "<tool_response>" not in text and "Answer:" in text
        assert (labels[mask == 0] == -100).all()


def test_a_lora_adapter_is_a_model_folded_into_its_base_in_float32(tmp_path):
    """What TRL and Unsloth leave of a supervised fine-tuning; half precision rounds the sum, once."""
    model, _ = load_agent("nano")
    folder, ids = tmp_path / "lora", torch.arange(5, 60)[None]
    adapted = adapter_on(model, 0.01, rank=2)
    adapted.save_pretrained(folder)
    whole, tokenizer = load_agent(str(folder), precision="float32")
    assert tokenizer.chat_template and whole.name_or_path == str(folder)
    assert torch.allclose(whole(ids).logits, adapted(ids).logits, atol=1e-4)
    half = load_agent(str(folder), precision="bfloat16")[0]
    assert all(p.equal(q.bfloat16()) for p, q in zip(half.parameters(), whole.parameters(), strict=True))


@pytest.mark.parametrize(
    ("base", "modules", "says"),
    [
        (None, "all-linear", "does not say of which model: write its folder"),
        ("here", "all-linear", "names .*/lora, which is no whole model but an adapter too"),
        ("no/such", "all-linear", "cannot load the model 'no/such', the base of the adapter .*/lora"),
        ("quantised", "all-linear", "are quantised, so nothing can be folded into them"),
        (DATA, ["q_proj", "embed_tokens"], "its embeddings are the output layer too"),
        ("run", "all-linear", "is half of what its run trained"),
    ],
)
def test_an_adapter_that_cannot_be_a_model_is_a_sentence(base, modules, says, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "lora"
    config = LoraConfig(r=2, target_modules=modules, task_type="CAUSAL_LM")
    get_peft_model(load_agent("nano")[0], config).save_pretrained(folder, save_embedding_layers=False)
    if base == "quantised":
        base = shutil.copytree(DATA, tmp_path / "four")
        kept = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(
            json.dumps(kept | {"quantization_config": {"quant_method": "gptq"}})
        )
    if base == "run":
        (tmp_path / "run.json").write_text(json.dumps({"recipe": {"sft": True}}))
    named = {"here": folder, "run": DATA}.get(base, base)
    about = json.loads((folder / "adapter_config.json").read_text())
    about["base_model_name_or_path"] = named and str(named)
    (folder / "adapter_config.json").write_text(json.dumps(about))
    with pytest.raises((FileNotFoundError, RunError), match=says):
        load_agent(str(folder))


@pytest.mark.slow
def test_training_starts_from_a_lora_adapter_and_says_so(tmp_path):
    """From 01 to 05, and its merged model holds both."""
    model, tokenizer = load_agent("nano")
    adapter_on(model, 0.02, rank=2).save_pretrained(tmp_path / "lora")
    keys = {"model": tmp_path / "lora", "n_tasks": 60, "steps": 2, "val_tasks": 4, "test_samples": 1, "sft": "false",
            "prompts_per_step": 2, "group_size": 4, "micro_batch": 8, "controls": "[]", "preflight": "off"}  # fmt: skip
    words = [word for key, value in keys.items() for word in ("-p", f"{key}={value}")]
    command = [sys.executable, *"-m agentkit.cli run params/nano.yaml --run".split(), str(tmp_path / "run")]
    done = subprocess.run([*command, *words], cwd=project_root(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "lora is a LoRA adapter: it is folded into" in done.stderr.splitlines()[0]
    found = merge(Run(tmp_path / "run"), "float32")  # it is kept in float16
    whole = AutoModelForCausalLM.from_pretrained(found["path"])
    trained = load_agent(str(tmp_path / "lora"), adapter=tmp_path / "run" / "adapter")[0]
    ids = torch.arange(5, 60)[None]
    assert torch.allclose(whole(ids).logits, trained(ids).logits, atol=1e-3)


def test_a_damaged_model_is_a_sentence(tmp_path):
    folder = shutil.copytree(DATA, tmp_path / "agent")
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(FileNotFoundError, match="cannot load the model .*/agent'"):
        load_agent(str(folder))
