"""Notes on tasks, kept in the run as notes.jsonl: a line for each change, the newest line of a task counts.

Appending with one write loses nothing when two notebooks have the same run open. An empty text takes a note
back. Leaves out writing them (compare, in a browser).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentkit.runs import Run, append_jsonl, read_jsonl

FILE = "notes.jsonl"
FIELDS = ("task_id", "text", "at")
NOTE_LIMIT = 20_000  # characters


def read_notes(run: Run) -> dict[str, str]:
    """The run's notes by task id."""
    return {row["task_id"]: row["text"] for row in note_rows(run) if row["text"]}


def note_rows(run: Run) -> list[dict[str, str]]:
    """The newest row of each task: task_id, text, at (ISO 8601, UTC). Lines of another form are left out."""
    path = run.file(FILE)
    rows = [row for row in read_jsonl(path) if is_note(row)] if path.exists() else []
    return list({row["task_id"]: row for row in sorted(rows, key=lambda row: row["at"])}.values())


def add_notes(run: Run, rows: Iterable[dict[str, str]]) -> None:
    """Append notes to the run. Raises OSError when the file cannot be written."""
    for row in rows:
        append_jsonl(run.file(FILE), {name: row[name] for name in FIELDS})


def is_note(row: Any) -> bool:
    """Whether a JSON value is a note."""
    values = [row.get(name) for name in FIELDS] if isinstance(row, dict) else [None]
    return all(isinstance(value, str) and len(value) <= NOTE_LIMIT for value in values)
