"""The notebooks and views in a real JupyterLab in headless Chromium: Run All twice; interrupt a training and go
on; its buttons while its cell runs; what the page shows.
"""

import re
import shutil

import nbformat
import pytest
import yaml
from real_jupyterlab import ROOT, Notebook, problems, served, wait_until, with_parameters
from widget_cases import TASKS, read_notes

from agentkit.cli import main
from agentkit.recipe import read_recipe
from agentkit.runs import Run, read_jsonl

pytestmark = pytest.mark.slow
SMALL = {"n_tasks": 48, "sft_transcripts": 1, "test_samples": 1, "steps": 3, "prompts_per_step": 2, "group_size": 4,
         "micro_batch": 8, "val_every": 3, "val_tasks": 2, "save_every": 0, "preflight": "off"}  # fmt: skip
WIDE = "figure => figure._fullLayout.width === figure.clientWidth"  # as the page is


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project's folder with a run that has come to its training."""
    root = tmp_path_factory.mktemp("jupyter") / "project"
    shutil.copytree(ROOT / "params", root / "params")
    recipe = read_recipe(ROOT / "params/nano.yaml") | SMALL
    (root / "params" / "small.yaml").write_text(yaml.safe_dump(recipe))
    words = ["run", str(root / "params" / "small.yaml"), "--run", str(root / "outputs" / "lab"), "--to", "03"]
    assert main(words) == 0
    return root


@pytest.fixture(scope="module")
def lab(project):
    with served(project) as lab:
        yield lab


@pytest.fixture
def opened(browser, lab, project):
    """Opens a notebook of its own name with some parameters, in a browser page that is closed at the end."""
    pages = []

    def open_(stage, name="", run="outputs/lab", **changes):
        source, own = (folder / "notebooks" for folder in (ROOT, project))
        given = {"recipe": "params/small.yaml", "run": run, "changes": changes}
        path = with_parameters(source / f"{stage}.ipynb", own / f"{name or stage}.ipynb", **given)
        pages.append(Notebook(browser, lab, project, str(path.relative_to(project))))
        return pages[-1]

    yield open_
    for page in pages:
        page.close()


def fresh(project, name) -> Run:
    """A run that is at the beginning of its training."""
    without = shutil.ignore_patterns("train*", "adapter")
    path = shutil.copytree(project / "outputs" / "lab", project / "outputs" / name, ignore=without)
    return Run(path)


def rows(run) -> list[int]:
    path = run.file("train", "metrics.jsonl")
    return [row["step"] for row in read_jsonl(path)] if path.exists() else []


@pytest.mark.parametrize("stage", ["01_tasks", "03_grpo"])
def test_a_notebook_is_run_twice(opened, project, stage):
    notebook = opened(stage)
    for _ in range(2):
        notebook.run_all()
        saved = notebook.finished()
        said = "had come to its end: it is kept beside this one, which starts anew\n"
        assert [text for text in problems(saved) if not (stage == "03_grpo" and text.endswith(said))] == []
        assert all(cell.execution_count for cell in saved.cells if cell.cell_type == "code")
        assert Run(project / "outputs" / "lab").manifest["stages"][stage]["status"] == "done"


@pytest.mark.parametrize("processes", [1, 2])
def test_buttons_work_while_the_training_cell_runs(opened, project, processes):
    run = fresh(project, f"buttons-{processes}")
    sizes = {"steps": 150, "val_every": 150, "processes": processes, "micro_batch": 8 // processes}
    notebook = opened("03_grpo", f"buttons-{processes}", run=str(run.path), **sizes)
    page = notebook.page
    notebook.run_all()
    wait_until(lambda: len(rows(run)) > 2)
    assert notebook.is_running()
    page.wait_for_selector(".jupyter-widgets .js-plotly-plot .xtick")
    page.wait_for_function(f"() => ({WIDE})(document.querySelector('.jupyter-widgets .js-plotly-plot'))")
    clicked = max(rows(run))
    page.get_by_text("Stop after this step").click()
    assert problems(notebook.finished()) == []
    done = max(rows(run))
    assert done <= clicked + 20, "it did not wait for all steps"
    panel = page.locator(".jp-OutputArea-output .agentkit", has_text=re.compile(r"Step \d"))
    said = panel.first.inner_text()
    assert f"Step {done} of 150" in said and f"Stopped as asked. Kept: {done} of 150 steps" in said
    assert page.locator(".jp-OutputArea mjx-container").count() == 0
    drawn = page.evaluate("Math.max(...document.querySelector('.js-plotly-plot')._fullData[0].x)")
    assert drawn == done, "the figure that stays shows every step"


def test_an_interrupted_training_says_what_is_kept_and_its_cell_alone_goes_on(opened, project):
    run = fresh(project, "interrupted")
    notebook = opened("03_grpo", "interrupted", run=str(run.path), steps=12, val_every=12)
    notebook.run_all()
    wait_until(lambda: len(rows(run)) > 2)
    notebook.interrupt()
    stopped, *_ = problems(notebook.finished())
    done = max(rows(run))
    kept = run.file("train", "checkpoints", f"checkpoint-{done}")
    assert re.fullmatch(f"TrainingStopped: stopped (by SIGINT )?after step {done}; {kept} holds .*", stopped)
    panel = notebook.page.locator(".jp-OutputArea-output .agentkit", has_text=re.compile(r"Step \d")).first
    said = f"Interrupted. Kept: {done} of 12 steps, in {kept}; run this notebook again to go on from there."
    assert said in panel.inner_text()
    notebook.run_cell("with dashboard:")
    assert [p for p in problems(notebook.finished()) if "going on from" not in p] == []
    assert rows(run) == list(range(13)) and "Training is done." in panel.inner_text()
    assert not run.file("train-1").exists()


# ---- what the page shows
def test_views_are_live_and_static_and_save_notes(browser, lab, project):
    shown = "from agentkit.runs import Run\nfrom widget_cases import widget\nview = widget(run=Run('demo'))\n"
    cells = [nbformat.v4.new_code_cell(code) for code in (shown + "view.live()", "view")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), project / "views.ipynb")
    Run.create(project / "demo")
    notebook = Notebook(browser, lab, project, "views.ipynb")
    page = notebook.page
    notebook.run_all()
    live = page.locator(".jp-OutputArea-output .ak")
    static = page.frame_locator(".jp-OutputArea-output iframe")
    live.locator(".prompt").wait_for()
    live.get_by_label("next task").click()
    live.locator(".prompt").filter(has_text=TASKS[1].prompt).wait_for()
    live.get_by_label("note on this task").fill("seen in the lab")
    live.locator(".note output").filter(has_text="saved in demo/notes.jsonl").wait_for()
    assert read_notes(Run(project / "demo")) == {"t1": "seen in the lab"}
    static.get_by_label("next task").click()
    static.locator(".prompt").filter(has_text=TASKS[1].prompt).wait_for()
    assert "#task" not in page.url  # JupyterLab's address is its own
    assert not page.get_by_text("Jupyter news").count(), "it asks nothing"
    for light, theme in (("false", "dark"), ("true", "light")):
        page.evaluate("light => { document.body.dataset.jpThemeLight = light }", light)
        static.locator(f".ak[data-theme={theme}]").wait_for()
        page.locator(f".jp-OutputArea-output .ak[data-theme={theme}]").wait_for()
    notebook.close()
