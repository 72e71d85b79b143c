"""The five notebooks, executed headless by papermill on a tiny budget."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import nbformat
import papermill
import pytest

from agentkit import Lab
from agentkit.cli import main
from agentkit.evaluation import Comparison
from agentkit.preflight import first_look
from agentkit.runs import load_run, read_json
from agentkit.runs.stages import STAGES
from agentkit.training.launch import Work
from agentkit.views.widgets import group_view

ROOT = Path(__file__).resolve().parents[1]
TINY = {"n_tasks": 60, "sft_transcripts": 1, "test_samples": 1, "steps": 2, "prompts_per_step": 2, "group_size": 4,
        "micro_batch": 8, "val_every": 2, "val_tasks": 4}  # fmt: skip
CHANGES = [word for key, value in TINY.items() for word in ("-p", f"{key}={value}")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole run of the small recipe, with little of everything, in whose folder another control's files lie."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    command = ["run", str(ROOT / "params" / "nano.yaml"), "--run", str(folder), *CHANGES]
    assert main([*command, "--to", "04"]) == 0
    shutil.copy(folder / "eval" / "sft.parquet", folder / "eval" / "rft.parquet")
    assert main(command) == 0
    return folder


def test_the_whole_path_leaves_every_artefact(finished):
    run = load_run(finished)
    assert {s: run.manifest["stages"][s]["status"] for s in STAGES} == dict.fromkeys(STAGES, "done")
    for name in (
        *("run.json", "tasks.jsonl", "baseline.json", "comparison.json"),
        *(f"{stage}.ipynb" for stage in STAGES),
        *("sft/adapter_config.json", "adapter/adapter_model.safetensors"),
        *("train/metrics.jsonl", "train/alarms.jsonl", "train/checkpoints/checkpoint-2/manifest.json"),
        "train/dashboard.html",
        *(f"train/trajectories/step_0000{step}.parquet" for step in (1, 2)),
        *(f"eval/{policy}.parquet" for policy in ("base", "sft", "sft_more", "grpo")),
    ):
        assert run.file(name).exists(), name
    assert len(run.tasks) == 60 and len(run.metrics) == 3 and run.steps == [1, 2]
    n_test = sum(t.split == "test" for t in run.tasks)
    assert len(run.trajectories("grpo")) == n_test
    policies = ["base", "grpo", "sft", "sft_more"]
    assert sorted(path.stem for path in run.file("eval").iterdir()) == policies, "rft is no longer named"
    comparison, shown = run.comparison, Comparison.from_json(run.comparison)
    assert "with 1 samples each" in run.file("preflight.json").read_text(), "of which notebook 03 is not told"
    assert comparison["n_tasks"] == n_test and sorted(comparison["policies"]) == policies
    assert 0 < comparison["paired"][0]["p"] <= 1
    assert comparison["headline"]["policy"] == "grpo" and shown.lead() == [comparison["headline"]["sentence"]]
    assert comparison["policies"]["grpo"]["trained_step"] == run.trained_step
    assert shown.table().index[0] == "Overall success" and len(shown.sentences()) == 6
    assert run.manifest["recipe"]["n_tasks"] == 60 and run.manifest["hashes"]["tasks.jsonl"]


def test_executed_notebooks_show_figures_no_errors_and_no_warnings(finished):
    for stage in STAGES:
        notebook = nbformat.read(finished / f"{stage}.ipynb", as_version=4)
        outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
        assert not [o for o in outputs if o.output_type == "error"]
        assert not [o.text for o in outputs if o.get("name") == "stderr"], "no reader can act on it"
        figures = [o for o in outputs if "plotly" in str(o.get("data", ""))]
        assert stage != "03_grpo" or len(figures) == 1, "live curves are redrawn in place"
    text = (finished / "05_compare.ipynb").read_text()
    assert "application/vnd.plotly.v1+json" in text and "<iframe" in text


def test_the_trajectories_that_an_alarm_points_at_are_shown(finished):
    run = load_run(finished)
    notebook = nbformat.read(ROOT / "notebooks" / "04_diagnostics.ipynb", as_version=4)
    (code,) = (cell.source for cell in notebook.cells if cell.source.startswith("groups = "))
    task = run.trajectories(2)[-1].task_id
    alarm = SimpleNamespace(evidence=[f"2:{task}#{sample}" for sample in range(4)])
    space = {"run": run, "alarms": [alarm], "lab": Lab.of(run), "group_view": group_view}
    exec(code, space)
    assert [(t.task_id, t.step) for t in space["shown"]] == [(task, 2)] * 4


def test_a_training_that_goes_on_keeps_its_preflight(finished):
    run = load_run(finished)
    before = run.file("preflight.parquet").stat().st_mtime_ns
    rollouts, report = first_look(Work(Lab.of(run), run))
    assert rollouts and report.items and run.file("preflight.parquet").stat().st_mtime_ns == before


def test_a_finished_run_is_kept_and_its_table_printed_again(finished, capsys):
    before = (finished / "comparison.json").read_bytes()
    assert main(["run", str(ROOT / "params" / "nano.yaml"), "--run", str(finished), *CHANGES]) == 0
    printed = capsys.readouterr().out
    assert printed.count("done, kept") == 5 and "sft" in printed and "grpo" in printed
    assert json.loads(before)["headline"]["sentence"] in printed
    assert (finished / "comparison.json").read_bytes() == before


@pytest.mark.slow
def test_a_run_repeats_bit_for_bit(finished, tmp_path):
    again = tmp_path / "again"
    assert main(["run", str(ROOT / "params" / "nano.yaml"), "--run", str(again), *CHANGES, "--to", "03"]) == 0
    for name in ("tasks.jsonl", "sft/adapter_model.safetensors", "adapter/adapter_model.safetensors"):
        assert (again / name).read_bytes() == (finished / name).read_bytes(), name
    assert read_json(again / "baseline.json") == read_json(finished / "baseline.json")
    one, other = (load_run(folder).trajectories("sft") for folder in (again, finished))
    assert [(t.task_id, t.success) for t in one] == [(t.task_id, t.success) for t in other]
    assert [t.completion_ids for t in one] == [t.completion_ids for t in other]


def test_the_readmes_python_runs_on_a_finished_run(finished, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    exec(code.replace("outputs/demo", str(finished)), {"__name__": "readme"})
    assert "Overall success" in capsys.readouterr().out
    assert "Trajectories side by side" in (finished / "viewer.html").read_text()


@pytest.mark.slow
def test_the_notebook_to_play_with_runs_and_leaves_nothing(tmp_path):
    out, run = tmp_path / "00.ipynb", tmp_path / "none"
    notebook = str(ROOT / "notebooks" / "00_play.ipynb")
    papermill.execute_notebook(notebook, str(out), {"run": str(run)}, cwd=str(ROOT), progress_bar=False)
    shown = out.read_text()
    assert "before and after one step" in shown and "after the error" in shown and not run.exists()
