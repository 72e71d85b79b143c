"""The live dashboard: what it draws, that it reads a run's folder, its buttons, and that it stays fast and
inert.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

import pandas as pd
import pytest

from agentkit.diagnostics import Watch
from agentkit.recipe import Recipe
from agentkit.records import StopReason, ToolResult, Trajectory, Turn
from agentkit.runs import Run, write_jsonl, write_trajectories
from agentkit.views.plots import training_curves
from agentkit.views.widgets import dashboard as module
from agentkit.views.widgets.dashboard import CONTROL, Controls, Dashboard, progress

HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script></pre></body>'


def rows(n: int) -> list[dict]:
    found = [
        {"step": i, "reward": i / n, "success": 0.5, "kl": 0.01, "clip_fraction": 0.0, "seconds": 2.0}
        for i in range(1, n + 1)
    ]
    for row in found[::10]:
        row |= {"val_success": 0.6, "val_ci_low": 0.5, "val_ci_high": 0.7}
    return found


def rollout(sample: int, reward: float, text: str = "look up") -> Trajectory:
    turns = (Turn(text, (0, 1), (ToolResult("search", {}, text, True),)), Turn("Answer: 7", (1, 2)))
    return Trajectory(
        "a",
        "grpo",
        sample,
        0,
        (1,),
        (2, 3),
        (1, 1),
        (0.0, 0.0),
        turns,
        StopReason.ANSWER,
        "7",
        1.0,
        reward=reward,
        step=2,
    )


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path / "run")
    write_jsonl(run.file("train", "metrics.jsonl"), rows(20))
    write_jsonl(run.file("tasks.jsonl"), [{"id": "a", "prompt": HOSTILE, "answer": "7"}])
    write_trajectories(
        run.file("train", "trajectories", "step_00002.parquet"), [rollout(0, 1.0, HOSTILE), rollout(1, -0.5)]
    )
    watch = Watch(run.file("train", "alarms.jsonl"))
    for i in range(8):
        watch.add({"step": i + 1, "clip_fraction": 0.5})
    return run


def test_progress_says_how_far_how_long_and_how_much():
    said = progress(pd.DataFrame(rows(20)), Recipe(steps=60), ("$", "Lab", 3.6))
    assert (
        said
        == "Step 20 of 60 · 40 s spent, about 80 s left · $0.04 of about $0.12 at Lab · best validation 60.0% at step 11"
    )
    assert progress(pd.DataFrame({"step": []}), Recipe(steps=60)) == "Step 0 of 60"
    epochs = pd.DataFrame(rows(20)).assign(planned_steps=30.0)  # whose recipe says no steps
    assert progress(epochs, Recipe(epochs=1)).startswith("Step 20 of 30 · 40 s spent, about 20 s left")


def test_money_is_that_of_all_cards_and_none_on_a_cpu(run):
    write_jsonl(run.file("train", "metrics.jsonl"), [row | {"seconds": 1800.0} for row in rows(20)])
    run.update(recipe={"model": "some-3b"}, versions={"torch": "2.13.0+cu130"})
    recipe = Recipe(steps=60, processes=2)
    assert "$32.80 of about $98.40 at RunPod on-demand" in Dashboard(run, recipe)._panel(run.metrics)
    assert "$65.60 of about $196.80 at" in Dashboard(run, recipe, devices=4)._panel(run.metrics)
    run.update(versions={"torch": "2.13.0+cpu"})
    panel = Dashboard(run, recipe, devices=4)._panel(run.metrics)
    assert "10.0 h spent" in panel and "$" not in panel


def test_the_panel_shows_alarms_and_the_best_and_worst_as_text(run):
    dashboard = Dashboard(run, Recipe(steps=60))
    found = dashboard._panel(run.metrics) + dashboard._extremes()
    assert "clip drift" in found and "Lower num_iterations" in found
    assert "reward 1, answer, 2:a#0" in found and "reward -0.5, answer, 2:a#1" in found
    assert "<script>" not in found and "<img" not in found and "&lt;script&gt;" in found


@pytest.mark.parametrize("rewards", [[], [None], [None, 0.5], [1.0, 0.0, None, 1.0, 0.0], [0.0, 2.0, 2.0]])
def test_only_the_best_and_the_worst_are_read(run, rewards, monkeypatch):
    stored, read = [rollout(n, reward) for n, reward in enumerate(rewards)], []
    write_trajectories(run.file("train", "trajectories", "step_00002.parquet"), stored)
    read_as = Run.trajectories
    monkeypatch.setattr(Run, "trajectories", lambda *a, **k: read.append(read_as(*a, **k)) or read[-1])
    found = Dashboard(run, Recipe(steps=60))._extremes()
    ranked = sorted((t for t in stored if t.reward is not None), key=lambda t: -t.reward)
    assert read == [ranked[:1] + ranked[1:][-1:]] and found.count("<section") == len(read[0])
    for t, side in zip(read[0], ("Best of", "Worst of"), strict=False):
        assert f"2:a#{t.sample}" in found.split(side)[1].split("</section>")[0]


def test_a_redrawing_of_ten_thousand_steps_is_quick(run, thread_time):
    write_jsonl(run.file("train", "metrics.jsonl"), rows(10_000))
    dashboard = Dashboard(run, Recipe(steps=20_000))
    start = thread_time()
    figure = dashboard._figure(run.metrics)
    assert thread_time() - start < 5 and sum(len(trace.x) for trace in figure.data) < 20_000


def test_a_snapshot_opens_offline_and_runs_nothing_a_model_wrote(run, browser):
    path = Dashboard(run, Recipe(steps=60)).save()
    assert path == run.file("train", "dashboard.html") and path.stat().st_mode & 0o777 == 0o600
    page = browser.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector(".js-plotly-plot .xtick")
    assert (
        page.evaluate("window.pwned") is None
        and [u for u in requests if not u.startswith(("file:", "data:", "blob:"))] == []
    )
    assert page.locator(".agentkit section").count() == 2 and page.locator(".agentkit details").count() == 1


def test_rows_redraw_only_when_it_is_time(run, capsys):
    dashboard = Dashboard(run, Recipe(steps=60), every_s=1000)
    for row in rows(20):
        dashboard(row)
    assert capsys.readouterr().out.count('class="agentkit ') == 2


def test_what_cannot_be_drawn_ends_no_training_and_is_said_once(run, monkeypatch):
    dashboard = Dashboard(run, Recipe(steps=60), every_s=0, snapshot_s=0)
    run.file("train", "dashboard.html").mkdir()  # it cannot be written
    monkeypatch.setattr(dashboard, "_figure", lambda metrics: 1 / 0)
    with pytest.warns(UserWarning, match="the dashboard is not drawn") as said, dashboard:
        for row in rows(3):
            dashboard(row)
    assert len(said) == 1


def test_slow_redrawings_become_rare(run, capsys, monkeypatch):
    dashboard, clock = Dashboard(run, Recipe(steps=60), every_s=15), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        dashboard,
        "_figure",
        lambda metrics: (clock.__setitem__(0, clock[0] + 2.0), training_curves(metrics))[1],
    )
    for row in (rows(20) * 20)[:400]:  # one a second
        clock[0] += 1.0
        dashboard(row)
    assert capsys.readouterr().out.count('class="agentkit ') // 2 <= 4  # 2 s in 133 s, not in 15 s


def test_the_buttons_write_what_the_trainer_reads_while_there_is_one(run):
    dashboard, file = Dashboard(run, Recipe(steps=60)), run.file(*CONTROL)
    controls = dashboard._controls = Controls(run)
    controls._asked(controls, {"word": "stop"}, [])
    assert not file.exists() and controls.said == "no training is running"
    with dashboard:
        controls._asked(controls, {"word": "checkpoint"}, [])
        assert controls.said.startswith("asked for a checkpoint")
        dashboard({"step": 21})
        assert controls.said.startswith("asked for a checkpoint"), "it is not there yet"
        run.file("train", "checkpoints", "checkpoint-21").mkdir(parents=True)
        dashboard({"step": 22})
        assert controls.said == "checkpoint-21 is written"
        for content in ({"word": "stop"}, {"word": "rm -rf"}, {"word": ["stop"]}, None, "stop"):
            controls._asked(controls, content, [])
        assert file.read_text().split() == ["checkpoint", "stop"] and controls.said.startswith(
            "asked to stop"
        )
        assert file.stat().st_mode & 0o777 == 0o600
    assert not controls.is_on and controls.said == ""


@pytest.mark.parametrize(("error", "checkpoints", "finished", "says"), [
    (None, [5], True, "Training is done. The adapter that validation chose is kept in {run}/adapter."),
    (None, [5, 20], False, "Stopped as asked. Kept: 20 of 60 steps, in {run}/train/checkpoints/checkpoint-20; run this"),
    (KeyboardInterrupt(), [5, 20], False, "Interrupted. Kept: 20 of 60 steps, in"),
    (KeyboardInterrupt(), [], False, "Interrupted before a checkpoint was written: nothing is kept of it; run this"),
    (RuntimeError("x"), [9, 10], False, "Stopped by an error (RuntimeError). Kept: 10 of 60 steps, in"),
    (RuntimeError("x"), [9], True, "Stopped by an error (RuntimeError). Kept: 9 of 60 steps, in"),
])  # fmt: skip
def test_at_its_end_it_says_what_is_kept_and_how_to_go_on(run, capsys, error, checkpoints, finished, says):
    for step in checkpoints:
        run.file("train", "checkpoints", f"checkpoint-{step}").mkdir(parents=True)
    run.file("train", "checkpoints", ".checkpoint-30").mkdir(parents=True)  # half of one
    run.file("train", "finished.json").write_text("{}") if finished else None
    with (
        pytest.raises(type(error)) if error else nullcontext(),
        Dashboard(run, Recipe(steps=60)) as dashboard,
    ):
        if error:
            raise error
    said = says.format(run=run.path)
    assert said in dashboard._ended and said in run.file("train", "dashboard.html").read_text()
    panel = dashboard._panel(run.metrics)
    assert "left" not in panel and "Step 20 of 60" in panel


def test_a_cell_that_is_run_again_is_drawn_in_again(run, monkeypatch):
    shown = []
    for name in ("display", "update_display"):
        monkeypatch.setattr(
            module, name, lambda *_, display_id, name=name, **__: shown.append((name, display_id))
        )
    dashboard = Dashboard(run, Recipe(steps=60))
    for _ in range(2):
        with dashboard:
            dashboard({"step": 21})
    panel = [name for name, display_id in shown if "panel" in display_id]
    assert panel == ["display", "update_display"] * 2
    curves = [name for name, display_id in shown if "curves" in display_id]
    assert curves == ["display", "update_display", "update_display"] * 2, (
        "a blank in between makes plotly draw anew"
    )


def test_before_the_first_step_only_the_end_is_drawn(run, capsys):
    write_jsonl(run.file("train", "metrics.jsonl"), [{"step": 0, "val_success": 0.5}])
    with pytest.raises(KeyboardInterrupt), Dashboard(run, Recipe(steps=60)):
        raise KeyboardInterrupt
    printed = capsys.readouterr().out
    assert "nothing is kept" in printed and printed.count('class="agentkit ') == 1


def test_without_a_front_end_a_sentence_stands_for_the_buttons(run, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert "echo stop" in Dashboard(run, Recipe()).controls().data
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    assert isinstance(Dashboard(run, Recipe()).controls(), Controls)


def test_a_dashboard_of_nothing(tmp_path):
    found = Dashboard(Run.create(tmp_path / "run"), Recipe(steps=5)).save().read_text()
    assert "Step 0 of 5" in found and "No alarm" in found
