"""GRPO with the small agent: what a run writes, and what it refuses. Also the cold start."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from survive import make_trainer, tiny_agent

from agentkit import Lab, Recipe
from agentkit.evaluation import summarize
from agentkit.policies.loading import load_agent
from agentkit.records import RecipeError, RunError
from agentkit.runs import Run, read_jsonl
from agentkit.training import loop, prefix, sft
from agentkit.training.loop import GRPO
from agentkit.training.sft import cold_start, demonstrations, sft_dataset

SMALL = {"steps": 2, "prompts_per_step": 2, "group_size": 4, "micro_batch": 4, "val_every": 1, "val_tasks": 3, "lora_r": 4,
         "temperature": 1.0, "learning_rate": 1e-3, "beta": 0.02, "max_turns": 4, "max_turn_tokens": 48}  # fmt: skip


def trainer(suite, path) -> GRPO:
    recipe = Recipe.from_mapping(SMALL)
    tasks = suite.split("train"), suite.split("validation")
    return GRPO(Lab.open(recipe), *load_agent("nano"), *tasks, Run.create(path))


def test_a_batch_that_is_not_what_was_sampled_is_refused(tmp_path, monkeypatch):
    """The gate before the first step, which sees the very tensors that the loss reads."""
    make, mask = loop.Batch.of, "uses another action mask than was sampled"
    for change, says in (
        (lambda batch: replace(batch, mask=batch.mask.roll(1, 1)), mask),
        (lambda batch: replace(batch, ids=batch.ids + 1), "the update reads other ids than were sampled"),
    ):
        changed = SimpleNamespace(of=lambda *given, change=change: change(make(*given)))
        monkeypatch.setattr(loop, "Batch", changed)
        made = make_trainer(tmp_path / says.split()[-3])
        with pytest.raises(RunError, match=f"the batch must not be trained on: .*{says}"):
            made.train()
        assert made.done == 0, "before step 1"


def test_a_short_run_writes_everything_keeps_the_best_adapter_and_repeats_itself(suite, tmp_path):
    made = trainer(suite, tmp_path / "run")
    result = made.train()
    rows = read_jsonl(made.run.file("train", "metrics.jsonl"))
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert {"reward", "reward/correctness", "success", "kl", "entropy", "grad_norm", "clip_fraction", "dead_groups",
            "turns", "tool_failure_rate", "val_success", "val_ci_low"} <= rows[-1].keys()  # fmt: skip
    assert made.run.steps == [1, 2] and len(made.run.trajectories(2)) == 8
    assert result["best_val_success"] == max(row["val_success"] for row in rows)
    model, _ = load_agent("nano", merge=[made.run.file("adapter")])
    assert not hasattr(model, "peft_config")
    again = trainer(suite, tmp_path / "again")
    again.train()
    found, other = ([t.completion_ids for t in m.run.trajectories(2)] for m in (made, again))
    assert found == other, "one seed, one training"


def test_a_prompt_that_is_too_long_is_told_of_before_the_first_step(tmp_path):
    model, tokenizer = tiny_agent()
    model.config.max_position_embeddings = 700
    made = make_trainer(tmp_path / "run", agent=(model, tokenizer))
    made.tasks["train-3"] = replace(made.tasks["train-3"], prompt="Say it. " * 400)
    says = r"train-3 has \d+ tokens, and the engine reads 700 .*max_prompt_tokens"
    with pytest.raises(RecipeError, match=says):
        made.train()
    assert not made.run.steps


def test_the_cold_start_trains_assistant_tokens_only(suite, tmp_path):
    recipe = Recipe(sft=True, sft_transcripts=1, sft_learning_rate=1e-3, sft_batch=8, lora_r=4)
    model, tokenizer = load_agent("nano")
    found = demonstrations(Lab.open(recipe), suite.split("train")[:24], tokenizer)
    assert summarize(found)["success"] == 1.0
    row = sft_dataset(found)[0]
    text = tokenizer.decode([i for i, m in zip(row["input_ids"], row["assistant_masks"], strict=True) if m])
    assert "tool_response" not in text and "Answer:" in text and "im_start" not in text
    before = copy.deepcopy(model.state_dict())
    log = cold_start(model, tokenizer, found, recipe, tmp_path / "sft")
    assert [path.name for path in tmp_path.iterdir()] == ["sft"], "and nothing else"
    assert len(log) == 3 and all(row["loss"] < 5 for row in log)
    merged, _ = load_agent("nano", merge=[tmp_path / "sft"])
    assert any(not torch.equal(before[name], value) for name, value in merged.state_dict().items())


def test_sharing_prefixes_and_passes_change_nothing_that_a_cold_start_learns(suite, tmp_path, monkeypatch):
    calls, whole, found, ways = [], prefix.shared_logprobs, None, []
    monkeypatch.setattr(prefix, "shared_logprobs", lambda *a, **k: calls.append(1) or whole(*a, **k))
    for wanted, rows in ((True, 8), (False, 8), (True, 2)):
        monkeypatch.setattr(sft, "MICRO_BATCH", rows)
        monkeypatch.setattr(sft, "scorer", lambda model, _, wanted=wanted: prefix.scorer(model, wanted))
        recipe = Recipe(sft_batch=8, lora_r=4, sft=True)
        model, tokenizer = load_agent("nano")
        found = found or demonstrations(Lab.open(recipe), suite.split("train")[:8], tokenizer)
        out = tmp_path / f"{wanted}-{rows}"
        log = cold_start(model, tokenizer, found, recipe, out)
        ways.append(([row["loss"] for row in log], load_file(out / "adapter_model.safetensors")))
    assert len(log) == 2 and len(calls) == (1 + 2) + (1 + 4 * 2), "the second way shares nothing"
    whole, ours = ways[0]
    for losses, theirs in ways[1:]:
        assert whole == pytest.approx(losses, rel=1e-4)
        assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in theirs)
