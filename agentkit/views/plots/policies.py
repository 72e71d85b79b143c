"""Policies beside each other: success, failures, habits, and what moved.

Leaves out every number drawn (evaluation).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from agentkit.evaluation import SOLVED, Comparison, task_success
from agentkit.evaluation.failures import FAILURES
from agentkit.evaluation.tables import percent
from agentkit.records import Trajectory
from agentkit.views.plots.style import (
    COLOURS,
    GAIN,
    GRID,
    INK,
    LONG_LABELS,
    LOSS,
    SAME,
    dressed,
    empty,
    escaped,
    whiskers,
)

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


def failure_bars(failures: pd.DataFrame) -> go.Figure:
    """How often each way to fail occurs, policy beside policy, the most frequent on top."""
    if failures.empty:
        return empty("No trajectory failed", "How does it fail?")
    order = failures.loc[failures.sum(axis=1).sort_values(ascending=False, kind="stable").index]
    figure = go.Figure()
    for (policy, counts), colour in zip(order.items(), cycle(COLOURS), strict=False):
        figure.add_bar(
            y=order.index,
            x=counts,
            orientation="h",
            name=f"{escaped(policy)} ({counts.sum()})",
            text=counts,
            textposition="outside",
            cliponaxis=False,
            marker={"color": colour, "opacity": 0.85},
            customdata=[FAILURES[name] for name in order.index],
            hovertemplate="%{x}: %{customdata}",
        )
    return dressed(
        figure,
        "How does it fail?",
        "each failed trajectory is in one class",
        xaxis={"title_text": "trajectories", "showgrid": True},
        yaxis={"showgrid": False, "autorange": "reversed"},
        height=170 + len(order) * (18 * len(order.columns) + 12),
        barmode="group",
        bargap=0.25,
        showlegend=True,
        **LONG_LABELS,
    )


def behaviour_dots(behaviour: pd.DataFrame) -> go.Figure:
    """What each policy does, as a share of the occasions to do it, with 95 % intervals."""
    seen = behaviour.dropna(subset=["share"])
    if seen.empty:
        return empty("There was no occasion for any behaviour", "What does it do differently?")
    habits, policies = list(seen["habit"].unique())[::-1], list(behaviour["policy"].unique())
    lane = min(0.28, 0.8 / len(policies))  # of a policy; a row is 1 high
    figure = go.Figure()
    for i, policy in enumerate(policies):
        own = seen[seen["policy"] == policy]
        figure.add_scatter(
            x=own["share"],
            y=own["habit"].map(habits.index) + lane * ((len(policies) - 1) / 2 - i),
            error_x=whiskers(own["share"], own["low"], own["high"]),
            mode="markers",
            name=escaped(policy),
            marker={"color": COLOURS[i % len(COLOURS)], "size": 9},
            customdata=own[["occasions", "counted"]],
            hovertemplate="%{x:.1%} of %{customdata[0]} %{customdata[1]}",
        )
    return dressed(
        figure,
        "What does it do differently?",
        WHISKERS,
        xaxis={
            "tickformat": ".0%",
            "title_text": "share of occasions",
            "range": [-0.02, 1.02],
            "showgrid": True,
        },
        yaxis={"tickvals": list(range(len(habits))), "ticktext": habits, "showgrid": False}
        | {"range": [-0.6, len(habits) - 0.4]},
        height=150 + max(42, 14 * len(policies)) * len(habits),
        showlegend=True,
        **LONG_LABELS,
    )


def paired_scatter(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> go.Figure:
    """What moved: the success of each task under two policies, as bubbles that count the tasks."""
    names = before[0].policy, after[0].policy
    one, two = task_success(before), task_success(after)
    spots: dict[tuple[float, float], list[str]] = defaultdict(list)  # task ids by their two rates
    for task in sorted(one.keys() & two.keys()):
        spots[round(one[task], 3), round(two[task], 3)].append(task)
    largest = max(map(len, spots.values()), default=1)
    turns = {"wrong → right": (False, True), "right → wrong": (True, False), "same side": None}
    figure = go.Figure()
    for (title, turn), colour in zip(turns.items(), (GAIN, LOSS, SAME), strict=True):
        sides = {spot: (spot[0] > SOLVED, spot[1] > SOLVED) for spot in spots}
        points = [s for s, side in sides.items() if (side == turn if turn else side[0] == side[1])]
        count = [len(spots[point]) for point in points]
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            name=f"{title}: {sum(count)}",
            mode="markers+text",
            text=[str(n) if n > 0.04 * largest else "" for n in count],
            textfont={"color": "white", "size": 12},
            marker={"color": colour, "opacity": 0.9, "line": {"width": 0}, "size": count}
            | {"sizemode": "area", "sizeref": 2 * largest / 60**2, "sizemin": 5},
            customdata=["<br>".join(map(escaped, spots[point][:8])) for point in points],
            hovertemplate="%{x:.0%} → %{y:.0%}<br>%{customdata}",
            cliponaxis=False,
        )
    axis = {"tickformat": ".0%", "dtick": 0.25, "range": [-0.12, 1.12], "showgrid": False}
    x, y = (axis | {"title_text": f"{escaped(name)}: success on the task"} for name in names)
    return dressed(
        figure,
        f"Which tasks moved from {names[0]} to {names[1]}?",
        "area and number: tasks with these two rates",
        xaxis=x,
        yaxis=y,
        shapes=[guide | {"type": "line", "layer": "below"} for guide in _GUIDES],
        height=540,
        width=780,
        legend={"itemsizing": "constant", "orientation": "v", "x": 1.02, "y": 1, "yanchor": "top"},
        margin={"t": 75},
    )


# the diagonal of no change, and the lines at which a task counts as solved
_GUIDES = [
    {"x0": 0, "y0": 0, "x1": 1, "y1": 1, "line": {"color": INK, "width": 1, "dash": "dot"}},
    {"x0": 0.5, "y0": -0.12, "x1": 0.5, "y1": 1.12, "line": {"color": GRID, "width": 2}},
    {"x0": -0.12, "y0": 0.5, "x1": 1.12, "y1": 0.5, "line": {"color": GRID, "width": 2}},
]
