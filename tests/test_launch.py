"""Several processes: what a notebook's cells define becomes a module, and two processes train one adapter."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from survive import SMALL, Silent, evenness, tasks, tiny_agent

from agentkit.rewards import plan, product
from agentkit.runs import Run, RunError, read_jsonl, write_tasks
from agentkit.runs.recipe import Recipe, RecipeError
from agentkit.training.grpo import AgentGRPOTrainer, train
from agentkit.training.launch import export, launch, load_module

CELLS = [
    """
import math
import json as j
from collections import Counter
from agentkit.rewards import correctness

LIMIT = 3
WORDS = {"a": [1, 2.5, None], "b": ("x",)}
""",
    """
def helper(x):
    return math.sqrt(x) + LIMIT


def shout(f):
    f.loud = True
    return f


class Base:
    def reset(self, **unused):
        return None


class Environment(Base):
    names = Counter()

    def look(self, at: str) -> str:
        \"\"\"Look.

        Args:
            at: What.
        \"\"\"
        return j.dumps([at, WORDS["b"][0]])


@shout
def brevity(task, trajectory):
    return -helper(len(trajectory.completion_ids)) + len(WORDS)
""",
    "def brevity_2(task, trajectory):\n    return brevity(task, trajectory) * 2\n",
]


@pytest.fixture
def notebook():
    """A kernel's namespace after the cells ran; their source is where IPython keeps it."""
    shell = InteractiveShell()
    for cell in CELLS:
        assert shell.run_cell(cell).success
    return shell.user_ns


def defined_by(text: str, tmp_path: Path) -> dict:
    path = tmp_path / "module.py"
    path.write_text(text)
    return load_module(path)


def test_what_cells_define_works_in_a_module_of_its_own(notebook, tmp_path):
    reward = {"brevity": (notebook["brevity_2"], 0.5), "correctness": (notebook["correctness"], 1.0)}
    text = export({"environment": notebook["Environment"], "reward": reward})
    child = subprocess.run([sys.executable, "-c", text + "\nprint(environment().look('x'), reward['brevity'][1], LIMIT)"],
                           capture_output=True, text=True, cwd=Path(__file__).parents[1])  # fmt: skip
    assert child.stdout == '["x", "x"] 0.5 3\n', child.stderr
    found = defined_by(text, tmp_path)
    trajectory = type("T", (), {"completion_ids": (1, 2, 3, 4)})
    assert found["reward"]["brevity"][0](None, trajectory) == 2 * (-(2 + 3) + 2) and found["brevity"].loud
    assert found["reward"]["correctness"][0] is notebook["correctness"]


def test_packages_functions_are_imported_and_nothing_stays_nothing(tmp_path):
    found = defined_by(export({"environment": None, "reward": plan(format_weight=0.25)}), tmp_path)
    assert found["environment"] is None and found["reward"] == plan(format_weight=0.25)


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("bad = lambda task, trajectory: 1.0", "<lambda>"),
        ("def outer():\n    k = 2\n    def inner(t, r):\n        return k\n    return inner\nbad = outer()", "inner"),
        ("log = open('/dev/null')\ndef bad(task, trajectory):\n    return log.write('x')", "log, which bad uses"),
        ("import functools\nbad = functools.partial(print)", "reward\\['bad'\\] refers to an object of type partial"),
        ("def one(t):\n    return 1\ndef two(t):\n    return 2\ntwo.__name__ = 'one'\nbad = [one, two]", "two different"),
    ],
    ids=["lambda", "closure", "open file", "partial", "same name"],
)  # fmt: skip
def test_what_cannot_be_written_down_is_named(cell, name):
    shell = InteractiveShell()
    assert shell.run_cell(cell).success
    with pytest.raises(RunError, match=name):
        export({"reward": {"bad": (shell.user_ns["bad"], 1.0)}})


def test_a_product_of_components_stays_one_where_it_can_and_is_refused_where_not():
    with pytest.raises(RunError, match="multiplied"):
        export({"reward": {"both": (product(evenness), 1.0)}})


def test_groups_are_never_split():
    with pytest.raises(RecipeError, match="processes 3 must divide prompts_per_step 8"):
        Recipe.from_mapping({"processes": 3})
    with pytest.raises(RecipeError, match="micro_batch 64 the 32 trajectories of each"):
        Recipe.from_mapping({"processes": 2, "micro_batch": 64})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny agent as a folder, and tasks."""
    folder = tmp_path_factory.mktemp("launch")
    model, tokenizer = tiny_agent()
    model.save_pretrained(folder / "agent")
    tokenizer.save_pretrained(folder / "agent")
    return folder


def prepared(folder: Path, name: str, **changes) -> tuple[Run, Recipe]:
    run = Run.create(folder / name)
    write_tasks(run.file("tasks.jsonl"), [*tasks(), *tasks(2, "validation")])
    values = SMALL | {
        "model": str(folder / "agent"),
        "prompts_per_step": 2,
        "micro_batch": 2,
        "steps": 3,
        "processes": 2,
    }
    return run, Recipe.from_mapping(values | changes)


@pytest.mark.slow
def test_two_processes_train_one_adapter_on_whole_groups(folder):
    run, recipe = prepared(folder, "two")
    rows = []
    result = launch(run, recipe, Silent, {"evenness": (evenness, 1.0)}, rows.append)
    assert result["steps"] == 3 and [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [row["step"] for row in read_jsonl(run.file("train", "metrics.jsonl"))] == [0, 1, 2, 3]
    for step in (1, 2, 3):
        found = [t.task_id for t in run.trajectories(step)]
        assert len(found) == 8 and found == [found[0]] * 4 + [found[4]] * 4
    one, recipe = prepared(folder, "one", processes=1, micro_batch=4)
    options = {"environment": Silent, "reward": {"evenness": (evenness, 1.0)}}
    train(AgentGRPOTrainer(*tiny_agent(), tasks(), tasks(2, "validation"), recipe, one, **options))
    alone = read_jsonl(one.file("train", "metrics.jsonl"))
    assert rows[1]["reward"] == pytest.approx(alone[1]["reward"]) and rows[2]["kl"] == pytest.approx(
        alone[2]["kl"], rel=1e-2
    )
    norms = [[row["grad_norm"] for row in found[1:]] for found in (rows, alone)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2), "two processes take the steps that one would"
    assert math.isfinite(rows[-1]["loss"]) and run.file("adapter", "adapter_model.safetensors").exists()


def test_another_number_of_processes_is_refused(folder):
    """As where accelerate launch --cpu --num_processes 2 runs one."""
    run, recipe = prepared(folder, "wrong")
    with pytest.raises(RunError, match="the recipe says processes: 2, and 1 runs"):
        AgentGRPOTrainer(*tiny_agent(), tasks(), tasks(2, "validation"), recipe, run, environment=Silent)
    assert not run.file("train").exists()


@pytest.mark.slow
def test_interrupting_the_launch_leaves_a_checkpoint_and_no_process(folder):
    run, recipe = prepared(folder, "stopped", steps=60, save_every=0, val_every=60)
    threads = threading.active_count()

    def stop_after_two(row):
        if row["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(run, recipe, Silent, {"evenness": (evenness, 1.0)}, stop_after_two)
    found = [p.name for p in run.file("train", "checkpoints").glob("checkpoint-*")]
    assert len(found) == 1
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _workers(run):
        time.sleep(0.2)
    assert not _workers(run) and threading.active_count() <= threads + 2


def _workers(run: Run) -> list[str]:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in found if "agentkit.training.worker" in line and str(run.path) in line]
