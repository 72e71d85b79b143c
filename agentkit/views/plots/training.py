"""Metrics of a training as curves, one question a figure, and single-task training round by round.

Leaves out what they mean (diagnostics) and pictures of drawings (widgets.gallery).
"""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from agentkit.views.plots.style import BELOW, COLOURS, dressed, empty, escaped, whiskers

POINTS = 400  # of one curve; more would not be seen and make a browser slow
PANEL_WIDTH, PANEL_HEIGHT = 3, 215  # panels a row; pixels a row of panels

# column, panel title, unit; a unit that starts with "share" is drawn in percent
PANELS = (
    ("reward", "Reward", "reward per trajectory"),
    ("success", "Success", "share of trajectories"),
    ("reward_std", "Spread in the batch", "standard deviation"),
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


def training_curves(metrics: pd.DataFrame) -> go.Figure:
    """What training did: one small panel a question, for the columns that exist.

    Args:
        metrics: train/metrics.jsonl, one row a step.
    """
    if metrics.empty:
        return empty("No optimiser step is recorded yet")
    metrics = _by_step(metrics)
    every = -(-int(metrics["step"].max() - metrics["step"].min() + 1) // POINTS)
    panels = [panel for panel in PANELS if _has(metrics, panel[0])]
    if not panels:
        raise ValueError(
            f"no column to draw: expected some of {[p[0] for p in PANELS]}, found {list(metrics.columns)}."
        )
    rows = -(-len(panels) // PANEL_WIDTH)
    titles = [title for _, title, _ in panels]
    figure = make_subplots(
        rows, PANEL_WIDTH, subplot_titles=titles, horizontal_spacing=0.09, vertical_spacing=0.3 / rows
    )
    for i, (column, _, unit) in enumerate(panels):
        subplot = {"row": i // PANEL_WIDTH + 1, "col": i % PANEL_WIDTH + 1}
        drawn = [column, *["val_success"] * (column == "success" and _has(metrics, "val_success"))]
        _draw_panel(figure, metrics, drawn, every, subplot)
        _style_axes(figure, metrics, drawn, unit, **subplot)
        if i + PANEL_WIDTH >= len(panels):
            figure.update_xaxes(title_text="optimiser step", **subplot)
    window = _window(len(metrics))
    dots = f"at most one in {every} steps" if every > 1 else "each step"
    note = f"lines: mean of about {window} steps; dots: {dots}" if window > 1 else "one dot a step"
    return dressed(figure, "What did training do?", note, height=PANEL_HEIGHT * rows + 150, **BELOW)


def curve(metrics: pd.DataFrame, columns: str | Sequence[str], title: str, unit: str) -> go.Figure:
    """One question over the steps of a run.

    Args:
        metrics: train/metrics.jsonl, one row a step.
        columns: one or several columns; "val_success" is drawn with its interval.
        title: the question.
        unit: of the y axis; a unit that starts with "share" is drawn in percent.
    """
    if metrics.empty:
        return empty("No optimiser step is recorded yet", title)
    columns = [columns] if isinstance(columns, str) else list(columns)
    if missing := [column for column in columns if column not in metrics]:
        raise ValueError(f"the metrics hold no {missing}; there are {list(metrics.columns)}.")
    if not (columns := [column for column in columns if _has(metrics, column)]):
        return empty("No step measured it", title)
    metrics = _by_step(metrics)
    figure = go.Figure()
    for i, column in enumerate(columns):
        if column == "val_success":
            _draw_validation(figure, metrics, COLOURS[i % len(COLOURS)])
        else:
            draw_line(figure, metrics, column, COLOURS[i % len(COLOURS)], legend=True)
    _style_axes(figure, metrics, columns, unit)
    return dressed(figure, title, height=360, xaxis_title_text="optimiser step", showlegend=len(columns) > 1)


def _draw_panel(
    figure: go.Figure, metrics: pd.DataFrame, drawn: list[str], every: int, subplot: dict[str, int]
) -> None:
    column = drawn[0]
    components = [c for c in metrics.columns if c.startswith("reward/") and _has(metrics, c)]
    parts = components if column == "reward" else []
    draw_line(figure, metrics, column, COLOURS[0], legend=bool(parts), every=every, **subplot)
    for i, part in enumerate(parts, start=1):
        colour = COLOURS[1 + i % (len(COLOURS) - 1)]
        draw_line(figure, metrics, part, colour, legend=True, every=every, **subplot)
    if "val_success" in drawn:
        validated = metrics.dropna(subset=["val_success"])
        validated = validated if len(validated) <= POINTS else _thinned(validated, every)
        _draw_validation(figure, validated, COLOURS[1], **subplot)


def draw_line(
    figure: go.Figure,
    metrics: pd.DataFrame,
    column: str,
    colour: str,
    *,
    legend: bool,
    every: int = 1,
    **subplot: int,
) -> None:
    """A light moving average over the raw points, of which ``every`` so many steps keep one."""
    rows = metrics[["step", column]].dropna(ignore_index=True)  # thinned after: not every step measures all
    window = _window(len(rows))
    mean = rows[column].rolling(window, center=True, min_periods=1).mean()
    rows = _thinned(rows, every)
    name = escaped(column.removeprefix("reward/").replace("_", " "))
    shared = {"x": rows["step"], "legendgroup": column, "name": name, **subplot}
    figure.add_scatter(
        y=rows[column],
        mode="markers",
        marker={"color": colour, "size": 4, "opacity": 0.35 if window > 1 else 1.0},
        showlegend=False,
        hovertemplate="step %{x}: %{y:.4g}",
        **shared,
    )
    figure.add_scatter(
        y=mean[rows.index],
        mode="lines",
        line={"color": colour, "width": 2},
        showlegend=legend,
        hoverinfo="skip",
        **shared,
    )


def _draw_validation(figure: go.Figure, metrics: pd.DataFrame, colour: str, **subplot: int) -> None:
    rows = metrics.dropna(subset=["val_success"])
    spread = None
    if _has(rows, "val_ci_low") and _has(rows, "val_ci_high"):
        spread = whiskers(rows["val_success"], rows["val_ci_low"], rows["val_ci_high"], color=colour, width=3)
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
        **subplot,
    )


def _style_axes(
    figure: go.Figure, metrics: pd.DataFrame, columns: Sequence[str], unit: str, **subplot: int
) -> None:
    largest = max(float(metrics[column].max()) for column in columns)
    figure.update_yaxes(title_text=escaped(unit), **subplot)
    if unit.startswith("share"):
        bound = [0, 1.03] if largest > 0.5 else None
        if largest == 0:  # plotly would make 100 % of it
            bound = [0, 0.05]
        ticks = ".0%" if largest > 0.05 else ".1%"
        figure.update_yaxes(tickformat=ticks, range=bound, rangemode="tozero", **subplot)
    elif min(float(metrics[column].min()) for column in columns) >= 0:
        figure.update_yaxes(rangemode="tozero", **subplot)


def _by_step(metrics: pd.DataFrame) -> pd.DataFrame:
    """Sorted, with the last row of each step: a resumed run writes some steps twice."""
    if "step" not in metrics:
        raise ValueError(f"the metrics have no column 'step'; there are {list(metrics.columns)}.")
    return metrics.drop_duplicates("step", keep="last").sort_values("step")


def _has(table: pd.DataFrame, column: str) -> bool:
    return column in table and bool(pd.to_numeric(table[column], errors="coerce").notna().any())


def _thinned(rows: pd.DataFrame, every: int) -> pd.DataFrame:
    """The last row of every so many steps, counted from the end."""
    return rows[~((rows["step"].max() - rows["step"]) // every).duplicated(keep="last")]


def _window(n: int) -> int:
    """Steps in the moving average: about a fifteenth of the run, odd, and 1 for short runs."""
    return 1 if n < 20 else n // 15 // 2 * 2 + 1


SOLVING = (("pixels", "right pixels, best so far"), ("success", "share of a round's rollouts that solve it"))


def solving(rounds: pd.DataFrame, drawing: str) -> go.Figure:
    """A drawing's two curves for each method and seed, over the rollouts so far."""
    question = f"How fast is {drawing} drawn?"
    rows = rounds[rounds["drawing"] == drawing]
    if rows.empty:
        return empty("There are no rounds yet.", question)
    figure = make_subplots(cols=2, subplot_titles=[title for _, title in SOLVING], horizontal_spacing=0.1)
    methods = list(dict.fromkeys(rows["method"]))
    for (method, seed), own in rows.groupby(["method", "seed"], sort=False):
        look = {"color": COLOURS[methods.index(method) % len(COLOURS)]}
        for column, (name, _) in enumerate(SOLVING, start=1):
            first = column == 1 and seed == rows.loc[rows["method"] == method, "seed"].iloc[0]
            figure.add_scatter(
                x=own["rollouts"],
                y=own[name],
                name=method,
                legendgroup=method,
                showlegend=bool(first),
                mode="lines+markers",
                line=look,
                marker={"size": 5},
                hovertext=f"{method}, seed {seed}",
                row=1,
                col=column,
            )
    figure.update_xaxes(title_text="rollouts", rangemode="tozero")
    figure.update_yaxes(tickformat=".0%", range=[-0.03, 1.03])
    return dressed(
        figure,
        question,
        "a line for each seed; training ends once a rollout solves it",
        height=400,
        **BELOW | {"margin": {"t": 115, "b": 90}},
    )
