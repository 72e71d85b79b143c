"""Success of policies beside each other.

Leaves out every number drawn (evaluation).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from agentkit.evaluation import Comparison
from agentkit.evaluation.tables import percent
from agentkit.views.plots.style import COLOURS, dressed, escaped, whiskers

WHISKERS = "whiskers: 95 % intervals over tasks"


def success_bars(comparison: Comparison) -> go.Figure:
    """Success of each policy overall, by family and by difficulty, with 95 % intervals."""
    blocks = {name: _blocks(entry) for name, entry in comparison.policies.items()}
    labels = list(dict.fromkeys(label for policy in blocks.values() for label in policy))
    counts = [next(policy[label]["n"] for policy in blocks.values() if label in policy) for label in labels]
    ticks = [f"{escaped(name)}<br>n = {n}" for (_, name), n in zip(labels, counts, strict=True)]
    figure = go.Figure()
    for i, (name, policy) in enumerate(blocks.items()):
        cells = [policy.get(label, {"success": None, "ci95": None}) for label in labels]
        _draw_bars(figure, name, [[group for group, _ in labels], ticks], cells, COLOURS[i % len(COLOURS)])
    return dressed(
        figure,
        "Which policy solves more?",
        WHISKERS,
        yaxis={"title_text": "success", "tickformat": ".0%", "range": [0, 1.1], "dtick": 0.2},
        height=440,
        margin={"t": 105},
        barmode="group",
        bargap=0.25,
        scattermode="group",
        scattergap=0.25,
        showlegend=True,
    )


def _blocks(entry: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """(group, label) -> {success, ci95, n}, in the order they are drawn."""
    blocks = {("overall", "all tasks"): entry}
    blocks |= {("family", name): block for name, block in entry["by_category"].items()}
    return blocks | {("difficulty", name): block for name, block in entry["by_difficulty"].items()}


def _draw_bars(figure: go.Figure, name: str, x: list[list[str]], cells: list[dict], colour: str) -> None:
    low, high = zip(*(c["ci95"] or (np.nan, np.nan) for c in cells), strict=True)
    value = np.array([np.nan if c["success"] is None else c["success"] for c in cells], dtype=float)
    bar = {
        "marker": {"color": colour, "opacity": 0.5},
        "error_y": whiskers(value, low, high, color=colour),
        "customdata": [percent(c["success"], c["ci95"]) if c["ci95"] else "–" for c in cells],
    }
    figure.add_bar(
        x=x, y=value, name=escaped(name), offsetgroup=name, hovertemplate="%{x}: %{customdata}", **bar
    )
    label = {  # the number stands above the whisker, where it hides nothing
        "text": ["" if np.isnan(v) else f"{100 * v:.0f}" for v in value],
        "textposition": "top center",
        "textfont": {"color": colour, "size": 11},  # three fit side by side on a narrow page
    }
    figure.add_scatter(
        x=x, y=high, offsetgroup=name, mode="text", showlegend=False, hoverinfo="skip", **label
    )
