"""The tool runtime: whatever goes wrong in a tool becomes an observation, in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit import Task, ToolCall
from agentkit.runs import project_root
from agentkit.tasks import solve
from agentkit.tools import execution as tool_execution
from agentkit.tools.runtime import MAX_OBSERVATION, run_blocking, run_call, tool


class Sick(Exception):
    def __str__(self):
        raise RuntimeError("even my message fails")


class Colour(enum.Enum):
    BLUE = "blue"


class Workshop:
    """Tools that behave, and tools that do not."""

    def reset(self, **row):
        pass

    def get_reward(self):
        return 1.0

    def _private(self):
        return "secret"

    @property
    def costly(self):
        raise AssertionError("listing tools must not evaluate properties")

    def add(self, a: int, b: int = 1) -> str:
        """Add."""
        return str(a + b)

    def half(self, x: float) -> float:
        return x / 2

    def many(self, items: list, options: dict, flag: bool) -> str:
        return f"{len(items)} {len(options)} {flag}"

    def anything(self, **extra) -> str:
        return str(sorted(extra))

    def odd(self, x: Nowhere) -> str:  # noqa: F821 - an annotation that cannot be resolved
        return f"got {x}"

    async def later(self, text: str) -> str:
        await asyncio.sleep(0)
        return text

    def fail(self, how: str) -> str:
        errors = {"value": ValueError("be kind"), "key": KeyError("k"), "sick": Sick(), "stop": StopIteration("s"),
                  "exit": SystemExit(3), "memory": MemoryError(), "recursion": RecursionError("deep"), "time": TimeoutError(),
                  "system": OSError(2, "gone"), "assert": AssertionError()}  # fmt: skip
        raise errors[how]

    async def fail_later(self, how: str) -> str:
        return self.fail(how)

    def hang(self) -> str:
        time.sleep(3600)

    async def hang_later(self) -> str:
        await asyncio.sleep(3600)

    def flood(self, size: int) -> str:
        return "x" * size

    def nothing(self) -> None:
        return None

    def unspeakable(self) -> object:
        class Slow:
            def __str__(self):
                time.sleep(3600)

        return Slow()

    def paint(self, colours: list[str], last: Colour = Colour.BLUE) -> str:
        return f"{colours} {last}"

    def surrogate(self) -> str:
        return "a\ud800"

    @staticmethod
    def still(text: str) -> str:
        return text


def run(name, arguments=None, environment=None, **options):
    return asyncio.run(run_call(ToolCall(name, arguments or {}), environment or Workshop(), **options))


# ---- arguments
BAD = [
    ("fly", {}, "there is no tool 'fly'; there are "), ("_private", {}, "there is no tool '_private'"),
    ("reset", {}, "there is no tool 'reset'"), ("get_reward", {}, "there is no tool"), ("costly", {}, "there is no tool"),
    ("x" * 10_000, {}, f"there is no tool '{'x' * 60}'"), ("add", {}, "add needs the argument 'a'."),
    ("add", {"a": 1, "c": 2}, "add has no argument 'c'; it takes a, b."),
    ("add", {"a": "1"}, "add: 'a' must be an integer."), ("add", {"a": True}, "add: 'a' must be an integer."),
    ("half", {"x": "1"}, "half: 'x' must be a number."), ("later", {"text": 1}, "later: 'text' must be a string."),
    ("many", {"items": {}, "options": {}, "flag": True}, "many: 'items' must be a list."),
    ("many", {"items": [], "options": [], "flag": True}, "many: 'options' must be an object."),
    ("many", {"items": [], "options": {}, "flag": 1}, "many: 'flag' must be true or false."),
    ("paint", {"colours": "red"}, "paint: 'colours' must be a list."),
]  # fmt: skip
GOOD = [
    ("add", {"b": 2, "a": 1}, "3"), ("half", {"x": 3}, "1.5"), ("anything", {"x": 1, "y": 2}, "['x', 'y']"),
    ("many", {"items": [1], "options": {"a": 1}, "flag": False}, "1 1 False"), ("odd", {"x": 1}, "got 1"),
    ("paint", {"colours": ["red"]}, "['red'] Colour.BLUE"), ("later", {"text": "hello"}, "hello"),
    ("paint", {"colours": [], "last": "red"}, "[] red"),  # as JSON has it, and as TRL hands it over
    ("still", {"text": "hello"}, "hello"), ("nothing", {}, "None"), ("surrogate", {}, "a\ud800"),
]  # fmt: skip


def test_a_bad_call_is_told_what_to_mend():
    for name, arguments, observation in BAD:
        result = run(name, arguments)
        assert not result.ok and result.observation.startswith(f"Error: {observation}"), name
        assert len(result.observation) < 500 and (result.name, result.arguments) == (name, arguments)


def test_a_good_call_runs():
    for name, arguments, observation in GOOD:
        result = run(name, arguments)
        assert (result.ok, result.observation) == (True, observation) and result.seconds >= 0


# ---- failures
RAISED = {
    "value": "be kind.", "key": "KeyError: 'k'.", "sick": "Sick.", "stop": "RuntimeError: ", "exit": "RuntimeError: ",
    "memory": "MemoryError: .", "recursion": "RecursionError: deep.", "time": "", "system": "FileNotFoundError: ",
}  # fmt: skip


@pytest.mark.parametrize("tool", ["fail", "fail_later"])
def test_whatever_a_tool_raises_is_an_observation(tool):
    start = time.monotonic()
    for how, observation in RAISED.items():
        result = run(tool, {"how": how}, timeout_s=60.0)
        assert not result.ok and result.observation.startswith(f"Error: {observation}"), how
    assert time.monotonic() - start < 55, "a failure was not noticed before the time-out"


def test_a_flood_is_cut():
    assert run("flood", {"size": MAX_OBSERVATION}).observation == "x" * MAX_OBSERVATION
    assert run("flood", {"size": 10**7}).observation == "x" * MAX_OBSERVATION + " [cut]"


@pytest.mark.parametrize("tool", ["hang", "hang_later", "unspeakable"])
def test_a_hung_tool_is_given_up_and_holds_up_nobody(tool):
    """Forty hung calls, far more than a thread pool has workers, and one that answers."""

    async def all_of_them():
        hung = [run_call(ToolCall(tool, {}), Workshop(), timeout_s=1.0) for _ in range(40)]
        return await asyncio.gather(*hung, run_call(ToolCall("add", {"a": 1}), Workshop(), timeout_s=120.0))

    start = time.monotonic()
    *hung, fine = asyncio.run(all_of_them())
    assert {r.observation for r in hung} == {f"Error: {tool} did not answer within 1 s."}
    assert not any(r.ok for r in hung) and fine.observation == "2"
    assert time.monotonic() - start < 120


def test_a_process_with_a_hung_tool_can_end():
    code = (
        "import asyncio, time\nfrom agentkit import ToolCall\nfrom agentkit.tools.runtime import run_call\n"
        "class E:\n def hang(self): time.sleep(3600)\n"
        "print(asyncio.run(run_call(ToolCall('hang', {}), E(), timeout_s=0.5)).observation)"
    )
    options = {"cwd": project_root(__file__), "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", code], **options)
    assert done.stdout.strip() == "Error: hang did not answer within 0.5 s.", done.stderr


def test_a_busy_event_loop_makes_no_tool_look_slow():
    async def busy():
        call = asyncio.create_task(run_call(ToolCall("add", {"a": 1}), Workshop(), timeout_s=1.0))
        await asyncio.sleep(0)  # the call starts
        time.sleep(2.5)  # the loop is held up for longer than the time-out
        return await call

    assert asyncio.run(busy()).observation == "2"


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
                    max_leaves=5)  # fmt: skip


TOOLS = ["add", "half", "many", "anything", "later", "still", "odd", "fail"]
ARGUMENTS = ["a", "b", "x", "items", "options", "flag", "text", "how"]
NAMES = st.text(max_size=10)


@given(st.sampled_from(TOOLS) | NAMES, st.dictionaries(st.sampled_from(ARGUMENTS) | NAMES, JSON, max_size=4))
def test_no_call_raises(name, arguments):
    result = run(name, arguments)
    assert isinstance(result.observation, str) and result.ok != result.observation.startswith("Error: ")


# ---- what is declared of a tool
class Bench:
    """Tools with declarations of every kind."""

    now, most, ended = 0, 0, False

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

    @tool(timeout_s=0.3)
    async def awaits(self) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            self.ended = True

    async def quick(self) -> str:
        return threading.current_thread().name


def test_a_wrong_declaration_is_refused():
    for declared, says in (
        ({"max_concurrent": 0}, "max_concurrent is 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"timeout_s": "3"}, "timeout_s is '3'"),
    ):
        with pytest.raises(ValueError, match=says):
            tool(**declared)


def test_no_more_calls_at_once_than_declared():
    async def many(environment):
        return await asyncio.gather(*(run_call(ToolCall("narrow", {}), environment) for _ in range(7)))

    environment = Bench()
    assert all(r.ok for r in asyncio.run(many(environment))) and environment.most == 2


def test_an_async_tool_is_cancelled_when_its_time_is_up():
    environment, start = Bench(), time.monotonic()
    assert run("awaits", environment=environment).observation == "Error: awaits did not answer within 0.3 s."
    while not environment.ended and time.monotonic() - start < 20:
        time.sleep(0.01)
    assert environment.ended


@pytest.mark.parametrize("name", ["hang", "hang_async"])
def test_calls_that_hang_are_bounded_and_the_tool_is_then_refused(name, monkeypatch):
    monkeypatch.setattr(tool_execution, "MAX_HUNG", 3)

    class Hangs:
        @tool(timeout_s=0.1)
        def hang(self) -> str:
            released.wait(60)

        @tool(timeout_s=0.1)
        async def hang_async(self) -> str:
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)

        def fine(self) -> str:
            return "fine"

    released = threading.Event()
    found = [run(name, environment=Hangs()).observation for _ in range(5)]
    assert found[:3] == [f"Error: {name} did not answer within 0.1 s."] * 3
    assert found[3:] == [f"Error: {name} is out of order: 3 earlier calls still hang."] * 2
    assert run("fine", environment=Hangs()).observation == "fine"
    released.set()
    start = time.monotonic()
    while not (ok := run(name, environment=Hangs()).ok) and time.monotonic() - start < 30:
        time.sleep(0.05)
    assert ok, "those that hung have ended"
    assert run("quick", environment=Bench()).observation == "async tools"


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
