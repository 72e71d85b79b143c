"""SFT controls at the compute of GRPO: what they cost is counted, and both train for real."""

from __future__ import annotations

import dataclasses
from itertools import cycle, islice

import pytest
from labs import lab_with

from agentkit.lab import Lab
from agentkit.records import Task
from agentkit.runs import Run, RunError, write_trajectories
from agentkit.runs.recipe import Recipe, RecipeError
from agentkit.training.controls import fresh_demonstrations, grpo_tokens, train_control, up_to
from agentkit.training.sft import demonstrations, token_count

RECIPE = {"sft": False, "sft_transcripts": 1, "sft_batch": 8, "sft_learning_rate": 1e-3, "lora_r": 2, "group_size": 4,
          "num_iterations": 1, "max_turns": 6, "max_turn_tokens": 64, "max_tokens": 400, "temperature": 0.7}  # fmt: skip


@pytest.fixture
def finished(suite, tokenizer, tmp_path) -> Run:
    """A run that stores two steps of four trajectories."""
    run = Run.create(tmp_path / "run")
    run.update(recipe=RECIPE)
    shown = demonstrations(lab_with(RECIPE), suite.split("train")[:4], tokenizer)
    for step in (1, 2):
        stored = [dataclasses.replace(t, step=step) for t in shown]
        write_trajectories(run.file("train", "trajectories", f"step_{step:05d}.parquet"), stored)
    return run


def test_tokens_are_counted_over_steps_and_iterations(finished):
    stored = finished.trajectories(1)
    assert token_count(stored) == sum(len(t.prompt_ids) + len(t.completion_ids) for t in stored)
    assert grpo_tokens(finished, Lab.of(finished).recipe) == 2 * token_count(stored)
    twice = dataclasses.replace(Lab.of(finished).recipe, num_iterations=2)
    assert grpo_tokens(finished, twice) == 4 * token_count(stored)


def test_a_run_without_training_has_no_compute_to_match(tmp_path):
    with pytest.raises(RunError, match="03_grpo"):
        grpo_tokens(Run.create(tmp_path / "run"), Recipe())


def test_up_to_crosses_the_line_once(finished):
    stored = finished.trajectories(1)
    first = token_count(stored[:3])
    assert (
        up_to(first, stored) == stored[:3]
        and up_to(first + 1, stored) == stored[:4]
        and up_to(0, stored) == []
    )
    many = up_to(3 * token_count(stored), cycle(stored))
    assert len(many) == 3 * len(stored)


def test_fresh_demonstrations_never_end_and_differ_from_the_cold_starts(suite, tokenizer):
    careless = lab_with(RECIPE | {"flaw_in_head": 0.5, "flaw_malformed": 0.3})
    tasks = suite.split("train")[:6]
    found = list(islice(fresh_demonstrations(careless, tasks, tokenizer), 18))
    batches = [[t.completion_ids for t in found[i : i + 6]] for i in (0, 6, 12)]
    batches.append([t.completion_ids for t in demonstrations(careless, tasks, tokenizer)])
    assert all(a != b for i, a in enumerate(batches) for b in batches[:i])


def test_sft_on_more_data_processes_as_many_tokens_as_grpo(finished, suite):
    trained, _, figures = train_control("sft_more", lab_with(RECIPE), finished, suite.split("train")[:10])
    longest = max(figures["tokens"] / figures["trajectories"] * 3, 1)
    assert figures["grpo_tokens"] <= figures["tokens"] < figures["grpo_tokens"] + longest
    assert finished.file("sft_more", "adapter_model.safetensors").exists() and not hasattr(
        trained, "peft_config"
    )


def test_rejection_sampling_imitates_the_agents_own_right_answers(finished):
    """Every answer is right here, for what the agent says must not decide the test; no answer is, below."""
    tasks = [Task(word, f"Say {word}.", r"(?s).*", {"kind": "regex"}) for word in ("a", "b", "c", "d")]
    _, _, figures = train_control("rft", lab_with(RECIPE), finished, tasks)
    assert (
        figures["tokens"] >= figures["grpo_tokens"]
        and finished.file("rft", "adapter_model.safetensors").exists()
    )
    with pytest.raises(RunError, match="nothing to imitate"):
        train_control(
            "rft",
            lab_with(RECIPE),
            finished,
            [dataclasses.replace(task, answer="never said", verifier="exact") for task in tasks],
        )


def test_recipes_name_controls_and_what_is_trained_on():
    assert Recipe.from_mapping({"controls": "sft_more, rft"}).control_names == ["sft_more", "rft"]
    with pytest.raises(RecipeError, match="sft_mode"):
        Recipe.from_mapping({"controls": "sft_mode"})
    with pytest.raises(RecipeError, match="train_difficulty names 'hardest'; use easy, medium, hard"):
        Recipe.from_mapping({"train_difficulty": "easy, hardest"})
    with pytest.raises(RecipeError, match="set sft: true, or leave transcripts out"):
        Recipe.from_mapping({"transcripts": "mine.jsonl"})
