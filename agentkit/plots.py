"""Tables in, plotly figures out, in one look that reads on light and on dark pages.

Every function returns a figure and shows nothing. Leaves out: computing what is drawn (evaluation, diagnostics), and
reading files (runs).
"""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from agentkit.behaviour import MEASURES, Behaviour
from agentkit.evaluation import SOLVED, Comparison, task_success
from agentkit.failures import Failures
from agentkit.records import Task, Trajectory
from agentkit.rescoring import PAIRS, Rescoring
from agentkit.tables import percent

# Ink has a contrast of at least 4:1 and colours of 3:1, on white and on JupyterLab's dark page.
INK, GRID = "#757c88", "rgba(128,128,128,0.22)"
COLOURS = ("#2f81d6", "#d9700f", "#1f9a74", "#a371d9", "#d0506f", "#8f8136")
GAIN, LOSS, SAME = COLOURS[2], COLOURS[1], "#8a919c"
PANEL_WIDTH, PANEL_HEIGHT = 3, 215  # panels a row; pixels a row of panels

_AXIS = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True}
_AXIS |= {"title": {"standoff": 8, "font": {"size": 13}}, "dividercolor": GRID}
TEMPLATE = go.layout.Template(
    layout={
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": COLOURS,
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": INK},
        "title": {"x": 0, "xref": "paper", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
        | {"pad": {"t": 16}, "font": {"size": 17}, "subtitle": {"font": {"size": 13}}},
        "xaxis": _AXIS | {"showgrid": False},
        "yaxis": {k: v for k, v in _AXIS.items() if k != "dividercolor"},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 60, "r": 20, "t": 90, "b": 55},
        "hoverlabel": {"font": {"size": 12}},
    }
)

# where long labels push the plot to the right: title and legend start at the figure's edge, the legend lies below
LONG_LABELS = {"title_x": 0, "title_xref": "container", "title_pad_l": 16, "legend_x": 0.02, "legend_xref": "container"}
LONG_LABELS |= {"legend_y": 0.005, "legend_yref": "container", "legend_yanchor": "bottom", "margin_t": 80, "margin_b": 90}

# column, panel title, unit; a unit that starts with "share" is drawn in percent
PANELS = (
    ("reward", "Reward", "reward per trajectory"),
    ("success", "Success", "share of trajectories"),
    ("reward_std", "Spread in a group", "standard deviation"),
    ("kl", "KL to the reference", "nats per token"),
    ("entropy", "Entropy of the policy", "nats per token"),
    ("grad_norm", "Gradient norm", "L2 norm"),
    ("clip_fraction", "Clipped tokens", "share of tokens"),
    ("dead_groups", "Dead groups", "share of groups"),
    ("turns", "Turns", "turns per trajectory"),
    ("tool_failure_rate", "Failed tool calls", "share of calls"),
    ("completion_tokens", "Length", "tokens per trajectory"),
    ("seconds", "Step time", "seconds per step"),
)


# ---- training --------------------------------------------------------------------------------------------------------
def training_curves(metrics: pd.DataFrame) -> go.Figure:
    """What training did: one small panel a question, for the columns that exist.

    Args:
        metrics: train/metrics.jsonl, one row a step.
    """
    if metrics.empty:
        return _empty("No optimiser step is recorded yet")
    metrics = _by_step(metrics)
    panels = [panel for panel in PANELS if _has(metrics, panel[0])]
    if not panels:
        raise ValueError(f"no column to draw: expected some of {[p[0] for p in PANELS]}, found {list(metrics.columns)}.")
    rows = -(-len(panels) // PANEL_WIDTH)
    figure = make_subplots(
        rows,
        PANEL_WIDTH,
        subplot_titles=[title for _, title, _ in panels],
        horizontal_spacing=0.09,
        vertical_spacing=0.3 / rows,
    )
    for i, (column, _, unit) in enumerate(panels):
        place = {"row": i // PANEL_WIDTH + 1, "col": i % PANEL_WIDTH + 1}
        _draw_panel(figure, metrics, column, place)
        _style_axes(figure, metrics, [column], unit, **place)
        if i + PANEL_WIDTH >= len(panels):
            figure.update_xaxes(title_text="optimiser step", **place)
    window = _window(len(metrics))
    note = f"lines: mean of {window} steps; dots: each step" if window > 1 else "one dot a step"
    figure.update_annotations(font={"size": 14})
    figure.update_layout(
        template=TEMPLATE,
        height=PANEL_HEIGHT * rows + 150,
        title=_title("What did training do?", note),
        legend={"y": 0.005, "yref": "container", "yanchor": "bottom"},  # below: on narrow pages it takes several lines
        margin={"t": 88, "b": 90},
    )
    return figure


def curve(metrics: pd.DataFrame, columns: str | Sequence[str], title: str, unit: str) -> go.Figure:
    """One question over the steps of a run.

    Args:
        metrics: train/metrics.jsonl, one row a step.
        columns: one or several columns; "val_success" is drawn with its interval.
        title: the question.
        unit: of the y axis; a unit that starts with "share" is drawn in percent.
    """
    if metrics.empty:
        return _empty("No optimiser step is recorded yet", title)
    columns = [columns] if isinstance(columns, str) else list(columns)
    missing = [column for column in columns if not _has(metrics, column)]
    if missing:
        raise ValueError(f"the metrics hold no {missing}; there are {list(metrics.columns)}.")
    metrics = _by_step(metrics)
    figure = go.Figure()
    for i, column in enumerate(columns):
        if column == "val_success":
            _draw_validation(figure, metrics, COLOURS[i % len(COLOURS)])
        else:
            _draw_line(figure, metrics, column, COLOURS[i % len(COLOURS)], legend=True)
    _style_axes(figure, metrics, columns, unit)
    figure.update_xaxes(title_text="optimiser step")
    figure.update_layout(template=TEMPLATE, title=_title(title), height=360, showlegend=len(columns) > 1)
    return figure


def _draw_panel(figure: go.Figure, metrics: pd.DataFrame, column: str, place: dict[str, int]) -> None:
    parts = [c for c in metrics.columns if c.startswith("reward/") and _has(metrics, c)] if column == "reward" else []
    _draw_line(figure, metrics, column, COLOURS[0], legend=bool(parts), **place)
    for i, part in enumerate(parts, start=1):
        _draw_line(figure, metrics, part, COLOURS[1 + i % (len(COLOURS) - 1)], legend=True, **place)
    if column == "success" and _has(metrics, "val_success"):
        _draw_validation(figure, metrics, COLOURS[1], **place)


def _draw_line(figure: go.Figure, metrics: pd.DataFrame, column: str, colour: str, *, legend: bool, **place: int) -> None:
    """A light moving average over the raw points."""
    rows = metrics[["step", column]].dropna()
    window = _window(len(rows))
    name = html.escape(column.removeprefix("reward/").replace("_", " "))
    shared = {"x": rows["step"], "legendgroup": column, "name": name, "hovertemplate": "step %{x}: %{y:.4g}"}
    marker = {"color": colour, "size": 4, "opacity": 0.35 if window > 1 else 1.0}
    figure.add_scatter(y=rows[column], mode="markers", marker=marker, showlegend=False, **shared, **place)
    smooth = rows[column].rolling(window, center=True, min_periods=1).mean()
    line = {"color": colour, "width": 2}
    figure.add_scatter(y=smooth, mode="lines", line=line, showlegend=legend, **(shared | {"hoverinfo": "skip"}), **place)
    figure.data[-1].hovertemplate = None


def _draw_validation(figure: go.Figure, metrics: pd.DataFrame, colour: str, **place: int) -> None:
    rows = metrics.dropna(subset=["val_success"])
    spread = None
    if _has(rows, "val_ci_low") and _has(rows, "val_ci_high"):
        up, down = rows["val_ci_high"] - rows["val_success"], rows["val_success"] - rows["val_ci_low"]
        spread = {"type": "data", "array": up, "arrayminus": down, "color": colour, "thickness": 1.2, "width": 3}
    figure.add_scatter(
        x=rows["step"],
        y=rows["val_success"],
        error_y=spread,
        mode="markers+lines",
        name="validation (95 % interval)" if spread else "validation",
        marker={"color": colour, "size": 7, "symbol": "diamond"},
        line={"color": colour, "width": 1, "dash": "dot"},
        hovertemplate="step %{x}: %{y:.1%}",
        showlegend=True,
        **place,
    )


def _style_axes(figure: go.Figure, metrics: pd.DataFrame, columns: Sequence[str], unit: str, **place: int) -> None:
    largest = max(float(metrics[column].max()) for column in columns)
    figure.update_yaxes(title_text=html.escape(unit), **place)
    if unit.startswith("share"):
        bound = [0, 1.03] if largest > 0.5 else None
        figure.update_yaxes(tickformat=".0%" if largest > 0.05 else ".1%", range=bound, rangemode="tozero", **place)
    elif min(float(metrics[column].min()) for column in columns) >= 0:
        figure.update_yaxes(rangemode="tozero", **place)


def _by_step(metrics: pd.DataFrame) -> pd.DataFrame:
    """Sorted, with the last row of each step: a resumed run writes some steps twice."""
    if "step" not in metrics:
        raise ValueError(f"the metrics have no column 'step'; there are {list(metrics.columns)}.")
    return metrics.drop_duplicates("step", keep="last").sort_values("step")


def _has(table: pd.DataFrame, column: str) -> bool:
    return column in table and bool(pd.to_numeric(table[column], errors="coerce").notna().any())


def _window(n: int) -> int:
    """Steps in the moving average: about a fifteenth of the run, odd, and 1 for short runs."""
    return 1 if n < 20 else n // 15 // 2 * 2 + 1


# ---- policies --------------------------------------------------------------------------------------------------------
def success_bars(comparison: Comparison | Mapping[str, Any]) -> go.Figure:
    """Success of each policy overall, by category and by difficulty, with 95 % intervals.

    Args:
        comparison: what evaluation.compare returned, or the content of comparison.json.
    """
    policies = (comparison.to_json() if isinstance(comparison, Comparison) else comparison)["policies"]
    sampled = "sampled" if any("greedy" in entry for entry in policies.values()) else "all tasks"
    blocks = {name: _blocks(entry, sampled) for name, entry in policies.items()}
    labels = list(dict.fromkeys(label for own in blocks.values() for label in own))
    numbers = {label: sorted({own[label]["n"] for own in blocks.values() if label in own}) for label in labels}
    ticks = [f"{html.escape(label[1])}<br>n = {'–'.join(str(n) for n in numbers[label])}" for label in labels]
    groups = [html.escape(group) for group, _ in labels]
    figure = go.Figure()
    for i, (name, own) in enumerate(blocks.items()):
        cells = [own.get(label, {"success": None, "ci95": None, "n": 0}) for label in labels]
        _draw_bars(figure, name, [groups, ticks], cells, COLOURS[i % len(COLOURS)])
    figure.update_yaxes(title_text="success (share of tasks)", tickformat=".0%", range=[0, 1.1], dtick=0.2)
    title = _title("Which policy solves more?", "whiskers: 95 % intervals over tasks")
    gaps = {"barmode": "group", "bargap": 0.25, "scattermode": "group", "scattergap": 0.25}
    figure.update_layout(template=TEMPLATE, title=title, height=440, margin={"t": 105}, showlegend=True, **gaps)
    return figure


def _draw_bars(figure: go.Figure, name: str, x: list[list[str]], cells: list[dict], colour: str) -> None:
    low, high = zip(*(c["ci95"] or (np.nan, np.nan) for c in cells), strict=True)
    value = np.array([np.nan if c["success"] is None else c["success"] for c in cells], dtype=float)
    figure.add_bar(
        x=x,
        y=value,
        name=html.escape(name),
        offsetgroup=name,
        marker={"color": colour, "opacity": 0.5},
        error_y={"array": np.array(high) - value, "arrayminus": value - np.array(low), "color": colour, "width": 4},
        customdata=[f"{percent(c['success'], c['ci95'])}, n = {c['n']}" if c["n"] else "–" for c in cells],
        hovertemplate="%{x}: %{customdata}",
    )
    figure.add_scatter(  # the number stands above the whisker, where it hides nothing
        x=x,
        y=high,
        offsetgroup=name,
        mode="text",
        text=["" if np.isnan(v) else f"{100 * v:.0f} %" for v in value],
        textposition="top center",
        textfont={"color": colour},
        showlegend=False,
        hoverinfo="skip",
    )


def _blocks(entry: Mapping[str, Any], sampled: str) -> dict[tuple[str, str], dict]:
    """(group, label) -> {success, ci95, n}, in the order they are drawn."""
    blocks = {("overall", sampled): dict(entry)}
    if "greedy" in entry:
        blocks["overall", "greedy"] = entry["greedy"]
    for group, key in (("category", "by_category"), ("difficulty", "by_difficulty")):
        blocks |= {(group, label): block for label, block in entry[key].items()}
    return blocks


def draw_curves(comparison: Comparison | Mapping[str, Any]) -> go.Figure:
    """Success when k samples may be drawn: any of them right, most of them, all of them.

    Args:
        comparison: what evaluation.compare returned, or the content of comparison.json.
    """
    policies = (comparison.to_json() if isinstance(comparison, Comparison) else comparison)["policies"]
    kinds = {"pass_at_k": "pass@k: any right", "maj_at_k": "maj@k: majority right", "pass_hat_k": "pass^k: all right"}
    if max((len(entry.get("pass_at_k") or {}) for entry in policies.values()), default=0) < 2:
        return _empty("One sample a task: there is nothing to draw from", "What do more samples buy?")
    figure = make_subplots(1, len(kinds), subplot_titles=list(kinds.values()), shared_yaxes=True, horizontal_spacing=0.03)
    for column, key in enumerate(kinds, start=1):
        for i, (name, entry) in enumerate(policies.items()):
            blocks = {k: block for k, block in (entry.get(key) or {}).items() if block["n"]}
            value = np.array([block["success"] for block in blocks.values()])
            low, high = np.array([block["ci95"] for block in blocks.values()]).T
            figure.add_scatter(
                x=list(blocks),
                y=value,
                error_y={"array": high - value, "arrayminus": value - low, "thickness": 1.2, "width": 4},
                mode="lines+markers",
                name=html.escape(name),
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": COLOURS[i % len(COLOURS)], "size": 7},
                hovertemplate="k = %{x}: %{y:.1%}",
                row=1,
                col=column,
            )
    figure.update_annotations(font={"size": 14})
    figure.update_xaxes(type="category", title_text="k, samples drawn")
    figure.update_yaxes(tickformat=".0%", range=[0, 1.03])
    figure.update_yaxes(title_text="share of tasks", col=1)
    title = _title("What do more samples buy?", "whiskers: 95 % intervals over tasks")
    legend = {"y": 0.985, "yref": "container", "yanchor": "top", "x": 1, "xanchor": "right"}
    figure.update_layout(template=TEMPLATE, title=title, height=380, legend=legend, showlegend=True)
    return figure


def failure_bars(failures: Failures) -> go.Figure:
    """How often each way to fail occurs, policy beside policy, the most frequent on top."""
    if not failures.counts:
        return _empty("No trajectory failed", "How does it fail?")
    order = sorted(failures.counts, key=lambda c: -sum(_share(failures, c, p) for p in failures.totals))
    figure = go.Figure()
    for i, policy in enumerate(failures.totals):
        counts = [failures.counts[c][policy] for c in order]
        figure.add_bar(
            y=order,
            x=[_share(failures, c, policy) for c in order],
            orientation="h",
            name=f"{html.escape(policy)} ({sum(counts)} of {failures.totals[policy]} failed)",
            text=counts,
            textposition="outside",
            cliponaxis=False,
            marker={"color": COLOURS[i % len(COLOURS)], "opacity": 0.85},
            hovertemplate="%{y}: %{text} trajectories (%{x:.1%})",
        )
    figure.update_xaxes(title_text="share of scored trajectories", tickformat=".0%", showgrid=True)
    figure.update_yaxes(showgrid=False, autorange="reversed")
    height = 170 + len(order) * (18 * len(failures.totals) + 12)
    title = _title("How does it fail?", "numbers: trajectories; each is in one class")
    figure.update_layout(template=TEMPLATE, title=title, barmode="group", bargap=0.25, height=height, showlegend=True)
    figure.update_layout(LONG_LABELS)
    return figure


def _share(failures: Failures, name: str, policy: str) -> float:
    return failures.counts[name][policy] / max(1, failures.totals[policy])


def behaviour_dots(behaviour: Behaviour) -> go.Figure:
    """What each policy does, as a share of the occasions to do it, with 95 % intervals."""
    names = [n for n, own in behaviour.rates.items() if MEASURES[n].share and any(r["occasions"] for r in own.values())][::-1]
    if not names:
        return _empty("There was no occasion for any behaviour", "What does it do differently?")
    policies = list(behaviour.rates[names[0]])
    figure = go.Figure()
    for i, policy in enumerate(policies):
        rates = [behaviour.rates[n][policy] for n in names]
        value = np.array([np.nan if r["value"] is None else r["value"] for r in rates], dtype=float)
        low, high = np.array([r["ci95"] or (np.nan, np.nan) for r in rates], dtype=float).T
        figure.add_scatter(
            x=value,
            y=np.arange(len(names)) + 0.28 * ((len(policies) - 1) / 2 - i),
            error_x={"array": high - value, "arrayminus": value - low, "thickness": 1.5, "width": 4},
            mode="markers",
            name=html.escape(policy),
            marker={"color": COLOURS[i % len(COLOURS)], "size": 9},
            customdata=[f"{MEASURES[n].title}: {r['occasions']} occasions" for n, r in zip(names, rates, strict=True)],
            hovertemplate="%{customdata}, %{x:.1%}",
        )
    titles = [MEASURES[n].title for n in names]
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=titles, showgrid=False, range=[-0.6, len(names) - 0.4])
    figure.update_xaxes(title_text="share of occasions", tickformat=".0%", range=[-0.02, 1.02], showgrid=True)
    title = _title("What does it do differently?", "whiskers: 95 % intervals over tasks")
    figure.update_layout(template=TEMPLATE, title=title, height=150 + 42 * len(names), showlegend=True)
    figure.update_layout(LONG_LABELS)
    return figure


def paired_scatter(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> go.Figure:
    """What moved: the success rate of each task under two policies, as bubbles that count the tasks.

    Args:
        before: trajectories of the first policy.
        after: trajectories of the second policy, on the same tasks.
    """
    names = before[0].policy, after[0].policy
    spots, groups = _moves(task_success(before), task_success(after))
    figure = go.Figure()
    largest = max((len(ids) for ids in spots.values()), default=1)
    for (title, points), colour in zip(groups.items(), (GAIN, LOSS, SAME), strict=True):
        count = [len(spots[p]) for p in points]
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            name=f"{title}: {_count(sum(count))}",
            mode="markers+text",
            text=[str(n) if n > 0.04 * largest else "" for n in count],
            textfont={"color": "white", "size": 12},
            marker={"color": colour, "size": count, "sizemode": "area", "sizeref": 2 * largest / 60**2, "sizemin": 5}
            | {"opacity": 0.9, "line": {"width": 0}},
            customdata=[_some(spots[p]) for p in points],
            hovertemplate="%{x:.0%} → %{y:.0%}<br>%{customdata}",
            cliponaxis=False,
        )
    _draw_guides(figure)
    rate = {"tickformat": ".0%", "dtick": 0.25, "range": [-0.12, 1.12], "showgrid": False}
    figure.update_xaxes(title_text=f"{html.escape(names[0])}: success rate of the task", **rate)
    figure.update_yaxes(title_text=f"{html.escape(names[1])}: success rate of the task", **rate)
    title = _title(f"Which tasks moved from {names[0]} to {names[1]}?", "area and number: tasks with these two rates")
    legend = {"itemsizing": "constant", "orientation": "v", "x": 1.02, "y": 1, "yanchor": "top"}
    figure.update_layout(template=TEMPLATE, title=title, height=540, width=780, legend=legend, margin={"t": 75})
    return figure


def _moves(
    before: Mapping[str, float], after: Mapping[str, float]
) -> tuple[dict[tuple[float, float], list[str]], dict[str, list[tuple[float, float]]]]:
    """Task ids by their two rates, and the pairs of rates by which way they crossed the line."""
    spots: dict[tuple[float, float], list[str]] = defaultdict(list)
    for task in before.keys() & after.keys():
        spots[round(before[task], 3), round(after[task], 3)].append(task)
    groups: dict[str, list[tuple[float, float]]] = {"wrong → right": [], "right → wrong": [], "same side": []}
    for x, y in sorted(spots):
        side = (x > SOLVED) - (y > SOLVED)
        groups["same side" if side == 0 else "right → wrong" if side > 0 else "wrong → right"].append((x, y))
    return spots, groups


def _draw_guides(figure: go.Figure) -> None:
    """The diagonal of no change, and the lines at which a task counts as solved."""
    for x0, y0, x1, y1, dash in [
        (0, 0, 1, 1, "dot"),
        (0.5, -0.12, 0.5, 1.12, "solid"),
        (-0.12, 0.5, 1.12, 0.5, "solid"),
    ]:
        line = {"color": INK if dash == "dot" else GRID, "width": 1 if dash == "dot" else 2, "dash": dash}
        figure.add_shape(type="line", x0=x0, y0=y0, x1=x1, y1=y1, line=line, layer="below")


def _some(ids: Sequence[str], limit: int = 8) -> str:
    rest = f"<br>and {len(ids) - limit} more" if len(ids) > limit else ""
    return "<br>".join(html.escape(i) for i in sorted(ids)[:limit]) + rest


def reward_histogram(policies: Mapping[str, Sequence[Trajectory]]) -> go.Figure:
    """How rewards are spread, policy beside policy. Trajectories without a reward are left out and counted."""
    rewards = {name: [t.reward for t in ts if t.reward is not None] for name, ts in policies.items()}
    everything = np.array([r for own in rewards.values() for r in own], dtype=float)
    if not everything.size:
        return _empty("No trajectory has a reward", "How are rewards spread?")
    edges = np.histogram_bin_edges(everything, bins=min(24, max(4, len(set(everything.round(6))))))
    figure = go.Figure()
    for i, (name, own) in enumerate(rewards.items()):
        left_out = len(policies[name]) - len(own)
        counts, _ = np.histogram(own, bins=edges)
        figure.add_bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=counts / max(1, counts.sum()),
            name=f"{html.escape(name)} (n = {len(own)}{f', {left_out} not scored' if left_out else ''})",
            marker={"color": COLOURS[i % len(COLOURS)], "opacity": 0.85},
            customdata=[f"{a:.2f} to {b:.2f}: {n}" for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)],
            hovertemplate="reward %{customdata} trajectories (%{y:.1%})",
        )
    figure.update_xaxes(title_text="reward of a trajectory")
    figure.update_yaxes(title_text="share of trajectories", tickformat=".0%")
    title = _title("How are rewards spread?")
    figure.update_layout(template=TEMPLATE, title=title, barmode="group", bargap=0.1, height=360, showlegend=True)
    return figure


def rescoring(result: Rescoring) -> go.Figure:
    """The same rollouts under another reward: dead groups by step, and how pairs of trajectories of a group changed."""
    question = f"What would the reward {result.reward} have told apart?"
    if result.groups.empty:
        return _empty("No group is stored", question)
    titles = ("Groups that teach nothing", "Pairs of trajectories")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.16)
    shares = result.groups.groupby("step")[["dead before", "dead now"]].mean().reset_index()
    named = shares.rename(columns={"dead before": "reward used", "dead now": result.reward})
    for colour, column in zip(COLOURS, named.columns[1:], strict=False):
        _draw_line(figure, named, column, colour, legend=True, row=1, col=1)
    table = result.table()[::-1]
    pairs = table[list(PAIRS)].div(table[list(PAIRS)].sum(axis=1).clip(lower=1), axis=0)
    for colour, kind in zip((SAME, LOSS, GAIN, COLOURS[5]), PAIRS, strict=True):
        bar = {"marker_color": colour, "name": kind, "orientation": "h", "customdata": table[kind]}
        figure.add_bar(x=pairs[kind], y=table.index, hovertemplate="%{x:.1%} (%{customdata} pairs)", **bar, row=1, col=2)
    figure.update_xaxes(title_text="optimiser step", row=1, col=1)
    figure.update_yaxes(title_text="share of groups", tickformat=".0%", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="share of pairs", tickformat=".0%", range=[0, 1], row=1, col=2)
    figure.update_annotations(font={"size": 14})
    legend = {"y": 0.005, "yref": "container", "yanchor": "bottom"}
    title, margin = _title(question), {"t": 88, "b": 110}
    figure.update_layout(template=TEMPLATE, title=title, barmode="stack", height=400, legend=legend, margin=margin)
    return figure


# ---- tasks -----------------------------------------------------------------------------------------------------------
def difficulty_counts(tasks: Iterable[Task]) -> go.Figure:
    """How many tasks of each family and difficulty are in each split."""
    counts = Counter((task.split, task.family, task.difficulty) for task in tasks)
    if not counts:
        return _empty("The suite holds no task", "What is in the suite?")
    splits = _ordered({s for s, _, _ in counts}, ("train", "validation", "test"))
    difficulties = _ordered({d for _, _, d in counts}, ("easy", "medium", "hard"))
    sizes = {s: sum(n for (own, _, _), n in counts.items() if own == s) for s in splits}
    titles = [f"{html.escape(s)} ({_count(sizes[s])})" for s in splits]
    figure = make_subplots(1, len(splits), subplot_titles=titles, horizontal_spacing=0.07)
    for i, family in enumerate(sorted({f for _, f, _ in counts})):
        for column, split in enumerate(splits, start=1):
            heights = [counts[split, family, d] for d in difficulties]
            figure.add_bar(
                x=[html.escape(d) for d in difficulties],
                y=heights,
                text=[n or "" for n in heights],
                textposition="outside",
                cliponaxis=False,
                name=html.escape(f"category {family}" if len(family) == 1 else family),
                legendgroup=family,
                showlegend=column == 1,
                marker={"color": COLOURS[i % len(COLOURS)], "opacity": 0.85},
                hovertemplate="%{x}: %{y} tasks",
                row=1,
                col=column,
            )
    figure.update_annotations(font={"size": 14})
    figure.update_xaxes(title_text="difficulty")
    figure.update_yaxes(title_text="tasks", col=1)
    legend = {"y": 0.985, "yref": "container", "yanchor": "top", "x": 1, "xanchor": "right"}
    title = _title("What is in the suite?")
    figure.update_layout(template=TEMPLATE, title=title, barmode="group", height=350, legend=legend, showlegend=True)
    return figure


def _ordered(names: Iterable[str], known: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda n: (known.index(n) if n in known else len(known), n))


def _count(n: int) -> str:
    return f"{n} task" if n == 1 else f"{n} tasks"


def _title(question: str, note: str = "") -> dict[str, Any]:
    """A title that is a question, with a note on how to read the figure under it."""
    return {"text": html.escape(question)} | ({"subtitle": {"text": html.escape(note)}} if note else {})


def _empty(message: str, title: str | None = None) -> go.Figure:
    """A figure that says in words why there is nothing to draw."""
    figure = go.Figure()
    figure.add_annotation(text=message, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper", font={"size": 15})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.update_layout(template=TEMPLATE, title=_title(title or ""), height=220)
    return figure
