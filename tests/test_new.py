"""agentkit new: a recipe and a lab file that work as they stand, and nothing that is there is overwritten."""

import json
import shutil
from pathlib import Path

import pytest

from agentkit import Lab, cli
from agentkit.policies.scripted import ScriptedPolicy

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project's folder with the two examples."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "params" / "labs").mkdir(parents=True)
    for name in ("shop.yaml", "shop-real.yaml", "labs/shop.py"):
        shutil.copy(ROOT / "params" / name, tmp_path / "params" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_lab_builds_its_suite_and_rolls_out(project, tokenizer, capsys):
    assert cli.main(["new", "mine", "--json"]) == 0
    paths = json.loads(capsys.readouterr().out)
    lab = Lab.open(paths["recipe"])
    assert str(lab.path) == paths["lab"] == str(project / "params" / "labs" / "mine.py")
    assert lab.recipe.families == ["shop"]
    suite = lab.suite()
    assert len(suite) == 200 and {task.family for task in suite} == {"shop"}
    tasks = suite.split("test")[:4]
    trajectories = lab.rollout(tasks, ScriptedPolicy(tokenizer), tool_cache=None)
    assert [t.success for t in trajectories] == [1.0] * 4
    assert all(t.components["brevity"] == 0.2 and t.reward == pytest.approx(1.04) for t in trajectories)
    called = {result.name for t in trajectories for turn in t.turns for result in turn.results}
    assert called == {"search", "calculator"}


@pytest.mark.parametrize("there", ["mine.yaml", "labs/mine.py"])
def test_nothing_is_overwritten(project, capsys, there):
    path = project / "params" / there
    path.write_text("precious")
    assert cli.main(["new", "mine"]) == 2
    assert "exists already" in capsys.readouterr().err and path.read_text() == "precious"
    assert len(list((project / "params").rglob("mine*"))) == 1


@pytest.mark.parametrize("name", ["", "../mine", "a.yaml", "-x", "mine\0", "shop"])
def test_a_name_that_makes_no_file_is_refused(project, capsys, name):
    arguments = ["new", "--", name] if name.startswith("-") else ["new", name]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentkit: ") and error.count("\n") == 1
    made = sorted(path.name for path in (project / "params").rglob("*.*"))
    assert made == ["shop-real.yaml", "shop.py", "shop.yaml"]


def test_outside_a_project_it_writes_here_and_copies_what_ships_where_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "mine"]) == 0
    made = ["labs", "mine-real.yaml", "mine.py", "mine.yaml"]
    assert sorted(path.name for path in (tmp_path / "params").rglob("*")) == made
    real = Lab.open("params/mine-real.yaml")
    assert real.path == tmp_path / "params" / "labs" / "mine.py" and real.recipe.engine == "vllm"
    assert cli.main(["new", "other", "--notebooks"]) == 0
    assert (tmp_path / "notebooks" / "03_grpo.ipynb").is_file()
    assert (tmp_path / "params" / "nano.yaml").is_file()
