"""The live dashboard: curves, alarms, best and worst trajectory, time and money, while training runs; buttons
to steer it.

It reads the run's folder, so it shows a training in this process or in a child of it. In a notebook the
figure and the panel are redrawn in place; without one the same page is written to train/dashboard.html every
few minutes. The buttons work while a cell trains: JupyterLab sends what a widget says to a thread of its own,
a subshell. Leaves out what the alarms mean (diagnostics) and obeying the buttons (training).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import pandas as pd
import plotly.graph_objects as go
import traitlets
from IPython.display import Markdown, display, update_display

from agentkit.diagnostics import Alarm, read_alarms, trajectory_id
from agentkit.evaluation import html
from agentkit.recipe import Recipe
from agentkit.records import Task, Trajectory
from agentkit.runs import Run, RunError, append_to, cost, write_bytes
from agentkit.runs.files import step_of, steps
from agentkit.views import plots
from agentkit.views.widgets.base import clip, source

CONTROL = ("train", ".control")
WORDS = {  # that can be asked for, and what is said then
    "checkpoint": "asked for a checkpoint: it is written after this step",
    "stop": "asked to stop: training ends after this step, with a checkpoint",
}
SHARE = 0.015  # of a training's time that redrawing may take
LISTED = 8  # alarms in the panel, the latest first
TEXT = 600  # characters of one turn
EVIDENCE = 6  # trajectories named beside an alarm
SEVERITY = {"critical": "bad", "warning": "look"}  # class in the style sheet


def planned(metrics: pd.DataFrame, steps: Any) -> Any:
    """Steps of a training as its metrics tell, which count epochs as steps, else what the recipe says."""
    counted = metrics["planned_steps"].dropna() if "planned_steps" in metrics else ()
    return int(counted.iloc[-1]) if len(counted) else steps


# ---- what is drawn
def progress(
    metrics: pd.DataFrame, recipe: Recipe, price: tuple[str, str, float] | None = None, ended: bool = False
) -> str:
    """One sentence: how far, how long, how much money, and the best validation.

    ``price`` is currency, provider and money for an hour of all devices.
    """
    done = int(metrics["step"].max()) if len(metrics) else 0
    steps = planned(metrics, recipe.steps)
    parts = [f"Step {done} of {steps}"]
    seconds = metrics["seconds"].dropna() if "seconds" in metrics else pd.Series(dtype=float)
    if len(seconds):
        spent = seconds.sum()
        left = 0.0 if ended else float(seconds.tail(20).mean()) * max(0, steps - done)
        rest = f", about {cost.duration(left)} left" if left else ""
        parts.append(f"{cost.duration(spent)} spent{rest}")
        if price:
            currency, provider, hourly = price
            rate = hourly / 3600  # money a second
            whole = f" of about {currency}{(spent + left) * rate:.2f}" if left else ""
            parts.append(f"{currency}{spent * rate:.2f}{whole} at {provider}")
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
    summary = html.joined([severity, f" step {alarm.step}: ", name])
    return html.element("div", html.folded(summary, texts, evidence, is_open=True), class_="alarm")


def ending(run: Run, recipe: Recipe, error: BaseException | None) -> str:
    """How a training ended, with which error, what is kept of it, and how to go on."""
    again = "run this notebook again to"
    if error is None and run.file("train", "finished.json").exists():
        return f"Training is done. The adapter that validation chose is kept in {run.file('adapter')}."
    words = {type(None): "Stopped as asked", KeyboardInterrupt: "Interrupted"}
    kind = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else type(error)
    how, kept = words.get(kind, f"Stopped by an error ({kind.__name__})"), newest(run)
    if not kept:
        return f"{how} before a checkpoint was written: nothing is kept of it; {again} start anew."
    return f"{how}. Kept: {step_of(kept[0])} of {recipe.steps} steps, in {kept[0]}; {again} go on from there."


def newest(run: Run) -> list[Path]:
    """The newest checkpoint of a training, where there is one."""
    return steps(run.file("train", "checkpoints"))[:1]


def told(title: str, t: Trajectory, task: Task | None) -> html.Markup:
    """A trajectory turn by turn, with its task where that is known."""
    reward = "no reward" if t.reward is None else f"reward {t.reward:.3g}"
    facts = f"{reward}, {t.stop_reason.value}, {trajectory_id(t)}"
    parts = [html.element("h4", title), html.element("p", facts, class_="soft")]
    if task:
        parts.append(html.paragraphs([clip(task.prompt, TEXT), f"gold: {clip(task.answer, TEXT)}"]))
    for turn in t.turns:
        parts.append(html.element("pre", clip(turn.text.strip(), TEXT)))
        parts += [html.element("pre", clip(r.observation, TEXT), class_="tool") for r in turn.results]
    return html.element("section", *parts)


# ---- the dashboard
class Dashboard:
    """Shows a training while it runs. Call it with each metrics row.

    ``with dashboard:`` around a training switches its buttons on, and says at the end, however it comes, what
    is kept.

    Args:
        run: its folder is read.
        recipe: of the run.
        every_s: seconds between redrawings in a notebook; more where these would take over SHARE of the time.
        snapshot_s: seconds between snapshots in train/dashboard.html.
        devices: GPUs whose time is spent; 0: one for each of the recipe's processes.
    """

    def __init__(
        self, run: Run, recipe: Recipe, every_s: float = 15.0, snapshot_s: float = 180.0, devices: int = 0
    ):
        self.run, self.recipe = run, recipe
        self._every_s, self._snapshot_s = every_s, snapshot_s
        self._drawn, self._saved = float("-inf"), time.monotonic()
        self._took = 0.0  # seconds of the last redrawing
        self._shown: set[str] = set()
        self._ids = [f"agentkit-{part}-{uuid.uuid4().hex}" for part in ("panel", "curves", "extremes")]
        self._price = _price(run, devices or recipe.processes)
        self._controls: Controls | None = None
        self._ended, self._failed = "", False

    def __call__(self, row: dict[str, Any]) -> None:
        """A row was written: redraw when it is time to."""
        now = time.monotonic()
        if row.get("step") and now - self._drawn >= max(self._every_s, self._took / SHARE):
            self._try(self.draw)
        if now - self._saved >= self._snapshot_s:
            self._try(self.save)
        if self._controls:
            self._try(self._controls.written)

    def _try(self, part: Callable[[], Any]) -> None:
        """Do a part of it; its faults, such as a full disk, are warned of once and end no training."""
        try:
            part()
        except Exception as error:
            if not self._failed:
                warnings.warn(
                    f"the dashboard is not drawn ({error!r}); train/metrics.jsonl has all rows", stacklevel=3
                )
            self._failed = True

    def __enter__(self) -> Dashboard:
        self._ended, self._drawn = "", float("-inf")  # perhaps again, in a cell whose output was cleared
        self._shown.clear()
        self._listens(True)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._ended = ending(self.run, self.recipe, error)
        self._listens(False)
        self._try(self.draw)
        self._try(self.save)

    def _listens(self, is_on: bool) -> None:
        if self._controls:
            self._controls.is_on, self._controls.said = is_on, ""

    def draw(self) -> None:
        """Draw into the cell's output, in place after the first time."""
        start = time.monotonic()
        try:
            self._draw(self._metrics())
        finally:  # also where it fails: the next time costs as much
            self._drawn = time.monotonic()
            self._took = self._drawn - start

    def _draw(self, metrics: pd.DataFrame) -> None:
        has_begun = len(metrics) and metrics["step"].max() >= 1
        panel_id, curves_id, extremes_id = self._ids
        if has_begun or self._ended:
            words = " ".join(self._news(metrics))
            self._show(panel_id, {"text/html": html.fragment(self._panel(metrics)), "text/plain": words})
        if has_begun:
            figure = json.loads(self._figure(metrics).to_json())  # an object would ignore the display's id
            if curves_id in self._shown:  # plotly's renderer draws once: make JupyterLab take another one
                blank = f'<div style="height: {figure["layout"].get("height", 360)}px"></div>'
                self._show(curves_id, {"text/html": blank})
            self._show(curves_id, {"application/vnd.plotly.v1+json": figure})
            latest = "the best and the worst trajectory"
            self._show(extremes_id, {"text/html": html.fragment(self._extremes()), "text/plain": latest})

    def _show(self, display_id: str, bundle: dict[str, Any]) -> None:
        show = update_display if display_id in self._shown else display
        show(bundle, raw=True, display_id=display_id)
        self._shown.add(display_id)

    def save(self) -> Path:
        """Write train/dashboard.html, one file that opens offline."""
        self._saved = time.monotonic()
        metrics = self._metrics()
        curves = plots.embedded(self._figure(metrics), with_library=True)
        page = html.page(self.run.path.name, self._panel(metrics), curves, self._extremes())
        return write_bytes(self.run.file("train", "dashboard.html"), page.encode())

    def controls(self) -> Controls | Markdown:
        """Buttons for a checkpoint and for the end of training; a sentence where no one can press them."""
        if "JPY_SESSION_NAME" in os.environ:  # set for kernels that a Jupyter server started
            self._controls = Controls(self.run)
            return self._controls
        file = self.run.file(*CONTROL)
        return Markdown(f"To stop it: `echo stop > {file}`; `echo checkpoint` saves one.")

    def _metrics(self) -> pd.DataFrame:
        if self.run.file("train", "metrics.jsonl").exists():
            return self.run.metrics
        return pd.DataFrame({"step": []})

    def _figure(self, metrics: pd.DataFrame) -> go.Figure:
        has_begun = (metrics["step"] > 0).any()
        return plots.training_curves(metrics if has_begun else metrics.iloc[:0])

    def _news(self, metrics: pd.DataFrame) -> list[str]:
        """How far it is, and how it ended."""
        far = progress(metrics, self.recipe, self._price, bool(self._ended))
        return [far, self._ended] if self._ended else [far]

    def _panel(self, metrics: pd.DataFrame) -> html.Markup:
        """Progress and the latest alarms."""
        alarms = read_alarms(self.run)
        notes = [] if alarms else ["No alarm has fired."]
        if len(alarms) > LISTED:
            notes = [f"{len(alarms) - LISTED} earlier alarms in train/alarms.jsonl"]
        return html.joined([
            *(html.element("p", html.element("b", sentence)) for sentence in self._news(metrics)),
            *(alarm_block(alarm) for alarm in alarms[::-1][:LISTED]),
            *(html.element("p", note, class_="soft") for note in notes),
        ])  # fmt: skip

    def _extremes(self) -> html.Markup:
        """The best and the worst trajectory of the latest step side by side."""
        tasks = self.run.tasks if self.run.file("tasks.jsonl").exists() else []
        prompts, rollouts = {task.id: task for task in tasks}, []
        with contextlib.suppress(RunError):  # a training that goes on from a checkpoint is just removing it
            rollouts = [t for step in self.run.steps[-1:] for t in self.run.trajectories(step, choose=_ends)]
        sides = [("Best of the latest step", rollouts[:1]), ("Worst of the latest step", rollouts[1:])]
        sections = [told(title, t, prompts.get(t.task_id)) for title, side in sides for t in side]
        return html.element("div", *sections, class_="sides")


def _ends(rows: list[dict]) -> list[int]:
    """The best and the worst by reward, of those that have one; of equals the first and the last."""
    rewarded = [i for i, row in enumerate(rows) if row["reward"] is not None]
    rewarded.sort(key=lambda i: -rows[i]["reward"])
    return rewarded[:1] + rewarded[1:][-1:]


def _price(run: Run, devices: int) -> tuple[str, str, float] | None:
    """Currency, the dearest provider, and its money for an hour of all devices; None on a CPU."""
    prices = cost.read_prices()
    provider = max(prices.providers, key=lambda name: prices.providers[name], default=None)
    if not provider or cost.device_of(run) == "CPU":
        return None
    return prices.currency, provider, prices.providers[provider] * devices


class Controls(anywidget.AnyWidget):
    """Two buttons; each writes its word where the trainer looks after every step."""

    _esm = source("controls")
    is_on = traitlets.Bool(False).tag(sync=True)  # a training is listening
    said = traitlets.Unicode("").tag(sync=True)

    def __init__(self, run: Run):
        super().__init__()
        self._run, self._file = run, run.file(*CONTROL)
        self._before: list[Path] = []  # the newest checkpoint when one was asked for
        self.on_msg(self._asked)
        # ipykernel 7.4 brings what a page sends to the thread that made the widget, and that one is training:
        # leave it to the subshell that the page addressed
        self.comm._reply_subshell_for = lambda data, addressed: addressed

    def _asked(self, _: Any, content: Any, buffers: Any) -> None:
        word = content.get("word") if isinstance(content, dict) else None
        if word not in list(WORDS):  # it may be anything
            return
        self.said = ""  # so that the same words are sent again
        if self.is_on:
            self._before = newest(self._run)
            with os.fdopen(append_to(self._file), "a") as file:
                file.write(f"{word}\n")
        self.said = WORDS[word] if self.is_on else "no training is running"

    def written(self) -> None:
        """A row of metrics was written, and perhaps the checkpoint that was asked for."""
        written = newest(self._run)
        if self.said == WORDS["checkpoint"] and written != self._before:
            self.said = f"{written[0].name} is written"
