"""The environment with every tool, through the tool runtime, as a policy meets it."""

from __future__ import annotations

import asyncio

import pytest

from agentkit import ToolCall, sandbox
from agentkit.tools.environments import WorkbenchEnvironment
from agentkit.tools.runtime import run_call

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason="no sandbox on this machine")


def call(environment, name, **arguments):
    return asyncio.run(run_call(ToolCall(name, arguments), environment, timeout_s=60))


def test_the_tools_work_together(corpus):
    bench = WorkbenchEnvironment(corpus)
    assert call(bench, "search", query="capital of France").observation.startswith(
        "[1] The capital of France is Paris."
    )
    assert call(bench, "calculator", expression="6 * 7").observation == "42"
    assert call(bench, "write_file", path="data/n.txt", content="19").ok
    assert call(bench, "python", code="print(int(open('data/n.txt').read()) + 1)").observation == "20"
    assert call(bench, "read_file", path="data/n.txt").observation == "19"
    assert call(bench, "list_files").observation == "data/n.txt (2 characters)"


def test_whatever_fails_is_an_observation(corpus):
    bench = WorkbenchEnvironment(corpus)
    for name, arguments, says in [
        ("python", {"code": "1 / 0"}, "ZeroDivisionError"),
        ("python", {"code": "import os; os.fork()"}, "Operation not permitted"),
        ("write_file", {"path": "../x", "content": ""}, "is refused"),
        ("read_file", {"path": "nowhere"}, "there is no file"),
        ("read_file", {"path": "nowhere", "start": "x"}, "must be an integer"),
    ]:
        result = call(bench, name, **arguments)
        assert not result.ok and result.observation.startswith("Error: ") and says in result.observation
