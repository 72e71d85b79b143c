"""The look that every figure shares: it reads on light and on dark pages and has a question for a title.

Leaves out the page around a figure (evaluation/style.css).
"""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
import plotly.offline

from agentkit.evaluation.html import Markup, safe

# Ink has a contrast of at least 4:1 and colours of 3:1, on white and on JupyterLab's dark page.
INK, GRID = "#757c88", "rgba(128,128,128,0.22)"
COLOURS = ("#2f81d6", "#d9700f", "#1f9a74", "#a371d9", "#d0506f", "#8f8136")
GAIN, LOSS = COLOURS[2], COLOURS[1]

_AXIS = {
    "gridcolor": GRID,
    "linecolor": GRID,
    "zeroline": False,
    "automargin": True,
    "title": {"standoff": 8, "font": {"size": 13}},
}
TEMPLATE = go.layout.Template(
    layout={
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": COLOURS,
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": INK},
        "title": {"x": 0, "xref": "paper", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
        | {"pad": {"t": 16}, "font": {"size": 17}, "subtitle": {"font": {"size": 13}}},
        "xaxis": _AXIS | {"showgrid": False, "dividercolor": GRID},
        "yaxis": _AXIS | {"ticklabelstandoff": 4},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 60, "r": 20, "t": 90, "b": 55},
        "hoverlabel": {"font": {"size": 12}},
    }
)
# on narrow pages a legend takes several lines
BELOW = {"legend": {"y": 0.005, "yref": "container", "yanchor": "bottom"}, "margin": {"t": 88, "b": 90}}
# long labels push the plot to the right: title and legend start at the figure's edge, the legend lies below
LONG_LABELS = {
    "title_x": 0,
    "title_xref": "container",
    "title_pad_l": 16,
    "legend_x": 0.02,
    "legend_xref": "container",
    "legend_y": 0.005,
    "legend_yref": "container",
    "legend_yanchor": "bottom",
    "margin_t": 80,
    "margin_b": 90,
}


def escaped(text: Any) -> str:
    """Text for a figure, where plotly would take some of it for markup."""
    return str(safe(text))


def dressed(figure: go.Figure, question: str, note: str = "", **layout: Any) -> go.Figure:
    """The figure in the shared look, titled with its question; a note below it says how to read it."""
    title = {"text": escaped(question)} | ({"subtitle": {"text": escaped(note)}} if note else {})
    figure.update_annotations(font={"size": 14})  # titles of panels
    figure.layout.margin = {}  # plotly.express sets one, too narrow for the title and the legend
    return figure.update_layout(template=TEMPLATE, title=title, **layout)


def empty(message: str, question: str = "") -> go.Figure:
    """A figure that says in words why there is nothing to draw."""
    figure = dressed(go.Figure(), question, height=220, xaxis_visible=False, yaxis_visible=False)
    return figure.add_annotation(
        text=message, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper", font={"size": 15}
    )


def library() -> Markup:
    """Plotly's library (5 MB), for a page whose figures come without it."""
    return Markup(f"<script>{plotly.offline.get_plotlyjs()}</script>")


def embedded(figure: Any, *, with_library: bool) -> Markup:
    """A figure, or its JSON, for a page; the first on it brings plotly's library along."""
    config = {"displaylogo": False, "responsive": True}
    drawn = plotly.io.to_html(
        figure, config, full_html=False, include_plotlyjs=with_library, validate=False, include_mathjax=False
    )
    return Markup(f'<div class="plot">{drawn}</div>')


def whiskers(value: Any, low: Any, high: Any, **look: Any) -> dict[str, Any]:
    """Plotly's error bars from the ends of intervals, each an array."""
    value, low, high = (np.asarray(ends, dtype=float) for ends in (value, low, high))
    return {"array": high - value, "arrayminus": value - low, "thickness": 1.2, "width": 4} | look
