"""The arms of a sweep: success, learning curves, success against compute, and by difficulty.

A point that stands for a run links to its run card. Leaves out every number drawn (evaluation.sweeps).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from agentkit.evaluation.summary import easy_first
from agentkit.evaluation.sweeps import Ablation
from agentkit.evaluation.tables import percent
from agentkit.views.plots.style import BELOW, COLOURS, INK, LONG_LABELS, dressed, empty, escaped, whiskers

_SHARE = {"tickformat": ".0%", "minallowed": -0.02, "maxallowed": 1.02}
SEEDS = "whiskers: 95 % intervals over seeds and tasks; dots: single seeds, which open their run card"


def arm_success(ablation: Ablation) -> go.Figure:
    """Success of each arm with its interval, each seed, and the arm compared with as a line."""
    figure, names = go.Figure(), [escaped(name) for name in ablation.runs]
    entries = list(ablation.summaries.values())
    low, high = zip(*(entry["ci95"] for entry in entries), strict=True)
    success = [entry["success"] for entry in entries]
    for name, entry in ablation.summaries.items():
        cells = [ablation.runs[name][int(seed)].path for seed in entry["seeds"]]
        links = [f"{path.parent.name}/{path.name}/report.html" for path in cells]
        figure.add_scatter(
            x=list(entry["seeds"].values()),
            y=[escaped(name)] * len(cells),
            mode="text",
            text=[f'<a href="{escaped(link)}">●</a>' for link in links],
            customdata=links,
            textposition="top center",
            textfont={"size": 11},
            hovertext=[f"seed {seed}: {percent(v)}" for seed, v in entry["seeds"].items()],
            hoverinfo="text",
        )
    figure.add_scatter(
        x=success,
        y=names,
        error_x=whiskers(success, low, high, color=COLOURS[0]),
        mode="markers",
        marker={"color": COLOURS[0], "size": 9},
        hovertext=[
            f"{percent(e['success'], e['ci95'])}, {ablation.verdict(name)}"
            for name, e in ablation.summaries.items()
        ],
        hoverinfo="y+text",
    )
    figure.add_vline(success[0], line={"color": INK, "dash": "dot", "width": 1})
    figure.update_xaxes(title_text="success on the test tasks", tickformat=".0%", showgrid=True)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    height = 190 + 52 * len(names)
    look = LONG_LABELS | {"margin_b": 60}
    return dressed(figure, "Which arm solves more?", SEEDS, height=height, showlegend=False, **look)


def learning_curves(ablation: Ablation) -> go.Figure:
    """Validation success by step, the mean over seeds in a band from the lowest to the highest."""
    question = "How fast does each arm learn?"
    figure = go.Figure()
    for i, (name, seeds) in enumerate(ablation.training.items()):
        by_step = pd.concat(
            [rows.set_index("step")["val_success"].dropna() for rows in seeds.values()], axis=1
        )
        low, high, colour = by_step.min(axis=1), by_step.max(axis=1), COLOURS[i % len(COLOURS)]
        _band(figure, by_step.index, low, high, colour, name)
        line = {"color": colour, "width": 2, "dash": ("solid", "dash", "dot")[i // len(COLOURS) % 3]}
        figure.add_scatter(
            x=by_step.index, y=by_step.mean(axis=1), name=escaped(name), legendgroup=name, line=line,
            mode="lines+markers", hovertemplate="step %{x}: %{y:.1%}",
        )  # fmt: skip
    if not figure.data:
        return empty("No arm of this sweep is trained", question)
    figure.update_xaxes(title_text="optimiser step")
    figure.update_yaxes(title_text="success on validation tasks", **_SHARE)
    note = "lines: mean over seeds; bands: from the lowest seed to the highest"
    return dressed(figure, question, note, height=430, showlegend=True, **BELOW)


def _band(figure: go.Figure, x: pd.Index, low: pd.Series, high: pd.Series, colour: str, name: str) -> None:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    figure.add_scatter(
        x=[*x, *x[::-1]], y=[*high, *low[::-1]], fill="toself", fillcolor=f"rgba({red},{green},{blue},0.14)",
        mode="lines", line={"width": 0}, legendgroup=name, showlegend=False, hoverinfo="skip",
    )  # fmt: skip


def success_by_compute(ablation: Ablation) -> go.Figure:
    """Test success against the tokens sampled in training; a star marks the cheapest good arm."""
    question, spot, arms = "What does success cost?", ablation.sweet_spot(), ablation.arms
    figure, aside = go.Figure(), _aside([arms[name]["million_tokens"] for name in ablation.training])
    for i, (name, seeds) in enumerate(ablation.training.items()):
        colour, arm = COLOURS[i % len(COLOURS)], arms[name]
        curves = [rows.dropna(subset=["val_success"]) for rows in seeds.values()]
        x = pd.concat([rows.set_index("step")["million_tokens"] for rows in curves], axis=1).mean(axis=1)
        y = pd.concat([rows.set_index("step")["val_success"] for rows in curves], axis=1).mean(axis=1)
        own = {"name": escaped(name), "legendgroup": name}
        line = {"color": colour, "width": 1.5, "dash": "dot"}
        figure.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False, **own)
        figure.add_scatter(
            x=[arm["million_tokens"] + aside[i]],
            customdata=[arm["million_tokens"]],
            y=[arm["success"]],
            error_y=whiskers([arm["success"]], *([end] for end in arm["ci95"]), color=colour),
            mode="markers",
            marker={"color": colour} | ({"size": 16, "symbol": "star"} if name == spot else {"size": 9}),
            hovertemplate="%{customdata:.2f} million tokens: %{y:.1%}",
            **own,
        )  # fmt: skip
    if not ablation.training:
        return empty("No arm of this sweep is trained", question)
    figure.update_xaxes(title_text="million tokens sampled in training", rangemode="tozero")
    figure.update_yaxes(title_text="success", **_SHARE)
    note = "dotted: validation; points: test"
    note += f"; star: {spot}, the cheapest not shown to be worse than the best" * bool(spot)
    return dressed(figure, question, note, height=450, showlegend=True, **BELOW)


def _aside(costs: list[float]) -> list[float]:
    """How far to move arms of nearly equal cost, so that they stand side by side, the cheaper one left."""
    width, order = 0.02 * max(costs, default=0.0), sorted(range(len(costs)), key=costs.__getitem__)
    alike = [[j for j in order if abs(costs[j] - cost) < width] for cost in costs]
    return [width * (own.index(i) - (len(own) - 1) / 2) for i, own in enumerate(alike)]


def transfer(ablation: Ablation) -> go.Figure:
    """Test success of each arm by the difficulty of the tasks, as a heat map."""
    blocks = {name: entry["by_difficulty"] for name, entry in ablation.summaries.items()}
    columns = easy_first({column for block in blocks.values() for column in block})
    values = np.array([[block[c]["success"] for c in columns] for block in blocks.values()], dtype=float)
    n = next(iter(blocks.values()))
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=[f"{escaped(column)}<br>n = {n[column]['n']}" for column in columns],
            y=[escaped(name) for name in blocks],
            texttemplate="%{z:.0%}",
            textfont={"size": 14},
            colorscale=[[0, "#f2ead3"], [1, "#1f9a74"]],
            zmin=0,
            zmax=1,
            xgap=3,
            ygap=3,
            showscale=False,
            hovertemplate="%{y}, tested on %{x}: %{z:.1%}",
        )
    )
    figure.update_traces(textfont_color="#14181f")
    figure.update_xaxes(title_text="difficulty of the test tasks", side="bottom")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    note = "share of test tasks solved, mean over seeds; n: tasks"
    height = 200 + 44 * len(blocks)
    return dressed(
        figure,
        "On which tasks does each arm succeed?",
        note,
        height=height,
        **(LONG_LABELS | {"margin_b": 80}),
    )
