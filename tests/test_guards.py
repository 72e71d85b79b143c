"""Guards: steps that are not finite, and rewards that fail."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from survive import evenness, make_trainer

from agentkit.records import RecipeError, StopReason, TrainingError, Trajectory
from agentkit.rollouts.loop import OUT_OF_TIME
from agentkit.runs import read_jsonl
from agentkit.training import checkpoint_folders, loop
from agentkit.training.guards import Guards
from agentkit.training.saves import ADAPTER
from agentkit.training.selection import spread_over


# ---- steps
def spoil(trainer, steps, value=math.nan):
    """From now on the gradient of these steps is multiplied by a value that is not finite."""
    original = trainer.backward

    def spoiled(batch):
        sums = original(batch)
        for p in trainer.trained if trainer.done + 1 in steps else ():
            p.grad *= value
        return sums

    trainer.backward = spoiled


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_steps_that_are_not_finite_are_skipped_and_counted(value, tmp_path):
    trainer = make_trainer(tmp_path / "run", save_every=1, steps=4)
    spoil(trainer, {2, 4}, value)
    trainer.train()
    rows = read_jsonl(tmp_path / "run" / "train" / "metrics.jsonl")
    assert [row.get("skipped_steps") for row in rows] == [None, None, 1, 1, 2]
    assert [row.get("loss") is None for row in rows] == [True, False, True, False, True]
    checkpoints = trainer.run.file("train", "checkpoints")
    third, fourth = ((checkpoints / f"checkpoint-{n}" / ADAPTER).read_bytes() for n in (3, 4))
    assert fourth == third, "step 4 changed nothing"
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_three_in_a_row_stop_training_with_a_checkpoint_from_which_it_goes_on(tmp_path):
    path = tmp_path / "run"
    trainer = make_trainer(path, save_every=0)
    spoil(trainer, {2, 3, 4, 5, 6})
    with pytest.raises(TrainingError, match="3 steps in a row .* goes on from here"):
        trainer.train()
    assert [p.name for p in checkpoint_folders.steps(path / "train" / "checkpoints")] == ["checkpoint-4"]
    assert [row["step"] for row in read_jsonl(path / "train" / "metrics.jsonl")] == [0, 1, 2, 3, 4]
    trainer = make_trainer(path, save_every=0)
    assert trainer.train()["steps"] == 6
    assert read_jsonl(path / "train" / "metrics.jsonl")[-1]["skipped_steps"] == 3


# ---- rewards
def failing(samples, how, tasks=("train-0", "train-1", "train-2", "train-3", "train-4")):
    """A reward that fails on these members of these tasks' groups."""

    def reward(task, trajectory):
        if trajectory.sample in samples and task.id in tasks:
            if how == "raises":
                raise ValueError("no such thing")
            return how
        return evenness(task, trajectory)

    return reward


@pytest.mark.filterwarnings("ignore:reward component")
@pytest.mark.parametrize("how", ["raises", math.inf])
def test_a_reward_that_fails_now_and_then_is_masked_and_counted(how, tmp_path):
    trainer = make_trainer(tmp_path / "run", reward=failing({1}, how, ("train-0", "train-3")), steps=3)
    trainer.train()
    found = [t for step in (1, 2, 3) for t in trainer.run.trajectories(step)]
    masked = [t for t in found if t.reward is None]
    assert 0 < len(masked) <= 3 and all(t.advantage == 0 for t in masked)
    assert sum(trainer.guards.unscored) == len(masked)
    assert all(math.isfinite(t.reward) for t in found if t.reward is not None)


@pytest.mark.filterwarnings("ignore:reward component")
@pytest.mark.parametrize(("how", "samples"), [("raises", {0, 1, 2, 3}), (math.nan, {2})])
def test_above_a_fifth_the_run_stops_and_says_why(how, samples, tmp_path):
    trainer = make_trainer(tmp_path / "run", reward=failing(samples, how), save_every=0)
    says = "of the latest trajectories have no reward, more than 20%.*evenness failed"
    with pytest.raises(TrainingError, match=says):
        trainer.train()


def late(monkeypatch, members):
    """Rollouts in which these members of a step's trajectories ran out of time before their first token."""
    real = loop.rollout

    def slow(*args, **options):
        sampled = real(*args, **options)
        if options["group_size"] == 1:  # validation
            return sampled
        gone = {"completion_ids": (), "action_mask": (), "old_logprobs": (), "turns": (), "answer": None}
        gone |= {"success": None, "why": OUT_OF_TIME, "stop_reason": StopReason.TIME_LIMIT}
        return [replace(t, **gone) if i in members else t for i, t in enumerate(sampled)]

    monkeypatch.setattr(loop, "rollout", slow)


def test_one_that_ends_before_its_first_token_is_counted_and_not_trained_on(monkeypatch, tmp_path):
    late(monkeypatch, {0})
    trainer = make_trainer(tmp_path / "run", steps=2)
    trainer.train()
    for row in read_jsonl(tmp_path / "run" / "train" / "metrics.jsonl")[1:]:
        share = 1 / len(trainer.run.trajectories(1))
        assert row["no_turn"] == row["out_of_time"] == row["reward_unscored"] == share
        assert math.isfinite(row["loss"]) and 0 < row["grad_norm"] < math.inf
    (gone,) = [t for t in trainer.run.trajectories(2) if not t.turns]
    assert gone.reward is None and gone.advantage == 0 and not any(gone.action_mask)


def test_more_than_a_fifth_out_of_time_stop_the_run_with_advice(monkeypatch, tmp_path):
    late(monkeypatch, {0, 1, 2})
    with pytest.raises(TrainingError, match="have no reward, more than 20%: .*time.* a limit on time"):
        make_trainer(tmp_path / "run", steps=2, save_every=0).train()


def test_the_share_is_taken_over_the_latest_trajectories_and_a_checkpoint_remembers_them():
    tokens = {"prompt_ids": (1,), "completion_ids": (2,), "action_mask": (1,), "old_logprobs": (-1.0,)}
    good = Trajectory("t", "p", 0, 0, **tokens, turns=(), stop_reason=StopReason.ANSWER, reward=1.0)
    bad = replace(good, reward=None, success=None, why="verifier failed: boom")
    guards = Guards()
    guards.scored([bad] * 2)  # one or two are no pattern
    guards.scored([good] * 50 + [bad] * 8)
    assert guards.state()["unscored"] == [1] * 2 + [0] * 50 + [1] * 8
    guards.scored([good] * 8)
    assert len(guards.unscored) == 64
    other = Guards()
    other.restore(guards.state())
    other.scored([bad] * 4)  # 12 of 64
    with pytest.raises(TrainingError, match="boom"):
        other.scored([bad] * 2)


# ---- validation
@pytest.mark.parametrize(("before", "kept"), [(0.03, 2), (0.3, 0)])
def test_the_last_adapter_within_a_standard_error_of_the_best_is_kept(tmp_path, monkeypatch, before, kept):
    """The tiny agent solves nothing; of 25 tasks 0.03 may be chance and 0.3 is not."""
    trainer = make_trainer(tmp_path / "run", val_every=1, steps=2)
    trainer.best = (before, 0)
    monkeypatch.setattr(trainer, "validation", [trainer.validation[0]] * 25)
    assert trainer.train()["best_step"] == kept


def test_the_bar_for_a_validation_does_not_sink_with_what_is_kept(tmp_path, monkeypatch):
    """A standard error of the best, 0.5 in 25 tasks, is 0.1: 0.45 is within it, and 0.36 within 0.45's only."""
    trainer = make_trainer(tmp_path / "run", val_every=1, steps=2)
    success = iter((0.5, 0.45, 0.36))
    monkeypatch.setattr(loop, "summarize", lambda *_: {"success": next(success), "ci95": [0.0, 1.0]})
    monkeypatch.setattr(trainer, "validation", [trainer.validation[0]] * 25)
    result = trainer.train()
    assert (result["best_step"], result["best_val_success"]) == (1, 0.5)


def test_the_last_step_takes_the_place_of_step_0_where_it_is_to_be_measured(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "run", val_every=1, steps=2, measure_last=True)
    success = iter((1.0, 0.0, 0.0))
    monkeypatch.setattr(loop, "summarize", lambda *_: {"success": next(success), "ci95": [0.0, 1.0]})
    result = trainer.train()
    assert (result["best_step"], result["best_val_success"]) == (0, 1.0)
    assert (result["measured_step"], result["measured_val_success"]) == (2, 0.0)
    folders = trainer.run.file("adapter"), trainer.run.file("train", "checkpoints", "checkpoint-2")
    adapter, last, best = (load_file(f / ADAPTER) for f in (*folders, folders[1] / "best"))
    assert all(torch.equal(adapter[name], last[name]) for name in last)
    assert not all(torch.equal(adapter[name], best[name]) for name in last), "what validation kept"


def test_fewer_training_tasks_than_a_step_takes_are_refused(tmp_path):
    with pytest.raises(RecipeError, match="prompts_per_step 2 is more than the 1 training tasks"):
        make_trainer(tmp_path / "run", n_tasks=1)


def test_validation_is_spread_over_a_suite_that_goes_family_by_family():
    suite = ["A"] * 38 + ["B"] * 31 + ["C"] * 37
    counts = Counter(spread_over(suite, 40))
    assert sum(counts.values()) == 40 and min(counts.values()) >= 11
    assert spread_over(suite, 500) == suite and spread_over([], 40) == []
