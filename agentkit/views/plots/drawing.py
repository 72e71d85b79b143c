"""Single-task training, round by round: the best drawing so far, and the share of rollouts that solve it.

Leaves out pictures of the drawings (widgets.gallery) and every number drawn (training.until_solved).
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from agentkit.views.plots.style import COLOURS, dressed, empty

PANELS = (("pixels", "right pixels, best so far"), ("success", "share of a round's rollouts that solve it"))


def solving(rounds: pd.DataFrame, drawing: str) -> go.Figure:
    """A drawing's two curves for each method and seed, over the rollouts so far."""
    question = f"How fast is {drawing} drawn?"
    rows = rounds[rounds["drawing"] == drawing]
    if rows.empty:
        return empty("There are no rounds yet.", question)
    figure = make_subplots(cols=2, subplot_titles=[title for _, title in PANELS], horizontal_spacing=0.1)
    methods = list(dict.fromkeys(rows["method"]))
    for (method, seed), own in rows.groupby(["method", "seed"], sort=False):
        look = {"color": COLOURS[methods.index(method) % len(COLOURS)]}
        for column, (name, _) in enumerate(PANELS, start=1):
            first = column == 1 and seed == rows.loc[rows["method"] == method, "seed"].iloc[0]
            curve = go.Scatter(
                x=own["rollouts"], y=own[name], name=method, legendgroup=method, showlegend=bool(first),
                mode="lines+markers", line=look, marker={"size": 5}, hovertext=f"{method}, seed {seed}",
            )  # fmt: skip
            figure.add_trace(curve, row=1, col=column)
    figure.update_xaxes(title_text="rollouts", rangemode="tozero")
    figure.update_yaxes(tickformat=".0%", range=[-0.03, 1.03])
    layout = {"legend": {"y": 0.005, "yref": "container", "yanchor": "bottom"}, "margin": {"t": 115, "b": 90}}
    return dressed(
        figure, question, "a line for each seed; training ends once a rollout solves it", height=400, **layout
    )
