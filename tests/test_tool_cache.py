"""Answers of pure tools are kept exactly, failures are not, and a stale answer is told."""

import asyncio
import linecache
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from itertools import product

import pytest

from agentkit import ToolCall
from agentkit.records import DataError
from agentkit.runs import project_root
from agentkit.runs.labfile import load_module
from agentkit.tools.cache import ToolCache, canonical, key_of
from agentkit.tools.runtime import run_call, tool


class Counted:
    """Tools that count how often they really ran."""

    def __init__(self, answers=None):
        self.ran, self.answers = [], answers

    def reset(self, **row):
        pass

    @tool(pure=True)
    def look(self, query: str, more: dict = {}) -> str:  # noqa: B006 - read only
        self.ran.append(query)
        time.sleep(0.05)
        return self.answers.pop(0) if self.answers else f"{query} {list(more)}"

    @tool(pure=True)
    def fail(self, query: str) -> str:
        self.ran.append(query)
        if len(self.ran) < 3:
            raise RuntimeError("not yet")
        return "now"

    def plain(self, query: str) -> str:
        self.ran.append(query)
        return "plain"


def ask(environment, name="look", cache=None, times=1, at_once=True, **arguments):
    """The results of the same call several times, at once or one after another."""

    async def work():
        calls = [run_call(ToolCall(name, arguments), environment, cache=cache) for _ in range(times)]
        return await asyncio.gather(*calls) if at_once else [await call for call in calls]

    return asyncio.run(work())


def test_a_kept_answer_outlives_the_process_that_asked(tmp_path):
    path = tmp_path / "cache" / "tools.sqlite"
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(project_root(__file__) / "tests")!r})
from test_tool_cache import Counted, ToolCache, ask
with ToolCache({str(path)!r}) as cache:
    print(ask(Counted(), cache=cache, query="x")[0].cached)
"""
    for expected in ("False", "True"):
        options = {"capture_output": True, "text": True, "cwd": project_root(__file__)}
        child = subprocess.run([sys.executable, "-c", code], **options)
        assert child.stdout.strip() == expected, child.stderr
    environment = Counted()
    with ToolCache(path) as cache:
        (found,) = ask(environment, cache=cache, query="x")
        assert found.cached and environment.ran == [] and cache.hits.total() == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_only_the_same_call_of_the_same_tool_is_a_hit():
    class Other(Counted):
        @tool(pure=True)
        def look(self, query: str, more: dict = {}) -> str:  # noqa: B006
            self.ran.append(query)
            return "another tool"

    class Versioned(Counted):
        top_k = 3

        @tool(pure=True, version=lambda self: str(self.top_k))
        def look(self, query: str) -> str:
            self.ran.append(query)
            return f"{self.top_k} of {query}"

    cache, environment = ToolCache(), Counted()
    assert canonical({"b": 1, "a": {"d": 1, "c": 2}}) == canonical({"a": {"c": 2, "d": 1}, "b": 1})
    mores = [{}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}]
    calls = [{"query": "x"}, {"query": "X"}, *({"query": "x", "more": more} for more in mores)]
    assert not any(ask(environment, cache=cache, **arguments)[0].cached for arguments in calls)
    assert len(environment.ran) == len(calls)
    assert all(ask(environment, cache=cache, **arguments)[0].cached for arguments in calls)
    assert ask(Other(), cache=cache, query="x")[0].observation == "another tool"
    three, five = Versioned(), Versioned()
    five.top_k = 5
    answers = [ask(e, cache=cache, query="x")[0].observation for e in (three, five, three)]
    assert answers == ["3 of x", "5 of x", "3 of x"]


def cell(body: str, number: int) -> type:
    """An environment as a notebook's cell defines it: its source is known by the cell's name."""
    source = f"class E:\n @tool(pure=True)\n def look(self, query: str) -> str:\n  {body}\n"
    name, space = f"<cell {number}>", {"tool": tool, "__name__": "__main__"}
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    exec(compile(source, name, "exec"), space)
    return space["E"]


def test_a_tool_rewritten_in_a_cell_is_another_tool():
    cache, answers = ToolCache(), []
    for number, body in enumerate(("return query", "return query + '!'", "return query")):
        (found,) = ask(cell(body, number)(), cache=cache, query="x")
        answers.append((found.observation, found.cached))
    assert answers == [("x", False), ("x!", False), ("x", True)]


def test_a_tool_of_a_file_whose_table_changed_is_another_tool(tmp_path):
    lab, cache, answers = tmp_path / "priced.py", ToolCache(), []
    for price in (1, 2, 1):
        lab.write_text(
            f"from agentkit import tool\nPRICE = {price}\nclass E:\n"
            " @tool(pure=True)\n def look(self, query: str) -> str:\n  return str(PRICE)\n"
        )
        (found,) = ask(load_module(lab).E(), cache=cache, query="x")
        answers.append((found.observation, found.cached))
    assert answers == [("1", False), ("2", False), ("1", True)]


def test_failures_and_tools_not_declared_pure_are_asked_again():
    cache, environment = ToolCache(), Counted()
    found = ask(environment, "fail", cache, times=4, at_once=False, query="x")
    assert [(r.ok, r.cached) for r in found] == [(False, False), (False, False), (True, False), (True, True)]
    environment = Counted()
    found = ask(environment, "plain", cache, times=3, at_once=False, query="x")
    assert len(environment.ran) == 3 and not any(r.cached for r in found)


def test_a_hit_is_equal_to_the_call_itself(tmp_path):
    for number, text in enumerate(("", "a\ud800b", "\0", "é" * 70_000)):
        path = tmp_path / f"{number}.sqlite"
        with ToolCache(path) as cache:
            (first,) = ask(Counted([text]), cache=cache, query="x")
        with ToolCache(path) as cache:
            (again,) = ask(Counted([text]), cache=cache, query="x")
        (plain,) = ask(Counted([text]), query="x")
        assert first.observation == again.observation == plain.observation and again.cached


def test_a_replayed_hit_that_differs_is_a_loud_warning_and_the_new_answer_is_kept():
    cache = ToolCache(replay_every=3)
    environment = Counted(["old", "new"])
    with pytest.warns(UserWarning, match=r"Counted\.look is declared pure .*'old', now 'new'"):
        found = ask(environment, cache=cache, times=6, at_once=False, query="x")
    assert [r.observation for r in found] == ["old", "old", "old", "new", "new", "new"]
    assert cache.mismatches == {"test_tool_cache.Counted.look": 1} and len(environment.ran) == 2


def test_one_that_stops_waiting_takes_nothing_from_the_others():
    class Held(Counted):
        answer = threading.Event()

        @tool(pure=True)
        def look(self, query: str) -> str:
            self.ran.append(query)
            self.answer.wait(60)
            return query

    async def work():
        cache, environment = ToolCache(), Held()
        call = ToolCall("look", {"query": "x"})
        calls = [asyncio.ensure_future(run_call(call, environment, cache=cache)) for _ in range(3)]
        await asyncio.sleep(0.01)
        calls[0].cancel()
        await asyncio.sleep(0.01)
        environment.answer.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        return [r.observation for r in found[1:]], environment.ran, cache._flights

    assert asyncio.run(work()) == (["x"] * 2, ["x"], {})


# ---- the file
def test_a_file_that_is_no_cache_is_refused_and_kept(tmp_path):
    path = tmp_path / "t.sqlite"
    for content in (b"no database", b"SQLite format 3\0" + b"\xff" * 5_000):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"t\.sqlite cannot be used as the cache of tools .*remove it"):
            ToolCache(path)
        assert path.read_bytes() == content
    path.unlink()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE answer (words TEXT)")  # another program's
    with pytest.raises(DataError, match="remove it"):
        ToolCache(path)


def test_a_file_that_fails_later_costs_a_warning_and_no_run(tmp_path):
    cache, environment = ToolCache(tmp_path / "t.sqlite"), Counted()
    cache._file.execute("DROP TABLE answer")
    with pytest.warns(UserWarning, match="the cache of tools .* failed"):
        found = ask(environment, cache=cache, times=2, at_once=False, query="x")
    assert all(r.ok for r in found) and len(environment.ran) == 2


def test_a_damaged_answer_is_none(tmp_path):
    key = key_of("t", "", "a")
    with ToolCache(tmp_path / "t.sqlite") as cache:
        cache.keep("t", key, "fine")
        cache._file.execute("UPDATE answer SET text = x'ff80'")
        assert cache.find(key) is None


def test_many_processes_share_a_file(tmp_path):
    """Four at once make the file, write it and read it: no error, no answer lost, none wrong."""
    path = tmp_path / "t.sqlite"
    code = f"""
import sys, warnings
warnings.simplefilter("error")
from agentkit.tools import cache as tool_cache
from agentkit.tools.cache import ToolCache, key_of
tool_cache.BUSY_S = 60.0  # four that write all the time, on a busy disk
for part in range(5):
    with ToolCache({str(path)!r}) as cache:
        for i in range(60):
            name = f"{{sys.argv[1]}} {{part}} {{i}}"
            cache.keep("t", key_of("t", "", name), name)
            cache.keep("t", key_of("t", "", "shared"), "shared")
"""
    options = {"cwd": project_root(__file__), "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([sys.executable, "-c", code, str(n)], **options) for n in range(4)]
    assert [child.communicate(timeout=120)[1] for child in children] == [""] * 4
    assert [child.returncode for child in children] == [0] * 4
    names = [f"{n} {part} {i}" for n, part, i in product(range(4), range(5), range(60))]
    with ToolCache(path) as cache:
        for name in (*names, "shared"):
            assert cache.find(key_of("t", "", name)) == name
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]
