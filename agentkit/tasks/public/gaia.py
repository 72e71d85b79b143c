"""GAIA (Mialon et al. 2023, arXiv 2311.12983): a public benchmark of general assistants, as tasks for any
policy.

The data set is gated and must not be reshared: its tasks say so (meta["share"] is False), so the run card
shows ids and scores only; an attachment is copied into the workspace of one trajectory and vanishes with it.
Levels stand in ``difficulty``, so every table by difficulty is the per-level table. Answers are scored by the
official rules. Leaves out a web browser and reading of images or sound, which many of its questions need.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from agentkit.records import DataError, Task
from agentkit.runs import numbered_rows
from agentkit.tasks.public.hub import NumberedRows, hub_rows, to_tasks
from agentkit.tasks.public.rows import Row, text_of
from agentkit.tools import run_program
from agentkit.tools.environments import WorkbenchEnvironment

HUB = "gaia-benchmark/GAIA"
INSTRUCTION = (  # what the paper's prompt asks of the answer's form
    "Give the answer as a number OR as few words as possible OR a comma separated list of numbers and/or "
    "strings. A number has no comma and no unit such as $ or % unless asked for; a string has no article and "
    "no abbreviation."
)


def load(
    source: str | Path = HUB, *, split: str = "validation", levels: Iterable[int] = (1, 2, 3)
) -> list[Task]:
    """GAIA's tasks.

    Args:
        source: the data set's name on the Hugging Face hub, or local files of the same schema: a folder that
            holds metadata.jsonl or Parquet files (with the attachments beside them), or one .jsonl, .json or
            .parquet file.
        split: validation, or test, whose answers are secret: its trajectories stay unscored.
        levels: of difficulty, to keep.

    Returns:
        One task a row: difficulty "level 1" to "level 3"; meta["file"] is the attachment's path where there
        is one.

    Raises:
        DataError: the hub refuses or is out of reach, the folder holds no such split, or a row is broken.
        RunError: a local file cannot be read.
    """
    wanted = set(levels)
    if Path(source).exists():
        rows, attachment = _local(Path(source), split)
    else:
        rows, attachment = hub_rows(str(source), "2023_all", split), partial(_from_hub, str(source), split)
    loaded = to_tasks(rows, lambda number, row: _task(row, split, attachment), str(source))
    return [task for task in loaded.tasks if task.meta["level"] in wanted]


class GaiaEnvironment(WorkbenchEnvironment):
    """A workbench with the task's attachment in its workspace, and nowhere else."""

    def reset(self, file: str = "", **row: Any) -> None:
        """An empty workspace, then this task's attachment."""
        super().reset()
        if file:
            self._workspace.files[_shown_name(file)] = Path(file).read_bytes()

    def python(self, code: str) -> str:
        """Run a Python program; the task's files lie in its folder. It has no network.

        Args:
            code: The program. It shows what it prints.
        """
        return run_program(code, timeout_s=30.0, memory_mb=1024, files=self._workspace.files)[0]


def _shown_name(path: str | Path) -> str:
    """An attachment's name as a workspace takes it."""
    name = Path(path).name
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}", name):
        return name
    suffix = re.search(r"\.[A-Za-z0-9]{1,8}$", name)
    return f"attachment{suffix[0] if suffix else ''}"


# ---- reading
def _local(path: Path, split: str) -> tuple[NumberedRows, Any]:
    """Rows of local files, and where their attachments lie."""
    if not path.is_dir():
        return numbered_rows(path), partial(_from_folder, path.parent)
    for folder in (path / split, path / "2023" / split, path):
        if (folder / "metadata.jsonl").exists():
            return numbered_rows(folder / "metadata.jsonl"), partial(_from_folder, folder)
        if tables := sorted(folder.glob("*.parquet")):
            rows = [row for table in tables for _, row in numbered_rows(table)]
            return enumerate(rows, start=1), partial(_from_folder, folder)
    raise DataError(
        f"{path} holds neither metadata.jsonl nor Parquet files for {split!r}: name the folder that does"
    )


def _task(row: Row, split: str, attachment: Any) -> Task:
    ident, question, answer = (text_of(row, name) for name in ("task_id", "Question", "Final answer"))
    level = str(row.get("Level")).strip()
    if level not in ("1", "2", "3"):
        raise DataError(f"Level is {level[:40]!r}; it must be 1, 2 or 3")
    if not ident.strip() or not question.strip():
        raise DataError(f"task_id is {ident[:40]!r} and Question {question[:40]!r}; neither may be blank")
    meta = {"level": int(level), "share": False, "source": "GAIA", "licence": "gated, must not be reshared"}
    if row.get("file_name"):
        meta["file"] = str(attachment(row))
        question += f"\n\nAttached file: {_shown_name(meta['file'])}"
    return Task(
        id=ident,
        prompt=f"{question}\n\n{INSTRUCTION}",
        answer="" if answer.strip() == "?" else answer,  # the test split hides it: unscored, not wrong
        verifier={"kind": "exact", "rule": "gaia"},
        family="GAIA",
        difficulty=f"level {level}",
        split="test" if split == "test" else "validation",
        meta=meta,
    )


def _from_hub(name: str, split: str, row: Row) -> str:
    """The attachment of a row, in the hub's own cache outside the project."""
    from huggingface_hub import hf_hub_download

    place = row.get("file_path") or f"2023/{split}/{row['file_name']}"
    try:
        return hf_hub_download(name, place, repo_type="dataset")
    except Exception as error:  # the libraries raise many kinds for offline, gated, unknown and damaged
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise DataError(f"its attachment {place!r} could not be loaded from the hub ({why})") from None


def _from_folder(folder: Path, row: Row) -> Path:
    """The attachment of a row: a file inside the folder, never one outside it."""
    name = str(row["file_name"])
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise DataError(
            f"there is no attachment {name[:80]!r} in {folder}: put it there, or remove its file_name"
        )
    return path
