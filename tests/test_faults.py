"""Faults from outside: signals that end a command or papermill, and writers of one log killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from survive_sweeps import left, until
from test_slots import STOPPED, WAIT, project

from agentkit.runs import append_jsonl, read_jsonl
from agentkit.runs.children import signals
from agentkit.training import checkpoint_folders

HERE = Path(__file__).parent
STEPS = 30
CELL = """
from pathlib import Path
from survive import make_trainer
result = make_trainer(Path({run!r}), steps={steps}, val_every={steps}, save_every=5).train()
result
"""


def papermill(folder: Path) -> subprocess.Popen:
    notebook = new_notebook(
        cells=[new_code_cell("before = 1"), new_code_cell(CELL.format(run=str(folder / "run"), steps=STEPS))]
    )
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / "in.ipynb")
    words = [
        sys.executable,
        "-m",
        "papermill",
        "--no-progress-bar",
        str(folder / "in.ipynb"),
        str(folder / "out.ipynb"),
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def steps_done(folder: Path) -> list[int]:
    file = folder / "run" / "train" / "metrics.jsonl"
    return [row["step"] for row in read_jsonl(file)] if file.exists() else []


@pytest.mark.slow
def test_sigterm_under_papermill_leaves_a_checkpoint_and_a_valid_notebook_and_it_goes_on(tmp_path):
    child = papermill(tmp_path)
    while child.poll() is None and max(steps_done(tmp_path), default=0) < 6:
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    start = time.monotonic()
    assert child.wait(timeout=120) != 0
    while (
        not checkpoint_folders.steps(tmp_path / "run" / "train" / "checkpoints")
        and time.monotonic() - start < 240
    ):
        time.sleep(0.1)
    found = checkpoint_folders.steps(tmp_path / "run" / "train" / "checkpoints")
    assert found and 5 <= int(found[0].name.removeprefix("checkpoint-")) < STEPS
    checkpoint_folders.verify(found[0])
    nbformat.validate(nbformat.read(tmp_path / "out.ipynb", as_version=4))
    assert papermill(tmp_path).wait(timeout=600) == 0
    assert steps_done(tmp_path) == list(range(STEPS + 1))
    said = json.dumps(nbformat.read(tmp_path / "out.ipynb", as_version=4).cells[-1].outputs)
    assert "going on from" in said and f"'steps': {STEPS}" in said


LATE = "IOStream.flush timed out\n"  # ipykernel's own, of one that ends on a busy machine
COMMANDS = {
    "run": ["run", "params/recipe.yaml", "--run", "outputs/out", "--to", "02"],
    "sweep": ["sweep", "params/sweep.yaml", "--run", "outputs/out"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_stops_as_by_ctrl_c(tmp_path, command, how):
    project(tmp_path, [0.1, 0.2], WAIT)
    words = [sys.executable, "-m", "agentkit.cli", *COMMANDS[command]]
    child = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until(lambda: child.poll() is not None or list(tmp_path.glob("notes/02*")), 300)
        kernels = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(how)
        child.send_signal(how)  # as timeout(1) does, which signals the process and its group
        _, said = child.communicate(timeout=120)
    finally:
        child.kill()
    assert (child.returncode, said.replace(LATE, "")) == (128 + how, STOPPED)
    assert kernels
    until(lambda: not left(kernels), 30)


STEP = """
try:
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(3)
    (notes / "saved").touch()
    raise
"""
HASTY = "import sys; from agentkit.runs import stages; stages.SHUTDOWN_S = 1.0; "
HASTY += "from agentkit.cli import main; sys.exit(main())"


def test_a_command_that_is_told_to_end_waits_for_a_training_s_step(tmp_path):
    project(tmp_path, [0.1], STEP)
    words = [sys.executable, "-c", HASTY, *COMMANDS["run"][:-1], "03", "--from", "03"]
    child = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        until(lambda: child.poll() is not None or list(tmp_path.glob("notes/03*")), 300)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=120)
    finally:
        child.kill()
    again = STOPPED.replace("command to", "command, --from the notebook that stopped, to")
    assert (child.returncode, said.replace(LATE, "")) == (128 + signal.SIGTERM, again) and (
        tmp_path / "notes/saved"
    ).exists()


def test_a_signal_that_is_ignored_stays_so():
    before, heard = signal.signal(signal.SIGHUP, signal.SIG_IGN), []
    try:
        with signals(heard.append, "SIGTERM", "SIGHUP"):
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == ["SIGTERM"]


def hammer(path: Path, kills: int, writers: int = 4, seed: int = 1) -> tuple[set, list[dict]]:
    """Writers that append to one log and are killed at random; the lines they were told are written, and
    those in the file.
    """
    code = (
        "import sys, agentkit.runs as r\nfor i in range(10**6):\n"
        " r.append_jsonl(sys.argv[1], {'w': sys.argv[2], 'i': i, 'pad': 'x' * (7 * i % 9000)}); print(i, flush=True)"
    )
    rng, told, running = random.Random(seed), set(), []

    def start(name: int) -> tuple[int, subprocess.Popen]:
        words = [sys.executable, "-S", "-c", "import site; site.main()\n" + code, str(path), str(name)]
        return name, subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)

    def end(name: int, child: subprocess.Popen) -> None:
        child.kill()
        told.update((str(name), int(line)) for line in child.stdout.read().split("\n")[:-1])
        child.wait()

    for name in range(kills + writers):
        running.append(start(name))
        if len(running) > writers:
            name, child = running.pop(rng.randrange(writers))
            told.add((str(name), int(child.stdout.readline())))
            time.sleep(rng.uniform(0, 0.05))
            end(name, child)
    for name, child in running:
        end(name, child)
    append_jsonl(path, {"w": "last", "i": 0})
    told.add(("last", 0))
    return told, read_jsonl(path)


@pytest.mark.filterwarnings("ignore:.*is torn")
def test_no_line_of_killed_writers_is_lost(tmp_path):
    """``python tests/test_faults.py 200`` is the whole of it."""
    told, rows = hammer(tmp_path / "log.jsonl", kills=6)
    assert len(told) > 10 and told <= {(row["w"], row["i"]) for row in rows}
    assert len(rows) == len({(row["w"], row["i"]) for row in rows}), "no line twice"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.jsonl"
        told, rows = hammer(log, kills=int(sys.argv[1]))
        lost = told - {(row["w"], row["i"]) for row in rows}
        torn = sum(1 for line in log.read_bytes().split(b"\n") if line.strip()) - len(rows)
        print(
            f"{sys.argv[1]} kills of 4 writers: {len(told)} lines told written, {len(lost)} lost, {torn} torn tails closed off"
        )
        sys.exit(bool(lost))
