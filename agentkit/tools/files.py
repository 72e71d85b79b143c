"""The file tool: a workspace of small text files, one a trajectory, held in memory.

Nothing touches the disk, so there is nothing outside to reach and nothing to clean up. Hand ``files`` to the
code tool to let programs read the workspace. What an environment puts there as bytes is an attachment, which
the policy can read and not replace. Leaves out folders: a name may hold slashes.
"""

import re

MAX_FILE = 100_000  # characters of one file
MAX_TOTAL = 1_000_000  # characters of all
MAX_SHOWN = 2_000  # characters of a file that are read at once
MAX_NAME = 200  # characters of a name, as the sandbox takes it
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}){0,4}")


class Workspace:
    """Files by name. Every refusal is a ValueError with a sentence for the policy."""

    def __init__(self) -> None:
        self.files: dict[str, str | bytes] = {}

    def write(self, path: str, content: str) -> str:
        """Create or replace a file; says how large it is now."""
        _check_name(path)
        if isinstance(self.files.get(path), bytes):
            raise ValueError(f"{path} is the attachment; choose another name")
        others = {name: text for name, text in self.files.items() if name != path and isinstance(text, str)}
        if len(content) > MAX_FILE:
            raise ValueError(f"the content has {len(content)} characters; the limit of a file is {MAX_FILE}")
        if sum(map(len, others.values())) + len(content) > MAX_TOTAL:
            raise ValueError(f"all files together would hold more than {MAX_TOTAL} characters")
        for name in self.files:
            if name.startswith(f"{path}/") or path.startswith(f"{name}/"):
                raise ValueError(f"{name!r} is in the way: a name cannot be a file and a folder")
        self.files[path] = content
        return f"Wrote {len(content)} characters to {path}."

    def read(self, path: str, start: int = 0) -> str:
        _check_name(path)
        if path not in self.files:
            raise ValueError(f"there is no file {path!r}; {self.list()}")
        if start < 0:
            raise ValueError("start must be at least 0")
        content = self.files[path]
        if isinstance(content, bytes):
            if b"\0" in content[:8192]:
                raise ValueError(f"{path} is no text; read it with a program, in whose folder it lies")
            content = content.decode("utf-8", "replace")
        return content[start : start + MAX_SHOWN] or f"(nothing from character {start} on)"

    def list(self) -> str:
        lines = (
            f"{name} ({len(content)} {'bytes, attached' if isinstance(content, bytes) else 'characters'})"
            for name, content in sorted(self.files.items())
        )
        return "\n".join(lines) or "the workspace is empty"


def _check_name(path: str) -> None:
    if len(path) > MAX_NAME or not _NAME.fullmatch(path):
        raise ValueError(
            f"{path[:60]!r} is refused: use a relative name such as notes.txt or data/a.csv; letters, "
            f"digits, '.', '_' and '-', without a leading dot, at most five levels and {MAX_NAME} characters"
        )
