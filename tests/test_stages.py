"""Notebooks executed in order: what is done is kept, and what changed is made again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentkit import cli
from agentkit.recipe import Recipe, RecipeError
from agentkit.records import RunError
from agentkit.runs import Run, project_root, stages

NANO = project_root(__file__) / "params" / "nano.yaml"


def write(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def no_notebooks(monkeypatch):
    """A record of what would have been executed."""
    executed = []
    monkeypatch.setattr(
        stages, "execute", lambda stage, run, parameters: executed.append((stage, parameters["recipe"]))
    )
    monkeypatch.setattr(cli, "_print_finished", lambda run, as_json: 0)
    return executed


def test_a_stage_is_not_done_where_a_key_that_was_set_is_back_at_its_default(tmp_path):
    run, default = Run.create(tmp_path / "a"), Recipe.keys()["beta"].default
    run.begin("03_grpo", {"model": "nano", "beta": 2 * default})
    run.end("03_grpo")
    assert stages.is_done(run, "03_grpo", {"model": "nano", "beta": 2 * default})
    assert not stages.is_done(run, "03_grpo", {"model": "nano"})
    run.begin("03_grpo", {"model": "nano"})
    run.end("03_grpo")
    assert stages.is_done(run, "03_grpo", {"model": "nano", "beta": default, "n_tasks": 60})


def test_a_stage_stays_done_with_other_keys_that_change_no_result(tmp_path):
    run = Run.create(tmp_path / "a")
    recipe = {"model": "nano", "engine": "server", "server_urls": "http://node3:8000"}
    for stage in stages.STAGES[:3]:
        run.begin(stage, stages.parameters_of(stage, recipe))
        run.end(stage)
    free = {"server_urls": "http://node7:8000", "save_every": 9, "preflight": "warn", "max_batch": 9}
    free |= {"engine_memory": 0.5, "report_to": "wandb", "tool_cache": "off"}
    assert all(stages.is_done(run, stage, recipe | free) for stage in stages.STAGES[:3])
    done = [stages.is_done(run, "03_grpo", recipe | {k: 9}) for k in ("patience", "steps", "tool_timeout_s")]
    assert done == [False, False, False]


def test_one_call_at_a_time_works_on_a_run(tmp_path, monkeypatch, capsys):
    run, words = tmp_path / "a", ["run", str(NANO), "--run", str(tmp_path / "a"), "--to", "01"]

    def execute(stage: str, run: Run, parameters: dict) -> None:
        assert cli.main(words) == 2
        assert f"process {os.getpid()} is executing notebooks in {run.path}" in capsys.readouterr().err

    monkeypatch.setattr(stages, "execute", execute)
    assert cli.main(words) == 0 and "run folder" in capsys.readouterr().out
    command = [
        sys.executable,
        "-c",
        f"{HOLDING}with _alone(Run({str(run)!r})):\n print(flush=True)\n input()",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert cli.main(words) == 2 and f"process {other.pid} is" in capsys.readouterr().err
        other.kill()
    monkeypatch.setattr(stages, "execute", lambda *_: None)
    assert cli.main(words) == 0, "a killed one holds nothing"


HOLDING = "from agentkit.runs.run import Run\nfrom agentkit.runs.stages import _alone\n"


def test_a_stage_is_not_done_where_an_earlier_one_was_executed_after_it(tmp_path, monkeypatch):
    run, clock = Run.create(tmp_path / "a"), iter(f"2026-01-01T00:00:0{i}+0000" for i in range(9))
    monkeypatch.setattr("agentkit.runs.run._now", lambda: next(clock))
    for stage in ("01_tasks", "02_baseline", "03_grpo", "02_baseline"):
        run.begin(stage, {"model": "nano"})
        run.end(stage)
    done = [stages.is_done(run, stage, {"model": "nano"}) for stage in stages.STAGES[:3]]
    assert done == [True, True, False]


def test_a_stage_stays_done_where_the_next_began_in_another_time_zone(tmp_path, monkeypatch):
    clock = iter(("2026-01-01T12:10:00+0200", "2026-01-01T10:30:00+0000", "2026-01-01T10:40:00+0100"))
    run = Run.create(tmp_path / "a")
    monkeypatch.setattr("agentkit.runs.run._now", lambda: next(clock))
    for stage in stages.STAGES[:3]:
        run.begin(stage, {"model": "nano"})
        run.end(stage)
    done = [stages.is_done(run, stage, {"model": "nano"}) for stage in stages.STAGES[:3]]
    assert done == [True, True, False], "the third began at 09:40, before the others"


def test_a_training_that_was_asked_to_stop_is_not_done(tmp_path):
    run = Run.create(tmp_path / "a")
    for ended, done in (("asked", False), ("steps", True)):
        run.begin("03_grpo", {"model": "nano"})
        assert "interrupted" not in run.manifest["stages"]["03_grpo"], "it goes on from its checkpoint"
        run.end("03_grpo", ended=ended)
        assert stages.is_done(run, "03_grpo", {"model": "nano"}) == done


@pytest.mark.parametrize("name", ["{}/rows.jsonl", "gsm8k:{}/rows.jsonl", "gsm8k:{}"])
def test_a_stage_is_not_done_with_other_content_of_a_file_it_was_handed(tmp_path, monkeypatch, name):
    run, rows = Run.create(tmp_path / "a"), write(tmp_path / "rows.jsonl", "{}")
    recipe = {"n_tasks": 60, "tasks": name.format(tmp_path)}

    def execute(stage: str, run: Run, parameters: dict) -> None:
        run.begin(stage, parameters["recipe"])
        run.end(stage)

    monkeypatch.setattr(stages, "execute", execute)
    stages.run_stages(run, recipe, 0, 0, files=stages.file_digests(recipe))
    assert stages.is_done(run, "01_tasks", recipe)
    rows.write_text("{ }")
    assert not stages.is_done(run, "01_tasks", recipe)


def test_a_stage_is_not_done_with_other_weights_in_its_model_folder(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    run, weights = Run.create(tmp_path / "a"), write(tmp_path / "mine" / "model.safetensors", 2**21 * "a")
    recipe = {"model": str(tmp_path / "mine")}

    def execute(stage: str, run: Run, parameters: dict) -> None:
        run.begin(stage, parameters["recipe"])
        run.end(stage)

    monkeypatch.setattr(stages, "execute", execute)
    stages.run_stages(run, recipe, 2, 2, files=stages.file_digests(recipe))
    os.utime(weights, (0, 0))
    assert stages.is_done(run, "03_grpo", recipe), "a copy has other times"
    weights.write_text(2**21 * "b")
    assert not stages.is_done(run, "03_grpo", recipe)
    run.update(stages={"03_grpo": run.manifest["stages"]["03_grpo"] | {"files": {}}})
    assert stages.is_done(run, "03_grpo", recipe), "an older version did not look"


@pytest.mark.parametrize(
    ("by_hand", "here"),
    [({"lab": "example.py"}, {"lab": "params/example.py"}), ({"tasks": "gsm8k:example.py"}, {"tasks": "gsm8k:params/example.py"}),
     ({"model": "outputs/mine"}, {"model": str(NANO.parents[1] / "outputs" / "mine")})],
)  # fmt: skip
def test_a_stage_is_done_however_its_files_are_spelt(tmp_path, by_hand, here):
    run = Run.create(tmp_path / "a")
    stage = "01_tasks" if "tasks" in here else "03_grpo"
    run.begin(stage, by_hand)
    run.end(stage)
    assert stages.is_done(run, stage, here)
    assert not stages.is_done(run, stage, {name: f"{value}.py" for name, value in here.items()})


def test_a_training_that_was_asked_to_stop_ends_the_call_and_the_same_call_goes_on(
    tmp_path, monkeypatch, capsys
):
    executed, asked = [], ["asked"]

    def execute(stage: str, run: Run, parameters: dict) -> None:
        executed.append(stage[:2])
        run.begin(stage, parameters["recipe"])
        run.end(stage, **({"ended": (asked or ["steps"]).pop()} if stage == "03_grpo" else {}))

    monkeypatch.setattr(stages, "execute", execute)
    words = ["run", str(NANO), "--run", str(tmp_path / "a"), "--to"]
    assert cli.main([*words, "04"]) == 130 and executed == ["01", "02", "03"]
    shown = capsys.readouterr()
    assert "03_grpo: asked to stop" in shown.out and "run the same command to go on" in shown.err
    asked.append("asked")
    assert cli.main([*words, "04", "--from", "03"]) == 130 and executed.pop() == "03"
    assert "same command, --from the notebook that stopped, to go on" in capsys.readouterr().err
    assert cli.main([*words, "04", "--from", "04"]) == 0 and executed[3:] == ["04"]
    assert cli.main([*words, "04"]) == 0 and executed[4:] == ["03", "04"]


def test_a_notebook_is_handed_its_run_from_wherever_the_kernel_works(tmp_path, monkeypatch):
    for name in ("notebooks", "params", "sub/outputs/a"):
        (tmp_path / name).mkdir(parents=True)
    write(tmp_path / "notebooks" / "01_tasks.ipynb", "")
    monkeypatch.chdir(tmp_path / "sub")
    handed = []

    def papermill(notebook: str, out: str, parameters: dict, **options) -> None:
        handed.append(parameters["run"])
        raise OSError("enough")

    monkeypatch.setattr("papermill.execute_notebook", papermill)
    with pytest.raises(RunError, match="enough"):
        stages.execute("01_tasks", Run("outputs/a"), {})
    assert handed == [str(tmp_path / "sub" / "outputs" / "a")]


def test_a_stage_is_not_done_with_another_lab_file(tmp_path, monkeypatch):
    run, lab, executed = Run.create(tmp_path / "a"), tmp_path / "lab.py", []
    recipe = {"n_tasks": 60, "lab": str(lab)}

    def execute(stage: str, run: Run, parameters: dict) -> None:
        executed.append(stage)
        run.begin(stage, parameters["recipe"], lab=stages.file_digests(recipe).get("lab", ""))
        run.end(stage)
        if "edit" in lab.read_text():
            lab.write_text("changed = True")

    monkeypatch.setattr(stages, "execute", execute)
    for text, count in (("a = 1", 2), ("a = 1", 2), ("a = 2", 4), ("a = 1", 6)):
        lab.write_text(text)
        stages.run_stages(run, recipe, 0, 1, files=stages.file_digests(recipe))
        assert len(executed) == count
    lab.write_text("a = 'edit'")
    with pytest.raises(RecipeError, match="lab file .* has changed since this began"):
        stages.run_stages(run, recipe, 0, 1, files=stages.file_digests(recipe))
    assert len(executed) == 7, "the second notebook would have run another lab file than the first"
    files = stages.file_digests(recipe)
    monkeypatch.setattr(stages, "execute", lambda stage, run, parameters: run.begin(stage, {}, lab="another"))
    with pytest.raises(RecipeError, match="restore it, or start again"):  # edited when the notebook opened it
        stages.run_stages(run, recipe, 0, 1, files=files)
