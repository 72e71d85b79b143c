"""The live dashboard: curves, alarms, best and worst trajectory and time while training runs; two buttons.

It reads the run's folder, so it shows a training in this process or in a child of it. In JupyterLab it is one
widget that is brought up to date in place; elsewhere the result is shown at the end. The same page lies in
train/dashboard.html, written every few minutes. Leaves out what the alarms mean (diagnostics) and obeying the
buttons (training).
"""

import contextlib
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import ipywidgets
import pandas as pd
import plotly.graph_objects as go
from IPython.display import HTML, DisplayHandle, Markdown, display

from agentkit.diagnostics import Alarm, read_alarms, trajectory_id
from agentkit.evaluation import html
from agentkit.recipe import Recipe
from agentkit.records import Task, Trajectory
from agentkit.runs import Run, RunError, append_to, cost, write_bytes
from agentkit.runs.files import step_of, steps
from agentkit.runs.run import CONTROL
from agentkit.views import plots
from agentkit.views.widgets.base import ENDINGS, clip

LISTED = 8  # alarms in the panel, the latest first
TEXT = 600  # characters of one turn
EVIDENCE = 6  # trajectories named beside an alarm
SEVERITY = {"critical": "bad", "warning": "look"}  # class in the style sheet


# ---- what is drawn
def progress(metrics: pd.DataFrame, recipe: Recipe, ended: bool = False) -> str:
    """One sentence: how far, how long, and the best validation."""
    done = int(metrics["step"].max()) if len(metrics) else 0
    parts = [f"Step {done} of {recipe.steps}"]
    if done and "seconds" in metrics:
        seconds = metrics["seconds"].dropna()
        left = float(seconds.tail(20).mean()) * (recipe.steps - done)
        parts.append(f"{cost.duration(seconds.sum())} spent")
        parts[-1] += f", about {cost.duration(left)} left" if left > 0 and not ended else ""
    if "val_success" in metrics and metrics["val_success"].notna().any():
        best = metrics.loc[metrics["val_success"][::-1].idxmax()]  # of equals the last, as training keeps it
        parts.append(f"best validation {best['val_success']:.1%} at step {int(best['step'])}")
    return " · ".join(parts)


def alarm_block(alarm: Alarm) -> html.Markup:
    """An alarm with its cause, advice and the names of its evidence."""
    severity = html.element("b", alarm.severity, class_=SEVERITY.get(alarm.severity, "soft"))
    name = html.element("b", alarm.alarm.replace("_", " "))
    evidence = html.element("p", ", ".join(alarm.evidence[:EVIDENCE]), class_="soft")
    texts = html.paragraphs([alarm.cause, f"→ {alarm.advice}"])
    head = html.element("p", severity, f" step {alarm.step}: ", name)
    return html.element("div", head, texts, evidence, class_="alarm")


def ending(run: Run, recipe: Recipe, error: BaseException | None) -> str:
    """How a training ended, what is kept of it, and how to go on."""
    if error is None and not recipe.can_train:
        return "A stand-in cannot be trained: one step was sampled and scored, and no adapter is written."
    if error is None and run.file("train", "finished.json").exists():
        return f"Training is done. The adapter that validation chose is kept in {run.path.name}/adapter."
    how = f"Stopped by an error ({type(error).__name__})" if error else "Stopped as asked"
    how = "Interrupted" if isinstance(error, KeyboardInterrupt) else how
    for newest in steps(run.file("train", "checkpoints"))[:1]:
        kept = f"{step_of(newest)} of {recipe.steps} steps, in {newest}"
        return f"{how}. Kept: {kept}; run this notebook again to go on from there."
    return f"{how} before a checkpoint was written; run this notebook again to start anew."


def told(title: str, t: Trajectory, task: Task | None) -> html.Markup:
    """A trajectory turn by turn, with its task where that is known."""
    reward = "no reward" if t.reward is None else f"reward {t.reward:.3g}"
    facts = f"{reward}, {ENDINGS[t.stop_reason]}, {trajectory_id(t)}"
    parts = [html.element("h4", title), html.element("p", facts, class_="soft")]
    if task:
        parts.append(html.paragraphs([clip(task.prompt, TEXT), f"gold: {clip(task.answer, TEXT)}"]))
    for turn in t.turns:
        parts.append(html.element("pre", clip(turn.text.strip(), TEXT)))
        parts += [html.element("pre", clip(r.observation, TEXT), class_="tool") for r in turn.results]
    return html.element("section", *parts)


# ---- the dashboard
class Dashboard:
    """Shows a training while it runs: display it, and call it with each metrics row.

    ``with dashboard:`` around a training says at the end, however it comes, what is kept.

    Args:
        run: its folder is read.
        recipe: of the run.
        every_s: seconds between redrawings in a notebook.
        snapshot_s: seconds between snapshots in train/dashboard.html.
    """

    def __init__(self, run: Run, recipe: Recipe, every_s: float = 15.0, snapshot_s: float = 180.0):
        self.run, self.recipe = run, recipe
        self._every_s, self._snapshot_s = every_s, snapshot_s
        self._drawn, self._saved = float("-inf"), time.monotonic()
        self._ended = ""
        self._live: ipywidgets.VBox | None = None
        self._line: DisplayHandle | None = None  # of progress, where there is no widget

    def _ipython_display_(self) -> None:
        if "JPY_SESSION_NAME" not in os.environ:  # set for kernels that a Jupyter server started
            file = self.run.file(*CONTROL)
            display(Markdown(f"To stop it: `echo stop > {file}`"))
            self._line = display(Markdown(""), display_id=True)
            return
        said = ipywidgets.Label()
        button = ipywidgets.Button(description="Stop after this step", layout={"width": "auto"})
        button.on_click(partial(self._ask, said))
        # ipykernel 7.4 brings a click to the thread that made the button, and that one is training: leave it
        # to the subshell that the page addressed
        button.comm._reply_subshell_for = lambda data, addressed: addressed
        curves = go.FigureWidget(plots.training_curves(self._metrics()))
        parts = [ipywidgets.HTML(), curves, ipywidgets.HTML()]
        self._live = ipywidgets.VBox([ipywidgets.HBox([button, said]), *parts])
        display(self._live)

    def _ask(self, said: ipywidgets.Label, _: Any) -> None:
        with os.fdopen(append_to(self.run.file(*CONTROL)), "a") as file:
            file.write("stop\n")
        said.value = "asked to stop after this step"

    def __call__(self, row: dict[str, Any]) -> None:
        """A row was written: redraw when it is time to."""
        now = time.monotonic()
        if self._line:
            self._try(lambda: self._line.update(Markdown(progress(self._metrics(), self.recipe))))
        if self._live and row.get("step") and now - self._drawn >= self._every_s:
            self._try(self.draw)
        if now - self._saved >= self._snapshot_s:
            self._try(self.save)

    def _try(self, part: Callable[[], Any]) -> None:
        """Do a part of it; its faults, such as a full disk, are warned of and end no training."""
        try:
            part()
        except Exception as error:
            said = f"the dashboard is not drawn ({error!r}); train/metrics.jsonl has all rows"
            warnings.warn(said, stacklevel=3)

    def __enter__(self) -> Self:
        self._ended = ""
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._ended = ending(self.run, self.recipe, error)
        if self._live:
            self._live.close()
            self._live = None
        if self._line:  # the result says it too
            self._line.update(Markdown(""))
        self._try(self.show)
        self._try(self.save)

    def draw(self) -> None:
        """Bring the widget up to date."""
        self._drawn, (_, panel, curves, extremes) = time.monotonic(), self._live.children
        metrics = self._metrics()
        figure = plots.training_curves(metrics)
        with curves.batch_update():
            curves.data = ()
            curves.add_traces(figure.data)
            curves.layout = figure.layout
        for autosize in (False, True):  # plotly measures the page only when this changes
            curves.layout.autosize = autosize
        panel.value = html.fragment(self._panel(metrics))
        extremes.value = html.fragment(self._extremes())

    def show(self) -> None:
        """Leave the result in the cell, for whoever opens the notebook later."""
        metrics = self._metrics()
        panel, extremes = (HTML(html.fragment(part)) for part in (self._panel(metrics), self._extremes()))
        display(panel, plots.training_curves(metrics), extremes)

    def save(self) -> Path:
        """Write train/dashboard.html, one file that opens offline."""
        self._saved = time.monotonic()
        metrics = self._metrics()
        curves = plots.embedded(plots.training_curves(metrics), with_library=True)
        page = html.page(self.run.path.name, self._panel(metrics), curves, self._extremes())
        return write_bytes(self.run.file("train", "dashboard.html"), page.encode())

    def _metrics(self) -> pd.DataFrame:
        has_rows = self.run.file("train", "metrics.jsonl").exists()
        return self.run.metrics if has_rows else pd.DataFrame({"step": []})

    def _panel(self, metrics: pd.DataFrame) -> html.Markup:
        """Progress and the latest alarms."""
        alarms, said = read_alarms(self.run), [progress(metrics, self.recipe, bool(self._ended)), self._ended]
        note = f"Alarms: {len(alarms)}, the latest first." if alarms else "No alarm has fired."
        return html.joined([
            *(html.element("p", html.element("b", sentence)) for sentence in said if sentence),
            *(alarm_block(alarm) for alarm in alarms[::-1][:LISTED]),
            html.element("p", note, class_="soft"),
        ])  # fmt: skip

    def _extremes(self) -> html.Markup:
        """The best and the worst trajectory of the latest step side by side."""
        tasks = self.run.tasks if self.run.file("tasks.jsonl").exists() else []
        prompts, rollouts = {task.id: task for task in tasks}, []
        with contextlib.suppress(RunError):  # a training that goes on from a checkpoint is just removing it
            rollouts = [t for step in self.run.steps[-1:] for t in _ends(self.run.trajectories(step))]
        titles = ("Best of the latest step", "Worst of the latest step")
        sections = [
            told(title, t, prompts.get(t.task_id)) for title, t in zip(titles, rollouts, strict=False)
        ]
        return html.element("div", *sections, class_="sides")


def _ends(trajectories: list[Trajectory]) -> list[Trajectory]:
    """The best and the worst by reward, of those that have one; of equals the first and the last."""
    rewarded = [t for t in trajectories if t.reward is not None]
    rewarded.sort(key=lambda t: -t.reward)
    return rewarded[:1] + rewarded[1:][-1:]
