"""The run card of a sweep: question, answer, table, figures and links to its cells, as one offline page.

Leaves out computing what it shows (evaluation.sweeps); the cells have run cards of their own (card).
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from agentkit.evaluation import html, tables
from agentkit.evaluation.html import Markup
from agentkit.evaluation.sweeps import HOURS, LEVELS, Ablation
from agentkit.runs import write_bytes
from agentkit.runs.run import MANIFEST
from agentkit.views import plots
from agentkit.views.card import write_report
from agentkit.views.redact import environment_secrets, redact, redact_text

FIGURES = (plots.arm_success, plots.learning_curves, plots.success_by_compute, plots.transfer)


def write_sweep_report(ablation: Ablation) -> Path:
    """Write report.html of the sweep, and of each of its cells whose own is missing or older than its end."""
    for runs in ablation.runs.values():
        for run in runs.values():
            card, ended = run.file("report.html"), run.file(MANIFEST).stat().st_mtime_ns
            if not card.exists() or card.stat().st_mtime_ns < ended:
                write_report(run)
    sweep, secrets = ablation.sweep, environment_secrets()
    title = f"Sweep: {sweep.folder.name}"
    lead = [ablation.sweep.state["question"], ablation.answer()]
    head = [html.element("p", redact_text(text, secrets), class_="lead") for text in lead if text]
    figures = [redact(json.loads(make(ablation).to_json()), secrets) for make in FIGURES]
    made_of = sweep.state["file"] | sweep.state["versions"]
    rows = [[name, redact_text(str(value), secrets)] for name, value in made_of.items()]
    parts = [
        html.element("header", html.element("h1", title), *head),
        tables.drawn(_masked(ablation.table(), secrets)),
        html.element("p", f"{LEVELS} {HOURS}", class_="soft"),
        *(plots.embedded(figure, with_library=figure is figures[0]) for figure in figures),
        html.element("h2", "Cells"),
        cells(ablation),
        html.element("h2", "Provenance"),
        html.table(["what", "value"], rows),
    ]
    return write_bytes(sweep.file("report.html"), html.page(title, *parts).encode())


def _masked(table: pd.DataFrame, secrets: Any) -> pd.DataFrame:
    return table.map(lambda cell: redact_text(str(cell), secrets)[:600])


def cells(ablation: Ablation) -> Markup:
    """The cells, each that is done a link to its run card."""
    table = _masked(ablation.cells(), environment_secrets())
    rows = [
        [
            html.element("a", name, href=f"{row['run']}/report.html") if row["status"] == "done" else name,
            row["status"],
            row["success"],
            row["why"],
        ]
        for name, row in table.iterrows()
    ]
    return html.table(["run card", "status", "success", "why not"], rows)
