"""Measured numbers and tests as text: cells of tables and sentences.

Leaves out measuring (summary) and testing (comparison).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from agentkit.evaluation.statistics import POWER
from agentkit.evaluation.summary import easy_first
from agentkit.evaluation.tables import percent, text_table

CATEGORIES = {"A": "math", "B": "multi-hop", "C": "code"}  # what the families of the default suite are about
NO_DIFFERENCE = "no difference shown"
TESTS = {
    "mcnemar_exact": "exact McNemar",
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
Figure = tuple[str, float | None, list[float] | None, int, str]  # title, value, interval, tasks, format


# ---- tables
def figures(entry: Mapping[str, Any]) -> Iterator[Figure]:
    """Every number of an entry of comparison.json, in the order of the table."""
    blocks = {"Overall success": entry}
    if "greedy" in entry:
        blocks["Overall success, greedy"] = entry["greedy"]
    for name, block in entry["by_category"].items():
        about = f" ({CATEGORIES[name]})" if name in CATEGORIES else ""
        blocks[f"Category {name}{about}"] = block
    blocks |= {
        f"Difficulty {name}": entry["by_difficulty"][name] for name in easy_first(entry["by_difficulty"])
    }
    k = _most(entry)
    if k != "1":
        titles = {"pass_at_k": "pass@", "pass_hat_k": "pass^", "maj_at_k": "maj@"}
        blocks |= {f"{title}{k}": entry[key][k] for key, title in titles.items()}
    for title, block in blocks.items():
        yield title, block["success"], block["ci95"], block["n"], "{:.1%}"
    for key, (title, form) in MEASURES.items():
        if key in entry:
            yield title, entry[key], (entry.get("intervals") or {}).get(key), entry["n"], form
    if entry.get("unscored"):
        yield "Trajectories not scored", entry["unscored"], None, entry["n"], "{:.0f}"


def policy_table(policies: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Entries of comparison.json as text with intervals: one row a measure, one column a policy."""
    rows: dict[str, dict[str, str]] = {}
    for policy, entry in policies.items():
        for title, value, interval, _, form in figures(entry):
            rows.setdefault(title, dict.fromkeys(policies, "–"))[policy] = _cell(value, interval, form)
    return text_table(rows)


def family_table(entry: Mapping[str, Any]) -> pd.DataFrame:
    """One policy's entry, overall and by family: success, turns, failed calls by kind, tokens, tasks."""
    rows = {}
    for name, block in {"all": entry, **entry["by_category"]}.items():
        row = {"success": _cell(block["success"], block["ci95"], "{:.1%}")}
        for key, title in FAMILY_COLUMNS.items():
            row[title] = _cell(block[key], None, MEASURES[key][1])
        rows[name] = row | {"tasks": block["n"]}
    return text_table(rows)


def _cell(value: float | None, interval: list[float] | None, form: str) -> str:
    if value is None:
        return "–"
    if form == "{:.1%}":
        return percent(value, interval)
    bounds = f" [{form.format(interval[0])}, {form.format(interval[1])}]" if interval else ""
    return form.format(value) + bounds


def breakdown(pair: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A pair's tests by category and difficulty."""
    blocks = {f"category {name}": block for name, block in pair.get("by_category", {}).items()}
    return blocks | {f"difficulty {name}": block for name, block in pair.get("by_difficulty", {}).items()}


def paired_cells(block: Mapping[str, Any]) -> dict[str, str]:
    """A tested difference as cells of the table of pairs."""
    detectable, (low, high) = block.get("detectable"), block["ci95"]
    return {
        "difference, points": f"{_points(block['diff'])} [{_points(low)}, {_points(high)}]",
        "p": f"{block['p']:.2g}",
        "p, Holm": f"{block.get('p_holm', block['p']):.2g}",
        "verdict": block.get("verdict", ""),
        "could see, points": "–" if detectable is None else f"{100 * detectable:.1f}",
        "n": str(block["n"]),
    }


def _points(share: float) -> str:
    """A share as signed percentage points."""
    return f"{100 * share:+.1f}"


# ---- sentences
def briefly(block: Mapping[str, Any]) -> str:
    """A difference with its verdict, and with what the test could have seen where it saw nothing."""
    verdict = block["verdict"]
    if verdict == NO_DIFFERENCE and block["detectable"] is not None:
        verdict += f", could have seen {100 * block['detectable']:.1f}"
    return f"{_points(block['diff'])} points ({verdict})"


def sentence(
    pair: Mapping[str, Any], flips: Mapping[str, list] | None, family: int, unit: str = "tasks"
) -> str:
    """A tested pair in words, with its verdict."""
    test = f"{TESTS.get(pair['test'], pair['test'])}, {pair['n']} {unit}"
    if family > 1 and "p_holm" in pair:
        test += f"; Holm over {family} comparisons {pair['p_holm']:.2g}"
    low, high = pair["ci95"]
    difference = f"{_points(pair['diff'])} points [{_points(low)}, {_points(high)}]"
    words = f"{pair['a']} → {pair['b']}: {difference}, p = {pair['p']:.2g} ({test})"
    if flips:
        right, wrong = len(flips["to_right"]), len(flips["to_wrong"])
        words += f"; {right} tasks went from wrong to right, {wrong} from right to wrong"
    return f"{words}.{_verdict(pair, unit)}"


def _verdict(pair: Mapping[str, Any], unit: str) -> str:
    if "verdict" not in pair:  # a comparison.json from before there were verdicts
        return ""
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
    keys = ("pass_at_k", "maj_at_k", "pass_hat_k")
    some, majority, every = (percent(entry[key][k]["success"]) for key in keys)
    return (
        f"{name}: {percent(entry['pass_at_k']['1']['success'])} with one sample; of {k} samples, {some} if any "
        f"right one counts, {majority} by majority, {every} if all must be right."
    )


def _most(entry: Mapping[str, Any]) -> str:
    return max(entry.get("pass_at_k") or ["1"], key=int)
