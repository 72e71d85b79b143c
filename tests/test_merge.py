"""A merged model is the adapter's policy in one piece, in the base model's data type, or it is refused."""

import json
import shutil

import pytest
import torch
from engines import move
from peft import PeftModel
from safetensors.torch import load_file, save_file
from survive import make_trainer, tiny_agent
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from agentkit import Lab, Recipe
from agentkit.cli import main
from agentkit.policies.loading import load_tokenizer
from agentkit.runs import Run, RunError
from agentkit.training.adapters import save_adapter
from agentkit.training.launch import Work
from agentkit.training.merge import _trained_in, logprobs, merge


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """A run whose agent is a folder, in one data type, and whose adapter moves log-probabilities visibly."""
    dtype = getattr(request, "param", "bfloat16")
    folder = tmp_path_factory.mktemp(dtype)
    model, tokenizer = tiny_agent()
    model.to(getattr(torch, dtype)).save_pretrained(folder / "agent")
    tokenizer.save_pretrained(folder / "agent")
    model = AutoModelForCausalLM.from_pretrained(folder / "agent", dtype=torch.float32)
    trainer = make_trainer(folder / "run", agent=(model, tokenizer), steps=1)
    trainer.train()
    trainer.run.begin("03_grpo", {"model": str(folder / "agent"), "sft": False})
    save_adapter(move(trainer.model, 0.3), trainer.tokenizer, trainer.run.file("adapter"))
    return trainer.run, dtype


@pytest.mark.parametrize("trained", ["float32", "bfloat16"], indirect=True)
def test_merged_and_adapter_agree_and_the_data_type_is_kept(trained):
    run, dtype = trained
    found = merge(run)
    assert found["dtype"] == dtype and found["tokens"] == 48
    assert found["mean_difference"] < (1e-5 if dtype == "float32" else 5e-2) < found["adapter_effect"]
    assert found["surviving"] > (0.9999 if dtype == "float32" else 0.95)
    merged = AutoModelForCausalLM.from_pretrained(run.file("merged"))
    assert merged.dtype == getattr(torch, dtype) and not hasattr(merged, "peft_config")
    base = AutoModelForCausalLM.from_pretrained(run.manifest["recipe"]["model"], dtype=torch.float32)
    rows = [([5, 6, 7, 8], [0, 0, 1, 1])]
    expected = logprobs(PeftModel.from_pretrained(base, str(run.file("adapter"))).eval(), rows)
    error = 1e-5 if dtype == "float32" else 0.1
    assert torch.allclose(logprobs(merged.float().eval(), rows), expected, atol=error)
    folders = run.file("merged"), run.manifest["recipe"]["model"]
    merged, base = (AutoTokenizer.from_pretrained(folder).chat_template for folder in folders)
    assert merged == base
    assert run.file("merged", "model.safetensors").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cold_start", [False, True])
def test_its_turns_end_where_rollouts_did_and_an_adapter_apart_names_its_base(trained, tmp_path, cold_start):
    """A base model's own end is another, and its settings may sample without saying so."""
    run = Run(shutil.copytree(trained[0].path, tmp_path / "run"))
    agent = shutil.copytree(run.manifest["recipe"]["model"], tmp_path / "agent")
    (agent / "generation_config.json").write_text('{"eos_token_id": 0, "temperature": 0.7, "top_p": 0.9}')
    tokenizer = AutoTokenizer.from_pretrained(agent, eos_token="<|endoftext|>")
    tokenizer.save_pretrained(run.file("adapter"))
    run.update(recipe={"model": str(agent), "sft": cold_start})
    config = json.loads(run.file("adapter", "adapter_config.json").read_text())
    if cold_start:
        shutil.copytree(run.file("adapter"), run.file("sft"))
        config["base_model_name_or_path"] = str(run.file("merged"))
    merge(run, unmerged=True)
    settings = GenerationConfig.from_pretrained(run.file("merged"))
    ends = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert settings.eos_token_id == sorted(ends) and (settings.do_sample, settings.temperature) == (True, 0.7)
    assert json.loads(run.file("merged", "adapter", "adapter_config.json").read_text()) == config


def test_a_model_is_rebuilt_in_the_precision_that_trained_it_on_another_machine(tmp_path, monkeypatch):
    """``auto`` was float32 where it was trained; here there is a GPU, where it is bfloat16."""
    run = Run.create(tmp_path / "run")
    record = Work(Lab.open(Recipe()), run).record
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    run.begin("03_grpo", {"precision": "auto"})
    assert _trained_in(run) == torch.bfloat16, "nobody has told"
    run.end("03_grpo", **record)
    assert _trained_in(run) == torch.float32


def test_a_merge_that_changes_the_policy_is_refused_and_leaves_the_last_one(trained, tmp_path):
    """Weights beyond float16 become infinite: the merged model answers NaN."""
    run = Run(shutil.copytree(trained[0].path, tmp_path / "run"))
    merge(run)
    kept = run.file("merged", "model.safetensors").read_bytes()
    adapter = run.file("adapter", "adapter_model.safetensors")
    save_file({k: v * (1e6 if "lora_B" in k else 1) for k, v in load_file(adapter).items()}, adapter)
    says = r"is not kept: .* survives in float16.* --dtype float32, or .* --unmerged"
    with pytest.raises(RunError, match=says):
        merge(run, "float16")
    assert run.file("merged", "model.safetensors").read_bytes() == kept
    assert not run.file(".merged.new").exists()


def test_an_adapter_that_rounding_would_lose_is_refused_or_kept_beside_its_model(trained, tmp_path, capsys):
    """Changes of 2e-4, as after 200 steps at a learning rate of 1e-6: half of bfloat16's step at 0.02."""
    run = Run(shutil.copytree(trained[0].path, tmp_path / "run"))
    path = run.file("adapter", "adapter_model.safetensors")
    small = {k: v.sign() * 2e-4 if "lora_B" in k else v for k, v in load_file(path).items()}
    save_file(small, path)
    lost = r"is not kept: \d+% of what the adapter does .* survives in bfloat16"
    with pytest.raises(RunError, match=lost):
        merge(run, "bfloat16")
    assert main(["merge", str(run.path), "--dtype", "bfloat16", "--unmerged", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["surviving"] > 0.999
    assert merge(run, "float32")["surviving"] > 0.999
    assert (run.file("merged") / "model.safetensors").exists()


def test_without_an_adapter_or_trajectories_it_says_which_notebook_is_missing(tmp_path, capsys):
    run = Run.create(tmp_path / "run")
    assert main(["merge", str(run.path)]) == 2 and "notebook 03" in capsys.readouterr().err
    run.file("adapter").mkdir()
    run.file("adapter", "adapter_config.json").write_text("{}")
    with pytest.raises(RunError, match="no trajectory to check"):
        merge(run)


def no_numbers(path):
    save_file({name: weight * float("nan") for name, weight in load_file(path).items()}, path)


DAMAGES = [
    ("adapter_config.json", lambda path: path.write_text("{"), ""),
    ("adapter_model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:500]), ""),
    ("adapter_model.safetensors", no_numbers, "ValueError: it holds weights that are no numbers)"),
]


@pytest.mark.parametrize(("name", "damage", "says"), DAMAGES)
def test_a_damaged_adapter_is_one_sentence(trained, tmp_path, capsys, name, damage, says):
    run = Run(shutil.copytree(trained[0].path, tmp_path / "run"))
    damage(run.file("adapter", name))
    assert main(["merge", str(run.path)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"agentkit: the adapter in {run.file('adapter')} cannot be used ({says}")


def test_a_tokenizer_beside_mistrals_own_file_keeps_its_chat_template(tmp_path):
    """Nemo, Ministral and Small ship tekken.json, for which transformers takes a tokenizer without one."""
    _, tokenizer = tiny_agent()
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    found = load_tokenizer(str(tmp_path))
    assert found.chat_template == tokenizer.chat_template and found.init_kwargs["fix_mistral_regex"]
