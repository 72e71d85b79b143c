"""The Python in the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from agentkit import ToolCall
from agentkit.environment import tools_of
from agentkit.rewards import score
from agentkit.testing import EnvironmentConformance

README = Path(__file__).resolve().parents[1] / "README.md"
OWN, DECLARED = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_example_of_own_tasks_tools_and_rewards_runs(corpus):
    namespace: dict = {}
    exec(OWN, namespace)
    suite = namespace["suite"]
    assert len(suite) == 60 and {task.family for task in suite} == {"remainders", "B"}
    assert set(tools_of(namespace["Environment"](corpus))) == {"search", "calculator", "shout"}
    assert "brevity" in namespace["reward"] and callable(score)


def test_the_example_of_a_declared_tool_keeps_the_protocol():
    namespace: dict = {"__name__": "readme"}
    exec(DECLARED, namespace)
    suite = type(
        "TestShop", (EnvironmentConformance,), {"factory": namespace["Shop"], "calls": [ToolCall("price", {"item": "tea"})]}
    )
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite(), name)()
    assert namespace["Shop"].price.tool_spec.retries == 2
