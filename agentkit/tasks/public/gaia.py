"""GAIA (Mialon et al. 2023, arXiv 2311.12983): a public benchmark of general assistants, as tasks that any
policy can run.

The data set is gated and must not be reshared. Its tasks say so (meta["share"] is False), so the run card
shows ids and scores only; attachments are copied into the workspace of one trajectory and vanish with it.
Levels stand in ``difficulty``, so every table by difficulty is the per-level table. Answers are scored by the
official rules (verifiers.gaia_equal).
Leaves out: a web browser and reading of images or sound, which many of its questions need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentkit.records import Task
from agentkit.runs import RunError, read_rows
from agentkit.tools import Workspace, calculate, run_program
from agentkit.tools.files import MAX_FILE

HUB = "gaia-benchmark/GAIA"
VERIFIER = {"kind": "exact", "rule": "gaia"}
INSTRUCTION = (  # what the paper's prompt asks of the answer's form
    "Give the answer as a number OR as few words as possible OR a comma separated list of numbers and/or "
    "strings. A number has "
    "no comma and no unit such as $ or % unless asked for; a string has no article and no abbreviation."
)
_FIELDS = ("task_id", "Question", "Level", "Final answer")


class GaiaError(RunError):
    """GAIA cannot be loaded, or a row of it is broken. The message says what to do."""


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
        RunError: a file is missing or damaged; as GaiaError where the hub cannot be reached or refuses, the
            folder holds no such split, or a row lacks a field or has a wrong one.
    """
    wanted = set(levels)
    rows, folder = (
        _local(Path(source), split) if Path(source).exists() else (_from_hub(str(source), split), None)
    )
    tasks = [_task(row, f"{source}, row {number}", split, folder) for number, row in enumerate(rows, start=1)]
    seen: set[str] = set()
    for number, task in enumerate(tasks, start=1):
        if task.id in seen:
            raise GaiaError(
                f"{source}, row {number}: task_id {task.id[:60]!r} occurs twice. Remove one of the two rows."
            )
        seen.add(task.id)
    if not tasks:
        raise GaiaError(f"{source} holds no task for the split {split!r}. Check the path and the split.")
    return [task for task in tasks if task.meta["level"] in wanted]


# ---- the environment
# -------------------------------------------------------------------------------------------------
class GaiaEnvironment:
    """A workspace with the task's attachment, programs that can read it, and a calculator.

    The attachment is copied into this trajectory's workspace, which lies in memory, and nowhere else.
    """

    def __init__(self, attachments: Mapping[str, str]):
        self._attachments = attachments  # task id -> path
        self._workspace, self._attached = Workspace(), {}

    def reset(self, task_id: str = "", **row: Any) -> None:
        """An empty workspace, then this task's attachment."""
        self._workspace, self._attached = Workspace(), {}
        if task_id in self._attachments:
            path = Path(self._attachments[task_id])
            self._attached = {_shown_name(path): path.read_bytes()}

    def list_files(self) -> str:
        """List the files of this task: the attachment and what was written."""
        attached = [f"{name} ({len(data)} bytes, attached)" for name, data in self._attached.items()]
        written = [self._workspace.list()] if self._workspace.files or not attached else []
        return "\n".join(attached + written)

    def read_file(self, path: str, start: int = 0) -> str:
        """Read 2000 characters of a text file.

        Args:
            path: The file's name.
            start: The first character to read.
        """
        if path not in self._attached:
            return self._workspace.read(path, start)
        data = self._attached[path]
        if b"\0" in data[:8192]:
            raise ValueError(
                f"{path} is no text; read it with a program in the python tool, where it lies in the folder"
            )
        view = Workspace()
        view.write(path, data.decode("utf-8", "replace")[max(start, 0) :][:MAX_FILE])
        return view.read(path)

    def write_file(self, path: str, content: str) -> str:
        """Write a text file, for later calls of read_file and python.

        Args:
            path: The file's name.
            content: Its text.
        """
        if path in self._attached:
            raise ValueError(f"{path} is the attachment; choose another name")
        return self._workspace.write(path, content)

    def python(self, code: str) -> str:
        """Run a Python program; the task's files lie in its folder. It has no network.

        Args:
            code: The program. It shows what it prints.
        """
        return run_program(
            code, timeout_s=30.0, memory_mb=1024, files=self._attached | self._workspace.files
        )[0]

    def calculator(self, expression: str) -> str:
        """Compute arithmetic.

        Args:
            expression: The arithmetic.
        """
        return calculate(expression)


class SearchingGaiaEnvironment(GaiaEnvironment):
    """The same with a search tool."""

    def __init__(self, attachments: Mapping[str, str], search: Callable[[str], str]):
        super().__init__(attachments)
        self._search = search

    def search(self, query: str) -> str:
        """Search the web.

        Args:
            query: What to look up.
        """
        return self._search(query)


def environment(
    tasks: Iterable[Task], search: Callable[[str], str] | None = None
) -> Callable[[], GaiaEnvironment]:
    """What ``agentkit.rollout`` takes as ``environment``: makes one environment a trajectory.

    Args:
        tasks: GAIA tasks; their attachments become available to their own trajectories.
        search: what the search tool does, such as ``lambda query: search_passages(WebSearch(), query, 3)``;
            None leaves it out.
    """
    attachments = {task.id: task.meta["file"] for task in tasks if "file" in task.meta}
    if search is None:
        return partial(GaiaEnvironment, attachments)
    return partial(SearchingGaiaEnvironment, attachments, search)


def _shown_name(path: str | Path) -> str:
    """An attachment's name as a workspace takes it."""
    name = Path(path).name
    plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}", name)
    return name if plain else "attachment" + (re.search(r"\.[A-Za-z0-9]{1,8}$", name) or [""])[0]


# ---- reading
# ---------------------------------------------------------------------------------------------------------
def _from_hub(name: str, split: str) -> list[dict[str, Any]]:
    """Rows of the hub's data set, in the hub's own cache outside the project; attachments are fetched beside
    them.
    """
    from datasets import load_dataset
    from huggingface_hub import hf_hub_download

    try:
        rows = list(load_dataset(name, "2023_all", split=split))
        for row in rows:
            if row.get("file_name"):
                place = row.get("file_path") or f"2023/{split}/{row['file_name']}"
                row["file_path"] = hf_hub_download(name, place, repo_type="dataset")
    except Exception as error:  # the libraries raise many kinds for offline, gated, unknown and damaged
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise GaiaError(
            f"{name} could not be loaded from the hub ({why}). It is gated: accept its terms on its hub "
            "page, log in with "
            "'hf auth login' and be online, or pass the path of local files of the same schema."
        ) from None
    return rows


def _local(path: Path, split: str) -> tuple[list[dict[str, Any]], Path]:
    """Rows of local files, and the folder their attachments are relative to."""
    if path.is_dir():
        found = next((f for f in (path / split, path / "2023" / split, path) if _tables(f)), None)
        if found is None:
            raise GaiaError(
                f"{path} holds neither metadata.jsonl nor Parquet files for {split!r}. Name the folder that "
                "does."
            )
        return [row for file in _tables(found) for row in read_rows(file)], found
    return read_rows(path), path.parent


def _tables(folder: Path) -> list[Path]:
    named = folder / "metadata.jsonl"
    return [named] if named.exists() else sorted(folder.glob("*.parquet"))


def _task(row: Mapping[str, Any], place: str, split: str, folder: Path | None) -> Task:
    missing = [name for name in _FIELDS if row.get(name) is None]
    if missing:
        raise GaiaError(
            f"{place} lacks {', '.join(repr(name) for name in missing)}. GAIA's rows have "
            f"{', '.join(_FIELDS)}."
        )
    level = str(row["Level"]).strip()
    if level not in ("1", "2", "3"):
        raise GaiaError(f"{place}: Level is {str(row['Level'])[:40]!r}; it must be 1, 2 or 3.")
    for name in ("task_id", "Question", "Final answer"):
        if not isinstance(row[name], str) or (name != "Final answer" and not row[name].strip()):
            raise GaiaError(f"{place}: {name} is {str(row[name])[:40]!r}; it must be text.")
    meta: dict[str, Any] = {
        "level": int(level),
        "share": False,
        "source": "GAIA",
        "licence": "gated, must not be reshared",
    }
    if row.get("file_name"):
        meta["file"] = str(_attachment(row, place, folder))
    answer = (
        "" if row["Final answer"].strip() == "?" else row["Final answer"]
    )  # the test split hides it: unscored, not wrong
    return Task(
        id=row["task_id"],
        prompt=row["Question"]
        + (f"\n\nAttached file: {_shown_name(meta['file'])}" if "file" in meta else "")
        + f"\n\n{INSTRUCTION}",
        answer=answer,
        verifier=VERIFIER,
        family="GAIA",
        difficulty=f"level {level}",
        split="test" if split == "test" else "validation",
        meta=meta,
    )


def _attachment(row: Mapping[str, Any], place: str, folder: Path | None) -> Path:
    """The attachment of a row. Local rows name a file inside their folder, never one outside it."""
    if folder is None:
        return Path(row["file_path"])
    name = str(row["file_name"])
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise GaiaError(
            f"{place}: there is no attachment {name[:80]!r} in {folder}. Put it there, or remove its "
            "file_name."
        )
    return path
