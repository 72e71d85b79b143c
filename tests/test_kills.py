"""kill -9 in the middle of everything: nobody is left, who is left says why, and running again finishes.

A run is started again and again by ``agentkit run``, and each time somebody of it is killed in another phase,
which its files show. test_launch and test_cards kill ranks in further jobs.
"""

import contextlib
import json
import os
import re
import shutil
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
SMALL = {
    "seed": 1, "families": "A", "n_tasks": 40, "sft": False, "test_samples": 1, "max_turns": 4,
    "max_turn_tokens": 64, "max_tokens": 256, "steps": STEPS, "prompts_per_step": 4, "group_size": 4,
    "micro_batch": 1, "val_every": 9, "val_tasks": 4, "save_every": 1, "learning_rate": 1e-3, "lora_r": 4,
    "preflight": "off", "controls": "rft",
}  # fmt: skip

WHO = {  # what a command line says
    "kernel": r"ipykernel_launcher|Work\(Lab",
    "command": r"agentkit\.cli run",
    "rank": r"^\S+ -u -m agentkit\.training\.worker",
}
SAYS = {"rank": r"RunError: .*process \d was ended by SIGKILL"}  # of others nobody is left to say it


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


PHASES = {
    "rollouts": lambda run: _bar(run, "GRPO") and len({*_newest(run)}) == 1,  # so those of the next come in
    "control": lambda run: _bar(run, "rft"),
    "test": lambda run: _bar(run, "grpo, test"),
}


def _of(mark: str, who: str = "") -> list[psutil.Process]:
    """The processes of a marked command, or some of them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended
            if _value(process, MARKED) == mark and re.search(WHO.get(who, ""), " ".join(process.cmdline())):
                found.append(process)
    return found


def killed(command: list[str], environ: dict[str, str], run: Run, who: str, phase: str) -> tuple[bool, str]:
    """Whether a command fails when one of its processes is killed, and what it says; nobody may be left."""
    run.file("launch.log").unlink(missing_ok=True)  # of the attempt before
    mark, said = os.urandom(8).hex(), run.path.with_name(f"{who}-{phase}.txt")
    with said.open("w") as file:
        made = subprocess.Popen(
            command, cwd=ROOT, env=environ | {MARKED: mark}, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        found = []
        while not (PHASES[phase](run) and found):
            assert made.poll() is None, f"it ended before its {phase}: {said.read_text()[-3000:]}"
            found = [process for process in found if process.is_running()] or _of(mark, who)
            time.sleep(0.05 if found else 0.3)
        found[-1].kill()
        made.wait(timeout=900)
        psutil.wait_procs(_of(mark), timeout=120)  # of a kernel, which end their step
        assert not (left := [process.cmdline() for process in _of(mark)]), left
    finally:
        for process in _of(mark):
            process.kill()
    return bool(made.returncode), said.read_text()


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


def finished(command: list[str], environ: dict[str, str]) -> str:
    """What a command says that nobody disturbs."""
    made = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def survives(command: list[str], environ: dict[str, str], run: Run, kills: dict[str, str]) -> None:
    """The command, with kills of who in which phase one after the other, ends its training at last."""
    for who, phase in kills.items():
        fails, said = killed(command, environ, run, who, phase)
        assert fails, f"{who} in {phase}: {said}"
        if "agentkit.cli" in command and who == "kernel":
            assert re.search(r"05_compare stopped: its kernel died.*run the same again", said), said
        assert re.search(SAYS.get(who, ""), said) and "Traceback" not in said, (who, phase, said)
        check_files(run)
    finished(command, environ)
    check_files(run)
    assert [row["step"] for row in read_jsonl(run.file("train", "metrics.jsonl"))] == [*range(STEPS + 1)]
    assert run.steps == [*range(1, STEPS + 1)] and not list(run.path.glob(".job*"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """A run up to notebook 02, and its recipe."""
    folder = tmp_path_factory.mktemp("kills")
    (folder / "small.yaml").write_text(json.dumps(SMALL))
    finished(_command(folder, folder / "run", "02"), dict(os.environ))
    return folder


def _command(folder: Path, run: Path, last: str) -> list[str]:
    command = [sys.executable, "-m", "agentkit.cli", "run", str(folder / "small.yaml"), "--run", str(run)]
    return [*command, "--to", last]


@pytest.mark.slow
def test_notebooks_go_on_whoever_was_killed_and_nobody_is_left(measured, tmp_path):
    """With two cards in sight: agentkit run in a step, a process in a control, a kernel in the test."""
    run, startup = Run(shutil.copytree(measured / "run", tmp_path / "run")), tmp_path / "profile_default"
    (startup / "startup").mkdir(parents=True)
    (startup / "startup" / "seen.py").write_text(SEEN.format(2))
    environ = os.environ | {"IPYTHONDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "4,5"}
    kills = {"command": "rollouts", "rank": "control", "kernel": "test"}
    survives(_command(measured, run.path, "05"), environ, run, kills)
    stages = run.manifest["stages"]
    assert [stage["status"] for stage in stages.values()] == ["done"] * 5
