"""Measured numbers as text: cells, sentences, and tables in HTML, Markdown, LaTeX and CSV.

Cells, names and captions may come from a model or a user: each form escapes what it would take for markup.
Leaves out measuring (summary) and testing (comparison).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agentkit.evaluation import html
from agentkit.evaluation.statistics import POWER
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
DESCRIBED = "described, not tested"
TESTS = {"paired_t": "paired t test", "seeds_and_tasks_t": "t test over seeds and tasks"}
MEASURES = {  # key of an entry: title and format
    "turns": ("Average turns", "{:.2f}"),
    "turns_solved": ("Average turns (successful tasks)", "{:.2f}"),
    "tool_failure_rate": ("Tool call failure rate", "{:.1%}"),
    "malformed_rate": ("… malformed calls", "{:.1%}"),
    "unknown_tool_rate": ("… calls of unknown tools", "{:.1%}"),
    "failed_rate": ("… calls that failed", "{:.1%}"),
    "tokens": ("Average tokens per task", "{:.0f}"),
    "tokens_per_solved": ("Tokens per solved task", "{:.0f}"),
}
FAMILY_COLUMNS = {
    "turns": "turns",
    "tool_failure_rate": "failed calls",
    "malformed_rate": "malformed",
    "unknown_tool_rate": "unknown tool",
    "failed_rate": "tool failed",
    "tokens": "tokens",
}


def percent(share: float, interval: Sequence[float] | None = None) -> str:
    """A share as text: 0.52 -> "52.0 %", with its interval "52.0 % [45.0, 59.0]"."""
    bounds = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    return f"{100 * share:.1f} %{bounds}"


def cell(value: float | None, form: str, interval: Sequence[float] | None = None) -> str:
    """A measured number, with its interval where it is a share that has one."""
    if value is None:
        return "–"
    return percent(value, interval) if form == "{:.1%}" else form.format(value)


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
    return html.table([table.index.name or "", *table.columns], _rows(table), caption)


def _rows(table: pd.DataFrame) -> list[list]:
    return [[name, *cells] for name, cells in zip(table.index, table.to_numpy(), strict=True)]


def to_markdown(table: pd.DataFrame) -> str:
    """A pipe table with the index as first column."""
    rows = [["", *table.columns], ["---", *["---:"] * len(table.columns)], *_rows(table)]
    cells = [[" ".join(str(c).split()).replace("|", "\\|").replace("<", "&lt;") for c in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def to_latex(table: pd.DataFrame, caption: str = "", label: str = "") -> str:
    """A booktabs table with the index as first column. Needs \\usepackage{booktabs}."""
    look = "l" + "r" * len(table.columns)
    said = caption.translate({ord(c): f"\\{c}" for c in "%&_#$"})
    return table.to_latex(escape=True, caption=said or None, label=label or None, column_format=look)


def save(table: pd.DataFrame, stem: str | Path, caption: str = "") -> list[Path]:
    """Write the table beside each other as stem.md, stem.tex and stem.csv."""
    stem = Path(stem)
    texts = {
        ".md": to_markdown(table),
        ".tex": to_latex(table, caption, f"tab:{stem.name}"),
        ".csv": table.to_csv(),
    }
    return [
        write_bytes(stem.with_name(stem.name + ending), text.encode("utf-8", "replace"))
        for ending, text in texts.items()
    ]


# ---- a policy's entry of comparison.json
def figures(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every number of an entry of comparison.json with its title, in the order of the table."""
    yield "Overall success", _success(entry)
    for label, block in breakdown(entry).items():
        yield label[0].upper() + label[1:] + SUBJECTS.get(label, ""), _success(block)
    k = _most(entry)
    if k != "1":
        yield f"pass@{k}", _success(entry["pass_at_k"][k])
        yield f"pass^{k}", _success(entry["pass_hat_k"][k])
    for key, (title, form) in MEASURES.items():
        yield title, cell(entry[key], form)
    if entry["unscored"]:
        yield "Trajectories not scored", f"{entry['unscored']}"


def _success(block: Mapping[str, Any]) -> str:
    return cell(block["success"], "{:.1%}", block["ci95"])


def policy_table(policies: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Entries of comparison.json as text with intervals: one row a measure, one column a policy."""
    rows: dict[str, dict[str, str]] = {}
    for policy, entry in policies.items():
        for title, text in figures(entry):
            rows.setdefault(title, dict.fromkeys(policies, "–"))[policy] = text
    return text_table(rows)


def family_table(entry: Mapping[str, Any]) -> pd.DataFrame:
    """One policy's entry, overall and by family: success, turns, failed calls by kind, tokens, tasks."""
    rows = {}
    for name, block in {"all": entry, **entry["by_category"]}.items():
        others = {title: cell(block[key], MEASURES[key][1]) for key, title in FAMILY_COLUMNS.items()}
        rows[name] = {"success": _success(block), **others, "tasks": block["n"]}
    return text_table(rows)


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
        "verdict": block.get("verdict", DESCRIBED),
        "could see, points": "–" if detectable is None else f"{100 * detectable:.1f}",
        "n": str(block["n"]),
    }


def points(share: float) -> str:
    """A share as signed percentage points."""
    return f"{100 * share:+z.1f}"


def spanned(difference: float, interval: Sequence[float]) -> str:
    """A difference with its interval, in points: +3.1 [+0.4, +5.9]."""
    return f"{points(difference)} [{points(interval[0])}, {points(interval[1])}]"


def briefly(block: Mapping[str, Any]) -> str:
    """A difference with its interval."""
    return f"{spanned(block['diff'], block['ci95'])} points"


def p_value(p: float | None) -> str:
    """A p as text."""
    return "–" if p is None else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


# ---- sentences
def sentence(pair: Mapping[str, Any], flips: Mapping[str, list], family: int) -> str:
    """A tested pair in words, with its verdict."""
    test = [TESTS[pair["test"]], f"{pair['n']} tasks"]
    if pair["p"] is not None:
        test.append(said_p(pair["p"]))
        test += [f"{said_p(pair['p_holm'])} after Holm over {family} comparisons"] * (family > 1)
    words = f"{pair['a']} → {pair['b']}: {briefly(pair)} ({', '.join(test)})."
    if template := pair.get("by_template"):
        span = f"[{points(template['ci95'][0])}, {points(template['ci95'][1])}]"
        words += f" Clustered by its {template['n']} templates: {span}, {said_p(template['p'])}."
    right, wrong = len(flips["to_right"]), len(flips["to_wrong"])
    words += f" By the first sample {right} tasks went from wrong to right, {wrong} from right to wrong."
    return words + _verdict(pair)


def said_p(p: float) -> str:
    """A p in a sentence."""
    return f"p {p_value(p)}" if p < 1e-4 else f"p = {p_value(p)}"


def _verdict(pair: Mapping[str, Any]) -> str:
    if pair["verdict"] == NO_VERDICT:
        return " No verdict: two seeds say too little of how much seeds differ."
    if pair["verdict"] != NO_DIFFERENCE:
        return f" {pair['b']} is {pair['verdict']}."
    if pair["detectable"] is None:
        return " No difference shown: so few tasks can show none."
    seen = f"{100 * pair['detectable']:.1f} points with {100 * POWER:.0f} % power"
    return f" No difference shown (a single test could have seen {seen})."


def draws(name: str, entry: Mapping[str, Any]) -> str:
    """What sampling more than once would give one policy; empty where it was sampled once."""
    k = _most(entry)
    if k == "1" or not entry["pass_at_k"][k]["n"]:
        return ""
    one, best, worst = (
        percent(entry[key][n]["success"])
        for key, n in (("pass_at_k", "1"), ("pass_at_k", k), ("pass_hat_k", k))
    )
    return f"{name}: {one} with one sample; of {k} samples, {best} if the best counts, {worst} if the worst."


def _most(entry: Mapping[str, Any]) -> str:
    return max(entry["pass_at_k"], key=int)
