"""Metrics of a training as curves, one panel a question.

Leaves out what they mean (diagnostics).
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from agentkit.views.plots.style import COLOURS, dressed, empty, escaped, whiskers

POINTS = 400  # of one curve; more would not be seen and make a browser slow
PANEL_WIDTH, PANEL_HEIGHT = 3, 235  # panels a row; pixels a row of panels
LEGEND = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "top", "align": "left"} | {
    "showarrow": False
}

# columns, of which the first has to be there; panel title; unit: one that starts with "share" is in percent
PANELS = (
    (("reward",), "Reward", "reward per trajectory"),
    (("success", "audit_success"), "Success", "share of trajectories"),
    (("reward_std",), "Spread in the batch", "standard deviation"),
    (("kl",), "KL to the reference", "nats per token"),
    (("entropy",), "Entropy of the policy", "nats per token"),
    (("grad_norm",), "Gradient norm", "L2 norm"),
    (("clip_fraction",), "Clipped tokens", "share of tokens"),
    (("dead_groups", "stuck"), "Dead groups", "share of groups"),
    (("turns", "tool_calls"), "Turns", "turns per trajectory"),
    (("tool_failure_rate",), "Failed tool calls", "share of calls"),
    (("completion_tokens",), "Length", "tokens per trajectory"),
    (("audit_disagreement",), "Refused by the auditor", "share of liked answers"),
    (("mismatch",), "Engine against trainer", "nats per token"),
    # diagnostics measures these on trajectories
    (("identical",), "Repeated trajectories", "share in unsolved groups"),
    (("no_tool",), "No tool called", "share of trajectories"),
    (("truncated",), "Ended by a limit", "share of trajectories"),
    (("seconds",), "Step time", "seconds per step"),
)


def training_curves(metrics: pd.DataFrame) -> go.Figure:
    """What training did: one small panel a question, for the columns that exist.

    Args:
        metrics: train/metrics.jsonl, one row a step.
    """
    metrics = metrics.drop_duplicates("step", keep="last").sort_values("step")  # a resumed run repeats some
    own = [
        ((column,), column, "as the lab file counts it") for column in metrics if column.startswith("lab/")
    ]
    panels = [panel for panel in (*PANELS, *own) if _has(metrics, panel[0][0])]
    if not panels:
        return empty("No optimiser step is recorded yet", "What did training do?")
    rows, window = -(-len(panels) // PANEL_WIDTH), _window(len(metrics))
    gap = {"horizontal_spacing": 0.12, "vertical_spacing": 0.38 / rows}
    figure = make_subplots(rows, PANEL_WIDTH, subplot_titles=[title for _, title, _ in panels], **gap)
    for i, (wanted, _, unit) in enumerate(panels):
        place = {"row": i // PANEL_WIDTH + 1, "col": i % PANEL_WIDTH + 1}
        columns, before = [column for column in wanted if _has(metrics, column)], len(figure.data)
        if columns == ["reward"]:
            columns += [c for c in metrics if c.startswith("reward/") and _has(metrics, c)]
        for column, colour in zip(columns, COLOURS * len(columns), strict=False):
            _draw_line(figure, metrics, column, colour, **place)
        if "success" in columns and _has(metrics, "val_success"):
            _draw_validation(figure, metrics, **place)
            columns.append("val_success")
        _style_axes(figure, metrics[columns].max(axis=None), metrics[columns].min(axis=None), unit, **place)
        curves = [curve for curve in figure.data[before:] if curve.mode != "markers"]
        if len(curves) > 1:
            x, y = (axis.domain[0] for axis in figure.get_subplot(**place))
            figure.add_annotation(text=_legend(curves), x=x, y=y - 0.1 / rows, **LEGEND)
    note = "by optimiser step; " + (
        f"lines: mean of about {window} steps" if window > 1 else "one dot a step"
    )
    size = {"height": PANEL_HEIGHT * rows + 130, "margin_t": 100, "showlegend": False}
    return dressed(figure, "What did training do?", note, **size)


def _legend(curves: Sequence[go.Scatter]) -> str:
    """The curves' names in their colours, two in a line: a panel on a narrow page holds no more."""
    names = [
        f'<span style="font-size:11px"><span style="color:{c.line.color}">●</span> {c.name}</span>'
        for c in curves
    ]
    return "<br>".join("  ".join(names[i : i + 2]) for i in range(0, len(names), 2))


def _draw_line(figure: go.Figure, metrics: pd.DataFrame, column: str, colour: str, **place: int) -> None:
    """A light moving average over the raw points, of which POINTS are kept."""
    rows = metrics[["step", column]].dropna(ignore_index=True)  # thinned after: not every step measures all
    window = _window(len(rows))
    mean = rows[column].rolling(window, center=True, min_periods=1).mean()
    rows = rows.iloc[:: -(-len(rows) // POINTS)]
    name = escaped(column.removeprefix("reward/").replace("_", " "))
    shared = {"x": rows["step"], "name": name, **place}
    dots = {"color": colour, "size": 4, "opacity": 0.35 if window > 1 else 1.0}
    line = {"color": colour, "width": 2}
    figure.add_scatter(
        y=rows[column], mode="markers", marker=dots, hovertemplate="step %{x}: %{y:.4g}", **shared
    )
    figure.add_scatter(y=mean[rows.index], mode="lines", line=line, hoverinfo="skip", **shared)


def _draw_validation(figure: go.Figure, metrics: pd.DataFrame, **place: Any) -> None:
    rows = metrics.dropna(subset=["val_success"])
    figure.add_scatter(
        x=rows["step"],
        y=rows["val_success"],
        error_y=whiskers(
            rows["val_success"], rows["val_ci_low"], rows["val_ci_high"], color=COLOURS[2], width=3
        ),
        mode="markers+lines",
        name="validation, 95 % interval",
        marker={"color": COLOURS[2], "size": 7, "symbol": "diamond"},
        line={"color": COLOURS[2], "width": 1, "dash": "dot"},
        hovertemplate="step %{x}: %{y:.1%}",
        **place,
    )


def _style_axes(figure: go.Figure, most: float, least: float, unit: str, **place: int) -> None:
    figure.update_yaxes(
        title_text=unit,
        rangemode="tozero" if least >= 0 else "normal",
        exponentformat="e" if abs(most) < 1e-3 else "B",  # 1e-7, which "B" would write as 100n
        **place,
    )
    if unit.startswith("share"):
        bound = [0, 1.03] if most > 0.5 else [0, 0.05] if most == 0 else None  # plotly would make it 100 %
        figure.update_yaxes(tickformat=".0%" if most > 0.05 else ".1%", range=bound, **place)


def _has(table: pd.DataFrame, column: str) -> bool:
    return column in table and bool(pd.to_numeric(table[column], errors="coerce").notna().any())


def _window(n: int) -> int:
    """Steps in the moving average: about a fifteenth of the run, odd, and 1 for short runs."""
    return 1 if n < 20 else n // 15 // 2 * 2 + 1
