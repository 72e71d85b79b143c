"""Declared tools: the time limit really ends what can be ended, and bounds what cannot."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time

import pytest

from agentkit import Task, ToolCall
from agentkit.tasks import solve
from agentkit.tools import execution as tool_execution
from agentkit.tools.runtime import run_blocking, run_call, tool


class Bench:
    """Tools with declarations of every kind."""

    def __init__(self):
        self.now, self.most, self.seen = 0, 0, {}

    def reset(self, **row):
        pass

    @tool(max_concurrent=2)
    async def narrow(self) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)
        self.now -= 1
        return "done"

    @tool(timeout_s=0.3)
    async def blocks(self) -> str:
        time.sleep(20)
        return "late"

    @tool(timeout_s=0.3)
    async def awaits(self) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            self.seen["cancelled"] = True

    @tool(timeout_s=0.3)
    async def stubborn(self) -> str:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.seen["refused"] = True

    @tool
    async def cancels(self) -> str:
        raise asyncio.CancelledError

    async def quick(self) -> str:
        return threading.current_thread().name


def run(name, environment=None, timeout_s=10.0, **arguments):
    return asyncio.run(run_call(ToolCall(name, arguments), environment or Bench(), timeout_s=timeout_s))


# ---- declaring
def test_a_wrong_declaration_is_refused():
    for declared, says in (
        ({"max_concurrent": 0}, "max_concurrent is 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"timeout_s": "3"}, "timeout_s is '3'"),
    ):
        with pytest.raises(ValueError, match=says):
            tool(**declared)
    with pytest.raises(TypeError, match="cache"):
        tool(cache=True)


# ---- places
def test_no_more_calls_at_once_than_declared():
    async def many(environment):
        return await asyncio.gather(*(run_call(ToolCall("narrow", {}), environment) for _ in range(7)))

    environment = Bench()
    assert all(r.ok for r in asyncio.run(many(environment))) and environment.most == 2


# ---- async tools
def test_an_async_tool_is_cancelled_when_its_time_is_up():
    environment, start = Bench(), time.monotonic()
    assert run("awaits", environment).observation == "Error: awaits did not answer within 0.3 s."
    while not environment.seen and time.monotonic() - start < 20:
        time.sleep(0.01)
    assert environment.seen == {"cancelled": True}


def test_an_async_tool_that_refuses_to_be_cancelled_holds_up_nobody(monkeypatch):
    environment, start = Bench(), time.monotonic()
    assert "did not answer" in run("stubborn", environment).observation and time.monotonic() - start < 20
    assert run("quick", environment).observation == "async tools"

    class Goes:
        @tool(timeout_s=0.1)
        async def on(self) -> str:
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)

    monkeypatch.setattr(tool_execution, "MAX_HUNG", 3)
    released = threading.Event()
    found = [run("on", Goes()).observation for _ in range(5)]
    assert (
        found
        == ["Error: on did not answer within 0.1 s."] * 3
        + ["Error: on is out of order: 3 earlier calls still hang."] * 2
    )
    released.set()


# ---- threads
def test_calls_that_hang_are_bounded_and_the_tool_is_then_refused(monkeypatch):
    monkeypatch.setattr(tool_execution, "MAX_HUNG", 3)

    class Hangs:
        @tool(timeout_s=0.1)
        def hang(self) -> str:
            released.wait(60)

        def fine(self) -> str:
            return "fine"

    released = threading.Event()
    found = [run("hang", Hangs()).observation for _ in range(5)]
    assert found[:3] == ["Error: hang did not answer within 0.1 s."] * 3
    assert found[3:] == ["Error: hang is out of order: 3 earlier calls still hang."] * 2
    assert run("fine", Hangs()).observation == "fine"
    released.set()
    start = time.monotonic()
    while not (ok := run("hang", Hangs()).ok) and time.monotonic() - start < 30:
        time.sleep(0.05)
    assert ok  # those that hung have ended


class Loud(str):
    """Text with methods of its own."""

    def __len__(self):
        return -1

    def __getitem__(self, key):
        raise MemoryError


class Silent:
    """Tools that fail without a word, or say it with hostile text."""

    def nothing(self, kind: str) -> str:
        raise {"value": ValueError, "empty": ValueError(""), "runtime": RuntimeError()}[kind]

    def loud(self) -> str:
        return Loud("fine")


def test_an_exception_without_a_message_is_an_observation_and_text_is_plain():
    for kind, says in (("value", "ValueError"), ("empty", "ValueError"), ("runtime", "RuntimeError: ")):
        found = run("nothing", Silent(), kind=kind)
        assert found.observation == f"Error: {says}." and not found.ok
    found = run("loud", Silent())
    assert found.ok and type(found.observation) is str and found.observation == "fine"


def test_a_notebook_that_is_interrupted_waits_for_no_rollout():
    """Its kernel has a running event loop, so the rollouts run on another one, in a thread."""
    ended = []

    async def rollouts():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def cell():
        threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        run_blocking(rollouts())

    loop, start = asyncio.new_event_loop(), time.monotonic()  # asyncio.run would take the signal for itself
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    signal.signal(signal.SIGINT, before)
    loop.close()
    assert ended == [True] and time.monotonic() - start < 20


class Orders:
    """A tool that keeps the list it is given, and one that adds to what is kept."""

    def reset(self, **row):
        self.kept: list = []

    def create(self, items: list) -> str:
        self.kept = items
        return "created"

    def add(self, item: str) -> str:
        self.kept.append(item)
        return str(len(self.kept))


def test_a_tool_that_keeps_what_it_is_given_changes_no_record_and_no_plan():
    plan = [{"tool": "create", "arguments": {"items": ["a"]}}, {"tool": "add", "arguments": {"item": "b"}}]
    task = Task("t", "Order.", "2", "exact", "x", meta={"plan": plan})
    for _ in range(2):
        environment = Orders()
        environment.reset()
        solved = solve(task, environment)
        assert solved.answer == "2" and solved.turns[0].results[0].arguments == {"items": ["a"]}
    assert plan[0]["arguments"] == {"items": ["a"]}


def test_an_async_tool_that_blocks_is_left_behind_with_its_event_loop():
    """It would hold up every other async tool, and an async verifier or reward for ever."""

    async def both():
        blocked = await run_call(ToolCall("blocks", {}), Bench())
        return blocked, await run_call(ToolCall("quick", {}), Bench())

    blocked, quick = asyncio.run(both())
    assert "did not answer" in blocked.observation and quick.observation == "async tools"
