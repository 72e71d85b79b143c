"""What is in a suite. Leaves out whether it is any good (tasks.audit)."""

from collections import Counter
from collections.abc import Iterable

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from agentkit.evaluation.summary import easy_first
from agentkit.records import Task
from agentkit.runs import SPLITS
from agentkit.views.plots.style import BESIDE_TITLE, COLOURS, counted, dressed, empty, escaped


def difficulty_counts(tasks: Iterable[Task]) -> go.Figure:
    """How many tasks of each family and difficulty are in each split."""
    counts = Counter((task.split, task.family, task.difficulty) for task in tasks)
    if not counts:
        return empty("The suite holds no task", "What is in the suite?")
    found = {s for s, _, _ in counts}
    splits = [s for s in SPLITS if s in found] + sorted(found.difference(SPLITS))
    difficulties = easy_first({d for _, _, d in counts})
    sizes = {s: sum(n for (split, _, _), n in counts.items() if split == s) for s in splits}
    titles = [f"{escaped(s)} ({counted(sizes[s])})" for s in splits]
    figure = make_subplots(1, len(splits), subplot_titles=titles, horizontal_spacing=0.07)
    for i, family in enumerate(sorted({f for _, f, _ in counts})):
        for column, split in enumerate(splits, start=1):
            heights = [counts[split, family, d] for d in difficulties]
            figure.add_bar(
                x=[escaped(d) for d in difficulties],
                y=heights,
                text=[n or "" for n in heights],
                textposition="outside",
                cliponaxis=False,
                name=escaped(f"family {family}" if len(family) == 1 else family),
                legendgroup=family,
                showlegend=column == 1,
                marker={"color": COLOURS[i % len(COLOURS)], "opacity": 0.85},
                hovertemplate="%{x}: %{y} tasks",
                row=1,
                col=column,
            )
    figure.update_xaxes(title_text="difficulty")
    return dressed(
        figure,
        "What is in the suite?",
        yaxis_title_text="tasks",
        barmode="group",
        height=350,
        showlegend=True,
        **BESIDE_TITLE,
    )
