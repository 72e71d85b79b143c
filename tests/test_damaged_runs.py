"""A finished run whose files are damaged, swapped or foreign: a sentence each, and nothing is changed."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_report import make_run

from agentkit.cli import main
from agentkit.evaluation import compare
from agentkit.records import AgentkitError, DiskError, RunError, Task
from agentkit.runs import Run, append_jsonl, load_run, open_file, write_trajectories
from agentkit.runs.stages import execute
from agentkit.runs.sweep import Job, Sweep, left_out, make
from agentkit.views.widgets.dashboard import Controls

EVAL, STEP = "eval/grpo.parquet", "train/trajectories/step_00002.parquet"
METRICS, ALARMS, SUITE = "train/metrics.jsonl", "train/alarms.jsonl", "tasks.jsonl"


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
    files = {}
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        plain = path.is_file() and not path.is_symlink()
        files[str(path)] = kind, hashlib.sha256(path.read_bytes()).hexdigest() if plain else ""
    return files


@contextlib.contextmanager
def within(seconds: int):
    """A reader that waits for ever, as for a pipe, fails."""

    def late(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- ways to damage a file
def rows(rel, change):
    """The rows of a Parquet file changed; columns keep their types."""

    def damage(folder):
        table = pq.read_table(folder / rel)
        changed = table.to_pylist()
        changed = change(changed) or changed
        pq.write_table(pa.Table.from_pylist(changed, schema=table.schema), folder / rel)

    return damage


def retyped(rel, name, values):
    """One column of a Parquet file of another type, or gone."""

    def damage(folder):
        table = pq.read_table(folder / rel)
        kept = table.drop_columns([name])
        pq.write_table(
            kept if values is None else kept.append_column(name, [values * len(table)]), folder / rel
        )

    return damage


def field(rel, name, value, row=3):
    return rows(rel, lambda found: found[row].update({name: value}))


def inside(rel, *place_and_value):
    """A value deep in the turns of one row."""
    *place, value = place_and_value

    def change(found):
        turns = json.loads(found[3]["turns"])
        target = turns
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = value
        found[3]["turns"] = json.dumps(turns)

    return rows(rel, change)


def lines(rel, change):
    def damage(folder):
        found = [json.loads(line) for line in (folder / rel).read_text().splitlines()]
        found = change(found) or found
        (folder / rel).write_text("".join(json.dumps(row) + "\n" for row in found))

    return damage


def text(rel, content):
    return lambda folder: (folder / rel).write_bytes(content)


def copied(source, to):
    return lambda folder: shutil.copy(folder / source, folder / to)


def swapped(a, b):
    def damage(folder):
        (folder / a).rename(folder / "x")
        (folder / b).rename(folder / a)
        (folder / "x").rename(folder / b)

    return damage


def _socket(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


ODD = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": _socket,
    "link to itself": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
}


def odd(rel, kind):
    def damage(folder):
        (folder / rel).unlink()
        ODD[kind](folder / rel)

    return damage


def compared(folder):
    run = load_run(folder)
    compare({name: run.trajectories(name) for name in ("sft", "grpo")}, run.tasks)


COMMANDS = {
    "alarms": lambda folder: main(["alarms", str(folder)]),
    "report": lambda folder: main(["report", str(folder), "--out", str(folder / "../card.html")]),
    "audit": lambda folder: main(["audit", str(folder)]),
    "compare": compared,
}
BOTH = ("report", "compare")
TRAINED = ("alarms",)
RESULT = {"name": "search", "arguments": {}, "observation": "", "ok": True, "seconds": 0.0, "cached": False}
CASES = {
    # files that are not what their names say
    "policies swapped": (swapped("eval/sft.parquet", EVAL), BOTH, "row 1 is of policy"),
    "policy copied": (copied("eval/sft.parquet", EVAL), BOTH, "row 1 is of policy 'sft', and the file of grpo"),
    "one row of another policy": (field(EVAL, "policy", "base"), BOTH, "row 4 is of policy 'base'"),
    "training as evaluation": (copied(STEP, EVAL), BOTH, "row 1 is of step 2, and the file of no training step"),
    "evaluation as training": (copied(EVAL, STEP), TRAINED, "row 1 is of no training step, and the file of step 2"),
    "steps swapped": (swapped("train/trajectories/step_00001.parquet", STEP), TRAINED, "is of step 2, and the file of step 1"),
    "one row of another step": (field(STEP, "step", 9), TRAINED, "row 4 is of step 9"),
    "one row of another policy in training": (field(STEP, "policy", "sft"), TRAINED, "row 4 is of policy 'sft'"),
    "rows twice": (rows(EVAL, lambda found: found + found), BOTH, "a second time"),
    "each row twice": (rows(EVAL, lambda found: [row for row in found for _ in "ab"]), BOTH, "row 2 holds sample 0 of task 't0' a second"),
    "a row of training twice": (rows(STEP, lambda found: [*found, found[3]]), TRAINED, "row 13 holds sample 1 of task 't1' a second"),
    "an unknown task": (field(EVAL, "task_id", "z"), BOTH, "tasks.jsonl lacks task 'z', which row 4 is of"),
    "an unknown task in training": (field(STEP, "task_id", "z"), TRAINED, "lacks task 'z', which row 4"),
    "another suite": (lines(SUITE, lambda found: [row.update(id=f"o{row['id']}") for row in found] and None), ("compare", *TRAINED), "lacks task 't0'"),
    "half of the suite": (lines(SUITE, lambda found: found[:3]), ("compare", *TRAINED), "lacks task 't3'"),
    "half of an evaluation": (rows(EVAL, lambda found: found[:6]), ("compare",), "tasks of sft missing in grpo"),
    # fields of a wrong kind
    "no policy": (field(EVAL, "policy", None), BOTH, "row 4: policy is None"),
    "no task id": (field(STEP, "task_id", None), TRAINED, "row 4: task_id is None"),
    "success of 7": (field(EVAL, "success", 7.0), BOTH, "row 4: success is 7.0"),
    "success of nan": (field(EVAL, "success", float("nan")), BOTH, "row 4: success is no number"),
    "success as text": (retyped(EVAL, "success", ["1.0"]), BOTH, "row 1: success is '1.0'"),
    "no success": (retyped(EVAL, "success", None), BOTH, "success"),
    "no turns": (retyped(STEP, "turns", None), TRAINED, "turns"),
    "sample of -1": (field(EVAL, "sample", -1), BOTH, "row 4: sample is -1"),
    "masks of 3": (field(STEP, "action_mask", [3, 3, 3]), TRAINED, "row 4: action_mask"),
    "token fields of other lengths": (field(STEP, "action_mask", [1]), TRAINED, "row 4: its token fields differ in length"),
    "a token of no vocabulary": (field(STEP, "completion_ids", [-7, 5, 5]), TRAINED, r"row 4: completion_ids\[0\] is -7"),
    "holes in the tokens": (field(STEP, "completion_ids", [None] * 3), TRAINED, r"row 4: completion_ids\[0\] is None"),
    "tokens as text": (retyped(STEP, "completion_ids", [["a", "b", "c"]]), TRAINED, r"completion_ids\[0\] is 'a'"),
    "a reason that is none": (field(EVAL, "stop_reason", "bored"), BOTH, "row 4: 'bored' is not a valid StopReason"),
    "components as a list": (field(EVAL, "components", "[1]"), BOTH, r"row 4: components is \[1\]"),
    "a component as text": (field(STEP, "components", '{"match": "x"}'), TRAINED, "row 4: components.match is 'x'"),
    "turns that are no JSON": (field(STEP, "turns", "{"), TRAINED, "row 4: "),
    "turns too deep": (field(STEP, "turns", "[" * 100_000), TRAINED, "row 4: .*nested too deeply"),
    "a turn's text": (inside(STEP, 0, "text", 5), TRAINED, r"row 4: turns\[0\].text is 5"),
    "a turn's span": (inside(EVAL, 0, "span", [1]), BOTH, r"row 4: turns\[0\].span is \[1\]"),
    "a reward without bound": (field(STEP, "reward", float("inf")), TRAINED, "row 4: reward is inf, and must be smaller"),
    "a reward of nan": (field(EVAL, "reward", float("nan")), BOTH, "row 4: .reward. is nan, which is no number"),
    "an advantage without bound": (field(STEP, "advantage", float("-inf")), TRAINED, "row 4: advantage is -inf"),
    "a component without bound": (field(STEP, "components", '{"match": -Infinity}'), TRAINED, "row 4: components.match is -inf"),
    "log-probabilities of nan": (field(STEP, "old_logprobs", [-1.0, float("nan"), 0.0]), TRAINED, "row 4: old_logprobs holds what is no number"),
    "seconds without bound": (inside(EVAL, 0, "seconds", float("inf")), BOTH, r"row 4: turns\[0\].seconds is inf"),
    "a span beyond the tokens": (inside(EVAL, 0, "span", [1, 99]), BOTH, r"row 4: a turn spans \(1, 99\) of 3 completion tokens"),
    "a span before the tokens": (inside(STEP, 0, "span", [-1, 2]), TRAINED, r"row 4: a turn spans \(-1, 2\) of 3"),
    "a span backwards": (inside(STEP, 0, "span", [2, 1]), TRAINED, r"row 4: a turn spans \(2, 1\) of 3"),
    "a turn's seconds": (inside(STEP, 0, "seconds", "1"), TRAINED, r"turns\[0\].seconds is '1'"),
    "results as text": (inside(STEP, 0, "results", "abc"), TRAINED, r"turns\[0\].results is 'abc'"),
    "arguments as text": (inside(STEP, 0, "results", [RESULT | {"arguments": "x"}]), TRAINED, r"results\[0\].arguments is 'x'"),
    "an observation of none": (inside(EVAL, 0, "results", [RESULT | {"observation": None}]), BOTH, r"results\[0\].observation is None"),
    "ok as text": (inside(EVAL, 0, "results", [RESULT | {"ok": "yes"}]), BOTH, r"results\[0\].ok is 'yes'"),
    "an unknown field": (inside(EVAL, 0, "mood", "good"), BOTH, r"turns\[0\].*mood"),
    # metrics and alarms
    "no metrics": (text(METRICS, b""), ("alarms",), "'step' from 1 on .*kl.*grad_norm"),
    "metrics of others": (lines(METRICS, lambda found: [{"iter": i, "train_loss": 1.0} for i in range(9)]), ("alarms",), "'step' from 1 on"),
    "a validation only": (lines(METRICS, lambda found: found[:1]), ("alarms",), "'step' from 1 on"),
    "too few steps of success alone": (lambda folder: (shutil.rmtree(folder / "train/trajectories"), lines(METRICS, lambda found: [{"step": i, "success": 0.5} for i in range(1, 11)])(folder)), ("alarms",), "holds 10 training steps, at which no alarm could look: .* success in 28 steps. Log one"),
    "a measure as text": (lines(METRICS, lambda found: found[2].update(reward="abc")), ("alarms", "report"), "reward is 'abc'.*gap: steps 2 to 2"),
    "a measure as a list": (lines(METRICS, lambda found: found[2].update(kl=[1])), ("alarms", "report"), r"kl is \[1\]"),
    "a measure beyond any float": (lines(METRICS, lambda found: found[2].update(kl=10**400)), ("alarms", "report"), "kl is 1000"),
    "a step as text": (lines(METRICS, lambda found: found[2].update(step="2")), ("alarms", "report"), "step is '2'"),
    "metrics twice": (lines(METRICS, lambda found: found + found), ("alarms", "report"), "step 0 has several rows"),
    "a gap": (lines(METRICS, lambda found: found[:1] + found[3:]), ("alarms", "report"), "gap: steps 1 to 2 have no row"),
    "an alarm of another form": (lines(ALARMS, lambda found: found[0].update(evidence=None)), ("report",), "evidence is None"),
    "rollouts of a step gone": (lambda folder: (folder / STEP).unlink(), ("alarms",), "no rollouts of step 2"),
    # the others
    "a file of a policy that has no name": (copied(EVAL, "eval/grpo (copy).parquet"), ("report",), "policy name 'grpo .copy.' is refused"),
    "a recipe of a wrong kind": (lambda folder: Run(folder).update(recipe={"n_tasks": "many"}), ("report",), r"run.json: n_tasks is 'many'"),
    "a suite's prompt": (lines(SUITE, lambda found: found[2].update(prompt=5)), ("audit", "compare"), "task 3 .*prompt must be text"),
    "a suite's task twice": (lines(SUITE, lambda found: found + found[:1]), ("audit", "compare"), "task t0 occurs twice"),
    "a comparison of text": (text("comparison.json", b'{"policies": 3}'), ("report",), "comparison.json holds no comparison"),
    "a baseline of text": (text("baseline.json", b"[]"), ("report",), "cannot be shown|baseline.json"),
    "a torn comparison": (text("comparison.json", b'{"n_tasks": 4, "pol'), ("report",), "comparison.json is not valid JSON"),
    "a suite that was edited": (lambda folder: (folder / SUITE).open("a").write("\n"), ("report",), "Not as the stage that wrote it left it: tasks.jsonl"),
}  # fmt: skip
FILES = {EVAL: BOTH, STEP: TRAINED, METRICS: ("alarms", "report"), SUITE: ("audit", "compare"),
         "comparison.json": ("report",), "run.json": ("report",)}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_a_sentence_and_nothing_changes(run, name, capsys):
    damage, commands, says = CASES[name]
    damage(run.path)
    check(run.path, commands, says, capsys)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("rel", FILES)
def test_what_is_no_file_is_a_sentence_and_nobody_waits(run, rel, kind, capsys):
    odd(rel, kind)(run.path)
    check(run.path, FILES[rel], "" if "link" in kind else Path(rel).name, capsys)


def check(folder, commands, says, capsys):
    before = contents(folder)
    for command in commands:
        with within(60):
            try:
                status = COMMANDS[command](folder)
                told = capsys.readouterr()
                told, printed = told.err, told.out
            except AgentkitError as error:
                status, told, printed = 2, str(error) + "\n", ""
        assert status in (0, 2) and "Traceback" not in told
        sentences = told.splitlines()
        assert not says or any(re.search(says, sentence) for sentence in sentences), (command, told, printed)
        assert all(len(sentence) < 900 for sentence in sentences) and "0 alarms" not in printed
    assert contents(folder) == before


def test_a_value_without_bound_stays_in_its_row_and_is_an_alarm(run, capsys):
    lines(METRICS, lambda found: found[2].update(grad_norm=float("inf")))(run.path)
    assert COMMANDS["alarms"](run.path) == 0
    told = capsys.readouterr()
    assert "step 2, critical: gradient_spike" in told.out and "left out" not in told.err


def test_a_file_that_may_not_be_read_is_a_run_error(run, monkeypatch):
    def refused(path):
        if path.name == SUITE:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path)

    run.end("05_compare")  # hashes are kept
    monkeypatch.setattr("agentkit.runs.files.open_file", refused)
    with pytest.raises(RunError, match="tasks.jsonl cannot be read .Permission denied."):
        _ = run.tasks


# ---- files that are written, appended to or locked
def training_lock(folder):
    from agentkit.training.processes import lock, unlock

    run = Run(folder)
    lock(run)
    unlock(run)


def held(folder):
    with Sweep(folder).held():
        pass


def asked(folder):
    controls = Controls(Run(folder))
    controls.is_on = True
    controls._asked(None, {"word": "stop"}, [])


WRITERS = {
    ".training": training_lock,
    ".lock": held,
    "train/metrics.jsonl": lambda folder: append_jsonl(folder / "train/metrics.jsonl", {"step": 1}),
    "train/.control": asked,
    "01_tasks.ipynb": lambda folder: execute("01_tasks", Run(folder), {}),
    "cell.log": lambda folder: make(Job(folder, {}, 0, {}, None)),
}


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_disk_that_takes_no_locks_is_named_and_nobody_is_accused(tmp_path, monkeypatch, code):
    """As NFS without its lock service, and Lustre mounted without them."""

    def refused(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.lockf", refused)
    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(DiskError, match="the disk fails at locking .*put the run on a local disk"):
        training_lock(tmp_path)
    with pytest.raises(DiskError, match="cannot be written .*put the run on a local disk"):
        append_jsonl(tmp_path / "rows.jsonl", {"step": 1})
    with pytest.raises(DiskError, match="the disk fails at locking"), Sweep(tmp_path / "sweep").held():
        pass


@pytest.mark.parametrize("kind", ("pipe", "folder", "device", "socket", "link to itself"))
@pytest.mark.parametrize("rel", WRITERS)
def test_what_is_no_file_is_not_written_or_locked_and_nobody_waits(tmp_path, rel, kind):
    (tmp_path / "out" / rel).parent.mkdir(parents=True)
    ODD[kind](tmp_path / "out" / rel)
    with within(90), pytest.raises(RunError, match=r"cannot be written \(.*\)\. Move away what is there, or"):
        WRITERS[rel](tmp_path / "out")


@pytest.mark.parametrize("kind", ODD)
def test_a_watched_sweep_waits_for_no_file_of_its_folder(tmp_path, kind):
    sweep, job = Sweep(tmp_path / "out"), Job(tmp_path / "out" / "a" / "seed-1", {}, 0, {}, None, "a", 1)
    job.folder.mkdir(parents=True)
    for name in ("skip", "stop", ".lock"):
        ODD[kind](sweep.file(name))
    with within(90):
        assert left_out(job) == ""
        with contextlib.suppress(RunError):
            assert not sweep.is_held
        if kind == "folder":
            sweep.file(".lock").rmdir()
            with pytest.raises(RunError, match="stop cannot be written .Is a directory."), sweep.held():
                pass
