"""Notes on tasks, kept in the run as notes.jsonl: one line each time a note changes, the newest line of a
task counts.

Appending with one write loses nothing when two notebooks have the same run open. An empty text takes a note
back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentkit.runs import Run, append_jsonl, read_jsonl

FILE = "notes.jsonl"
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
    """Append notes to the run.

    Raises:
        ValueError: a row is not a note. Nothing is written then.
        OSError: the file cannot be written.
    """
    rows = [{key: row[key] for key in ("task_id", "text", "at")} if is_note(row) else None for row in rows]
    if None in rows:
        raise ValueError(f"a note has task_id, text and at, each a text, of at most {NOTE_LIMIT} characters.")
    for row in rows:
        append_jsonl(run.file(FILE), row)


def is_note(row: Any) -> bool:
    """Whether a JSON value is a note."""
    values = [row.get(key) for key in ("task_id", "text", "at")] if isinstance(row, dict) else [None]
    return all(isinstance(value, str) and len(value) <= NOTE_LIMIT for value in values)
