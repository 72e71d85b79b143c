"""Stages: what makes one done, stale or anew, one call at a time, and lab files as modules."""

import re
import subprocess
import sys
import time
import warnings

import pytest
from nbformat.v4 import new_markdown_cell
from test_recipes import write

from agentkit import cli
from agentkit.records import RecipeError, RunError
from agentkit.runs import Run, append_jsonl, project_root, stages
from agentkit.runs.fingerprints import STAGES, file_digests
from agentkit.runs.labfile import lab_digest, load_module
from agentkit.runs.progress import EVERY_S, told

NANO = project_root(__file__) / "params" / "nano.yaml"


@pytest.fixture
def executed(monkeypatch) -> list[str]:
    """The notebooks that are executed: they do nothing but begin and end."""
    found = []

    def execute(stage: str, run: Run, parameters: dict) -> None:
        found.append(stage)
        recipe = parameters["recipe"]
        run.begin(stage, recipe, lab=file_digests(recipe).get("lab", ""))
        run.end(stage)

    monkeypatch.setattr(stages, "execute", execute)
    return found


def went(run: Run, recipe: dict, executed: list[str], first: int = 0, last: int = 2) -> str:
    """The numbers of the notebooks that a call executes."""
    executed.clear()
    stages.run_stages(run, recipe, first, last)
    return " ".join(stage[:2] for stage in executed)


def test_what_is_done_is_kept_and_what_follows_a_change_runs_again(tmp_path, executed):
    run, recipe = Run.create(tmp_path / "a"), {"model": "nano", "beta": 0.1, "n_tasks": 60}
    assert went(run, recipe, executed) == "01 02 03"
    assert went(run, recipe, executed) == ""
    assert went(run, {"beta": 0.1, "n_tasks": 60}, executed) == "", "a default may be left out"
    free = {"save_every": 9, "preflight": "warn", "max_batch": 9, "engine_memory": 0.5, "tool_cache": "off"}
    assert went(run, recipe | free, executed) == "", "these change no result"
    assert went(run, recipe | {"beta": 0.2}, executed) == "03"
    assert went(run, {"n_tasks": 60}, executed) == "03", "a key that is back at its default"
    assert went(run, recipe | {"n_tasks": 80}, executed) == "01 02 03"
    assert run.manifest["recipe"] == recipe | {"n_tasks": 80}


def test_a_stage_depends_on_the_content_of_its_files_however_they_are_spelt(tmp_path, executed):
    lab, rows = write(tmp_path / "lab.py", "a = 1"), write(tmp_path / "rows.jsonl", "{}")
    weights = write(tmp_path / "mine" / "model.safetensors", 2**18 * "a")
    recipe = {"lab": str(lab), "tasks": str(rows), "model": str(weights.parent)}
    run = Run.create(tmp_path / "a")
    assert went(run, recipe, executed) == "01 02 03"
    assert went(run, recipe | {"lab": f"{tmp_path}/mine/../lab.py"}, executed) == ""
    weights.write_text(2**17 * "b")
    assert went(run, recipe, executed) == "02 03"
    rows.write_text("{ }")
    assert went(run, recipe, executed) == "01 02 03"
    lab.write_text("a = 2")
    assert went(run, recipe, executed) == "01 02 03"


def test_a_training_that_was_asked_to_stop_ends_the_call_and_can_go_on(tmp_path, monkeypatch, capsys):
    executed, asked = [], ["asked"]

    def execute(stage: str, run: Run, parameters: dict) -> None:
        executed.append(stage[:2])
        run.begin(stage, parameters["recipe"])
        run.end(stage, **({"ended": (asked or ["steps"]).pop()} if stage == "03_grpo" else {}))

    monkeypatch.setattr(stages, "execute", execute)
    words = ["run", str(NANO), "--run", str(tmp_path / "a"), "--to", "04"]
    assert cli.main(words) == 130 and executed == ["01", "02", "03"]
    shown = capsys.readouterr()
    assert "03_grpo: asked to stop" in shown.out and "the same command goes on" in shown.err
    assert cli.main([*words, "--from", "04"]) == 0 and executed[3:] == ["04"]
    assert cli.main(words) == 0 and executed[4:] == ["03", "04"]


def test_one_call_at_a_time_works_on_a_run(tmp_path, executed, capsys):
    words = ["run", str(NANO), "--run", str(tmp_path / "a"), "--to", "01"]
    assert cli.main(words) == 0
    code = "import sys; from pathlib import Path; from agentkit.runs.files import alone\n"
    code += "with alone(Path(sys.argv[1]), 'at it'):\n print(flush=True)\n input()"
    command = [sys.executable, "-c", code, str(tmp_path / "a" / stages.RUNNING)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert cli.main(words) == 2
        says = f"process {other.pid} is executing notebooks in {tmp_path / 'a'}: wait"
        assert says in capsys.readouterr().err
        other.kill()
    assert cli.main(words) == 0, "a killed one holds nothing"


def test_a_run_of_an_earlier_version_is_refused(tmp_path, executed):
    run = Run.create(tmp_path / "a")
    run.update(stages={"01_tasks": {"status": "done", "seconds": 3.0, "parameters": {}}})
    with pytest.raises(RunError, match="made by an earlier version .01_tasks.: name another --run"):
        stages.run_stages(run, {}, 0, 0)
    assert executed == []


def test_a_notebook_warns_once_where_an_earlier_one_does_not_go_with_it(tmp_path, recwarn):
    run, recipe = Run.create(tmp_path / "a"), {"n_tasks": 60, "temperature": 0.5}
    for stage in STAGES[:3]:
        run.begin(stage, recipe | {"max_batch": len(stage)})
        run.end(stage)
    assert not recwarn.list
    says = "^01_tasks was made with something else than 03_grpo has here .n_tasks.: run it again"
    with pytest.warns(UserWarning, match=says):
        run.begin("03_grpo", {"temperature": 0.9})
    run.begin("01_tasks", recipe | {"n_tasks": 80})
    with pytest.warns(UserWarning, match="02_baseline was .* .an earlier notebook that ran again.: run"):
        run.begin("03_grpo", recipe | {"n_tasks": 80})
    with pytest.warns(UserWarning, match="has here .lab.: run it again, unless"):
        run.begin("02_baseline", recipe | {"n_tasks": 80}, lab="another")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.begin("drawing", {"steps": 7})  # it has no place in their order


# ---- lab files
def test_what_a_lab_file_imports_from_beside_it_is_part_of_its_digest_and_loaded_anew(tmp_path):
    lab = write(tmp_path / "own_lab.py", "from own_shop.prices import PRICE\nimport random\n")
    write(tmp_path / "own_shop" / "__init__.py", "")
    part, kept = write(tmp_path / "own_shop" / "prices.py", "PRICE = 1\n"), sys.modules["random"]
    before = lab_digest(lab)
    assert load_module(lab).PRICE == 1
    part.write_text("PRICE = 22\n")
    assert load_module(lab).PRICE == 22 and lab_digest(lab) != before
    part.write_text("PRICE =\n")
    with pytest.raises(RecipeError, match="prices.py, line 1: SyntaxError"):
        load_module(lab)
    assert sys.modules["random"] is kept


def test_two_labs_import_each_their_own_module_of_one_name(tmp_path):
    for version in ("v1", "v2"):
        write(tmp_path / version / "lab.py", "from own_helpers import name\nimport colorsys\n")
        write(tmp_path / version / "own_helpers.py", f"name = {version!r}\n")
        write(tmp_path / version / "colorsys.py", "")
    for version in ("v1", "v2", "v1"):
        module = load_module(tmp_path / version / "lab.py")
        assert module.name == version and module.colorsys.rgb_to_hsv, "it hides no library"
    lab = tmp_path / "marked_lab.py"
    lab.write_bytes("\ufeffSIZE = 3\n".encode())
    assert load_module(lab).SIZE == 3 and lab_digest(lab)


def test_what_is_executed_is_told_with_its_section_and_the_trainings_step(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(EVERY_S, False, 0.05)
    run = Run.create(tmp_path / "a")
    with told("03_grpo", run) as at_cell:
        at_cell(new_markdown_cell("## Train\n\nA text."), 0)
        append_jsonl(run.file("train", "metrics.jsonl"), {"step": 2, "planned_steps": 8})
        time.sleep(0.5)
        for torn in ("\n", '{"step": 3\n'):  # as a kill or a full disk leaves it
            write(run.file("train", "metrics.jsonl"), torn)
            time.sleep(0.2)
    said = capsys.readouterr().out
    assert "03_grpo: Train, step 2 of 8, " in said
    assert re.fullmatch(r"03_grpo: Train, \d s", said.splitlines()[-1])
