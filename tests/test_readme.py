"""The Python in the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from agentkit.environment import tools_of
from agentkit.rewards import score

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_example_of_own_tasks_tools_and_rewards_runs(corpus):
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    namespace: dict = {}
    exec(source, namespace)
    suite = namespace["suite"]
    assert len(suite) == 60 and {task.family for task in suite} == {"remainders", "B"}
    assert set(tools_of(namespace["Environment"](corpus))) == {"search", "calculator", "shout"}
    assert "brevity" in namespace["reward"] and callable(score)
