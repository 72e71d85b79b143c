"""GAIA (Mialon et al. 2023, arXiv 2311.12983), a benchmark of general assistants, as tasks for any policy.

The data set is gated and must not be reshared: its tasks say so (meta["share"] is False), so the run card
shows ids and scores only; an attachment is copied into the workspace of one trajectory and vanishes with it.
Levels stand in ``difficulty``, so every table by difficulty is the per-level table. Answers are scored by the
official rules. A spreadsheet is read as text, by a program in the sandbox; a picture or sound is named, and
no tool reads it. Leaves out a web browser, which many of its questions need.
"""

import os
import re
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from agentkit.records import DataError, Task
from agentkit.rows import numbered_rows
from agentkit.sandbox import AT_ONCE
from agentkit.sandbox.run import MAX_INPUT
from agentkit.tasks.public.hub import hub_rows, local_file, to_tasks
from agentkit.tasks.public.rows import Row, text_of
from agentkit.tools import run_program
from agentkit.tools.environments import WorkbenchEnvironment
from agentkit.tools.files import MAX_SHOWN
from agentkit.tools.runtime import tool

HUB = "gaia-benchmark/GAIA"
INSTRUCTION = (  # what the paper's prompt asks of the answer's form
    "Give the answer as a number OR as few words as possible OR a comma separated list of numbers and/or "
    "strings. A number has no comma and no unit such as $ or % unless asked for; a string has no article and "
    "no abbreviation."
)
UNREAD = re.compile(r"\.(?:png|jpe?g|gif|bmp|tiff?|webp|mp[34]|wav|m4a|ogg|mov|avi|webm)$", re.IGNORECASE)
# a program, after a line that names file, start and most: whoever wrote the spreadsheet, only the sandbox
# meets it
SHEETS = """
import re, zipfile
from xml.etree import ElementTree
book = zipfile.ZipFile(name)
def tree(path): return ElementTree.fromstring(book.read(path))
def all_of(node, tag): return [n for n in node.iter() if n.tag.endswith("}" + tag)]
def text(node): return "".join(n.text or "" for n in all_of(node, "t"))
titles = [sheet.get("name") for sheet in all_of(tree("xl/workbook.xml"), "sheet")]
strings = "xl/sharedStrings.xml"
shared = [text(n) for n in all_of(tree(strings), "si")] if strings in book.namelist() else []
paths = [p for p in book.namelist() if re.fullmatch(r"xl/worksheets/sheet[0-9]+[.]xml", p)]
lines = []
for number, path in enumerate(sorted(paths, key=lambda p: int(re.findall("[0-9]+", p)[-1]))):
    lines.append("# " + (titles[number] if number < len(titles) else path))
    for row in all_of(tree(path), "row"):
        cells = []
        for cell in all_of(row, "c"):
            column = 0
            for letter in re.match("[A-Z]*", cell.get("r") or "")[0]:
                column = 26 * column + ord(letter) - 64
            cells += [""] * (min(column, 1000) - 1 - len(cells))
            value = "".join(n.text or "" for n in all_of(cell, "v"))
            kind = cell.get("t")
            if kind == "s":
                value = shared[int(value)] if value.isdigit() and int(value) < len(shared) else ""
            cells.append(text(cell) if kind == "inlineStr" else value)
        lines.append("\\t".join(cells))
print("\\n".join(lines)[start:start + most] or f"(nothing from character {start} on)")
"""


def load(
    source: str | Path = HUB,
    *,
    split: str = "validation",
    levels: Iterable[int] = (1, 2, 3),
    limit: int | None = None,
) -> list[Task]:
    """GAIA's tasks.

    Args:
        source: the data set's name on the Hugging Face hub, or local files of the same schema: a folder that
            holds metadata.jsonl or metadata.parquet (with the attachments beside it), or one .jsonl, .json
            or .parquet file.
        split: validation, or test, whose answers are secret: its trajectories stay unscored.
        levels: of difficulty, to keep; the others' attachments are not looked for.
        limit: keep at most that many of them.

    Returns:
        One task a row: difficulty "level 1" to "level 3"; meta["file"] is the attachment's path where there
        is one.

    Raises:
        DataError: the hub refuses or is out of reach, the folder holds no such split, no row is of these
            levels, or one is broken.
        RunError: a local file cannot be read.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; it must be at least 1, or None")
    left_out = {"1", "2", "3"} - {str(level) for level in levels}
    if Path(source).exists():
        file = local_file(
            Path(source), *(f"{place}metadata" for place in (f"{split}/", f"2023/{split}/", ""))
        )
        rows, attachment = numbered_rows(file), partial(_from_folder, file.parent)
    else:
        rows, attachment = hub_rows(str(source), "2023_all", split), partial(_from_hub, str(source), split)
    kept = ((n, row) for n, row in rows if isinstance(row, ValueError) or _level(row) not in left_out)
    tasks, broken = to_tasks(
        islice(kept, limit), lambda number, row: _task(row, split, attachment), str(source)
    )
    if broken:
        raise DataError(f"{broken[0]}. Mend the row.")
    return tasks


class GaiaEnvironment(WorkbenchEnvironment):
    """A workbench with the task's attachment in its workspace, and nowhere else."""

    system_prompt = (
        "Answer the question with the tools; an attached file lies in the workspace. End with a line "
        '"Answer: ...".'
    )

    def reset(self, file: str = "", **row: Any) -> None:
        """An empty workspace, then this task's attachment, unless it is larger than programs may be given."""
        super().reset()
        if file and Path(file).stat().st_size <= MAX_INPUT:
            self._workspace.files[_shown_name(file)] = Path(file).read_bytes()

    @tool(timeout_s=100, max_concurrent=AT_ONCE)  # 30 processor seconds, three times that on the clock
    def python(self, code: str) -> str:
        """Run a Python program; the task's files lie in its folder. It has no network.

        Args:
            code: The program. It shows what it prints.
        """
        return run_program(code, timeout_s=30.0, memory_mb=1024, files=self._workspace.files)

    def read_file(self, path: str, start: int = 0) -> str:
        """Read a file; a spreadsheet as one line a row.

        Args:
            path: Its name.
            start: The first character.
        """
        if UNREAD.search(path) and path in self._workspace.files:
            raise ValueError(f"{path} is a picture or a recording, which no tool here can read")
        if path.lower().endswith(".xlsx") and path in self._workspace.files and start >= 0:
            program = f"name, start, most = {path!r}, {start}, {MAX_SHOWN}\n{SHEETS}"
            try:
                return run_program(program, timeout_s=20.0, files=self._workspace.files)
            except ValueError:
                raise ValueError(f"{path} is no spreadsheet that can be read") from None
        return super().read_file(path, start)


def _shown_name(path: str | Path) -> str:
    name = Path(path).name
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}", name):
        return name
    suffix = re.search(r"\.[A-Za-z0-9]{1,8}$", name)
    return f"attachment{suffix[0] if suffix else ''}"


# ---- reading
def _level(row: Row) -> str:
    return str(row.get("Level")).strip()


def _task(row: Row, split: str, attachment: Any) -> Task:
    ident, question, answer = (text_of(row, name) for name in ("task_id", "Question", "Final answer"))
    level = _level(row)
    if level not in ("1", "2", "3"):  # no value of a row is shown: it may be in the wrong column
        raise DataError("Level must be 1, 2 or 3")
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
    from huggingface_hub import hf_hub_download

    place = str(row.get("file_path") or f"2023/{split}/{row['file_name']}")
    try:
        return hf_hub_download(name, place, repo_type="dataset")
    except Exception as error:  # the libraries raise many kinds for offline, gated, unknown and damaged
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise DataError(f"its attachment {place!r} could not be loaded from the hub ({why})") from None


def _from_folder(folder: Path, row: Row) -> Path:
    """The attachment of a row: a file inside the folder, never one outside it, nor the rows themselves."""
    name = str(row["file_name"])
    path = folder / name
    inside = os.path.isfile(path) and path.resolve().is_relative_to(folder.resolve())
    if not inside or name.startswith("metadata."):
        raise DataError(
            f"there is no attachment {name[:80]!r} in {folder}: put it there, or remove its file_name"
        )
    return path.resolve()
