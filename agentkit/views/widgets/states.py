"""The state of an environment after each turn of a trajectory, as the JSON that views show.

An environment offers it as a class method ``render(task, trajectory, turn)``, which gives text, a ``Table``,
a ``Picture``, an ``Image`` or None for the time after the turn of that index. It is computed when somebody
looks, from the records alone: there is no environment behind it and no tool is called. As a class method it
is no tool, here and in TRL. Whatever it gives is bounded, and what cannot be shown is a sentence. Leaves out
drawing the page (the JavaScript files).
"""

import base64
import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentkit.evaluation import html
from agentkit.records import Image, Picture, Table, Task, Trajectory
from agentkit.tools.execution import in_thread
from agentkit.tools.runtime import example, run_blocking
from agentkit.views.widgets.base import TEXT_LIMIT, clip

MAX_ROWS, MAX_COLUMNS, MAX_CELL = 60, 12, 200  # of a table; characters of one cell
MAX_GRIDS, MAX_SIDE = 4, 64  # of a picture; cells
KINDS, MAX_IMAGE = ("png", "jpeg", "svg+xml"), 200_000  # of an image; bytes
LIMIT_S = 2.0  # for the states of one trajectory
WIDTH = 170  # of a grid, at most; pixels
COLOURS = "000000 0074d9 ff4136 2ecc40 ffdc00 aaaaaa f012be ff851b 7fdbff 870c25".split()  # ARC's


class States:
    """What environments, such as a lab's, show of their states."""

    def __init__(self, environments: Mapping[str, Callable[[], object]] | None = None):
        self._environments = environments or {}
        self._renders: dict[str, Callable[[Task, Trajectory, int], Any] | None] = {}

    def after_turns(self, task: Task | None, trajectory: Trajectory) -> list[dict[str, Any] | None]:
        """A state a turn as JSON values, None where there is none; no states of an unknown family or task."""
        if task is None:
            return []
        if task.family not in self._renders:
            self._renders[task.family] = _render_of(self._environments.get(task.family))
        render, turns = self._renders[task.family], range(len(trajectory.turns))
        if render is None:
            return []
        work = in_thread(lambda: [_shown(render, task, trajectory, turn) for turn in turns], LIMIT_S)
        try:
            return run_blocking(work)
        except TimeoutError:
            self._renders[task.family] = None  # it will not be quicker for the others
            return [{"text": f"render took more than {LIMIT_S:g} s"}] * len(turns)


def _render_of(make: Callable[[], object] | None) -> Callable[[Task, Trajectory, int], Any] | None:
    """An environment's ``render`` where it is a class method: any other is a tool of that name."""
    with contextlib.suppress(Exception):  # one that cannot be made here shows no states
        render = getattr(type(example(make)), "render", None) if make else None
        return render if inspect.ismethod(render) else None


def _shown(render: Callable[..., Any], task: Task, trajectory: Trajectory, turn: int) -> dict | None:
    try:
        return as_json(render(task, trajectory, turn))
    except Exception as error:  # an environment is user code, and what it reads a model wrote
        why = f"{type(error).__name__}: {error}"
        return {"text": f"This state cannot be shown: {why[:300]}."}


def as_json(state: Any) -> dict[str, Any] | None:
    """A state as JSON values of bounded size, cut with a mark. Raises ValueError for what is no state."""
    match state:
        case None | "":
            return None
        case str():
            return {"text": clip(str.__str__(state), TEXT_LIMIT)}
        case Table():
            rows = [[clip(str(cell), MAX_CELL) for cell in r[:MAX_COLUMNS]] for r in state.rows[:MAX_ROWS]]
            rest = len(state.rows) - len(rows)
            columns = [clip(str(name), MAX_CELL) for name in state.columns[:MAX_COLUMNS]]
            return {"columns": columns, "rows": rows + ([[f"… ({rest} more rows)"]] if rest else [])}
        case Picture():
            grids = list(state.grids.items())[:MAX_GRIDS]
            return {"images": [_image(title, "svg+xml", svg(grid), _width(grid)) for title, grid in grids]}
        case Image(kind=kind, data=bytes(data)) if kind in KINDS and 0 < len(data) <= MAX_IMAGE:
            return {"images": [_image(state.title, kind, data, None)]}
    kinds = f"text, a Table, a Picture, an Image of at most {MAX_IMAGE} bytes ({', '.join(KINDS)}) or None"
    raise ValueError(f"it is of type {type(state).__name__}: give {kinds}")


def _image(title: Any, kind: str, data: bytes, width: int | None) -> list:
    """Title, kind, base64, width: shown in an img element, where nothing in it runs or loads anything."""
    return [clip(str(title), MAX_CELL), kind, base64.b64encode(data).decode("ascii"), width]


def svg(grid: Sequence[Sequence[int]]) -> bytes:
    """A grid of colours 0 to 9 as a picture. Raises ValueError for any other."""
    high, wide = len(grid), len(grid[0]) if len(grid) else 0
    if not (0 < high <= MAX_SIDE and 0 < wide <= MAX_SIDE):
        raise ValueError(f"a grid of {wide} by {high} cells: 1 to {MAX_SIDE} a side are shown")
    if any(len(row) != wide or not all(type(c) is int and 0 <= c <= 9 for c in row) for row in grid):
        raise ValueError("a grid needs rows of one length with colours from 0 to 9")
    cells = (
        f'<path d="M{x} {y}h1v1h-1z" fill="#{COLOURS[colour]}"/>'
        for y, row in enumerate(grid)
        for x, colour in enumerate(row)
    )
    lines = f'<g stroke="#555" stroke-width=".1">{"".join(cells)}</g>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">{lines}</svg>'.encode()


def _width(grid: Sequence[Sequence[int]]) -> int:
    return min(14 * len(grid[0]), WIDTH)


def gallery(grids: Mapping[str, Sequence[Sequence[int]]]) -> html.Markup:
    """Grids side by side, each over its title, for a notebook. Raises ValueError as ``svg`` does."""
    figures = []
    for title, grid in grids.items():
        drawn = html.element("div", html.Markup(svg(grid).decode()), style=f"width: {_width(grid)}px")
        figures.append(html.element("figure", drawn, html.element("figcaption", title), style="margin: 0"))
    look = "display: flex; flex-wrap: wrap; gap: 10px 16px"
    return html.fragment(html.element("div", *figures, style=look))
