"""What is in a suite. Leaves out whether it is any good (tasks.audit)."""

from collections import Counter
from collections.abc import Iterable

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from agentkit.evaluation.summary import easy_first
from agentkit.records import Task
from agentkit.runs import SPLITS
from agentkit.views.plots.style import BESIDE_TITLE, COLOURS, dressed, empty, escaped


def difficulty_counts(tasks: Iterable[Task]) -> go.Figure:
    """How many tasks of each family and difficulty are in each split."""
    labels = [(task.split, escaped(task.family), escaped(task.difficulty)) for task in tasks]
    if not labels:
        return empty("The suite holds no task", "What is in the suite?")
    rows = [(*label, n) for label, n in sorted(Counter(labels).items())]
    table = pd.DataFrame(rows, columns=["split", "family", "difficulty", "tasks"])
    splits = [split for split in SPLITS if split in set(table["split"])]
    order = {"split": splits, "difficulty": easy_first(set(table["difficulty"]))}
    figure = px.bar(
        table, x="difficulty", y="tasks", color="family", facet_col="split", text="tasks", barmode="group",
        category_orders=order, color_discrete_sequence=COLOURS, opacity=0.85,
    )  # fmt: skip
    sizes = table.groupby("split")["tasks"].sum()
    figure.for_each_annotation(
        lambda a: a.update(text=f"{a.text.split('=')[1]} ({sizes[a.text.split('=')[1]]})")
    )
    return dressed(figure, "What is in the suite?", height=350, legend_title_text="", **BESIDE_TITLE)
