"""Policies beside each other: success, samples, failures, behaviour, what moved, and other rewards.

Leaves out every number drawn (evaluation, rewards.rescoring).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from agentkit.evaluation import SOLVED, Comparison, task_success
from agentkit.evaluation.behaviour import MEASURES, Behaviour
from agentkit.evaluation.failures import Failures
from agentkit.evaluation.tables import percent
from agentkit.records import Trajectory
from agentkit.rewards.rescoring import PAIRS, Rescoring
from agentkit.trajectories import wholly_right
from agentkit.views.plots.style import (
    BELOW,
    BESIDE_TITLE,
    COLOURS,
    GAIN,
    GRID,
    INK,
    LONG_LABELS,
    LOSS,
    SAME,
    counted,
    dressed,
    empty,
    escaped,
    whiskers,
)  # fmt: skip
from agentkit.views.plots.training import draw_line

WHISKERS = "whiskers: 95 % intervals over tasks"


def success_bars(comparison: Comparison) -> go.Figure:
    """Success of each policy overall, by family and by difficulty, with 95 % intervals."""
    blocks = {name: _blocks(entry) for name, entry in comparison.policies.items()}
    labels = list(dict.fromkeys(label for policy in blocks.values() for label in policy))
    ticks = []
    for label in labels:
        numbers = sorted({str(b[label]["n"]) for b in blocks.values() if label in b}, key=int)
        ticks.append(f"{escaped(label[1])}<br>n = {'–'.join(numbers)}")
    groups = [escaped(group) for group, _ in labels]
    figure = go.Figure()
    for i, (name, policy) in enumerate(blocks.items()):
        cells = [policy.get(label, {"success": None, "ci95": None, "n": 0}) for label in labels]
        _draw_bars(figure, name, [groups, ticks], cells, COLOURS[i % len(COLOURS)])
    return dressed(
        figure,
        "Which policy solves more?",
        WHISKERS,
        yaxis={
            "title_text": "success (share of tasks)",
            "tickformat": ".0%",
            "range": [0, 1.1],
            "dtick": 0.2,
        },
        height=440,
        margin={"t": 105},
        barmode="group",
        bargap=0.25,
        scattermode="group",
        scattergap=0.25,
        showlegend=True,
    )


def _draw_bars(figure: go.Figure, name: str, x: list[list[str]], cells: list[dict], colour: str) -> None:
    low, high = zip(*(c["ci95"] or (np.nan, np.nan) for c in cells), strict=True)
    value = np.array([np.nan if c["success"] is None else c["success"] for c in cells], dtype=float)
    figure.add_bar(
        x=x,
        y=value,
        name=escaped(name),
        offsetgroup=name,
        marker={"color": colour, "opacity": 0.5},
        error_y=whiskers(value, low, high, color=colour),
        customdata=[f"{percent(c['success'], c['ci95'])}, n = {c['n']}" if c["n"] else "–" for c in cells],
        hovertemplate="%{x}: %{customdata}",
    )
    figure.add_scatter(  # the number stands above the whisker, where it hides nothing
        x=x,
        y=high,
        offsetgroup=name,
        mode="text",
        text=["" if np.isnan(v) else f"{100 * v:.0f}" for v in value],
        textposition="top center",
        textfont={"color": colour, "size": 11},  # three fit side by side on a narrow page
        showlegend=False,
        hoverinfo="skip",
    )


def _blocks(entry: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """(group, label) -> {success, ci95, n}, in the order they are drawn."""
    blocks = {("overall", "all tasks"): entry}
    blocks |= {("family", name): block for name, block in entry.get("by_category", {}).items()}
    return blocks | {("difficulty", name): block for name, block in entry.get("by_difficulty", {}).items()}


def draw_curves(comparison: Comparison) -> go.Figure:
    """Success when k samples may be drawn: any of them right, all of them."""
    policies = comparison.policies
    kinds = {"pass_at_k": "pass@k: any right", "pass_hat_k": "pass^k: all right"}
    if max((len(entry.get("pass_at_k") or {}) for entry in policies.values()), default=0) < 2:
        return empty("One sample a task: there is nothing to draw from", "What do more samples buy?")
    figure = make_subplots(
        1, len(kinds), subplot_titles=list(kinds.values()), shared_yaxes=True, horizontal_spacing=0.03
    )
    for column, key in enumerate(kinds, start=1):
        for i, (name, entry) in enumerate(policies.items()):
            blocks = {k: block for k, block in (entry.get(key) or {}).items() if block["n"]}
            if not blocks:  # another policy alone has this curve
                continue
            value = np.array([block["success"] for block in blocks.values()])
            low, high = np.array([block["ci95"] for block in blocks.values()]).T
            figure.add_scatter(
                x=list(blocks),
                y=value,
                error_y=whiskers(value, low, high),
                mode="lines+markers",
                name=escaped(name),
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": COLOURS[i % len(COLOURS)], "size": 7},
                hovertemplate="k = %{x}: %{y:.1%}",
                row=1,
                col=column,
            )
    figure.update_xaxes(type="category", title_text="k, samples drawn")
    figure.update_yaxes(tickformat=".0%", range=[0, 1.03])
    return dressed(
        figure,
        "What do more samples buy?",
        WHISKERS,
        yaxis_title_text="share of tasks",
        height=380,
        showlegend=True,
        **BESIDE_TITLE,
    )


def failure_bars(failures: Failures) -> go.Figure:
    """How often each way to fail occurs, policy beside policy, the most frequent on top."""
    if not failures.counts:
        return empty("No trajectory failed", "How does it fail?")
    shares = {
        name: {policy: counts[policy] / max(1, n) for policy, n in failures.totals.items()}
        for name, counts in failures.counts.items()
    }
    order = sorted(shares, key=lambda name: -sum(shares[name].values()))
    figure = go.Figure()
    for i, (policy, total) in enumerate(failures.totals.items()):
        counts = [failures.counts[name][policy] for name in order]
        figure.add_bar(
            y=order,
            x=[shares[name][policy] for name in order],
            orientation="h",
            name=f"{escaped(policy)} ({sum(counts)} of {total} failed)",
            text=counts,
            textposition="outside",
            cliponaxis=False,
            marker={"color": COLOURS[i % len(COLOURS)], "opacity": 0.85},
            hovertemplate="%{y}: %{text} trajectories (%{x:.1%})",
        )
    return dressed(
        figure,
        "How does it fail?",
        "numbers: trajectories; each is in one class",
        xaxis={"title_text": "share of scored trajectories", "tickformat": ".0%", "showgrid": True},
        yaxis={"showgrid": False, "autorange": "reversed"},
        height=170 + len(order) * (18 * len(failures.totals) + 12),
        barmode="group",
        bargap=0.25,
        showlegend=True,
        **LONG_LABELS,
    )


def behaviour_dots(behaviour: Behaviour) -> go.Figure:
    """What each policy does, as a share of the occasions to do it, with 95 % intervals."""
    shares = {name: rates for name, rates in behaviour.rates.items() if MEASURES[name].share}
    names = [n for n, rates in shares.items() if any(rate["occasions"] for rate in rates.values())][::-1]
    if not names:
        return empty("There was no occasion for any behaviour", "What does it do differently?")
    policies = list(behaviour.rates[names[0]])
    lane = min(0.28, 0.8 / len(policies))  # of a policy; a row is 1 high
    figure = go.Figure()
    for i, policy in enumerate(policies):
        rates = [behaviour.rates[n][policy] for n in names]
        value = np.array([np.nan if r["value"] is None else r["value"] for r in rates], dtype=float)
        low, high = np.array([r["ci95"] or (np.nan, np.nan) for r in rates], dtype=float).T
        figure.add_scatter(
            x=value,
            y=np.arange(len(names)) + lane * ((len(policies) - 1) / 2 - i),
            error_x=whiskers(value, low, high),
            mode="markers",
            name=escaped(policy),
            marker={"color": COLOURS[i % len(COLOURS)], "size": 9},
            customdata=[
                f"{MEASURES[n].title}: {r['occasions']} occasions" for n, r in zip(names, rates, strict=True)
            ],
            hovertemplate="%{customdata}, %{x:.1%}",
        )
    ticks = {"tickvals": list(range(len(names))), "ticktext": [MEASURES[n].title for n in names]}
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
        yaxis=ticks | {"showgrid": False, "range": [-0.6, len(names) - 0.4]},
        height=150 + max(42, 14 * len(policies)) * len(names),
        showlegend=True,
        **LONG_LABELS,
    )


def paired_scatter(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> go.Figure:
    """What moved: the success rate of each task under two policies, as bubbles that count the tasks."""
    names = before[0].policy, after[0].policy
    before, after = ([replace(t, success=wholly_right(t)) for t in own] for own in (before, after))
    spots, groups = _moves(task_success(before), task_success(after))
    figure = go.Figure()
    largest = max((len(ids) for ids in spots.values()), default=1)
    area = {"sizemode": "area", "sizeref": 2 * largest / 60**2, "sizemin": 5}
    for (title, points), colour in zip(groups.items(), (GAIN, LOSS, SAME), strict=True):
        count = [len(spots[p]) for p in points]
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            name=f"{title}: {counted(sum(count))}",
            mode="markers+text",
            text=[str(n) if n > 0.04 * largest else "" for n in count],
            textfont={"color": "white", "size": 12},
            marker={"color": colour, "opacity": 0.9, "line": {"width": 0}, "size": count, **area},
            customdata=[
                "<br>".join([*map(escaped, sorted(spots[p])[:8]), *[f"and {n - 8} more"] * (n > 8)])
                for p, n in zip(points, count, strict=True)
            ],
            hovertemplate="%{x:.0%} → %{y:.0%}<br>%{customdata}",
            cliponaxis=False,
        )
    axis = {"tickformat": ".0%", "dtick": 0.25, "range": [-0.12, 1.12], "showgrid": False}
    x, y = (axis | {"title_text": f"{escaped(name)}: success rate of the task"} for name in names)
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


def _moves(
    before: Mapping[str, float], after: Mapping[str, float]
) -> tuple[dict[tuple[float, float], list[str]], dict[str, list[tuple[float, float]]]]:
    """Task ids by their two rates, and the pairs of rates by which way they crossed the line."""
    spots: dict[tuple[float, float], list[str]] = defaultdict(list)
    for task in before.keys() & after.keys():
        spots[round(before[task], 3), round(after[task], 3)].append(task)
    groups: dict[str, list[tuple[float, float]]] = {"wrong → right": [], "right → wrong": [], "same side": []}
    for x, y in sorted(spots):
        turn = {(False, True): "wrong → right", (True, False): "right → wrong"}
        groups[turn.get((x > SOLVED, y > SOLVED), "same side")].append((x, y))
    return spots, groups


# the diagonal of no change, and the lines at which a task counts as solved
_GUIDES = [
    {"x0": 0, "y0": 0, "x1": 1, "y1": 1, "line": {"color": INK, "width": 1, "dash": "dot"}},
    {"x0": 0.5, "y0": -0.12, "x1": 0.5, "y1": 1.12, "line": {"color": GRID, "width": 2}},
    {"x0": -0.12, "y0": 0.5, "x1": 1.12, "y1": 0.5, "line": {"color": GRID, "width": 2}},
]


def rescoring(result: Rescoring) -> go.Figure:
    """The same trajectories under another reward: dead groups by step, and how pairs in a group changed."""
    question = f"What would the reward {result.reward} have distinguished?"
    if result.groups.empty:
        return empty("No group is stored", question)
    titles = ("Groups that teach nothing", "Pairs of trajectories")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.16)
    shares = result.groups.groupby("step")[["dead before", "dead now"]].mean().reset_index()
    named = shares.rename(columns={"dead before": "reward used", "dead now": result.reward})
    for colour, column in zip(COLOURS, named.columns[1:], strict=False):
        draw_line(figure, named, column, colour, legend=True, row=1, col=1)
    table = result.table()[::-1]
    pairs = table[list(PAIRS)].div(table[list(PAIRS)].sum(axis=1).clip(lower=1), axis=0)
    for colour, kind in zip((SAME, LOSS, GAIN, COLOURS[5]), PAIRS, strict=True):
        bar = {"marker_color": colour, "name": kind, "orientation": "h", "customdata": table[kind]}
        figure.add_bar(
            x=pairs[kind], y=table.index, hovertemplate="%{x:.1%} (%{customdata} pairs)", **bar, row=1, col=2
        )
    return dressed(
        figure,
        question,
        xaxis_title_text="optimiser step",
        yaxis={"title_text": "share of groups", "tickformat": ".0%", "rangemode": "tozero"},
        xaxis2={"title_text": "share of pairs", "tickformat": ".0%", "range": [0, 1]},
        barmode="stack",
        height=400,
        **BELOW,
    )
