"""Measured numbers as text: cells, sentences, and tables in HTML, Markdown, LaTeX and CSV.

Cells, names and captions may come from a model or a user: each form escapes what it would take for markup.
Leaves out measuring (summary) and testing (comparison).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agentkit.evaluation import html
from agentkit.evaluation.statistics import ALPHA, POWER
from agentkit.runs import write_bytes

KINDS = {  # how the blocks of an entry or a pair are called
    "by_category": "family {}",
    "by_difficulty": "difficulty {}",
    "by_case": "case {}",
    "by_novelty": "{} templates",
}
# what the families of the default suite are about
SUBJECTS = {"family A": " (math)", "family B": " (multi-hop)", "family C": " (code)"}
NO_DIFFERENCE = "no difference shown"
NO_VERDICT = "two seeds, no verdict"
TESTS = {"paired_t": "paired t test", "seeds_and_tasks_t": "t test over seeds and tasks"}
MEASURES = {  # key of an entry: title and format
    "turns": ("Average turns", "{:.2f}"),
    "turns_solved": ("Average turns (successful tasks)", "{:.2f}"),
    "tool_failure_rate": ("Tool call failure rate", "{:.1%}"),
    "malformed_rate": ("… malformed calls", "{:.1%}"),
    "unknown_tool_rate": ("… calls of unknown tools", "{:.1%}"),
    "failed_rate": ("… calls that failed", "{:.1%}"),
    "tokens": ("Average tokens per task", "{:.0f}"),
}


# ---- cells
def percent(share: float, interval: Sequence[float] | None = None) -> str:
    """A share as text: 0.52 -> "52.0 %", with its interval "52.0 % [45.0, 59.0]"."""
    bounds = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    return f"{100 * share:.1f} %{bounds}"


def cell(value: float | None, form: str) -> str:
    """A measured number; a dash where there was nothing to measure."""
    if value is None:
        return "–"
    return percent(value) if form == "{:.1%}" else form.format(value)


def success(block: Mapping[str, Any]) -> str:
    """The success of a policy or a block, with its interval."""
    return "–" if block["success"] is None else percent(block["success"], block["ci95"])


def points(share: float) -> str:
    """A share as signed percentage points."""
    return f"{100 * share:+z.1f}"


def spanned(difference: float, interval: Sequence[float]) -> str:
    """A difference with its interval, in points: +3.1 [+0.4, +5.9]."""
    return f"{points(difference)} [{points(interval[0])}, {points(interval[1])}]"


def p_value(p: float | None) -> str:
    """A p as text."""
    return "–" if p is None else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def said_p(p: float) -> str:
    """A p in a sentence."""
    return f"p {p_value(p)}" if p < 1e-4 else f"p = {p_value(p)}"


def verdict(p: float, difference: float) -> str:
    """What a corrected p says of a difference."""
    if p >= ALPHA:
        return NO_DIFFERENCE
    return "better" if difference > 0 else "worse"


# ---- tables
def text_table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of named cells as plain objects: a column of strings could not hold half a character."""
    return pd.DataFrame.from_dict(rows, "index", dtype=object).fillna("–")


def to_html(table: pd.DataFrame, caption: str = "", notes: Iterable[str] = ()) -> str:
    """The table with its index as first column, and a paragraph for each note below."""
    return html.fragment(drawn(table, caption), html.paragraphs(notes))


def drawn(table: pd.DataFrame, caption: str = "") -> html.Markup:
    """The table alone, as a part of something larger. Lists and an index named "id" hold tasks: links."""
    rows = [
        [html.task_links(*dict.fromkeys(cell)) if isinstance(cell, list) else cell for cell in row]
        for row in table.itertuples(name=None)
    ]
    if table.index.name == "id":
        rows = [[html.task_links(task), *cells] for task, *cells in rows]
    return html.table([table.index.name or "", *table.columns], rows, caption)


def to_markdown(table: pd.DataFrame) -> str:
    """A pipe table with the index as first column."""
    rows = [["", *table.columns], ["---", *["---:"] * len(table.columns)], *table.itertuples(name=None)]
    cells = [[" ".join(str(c).split()).replace("|", "\\|").replace("<", "&lt;") for c in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def save(table: pd.DataFrame, stem: str | Path, caption: str = "") -> list[Path]:
    """Write the table beside each other as stem.md, stem.tex (which needs booktabs) and stem.csv."""
    stem, look = Path(stem), "l" + "r" * len(table.columns)
    said = caption.translate({ord(c): f"\\{c}" for c in "%&_#$"}) or None
    texts = {
        ".md": to_markdown(table),
        ".tex": table.to_latex(escape=True, caption=said, label=f"tab:{stem.name}", column_format=look),
        ".csv": table.to_csv(),
    }
    return [
        write_bytes(stem.with_name(stem.name + ending), text.encode("utf-8", "replace"))
        for ending, text in texts.items()
    ]


# ---- entries of comparison.json
def policy_table(policies: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Entries as text with intervals: one row a measure, one column a policy."""
    columns = {}
    for policy, entry in policies.items():
        blocks = {label[0].upper() + label[1:] + SUBJECTS.get(label, ""): block
                  for label, block in breakdown(entry).items()}  # fmt: skip
        if "k" in entry:
            blocks |= {f"pass@{entry['k']}": entry["pass_at_k"], f"pass^{entry['k']}": entry["pass_hat_k"]}
        columns[policy] = {"Overall success": success(entry)}
        columns[policy] |= {label: success(block) for label, block in blocks.items()}
        columns[policy] |= {title: cell(entry[key], form) for key, (title, form) in MEASURES.items()}
        if entry["unscored"]:
            columns[policy]["Trajectories not scored"] = f"{entry['unscored']}"
    titles = dict.fromkeys(title for own in columns.values() for title in own)
    return text_table({title: {p: own.get(title) for p, own in columns.items()} for title in titles})


def breakdown(entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The blocks of a policy or a pair by family, difficulty, case and, where some are new, templates."""
    return {title.format(name): block for kind, title in KINDS.items() for name, block in entry[kind].items()}


def paired_cells(block: Mapping[str, Any]) -> dict[str, str]:
    """A difference as cells of the table of pairs; one that was not tested has neither p nor verdict."""
    detectable, template = block.get("detectable"), block.get("by_template")
    return {
        "difference, points": spanned(block["diff"], block["ci95"]),
        "clustered by template": spanned(block["diff"], template["ci95"]) if template else "–",
        "p": p_value(block.get("p")),
        "p, Holm": p_value(block.get("p_holm")),
        "verdict": block.get("verdict", "described, not tested"),
        "could see, points": "–" if detectable is None else f"{100 * detectable:.1f}",
        "n": str(block["n"]),
    }


def sentence(pair: Mapping[str, Any], flips: Mapping[str, list], family: int) -> str:
    """A tested pair in words, with its verdict."""
    test = [TESTS[pair["test"]], f"{pair['n']} tasks"]
    if pair["p"] is not None:
        test.append(said_p(pair["p"]))
        test += [f"{said_p(pair['p_holm'])} after Holm over {family} comparisons"] * (family > 1)
    words = f"{pair['a']} → {pair['b']}: {spanned(pair['diff'], pair['ci95'])} points ({', '.join(test)})."
    if template := pair.get("by_template"):
        span = f"[{points(template['ci95'][0])}, {points(template['ci95'][1])}]"
        words += f" Clustered by its {template['n']} templates: {span}, {said_p(template['p'])}."
    right, wrong = len(flips["to_right"]), len(flips["to_wrong"])
    words += f" By the first sample {right} tasks went from wrong to right, {wrong} from right to wrong."
    if pair["verdict"] == NO_VERDICT:
        return f"{words} No verdict: two seeds say too little of how much seeds differ."
    if pair["verdict"] != NO_DIFFERENCE:
        return f"{words} {pair['b']} is {pair['verdict']}."
    if pair["detectable"] is None:
        return f"{words} No difference shown: so few tasks can show none."
    seen = f"{100 * pair['detectable']:.1f} points with {100 * POWER:.0f} % power"
    return f"{words} No difference shown (a single test could have seen {seen})."
