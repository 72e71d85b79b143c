"""Measured numbers and tests as text: cells of tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from agentkit.evaluation.statistics import POWER
from agentkit.evaluation.tables import percent

TESTS = {
    "mcnemar_exact": "exact McNemar",
    "sign_flip_permutation": "sign-flip permutation",
    "seeds_and_tasks_t": "t test over seeds and tasks",
}


def column(entry: dict[str, Any], rows: list[tuple[str, tuple[str, ...]]]) -> pd.Series:
    """One policy's column of the table: a cell for each row title."""
    return pd.Series({title: _cell(entry, path) for title, path in rows}, dtype=object)


def _at(entry: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = entry
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


_FORMATS = {"turns_solved": "{:.2f}", "tool_failure_rate": "{:.1%}", "cost_per_solved": "{:.3g}"}


def _cell(entry: dict[str, Any], path: tuple[str, ...]) -> str:
    value = _at(entry, path)
    if isinstance(value, dict):
        return "–" if value["success"] is None else percent(value["success"], value["ci95"])
    if value is None:
        return "–"
    interval = (entry.get("intervals") or {}).get(path[-1])
    if path[-1] == "tool_failure_rate":
        return percent(value, interval)
    shown = _FORMATS.get(path[-1], "{:.0f}")
    bounds = f" [{shown.format(interval[0])}, {shown.format(interval[1])}]" if interval else ""
    return shown.format(value) + bounds


def tidy_rows(name: str, entry: dict[str, Any], rows: list[tuple[str, tuple[str, ...]]]) -> Iterable[tuple]:
    """One policy's figures as rows: policy, title, value, low, high, n."""
    for title, path in rows:
        value = _at(entry, path)
        if isinstance(value, dict):
            yield name, title, value["success"], *(value["ci95"] or (None, None)), value["n"]
        elif value is not None:
            yield (
                name,
                title,
                value,
                *((entry.get("intervals") or {}).get(path[-1]) or (None, None)),
                entry["n"],
            )


def paired_cells(block: dict[str, Any]) -> dict[str, str]:
    """A tested difference as cells of the table of pairs."""
    low, high = block["ci95"]
    seen = block.get("detectable")
    return {
        "difference, points": f"{points(block['diff'])} [{points(low)}, {points(high)}]",
        "p": f"{block['p']:.2g}",
        "p, Holm": f"{block.get('p_holm', block['p']):.2g}",
        "verdict": block.get("verdict", ""),
        "could see, points": "–" if seen is None else f"{100 * seen:.1f}",
        "n": str(block["n"]),
    }


def briefly(block: dict[str, Any]) -> str:
    """A verdict, with what the test could have seen where it saw nothing."""
    if block["verdict"] != "no difference shown" or block["detectable"] is None:
        return block["verdict"]
    return f"{block['verdict']}, could have seen {100 * block['detectable']:.1f}"


def points(share: float) -> str:
    """A share as signed percentage points."""
    return f"{100 * share:+.1f}"


def sentence(
    pair: dict[str, Any], flips: dict[str, list[str]] | None, family: int, unit: str = "tasks"
) -> str:
    """A tested pair in words, with its verdict."""
    low, high = pair["ci95"]
    holm = f"; Holm over {family} comparisons {pair['p_holm']:.2g}" if family > 1 and "p_holm" in pair else ""
    moved = (
        f"; {len(flips['to_right'])} tasks went from wrong to right, {len(flips['to_wrong'])} from right to "
        "wrong"
        if flips
        else ""
    )
    return (
        f"{pair['a']} → {pair['b']}: {points(pair['diff'])} points [{points(low)}, {points(high)}], p = "
        f"{pair['p']:.2g} "
        f"({TESTS.get(pair['test'], pair['test'])}, {pair['n']} "
        f"{unit}{holm}){moved}.{_verdict_sentence(pair, unit)}"
    )


def _verdict_sentence(pair: dict[str, Any], unit: str) -> str:
    if "verdict" not in pair:  # a comparison.json from before there were verdicts
        return ""
    if pair["verdict"] != "no difference shown":
        return f" {pair['b']} is {pair['verdict']}."
    if pair["detectable"] is None:
        return f" No difference shown (with {pair['n']} {unit} the test could have seen none)."
    return f" No difference shown (the test could have seen {100 * pair['detectable']:.1f} points with {100 * POWER:.0f} % power)."
