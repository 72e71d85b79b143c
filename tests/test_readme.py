"""The Python of the docs and the README's first commands run as they stand; links and names lead somewhere;
pages stay short. The README's Python: test_notebooks. Other commands: test_commands.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conformance import EnvironmentConformance
from engines import free_port

from agentkit import Lab, Recipe, ToolCall, cli
from agentkit.tools.runtime import tools_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *DOCS.rglob("*.md"))}
BLOCKS = [
    block for page in DOCS.rglob("*.md") for block in re.findall(r"```python\n(.*?)```", PAGES[page], re.S)
]
# one in each block, whatever page has it
MARKS = ("families = {", "alarms = {", "@tool(pure", "lab.rollout(")
OWN, MORE, DECLARED, BY_HAND = (next(block for block in BLOCKS if mark in block) for mark in MARKS)


def test_every_block_of_python_is_run_here():
    assert {OWN, MORE, DECLARED, BY_HAND} == set(BLOCKS)


def test_the_example_of_a_lab_file_runs(tmp_path):
    (tmp_path / "mine.py").write_text(OWN + MORE)
    keys = "lab: mine.py\nfamilies: remainders,B\nn_tasks: 60\nadvantage: centred\n"
    (tmp_path / "mine.yaml").write_text(keys)
    lab = Lab.open(tmp_path / "mine.yaml")
    suite = lab.suite()
    assert len(suite) == 60 and {task.family for task in suite} == {"remainders", "B"}
    assert set(tools_of(lab.environments["remainders"]())) == {"search", "calculator", "modulo"}
    assert "brevity" in lab.reward


def test_the_example_by_hand_runs(tmp_path, capsys):
    recipe = tmp_path / "small.yaml"
    recipe.write_text("families: A\nn_tasks: 40\nmax_turns: 2\nmax_turn_tokens: 32\nmax_tokens: 128\n")
    namespace: dict = {"__name__": "by_hand"}
    exec(BY_HAND.replace("params/nano.yaml", str(recipe)), namespace)
    assert len(namespace["group"]) == 4 and all(t.reward is not None for t in namespace["group"])
    assert namespace["other"][0].answer == "42" and namespace["trained"]
    assert abs(sum(namespace["advantages"])) < 1e-6 and capsys.readouterr().out


@pytest.mark.slow
def test_the_first_commands_of_the_readme_run(tmp_path):
    """In a clone. Set-up is left out (PYTHON=true): the packages are this environment's."""
    (block,) = re.findall(r"```\n(git clone .*?)```", PAGES[ROOT / "README.md"], flags=re.DOTALL)
    clone, demo, lab = block.replace("<this repository>", str(ROOT)).splitlines()[:3]
    subprocess.run(["bash", "-ec", clone], cwd=tmp_path, check=True, capture_output=True)
    here = tmp_path / "agentkit"
    (here / ".venv").mkdir()
    (here / ".venv" / "bin").symlink_to(Path(sys.prefix) / "bin")
    tiny = {"base": "nano.yaml", "n_tasks": 60, "steps": 2, "val_tasks": 4, "val_every": 2, "test_samples": 1}
    tiny |= {"prompts_per_step": 2, "group_size": 4, "micro_batch": 8, "preflight": "warn"}
    (here / "params" / "tiny.yaml").write_text(json.dumps(tiny))
    jupyter = f"--no-browser\\ --port={free_port()}\\ --allow-root"
    options = f" -- PYTHON=true RECIPE=params/tiny.yaml LAB={jupyter}"
    environment = os.environ | {"PYTHONPATH": str(here), "MAKEFLAGS": options}
    subprocess.run(["bash", "-ec", demo], cwd=here, env=environment, check=True, timeout=900)
    assert (here / "outputs" / "demo" / "report.html").is_file()
    served = {"cwd": here, "env": environment, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(["bash", "-ec", lab], start_new_session=True, **served) as server:
        assert any("/lab/tree/notebooks" in line for line in server.stderr)
        os.killpg(server.pid, signal.SIGKILL)


def test_the_files_of_the_reading_tour_are_there():
    files = re.findall(r"`([\w/]+\.(?:py|toml))`", PAGES[DOCS / "contributing.md"])
    missing = [f for f in files if not any((place / f).is_file() for place in (ROOT / "agentkit", ROOT))]
    assert len(files) > 15 and missing == []


def test_the_example_of_a_declared_tool_keeps_the_protocol():
    namespace: dict = {"__name__": "readme"}
    exec(DECLARED, namespace)
    given = {"factory": namespace["Shop"], "calls": [ToolCall("price", {"item": "tea"})]}
    suite = type("TestShop", (EnvironmentConformance,), given)
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite(), name)()
    assert namespace["Shop"].price.tool_spec.max_concurrent == 8


def test_keys_are_those_of_the_recipe():
    assert f"```\n{Recipe.defaults()}\n```" in PAGES[DOCS / "keys.md"]


def test_start_names_every_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    known = set(re.findall(r"• (\w+)", capsys.readouterr().out))
    told = set(re.findall(r"^agentkit (\w+).* # ", PAGES[DOCS / "start.md"], re.MULTILINE))
    assert known == cli.COMMANDS.keys() == told


def anchors(text: str) -> set[str]:
    """What a link to a part of a page may name: its titles, as GitHub writes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(((?!http)[^)]+)\)", text):
            file, _, part = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.exists(), (page, link)
            assert not part or part in anchors(PAGES[target]), (page, link)


def test_pages_stay_short():
    sizes = {page: len(text.encode()) for page, text in PAGES.items()}
    assert sizes.pop(ROOT / "README.md") <= 8_192
    assert sum(sizes.values()) <= 70 * 1024
    assert [page for page, text in PAGES.items() if text.count("\n") > 150] == []
    assert all(image.stat().st_size <= 300_000 for image in (DOCS / "images").iterdir())


def test_paragraphs_have_at_most_six_lines():
    for page, text in PAGES.items():
        for block in re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n\n"):
            plain = [line for line in block.strip().split("\n") if not re.match(r"[|#-]|\d\.|  ", line)]
            assert len(plain) <= 6, (page.name, plain[0])
