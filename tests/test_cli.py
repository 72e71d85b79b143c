"""The command line: help that is quick to come, results that programs can read, a mistake in one sentence."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentkit import cli
from agentkit.recipe import project_root
from agentkit.runs import Run, stages, write_jsonl

ROOT = project_root(__file__)
NANO = str(ROOT / "params" / "nano.yaml")
SLOW = ("torch", "pandas", "numpy", "scipy", "transformers", "plotly", "papermill", "pyarrow")
COMMANDS = "new run sweep preflight cost report alarms merge audit gaia doctor serve".split()


def test_help_loads_nothing_slow():
    command = [sys.executable, "-X", "importtime", "-m", "agentkit.cli", "--help"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0 and "usage: agentkit" in child.stdout
    loaded = {line.rpartition("|")[2].strip() for line in child.stderr.splitlines()}
    assert loaded.isdisjoint(SLOW)


def test_every_command_explains_itself_and_prints_json(capsys):
    assert list(cli.COMMANDS) == COMMANDS, "those of the first page"
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            cli.main([command, "--help"])
        shown = capsys.readouterr().out
        assert stop.value.code == 0 and f"usage: agentkit {command}" in shown
        assert ("--json" in shown) == (command != "serve")


def test_what_a_lab_file_prints_is_no_part_of_the_json(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("print('loading')\nrewards = {'one': (lambda task, t: 1.0, 0.5)}\n")
    run = Run.create(tmp_path / "a")
    run.begin("01_tasks", {"lab": str(tmp_path / "mine.py")})
    write_jsonl(run.file("tasks.jsonl"), [{"prompt": "How much is 1 + 1?", "answer": "2"}])
    assert cli.main(["audit", str(run.path), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["tasks"] == 1 and printed.err == "loading\n"


@pytest.fixture
def executed(monkeypatch):
    """A record of what would have been executed."""
    found = []

    def execute(stage: str, run: Run, parameters: dict) -> None:
        found.append((stage, parameters["recipe"]))
        run.begin(stage, parameters["recipe"])
        run.end(stage)

    monkeypatch.setattr(stages, "execute", execute)
    return found


@pytest.mark.parametrize(("words", "says"), [
    (["-p", "sede=3"], "did you mean 'seed'"),
    (["-p", "seed"], "KEY=VALUE"),
    (["-p", "seed=["], "-p seed=[: it is not valid YAML"),
    (["--from", "07"], "no notebook '07'; there are 01, 02, 03, 04, 05"),
    (["--from", "04", "--to", "02"], "nothing would run"),
])  # fmt: skip
def test_a_mistake_is_one_sentence_and_nothing_is_made(tmp_path, capsys, executed, words, says):
    assert cli.main(["run", NANO, "--run", str(tmp_path / "a"), *words]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("agentkit: ") and says in told
    assert list(tmp_path.iterdir()) == [] and executed == []


def test_a_run_from_any_folder_finds_what_ships_and_writes_here(tmp_path, monkeypatch, executed):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "params/nano.yaml", "--run", "outputs/a", "-p", "n_tasks=60", "--to", "02"]) == 0
    assert [stage for stage, _ in executed] == ["01_tasks", "02_baseline"]
    assert executed[0][1]["n_tasks"] == 60 and (tmp_path / "outputs" / "a" / "run.json").is_file()


@pytest.mark.slow
def test_an_installed_wheel_runs_a_recipe_that_it_holds(tmp_path):
    """Notebooks and recipes are in it, and copied where asked for; only the packages are this environment's."""
    source, wheel = tmp_path / "source", tmp_path / "wheel"
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0")
    for name in names:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, *"-m pip wheel --no-build-isolation --no-deps -qw".split(), str(wheel), "."]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (file,) = wheel.iterdir()
    installed, here = tmp_path / "installed", tmp_path / "work"
    install = [sys.executable, *"-m pip install --no-deps -q --target".split(), str(installed), str(file)]
    subprocess.run(install, check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(installed), "HOME": str(tmp_path)}
    here.mkdir()
    run = "run params/nano.yaml --run outputs/a -p n_tasks=20 -p families=A -p new_templates=[] --to 01"
    for words in ("new mine --notebooks", run):
        command = [str(installed / "bin" / "agentkit"), *words.split()]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    copied = {path.name for path in (here / "notebooks").iterdir()}
    assert copied == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert (here / "params" / "labs" / "mine.py").is_file() and (here / "params" / "nano.yaml").is_file()
    assert len(Path(here / "outputs/a/tasks.jsonl").read_text().splitlines()) == 20
