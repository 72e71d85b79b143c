"""A finished run whose files are damaged, swapped or foreign: a sentence each, and nothing is changed."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_report import make_run

from agentkit.cli import main
from agentkit.evaluation import compare
from agentkit.records import AgentkitError, Task
from agentkit.runs import Run, load_run, write_trajectories

EVAL, STEP = "eval/grpo.parquet", "train/trajectories/step_00002.parquet"
METRICS, SUITE = "train/metrics.jsonl", "tasks.jsonl"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run with two policies and the rollouts of four steps."""
    tasks = [Task(f"t{i}", f"What is {i} + 5?", str(i + 5), "numeric", "A", "easy", "test") for i in range(6)]
    run = make_run(tmp_path_factory.mktemp("finished") / "run", tasks=tasks)
    for step in range(1, 5):
        batch = [dataclasses.replace(t, step=step) for t in run.trajectories("grpo")]
        write_trajectories(run.file("train", "trajectories", f"step_{step:05d}.parquet"), batch)
    run.update(recipe={"reward": "toolrl", "n_tasks": 40})
    return run.path


@pytest.fixture
def run(finished, tmp_path) -> Run:
    return load_run(shutil.copytree(finished, tmp_path / "run"))


def contents(folder: Path) -> dict:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(rel, change):
    """The rows of a Parquet file changed; columns keep their types."""

    def damage(folder):
        table = pq.read_table(folder / rel)
        changed = table.to_pylist()
        changed = change(changed) or changed
        pq.write_table(pa.Table.from_pylist(changed, schema=table.schema), folder / rel)

    return damage


def lines(rel, change):
    def damage(folder):
        found = [json.loads(line) for line in (folder / rel).read_text().splitlines()]
        found = change(found) or found
        (folder / rel).write_text("".join(json.dumps(row) + "\n" for row in found))

    return damage


def swapped(folder):
    (folder / EVAL).rename(folder / "x")
    (folder / "eval/sft.parquet").rename(folder / EVAL)
    (folder / "x").rename(folder / "eval/sft.parquet")


def compared(folder):
    run = load_run(folder)
    compare({name: run.trajectories(name) for name in ("sft", "grpo")}, run.tasks)


COMMANDS = {
    "alarms": lambda folder: main(["alarms", str(folder)]),
    "report": lambda folder: main(["report", str(folder), "--out", str(folder / "../card.html")]),
    "audit": lambda folder: main(["audit", str(folder)]),
    "compare": compared,
}
CASES = {
    # files that are not what their names say
    "policies swapped": (swapped, ["compare"], "holds a row of policy .*, step None"),
    "training as evaluation": (lambda folder: shutil.copy(folder / STEP, folder / EVAL), ["compare"], "holds a row of policy 'grpo', step 2"),
    "an unknown task": (rows(EVAL, lambda found: found[3].update(task_id="z")), ["compare"], "holds a row of task 'z', which the run's suite lacks"),
    "half of an evaluation": (rows(EVAL, lambda found: found[:6]), ["compare"], "tasks of sft missing in grpo"),
    # fields of a wrong kind
    "token fields of other lengths": (rows(STEP, lambda found: found[3].update(action_mask=[1])), ["alarms"], "row 4: its token fields differ in length"),
    "turns too deep": (rows(STEP, lambda found: found[3].update(turns="[" * 100_000)), ["alarms"], "row 4: .*nested too deeply"),
    # metrics and tasks
    "metrics of others": (lines(METRICS, lambda found: [{"iter": i, "train_loss": 1.0} for i in range(9)]), ["alarms"], "'step' from 1 on"),
    "a measure as text": (lines(METRICS, lambda found: found[2].update(reward="abc")), ["alarms", "report"], "no metrics of a step: 1; steps without a row: 1, the first of them 2"),
    "a gap": (lines(METRICS, lambda found: found[:1] + found[3:]), ["alarms", "report"], "steps without a row: 2, the first of them 1"),
    "a suite's prompt": (lines(SUITE, lambda found: found[2].update(prompt=5)), ["audit", "compare"], "tasks.jsonl, line 3: prompt is 5; it should be text"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_a_sentence_and_nothing_changes(run, name, capsys):
    damage, commands, says = CASES[name]
    damage(run.path)
    before = contents(run.path)
    for command in commands:
        try:
            status = COMMANDS[command](run.path)
            told, printed = (shown := capsys.readouterr()).err, shown.out
        except AgentkitError as error:
            status, told, printed = 2, str(error), ""
        sentences = told.splitlines()
        assert status in (0, 2) and any(re.search(says, sentence) for sentence in sentences), (command, told)
        assert all(len(sentence) < 900 for sentence in sentences) and "0 alarms" not in printed
    assert contents(run.path) == before
