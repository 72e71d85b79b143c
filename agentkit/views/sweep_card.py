"""The card of a sweep: its answer, table and figures, and links to its cells' run cards, as one offline page.

Leaves out computing what it shows (evaluation.sweeps).
"""

import json
from pathlib import Path
from urllib.parse import quote

from agentkit.evaluation import html, tables
from agentkit.evaluation.sweeps import HOURS, INTERVALS, Ablation
from agentkit.runs import write_bytes
from agentkit.views import plots
from agentkit.views.card import write_report
from agentkit.views.redact import redact

FIGURES = (plots.arm_success, plots.learning_curves, plots.success_by_compute, plots.transfer)


def write_sweep_report(ablation: Ablation) -> Path:
    """Write report.html of the sweep, and the run card of each of its cells that has none."""
    cards = {f"{arm}, seed {seed}": run for arm, runs in ablation.runs.items() for seed, run in runs.items()}
    for run in cards.values():
        if not run.file("report.html").exists():
            write_report(run)
    figures = [redact(json.loads(make(ablation).to_json())) for make in FIGURES]
    links = [
        html.element("a", name, href=f"{quote(f'{run.path.parent.name}/{run.path.name}')}/report.html")
        for name, run in cards.items()
    ]
    title, lead = (
        f"Sweep: {ablation.sweep.folder.name}",
        [ablation.sweep.state["question"], ablation.answer()],
    )
    page = html.page(
        title,
        html.element("h1", title),
        *(html.element("p", redact(text), class_="lead") for text in lead),
        tables.drawn(ablation.table().map(redact)),
        html.element("p", f"{INTERVALS} {HOURS}", class_="soft"),
        *(plots.embedded(figure, with_library=figure is figures[0]) for figure in figures),
        html.element("h2", "Cells"),
        html.element("p", html.Markup(" · ").join(links)),
    )
    return write_bytes(ablation.sweep.file("report.html"), page.encode())
