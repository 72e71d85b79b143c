"""The run card: result, training, alarms, some trajectories and recipe on one page that opens offline.

It links to the executed notebooks, which are written as pages beside it and show the rest. Secrets are
masked as values are read (redact). Tasks that must not be shared, such as GAIA's, are left out. Leaves out
computing results (evaluation) and drawing them (plots, widgets).
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agentkit.diagnostics import read_alarms
from agentkit.evaluation import Comparison, html, tables
from agentkit.evaluation.examples import RULE, examples
from agentkit.evaluation.headline import planted, stand_in
from agentkit.recipe import Recipe
from agentkit.runs import Run, write_bytes
from agentkit.runs.stages import STAGES
from agentkit.views import plots
from agentkit.views.redact import redact
from agentkit.views.static import write_page
from agentkit.views.widgets import compare_trajectories
from agentkit.views.widgets.dashboard import alarm_block

ALARMS = 12  # shown, the latest


def write_report(run: Run, path: str | Path | None = None) -> Path:
    """Write the run card, by default to report.html in the run's folder, and its notebooks as pages there.

    Returns:
        The card, readable by its owner only.
    """
    run.manifest  # noqa: B018 - what is no run has no card
    pages = [run.file(f"{stage}.ipynb") for stage in STAGES if run.file(f"{stage}.ipynb").exists()]
    card = Path(path or run.file("report.html"))
    links = {page.stem: os.path.relpath(page, card.parent) for page in map(write_page, pages)}
    return write_bytes(card, render(run, links).encode())


def render(run: Run, pages: Mapping[str, str]) -> str:
    """The run card as HTML, with links to these pages."""
    title = f"Run card: {run.path.name}"
    links = [html.element("a", name, href=quote(page)) for name, page in pages.items()]
    header = html.element("header", html.element("h1", title))
    parts = [
        html.element("section", html.element("h2", name), *_tried(make, run))
        for name, make in SECTIONS.items()
    ]
    main = html.element("main", plots.library(), *parts)
    return html.page(title, header, html.element("nav", *links), main)


def _tried(make: Callable[[Run], list[Any]], run: Run) -> list[Any]:
    """A section's parts, or what keeps it from being shown: no file of a run may keep the rest from it."""
    try:
        return make(run)
    except Exception as error:
        why = redact(f"{error or type(error).__name__}")
        return [html.element("p", html.element("b", "Missing. ", class_="bad"), why, class_="missing")]


# ---- sections: each gives its parts
def _result(run: Run) -> list[Any]:
    """What a colleague wants to know first, one figure, the table."""
    comparison = Comparison.from_json(redact(run.comparison), run.file("comparison.json"))
    used = redact(run.manifest["recipe"])
    said = [stand_in(used) or planted(used.get("flaws", {})), *comparison.lead()]
    lead = [html.element("p", sentence, class_="lead") for sentence in said if sentence]
    caption = f"{comparison.n_tasks} held-out tasks; 95 % intervals over tasks in brackets"
    return [
        *lead,
        plots.embedded(plots.success_bars(comparison), with_library=False),
        tables.drawn(comparison.table(), caption),
        html.folded("Every pair, tested", html.paragraphs(comparison.sentences())),
        comparison.moved(),
    ]


def _training(run: Run) -> list[Any]:
    spec = redact(json.loads(plots.training_curves(run.metrics).to_json()))
    return [plots.embedded(spec, with_library=False)]


def _alarms(run: Run) -> list[Any]:
    alarms = read_alarms(run)
    said = f"Alarms: {len(alarms)}. The last {ALARMS} at most are shown." if alarms else "No alarm fired."
    return [html.element("p", said), *(alarm_block(redact(alarm)) for alarm in alarms[-ALARMS:])]


def _trajectories(run: Run) -> list[Any]:
    """Fifteen tasks that the last policy gained over the first, or that both fail, then those that moved."""
    tasks = {task.id: redact(task) for task in run.tasks if task.meta.get("share") is not False}
    order = [name for name in run.comparison["policies"] if name in run.measured]
    policies = {name: [redact(t) for t in run.trajectories(name) if t.task_id in tasks] for name in order}
    if not tasks or len(policies) < 2:
        return [html.element("p", "No two policies were measured on tasks that may be shown.")]
    first = "sft" if "sft" in policies else order[0]  # as notebook 05 draws them
    picked = examples({name: policies[name] for name in (first, order[-1])}, tasks.values())
    moved = [ids for sides in run.comparison["flipped"].values() for side in sides.values() for ids in side]
    chosen = [task for task in dict.fromkeys([*picked.index, *moved]) if task in tasks]
    parts = [tables.drawn(picked), html.element("p", RULE, class_="soft")]
    if chosen:
        shown = {name: [t for t in own if t.task_id in chosen] for name, own in policies.items()}
        parts.append(html.Markup(compare_trajectories(map(tasks.get, chosen), shown).html()))
    return parts


def _recipe(run: Run) -> list[Any]:
    manifest = redact(run.manifest)
    keys, used, git = Recipe.keys(), manifest["recipe"], manifest["git"]
    made = (
        f"Started {manifest.get('created', '?')}, agentkit {manifest['versions'].get('agentkit', '?')}, "
        f"commit {str(git.get('commit', '?'))[:12]}, seed {used.get('seed', '?')}."
    )
    rows = [
        [name, str(value), keys[name].description if name in keys else ""]
        for name, value in used.items()
        if name not in keys or value != keys[name].default
    ]
    return [
        html.table(["key", "value", "meaning"], rows, "Keys that differ from the defaults"),
        html.element("p", made, class_="soft"),
    ]


SECTIONS: dict[str, Callable[[Run], list[Any]]] = {
    "Result": _result,
    "Training": _training,
    "Alarms": _alarms,
    "Trajectories": _trajectories,
    "Recipe": _recipe,
}
