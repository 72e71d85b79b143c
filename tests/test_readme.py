"""The Python in the README and the guide runs as it stands, and their commands are commands."""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tyro

from agentkit import ToolCall, cli
from agentkit.rewards import score
from agentkit.tools.conformance import EnvironmentConformance
from agentkit.tools.runtime import tools_of

ROOT = Path(__file__).resolve().parents[1]
README, GUIDE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/guide.md"))
OWN, DECLARED = re.findall(r"```python\n(.*?)```", README + GUIDE, flags=re.DOTALL)
BLOCKS = re.findall(r"```\w*\n(.*?)```", README + GUIDE, flags=re.DOTALL)
COMMANDS = [
    c.strip()
    for c in re.split(r"[\n&]", re.sub(r"#.*", "", "".join(BLOCKS)))
    if c.strip().startswith("agentkit ")
]


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
        "TestShop",
        (EnvironmentConformance,),
        {"factory": namespace["Shop"], "calls": [ToolCall("price", {"item": "tea"})]},
    )
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite(), name)()
    assert namespace["Shop"].price.tool_spec.retries == 2


def parsed(words: list[str]) -> dict[str, Any]:
    """What a command would be called with."""

    def recorder(command: Callable) -> Callable:
        @functools.wraps(command)
        def record(*given: Any, **named: Any) -> dict[str, Any]:
            return inspect.signature(command).bind(*given, **named).arguments

        return record

    commands = {name: recorder(command) for name, command in cli.COMMANDS.items()}
    return tyro.extras.subcommand_cli_from_dict(commands, args=words)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood_and_its_recipe_exists(command):
    for words in (
        re.sub(r"\[.*?\]", "", command),
        re.sub(r"[\[\]]", "", command),
    ):  # without and with what is optional
        options = parsed(shlex.split(words)[1:])
        recipe = options.get("recipe", ROOT)
        assert (ROOT / recipe).exists() or recipe.name == "mine.yaml"


def test_the_readme_names_every_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    known = set(re.findall(r"• (\w+)", capsys.readouterr().out))
    assert known == cli.COMMANDS.keys() == {command.split()[1] for command in COMMANDS}


def test_links_lead_to_files():
    for text, folder in ((README, ROOT), (GUIDE, ROOT / "docs")):
        assert all((folder / link).exists() for link in re.findall(r"\]\(((?!http)[^)#]+)\)", text))
