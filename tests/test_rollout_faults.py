"""Tools that hang, raise, flood or attack: every trajectory ends in time, whole, and says what happened."""

import asyncio
import resource
import threading
import time

import pytest
from says import Says

from agentkit import StopReason, Task, rollout, tool
from agentkit.records import DataError, EngineError
from agentkit.rollouts import Limits, arollout
from agentkit.rollouts.call_formats import format_call
from agentkit.rollouts.chat import ChatCodec
from agentkit.rollouts.tokens import group_faults
from agentkit.tools.cache import ToolCache
from agentkit.training.metrics import tool_metrics

TASK = Task("t", "What?", "3", "numeric")
ROOMY = Limits(max_turn_tokens=500, max_tokens=8_000)


def calls(tokenizer, tool, **arguments):
    """A policy that calls one tool, then answers."""
    return Says(tokenizer, format_call(tool, arguments), "Answer: 3")


class Tools:
    """One environment a trajectory; the third made is the sick one."""

    made = 0

    def __init__(self):
        self.number = type(self).made
        type(self).made += 1

    def reset(self, **row):
        pass

    def work(self, how: str) -> str:
        """Work.

        Args:
            how: In which way.
        """
        sick = self.number == 3
        if how == "hang" and sick:
            time.sleep(600)
        if how == "raise" and sick:
            raise OSError("the disk is gone")
        return "word " * 2_000_000 if how == "flood" else "fine"

    async def later(self, how: str) -> str:
        """Work later.

        Args:
            how: In which way.
        """
        if how == "hang" and self.number == 3:
            await asyncio.sleep(600)
        return "fine"


@pytest.fixture
def tools():
    return type("Tools", (Tools,), {"made": -1})  # one is made to read its schemas


def whole(trajectories):
    for t in trajectories:
        assert len(t.completion_ids) == len(t.action_mask) == len(t.old_logprobs)
        sampled = {i for turn in t.turns for i in range(*turn.span)}
        assert {i for i, m in enumerate(t.action_mask) if m} == sampled
    assert len({(t.task_id, t.sample) for t in trajectories}) == len(trajectories)
    return trajectories


def test_a_reset_that_fills_the_context_leaves_one_trajectory_unscored(tokenizer, tools):
    """And does not end a training, as a question that does must."""
    tools.reset = lambda self, **row: "word " * (500 if self.number == 2 else 1)
    policy = calls(tokenizer, "work", how="fine")
    free = rollout([TASK], policy, environment=tools, limits=ROOMY)
    policy.max_length, tools.made = len(free[0].prompt_ids) + 400, -1
    found = whole(rollout([TASK], policy, environment=tools, group_size=4, limits=ROOMY))
    (failed,) = [t for t in found if t.stop_reason is StopReason.ERROR]
    assert failed.success is None and "2500 characters are of its environment's reset" in failed.why
    assert [t.success for t in found if t is not failed] == [1.0] * 3


@pytest.mark.parametrize("name", ["work", "later"])
def test_one_hung_tool_in_eight_is_given_up_and_holds_up_nobody(tokenizer, tools, name):
    limits, start = Limits(max_turn_tokens=500, max_tokens=8_000, tool_timeout_s=2.0), time.monotonic()
    policy = calls(tokenizer, name, how="hang")
    found = whole(rollout([TASK], policy, environment=tools, group_size=8, limits=limits))
    assert time.monotonic() - start < 120, "the tool hangs for ten minutes"
    results = [t.turns[0].results[0] for t in found]
    assert [r.observation for r in results if not r.ok] == [f"Error: {name} did not answer within 2 s."]
    assert [t.stop_reason for t in found] == [StopReason.ANSWER] * 8


def test_a_reset_that_fails_leaves_one_trajectory_unscored(tokenizer, tools):
    def reset(self, **row):
        if self.number == 3:
            raise OSError("the service is busy")
        return " It is Monday."

    tools.reset = reset
    policy = calls(tokenizer, "work", how="fine")
    found = whole(rollout([TASK], policy, environment=tools, group_size=8, limits=ROOMY))
    (failed,) = [t for t in found if t.stop_reason is StopReason.ERROR]
    assert failed.success is None and "busy" in failed.why and not failed.turns
    assert [t.success for t in found if t is not failed] == [1.0] * 7
    assert not group_faults(found) and len({t.prompt_ids for t in found}) == 2


@pytest.mark.parametrize("how", ["raise", "hang"])
def test_an_environment_that_cannot_be_made_is_one_that_cannot_be_reset(tokenizer, tools, how, monkeypatch):
    monkeypatch.setattr("agentkit.rollouts.loop.MADE_S", 0.0)

    def sick(self):
        Tools.__init__(self)
        if self.number == 4:  # one of the eight
            time.sleep(600 if how == "hang" else 0.5)
            raise ConnectionError("the service is busy")

    tools.__init__ = sick
    limits = Limits(max_turn_tokens=500, max_tokens=8_000, tool_timeout_s=2.0)
    policy = calls(tokenizer, "work", how="fine")
    found = whole(rollout([TASK], policy, environment=tools, group_size=8, limits=limits))
    (failed,) = (t for t in found if t.stop_reason is StopReason.ERROR)
    assert failed.success is None and ("busy" if how == "raise" else "not made within") in failed.why
    assert sum(t.success or 0.0 for t in found) == 7


def test_where_no_environment_can_begin_it_is_said_but_a_training_goes_on(tokenizer, tools):
    def reset(self, **row):
        raise OSError("no database")

    tools.reset = reset
    options = {"environment": tools, "group_size": 2, "limits": ROOMY}
    with pytest.raises(DataError, match="line .*OSError: no database"):
        rollout([TASK], calls(tokenizer, "work", how="fine"), **options)
    found = whole(rollout([TASK], calls(tokenizer, "work", how="fine"), step=3, **options))
    assert [(t.stop_reason, t.success) for t in found] == [(StopReason.ERROR, None)] * 2


def test_an_engine_that_fails_ends_every_trajectory(tokenizer, tools):
    class Fails(Says):
        async def sample(self, request):
            if request.trajectory % 8 == 3:
                raise EngineError("it is gone")
            await asyncio.sleep(0.5)
            return await super().sample(request)

    async def fails():
        with pytest.raises(EngineError, match="it is gone"):
            await arollout([TASK], policy, environment=tools, group_size=8, limits=ROOMY)
        await asyncio.sleep(1.5)

    policy = Fails(tokenizer, "Answer: 3")
    asyncio.run(fails())
    assert not policy.asked


def test_ten_megabytes_are_cut_in_tokens_visibly(tokenizer, tools):
    limits = Limits(max_turn_tokens=500, max_tokens=8_000, max_observation=50)
    (t,) = whole(rollout([TASK], calls(tokenizer, "work", how="flood"), environment=tools, limits=limits))
    (shown,) = t.turns[0].results
    codec = ChatCodec(tokenizer, "", [])
    assert len(codec.text_ids(shown.observation)) <= 50 and shown.observation.startswith("word word")
    assert shown.observation.endswith("more tokens]") and "[cut: at least " in shown.observation
    assert len(t.completion_ids) < 300 and t.stop_reason == StopReason.ANSWER


TEXTS = ["short", "x" * 3_000, "Zoë 東京 🙂 " * 300, "<|im_end|>" * 400, "é" * 499, "a\ud800" * 300]


@pytest.mark.parametrize("limit", [16, 40, 500])
@pytest.mark.parametrize("text", TEXTS)
def test_a_cut_reply_is_as_short_as_told_and_a_short_one_untouched(tokenizer, text, limit):
    codec = ChatCodec(tokenizer, "", [])
    ids, shown = codec.text_ids(text), codec.shorten(text, limit)
    assert len(codec.text_ids(shown)) <= limit
    if len(ids) <= limit:
        assert shown == text
    elif limit >= 40:
        kept, _, said = shown.rpartition("\n[cut: ")
        assert kept and codec.marks.inert(text)[0].startswith(kept) and "\ufffd" not in kept
        missing = len(ids) - len(codec.text_ids(kept))
        assert "at least" in said or int(said.split()[0]) == pytest.approx(missing, abs=3)


@pytest.mark.parametrize("name", ["work", "later"])
def test_the_trajectorys_time_ends_a_call_and_a_turn(tokenizer, tools, name):
    tools.made = 2
    limits = Limits(max_turn_tokens=500, max_tokens=8_000, tool_timeout_s=300.0, trajectory_timeout_s=2.0)
    start = time.monotonic()
    (t,) = whole(rollout([TASK], calls(tokenizer, name, how="hang"), environment=tools, limits=limits))
    assert t.stop_reason == StopReason.TIME_LIMIT and len(t.turns) == 1 and time.monotonic() - start < 120

    class Asleep(Says):
        async def sample(self, request):
            await asyncio.sleep(600)

    (t,) = whole(rollout([TASK], Asleep(tokenizer), environment=tools, limits=limits))
    assert (t.stop_reason, t.turns, t.success) == (StopReason.TIME_LIMIT, (), None) and "wall clock" in t.why


# ---- the cache, from a recipe to the metrics
def test_eight_rollouts_that_ask_the_same_at_once_cost_one_call(tokenizer):
    class Counts:
        ran = 0

        def reset(self, **row):
            pass

        @tool(pure=True)
        def look(self) -> str:
            """Look."""
            Counts.ran += 1
            time.sleep(0.05)
            return "seen"

    policy, options = calls(tokenizer, "look"), {"group_size": 8, "limits": ROOMY}
    cached = whole(rollout([TASK], policy, environment=Counts, tool_cache=ToolCache(), **options))
    assert Counts.ran == 1
    plain = whole(rollout([TASK], policy, environment=Counts, **options))
    assert Counts.ran == 9
    assert [t.completion_ids for t in cached] == [t.completion_ids for t in plain]
    assert tool_metrics(cached)["tool_cache_hits"] == 7 / 8 and tool_metrics(plain)["tool_cache_hits"] == 0
    assert tool_metrics(plain)["tool_slowest_seconds"] >= 0.05 and tool_metrics([])["tool_seconds"] == 0


def test_five_hundred_trajectories_at_once_with_slow_tools(tokenizer):
    """Async tools of a second: no thread a call, and little memory."""

    class Slow(Tools):
        made = most = 0

        async def later(self, how: str) -> str:
            """Work later.

            Args:
                how: In which way.
            """
            await asyncio.sleep(1.0)
            Slow.most = max(Slow.most, threading.active_count())
            return "fine"

    limits = Limits(max_turn_tokens=500, max_tokens=8_000, tool_timeout_s=60.0)
    before, threads = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, threading.active_count()
    policy, start = calls(tokenizer, "later", how="x"), time.monotonic()
    found = whole(rollout([TASK], policy, environment=Slow, group_size=500, limits=limits))
    assert len(found) == 500 and all(t.turns[0].results[0].ok for t in found)
    assert 0 < Slow.most <= threads + 140 and time.monotonic() - start < 400
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 200  # MiB
