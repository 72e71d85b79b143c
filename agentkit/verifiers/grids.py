"""Grids of coloured cells, which drawing programs give: which values are grids, how alike two are, as text.

Leaves out running a program (programs) and pictures (views).
"""

import re
from collections.abc import Sequence
from typing import Any

from agentkit.records import Unscored

MAX_SIDE = 30  # cells of a grid that is written as text, as in ARC
_DRAWN = re.compile(r" of \d+ pixels are right in\n([0-9\n]+)\Z")


def is_grid(value: Any) -> bool:
    """Whether a value is a list of rows of whole numbers."""
    rows = value if isinstance(value, list) and value else [None]
    return all(isinstance(row, list) and row and all(type(cell) is int for cell in row) for row in rows)


def whole(drawn: Any) -> Any:
    """Rows with 3 for 3.0; any other value as it is."""
    if not isinstance(drawn, list) or not all(isinstance(row, list) for row in drawn):
        return drawn
    return [[int(c) if isinstance(c, float) and c.is_integer() else c for c in row] for row in drawn]


def right_pixels(drawn: Any, target: list[list[int]]) -> int:
    """How many pixels are equal, as JSON values: 3.0 is 3, true is not 1; 0 where ``drawn`` is no list of
    rows of the target's shape.
    """
    rows = drawn if isinstance(drawn, list) else []
    if [isinstance(row, list) and len(row) for row in rows] != [*map(len, target)]:
        return 0
    pixels = (pair for pairs in zip(rows, target, strict=True) for pair in zip(*pairs, strict=True))
    return sum(a == b and not isinstance(a, bool) for a, b in pixels)


def pixel_equality(drawn: Any, target: list[list[int]]) -> float:
    """Share of equal pixels; 0 where ``drawn`` has not the target's shape (height, width)."""
    return right_pixels(drawn, target) / sum(map(len, target))


def as_rows(grid: Any) -> str | None:
    """A rectangle of colours 0 to 9, at most MAX_SIDE a side, as rows of digits; None for any other value."""
    grid = whole(grid)
    if not is_grid(grid) or max(len(grid), *map(len, grid)) > MAX_SIDE or len(set(map(len, grid))) > 1:
        return None
    return (
        "\n".join("".join(map(str, row)) for row in grid)
        if 0 <= min(map(min, grid)) <= max(map(max, grid)) <= 9
        else None
    )


def verdict(drawn: Any, given: Sequence[Any], target: list[list[int]]) -> str:
    """What a verifier says of a drawing: the pixels that are right, and the drawing.

    Raises Unscored where the target is the grid that was given: a program that draws nothing would be right.
    """
    if target in given:
        raise Unscored("the target is the grid that the program is given: drawing nothing would be right")
    found = f"{right_pixels(drawn, target)} of {sum(map(len, target))} pixels are right"
    rows = as_rows(drawn)
    return f"{found} in\n{rows}" if rows else f"{found}: it gave no grid of colours 0 to 9"


def drawn_in(verdict: str) -> list[list[int]] | None:
    """The drawing that a verdict holds; None where it holds none."""
    found = _DRAWN.search(verdict)
    return [[*map(int, row)] for row in found[1].split("\n")] if found else None
