"""The command line as a whole: help that is quick to come, results that programs can read."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys

import nbformat
import pytest
from test_report import make_run

from agentkit import cli
from agentkit.preflight import Preflight
from agentkit.runs import Run, load_run, project_root, write_jsonl

SLOW = ("torch", "pandas", "numpy", "scipy", "transformers", "plotly", "papermill", "pyarrow")


def test_help_loads_nothing_slow():
    command = [sys.executable, "-X", "importtime", "-m", "agentkit.cli", "--help"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0 and "usage: agentkit" in child.stdout
    loaded = {line.rpartition("|")[2].strip() for line in child.stderr.splitlines()}
    assert loaded.isdisjoint(SLOW)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and f"usage: agentkit {command}" in shown


@pytest.mark.parametrize("command", sorted(cli.COMMANDS.keys() - {"serve"}))
def test_every_command_that_prints_a_result_takes_json(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert "--json" in capsys.readouterr().out


def test_what_a_lab_file_prints_is_no_part_of_the_json(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("print('loading')\nrewards = {'one': (lambda task, t: 1.0, 0.5)}\n")
    run = Run.create(tmp_path / "a")
    run.begin("01_tasks", {"lab": str(tmp_path / "mine.py")})
    write_jsonl(run.file("tasks.jsonl"), [{"prompt": "How much is 1 + 1?", "answer": "2"}])
    assert cli.main(["audit", str(run.path), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["tasks"] == 1 and printed.err == "loading\n"


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["run"],
        ["cost", "x.yaml", "--gpus", "0"],
        ["merge", "a", "--dtype", "int8"],
        ["audit", "a", "--fly"],
        ["serve", "nano", "--port", "65536"],
    ],
)
def test_what_cannot_be_parsed_ends_with_status_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2 and "--help" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["run", "params/nano.yaml", "--run", "outputs/../x"],
        ["sweep", "params/sweeps/nano.yaml", "--run", "../x"],
    ],
)
def test_a_folder_to_write_has_no_way_up(words, capsys):
    assert cli.main(words) == 2
    assert "is refused: write it without '..'" in capsys.readouterr().err


def test_help_names_only_values_that_can_be_typed(capsys):
    with pytest.raises(SystemExit):
        cli.main(["merge", "--help"])
    assert "--dtype {float32,float16,bfloat16}" in capsys.readouterr().out


@pytest.mark.parametrize(("sft", "before"), [("true", 1), ("false", 0)])
def test_a_preflight_says_what_it_judges_and_what_takes_long(monkeypatch, capsys, sft, before):
    monkeypatch.setattr("agentkit.policies.loading.load_agent", lambda *of: (None, None))
    monkeypatch.setattr("agentkit.policies.loading.make_policy", lambda *of: None)
    monkeypatch.setattr("agentkit.preflight.examine", lambda *of, **options: (Preflight((), 0, 0.0), []))
    changes = ["families=A", "n_tasks=40", "group_size=4", f"sft={sft}", "train_difficulty=easy,medium,hard"]
    words = [word for change in changes for word in ("-p", change)]
    assert cli.main(["preflight", "params/nano.yaml", *words, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["rollouts"] == 0
    assert (
        printed.err.count("before that cold start") == printed.err.count("--to 02', then add --run") == before
    )
    assert printed.err.endswith("agentkit: 64 rollouts of the starting policy ...\n")  # two steps of eight


def test_a_preflight_of_a_model_that_takes_several_cards_is_left_to_the_notebook(capsys):
    changes = ["-p", "families=A", "-p", "n_tasks=40", "-p", "reward=plan", "-p", "lab=''"]
    assert cli.main(["preflight", "params/image-27b.yaml", *changes]) == 2
    assert "takes several: notebook 03 examines it" in capsys.readouterr().err


def test_a_terminal_without_unicode_shows_help_all_the_same():
    command = [sys.executable, "-m", "agentkit.cli", "--help"]
    child = subprocess.run(
        command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, timeout=60
    )
    assert child.returncode == 0 and b"preflight" in child.stdout


# ---- a disk that is full
@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("finished") / "run")


@contextlib.contextmanager
def small_files(limit):
    """The kernel refuses larger files, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITERS = {
    "report": (["report", "{run}", "--out", "{folder}/card.html"], "card.html"),
    "run": (["run", "params/nano.yaml", "--run", "{folder}/new"], "new/run.json"),
}


@pytest.mark.parametrize("command", WRITERS)
def test_a_full_disk_is_told_with_the_file_and_the_remedy(finished, tmp_path, capsys, command):
    words, file = WRITERS[command]
    places = {"run": finished.path, "folder": tmp_path / "out"}
    with small_files(20):
        assert cli.main([word.format(**places) for word in words]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"agentkit: {tmp_path}/out/{file} cannot be written (File too large)")
    assert "make room there" in told and not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]


def test_a_library_with_an_error_of_its_own_for_a_full_disk_is_one_sentence(monkeypatch, capsys):
    def fails(*_):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("agentkit.doctor.examine", fails)
    assert cli.main(["doctor"]) == 2 and "No space left on device" in capsys.readouterr().err


def test_output_that_no_disk_takes_is_one_sentence():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "agentkit.cli", "doctor"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    *_, told = done.stderr.splitlines()
    assert done.returncode == 2 and "No space left" in told


def test_a_kernel_that_does_not_start_is_one_sentence(tmp_path, monkeypatch, capsys):
    def fails(*_, **__):
        raise RuntimeError("Kernel didn't respond in 60 seconds")  # as jupyter_client says it

    monkeypatch.setattr("papermill.execute_notebook", fails)
    assert cli.main(["run", "params/nano.yaml", "--run", str(tmp_path / "a"), "--to", "01"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "01_tasks stopped: its kernel died or did not start (Kernel didn't respond in 60 seconds)" in told
    assert "run the same again" in told


@pytest.mark.slow
def test_a_kernel_that_dies_is_one_sentence_and_the_stage_is_marked(tmp_path, monkeypatch, capsys):
    for folder in ("notebooks", "params"):
        shutil.copytree(project_root() / folder, tmp_path / folder)
    path = tmp_path / "notebooks" / "01_tasks.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells[-1].source = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    nbformat.write(notebook, path)
    monkeypatch.chdir(tmp_path)
    words = ["-p", "families=A", "-p", "n_tasks=20", "--to", "01"]
    assert cli.main(["run", "params/nano.yaml", "--run", "a", *words]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "01_tasks stopped: its kernel died" in told and "run the same again" in told
    run = load_run(tmp_path / "a")
    assert run.manifest["stages"]["01_tasks"]["status"] == "failed"
