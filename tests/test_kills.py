"""kill -9 in the middle of everything: nobody is left, who is left says why, and running again finishes."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest
from test_cards import SEEN

from agentkit.runs import Run, load_run, parse_json, read_jsonl, read_trajectories
from agentkit.runs.children import _value
from agentkit.runs.files import step_of, steps

ROOT = Path(__file__).resolve().parents[1]
MARKED = "AGENTKIT_KILLED"  # in the environment of the command and of all that it starts
STEPS = 3
SMALL = {"seed": 1, "families": "A", "n_tasks": 40, "sft": False, "test_samples": 1, "max_turns": 4, "max_turn_tokens": 64,
         "max_tokens": 256, "steps": STEPS, "prompts_per_step": 4, "group_size": 4, "micro_batch": 1, "val_every": 9, "val_tasks": 4,
         "save_every": 1, "learning_rate": 1e-3, "lora_r": 4, "preflight": "off", "controls": "rft"}  # fmt: skip


def _bar(run: Run, label: str) -> bool:
    """Whether the processes of the job that runs now have drawn this progress bar."""
    log = run.file("launch.log")
    return log.exists() and f"{label}:   0%" in log.read_text(errors="replace")


def _newest(run: Run) -> tuple[int, int, int]:
    """The newest step of which there are rollouts, a row of metrics, and a checkpoint; -1 without a row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a row that is being written
        rows = read_jsonl(metrics) if (metrics := run.file("train", "metrics.jsonl")).exists() else []
    kept = steps(run.file("train", "checkpoints"))
    row = rows[-1]["step"] if rows else -1
    return run.steps[-1] if run.steps else 0, row, step_of(kept[0]) if kept else 0


KILLS = {  # who is killed, one after the other: its command line, when, and what the others then say
    "command": (r"agentkit\.cli run", lambda run: run.steps and len({*_newest(run)}) == 1, ""),  # in the next rollouts
    "rank": (r"^\S+ -u -m agentkit\.training\.worker", lambda run: _bar(run, "rft"), r"RunError: .*process \d was ended by SIGKILL"),
    "kernel": (r"ipykernel_launcher|Work\(Lab", lambda run: _bar(run, "grpo, test"), "05_compare stopped: its kernel died.*run the same again"),
}  # fmt: skip


def _of(mark: str, line: str = "") -> list[psutil.Process]:
    """The processes of a marked command, or those with such a command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended
            if _value(process, MARKED) == mark and re.search(line, " ".join(process.cmdline())):
                found.append(process)
    return found


def killed(command: list[str], environ: dict[str, str], run: Run, who: str) -> str:
    """What a command says that fails because one of its processes is killed; nobody may be left."""
    line, is_time, _ = KILLS[who]
    run.file("launch.log").unlink(missing_ok=True)  # of the attempt before
    mark, said = os.urandom(8).hex(), run.path.with_name(f"{who}.txt")
    with said.open("w") as file:
        options = {"cwd": ROOT, "env": environ | {MARKED: mark}, "stdout": file, "stderr": subprocess.STDOUT}
        made = subprocess.Popen(command, **options)
    try:
        found = []
        while not (is_time(run) and found):
            assert made.poll() is None, f"it ended before its time: {said.read_text()[-3000:]}"
            found = [process for process in found if process.is_running()] or _of(mark, line)
            time.sleep(0.05 if found else 0.3)
        found[-1].kill()
        made.wait(timeout=900)
        psutil.wait_procs(_of(mark), timeout=120)  # of a kernel, which end their step
        assert not (left := [process.cmdline() for process in _of(mark)]), left
    finally:
        for process in _of(mark):
            process.kill()
    assert made.returncode, f"{who}: {said.read_text()}"
    return said.read_text()


def check_files(run: Run) -> None:
    """What a kill leaves can be read, all of it."""
    for path in run.path.rglob("[!.]*"):
        if path.suffix in (".json", ".ipynb"):
            parse_json(path.read_bytes())
        elif path.suffix == ".jsonl":
            read_jsonl(path)
        elif path.suffix == ".parquet":
            read_trajectories(path)
    assert load_run(run.path).manifest["stages"]


def undisturbed(command: list[str], environ: dict[str, str]) -> None:
    made = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.slow
def test_notebooks_go_on_whoever_was_killed_and_nobody_is_left(tmp_path):
    """With two cards in sight: agentkit run in a step, a process in a control, a kernel in the test."""
    run, startup = Run(tmp_path / "run"), tmp_path / "profile_default" / "startup"
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL))
    words = ["run", str(tmp_path / "small.yaml"), "--run", str(run.path)]
    command = [sys.executable, "-m", "agentkit.cli", *words]
    undisturbed([*command, "--to", "02"], dict(os.environ))
    startup.mkdir(parents=True)
    (startup / "seen.py").write_text(SEEN.format(2))
    environ = os.environ | {"IPYTHONDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "4,5"}
    for who, (_, _, says) in KILLS.items():
        said = killed([*command, "--to", "05"], environ, run, who)
        assert re.search(says, said) and "Traceback" not in said, (who, said)
        check_files(run)
    undisturbed([*command, "--to", "05"], environ)
    check_files(run)
    assert [row["step"] for row in read_jsonl(run.file("train", "metrics.jsonl"))] == [*range(STEPS + 1)]
    assert run.steps == [*range(1, STEPS + 1)] and not list(run.path.glob(".job*"))
    assert [stage["status"] for stage in run.manifest["stages"].values()] == ["done"] * 5
