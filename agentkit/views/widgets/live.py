"""The live dashboard: curves, alarms, best and worst trajectory, time and money, while training runs; buttons
to steer it.

It reads the run's folder, so it shows a training in this process, in a child of it, or in another program. In
a notebook the figure and the panel are redrawn in place; without one the same page is written to
train/dashboard.html every few minutes. What a model wrote is shown as text. Leaves out: what the alarms mean
(diagnostics) and obeying the buttons (training).
"""

from __future__ import annotations

import html
import json
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import traitlets
from IPython.display import Markdown, display, update_display

from agentkit.diagnostics import Alarm, read_alarms, trajectory_id
from agentkit.records import Task, Trajectory
from agentkit.runs import Run, RunError, cost, write_bytes
from agentkit.runs.recipe import Recipe
from agentkit.views.plots import training_curves
from agentkit.views.widgets.payload import clip

POINTS = 400  # of one curve; more would not be seen and make a browser slow
CONTROL = ("train", ".control")
WORDS = ("checkpoint", "stop")
SHARE = 0.015  # of a training's time that redrawing may take
SHOWN = 8  # alarms in the panel, the latest first
TEXT = 600  # characters of one turn
SEVERITY = {"critical": "#d0406a", "warning": "#c77f0a", "info": "#757c88"}


# ---- what is shown
# ---------------------------------------------------------------------------------------------------
def thinned(metrics: pd.DataFrame, points: int = POINTS) -> pd.DataFrame:
    """Metrics with at most ``points`` rows of training: means of consecutive steps, at the last step of each.

    Rows with a validation stand for themselves, the latest ``points`` of them.
    """
    metrics = metrics.sort_values("step", kind="stable").drop_duplicates("step", keep="last")
    if len(metrics) <= points:
        return metrics
    validated = (
        metrics[metrics["val_success"].notna()].tail(points) if "val_success" in metrics else metrics.iloc[:0]
    )
    numbers = metrics.drop(columns=[c for c in metrics if c.startswith("val_")]).select_dtypes("number")
    chunk = np.arange(len(numbers)) * points // len(numbers)
    means = numbers.groupby(chunk).mean().assign(step=numbers.groupby(chunk)["step"].last())
    kept = [c for c in validated if c == "step" or c.startswith("val_")]
    merged = means.merge(validated[kept], on="step", how="outer") if len(validated) else means
    return merged.sort_values("step", ignore_index=True)


def panel(
    metrics: pd.DataFrame,
    recipe: Recipe,
    alarms: Sequence[Alarm] = (),
    price: tuple[str, str, float] | None = None,
) -> str:
    """Progress and alarms, as HTML.

    Args:
        metrics: train/metrics.jsonl so far.
        recipe: for the number of steps and processes.
        alarms: as they fired.
        price: currency, provider and money for an hour of one device.
    """
    listed = (
        "".join(map(_alarm, list(alarms)[: -SHOWN - 1 : -1])) or '<p class="quiet">No alarm has fired.</p>'
    )
    older = (
        f'<p class="quiet">{len(alarms) - SHOWN} earlier alarms in train/alarms.jsonl</p>'
        if len(alarms) > SHOWN
        else ""
    )
    return _wrapped(f'<p class="head">{html.escape(progress(metrics, recipe, price))}</p>{listed}{older}')


def extremes(rollouts: Sequence[Trajectory], tasks: Sequence[Task] = ()) -> str:
    """The best and the worst trajectory of a step side by side, as HTML; ``tasks`` hold their prompts."""
    rewarded = sorted((t for t in rollouts if t.reward is not None), key=lambda t: -t.reward)
    known = {task.id: task for task in tasks}
    sides = [("Best of the latest step", rewarded[:1]), ("Worst of the latest step", rewarded[1:][-1:])]
    both = "".join(
        _trajectory(title, found[0], known.get(found[0].task_id)) for title, found in sides if found
    )
    return _wrapped(f'<div class="sides">{both}</div>')


def _wrapped(content: str) -> str:
    return f'<div class="agentkit-live"><style>{_CSS}</style>{content}</div>'


def progress(metrics: pd.DataFrame, recipe: Recipe, price: tuple[str, str, float] | None = None) -> str:
    """One sentence: how far, how long, how much money, and the best validation."""
    done = int(metrics["step"].max()) if len(metrics) else 0
    parts = [f"Step {done} of {recipe.steps}"]
    seconds = metrics["seconds"].dropna() if "seconds" in metrics else pd.Series(dtype=float)
    if len(seconds):
        left = float(seconds.tail(20).mean()) * max(0, recipe.steps - done)
        parts.append(
            f"{cost.duration(seconds.sum())} spent" + (f", about {cost.duration(left)} left" if left else "")
        )
        if price:
            currency, provider, hourly = price
            spent, whole = (
                s / 3600 * hourly * recipe.processes for s in (seconds.sum(), seconds.sum() + left)
            )
            parts.append(f"{currency}{spent:.2f} of about {currency}{whole:.2f} at {provider}")
    if "val_success" in metrics and metrics["val_success"].notna().any():
        best = metrics.loc[metrics["val_success"].idxmax()]
        parts.append(f"best validation {best['val_success']:.1%} at step {int(best['step'])}")
    return " · ".join(parts)


def _alarm(alarm: Alarm) -> str:
    colour, name = (
        SEVERITY.get(alarm.severity, SEVERITY["info"]),
        html.escape(alarm.alarm.replace("_", " ")),
    )
    head = f'<summary><b style="color:{colour}">{html.escape(alarm.severity)}</b> step {alarm.step}: <b>{name}</b></summary>'
    shown = html.escape(", ".join(alarm.evidence[:6]))
    said = f"<p>{html.escape(alarm.cause)}</p><p>→ {html.escape(alarm.advice)}</p>"
    return f'<details open>{head}{said}<p class="quiet">{shown}</p></details>'


def _trajectory(title: str, t: Trajectory, task: Task | None) -> str:
    asked = (
        f"<p>{html.escape(clip(task.prompt, TEXT))}</p><p>gold: {html.escape(clip(task.answer, TEXT))}</p>"
        if task
        else ""
    )
    turns = []
    for turn in t.turns:
        turns.append(f"<pre>{html.escape(clip(turn.text.strip(), TEXT))}</pre>")
        turns += [f'<pre class="tool">{html.escape(clip(r.observation, TEXT))}</pre>' for r in turn.results]
    found = f"reward {t.reward:.3g}, {html.escape(t.stop_reason.value)}, {html.escape(trajectory_id(t))}"
    return f'<section><h4>{title}</h4><p class="quiet">{found}</p>{asked}{"".join(turns)}</section>'


_CSS = """
.agentkit-live {font: 14px/1.45 system-ui, sans-serif; color: inherit; max-width: 1100px}
.agentkit-live p {margin: .25em 0} .agentkit-live .head {font-weight: 600; font-variant-numeric: tabular-nums}
.agentkit-live .quiet {opacity: .7; font-size: 12px; overflow-wrap: anywhere}
.agentkit-live details {border-left: 3px solid rgba(128,128,128,.45); padding: .1em .8em; margin: .4em 0}
.agentkit-live summary {cursor: pointer}
.agentkit-live .sides {display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 1.2em}
.agentkit-live h4 {margin: .8em 0 .2em; font-size: 14px}
.agentkit-live pre {margin: .25em 0; padding: .4em .6em; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px;
  color: inherit; background: rgba(128,128,128,.12); border-radius: 4px; max-height: 14em; overflow-y: auto}
.agentkit-live pre.tool {margin-left: 1.6em; background: none; border: 1px solid rgba(128,128,128,.35)}
"""
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><title>{title}</title>
<style>body {{margin: 1.5em; max-width: 1200px}}
@media (prefers-color-scheme: dark) {{body {{background: #111417; color: #d7dbe0}}}}</style></head>
<body>{panel}{figure}{extremes}</body></html>"""


# ---- the dashboard
# ---------------------------------------------------------------------------------------------------
class Dashboard:
    """Shows a training while it runs. Call it with a metrics row, or let it ``follow`` a run's folder.

    Args:
        run: its folder is read.
        recipe: of the run.
        every_s: seconds between redrawings in a notebook; more where these would take over SHARE of the time.
        snapshot_s: seconds between snapshots in train/dashboard.html.
    """

    def __init__(self, run: Run, recipe: Recipe, every_s: float = 15.0, snapshot_s: float = 180.0):
        self.run, self.recipe = run, recipe
        self._every_s, self._snapshot_s = every_s, snapshot_s
        self._drawn, self._saved = float("-inf"), time.monotonic()
        self._took = 0.0  # seconds of the last redrawing
        self._shown = False
        self._ids = [f"agentkit-{part}-{uuid.uuid4().hex}" for part in ("panel", "curves", "extremes")]
        self._price = _price()

    def __call__(self, row: dict[str, Any]) -> None:
        """A row was written: redraw when it is time to."""
        now = time.monotonic()
        if row.get("step") and now - self._drawn >= max(self._every_s, self._took / SHARE):
            self.draw()
        if now - self._saved >= self._snapshot_s:
            self.save()

    def follow(self, poll_s: float = 5.0) -> None:
        """Show a training of another program until it has all its steps; interrupt it to stop looking."""
        while not len(metrics := self._metrics()) or metrics["step"].max() < self.recipe.steps:
            self.draw()
            time.sleep(poll_s)
        self.finish()

    def finish(self) -> None:
        """Draw what there is and write the last snapshot."""
        self.draw()
        self.save()

    def draw(self) -> None:
        """Draw into the cell's output, in place after the first time."""
        start, metrics = time.monotonic(), self._metrics()
        if not len(metrics) or metrics["step"].max() < 1:
            return
        figure = self._figure(metrics)
        bundles = [
            {"text/html": self._panel(metrics), "text/plain": progress(metrics, self.recipe, self._price)},
            {
                "application/vnd.plotly.v1+json": json.loads(figure.to_json())
            },  # a figure object would ignore the id
            {
                "text/html": self._extremes(),
                "text/plain": "the best and the worst trajectory of the latest step",
            },
        ]
        show = update_display if self._shown else display
        for bundle, place in zip(bundles, self._ids, strict=True):
            show(bundle, raw=True, display_id=place)
        self._drawn, self._shown = time.monotonic(), True
        self._took = self._drawn - start

    def save(self, path: Path | None = None) -> Path:
        """Write the dashboard as one HTML file that opens offline; by default train/dashboard.html."""
        metrics = self._metrics()
        drawn = self._figure(metrics).to_html(
            full_html=False, include_plotlyjs=True, config={"displaylogo": False}
        )
        parts = {"panel": self._panel(metrics), "figure": drawn, "extremes": self._extremes()}
        page = _PAGE.format(title=html.escape(self.run.path.name), **parts)
        self._saved = time.monotonic()
        return write_bytes(path or self.run.file("train", "dashboard.html"), page.encode("utf-8", "replace"))

    def controls(self) -> Controls | Markdown:
        """Buttons for a checkpoint and for the end of training; a sentence where no one is there to press
        them.
        """
        if "JPY_SESSION_NAME" not in os.environ:  # set for kernels that a Jupyter server started
            return Markdown(
                f"To stop it: `echo stop > {self.run.file(*CONTROL)}`; `echo checkpoint` saves one."
            )
        return Controls(self.run)

    def _metrics(self) -> pd.DataFrame:
        return (
            self.run.metrics
            if self.run.file("train", "metrics.jsonl").exists()
            else pd.DataFrame({"step": []})
        )

    def _figure(self, metrics: pd.DataFrame) -> go.Figure:
        return training_curves(thinned(metrics) if (metrics["step"] > 0).any() else metrics.iloc[:0])

    def _panel(self, metrics: pd.DataFrame) -> str:
        return panel(metrics, self.recipe, read_alarms(self.run), self._price)

    def _extremes(self) -> str:
        steps = self.run.steps
        try:
            rollouts = self.run.trajectories(steps[-1]) if steps else []
        except RunError:  # it is just being removed by a training that goes on from a checkpoint
            rollouts = []
        return extremes(rollouts, self.run.tasks if self.run.file("tasks.jsonl").exists() else [])


def _price() -> tuple[str, str, float] | None:
    prices = cost.read_prices()
    provider = max(prices.providers, key=lambda name: prices.providers[name], default=None)
    return (prices.currency, provider, prices.providers[provider]) if provider else None


class Controls(anywidget.AnyWidget):
    """Two buttons; each writes its word where the trainer looks after every step."""

    _esm = """
    export default { render({ model, el }) {
      const said = document.createElement("span");
      for (const [word, label] of [["checkpoint", "Save a checkpoint"], ["stop", "Stop after this step"]]) {
        const button = document.createElement("button");
        button.textContent = label;
        button.style.cssText = "font: inherit; margin-right: .6em; padding: .3em .8em; cursor: pointer";
        button.onclick = () => model.send({ word });
        el.append(button);
      }
      const show = () => { said.textContent = model.get("asked"); };
      model.on("change:asked", show);
      show();
      el.append(said);
    } };
    """
    asked = traitlets.Unicode("").tag(sync=True)

    def __init__(self, run: Run):
        super().__init__()
        self._file = run.file(*CONTROL)
        self.on_msg(self._asked)

    def _asked(self, _: Any, content: Any, buffers: Any) -> None:
        word = content.get("word") if isinstance(content, dict) else None
        if word in WORDS:
            request(self._file, word)
            self.asked = f"asked for: {word}"


def request(file: Path, word: str) -> None:
    """Ask a training for a checkpoint, or to stop: the word is added to its control file.

    Raises:
        ValueError: it is neither checkpoint nor stop.
    """
    if word not in WORDS:
        raise ValueError(f"{word!r} cannot be asked for: use checkpoint or stop")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{word}\n".encode())
    finally:
        os.close(handle)
