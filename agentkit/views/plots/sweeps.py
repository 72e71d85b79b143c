"""The arms of a sweep: success, learning curves, success against compute, and by difficulty.

A point that stands for a run links to its run card. Leaves out every number drawn (evaluation.sweeps).
"""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from agentkit.evaluation.statistics import SEEDS
from agentkit.evaluation.summary import easy_first
from agentkit.evaluation.sweeps import Ablation
from agentkit.evaluation.tables import briefly, percent
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
OFF = (
    "whiskers: the difference from the dotted arm, at the level that decides: off its line is better or worse"
)
UNSURE = f"whiskers: 95 % intervals of the difference from the dotted arm; a verdict needs {SEEDS} seeds"


def arm_success(ablation: Ablation) -> go.Figure:
    """Success of each arm and seed; intervals of the paired difference lie about the line of one arm.

    They are at the level of Dunnett's test, so those off the line are the verdicts better and worse.
    """
    figure, tests = go.Figure(), {test["arm"]: test for test in ablation.paired}
    success = {name: float(own.mean()) for name, own in zip(ablation.tested, ablation.success, strict=True)}
    line, labels = success[ablation.against], {}
    for name, entry in ablation.summaries.items():
        test, verdict = tests.get(name), ablation.verdict(name)
        at, y = [success.get(name, entry["success"])], escaped(name)
        colour = {"better": GAIN, "worse": LOSS}.get(verdict, COLOURS[0])
        labels[y] = f'{y}<br><span style="font-size:11px">{verdict}</span>'
        hover, bars = f"{percent(at[0])}, {verdict}", None
        if test:
            hover += f": {briefly(test | {'ci95': test['ci_difference']})}"
            bars = whiskers(at, *([line + end] for end in test["ci_difference"]), color=colour)
        figure.add_scatter(**_seeds(ablation, name))
        figure.add_scatter(
            x=at,
            y=[y],
            error_x=bars,
            mode="markers",
            marker={"color": colour, "size": 9, "symbol": "circle" if name in success else "circle-open"},
            hovertext=hover,
            hoverinfo="text",
        )
    figure.add_vline(line, line={"color": INK, "dash": "dot", "width": 1})
    title = f"success on the test tasks; dotted: {escaped(ablation.against)}; ●: a seed, opens its run card"
    ticks = {"tickvals": list(labels), "ticktext": list(labels.values())}
    return dressed(
        figure,
        "Which arm solves more?",
        OFF if len(ablation.seeds) >= SEEDS else UNSURE,
        xaxis={"title_text": title, "tickformat": ".0%", "showgrid": True},
        yaxis=ticks | {"autorange": "reversed", "showgrid": False},
        height=190 + 52 * len(labels),
        showlegend=False,
        **LONG_LABELS | {"margin_b": 60},
    )


def _seeds(ablation: Ablation, name: str) -> dict[str, Any]:
    """An arm's seeds as dots that open their run cards."""
    seeds = ablation.summaries[name]["seeds"]
    cells = [ablation.runs[name][int(seed)].path for seed in seeds]
    links = [f"{path.parent.name}/{path.name}/report.html" for path in cells]
    return {
        "x": list(seeds.values()), "y": [escaped(name)] * len(cells), "mode": "text", "customdata": links,
        "text": [f'<a href="{escaped(link)}">●</a>' for link in links], "textposition": "top center",
        "textfont": {"size": 11}, "hovertext": [f"seed {seed}: {percent(v)}" for seed, v in seeds.items()],
        "hoverinfo": "text",
    }  # fmt: skip


def learning_curves(ablation: Ablation) -> go.Figure:
    """Validation success by step, the mean over seeds in a band from the lowest to the highest."""
    question = "How fast does each arm learn?"
    figure = go.Figure()
    for i, (name, seeds) in enumerate(ablation.training.items()):
        by_step = _by_step(seeds, "val_success")
        low, high, colour = by_step.min(axis=1), by_step.max(axis=1), COLOURS[i % len(COLOURS)]
        _band(figure, by_step.index, low, high, colour, name)
        line = {"color": colour, "width": 2, "dash": ("solid", "dash", "dot")[i // len(COLOURS) % 3]}
        figure.add_scatter(
            x=by_step.index, y=by_step.mean(axis=1), name=escaped(name), legendgroup=name, line=line,
            mode="lines+markers", hovertemplate="step %{x}: %{y:.1%}",
        )  # fmt: skip
    if not figure.data:
        return empty("No arm of this sweep is trained", question)
    return dressed(
        figure,
        question,
        "lines: mean over seeds, ended ones as they were last; bands: from the lowest seed to the highest",
        xaxis_title_text="optimiser step",
        yaxis=_SHARE | {"title_text": "success on validation tasks"},
        height=430,
        showlegend=True,
        **BELOW,
    )


def _by_step(seeds: dict[int, pd.DataFrame], column: str) -> pd.DataFrame:
    """A column at the validations, one of it a seed: one that has ended goes on as it was last."""
    validated = [rows.dropna(subset=["val_success"]).set_index("step")[column] for rows in seeds.values()]
    return pd.concat(validated, axis=1).sort_index().ffill()


def _band(figure: go.Figure, x: pd.Index, low: pd.Series, high: pd.Series, colour: str, name: str) -> None:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    figure.add_scatter(
        x=[*x, *x[::-1]], y=[*high, *low[::-1]], fill="toself", fillcolor=f"rgba({red},{green},{blue},0.14)",
        mode="lines", line={"width": 0}, legendgroup=name, showlegend=False, hoverinfo="skip",
    )  # fmt: skip


def success_by_compute(ablation: Ablation) -> go.Figure:
    """Test success against the completion tokens of training; a star marks the cheapest good arm."""
    question, spot, arms = "What does success cost?", ablation.sweet_spot(), ablation.arms
    figure, aside = go.Figure(), _aside([arms[name]["million_tokens"] for name in ablation.training])
    for i, (name, seeds) in enumerate(ablation.training.items()):
        colour, arm = COLOURS[i % len(COLOURS)], arms[name]
        x, y = (_by_step(seeds, column).mean(axis=1) for column in ("million_tokens", "val_success"))
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
            hovertemplate="%{customdata:.2f} million completion tokens: %{y:.1%}",
            **own,
        )  # fmt: skip
    if not ablation.training:
        return empty("No arm of this sweep is trained", question)
    star = f"; star: {spot}, the cheapest not shown to be worse than the best" if spot else ""
    return dressed(
        figure,
        question,
        f"dotted: validation, ended seeds as they were last; points: test{star}",
        xaxis={
            "title_text": "million completion tokens in training, tool replies included",
            "rangemode": "tozero",
        },
        yaxis=_SHARE | {"title_text": "success"},
        height=450,
        showlegend=True,
        **BELOW,
    )


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
            textfont={"size": 14, "color": "#14181f"},
            colorscale=[[0, "#f2ead3"], [1, "#1f9a74"]],
            zmin=0,
            zmax=1,
            xgap=3,
            ygap=3,
            showscale=False,
            hovertemplate="%{y}, tested on %{x}: %{z:.1%}",
        )
    )
    return dressed(
        figure,
        "On which tasks does each arm succeed?",
        "share of test tasks solved, mean over seeds; n: tasks",
        xaxis={"title_text": "difficulty of the test tasks", "side": "bottom"},
        yaxis={"autorange": "reversed", "showgrid": False},
        height=200 + 44 * len(blocks),
        **LONG_LABELS | {"margin_b": 80},
    )
