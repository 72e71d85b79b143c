"""The live dashboard: what it draws, that it reads a run's folder, its buttons, and that it stays fast and inert."""

import time
from contextlib import nullcontext

import pandas as pd
import pytest
from test_browser import opened
from widget_cases import trajectory

from agentkit.recipe import Recipe
from agentkit.records import ToolResult, Trajectory, Turn
from agentkit.runs import Run, append_jsonl, write_jsonl, write_trajectories
from agentkit.views.widgets.dashboard import CONTROL, Dashboard, progress

HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script></pre></body>'


def rows(n: int) -> list[dict]:
    same = {"success": 0.5, "kl": 0.01, "clip_fraction": 0.0, "seconds": 2.0}
    found = [{"step": i, "reward": i / n} | same for i in range(1, n + 1)]
    for row in found[::10]:
        row |= {"val_success": 0.6, "val_ci_low": 0.5, "val_ci_high": 0.7}
    return found


def rollout(sample: int, reward: float, text: str = "look up") -> Trajectory:
    turns = (Turn(text, (0, 1), (ToolResult("search", {}, text, True),)), Turn("Answer: 7", (1, 2)))
    return trajectory("a", 1.0, sample=sample, policy="grpo", turns=turns, answer="7", reward=reward, step=2)


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path / "run")
    write_jsonl(run.file("train", "metrics.jsonl"), rows(20))
    write_jsonl(run.file("tasks.jsonl"), [{"id": "a", "prompt": HOSTILE, "answer": "7"}])
    stored = [rollout(0, 1.0, HOSTILE), rollout(1, -0.5), rollout(2, 0.5)]
    write_trajectories(run.file("train", "trajectories", "step_00002.parquet"), stored)
    alarm = {"step": 3, "alarm": "kl_spike", "severity": "critical", "value": 9.0, "evidence": ["2:a#0"]}
    append_jsonl(run.file("train", "alarms.jsonl"), alarm | {"cause": HOSTILE, "advice": "Lower the rate."})
    return run


def test_progress_says_how_far_and_how_long():
    said = progress(pd.DataFrame(rows(20)), Recipe(steps=60))
    assert said == "Step 20 of 60 · 40 s spent, about 80 s left · best validation 60.0% at step 11"
    assert progress(pd.DataFrame({"step": []}), Recipe(steps=60)) == "Step 0 of 60"


def test_the_panel_shows_alarms_and_the_best_and_worst_as_text(run):
    dashboard = Dashboard(run, Recipe(steps=60))
    found = dashboard._panel(run.metrics) + dashboard._extremes()
    assert "kl spike" in found and "→ Lower the rate." in found and "2:a#0" in found
    assert "reward 1, ended with an answer, 2:a#0" in found and "reward -0.5, ended" in found
    assert "<script>" not in found and "<img" not in found and "&lt;script&gt;" in found


def test_a_snapshot_opens_offline_and_runs_nothing_a_model_wrote(run, browser):
    path = Dashboard(run, Recipe(steps=60)).save()
    assert path == run.file("train", "dashboard.html") and path.stat().st_mode & 0o777 == 0o600
    with opened(browser, path) as page:
        page.wait_for_selector(".js-plotly-plot .xtick")
        assert page.evaluate("window.pwned") is None
        assert page.locator(".agentkit section").count() == 2


def live(run, monkeypatch, **options):
    """A dashboard that a notebook shows."""
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    dashboard = Dashboard(run, Recipe(steps=60), **options)
    dashboard._ipython_display_()
    return dashboard


def test_it_is_brought_up_to_date_in_place_when_it_is_time(run, monkeypatch):
    dashboard, clock = live(run, monkeypatch, every_s=15), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    _, panel, curves, extremes = dashboard._live.children
    drawn, draw = [], Dashboard.draw
    monkeypatch.setattr(Dashboard, "draw", lambda own: drawn.append(clock[0]) or draw(own))
    for row in rows(20) * 2:  # one a second
        clock[0] += 1.0
        dashboard(row)
    assert drawn == [1001.0, 1016.0, 1031.0]
    assert "Step 20 of 60" in panel.value and "reward 1, ended with an answer" in extremes.value
    assert max(curves.data[0].x) == 20 and len(curves.layout.annotations) == 6
    write_jsonl(run.file("train", "metrics.jsonl"), [row | {"entropy": 1.0} for row in rows(25)])
    dashboard.draw()
    assert max(curves.data[0].x) == 25 and len(curves.layout.annotations) == 7, "a panel that came later"


def test_the_button_writes_what_the_trainer_reads(run, monkeypatch):
    stop, said = live(run, monkeypatch)._live.children[0].children
    stop.click()
    file = run.file(*CONTROL)
    assert file.read_text().split() == ["stop"] and file.stat().st_mode & 0o777 == 0o600
    assert said.value == "asked to stop after this step"


@pytest.mark.parametrize(("error", "checkpoints", "finished", "says"), [
    (None, [5], True, "Training is done. The adapter that validation chose is kept in {name}/adapter."),
    (None, [5, 20], False, "Stopped as asked. Kept: 20 of 60 steps, in {run}/train/checkpoints/checkpoint-20; run this"),
    (KeyboardInterrupt(), [], False, "Interrupted before a checkpoint was written; run this"),
    (RuntimeError("x"), [9, 10], False, "Stopped by an error (RuntimeError). Kept: 10 of 60 steps, in"),
])  # fmt: skip
def test_at_its_end_it_says_what_is_kept_and_how_to_go_on(run, capsys, error, checkpoints, finished, says):
    for step in checkpoints:
        run.file("train", "checkpoints", f"checkpoint-{step}").mkdir(parents=True)
    run.file("train", "checkpoints", ".checkpoint-30").mkdir(parents=True)  # half of one
    run.file("train", "finished.json").write_text("{}") if finished else None
    with pytest.raises(type(error)) if error else nullcontext(), Dashboard(run, Recipe(steps=60)):
        if error:
            raise error
    page = run.file("train", "dashboard.html").read_text()
    assert says.format(run=run.path, name=run.path.name) in page
    assert " left" not in page.split("Step 20 of 60")[1][:60]


def test_a_dashboard_of_nothing(tmp_path):
    found = Dashboard(Run.create(tmp_path / "run"), Recipe(steps=5)).save().read_text()
    assert "Step 0 of 5" in found and "No alarm" in found
