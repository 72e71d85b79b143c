"""Measured numbers as text: cells, sentences, and tables in HTML, Markdown, LaTeX and CSV.

Cells, names and captions may come from a model or a user: each form escapes what it would take for markup,
and CSV what a spreadsheet would take for a formula. Leaves out measuring (summary) and testing (comparison).
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agentkit.evaluation import html
from agentkit.evaluation.statistics import ALPHA, POWER
from agentkit.evaluation.summary import easy_first
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
TESTS = {
    "mcnemar_mid_p": "McNemar's mid-p",
    "mcnemar_exact": "exact McNemar",  # of earlier versions
    "sign_flip_permutation": "sign-flip permutation",
    "seeds_and_tasks_t": "t test over seeds and tasks",
}
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
Figure = tuple[str, float | None, list[float] | None, str]  # title, value, interval, format
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "→": r"$\to$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}
_ONE = r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?"
_NUMBER = re.compile(rf"{_ONE}( ?%)?( \[{_ONE}, {_ONE}\])?( points)?")  # alone, or with its interval


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
    table: pd.DataFrame,
    caption: str = "",
    notes: Iterable[str] = (),
    rules: Iterable[str] = (),
    lead: Iterable[str] = (),
) -> str:
    """The table with its index as first column, a paragraph for each lead above, each note below, and rules
    folded.
    """
    counted = html.paragraphs(rules)
    folded = html.folded("What is counted", counted) if counted else ""
    return html.fragment(html.paragraphs(lead), drawn(table, caption), html.paragraphs(notes), folded)


def drawn(table: pd.DataFrame, caption: str = "") -> html.Markup:
    """The table alone, as a part of something larger."""
    return html.table([table.index.name or "", *table.columns], _rows(table), caption)


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
    above = [rf"\caption{{{_tex(caption)}}}"] * bool(caption) + [rf"\label{{{label}}}"] * bool(label)
    inside = [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule", head, r"\midrule", *body]
    below = [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([r"\begin{table}", r"\centering", *above, *inside, *below])


def to_csv(table: pd.DataFrame) -> str:
    """Comma-separated values; text that a spreadsheet would run as a formula gets a leading apostrophe."""
    text = io.StringIO()  # pandas' own way takes no half of a character
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
    return [
        write_bytes(stem.with_name(stem.name + ending), text.encode("utf-8", "replace"))
        for ending, text in texts.items()
    ]


def _inert(cell: object) -> object:
    if isinstance(cell, str):
        runs = cell[:1] in ("=", "@", "\t", "\r") or (cell[:1] in ("+", "-") and not _NUMBER.fullmatch(cell))
        return f"'{cell}" if runs else cell
    return "" if pd.isna(cell) else cell


def _one_line(cell: object) -> str:
    return " ".join(str(cell).split())


def _tex(cell: object) -> str:
    text = "".join(_LATEX.get(c, c) for c in _one_line(cell))
    return f"{{{text}}}" if text[:1] in ("[", "*") else text  # \\ before it would take them for its own


# ---- a policy's entry of comparison.json
def figures(entry: Mapping[str, Any]) -> Iterator[Figure]:
    """Every number of an entry of comparison.json, in the order of the table."""
    blocks = {"Overall success": entry}
    for label, block in breakdown(entry).items():
        blocks[label[0].upper() + label[1:] + SUBJECTS.get(label, "")] = block
    k = _most(entry)
    if k != "1":
        titles = {"pass_at_k": "pass@", "pass_hat_k": "pass^"}
        blocks |= {f"{title}{k}": entry[key][k] for key, title in titles.items() if key in entry}
    for title, block in blocks.items():
        yield title, block["success"], block["ci95"], "{:.1%}"
    for key, (title, form) in MEASURES.items():
        if key in entry:
            yield title, entry[key], (entry.get("intervals") or {}).get(key), form
    if entry.get("by_template"):
        of = entry["by_template"]
        yield "Overall success, clustered by template", entry["success"], of["ci95"], "{:.1%}"
    if entry.get("unscored"):
        yield "Trajectories not scored", entry["unscored"], None, "{:.0f}"
    for counted, value in zip(("wrong", "right"), entry.get("worst_case") or (), strict=False):
        yield f"… success with these counted {counted}", value, None, "{:.1%}"


def policy_table(policies: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Entries of comparison.json as text with intervals: one row a measure, one column a policy."""
    rows: dict[str, dict[str, str]] = {}
    for policy, entry in policies.items():
        for title, value, interval, form in figures(entry):
            rows.setdefault(title, dict.fromkeys(policies, "–"))[policy] = cell(value, interval, form)
    return text_table(rows)


def family_table(entry: Mapping[str, Any]) -> pd.DataFrame:
    """One policy's entry, overall and by family: success, turns, failed calls by kind, tokens, tasks."""
    rows = {}
    for name, block in {"all": entry, **entry.get("by_category", {})}.items():
        others = {t: cell(block[key], None, MEASURES[key][1]) for key, t in FAMILY_COLUMNS.items()}
        success = cell(block["success"], block["ci95"], "{:.1%}")
        rows[name] = {"success": success, **others, "tasks": block["n"]}
    return text_table(rows)


def level_table(
    policies: Mapping[str, Mapping[str, Any]], paired: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
    """Success by difficulty: one column a policy, one a pair's difference at its level, and the tasks."""
    first, rows = next(iter(policies.values())), {}
    for name in [*easy_first(first["by_difficulty"]), "all"]:
        row = {
            policy: percent(block["success"], block["ci95"])
            for policy, entry in policies.items()
            for block in [entry if name == "all" else entry["by_difficulty"][name]]
            if block["success"] is not None
        }
        for pair in paired:
            block = pair if name == "all" else pair["by_difficulty"].get(name)
            row |= {f"{pair['a']} → {pair['b']}": f"{briefly(block)} at {_level(block)}"} if block else {}
        rows[name] = row | {"tasks": (first if name == "all" else first["by_difficulty"][name])["n"]}
    return text_table(rows)


def cell(value: float | None, interval: list[float] | None, form: str) -> str:
    """A measured number with its interval."""
    if value is None:
        return "–"
    if form == "{:.1%}":
        return percent(value, interval)
    bounds = f" [{form.format(interval[0])}, {form.format(interval[1])}]" if interval else ""
    return form.format(value) + bounds


def breakdown(entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The blocks of a policy or a pair by family, difficulty, case and, where some are new, templates."""
    return {
        title.format(name): block
        for kind, title in KINDS.items()
        for name, block in entry.get(kind, {}).items()
    }


def paired_cells(block: Mapping[str, Any]) -> dict[str, str]:
    """A difference as cells of the table of pairs; one that was not tested has neither p nor verdict."""
    detectable = block.get("detectable")
    template = block.get("by_template")
    return {
        "difference, points": spanned(block["diff"], block["ci95"]),
        "clustered by template": spanned(block["diff"], template["ci95"]) if template else "–",
        "interval": _level(block),
        "p": _p(block.get("p")),
        "p, Holm": _p(block.get("p_holm", block.get("p"))),
        "verdict": block.get("verdict", "" if "p" in block else DESCRIBED),
        "could see, points": "–" if detectable is None else f"{100 * detectable:.1f}",
        "n": str(block["n"]),
    }


def _points(share: float) -> str:
    """A share as signed percentage points."""
    return f"{100 * share:+z.1f}"


def spanned(difference: float, interval: Sequence[float]) -> str:
    """A difference with its interval, in points: +3.1 [+0.4, +5.9]."""
    return f"{_points(difference)} [{_points(interval[0])}, {_points(interval[1])}]"


def _level(block: Mapping[str, Any]) -> str:
    """The level of a difference's intervals: Holm's where it was tested with others."""
    return f"{min(100 * (1 - block.get('level', ALPHA)), 99.9):.3g} %"


def _p(p: float | None) -> str:
    return "–" if p is None else f"{p:.2g}"


# ---- sentences
def briefly(block: Mapping[str, Any]) -> str:
    """A difference with its interval."""
    return f"{spanned(block['diff'], block['ci95'])} points"


def sentence(
    pair: Mapping[str, Any], flips: Mapping[str, list] | None, family: int, unit: str = "tasks"
) -> str:
    """A tested pair in words, with its verdict."""
    test = f"{TESTS.get(pair['test'], pair['test'])}, {pair['n']} {unit}"
    if family > 1 and pair.get("p_holm") is not None:
        test += f"; Holm over {family} comparisons {_p(pair['p_holm'])}, and its level for the interval"
    low, high = pair["ci95"]
    words = f"{pair['a']} → {pair['b']}: {_points(pair['diff'])} points [{_points(low)}, {_points(high)}]"
    words += f" ({test})" if pair["p"] is None else f", p = {_p(pair['p'])} ({test})"
    if template := pair.get("by_template"):
        low, high = template["ci95"]
        words += f"; with {template['n']} templates as the evidence [{_points(low)}, {_points(high)}]"
        words += f", p = {_p(template['p'])}"
    if flips:
        right, wrong = len(flips["to_right"]), len(flips["to_wrong"])
        words += f"; by the first sample {right} tasks went from wrong to right, {wrong} from right to wrong"
    if worst := pair.get("worst_case"):
        words += (
            f"; {_points(worst[0])} to {_points(worst[1])} if the unscored were all against or all for it"
        )
    return f"{words}.{_verdict(pair, unit)}"


def _verdict(pair: Mapping[str, Any], unit: str) -> str:
    if "verdict" not in pair:  # a comparison.json from before there were verdicts
        return ""
    if pair["verdict"] == NO_VERDICT:
        return f" No verdict: {NO_VERDICT.split(',')[0]} say too little of how much seeds differ."
    if pair["verdict"] != NO_DIFFERENCE:
        return f" {pair['b']} is {pair['verdict']}."
    if pair["detectable"] is None:
        return f" No difference shown (with {pair['n']} {unit} the test could have seen none)."
    seen = f"{100 * pair['detectable']:.1f} points with {100 * POWER:.0f} % power"
    return f" No difference shown (the test could have seen {seen})."


def draws(name: str, entry: Mapping[str, Any]) -> str:
    """What sampling more than once would give one policy; empty where it was sampled once."""
    k = _most(entry)
    if k == "1" or not entry["pass_at_k"][k]["n"]:
        return ""
    one, some, every = (
        percent(entry[key][n]["success"])
        for key, n in (("pass_at_k", "1"), ("pass_at_k", k), ("pass_hat_k", k))
    )
    several = f"of {k} samples, {some} if any right one counts, {every} if all must be right"
    return f"{name}: {one} with one sample; {several}."


def _most(entry: Mapping[str, Any]) -> str:
    return max(entry.get("pass_at_k") or ["1"], key=int)
