"""Drawing by code: its tasks, what passes and what must not, relabelling, and training until solved."""

import dataclasses
import json
import re
import warnings

import nbformat
import papermill
import pytest
from agentkit.training.until_solved import Round, bests, frame, solve, solve_all, summary
from agentkit.verifiers.grids import as_rows, drawn_in, pixel_equality
from agentkit.verifiers.grids import verdict as said
from widget_cases import trajectory

from agentkit import Lab, verify
from agentkit.recipe import read_recipe
from agentkit.records import RecipeError, RunError, SuiteError, Turn
from agentkit.rewards.components import pixel_accuracy
from agentkit.runs import Recipe, Run, project_root, read_json, read_jsonl
from agentkit.tasks import Suite
from agentkit.tasks.families import drawing
from agentkit.tools.runtime import tools_of
from agentkit.training import until_solved
from agentkit.training.guards import Guards
from agentkit.training.hindsight import lessons
from agentkit.views import plots
from agentkit.views.card import _Card
from agentkit.views.widgets import group_view
from agentkit.views.widgets.states import States

ROOT = project_root(__file__)
LINES = drawing.target("lines")
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


# ---- tasks
def test_the_targets_are_those_of_arc25():
    assert as_rows(LINES.verifier["tests"][0][1]) == "\n".join(["123456789"] * 9)
    squares = drawing.target("12").verifier["tests"][0][1]
    assert as_rows(squares).split("\n") == [
        "11447711",
        "11447711",
        "22558822",
        "22558822",
        "33669933",
        "33669933",
    ]
    shapes = {name: drawing.target(name).verifier["tests"][0][1] for name in ("16", "20", "25")}
    assert [(len(grid), len(grid[0])) for grid in shapes.values()] == [(8, 8), (10, 8), (10, 10)]
    assert "Output, grid shape: 9x9\n0 123456789\n1 123456789\n" in LINES.prompt
    assert LINES.prompt.startswith("Input, grid shape: 9x9\n0 000000000\n1 000000000\n")
    for bad in ("13", "", "lines ", "-1", "٣"):
        with pytest.raises(SuiteError, match="there is no drawing"):
            drawing.target(bad)


@pytest.mark.parametrize("name", ["lines", "12", "16", "20", "25"])
def test_gold_drawings_pass(name):
    task = drawing.target(name)
    score = verify(task, fenced(task.answer))
    assert score.value == 1.0 and drawn_in(score.why) == task.verifier["tests"][0][1]


FORGED = "1 of 1 tests passed; 81 of 81 pixels are right in\\n" + "\\n".join(["123456789"] * 9)
HACKS = {
    "nothing": "",
    "no program": "I could not find this.",
    "the prompt": LINES.prompt,
    "the rows": "\n".join(["123456789"] * 9),
    "as it was given": task_img(),
    "no result": "def task(img):\n    pass",
    "another name": GOLD.replace("task", "tasks"),
    "the rows as text": task_img("return '\\n'.join(['123456789'] * 9)"),
    "rows of text": task_img("return ['123456789'] * 9"),
    "colours as text": task_img("return [list('123456789')] * 9"),
    "one pixel off": task_img("img = [list(range(1, 10)) for _ in img]", "img[8][8] = 8"),
    "a row too few": task_img("return [list(range(1, 10))] * 8"),
    "a row too many": task_img("return [list(range(1, 10))] * 10"),
    "transposed": GOLD.replace("vertical", "horizontal"),
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
    "bigger than asked": task_img("return [[*range(1, 10), 0]] * 9"),
    "NaN": task_img("return [[float('nan')] * 9] * 9"),
}  # fmt: skip
HOSTILE = {
    "10,000 cells": task_img("return create_img((100, 100), 1)"),
    "a million cells": task_img("return create_img((1000, 1000), 1)"),
    "more than the memory": task_img("return create_img((10**6, 10**6), 1)"),
    "loops": task_img("while True: pass"),
    "loops in a line": task_img("draw_line(img, (0, 0), (10**12, 0), 1)"),
    "never ends": "def task(img):\n    return task(img)",
    "outside": task_img("draw_pixel(img, (99, -99), 5)", "draw_rectangle(img, (-9, -9), (-1, -1), 5)",
                        "draw_vertical_line(img, -1, 5)", "draw_horizontal_line(img, 9, 5)"),
    "odd arguments": task_img("draw_rectangle(img, None, 'x', {})"),
    "half points": task_img("draw_pixel(img, (0.5, 0.5), 1)"),
    "colours of many digits": task_img("return [[10**300] * 9] * 9"),
    "writes to the disk": task_img("open('/etc/passwd', 'a').write('x')"),
    "starts processes": "import os\n" + task_img("while True: os.fork()"),
}  # fmt: skip


@pytest.mark.parametrize("name", HACKS | HOSTILE)
def test_a_hacked_or_hostile_program_fails_with_a_clear_verdict(name):
    program = (HACKS | HOSTILE)[name]
    answer = fenced(program) if "def task" in program and "```" not in program else program
    score = verify(LINES, answer)
    assert score.value == 0.0 and 0 < len(score.why) < 300, score
    got = trajectory(LINES.id, 0.0, answer=answer, why=score.why)
    assert pixel_accuracy(LINES, got) < 1.0


def test_what_lies_outside_changes_nothing():
    score = verify(LINES, fenced(HOSTILE["outside"]))
    assert drawn_in(score.why) == [[0] * 9] * 9


def test_drawing_nothing_on_a_blank_target_is_no_task():
    blank = [[0, 0], [0, 0]]
    with pytest.raises(SuiteError, match="asks for nothing"):
        drawing.asking(blank, task_img(), blank)
    empty = dataclasses.replace(LINES, verifier=LINES.verifier | {"tests": [[[blank], blank]]})
    assert verify(empty, fenced(task_img())).value is None, "nobody is paid for drawing nothing"
    assert drawing.relabel(LINES, answered(LINES, task_img())) is None


def test_random_drawings_make_a_sound_suite():
    suite = Suite.build({"families": ["drawing"], "n_tasks": 20, "seed": 3})
    assert {task.family for task in suite} == {"drawing"} and all(row["passed"] for row in suite.audit())
    assert tools_of(drawing.DrawingEnvironment()) == {}
    many = drawing.drafts(50, 1, without=[LINES])
    assert len({task.prompt for task in many}) == 50 and drawing.drafts(50, 1) == many
    strokes = [task.answer.count("draw") for task in many]
    assert 1 <= min(strokes) < 4 and 16 < max(strokes) <= drawing.MOST_STROKES


def test_each_stroke_of_a_random_drawing_is_seen_and_could_be_no_other_kind():
    for task in drawing.drafts(60, 2):
        lines = task.answer.splitlines()
        for i in range(1, len(lines) - 1):
            less = answered(task, "\n".join([*lines[:i], *lines[i + 1 :]]))
            assert less.success == 0.0, lines[i]
        ends = re.findall(r"draw_(line|rectangle)\(img, \((\d+), (\d+)\), \((\d+), (\d+)\)", task.answer)
        for kind, *numbers in ends:
            x1, y1, x2, y2 = map(int, numbers)
            assert (x1 == x2, y1 == y2).count(True) == (kind == "line") and (x1, y1) < (x2, y2)


# ---- the reward, and what is shown
def test_a_whole_number_is_a_colour_however_it_is_written():
    floats = answered(LINES, task_img("return [[(x + 1) / 1 for x in range(9)] for _ in img]"))
    assert floats.success == pixel_accuracy(LINES, floats) == 1.0
    assert as_rows(drawn_in(floats.why)) == as_rows(LINES.verifier["tests"][0][1])
    assert drawing.relabel(LINES, floats).prompt == LINES.prompt
    assert "1.0" not in str(drawing.relabel(LINES, floats).verifier["tests"])
    hole = answered(LINES, GOLD.replace("return", "img[0][0] = None\n    return"))
    assert "80 of 81 pixels are right" in hole.why
    assert pixel_accuracy(LINES, hole) == pytest.approx(80 / 81)


def test_the_reward_is_the_share_of_right_pixels_that_the_verifier_saw(monkeypatch):
    half = answered(LINES, "\n".join(GOLD.split("\n")[:5] + ["    return img"]))
    monkeypatch.setattr("agentkit.rewards.components.returned", None)
    assert (
        pixel_accuracy(LINES, half)
        == pytest.approx(4 / 9)
        == pixel_equality(drawn_in(half.why), LINES.verifier["tests"][0][1])
    )


@pytest.mark.parametrize(
    ("grid", "rows"),
    [([[1, 2], [3, 4]], "12\n34"), ([[1] * 31], None), ([[10]], None), ([[-1]], None), ([[1], [1, 2]], None),
     ([[True]], None), ([[1.0, 2]], "12"), ([[1.5]], None), ([], None), ("12", None), (None, None)],
)  # fmt: skip
def test_only_grids_of_colours_are_written_as_rows(grid, rows):
    assert as_rows(grid) == rows
    found = said(grid, [[[0, 0], [0, 0]]], [[1, 1], [1, 1]])
    assert drawn_in(found) == (grid if rows else None) and " of 4 pixels are right" in found


def test_the_widget_shows_what_was_asked_and_drawn():
    (state,) = States().after_turns(LINES, answered(LINES, HACKS["transposed"]))
    assert [title for title, *_ in state["pictures"]] == ["asked", "drawn"]
    (state,) = States().after_turns(LINES, answered(LINES, HOSTILE["10,000 cells"]))
    assert [title for title, *_ in state["pictures"]] == ["asked"]
    big = [[1] * 100] * 100
    huge = dataclasses.replace(LINES, verifier=LINES.verifier | {"tests": [[[big], [[2] * 100] * 100]]})
    (state,) = States().after_turns(huge, answered(LINES, GOLD))
    assert state["text"].startswith("This state cannot be shown: ValueError: a grid of 100 by 100 cells")


def test_the_run_card_masks_secrets_and_still_shows_the_drawing(tmp_path):
    shown = _Card(Run.create(tmp_path / "run"))
    task, got = shown.cleaned(LINES), shown.trajectory(answered(LINES, GOLD))
    assert States().after_turns(task, got) == States().after_turns(LINES, answered(LINES, GOLD))


# ---- relabelling
@pytest.mark.parametrize("name", ["12", "16", "20", "25"])
def test_any_grid_can_be_relabelled(name):
    task = drawing.target(name)
    shown = answered(task, task.answer.replace("(img, (0, 0), (1, 1), 1)", "(img, (0, 0), (9, 1), 3)"))
    new = drawing.relabel(task, shown)
    assert new.verifier["tests"][0][1] == drawn_in(shown.why)
    rows = as_rows(drawn_in(shown.why)).splitlines()
    assert new.prompt.endswith(
        "\n".join([f"{len(rows)}x{len(rows[0])}", *map(" ".join, zip("0123456789", rows, strict=False))])
    )
    assert verify(new, fenced(new.answer)).value == 1.0 and new.family == "drawing" and new.meta["plan"] == []


def test_a_task_that_is_given_more_than_a_grid_is_not_relabelled():
    two = {"tests": [[[*LINES.verifier["tests"][0][0], 3], LINES.verifier["tests"][0][1]]]}
    task = dataclasses.replace(LINES, verifier=LINES.verifier | two)
    shown = answered(task, GOLD.replace("(img)", "(img, colour)"))
    assert shown.success == 1.0 and drawing.relabel(task, shown) is None


@pytest.mark.parametrize(
    "grid", [[[1, 2], [3]], [[10]], [[-1]], [[0.5]], [[True]], [], [[]], "12", [[1] * 31]]
)
def test_what_a_prompt_cannot_show_is_no_drawing(grid):
    with pytest.raises(SuiteError, match="at most 30 a side, in colours 0 to 9"):
        drawing.asking(grid, GOLD, [[0]])
    with pytest.raises(SuiteError, match="at most 30 a side, in colours 0 to 9"):
        drawing.asking([[2]], GOLD, grid)


def test_lessons_keep_one_program_for_each_drawing_without_idle_lines():
    idle = GOLD.replace("return", "draw_pixel(img, (50, 50), 3)\n    return")
    wrong = GOLD.replace(", 8, 9)", ", 8, 1)")
    sampled = [
        answered(LINES, program, sample=i)
        for i, program in enumerate([GOLD, idle, wrong, HACKS["no result"]])
    ]
    found = lessons([LINES], sampled, Lab.open({"families": "drawing"}).families)
    assert [task.answer.strip() for task in found] == [wrong, GOLD]
    assert [task.meta["closeness"] for task in found] == [pytest.approx(8 / 9), 1.0]


# ---- until solved
def test_training_ends_once_all_tasks_of_a_step_are_solved():
    guards = Guards(Recipe(until_solved=True))
    guards.scored([trajectory("a", 1.0, reward=1.0), trajectory("b", 0.0, reward=0.0)])
    assert guards.watch.ended is None
    guards.scored(
        [trajectory("a", 1.0, reward=1.0), trajectory("a", 0.0, reward=0.0), trajectory("b", 1.0, reward=1.0)]
    )
    assert guards.watch.ended == "solved"
    never = Guards(Recipe())
    never.scored([trajectory("a", 1.0, reward=1.0)])
    assert never.watch.ended is None


def test_rounds_keep_the_best_drawing_so_far(tmp_path):
    run = Run.create(tmp_path / "run")
    rounds = until_solved._Rounds(run, LINES)
    near = answered(LINES, HACKS["one pixel off"])
    rounds([answered(LINES, HACKS["no result"]), near])
    rounds([answered(LINES, task_img())] * 2)
    rounds([answered(LINES, GOLD), near])
    rows = [Round(**row) for row in read_jsonl(run.file("rounds.jsonl"))]
    assert [row.rollouts for row in rows] == [2, 4, 6] and [row.success for row in rows] == [0.0, 0.0, 0.5]
    assert [row.pixels for row in rows] == [pytest.approx(80 / 81)] * 2 + [1.0]
    pictures = bests(rows, LINES)
    assert list(pictures) == ["target", "round 1: 99%", "round 3: 100%"]
    assert pictures["round 3: 100%"] == pictures["target"]


def test_the_table_and_the_figure_say_who_solved_it():
    def ending(success, rollouts):
        return [
            Round(1, 8, 30.0, 0.0, 0.5, None),
            Round(2, rollouts, 60.0, success, 1.0 if success else 0.6, None),
        ]

    found = [
        ("12", "grpo", 1, ending(0.0, 16)),
        ("12", "grpo", 2, ending(0.2, 24)),
        ("12", "her", 1, ending(0.5, 100)),
    ]
    rows = summary(found).set_index("method").to_dict("index")
    assert rows["grpo"]["solved"] == "1 of 2" and rows["grpo"]["rollouts"] == "24 (24 to 24)"
    assert rows["grpo"]["published"] == "584 rollouts" and rows["her"]["minutes"] == "1 (1 to 1)"
    assert rows["grpo"]["pixels of the worst"] == "60%"
    figure = plots.solving(frame(found), "12")
    assert [t.name for t in figure.data if t.showlegend] == ["grpo", "her"] and len(figure.data) == 6
    assert plots.solving(frame(found), "16").layout.annotations


def test_the_real_budget_has_more_rounds_than_any_drawing_took():
    recipe = read_recipe(ROOT / "params" / "drawing-0.5b.yaml")
    rounds = recipe["steps"] * recipe["group_size"] // recipe["hindsight_samples"]
    took = [int(n) for _, epochs in until_solved.PUBLISHED.values() for n in re.findall(r"\d+", epochs)]
    assert rounds > max(took) == 11


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """An adapter that changes nothing."""
    from agentkit.policies.loading import load_agent
    from agentkit.training.sft import cold_start, demonstrations

    lab = Lab.open({"families": "drawing", "max_turns": 1, "sft_learning_rate": 0.0, "sft_batch": 2})
    agent, tokenizer = load_agent("nano")
    out = tmp_path_factory.mktemp("start") / "sft"
    cold_start(agent, tokenizer, demonstrations(lab, drawing.drafts(1, 1), tokenizer), lab.recipe, out)
    return out


def test_every_method_spends_its_budget_and_is_read_the_second_time(start, tmp_path):
    lab = Lab.open({
        "families": "drawing", "reward": "drawing", "seed": 5, "max_turns": 1, "max_turn_tokens": 16, "max_tokens": 16,
        "steps": 2, "group_size": 2, "prompts_per_step": 1, "micro_batch": 2, "hindsight_samples": 4,
    })  # fmt: skip
    run = Run.create(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = solve_all(lab, start, run)
    assert [(name, method, seed) for name, method, seed, _ in found] == [
        ("lines", m, 5) for m in until_solved.METHODS
    ]
    spent = {method: rounds[-1].rollouts for _, method, _, rounds in found}
    assert spent == {"grpo": 4, "her": 4, "hybrid": 4}
    assert solve_all(lab, start / "gone", run) == found, "what has ended is read"
    with pytest.raises(RunError, match="made with another learning_rate"):
        solve_all(dataclasses.replace(lab, recipe=lab.recipe.but(learning_rate=0.5)), start, run)
    near = dataclasses.replace(lab, recipe=lab.recipe.but(hindsight_keep=0.25))
    for name in ("grpo", "her"):  # as written before there was such a key
        done = run.file("lines", name, "seed-5", "done.json")
        done.write_text(
            json.dumps({k: v for k, v in json.loads(done.read_text()).items() if k != "hindsight_keep"})
        )
    assert solve_all(lab, start, run) == found
    assert solve(near, start, LINES, "grpo", Run(run.file("lines", "grpo", "seed-5"))) == found[0][3]
    with pytest.raises(RunError, match="made with another hindsight_keep"):
        solve(near, start, LINES, "her", Run(run.file("lines", "her", "seed-5")))
    with pytest.raises(RecipeError, match="methods names 'sft'"):
        solve(lab, start, LINES, "sft", run)
    own = Run(run.file("lines", "grpo", "seed-5"))
    with pytest.raises(RunError, match="made with another prompt"):
        solve(lab, start, dataclasses.replace(LINES, prompt="123456789"), "grpo", own)


def test_a_cold_start_is_kept_and_one_of_other_keys_is_refused(tmp_path):
    lab = Lab.open({"families": "drawing", "sft": True, "max_turns": 1, "sft_batch": 2, "n_tasks": 20})
    run, shown = Run.create(tmp_path / "run"), drawing.drafts(1, 1)

    def begin(**changes):
        recipe = lab.recipe.but(**changes)
        return until_solved.begin(dataclasses.replace(lab, recipe=recipe), shown, run)

    assert begin(sft=False) == (None, [])
    half, _ = until_solved._agent(lab.recipe.but(precision="bfloat16"), None)
    assert str(half.dtype) == "torch.bfloat16"
    start, log = begin()
    assert log and (start / "adapter_model.safetensors").exists()
    assert begin(steps=3, seed=4, max_batch=2) == (start, []), "keys that it does not depend on"
    for name, value in {"sft_epochs": 5, "sft_learning_rate": 0.5, "model": "other", "n_tasks": 30}.items():
        with pytest.raises(RunError, match=f"made with another {name}"):
            begin(**{name: value})
    shown.append(dataclasses.replace(shown.pop(), prompt="as an older kit showed it"))
    with pytest.raises(RunError, match="made with another prompt"):
        begin()


def test_the_last_rollouts_of_two_methods_are_two_groups(tmp_path):
    run, found = Run.create(tmp_path / "run"), []
    for method, rewards in {"grpo": (0.1, 0.5), "hybrid": (0.9, 0.7)}.items():
        own = Run.create(run.file("lines", method, "seed-1"))
        sampled = [
            answered(LINES, task_img(), policy="grpo", sample=i, reward=r) for i, r in enumerate(rewards)
        ]
        until_solved._Rounds(own, LINES)(sampled)
        found.append(("lines", method, 1, [Round(**row) for row in read_jsonl(own.file("rounds.jsonl"))]))
    found.append(("lines", "grpo", 2, found[0][3]))  # of another seed, and not read
    last = until_solved.last_rollouts(found, run, 1)
    assert [t.reward for t in last] == [0.5, 0.1, 0.9, 0.7]
    groups = group_view(last, [LINES]).payload["groups"]
    assert [(group["policy"], group["mean"]) for group in groups] == [("grpo", 0.3), ("hybrid", 0.8)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nano-drawing", "drawing-0.5b"])
def test_the_notebook_ends_with_a_table_and_pictures(name, tmp_path):
    budget = {
        "model": "nano",
        "drawings": "lines",
        "n_seeds": 1,
        "n_tasks": 20,
        "sft_epochs": 1,
        "steps": 2,
        "group_size": 2,
        "micro_batch": 2,
        "hindsight_samples": 2,
    }
    tiny = read_recipe(ROOT / "params" / f"{name}.yaml") | {"max_turn_tokens": 24, "max_tokens": 24} | budget
    out = tmp_path / "drawing.ipynb"
    papermill.execute_notebook(
        ROOT / "notebooks" / "drawing.ipynb",
        out,
        tiny | {"run": str(tmp_path / "run")},
        cwd=ROOT,
        progress_bar=False,
    )
    shown = " ".join(str(cell.get("outputs", "")) for cell in nbformat.read(out, as_version=4).cells)
    assert shown.count("data:image/png;base64") >= 10 and "How fast is lines drawn?" in shown
    rows = read_json(tmp_path / "run" / "drawing.json")
    assert [(row["method"], row["solved"]) for row in rows] == [(m, "0 of 1") for m in until_solved.METHODS]
