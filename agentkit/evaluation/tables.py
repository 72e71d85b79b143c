"""Tables as text to read and to paste: HTML, Markdown, LaTeX and CSV of one pandas table.

Cells, names and captions may come from a model or a user: each form escapes what it would take for markup,
and CSV what a spreadsheet would take for a formula. Leaves out what stands in the tables (evaluation,
behaviour).
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from agentkit.runs import write_bytes

CSS = """
.agentkit-comparison {font: 14px/1.5 system-ui, sans-serif; color: inherit; overflow-x: auto}
.agentkit-comparison table {border-collapse: collapse; margin: 0 0 .6em; font-variant-numeric: tabular-nums}
.agentkit-comparison caption {text-align: left; padding: 0 .8em .4em 0; opacity: .75}
.agentkit-comparison :is(th, td) {padding: .3em .9em; text-align: right; white-space: nowrap; background: none}
.agentkit-comparison :is(th, td) {border: 0 solid rgba(128, 128, 128, .4); border-bottom-width: 1px}
.agentkit-comparison tbody th {text-align: left !important; font-weight: normal}
.agentkit-comparison :is(th, td).words {text-align: left !important; white-space: normal}
.agentkit-comparison td.long {min-width: 22em}
.agentkit-comparison p {margin: .2em 0}
.agentkit-comparison summary {cursor: pointer; margin: .4em 0}
"""
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


def to_html(
    table: pd.DataFrame, caption: str = "", notes: Iterable[str] = (), rules: Iterable[str] = ()
) -> str:
    """The table with its index as first column, the caption above, a paragraph for each note below, and rules
    folded.
    """
    words = [_look(table[c]) for c in table.columns]
    head = "".join(f"<th{w}>{html.escape(str(c))}</th>" for c, w in zip(table.columns, words, strict=True))
    body = "".join(
        f"<tr><th>{html.escape(str(row))}</th>"
        + "".join(f"<td{w}>{html.escape(str(c))}</td>" for c, w in zip(cells, words, strict=True))
        + "</tr>"
        for row, cells in zip(table.index, table.to_numpy(), strict=True)
    )
    rows = f"<thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody>"
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    folded = "".join(f"<p>{html.escape(rule)}</p>" for rule in rules)
    below += f"<details><summary>What is counted</summary>{folded}</details>" if folded else ""
    shown = f"<style>{CSS}</style><table><caption>{html.escape(caption)}</caption>{rows}</table>{below}"
    return f'<div class="agentkit-comparison">{shown}</div>'


def _look(column: pd.Series) -> str:
    if max((len(cell) for cell in column if isinstance(cell, str)), default=0) > 40:
        return ' class="words long"'
    return "" if column.empty or column.map(_numeric).any() else ' class="words"'


def _numeric(cell: object) -> bool:
    """Whether a cell is a number, or text that starts with one; a dash stands for a number that is missing."""
    return not isinstance(cell, str) or cell.lstrip("+-−")[:1].isdigit() or cell.startswith("–")


def to_markdown(table: pd.DataFrame) -> str:
    """A pipe table with the index as first column."""
    rows = [["", *table.columns], ["---", *["---:"] * len(table.columns)]]
    rows += [[row, *cells] for row, cells in zip(table.index, table.to_numpy(), strict=True)]
    plain = [
        [_one_line(c).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for c in cells]
        for cells in rows
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in plain)


def to_latex(table: pd.DataFrame, caption: str = "", label: str = "") -> str:
    """A booktabs table with the index as first column. Needs \\usepackage{booktabs}."""
    rows = [[row, *cells] for row, cells in zip(table.index, table.to_numpy(), strict=True)]
    head, *body = (" & ".join(map(_tex, cells)) + r" \\" for cells in [["", *table.columns], *rows])
    inside = [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule", head, r"\midrule", *body]
    inside += [r"\bottomrule", r"\end{tabular}"]
    above = [rf"\caption{{{_tex(caption)}}}"] * bool(caption) + [rf"\label{{{label}}}"] * bool(label)
    return "\n".join([r"\begin{table}", r"\centering", *above, *inside, r"\end{table}", ""])


def to_csv(table: pd.DataFrame, index: bool = True) -> str:
    """Comma-separated values; text that a spreadsheet would run as a formula gets a leading apostrophe."""
    safe = table.map(_inert).rename(columns=_inert)
    return safe.rename(index=_inert).to_csv(index=index)


def save(table: pd.DataFrame, stem: str | Path, caption: str = "") -> list[Path]:
    """Write the table beside each other as stem.md, stem.tex and stem.csv."""
    stem = Path(stem)
    texts = {
        ".md": to_markdown(table),
        ".tex": to_latex(table, caption, f"tab:{stem.name}"),
        ".csv": to_csv(table),
    }
    return [
        write_bytes(stem.with_name(stem.name + end), text.encode("utf-8", "replace"))
        for end, text in texts.items()
    ]


def _inert(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "@", "\t", "\r") else cell


def _one_line(cell: object) -> str:
    return " ".join(str(cell).split())


def _tex(cell: object) -> str:
    return "".join(_LATEX.get(c, c) for c in _one_line(cell))
