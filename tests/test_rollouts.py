"""Trajectories are token-exact: masks, log-probabilities, and seeds that fix everything."""

import asyncio
import random
import time
import weakref
from functools import partial

import pytest
import torch
from says import Says

from agentkit.policies.loading import load_agent
from agentkit.policies.scripted import ScriptedPolicy
from agentkit.policies.sync_guard import sampled_logprobs
from agentkit.policies.transformers import TransformersPolicy, draw
from agentkit.records import StopReason, Task
from agentkit.rollouts import Limits, rollout
from agentkit.rollouts.call_formats import format_call
from agentkit.rollouts.chat import ChatCodec
from agentkit.rollouts.policy import EngineError
from agentkit.tools.environments import SYSTEM_PROMPT, CorpusEnvironment
from agentkit.tools.runtime import tool_schemas


@pytest.fixture(scope="module")
def agent():
    return load_agent("nano")


@pytest.fixture(scope="module")
def trajectories(agent, suite, corpus):
    """Random multi-turn trajectories of the small agent, at a temperature that makes it err."""
    tasks = random.Random(3).sample(list(suite), 12)
    policy = TransformersPolicy(*agent, name="nano")
    return sampled(tasks, policy, corpus, 5)


def sampled(tasks, policy, corpus, seed):
    options = {"group_size": 2, "temperature": 1.2, "limits": Limits(max_turns=6, max_turn_tokens=64)}
    return rollout(tasks, policy, environment=partial(CorpusEnvironment, corpus), seed=seed, **options)


def test_the_mask_is_one_exactly_on_sampled_tokens(trajectories):
    for t in trajectories:
        sampled = {i for turn in t.turns for i in range(*turn.span)}
        assert [i in sampled for i in range(len(t.completion_ids))] == [m == 1 for m in t.action_mask]
        assert len(t.completion_ids) == len(t.action_mask) == len(t.old_logprobs)
    assert any(0 in t.action_mask for t in trajectories), "no trajectory called a tool"


def test_sampled_logprobs_equal_a_recomputed_forward(agent, trajectories):
    model, _ = agent
    for t in trajectories:
        found = torch.tensor(sampled_logprobs(model, t.prompt_ids, t.completion_ids, 1.2))
        own = torch.tensor(t.action_mask, dtype=torch.bool)
        assert torch.allclose(found[own], torch.tensor(t.old_logprobs)[own], atol=1e-4)
        assert all(logprob == 0.0 for logprob, m in zip(t.old_logprobs, t.action_mask, strict=True) if m == 0)


def test_the_same_seed_gives_the_same_trajectories_in_any_company(agent, suite, corpus, trajectories):
    tasks = random.Random(3).sample(list(suite), 12)[:4]
    policy = TransformersPolicy(*agent, name="nano", max_batch=5)
    again, other = (sampled(tasks, policy, corpus, seed) for seed in (5, 6))
    assert [t.completion_ids for t in again] == [t.completion_ids for t in trajectories[:8]]
    assert [t.completion_ids for t in other] != [t.completion_ids for t in again]


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("turns", "limits", "stop"),
    [
        (["Answer: 3"], Limits(), StopReason.ANSWER),
        ([CALL], Limits(max_turns=3), StopReason.TURN_LIMIT),
        (["and so on and on and on"], Limits(max_turn_tokens=4), StopReason.TRUNCATED_TURN),
        ([CALL], Limits(max_tokens=60), StopReason.TOKEN_LIMIT),
        ([CALL], Limits(trajectory_timeout_s=-1.0), StopReason.TIME_LIMIT),
    ],
)
def test_every_end_has_its_stop_reason(agent, suite, corpus, turns, limits, stop):
    policy = Says(agent[1], *turns)
    (t,) = rollout(list(suite)[:1], policy, environment=partial(CorpusEnvironment, corpus), limits=limits)
    assert t.stop_reason == stop
    assert len(t.completion_ids) == len(t.action_mask) == len(t.old_logprobs) <= limits.max_tokens
    assert t.success == (None if stop == StopReason.TIME_LIMIT else 0.0)


@pytest.mark.parametrize("room", [1, 60, 130])
def test_a_trajectory_ends_where_what_the_engine_reads_does(agent, suite, corpus, room):
    """And a prompt that leaves no room is an error that says so."""
    policy, task = Says(agent[1], CALL), list(suite)[:1]
    play = partial(rollout, task, policy, environment=partial(CorpusEnvironment, corpus))
    (free,) = play(limits=Limits(max_tokens=room))
    policy.max_length = len(free.prompt_ids) + room
    (bounded,) = play()
    assert bounded.stop_reason == StopReason.TOKEN_LIMIT
    assert bounded.completion_ids == free.completion_ids and len(bounded.completion_ids) <= room
    policy.max_length = len(free.prompt_ids)
    with pytest.raises(EngineError, match=f"has {policy.max_length} tokens, and the engine reads"):
        play()


class Meeting:
    """Two who wait for each other, and a list that must be written in order."""

    def reset(self, **row):
        self.here, self.notes = 0, ""

    async def meet(self) -> str:
        """Wait until two are here."""
        self.here += 1
        while self.here < 2:
            await asyncio.sleep(0.01)
        return f"{self.here} met"

    def note(self, letter: str) -> str:
        """Note a letter.

        Args:
            letter: Any.
        """
        time.sleep(0.1 if letter == "a" else 0)
        self.notes += letter
        return self.notes


def test_coroutines_of_one_turn_run_together_and_what_may_depend_on_order_in_order(agent):
    calls = [("note", {"letter": "a"}), ("meet", {}), ("meet", {}), ("note", {"letter": "b"}), ("none", {})]
    turn = "".join(format_call(name, arguments, "hermes") for name, arguments in calls)
    limits = Limits(tool_timeout_s=60)
    (t,) = rollout([Task("t", "?", "3")], Says(agent[1], turn, "3"), environment=Meeting, limits=limits)
    results = t.turns[0].results
    assert [r.observation for r in results[:4]] == ["a", "2 met", "2 met", "ab"]
    assert [r.name for r in results] == [name for name, _ in calls] and not results[4].ok


def test_greedy_takes_the_most_likely_token_and_sampling_follows_the_distribution():
    logits = torch.log(torch.tensor([[0.1, 0.6, 0.3]])).repeat(20_000, 1)
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens, logprobs = draw(logits, torch.ones(20_000), uniforms)
    shares = torch.bincount(tokens, minlength=3) / 20_000
    assert torch.allclose(shares, torch.tensor([0.1, 0.6, 0.3]), atol=0.015)
    assert torch.allclose(logprobs.exp(), torch.tensor([0.1, 0.6, 0.3])[tokens], atol=1e-5)
    tokens, _ = draw(logits[:5], torch.zeros(5), uniforms[:5])
    assert tokens.tolist() == [1] * 5
    impossible = torch.tensor([[0.0, float("-inf"), 0.0]]).repeat(3, 1)
    tokens, _ = draw(impossible, torch.ones(3), torch.tensor([0.0, 0.5, 1 - 1e-12], dtype=torch.float64))
    assert tokens.tolist() == [0, 2, 2]


def test_prompts_carry_question_and_tools_but_no_gold_data(agent, suite, corpus):
    codec = ChatCodec(agent[1], SYSTEM_PROMPT, tool_schemas(CorpusEnvironment(corpus)))
    for task in list(suite)[:30]:
        text = codec.decode(codec.prompt_ids(task.prompt))
        assert task.prompt in text and '"calculator"' in text
        assert task.answer in task.prompt or f" {task.answer}<" not in text


def test_environments_go_as_their_trajectories_end(tokenizer):
    """Each may hold a database, a container or a connection: no more are alive than work."""
    alive, most = weakref.WeakSet(), []

    class Holding:
        def __init__(self):
            alive.add(self)

        def reset(self, **row):
            most.append(len(alive))

        def look(self) -> str:
            """Look."""
            return "seen"

    plan = [{"tool": "look", "arguments": {}}]
    tasks = [Task(str(i), f"Look {i}.", "seen", "exact", "x", meta={"plan": plan}) for i in range(12)]
    policy = ScriptedPolicy(tokenizer)
    policy.in_flight = 2
    assert all(t.success == 1.0 for t in rollout(tasks, policy, environment=Holding))
    assert len(most) == 12 and max(most) <= 4
