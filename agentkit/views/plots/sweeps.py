"""The arms of a sweep: success, learning curves, success against compute, and by difficulty.

Leaves out every number drawn (evaluation.sweeps).
"""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from agentkit.evaluation.statistics import SEEDS
from agentkit.evaluation.summary import easy_first
from agentkit.evaluation.sweeps import Ablation
from agentkit.evaluation.tables import percent, spanned
from agentkit.views.plots.style import (
    BELOW,
    COLOURS,
    GAIN,
    INK,
    LONG_LABELS,
    LOSS,
    dressed,
    empty,
    escaped,
    whiskers,
)

_SHARE = {"tickformat": ".0%", "minallowed": -0.02, "maxallowed": 1.02}
OFF = "whiskers: the difference from the dotted arm (Dunnett): off its line is better or worse"
UNSURE = f"whiskers: the difference from the dotted arm; a verdict needs {SEEDS} seeds, and a kept step"


def arm_success(ablation: Ablation) -> go.Figure:
    """Success of each arm and seed; intervals of the paired difference lie about the line of one arm."""
    figure, tests = go.Figure(), {test["arm"]: test for test in ablation.paired}
    line, labels = float(ablation.success[0].mean()), {}
    for name, entry in ablation.summaries.items():
        test, verdict, y = tests.get(name), ablation.verdict(name), escaped(name)
        at = line + test["diff"] if test else entry["success"]
        colour = {"better": GAIN, "worse": LOSS}.get(verdict, COLOURS[0])
        labels[y] = f'{y}<br><span style="font-size:11px">{verdict}</span>'
        bars = whiskers([at], *([line + end] for end in test["ci95"]), color=colour) if test else None
        hover = f"{percent(at)}, {verdict}" + (
            f": {spanned(test['diff'], test['ci95'])} points" if test else ""
        )
        seeds = list(entry["seeds"].values())
        figure.add_scatter(
            x=seeds,
            y=[y] * len(seeds),
            mode="markers",
            marker={"color": INK, "size": 5, "symbol": "line-ns-open"},
            hovertext=[f"seed {seed}: {percent(v)}" for seed, v in entry["seeds"].items()],
            hoverinfo="text",
        )
        figure.add_scatter(
            x=[at],
            y=[y],
            error_x=bars,
            mode="markers",
            marker={"color": colour, "size": 9},
            hovertext=hover,
            hoverinfo="text",
        )
    figure.add_vline(line, line={"color": INK, "dash": "dot", "width": 1})
    title = f"success on the test tasks; dotted: {escaped(ablation.against)}; small strokes: seeds"
    return dressed(
        figure,
        "Which arm solves more?",
        UNSURE if ablation.paired[0]["p"] is None else OFF,
        xaxis={"title_text": title, "tickformat": ".0%", "showgrid": True},
        yaxis={"tickvals": list(labels), "ticktext": list(labels.values())}
        | {"autorange": "reversed", "showgrid": False},
        height=190 + 52 * len(labels),
        showlegend=False,
        **LONG_LABELS | {"margin_b": 60},
    )


def learning_curves(ablation: Ablation) -> go.Figure:
    """Validation success by step, the mean over seeds in a band from the lowest to the highest."""
    question, figure = "How fast does each arm learn?", go.Figure()
    for i, (name, seeds) in enumerate(ablation.training.items()):
        by_step, colour = _by_step(seeds, "val_success"), COLOURS[i % len(COLOURS)]
        look = {
            "line": {"color": colour, "width": 2, "dash": ("solid", "dash", "dot")[i // len(COLOURS) % 3]}
        }
        figure.add_scatter(
            x=[*by_step.index, *by_step.index[::-1]],
            y=[*by_step.max(axis=1), *by_step.min(axis=1)[::-1]],
            fill="toself",
            fillcolor=colour,
            opacity=0.14,
            mode="lines",
            line={"width": 0},
            legendgroup=name,
            showlegend=False,
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=by_step.index,
            y=by_step.mean(axis=1),
            name=escaped(name),
            legendgroup=name,
            mode="lines+markers",
            hovertemplate="step %{x}: %{y:.1%}",
            **look,
        )
    if not figure.data:
        return empty("No arm of this sweep is trained", question)
    note = "lines: mean over seeds; bands: from the lowest seed to the highest"
    axes = {
        "xaxis_title_text": "optimiser step",
        "yaxis": _SHARE | {"title_text": "success on validation tasks"},
    }
    return dressed(figure, question, note, height=450, showlegend=True, **axes, **BELOW)


def _by_step(seeds: dict[int, pd.DataFrame], column: str) -> pd.DataFrame:
    """A column at the validations, one of it a seed: one that has ended goes on as it was last."""
    validated = [rows.dropna(subset=["val_success"]).set_index("step")[column] for rows in seeds.values()]
    return pd.concat(validated, axis=1).sort_index().ffill()


def success_by_compute(ablation: Ablation) -> go.Figure:
    """Test success against the completion tokens of training."""
    question, figure = "What does success cost?", go.Figure()
    for i, (name, seeds) in enumerate(ablation.training.items()):
        colour, arm = COLOURS[i % len(COLOURS)], ablation.arms[name]
        x, y = (_by_step(seeds, column).mean(axis=1) for column in ("million_tokens", "val_success"))
        line = {"color": colour, "width": 1.5, "dash": "dot"}
        figure.add_scatter(
            x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False, legendgroup=name
        )
        figure.add_scatter(
            x=[arm["million_tokens"]],
            y=[arm["success"]],
            mode="markers",
            name=escaped(name),
            legendgroup=name,
            error_y=whiskers([arm["success"]], *([end] for end in arm["ci95"]), color=colour),
            marker={"color": colour, "size": 9},
            hovertemplate="%{x:.2f} million completion tokens: %{y:.1%}",
        )
    if not figure.data:
        return empty("No arm of this sweep is trained", question)
    x = {"title_text": "million completion tokens in training, tool replies included", "rangemode": "tozero"}
    y = _SHARE | {"title_text": "success"}
    note = "dotted: validation while it trains; points: test"
    return dressed(figure, question, note, height=470, showlegend=True, xaxis=x, yaxis=y, **BELOW)


def transfer(ablation: Ablation) -> go.Figure:
    """Test success of each arm by the difficulty of the tasks, as a heat map."""
    blocks = {name: entry["by_difficulty"] for name, entry in ablation.summaries.items()}
    n = next(iter(blocks.values()))
    columns = easy_first(n)
    values = np.array([[block[c]["success"] for c in columns] for block in blocks.values()], dtype=float)
    heat = go.Heatmap(
        z=values,
        x=[f"{escaped(c)}<br>n = {n[c]['n']}" for c in columns],
        y=[escaped(name) for name in blocks],
        texttemplate="%{z:.0%}",
        textfont={"size": 14, "color": "#14181f"},
        zmin=0,
        zmax=1,
        xgap=3,
        ygap=3,
        colorscale=[[0, "#f2ead3"], [1, "#1f9a74"]],
        showscale=False,
        hovertemplate="%{y}, tested on %{x}: %{z:.1%}",
    )
    return dressed(
        go.Figure(heat),
        "On which tasks does each arm succeed?",
        "share of test tasks solved, mean over seeds; n: tasks",
        xaxis={"title_text": "difficulty of the test tasks", "side": "bottom"},
        yaxis={"autorange": "reversed", "showgrid": False},
        height=200 + 44 * len(blocks),
        **LONG_LABELS | {"margin_b": 80},
    )
