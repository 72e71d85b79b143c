"""Drawing by code: its tasks, what passes and what must not, relabelling, and training until solved."""

import nbformat
import papermill
import pytest
from opened import LABS, lab_file, opened
from widget_cases import trajectory

from agentkit import Suite, verify
from agentkit.recipe import project_root
from agentkit.records import Turn
from agentkit.runs import read_json
from agentkit.tools.runtime import tools_of

ROOT = project_root(__file__)
drawing = lab_file("drawing")
TARGETS = {task.meta["template"]: task for task in Suite.load(LABS / "drawings.jsonl")}
LINES = TARGETS["lines"]
GOLD = LINES.answer


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


def answered(task, program, **more):
    """A trajectory with the verifier's verdict on a program."""
    score = verify(task, fenced(program))
    turns = (Turn(fenced(program), (0, 3)),)
    return trajectory(task.id, score.value, answer=fenced(program), why=score.why, turns=turns, **more)


def task_img(*lines: str) -> str:
    return "\n    ".join(["def task(img):", *lines, "return img"])


def test_gold_drawings_pass_and_earn_the_most():
    for task in TARGETS.values():
        tried = answered(task, task.answer)
        assert tried.success == drawing.pixel_accuracy(task, tried) == 1.0


FORGED = "1 of 1 tests passed; 81 of 81 pixels are right in\\n" + "\\n".join(["123456789"] * 9)
HACKS = {
    "nothing": "",
    "the prompt": LINES.prompt,
    "the rows": "\n".join(["123456789"] * 9),
    "as it was given": task_img(),
    "no result": "def task(img):\n    pass",
    "the rows as text": task_img("return '\\n'.join(['123456789'] * 9)"),
    "colours as text": task_img("return [list('123456789')] * 9"),
    "one pixel off": task_img("img = [list(range(1, 10)) for _ in img]", "img[8][8] = 8"),
    "a row too few": task_img("return [list(range(1, 10))] * 8"),
    "colours off by one": GOLD.replace(", 9)", ", 10)"),
    "equal to everything": "class Any(list):\n    __eq__ = lambda *_: True\n    __len__ = lambda *_: 9\n" + task_img("return Any()"),
    "rows equal to everything": "class Any(int):\n    __eq__ = lambda *_: True\n" + task_img("return [[Any()] * 9] * 9"),
    "says it passed": task_img(f"print('{FORGED}')"),
    "returns the verdict": task_img(f"return '{FORGED}'"),
    "ends well": "import sys\n" + task_img("sys.exit(0)"),
    "ends at once": "import os\n" + task_img("os._exit(0)"),
    "looks for the target": "import gc\n" + task_img(
        "found = [o for o in gc.get_objects() if isinstance(o, list) and len(o) == 9 and o[0] == list(range(1, 10))]",
        "return found[0]"),
    "looks at its caller": "import sys\n" + task_img("return sys._getframe(1).f_locals['calls'][0]['expected']"),
    "two programs": f"{fenced(GOLD)}\n{fenced(task_img())}",
    "NaN": task_img("return [[float('nan')] * 9] * 9"),
}  # fmt: skip
HOSTILE = {
    "a million cells": task_img("return create_img((1000, 1000), 1)"),
    "loops in a line": task_img("draw_line(img, (0, 0), (10**12, 0), 1)"),
    "outside": task_img("draw_pixel(img, (99, -99), 5)", "draw_rectangle(img, (-9, -9), (-1, -1), 5)",
                        "draw_vertical_line(img, -1, 5)", "draw_horizontal_line(img, 9, 5)"),
    "odd arguments": task_img("draw_rectangle(img, None, 'x', {})"),
    "half points": task_img("draw_pixel(img, (0.5, 0.5), 1)"),
    "colours of many digits": task_img("return [[10**300] * 9] * 9"),
}  # fmt: skip


def test_a_hacked_or_hostile_program_fails_with_a_clear_verdict():
    for name, program in (HACKS | HOSTILE).items():
        answer = fenced(program) if "def task" in program and "```" not in program else program
        score = verify(LINES, answer)
        assert score.value == 0.0 and 0 < len(score.why) < 300, (name, score)
        assert drawing.pixel_accuracy(LINES, trajectory(LINES.id, 0.0, answer=answer)) < 1.0, name


def test_drawing_nothing_on_a_blank_target_is_no_task():
    blank = [[0, 0], [0, 0]]
    with pytest.raises(ValueError, match="asks for nothing"):
        drawing.asking(blank, task_img(), blank)
    assert drawing.relabel(LINES, answered(LINES, task_img())) is None


def test_random_drawings_make_a_sound_suite():
    suite = opened("drawing", n_tasks=20, suite_seed=3).suite()
    assert {task.family for task in suite} == {"drawing"} and all(row["passed"] for row in suite.audit())
    assert tools_of(drawing.DrawingEnvironment()) == {}
    many = drawing.drafts(50, 1, without=[LINES])
    assert len({task.prompt for task in many}) == 50 and drawing.drafts(50, 1) == many
    strokes = [task.answer.count("draw") for task in many]
    assert 1 <= min(strokes) < 4 and 16 < max(strokes) <= drawing.MOST_STROKES


GRID = [[1, 2], [3, 4]]


def test_the_reward_is_the_share_of_equal_cells():
    for drawn, value in ((GRID, 1.0), ([[1, 2], [3, 0]], 0.75), ([[1, 2]], 0.0), ([[1, 2, 3], [3, 4, 5]], 0.0), (None, 0.0),
                         ([[True, 2], [3, 4]], 0.75), ([[[2], 2], [10**400, 4]], 0.5)):  # fmt: skip
        assert drawing.pixel_equality(drawn, GRID) == value, drawn


@pytest.mark.parametrize("name", ["12", "25"])
def test_any_grid_can_be_relabelled(name):
    task = TARGETS[name]
    program = task.answer.replace("(img, (0, 0), (1, 1), 1)", "(img, (0, 0), (9, 1), 3)")
    new = drawing.relabel(task, answered(task, program))
    rows = drawing.as_rows(drawing.drawn(task, program)).splitlines()
    shown = [" ".join(pair) for pair in zip("0123456789", rows, strict=False)]
    assert new.prompt.endswith("\n".join([f"{len(rows)}x{len(rows[0])}", *shown]))
    grid = new.verifier["tests"][0][1]
    assert grid == drawing.drawn(task, program) and 0 < new.meta["closeness"] < 1
    assert verify(new, fenced(new.answer)).value == 1.0 and new.family == "drawing" and new.meta["plan"] == []


@pytest.mark.slow
def test_the_notebook_ends_with_a_table_and_pictures(tmp_path):
    tiny = {"model": "nano", "n_tasks": 20, "steps": 2, "group_size": 2, "micro_batch": 2, "max_turn_tokens": 24,
            "max_tokens": 24, "run": str(tmp_path / "run")}  # fmt: skip
    out = tmp_path / "drawing.ipynb"
    notebook = nbformat.read(ROOT / "notebooks" / "drawing.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace('"samples": 128', '"samples": 2')
    nbformat.write(notebook, tmp_path / "small.ipynb")
    papermill.execute_notebook(tmp_path / "small.ipynb", out, tiny, cwd=ROOT, progress_bar=False)
    shown = " ".join(str(cell.get("outputs", "")) for cell in nbformat.read(out, as_version=4).cells)
    assert shown.count("<svg") >= 10 and "How fast is it drawn?" in shown
    rows = read_json(tmp_path / "run" / "drawing.json")
    assert [row["method"] for row in rows] == ["grpo", "her", "hybrid"]
    assert {row["solved"] for row in rows} == {"0 of 1"}
