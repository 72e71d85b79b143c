"""The Python of start and guide runs as it stands; links and names lead somewhere; pages stay short. The
README's Python: test_notebooks. Commands: test_commands.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conformance import EnvironmentConformance

from agentkit import Lab, ToolCall, cli
from agentkit.tools.runtime import tools_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
}
START, GUIDE, TOUR = (PAGES[ROOT / "docs" / f"{name}.md"] for name in ("start", "guide", "tour"))
OWN, POLICY, DECLARED = re.findall(r"```python\n(.*?)```", START + GUIDE, flags=re.DOTALL)


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
    files = re.findall(r"`([\w/]+\.py)`", TOUR)
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


def test_start_names_every_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    known = set(re.findall(r"• (\w+)", capsys.readouterr().out))
    assert known == cli.COMMANDS.keys() == set(re.findall(r"^agentkit (\w+).* # ", START, re.MULTILINE))


def anchors(text: str) -> set[str]:
    """What a link to a part of a page may name: its titles, as GitHub writes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(((?!http)[^)]+)\)", text):
            file, _, part = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.exists(), link
            assert not part or part in anchors(PAGES[target]), link


def test_what_is_read_first_stays_short():
    limits = {"README.md": 8_192, "docs/results.md": 10_240, "docs/images/viewer.png": 300_000}
    assert all((ROOT / name).stat().st_size <= most for name, most in limits.items())
