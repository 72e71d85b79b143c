"""Tables as text to read and to paste: HTML, Markdown, LaTeX and CSV of one pandas table.

Cells, names and captions may come from a model or a user: each form escapes what it would take for markup,
and CSV what a spreadsheet would take for a formula. Leaves out what stands in the tables.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agentkit.evaluation import html
from agentkit.runs import write_bytes

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "→": r"$\to$",
}
_LATEX |= {c: f"\\{c}" for c in "&%$#_{}"}


def percent(share: float, interval: Sequence[float] | None = None) -> str:
    """A share as text: 0.52 -> "52.0 %", with its interval "52.0 % [45.0, 59.0]"."""
    bounds = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    return f"{100 * share:.1f} %{bounds}"


def text_table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of named cells as plain objects: a column of strings could not hold half a character."""
    names = dict.fromkeys(name for row in rows.values() for name in row)
    cells = [[row.get(name, "–") for name in names] for row in rows.values()]
    index, columns = (pd.Index(list(labels), dtype=object) for labels in (rows, names))
    return pd.DataFrame(cells, index, columns, dtype=object)


def to_html(
    table: pd.DataFrame, caption: str = "", notes: Iterable[str] = (), rules: Iterable[str] = ()
) -> str:
    """The table with its index as first column, a paragraph for each note below, and rules folded."""
    counted = html.paragraphs(rules)
    folded = html.folded("What is counted", counted) if counted else ""
    return html.fragment(drawn(table, caption), html.paragraphs(notes), folded)


def drawn(table: pd.DataFrame, caption: str = "") -> html.Markup:
    """The table alone, as a part of something larger."""
    return html.table(["", *table.columns], _rows(table), caption)


def _rows(table: pd.DataFrame) -> list[list]:
    return [[name, *cells] for name, cells in zip(table.index, table.to_numpy(), strict=True)]


def to_markdown(table: pd.DataFrame) -> str:
    """A pipe table with the index as first column."""
    rows = [["", *table.columns], ["---", *["---:"] * len(table.columns)], *_rows(table)]
    plain = [
        [_one_line(c).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for c in cells]
        for cells in rows
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in plain)


def to_latex(table: pd.DataFrame, caption: str = "", label: str = "") -> str:
    """A booktabs table with the index as first column. Needs \\usepackage{booktabs}."""
    head, *body = (" & ".join(map(_tex, cells)) + r" \\" for cells in [["", *table.columns], *_rows(table)])
    inside = [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule", head, r"\midrule", *body]
    inside += [r"\bottomrule", r"\end{tabular}"]
    above = [rf"\caption{{{_tex(caption)}}}"] * bool(caption) + [rf"\label{{{label}}}"] * bool(label)
    return "\n".join([r"\begin{table}", r"\centering", *above, *inside, r"\end{table}", ""])


def to_csv(table: pd.DataFrame) -> str:
    """Comma-separated values; text that a spreadsheet would run as a formula gets a leading apostrophe."""
    text = io.StringIO()
    rows = [["", *table.columns], *_rows(table)]
    csv.writer(text, lineterminator="\n").writerows([_inert(cell) for cell in row] for row in rows)
    return text.getvalue()


def save(table: pd.DataFrame, stem: str | Path, caption: str = "") -> list[Path]:
    """Write the table beside each other as stem.md, stem.tex and stem.csv."""
    stem = Path(stem)
    texts = {
        ".md": to_markdown(table),
        ".tex": to_latex(table, caption, f"tab:{stem.name}"),
        ".csv": to_csv(table),
    }
    paths = []
    for ending, text in texts.items():
        path = stem.with_name(stem.name + ending)
        paths.append(write_bytes(path, text.encode("utf-8", "replace")))
    return paths


def _inert(cell: object) -> object:
    if isinstance(cell, str):
        return f"'{cell}" if cell[:1] in ("=", "@", "\t", "\r") else cell
    return "" if pd.isna(cell) else cell


def _one_line(cell: object) -> str:
    return " ".join(str(cell).split())


def _tex(cell: object) -> str:
    return "".join(_LATEX.get(c, c) for c in _one_line(cell))
