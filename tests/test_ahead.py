"""Rollouts of the next batches while the update runs: which weights sampled what, what is corrected, and what is
left behind.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest
import torch
from engines import adapter_on, move
from survive import make_trainer, tiny_agent
from test_resume import Stop

from agentkit.policies.sync_guard import sampled_logprobs
from agentkit.policies.twin import TwinPolicy, refresh, twin_of
from agentkit.rollouts.policy import EngineError
from agentkit.runs import read_jsonl
from agentkit.runs.recipe import Recipe, RecipeError
from agentkit.training.adapters import trained_weights, with_weights
from agentkit.training.ahead import Background, Batch
from agentkit.training.grpo import train


def rows_of(trainer):
    return read_jsonl(trainer.run.file("train", "metrics.jsonl"))[1:]


def threads():
    return [thread.name for thread in threading.enumerate() if "ahead" in thread.name]


class Recorder:
    """The adapter after each update, number 0 before the first."""

    def __init__(self, trainer):
        model = trainer.accelerator.unwrap_model(trainer.model)
        self.weights = [trained_weights(model)]
        log = trainer.log

        def logged(logs, start_time=None):
            if "loss" in logs:
                self.weights.append(trained_weights(model))
            log(logs, start_time)

        trainer.log = logged


@pytest.mark.parametrize(("bound", "lags"), [(1, [0, 1, 1, 1, 1, 1]), (2, [0, 1, 2, 1, 2, 1])])
def test_each_batch_is_sampled_with_the_weights_that_its_staleness_says(bound, lags, tmp_path):
    """Log-probabilities at sampling are those of the adapter after so many updates, and of no other."""
    trainer = make_trainer(tmp_path / "run", max_staleness=bound)
    kept = Recorder(trainer).weights
    assert train(trainer)["steps"] == 6 and len(kept) == 7
    assert [row["staleness"] for row in rows_of(trainer)] == lags
    model = trainer.accelerator.unwrap_model(trainer.model)
    for step, lag in enumerate(lags, 1):
        far = [_distance(model, weights, trainer.run.trajectories(step)) for weights in kept]
        assert far[step - 1 - lag] < 1e-4
        assert all(distance > 1e-3 for i, distance in enumerate(far) if i != step - 1 - lag), far
    assert threads() == []


class Keeping(TwinPolicy):
    """What was handed over before goes on sampling: every ``sync`` makes a twin."""

    keeps_weights = True

    def sync(self, model):
        self.made = TwinPolicy(model, self.tokenizer, self.name, self.in_flight, True)
        self.made.sync(model)
        super().sync(model)

    def as_it_is(self):
        return self.made


@pytest.mark.parametrize(("bound", "lags"), [(1, [0, 1, 1, 1, 1, 1]), (2, [0, 1, 2, 1, 2, 1])])
def test_an_engine_that_keeps_weights_samples_the_same_and_two_batches_at_a_time(bound, lags, tmp_path):
    """Each batch ends only after the next has begun, where that one may have newer weights than it."""
    options = {"max_staleness": bound, "val_every": 6}  # validation waits
    plain, trainer = (make_trainer(tmp_path / name, **options) for name in ("plain", "run"))
    train(plain)
    model = trainer.accelerator.unwrap_model(trainer.model)
    trainer.policy = Keeping(model, trainer.policy.tokenizer, "grpo", 128, True)
    trainer.background.close()
    trainer.background = Background(2)
    begun, late, sample = [threading.Event() for _ in range(8)], [], trainer._sample

    def overlapping(step, *arguments):
        begun[step].set()
        found = sample(step, *arguments)
        if step < 6 and not begun[step + 1].wait(30):
            late.append(step)
        return found

    trainer._sample = overlapping
    train(trainer)
    assert late == [] and [row["staleness"] for row in rows_of(trainer)] == lags
    for step in range(1, 7):
        found, expected = (made.run.trajectories(step) for made in (trainer, plain))
        assert [t.completion_ids for t in found] == [t.completion_ids for t in expected]
    assert threads() == []


def _distance(model, weights, trajectories) -> float:
    """Mean absolute difference of log-probabilities at sampling and under these weights, nats a token."""
    differences = []
    with with_weights(model, weights):
        for t in trajectories:
            found = sampled_logprobs(model, list(t.prompt_ids), list(t.completion_ids), 1.0)
            pairs = zip(found, t.old_logprobs, t.action_mask, strict=True)
            differences += [abs(a - b) for a, b, own in pairs if own]
    return sum(differences) / len(differences)


def test_stale_rollouts_are_weighed_and_the_engine_is_compared_with_the_weights_it_was_handed(tmp_path):
    trainer = make_trainer(tmp_path / "run", max_staleness=1)
    train(trainer)
    first, *stale = rows_of(trainer)
    assert first["effective_samples"] == pytest.approx(1.0, abs=1e-4)
    assert all(0 < row["effective_samples"] < first["effective_samples"] for row in stale), (
        "weights that differ"
    )
    assert all(row["mismatch"] < 1e-4 for row in (first, *stale)), "no staleness is taken for a wrong engine"
    assert all(row["sync_gap"] < 1e-4 for row in (first, *stale[:-1])) and "sync_gap" not in stale[-1]
    assert trainer.policy.model is not trainer.model


def test_without_staleness_nothing_is_sampled_ahead_and_no_column_is_added(tmp_path):
    trainer = make_trainer(tmp_path / "run", steps=2)
    train(trainer)
    assert trainer.policy.shares_weights and trainer.lead is None
    assert all(row.keys().isdisjoint({"staleness", "effective_samples"}) for row in rows_of(trainer))


def test_tasks_of_later_batches_are_those_that_come_over_several_epochs(tmp_path):
    """Five tasks, two a step: two batches an epoch, each in an order of its own."""
    trainer = make_trainer(tmp_path / "run", max_staleness=2)
    begun = []
    trainer._begin = lambda number, begin=trainer._begin: begun.append(number) or begin(number)
    train(trainer)
    assert begun == [0], "never another than foreseen"
    other = make_trainer(tmp_path / "other")
    train(other)
    for step in range(1, 7):
        found = [[t.task_id for t in made.run.trajectories(step)] for made in (trainer, other)]
        assert found[0] == found[1]


def test_where_other_tasks_come_than_foreseen_they_are_sampled_at_once(tmp_path):
    trainer = make_trainer(tmp_path / "run", max_staleness=1, steps=3)
    trainer._order = lambda epoch: list(reversed(range(5)))
    train(trainer)
    other = make_trainer(tmp_path / "other", steps=3)
    train(other)
    for step in (1, 2, 3):
        assert len({tuple(t.task_id for t in made.run.trajectories(step)) for made in (trainer, other)}) == 1


def test_minibatches_and_iterations_make_one_batch_of_rollouts(tmp_path):
    trainer = make_trainer(tmp_path / "run", max_staleness=1, num_iterations=2, minibatches=2, micro_batch=2)
    train(trainer)
    assert trainer.run.steps == [1, 5]
    found = [(row["step"], row["staleness"]) for row in rows_of(trainer) if "staleness" in row]
    assert found == [(1, 0), (5, 1)]


def test_stopped_twice_in_one_batch_the_next_is_sampled_with_the_weights_that_were_to_sample_it(tmp_path):
    changes = {"max_staleness": 1, "num_iterations": 2, "minibatches": 2, "micro_batch": 2, "save_every": 1}
    for step in (2, 3):
        trainer = make_trainer(tmp_path / "run", **changes)
        trainer.add_callback(Stop("on_step_begin", step, KeyboardInterrupt("stop")))
        with pytest.raises(KeyboardInterrupt):
            train(trainer)
    trainer, whole = (make_trainer(tmp_path / name, **changes) for name in ("run", "whole"))
    train(trainer)
    train(whole)
    found, expected = (made.run.trajectories(5) for made in (trainer, whole))
    assert [t.completion_ids for t in found] == [t.completion_ids for t in expected]
    assert [row["staleness"] for row in rows_of(trainer) if "staleness" in row] == [0, 1]


def test_dead_groups_are_replaced_in_the_background(tmp_path):
    trainer = make_trainer(
        tmp_path / "run", reward=lambda task, t: 1.0, max_staleness=1, steps=3, dead_groups="replace"
    )
    train(trainer)
    assert [row["extra_rollouts"] for row in rows_of(trainer)] == [8, 8, 8]


# ---- wrong engines
def test_weights_that_never_arrive_are_found_at_the_next_sync(tmp_path):
    trainer = make_trainer(tmp_path / "run", max_staleness=1)
    trainer.policy.sync(trainer.accelerator.unwrap_model(trainer.model))
    trainer.policy.sync = lambda model: None
    with pytest.raises(EngineError, match="after the weights were handed over, engine and trainer differ"):
        train(trainer)
    assert threads() == []


def test_an_engine_that_goes_wrong_between_syncs_is_found_in_the_batch(tmp_path):
    trainer = make_trainer(tmp_path / "run", max_staleness=1)
    sample = trainer._sample

    def wrong(step, *arguments):
        if step == 3:
            for weight in own:
                weight.data += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        return sample(step, *arguments)

    frozen = {n: p.clone() for n, p in trainer.model.named_parameters() if not p.requires_grad}
    shared = {weight.data_ptr() for weight in trainer.model.parameters()}
    own = [weight for weight in trainer.policy.model.parameters() if weight.data_ptr() not in shared]
    trainer._sample = wrong
    with pytest.raises(EngineError, match="in the rollouts of step 3 .*sampled by another policy"):
        train(trainer)
    assert all(torch.equal(frozen[n], p) for n, p in trainer.model.named_parameters() if n in frozen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_twin_follows_only_when_it_is_told_and_shares_what_is_frozen(dtype):
    model, tokenizer = tiny_agent()
    model = adapter_on(model.to(dtype), 0.05)
    ids = torch.arange(5, 45)[None]
    twin = twin_of(model)
    refresh(twin, model)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        assert torch.allclose(twin(input_ids=ids).logits, before, atol=1e-5)
        move(model, 0.3, seed=3)
        assert torch.allclose(twin(input_ids=ids).logits, before, atol=1e-5)
        refresh(twin, model)
        assert torch.allclose(twin(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5)
    trained = {p.data_ptr() for p in model.parameters()}
    own = [name for name, p in twin.named_parameters() if p.data_ptr() not in trained]
    assert own and all(("lora_" if dtype == torch.bfloat16 else "_proj.weight") in name for name in own)
    assert not {id(module) for module in model.modules()} & {id(module) for module in twin.modules()}
    assert not [module for module in twin.modules() if "forward" in vars(module)]


# ---- ends
def test_an_error_in_the_background_is_raised_in_the_step_with_its_own_words(tmp_path):
    trainer = make_trainer(tmp_path / "run", max_staleness=1)
    sample = trainer._sample

    def failing(step, *arguments):
        if step == 4:
            raise EngineError("the engine fell over")
        return sample(step, *arguments)

    trainer._sample = failing
    with pytest.raises(EngineError, match="^the engine fell over$"):
        train(trainer)
    assert trainer.state.global_step == 3 and threads() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), ValueError("of another callback")])
def test_rollouts_under_way_end_with_the_training(error, tmp_path):
    trainer = make_trainer(tmp_path / "run", max_staleness=1)
    sample, turn, stuck = trainer._sample, trainer.policy.sample, threading.Event()

    def begin(step, *arguments):
        if step == 4:
            stuck.set()
        return sample(step, *arguments)

    async def endless(request):
        if stuck.is_set():
            await asyncio.sleep(3600)
        return await turn(request)

    trainer._sample, trainer.policy.sample = begin, endless
    trainer.add_callback(Stop("on_pre_optimizer_step", 2, error))
    with pytest.raises(type(error), match=str(error)):
        train(trainer)
    assert stuck.is_set() and threads() == []


def test_works_come_in_order_and_what_is_dropped_is_ended():
    background, seen = Background(), []

    async def long():
        seen.append("begun")
        await asyncio.sleep(3600)

    first, second, third = (Batch(number, (), ()) for number in range(3))
    background.start(first, lambda: "one")
    background.start(second, lambda: background.run(long()))
    background.start(third, lambda: seen.append("third"))
    assert background.first is first and background.take() == "one" and background.first is second
    while not seen:
        time.sleep(0.01)
    background.drop()
    assert background.first is None and seen == ["begun"]
    background.start(third, lambda: background.run(asyncio.sleep(0, "again")))
    assert background.take() == "again"
    background.close()
    assert threads() == []


def test_a_work_that_asks_the_process_to_exit_ends_alone():
    """As a tool may that ends its program; the loop that both share goes on."""
    background = Background(2)

    async def leaves():
        sys.exit("gone")

    background.close()  # nothing was begun
    background = Background(2)
    background.start(Batch(0, (), ()), lambda: background.run(leaves()))
    background.start(Batch(1, (), ()), lambda: background.run(asyncio.sleep(0.2, "there")))
    with pytest.raises(SystemExit, match="gone"):
        background.take()
    background._works.popleft()
    assert background.take() == "there"
    background.close()
    background.close()
    assert threads() == []


def test_two_batches_share_what_the_engine_serves_at_a_time(tmp_path):
    trainer = make_trainer(tmp_path / "run", max_staleness=1, max_batch=3, val_every=6, steps=4)
    model = trainer.accelerator.unwrap_model(trainer.model)
    trainer.policy = Keeping(model, trainer.policy.tokenizer, "grpo", 3, True)
    trainer.background = Background(2)
    under_way, most, begin, end = set(), [], TwinPolicy.begin, TwinPolicy.end

    def begun(policy, number):
        under_way.add(number)
        most.append(len(under_way))
        begin(policy, number)

    def ended(policy, number):
        under_way.discard(number)
        end(policy, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TwinPolicy, "begin", begun)
        patch.setattr(TwinPolicy, "end", ended)
        train(trainer)
    assert max(most) == 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"engine": "unsloth"}, "engine: unsloth samples with the very weights that are trained"),
        ({"mismatch": "off"}, "which mismatch: off would not correct"),
        ({"hindsight_weight": 1.0}, "leave one of the two out"),
        ({"max_staleness": 3}, "between 0 and 2"),
    ],
)
def test_what_cannot_go_with_it_is_refused(changes, why):
    with pytest.raises(RecipeError, match=why):
        Recipe.from_mapping({"max_staleness": 1} | changes)
