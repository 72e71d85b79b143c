"""What is trained on: dead groups kept, dropped and replaced, truncation; and each in real training."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from survive import make_trainer

from agentkit.diagnostics import observe
from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.preflight.checks import dead_groups
from agentkit.recipe import Recipe, RecipeError
from agentkit.records import Group, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import Run, read_jsonl
from agentkit.training import advantages
from agentkit.training.advantages import teaches_nothing
from agentkit.training.loop import GRPO
from agentkit.training.selection import left_out, select
from agentkit.trajectories import is_dead, is_truncated, reward_range

GOOD = ToolResult("search", {}, "found", ok=True)
FAILED = ToolResult("search", {}, "Error.", ok=False)


def trajectory(reward, *results, task="t", sample=0, stop=StopReason.ANSWER, answer="1") -> Trajectory:
    turns = tuple(Turn("", (n, n + 1), tuple(own)) for n, own in enumerate(results or [()]))
    tokens = {"prompt_ids": (1,), "completion_ids": (2, 2), "action_mask": (1, 1), "old_logprobs": (0.0, 0.0)}
    tokens |= {"turns": turns, "stop_reason": stop, "answer": answer, "success": reward, "reward": reward}
    return Trajectory(task, "p", sample, 0, **tokens)


def group(*rewards, task="t") -> Group:
    return Group(task, tuple(trajectory(r, task=task, sample=i) for i, r in enumerate(rewards)))


@pytest.mark.parametrize(
    ("rewards", "dead"),
    [((1.0, 0.0), False), ((1.0, 1.0), True), ((None, 1.0), True), ((), True), ((1.0, None, 0.5), False)],
)
def test_a_dead_group_has_fewer_than_two_different_rewards(rewards, dead):
    assert is_dead(group(*rewards)) is dead
    assert (reward_range(group(*rewards)) < 1e-9) is dead


# ---- truncated
def test_limits_on_tokens_and_time_truncate():
    stops = [StopReason.TRUNCATED_TURN, StopReason.TOKEN_LIMIT, StopReason.TIME_LIMIT]
    for stop in (StopReason.ANSWER, StopReason.TURN_LIMIT, *stops):
        assert is_truncated(trajectory(0.0, [GOOD], stop=stop, answer=None)) == (stop in stops)


def test_left_out_follows_the_recipe():
    mixed = Group("t", (trajectory(1.0), trajectory(0.0, stop=StopReason.TOKEN_LIMIT)))
    groups = [mixed, group(1.0, 1.0)]
    table = [(False, False, [0, 0, 0, 0]), (True, False, [0, 0, 1, 1]), (False, True, [0, 1, 0, 0])]
    for drops, truncated, expected in table:
        dropped = [drops and is_dead(group) for group in groups]
        assert left_out(groups, dropped, truncated) == [bool(x) for x in expected]
    failed = Group("t", (trajectory(1.0), replace(trajectory(0.0), reward=None)))
    assert left_out([failed], [False], False) == [False, True], "it would count as a token of the loss"


# ---- dynamic sampling
def tasks(*names):
    return [Task(name, name, "1") for name in names]


def test_select_counts_what_it_did():
    recipe = Recipe.from_mapping({"dead_groups": "replace", "group_size": 2, "prompts_per_step": 4})

    def roll_out(own, size):
        """Those whose names start with d are dead groups."""
        groups = [group(1.0, float(task.id.startswith("d")), task=task.id) for task in own]
        return [t for each in groups for t in each.trajectories]

    found = select(tasks("d1", "d2", "a", "b"), tasks("d3", "c", "d4"), roll_out, is_dead, recipe)
    assert [t.task_id for t in found.trajectories][::2] == ["c", "d2", "a", "b"]
    expected = {"dead": 1, "dead_sampled": 2, "replaced": 1, "dropped": 0, "extra": 6, "left_out": 0}
    assert found.counts == expected


# ---- in training
SMALL = {"steps": 1, "prompts_per_step": 2, "group_size": 4, "micro_batch": 4, "val_tasks": 1, "lora_r": 2, "temperature": 1.5,
         "learning_rate": 1e-3, "beta": 0.02, "max_turns": 3, "max_turn_tokens": 24, "max_tokens": 160}  # fmt: skip


@pytest.fixture(scope="module")
def agent():
    return load_agent("nano")


def trained(agent, suite, path, **changes):
    """A real training step; the trainer, what it stored and its metrics row. LoRA is taken off again."""
    model, tokenizer = agent
    recipe = Recipe.from_mapping(SMALL | changes)
    run = Run.create(path)
    tasks, validation = suite.split("train"), suite.split("validation")[:1]
    trainer = GRPO(Lab.open(recipe), model, tokenizer, tasks, validation, run)
    seen, update = [], trainer.update
    trainer.update = lambda batch, lessons: seen.append(batch) or update(batch)
    trainer.train()
    trainer.model.unload()
    return seen[0], run.trajectories(1), read_jsonl(run.file("train", "metrics.jsonl"))[-1]


@pytest.mark.parametrize("estimator", ["gdpo", "turn"])
def test_estimators_train(agent, suite, tmp_path, estimator):
    reward = {"correctness": 1, "format": 1, "efficiency": 1}
    batch, stored, row = trained(agent, suite, tmp_path / "run", advantage=estimator, reward=reward)
    if estimator == "turn":
        assert not batch.advantages[~batch.mask].any(), "replies have no advantage"
    told = [a[m].mean().item() for a, m in zip(batch.advantages, batch.mask, strict=True)]
    assert [t.advantage for t in stored] == pytest.approx(told, abs=1e-6)
    assert torch.isfinite(torch.tensor([row["loss"], row["grad_norm"]])).all()


def test_dropped_groups_and_masked_trajectories_are_outside_the_loss(agent, suite, tmp_path):
    flat = {"reward": {"correctness": 0}}
    batch, stored, row = trained(agent, suite, tmp_path / "run", dead_groups="drop", **flat)
    assert not batch.mask.any() and {t.reward for t in stored} == {0.0}
    assert (row["dead_groups"], row["groups_dropped"], row["left_out"], row["loss"]) == (1.0, 2, 1.0, 0.0)
    assert "entropy" not in row, "no token was scored"
    assert observe(row)["not_finite"] == 0.0, "which is no accident"
    assert row["grad_norm"] == 0.0, "no KL term either"


def test_dead_groups_are_replaced_and_truncated_ones_masked_in_training(agent, suite, tmp_path):
    keys = {"mask_truncated": True, "dead_groups": "replace", "reward": {"overlong": 1}}
    batch, stored, row = trained(agent, suite, tmp_path / "run", **keys)
    assert len(stored) == 8 and len({t.task_id for t in stored}) == 2
    assert [t.sample for t in stored] == [0, 1, 2, 3] * 2
    out = [is_truncated(t) for t in stored]
    assert batch.mask.any(1).tolist() == [not o for o in out] and row["left_out"] == sum(out) / 8
    assert row["extra_rollouts"] % 8 == 0
    assert {"reward/overlong", "weighted/overlong", "dead_groups_sampled"} <= row.keys()


def test_a_group_of_equal_rewards_lives_where_the_estimator_still_learns_from_it():
    """Turn-level advantages differ where totals do not: such a group is neither dropped nor replaced."""
    alike = Group("t", (trajectory(1.0, [GOOD], []), trajectory(1.0, [FAILED], [], sample=1)))
    assert is_dead(alike)
    for estimator, dead in (("group", True), ("rloo", True), ("turn", False)):
        recipe, known = Recipe(advantage=estimator), {"t": Task("t", "", "1")}
        assert teaches_nothing(known, {}, recipe, alike) is dead, estimator
        assert dead_groups([alike], partial(teaches_nothing, known, {}, recipe)).values["seen"] == dead


def test_a_group_without_a_turn_teaches_nothing():
    """As where no environment could be reset, or all ran out of time in their first turn."""
    unscored = {"turns": (), "components": {"right": None}}
    silent = Group("t", tuple(replace(trajectory(None, sample=i), **unscored) for i in range(2)))
    rewards = {"right": (lambda task, t: t.success, 1.0)}
    for estimator in advantages.ESTIMATORS:
        assert teaches_nothing({"t": Task("t", "", "1")}, rewards, Recipe(advantage=estimator), silent)


def test_a_batch_of_rollouts_is_split_into_optimiser_steps(tmp_path):
    trainer = make_trainer(tmp_path / "run", steps=4, minibatches=2, micro_batch=4, prompts_per_step=4)
    trainer.train()
    rows = read_jsonl(tmp_path / "run" / "train" / "metrics.jsonl")[1:]
    assert [("rollout_seconds" in row) for row in rows] == [True, False, True, False]
    assert all(row["grad_norm"] > 0 for row in rows)
    assert rows[0]["kl"] < 1e-6 < rows[2]["kl"], "from the model without its adapter"
    assert [step.number for step in trainer._watch.history] == [0, 2, 4], "alarms see a batch once"
    assert all(step["trajectories"] == 16 for step in trainer._watch.history[1:])
    with pytest.raises(RecipeError, match="minibatches 3 must divide the 4 forward and backward passes"):
        Recipe.from_mapping({"minibatches": 3, "prompts_per_step": 4, "group_size": 4, "micro_batch": 4})
