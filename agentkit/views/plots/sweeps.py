"""The arms of a sweep: success, learning curves, success against compute, and by difficulty.

A point that stands for a run links to its run card. Leaves out every number drawn (evaluation.sweeps).
"""

import math
from collections.abc import Iterable, Mapping
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

MOST = 12  # arms in colour: more would be told apart by nobody
WIDTH, ENTRY = 640, 60  # pixels of a legend on a narrow page, and of an entry beside its name
GREY = {"color": "rgba(138,145,156,0.45)", "width": 1}
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
    figure, coloured = go.Figure(), _coloured(ablation)
    for name, seeds in _grey_first(ablation, coloured):
        by_step, colour = _by_step(seeds, "val_success"), coloured.get(name)
        look = {"line": GREY, "mode": "lines", "showlegend": False}
        if colour:
            _band(figure, by_step.index, by_step.min(axis=1), by_step.max(axis=1), colour, name)
            dash = ("solid", "dash", "dot")[list(coloured).index(name) // len(COLOURS) % 3]
            look = {"line": {"color": colour, "width": 2, "dash": dash}, "mode": "lines+markers"}
        figure.add_scatter(
            x=by_step.index, y=by_step.mean(axis=1), name=escaped(name), legendgroup=name,
            hovertemplate="step %{x}: %{y:.1%}", **look,
        )  # fmt: skip
    if not figure.data:
        return empty("No arm of this sweep is trained", question)
    return dressed(
        figure,
        question,
        f"lines: mean over seeds, ended ones as they were last; bands: from the lowest seed to the highest"
        f"{_others(ablation, coloured)}",
        xaxis_title_text="optimiser step",
        yaxis=_SHARE | {"title_text": "success on validation tasks"},
        showlegend=True,
        **_with_legend(430, coloured),
    )


def _coloured(ablation: Ablation) -> dict[str, str]:
    """The colours of the trained arms; of very many only of the one compared with, the cheapest good one, the
    best and worst, and those that differ most.
    """
    names = list(ablation.training)
    if len(names) > MOST:
        best_first = sorted(names, key=lambda name: -(ablation.arms[name]["success"] or 0.0))
        shown = [test for test in ablation.paired if test["verdict"] in ("better", "worse")]
        shown.sort(key=lambda test: -abs(test["diff"]))
        wanted = [ablation.against, ablation.sweet_spot(), *best_first[:3], *best_first[-3:]]
        wanted += [test["arm"] for test in shown]
        kept = list(dict.fromkeys(name for name in wanted if name in ablation.training))[:MOST]
        names = [name for name in names if name in kept]
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def _grey_first(ablation: Ablation, coloured: Mapping[str, str]) -> list[tuple[str, dict[int, pd.DataFrame]]]:
    return sorted(ablation.training.items(), key=lambda arm: arm[0] in coloured)


def _others(ablation: Ablation, coloured: Mapping[str, str]) -> str:
    number = len(ablation.training) - len(coloured)
    return f"; grey: {number} other{'s' * (number > 1)}" if number else ""


def _with_legend(height: int, names: Iterable[str]) -> dict[str, Any]:
    """A figure's layout with room for as many rows as its legend takes."""
    names = list(names)
    columns = max(1, WIDTH // (ENTRY + max(map(len, names), default=0) * 8))
    more = 19 * (math.ceil(len(names) / columns) - 1)
    return BELOW | {"height": height + more, "margin": BELOW["margin"] | {"b": BELOW["margin"]["b"] + more}}


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
    figure, coloured = go.Figure(), _coloured(ablation)
    aside = dict(zip(coloured, _aside([arms[name]["million_tokens"] for name in coloured]), strict=True))
    for name, seeds in _grey_first(ablation, coloured):
        colour, arm = coloured.get(name), arms[name]
        x, y = (_by_step(seeds, column).mean(axis=1) for column in ("million_tokens", "val_success"))
        own = {"name": escaped(name), "legendgroup": name}
        line = {"color": colour, "width": 1.5, "dash": "dot"} if colour else GREY
        figure.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False, **own)
        whisker = whiskers([arm["success"]], *([end] for end in arm["ci95"]), color=colour)
        marker = {"color": colour, "size": 9} if colour else {"color": GREY["color"], "size": 6}
        figure.add_scatter(
            x=[arm["million_tokens"] + aside.get(name, 0.0)],
            customdata=[arm["million_tokens"]],
            y=[arm["success"]],
            error_y=whisker if colour else None,
            mode="markers",
            marker=marker | ({"size": 16, "symbol": "star"} if name == spot else {}),
            showlegend=colour is not None,
            hovertemplate="%{customdata:.2f} million completion tokens: %{y:.1%}",
            **own,
        )
    if not ablation.training:
        return empty("No arm of this sweep is trained", question)
    star = f"; star: {spot}, the cheapest not shown to be worse than the best" if spot else ""
    return dressed(
        figure,
        question,
        f"dotted: validation, ended seeds as they were last; points: test{star}{_others(ablation, coloured)}",
        xaxis={
            "title_text": "million completion tokens in training, tool replies included",
            "rangemode": "tozero",
        },
        yaxis=_SHARE | {"title_text": "success"},
        showlegend=True,
        **_with_legend(450, coloured),
    )


def _aside(costs: list[float]) -> list[float]:
    """How far to move arms of nearly equal cost, so that they stand side by side, the cheaper one left.

    However many they are, none is moved by more than 3 % of the axis.
    """
    width, order = 0.02 * max(costs, default=0.0), sorted(range(len(costs)), key=costs.__getitem__)
    alike = [[j for j in order if abs(costs[j] - cost) < width] for cost in costs]
    steps = [min(width, 3 * width / max(len(own) - 1, 1)) for own in alike]
    return [steps[i] * (own.index(i) - (len(own) - 1) / 2) for i, own in enumerate(alike)]


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
