"""Thoughts are kept or cut by choice: what the loop writes is never trained on, and every token stays exact."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest
import torch
from test_templates import Library, quiet, templated

from agentkit import Task, rollout
from agentkit.policies.scripted import ScriptedPolicy
from agentkit.recipe import Recipe
from agentkit.records import RecipeError, StopReason
from agentkit.rollouts import Limits
from agentkit.rollouts.call_formats import THINK, THOUGHT, format_call
from agentkit.rollouts.chat import ChatCodec
from agentkit.rollouts.policy import Policy, Request, Sample
from agentkit.rollouts.template_probe import end_of_turn, with_template
from agentkit.rollouts.tokens import faults, xray
from agentkit.runs import read_trajectories, write_trajectories
from agentkit.tools.runtime import tool_schemas

TASK = Task("t", "What is it?", "Paris")


class Thinks(Policy):
    """Thinks for so many words a turn, then calls or answers; goes on from wherever it is asked to."""

    name = "thinks"

    def __init__(self, tokenizer, opened: bool, lengths: list[int], said: list[str]):
        self.tokenizer, self.opened, self.lengths, self.said = tokenizer, opened, lengths, said

    async def sample(self, request: Request) -> Sample:
        before = self.tokenizer.decode(request.ids[len(request.ids) - request.begun :])
        words = [f"word{i}" for i in range(self.lengths[request.turn])]
        thought = " ".join(words)
        end = end_of_turn(self.tokenizer, called=request.turn + 1 < len(self.said))
        tail = self.said[request.turn] + end
        if THOUGHT in before:
            whole = tail.removeprefix(before.partition(THOUGHT)[2].lstrip("\n"))
        else:
            begin = "" if self.opened else f"{THINK}\n"
            whole = f"{begin}{thought}\n{THOUGHT}\n\n{tail}".removeprefix(before)
        ids = self.tokenizer(whole, add_special_tokens=False)["input_ids"][: request.max_new_tokens]
        return Sample(ids, [-1.0 - i for i in range(len(ids))])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "glm4moe", "llama3_1"])
def test_a_cut_thought_is_ended_by_the_loop_and_only_what_was_sampled_is_trained_on(
    tokenizer, tmp_path, name
):
    other, rng = templated(tokenizer, name), random.Random(name)
    codec = quiet(ChatCodec, other, "Use the tools.", tool_schemas(Library()))
    opened = other.decode(codec.prompt_ids("Why?")).rstrip().endswith(THINK)
    for _ in range(4):
        calls = [format_call("look_up", {"number": rng.randrange(6)}, codec.format, codec.tools)]
        said, lengths = (
            [*calls * rng.randint(1, 3), "Answer: Paris"],
            [rng.choice([0, 3, 40]) for _ in range(4)],
        )
        policy = Thinks(other, opened, lengths, said)
        limits = Limits(20, 2_000, 30_000, max_thought=20)
        options = {"environment": Library, "system_prompt": "Use the tools."}
        (found,) = rollout([TASK], policy, limits=limits, **options)
        (kept,) = rollout([TASK], policy, limits=replace(limits, max_thought=0), **options)
        assert kept.success == found.success == 1.0 and not any(turn.closings for turn in kept.turns)
        assert all(kept.action_mask[i] for turn in kept.turns for i in range(*turn.span))
        assert faults(found, codec.decode) == faults(kept, codec.decode) == []
        for turn, length in zip(found.turns, lengths, strict=False):
            assert len(turn.closings) == (length == 40)
            for start, end in turn.closings:
                assert list(found.completion_ids[start:end]) == codec.closing
                assert not any(found.action_mask[start:end]) and not any(found.old_logprobs[start:end])
                begun = turn.span[0] + codec.decode(found.completion_ids[turn.span[0] : start]).count(THINK)
                assert start - begun >= 20 and start - turn.span[0] <= 20 + 8  # with <think> itself
        written = {i for turn in found.turns for closing in turn.closings for i in range(*closing)}
        spans = {i for turn in found.turns for i in range(*turn.span)}
        assert {i for i, mask in enumerate(found.action_mask) if mask} == spans - written
        path = write_trajectories(tmp_path / "t.parquet", [found])
        assert [replace(t, old_logprobs=()) for t in read_trajectories(path)] == [
            replace(found, old_logprobs=())
        ]
    shown = [token.source for token in xray(found)[len(found.prompt_ids) :]]
    assert {i for i, source in enumerate(shown) if source == "model"} == spans - written


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "qwen3_5_think", "glm4moe"])
def test_a_mark_inside_a_call_opens_no_thought(tokenizer, name):
    codec = quiet(ChatCodec, templated(tokenizer, name), "Use the tools.", tool_schemas(Library()))
    call = format_call("look_up", {"number": "a <think> b"}, codec.format, codec.tools)
    for end in range(1, len(call) + 1):
        assert codec.thought_length(codec._encode(call[:end])) == 0
    after = "" if codec.format == "llama3" else "\n<think> so"  # where a call is the whole turn
    assert (codec.thought_length(codec._encode(f"{call}{after}")) > 0) == bool(after)
    assert codec.thought_length(codec._encode(f"<think> I {call} so")) > codec.thought_length([]) == 0


def test_a_loop_that_trains_on_its_own_words_is_a_fault(tokenizer):
    other = templated(tokenizer, "qwen3")
    policy = Thinks(other, False, [60], ["Answer: Paris"])
    (found,) = quiet(
        lambda: rollout([TASK], policy, environment=Library, limits=Limits(2, 200, 900, max_thought=9))
    )
    assert found.turns[0].closings and not faults(found)
    assert (
        "1 is trained on that no turn"
        not in faults(replace(found, action_mask=(1,) * len(found.action_mask)))[0]
    )
    assert "that no turn sampled" in faults(replace(found, action_mask=(1,) * len(found.action_mask)))[0]
    assert (
        "sampled tokens are masked out"
        in faults(replace(found, action_mask=(0,) * len(found.action_mask)))[0]
    )


@pytest.mark.parametrize("room", [21, 22, 24])
def test_a_turn_without_room_for_a_thoughts_end_is_truncated_and_exact(tokenizer, room):
    other = templated(tokenizer, "qwen3")
    policy = Thinks(other, False, [60], ["Answer: Paris"])
    limits = Limits(2, room, 900, max_thought=20)
    (found,) = quiet(lambda: rollout([TASK], policy, environment=Library, limits=limits))
    assert found.stop_reason is StopReason.TRUNCATED_TURN and len(found.completion_ids) == room
    assert not faults(found, ChatCodec(other, "", []).decode)


def test_what_a_model_samples_round_a_cut_is_what_it_would_score(tokenizer):
    """The small agent under a template that opens a thought: it babbles in it, is cut, and goes on."""
    from agentkit.policies.loading import load_agent
    from agentkit.policies.sync_guard import sampled_logprobs
    from agentkit.policies.transformers import TransformersPolicy

    model, own = load_agent("nano")
    other = with_template(copy.deepcopy(own), "qwen3_5_think")
    limits = Limits(3, 60, 200, max_thought=4)
    policy = TransformersPolicy(model, other, deterministic=True)
    found = rollout([TASK], policy, environment=Library, group_size=4, limits=limits, temperature=1.5)
    assert any(turn.closings for t in found for turn in t.turns)
    for t in found:
        assert not faults(t, ChatCodec(other, "", []).decode)
        own = torch.tensor(sampled_logprobs(model, t.prompt_ids, t.completion_ids, 1.5))
        mask = torch.tensor(t.action_mask, dtype=torch.bool)
        assert float((own - torch.tensor(t.old_logprobs))[mask].abs().max()) < 2e-4


def test_the_expert_says_its_turns_in_pieces(tokenizer, suite):
    from agentkit import Lab

    lab = Lab.open({"families": "A,B", "n_tasks": 40, "tool_cache": "off", "thinking": "cut",
                    "max_thought_tokens": 16, "max_turn_tokens": 2_000})  # fmt: skip
    tasks = lab.suite().tasks[:4]
    assert all(t.success == 1.0 for t in lab.rollout(tasks, ScriptedPolicy(tokenizer)))


def test_the_key_says_what_can_be_exact():
    assert Recipe.from_mapping({}).thinking == "kept"
    with pytest.raises(
        RecipeError, match="no one sequence of tokens .* thinking: cut with max_thought_tokens"
    ):
        Recipe.from_mapping({"thinking": "dropped"})
    with pytest.raises(RecipeError, match="2048 does nothing where max_turn_tokens 1024"):
        Recipe.from_mapping({"thinking": "cut", "max_thought_tokens": 2048})
