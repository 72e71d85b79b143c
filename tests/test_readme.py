"""The Python in the README and the guide runs as it stands; links and names lead somewhere. Their commands:
test_commands.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentkit import Lab, ToolCall, cli
from agentkit.tools.conformance import EnvironmentConformance
from agentkit.tools.runtime import tools_of

ROOT = Path(__file__).resolve().parents[1]
README, GUIDE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/guide.md"))
OWN, POLICY, DECLARED = re.findall(r"```python\n(.*?)```", README + GUIDE, flags=re.DOTALL)
PLAN = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")


def test_the_example_of_a_lab_file_runs(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "mine.yaml").write_text("lab: mine.py\nfamilies: remainders,B\nn_tasks: 60\n")
    lab = Lab.open(tmp_path / "mine.yaml")
    suite = lab.suite()
    assert len(suite) == 60 and {task.family for task in suite} == {"remainders", "B"}
    assert set(tools_of(lab.environments["remainders"]())) == {"search", "calculator", "shout"}
    assert "brevity" in lab.reward


def test_the_example_of_a_policy_runs(tmp_path):
    recipe = tmp_path / "small.yaml"
    recipe.write_text("families: A\nn_tasks: 40\nmax_turns: 2\nmax_turn_tokens: 32\nmax_tokens: 128\n")
    namespace: dict = {"__name__": "guide"}
    exec(POLICY.replace("params/nano.yaml", str(recipe)), namespace)
    trajectories = namespace["trajectories"]
    assert len(trajectories) == 4 and all(
        t.reward is not None and "format" in t.components for t in trajectories
    )


def test_the_files_of_the_reading_tour_are_there():
    tour = README[README.index("## Reading tour") : README.index("## Data and licences")]
    files = re.findall(r"`([\w/]+\.py)`", tour)
    assert len(files) == 14 and all((ROOT / "agentkit" / file).is_file() for file in files)


def test_the_example_of_a_declared_tool_keeps_the_protocol():
    namespace: dict = {"__name__": "readme"}
    exec(DECLARED, namespace)
    suite = type(
        "TestShop",
        (EnvironmentConformance,),
        {"factory": namespace["Shop"], "calls": [ToolCall("price", {"item": "tea"})]},
    )
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite(), name)()
    assert namespace["Shop"].price.tool_spec.max_concurrent == 8


def test_the_readme_names_every_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    known = set(re.findall(r"• (\w+)", capsys.readouterr().out))
    assert known == cli.COMMANDS.keys() == set(re.findall(r"^agentkit (\w+).* # ", README, re.MULTILINE))


def test_links_lead_to_files():
    for text, folder in ((README, ROOT), (GUIDE, ROOT / "docs"), (PLAN, ROOT / "docs")):
        assert all((folder / link).exists() for link in re.findall(r"\]\(((?!http)[^)#]+)\)", text))
