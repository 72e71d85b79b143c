"""SFT with more data and rejection sampling beside GRPO: what they cost is counted, and both train for real."""

import dataclasses
from pathlib import Path

import pytest
from labs import lab_with

from agentkit import Lab, Recipe, Task
from agentkit.policies.loading import agent_of
from agentkit.runs import SPLITS, Run, RunError, append_jsonl, write_jsonl, write_tasks
from agentkit.runs.trajectory_files import read_trajectories, write_trajectories
from agentkit.training import controls, jobs
from agentkit.training.controls import fresh_demonstrations, train_control
from agentkit.training.sft import demonstrations

RECIPE = {"sft": False, "sft_transcripts": 1, "sft_batch": 8, "sft_learning_rate": 1e-3, "lora_r": 2,
          "prompts_per_step": 1, "group_size": 4, "micro_batch": 4,
          "max_turns": 6, "max_turn_tokens": 64, "max_tokens": 400, "temperature": 0.7}  # fmt: skip


@pytest.fixture
def finished(suite, tokenizer, tmp_path) -> Run:
    """A run that stores two steps of four trajectories."""
    run = Run.create(tmp_path / "run")
    run.update(recipe=RECIPE)
    shown = demonstrations(lab_with(RECIPE), suite.split("train")[:4], tokenizer)
    for step in (1, 2):
        stored = [dataclasses.replace(t, step=step) for t in shown]
        write_trajectories(stored_in(run, step), stored)
        row = {"step": step, "rollout_seconds": 1.0, "extra_rollouts": 0}
        append_jsonl(run.file("train", "metrics.jsonl"), row)
    return run


def stored_in(run: Run, step: int) -> Path:
    return run.file("train", "trajectories", f"step_{step:05d}.parquet")


def test_more_demonstrations_are_drawn_anew_and_of_every_task(suite, tokenizer):
    careless = lab_with(RECIPE | {"flaws": {"in_head": 0.5, "malformed": 0.3}, "sft_tasks": 6})
    tasks = suite.split("train")[:20]
    first, more = (make(careless, tasks, tokenizer) for make in (demonstrations, fresh_demonstrations))
    assert len(first) == 6 and [t.task_id for t in more] == [task.id for task in tasks]
    again = {t.task_id: t.completion_ids for t in more}
    assert any(again[t.task_id] != t.completion_ids for t in first)


def test_sft_with_more_data_imitates_every_task(finished, suite):
    lab = lab_with(RECIPE | {"sft_transcripts": 2})
    trained, _, figures = train_control("sft_more", lab, finished, suite.split("train")[:10])
    assert figures["trajectories"] == 20
    assert finished.file("sft_more", "adapter_model.safetensors").exists()
    assert not hasattr(trained, "peft_config"), "merged"


def test_rejection_sampling_imitates_the_agents_own_right_answers(finished):
    """Every answer is right here, for what the agent says must not decide the test."""
    tasks = [Task(word, f"Say {word}.", r"(?s).*", {"kind": "regex"}) for word in ("a", "b", "c", "d")]
    _, _, figures = train_control("rft", lab_with(RECIPE), finished, tasks)
    assert figures["tokens"] >= figures["grpo_tokens"]
    assert finished.file("rft", "adapter_model.safetensors").exists()


def test_rejection_sampling_samples_as_much_as_grpo_however_few_tasks_are_held(finished, monkeypatch):
    tasks = [Task(word, f"Say {word}.", r"(?s).*", {"kind": "regex"}) for word in ("a", "b", "c")]
    row = {"step": 1, "rollout_seconds": 1.0, "extra_rollouts": 16}  # which GRPO did not keep
    write_jsonl(finished.file("train", "metrics.jsonl"), [row])
    lab, found = lab_with(RECIPE), []
    for held in (controls.HELD, 2):
        monkeypatch.setattr(controls, "HELD", held)
        agent, tokenizer = agent_of(finished, lab.recipe, "sft")
        right = controls.own_right_answers(lab, finished, agent, tokenizer, tasks)
        found.append([(t.task_id, t.sample, t.seed, t.completion_ids) for t in right])
    assert found[0] == found[1] and len({name for name, *_ in found[0]}) == 3
    never = [dataclasses.replace(task, answer="never", verifier="exact") for task in tasks]
    with pytest.raises(RunError, match=f"none of the agent's {4 + 16} answers .* nothing to imitate"):
        train_control("rft", lab, finished, never)


def test_a_control_samples_by_the_engine_of_its_job(finished):
    """As the servers that were started for it, which the run's recipe does not name."""
    tasks = [Task(split, f"Say {split}.", r"(?s).*", {"kind": "regex"}, "A", split=split) for split in SPLITS]
    write_tasks(finished.file("tasks.jsonl"), tasks)
    for step in finished.steps:
        shown = enumerate(read_trajectories(stored_in(finished, step)))
        stored = [dataclasses.replace(t, task_id="train", sample=i) for i, t in shown]
        write_trajectories(stored_in(finished, step), stored)
    finished.update(recipe={"engine": "server", "server_urls": "http://127.0.0.1:9"})
    jobs.control(Lab.open(Recipe.from_mapping(RECIPE)), finished, print, "rft")
    assert len(finished.trajectories("rft")) == 4
