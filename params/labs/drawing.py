"""Drawing by code, as in arc25 (iterations 4 to 6): write the program that makes one grid into another.

``draft`` makes a random drawing. drawings.jsonl beside this file holds the five that training is about there:
9 vertical lines, and 12, 16, 20 or 25 squares of two by two cells. ``relabel`` makes of what a program did
draw the task that asks for it. Points are (x, y), rectangles hold both corners, and what lies outside the
grid is not drawn. One page: the language, grids, environment, tasks, drafts, relabelling, reward. Leaves out
training on one drawing until it is solved (notebooks/drawing.ipynb).
"""

import dataclasses
import hashlib
import inspect
import json
import random
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from typing import Any

from agentkit import Family, Task, Trajectory
from agentkit.records import Picture
from agentkit.tasks.relabel import without_idle_lines
from agentkit.tools.corpus import Corpus
from agentkit.tools.environments import Stateless
from agentkit.verifiers.programs import extract_code, returned

TIMEOUT_S = 1.0  # of a program, as in arc25
MAX_SIDE = 30  # cells of a grid that a prompt shows, as in ARC
MAX_PROGRAM = 2_000  # characters of a program that is relabelled
SIDES, MOST_STROKES = (3, 10), 32  # of random drawings
TILED, MOST_TILES = 0.5, 12  # share of tiled ones, and how many tiles they have at most
TRIES = 3  # places tried for each stroke of the others, of which the freest is taken

Grid = list[list[int]]


# ---- the language: these functions are also the source that comes before every program
def create_img(shape, color):
    """A grid of one colour; shape is (rows, columns)."""
    return [[color] * shape[1] for _ in range(shape[0])]


def draw_pixel(img, point, color):
    """One cell; a point is (x, y)."""
    return draw_rectangle(img, point, point, color)


def draw_rectangle(img, point1, point2, color):
    """All cells between two corners, which belong to it."""
    (x1, x2), (y1, y2) = sorted((point1[0], point2[0])), sorted((point1[1], point2[1]))
    for row in img[max(y1, 0) : max(y2 + 1, 0)]:
        for x in range(max(x1, 0), min(x2 + 1, len(row))):
            row[x] = color
    return img


def draw_line(img, point1, point2, color):
    """The cells of a straight line between two points."""
    (x1, y1), (x2, y2) = point1, point2
    steps = max(abs(x2 - x1), abs(y2 - y1), 1)
    for i in range(steps + 1):
        draw_pixel(img, (round(x1 + (x2 - x1) * i / steps), round(y1 + (y2 - y1) * i / steps)), color)
    return img


def draw_horizontal_line(img, y, color):
    """A whole row."""
    return draw_rectangle(img, (0, y), (len(img[0]) - 1, y), color)


def draw_vertical_line(img, x, color):
    """A whole column."""
    return draw_rectangle(img, (x, 0), (x, len(img) - 1), color)


LANGUAGE = (
    create_img, draw_line, draw_rectangle, draw_horizontal_line, draw_vertical_line, draw_pixel
)  # fmt: skip
KINDS = [function.__name__ for function in LANGUAGE if function is not create_img]
SETUP = "\n".join(map(inspect.getsource, LANGUAGE))
SYSTEM_PROMPT = "Write task(img), which draws the output and returns it, with " + ", ".join(
    f"{function.__name__}{inspect.signature(function)}" for function in LANGUAGE
)


# ---- grids
def as_rows(grid: Any) -> str | None:
    """A rectangle of colours 0 to 9, at most MAX_SIDE a side, as rows of digits; None for any other value."""
    rows = grid if isinstance(grid, list) and grid else [None]
    if not all(isinstance(row, list) and 0 < len(row) <= MAX_SIDE for row in rows) or len(rows) > MAX_SIDE:
        return None
    cells = [cell for row in rows for cell in row]
    if len(set(map(len, rows))) > 1 or not all(type(cell) is int and 0 <= cell <= 9 for cell in cells):
        return None
    return "\n".join("".join(map(str, row)) for row in rows)


def drawn(task: Task, answer: str | None) -> Any:
    """The rows that an answer's program gives for the task's grid, as JSON values; None where it gives none.

    It runs in the sandbox, once for the same program. Raises Unscored where the sandbox fails.
    """
    verifier = task.verifier
    given = json.dumps(verifier["tests"][0][0])
    text = _ran(answer or "", given, verifier["entry"], verifier["setup"], verifier["timeout_s"])
    return json.loads(text)


@lru_cache(maxsize=8192)
def _ran(answer: str, given: str, entry: str, setup: str, timeout_s: float) -> str:
    (value,) = returned(answer, [json.loads(given)], entry=entry, setup=setup, timeout_s=timeout_s)
    is_rows = isinstance(value, list) and all(isinstance(row, list) for row in value)
    return json.dumps([[_whole(cell) for cell in row] for row in value] if is_rows else None)


def _whole(cell: Any) -> Any:
    """3 for 3.0."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def pixel_equality(grid: Any, target: Grid) -> float:
    """Share of equal cells; 0 for what has not the target's shape. True is not 1."""
    rows = grid or []
    if [len(row) for row in rows] != [*map(len, target)]:
        return 0.0
    pairs = [pair for both in zip(rows, target, strict=True) for pair in zip(*both, strict=True)]
    return sum(a == b and not isinstance(a, bool) for a, b in pairs) / len(pairs)


# ---- the environment
class DrawingEnvironment(Stateless):
    """No tools: the answer is the program."""

    system_prompt = SYSTEM_PROMPT

    @classmethod
    def render(cls, task: Task, trajectory: Trajectory, turn: int) -> Picture | None:
        """What was asked and, after the last turn, what the program drew where that can be shown."""
        if turn + 1 < len(trajectory.turns):
            return None
        grids = {"asked": task.verifier["tests"][0][1], "drawn": drawn(task, trajectory.answer)}
        return Picture({name: grid for name, grid in grids.items() if name == "asked" or as_rows(grid)})


# ---- tasks
def asking(grid: Grid, program: str, blank: Grid) -> Task:
    """The task to draw a grid on a blank one. Raises ValueError where there is nothing to draw, or a prompt
    cannot show it.
    """
    if grid == blank:
        raise ValueError("a drawing that is as blank as the grid it starts from asks for nothing")
    texts = [as_rows(one) for one in (blank, grid)]
    if not all(texts):
        raise ValueError(f"a drawing has rows of one length, at most {MAX_SIDE} a side, in colours 0 to 9")
    sides = [_shown(str(text).split("\n")) for text in texts]
    verifier = {
        "kind": "code",
        "entry": "task",
        "setup": SETUP,
        "tests": [[[blank], grid]],
        "timeout_s": TIMEOUT_S,
    }
    digest = hashlib.sha256(sides[1].encode()).hexdigest()[:10]
    meta = {"plan": [], "template": f"{program.count('draw')} strokes"}
    prompt = f"Input, {sides[0]}\nOutput, {sides[1]}"
    return Task(f"drawing-{digest}", prompt, program, verifier, "drawing", tools=(), meta=meta)


def _shown(rows: list[str]) -> str:
    """A grid's shape, then its rows behind their numbers, as arc24 found best; from 0, as y counts."""
    numbered = (f"{y} {row}" for y, row in enumerate(rows))
    return "\n".join([f"grid shape: {len(rows)}x{len(rows[0])}", *numbered])


def program_of(strokes: list[str]) -> str:
    """Strokes, as calls without img, as a program."""
    body = "".join(f"    {stroke.replace('(', '(img, ', 1)}\n" for stroke in strokes)
    return f"def task(img):\n{body}    return img"


def _drawn(strokes: list[str], blank: Grid) -> Grid:
    """What strokes of our own give: they are never a model's."""
    scope = {function.__name__: function for function in LANGUAGE} | {"img": [[*row] for row in blank]}
    for stroke in strokes:
        exec(stroke.replace("(", "(img, ", 1), {"__builtins__": {}}, scope)
    return scope["img"]


def draft(corpus: Corpus | None, rng: random.Random) -> Task:
    """A random drawing, each stroke of which is seen: half are tiles, and half strokes anywhere."""
    rows, columns = rng.randint(*SIDES), rng.randint(*SIDES)
    blank = create_img((rows, columns), 0)
    strokes = (_tiles if rng.random() < TILED else _strokes)(rng, rows, columns)
    grid, before = _drawn(strokes, blank), []
    while strokes != before:  # one that goes can uncover that another is idle
        before = strokes
        for i in reversed(range(len(before))):
            if _drawn(without := [*strokes[:i], *strokes[i + 1 :]], blank) == grid:
                strokes = without
    return asking(grid, program_of(_in_order(strokes, blank)), blank)


def _tiles(rng: random.Random, rows: int, columns: int) -> list[str]:
    """Tiles of one size in their places, at most MOST_TILES."""
    width, height, share = rng.randint(1, 3), rng.randint(1, 3), rng.uniform(0.3, 1.0)
    corners = [c for c in product(range(0, columns, width), range(0, rows, height)) if rng.random() < share]
    kept = sorted(rng.sample(corners, min(len(corners), rng.randint(1, MOST_TILES)))) or [(0, 0)]
    ends = [(min(x + width, columns) - 1, min(y + height, rows) - 1) for x, y in kept]
    return [_tile(start, end, rng.randint(1, 9)) for start, end in zip(kept, ends, strict=True)]


def _tile(start: tuple[int, int], end: tuple[int, int], colour: int) -> str:
    """The stroke for what lies between two corners."""
    if start == end:
        return f"draw_pixel({start}, {colour})"
    kind = "draw_line" if start[0] == end[0] or start[1] == end[1] else "draw_rectangle"
    return f"{kind}({start}, {end}, {colour})"


def _strokes(rng: random.Random, rows: int, columns: int) -> list[str]:
    """Up to one for two cells, of some kinds more than of others; each is the freest of TRIES."""
    blank, kinds = create_img((rows, columns), 0), rng.sample(KINDS, rng.randint(2, len(KINDS)))
    shares, strokes, taken = [rng.random() ** 2 for _ in kinds], [], set()
    for _ in range(rng.randint(1, min(MOST_STROKES, rows * columns // 2))):
        (kind,) = rng.choices(kinds, shares)
        tries = (_stroke(rng, rows, columns, kind) for _ in range(TRIES))
        cells = {stroke: _cells(stroke, blank) for stroke in tries}
        hidden = {stroke: len(own & taken) / len(own) for stroke, own in cells.items()}
        strokes.append(min(hidden, key=hidden.__getitem__))
        taken |= cells[strokes[-1]]
    return strokes


def _cells(stroke: str, blank: Grid) -> set[tuple[int, int]]:
    """The cells (y, x) that a stroke of our own draws on a blank grid."""
    drawn = _drawn([stroke], blank)
    return {(y, x) for y, row in enumerate(drawn) for x, colour in enumerate(row) if colour}


def _in_order(strokes: list[str], blank: Grid) -> list[str]:
    """Strokes from left to right and down, but those that lie on others after these: one order to learn."""
    cells = [_cells(stroke, blank) for stroke in strokes]
    left, ordered = list(range(len(strokes))), []
    while left:
        free = [i for i in left if not any(cells[i] & cells[j] for j in left if j < i)]
        ordered.append(min(free, key=lambda i: (_corner(strokes[i]), strokes[i])))
        left.remove(ordered[-1])
    return [strokes[i] for i in ordered]


def _corner(stroke: str) -> tuple[int, int]:
    """The upper left corner of what a stroke draws."""
    *numbers, _ = map(int, re.findall(r"\d+", stroke))
    if "horizontal" in stroke:
        return 0, numbers[0]
    return min(numbers[::2]), min(numbers[1::2], default=0)


def _stroke(rng: random.Random, rows: int, columns: int, kind: str) -> str:
    """One of a kind; none looks like another kind's, but a line from side to side."""
    colour, x, y = rng.randint(1, 9), rng.randrange(columns), rng.randrange(rows)
    if kind == "draw_line":
        other = rng.choice(
            [(i, y) for i in range(columns) if i != x] + [(x, i) for i in range(rows) if i != y]
        )
        start, end = sorted([(x, y), other])
        return f"draw_line({start}, {end}, {colour})"
    if kind == "draw_rectangle":
        x, y = min(x, columns - 2), min(y, rows - 2)
        far = min(x + rng.randint(1, 3), columns - 1), min(y + rng.randint(1, 3), rows - 1)
        return f"draw_rectangle({(x, y)}, {far}, {colour})"
    place = {"draw_horizontal_line": y, "draw_vertical_line": x, "draw_pixel": (x, y)}[kind]
    return f"{kind}({place}, {colour})"


def drafts(count: int, seed: int, without: Iterable[Task] = ()) -> list[Task]:
    """So many different random drawings, none of which is one of ``without``."""
    rng, seen, found = random.Random(f"{seed}-drawing"), {task.prompt for task in without}, []
    while len(found) < count:
        task = draft(None, rng)
        if task.prompt not in seen:
            seen.add(task.prompt)
            found.append(task)
    return found


# ---- hindsight
def relabel(task: Task, trajectory: Trajectory) -> Task | None:
    """The task to draw what a trajectory's program drew, in as few lines; None where it drew nothing, or no
    grid that a prompt can show, or was given more than a grid. ``meta["closeness"]`` is the share of cells
    that was right for what was really asked.
    """
    (given, target), answer = task.verifier["tests"][0], trajectory.answer
    grid, program = drawn(task, answer), extract_code(answer or "", task.verifier["entry"])
    if not isinstance(program, str) or len(program) > MAX_PROGRAM or len(given) != 1:
        return None
    try:
        asking(grid, program, given[0])
    except ValueError:
        return None
    short = without_idle_lines(program, lambda code: drawn(task, code) == grid)
    asked = asking(grid, short, given[0])
    return dataclasses.replace(asked, meta=asked.meta | {"closeness": pixel_equality(grid, target)})


# ---- the reward
def pixel_accuracy(task: Task, trajectory: Trajectory) -> float | None:
    """Share of the target's cells that the program draws right, in [0, 1]; 0 on an exception, a time-out or a
    wrong shape (arc25, iterations 4 to 6). None for tasks of another family.
    """
    if task.family != "drawing":
        return None
    return pixel_equality(drawn(task, trajectory.answer), task.verifier["tests"][0][1])


families = {"drawing": Family(draft, DrawingEnvironment, relabel)}
rewards = {"pixels": (pixel_accuracy, 1.0)}
