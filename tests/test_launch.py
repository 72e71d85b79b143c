"""Several processes: they open the lab themselves, and two train one adapter."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import psutil
import pytest
import yaml
from engines import free_port
from labs import lab_with
from real_jupyterlab import wait_until
from survive import SMALL, tasks, tiny_agent

from agentkit.lab import Lab
from agentkit.policies.vllm import VllmPolicy
from agentkit.preflight.examination import first_look
from agentkit.recipe import Recipe
from agentkit.runs import Run, RunError, read_jsonl, write_json, write_tasks
from agentkit.training import launch
from agentkit.training.launch import Work
from agentkit.training.loop import GRPO

LAB = """
from survive import Silent, evenness
from agentkit import Family

families = {"tiny": Family(environment=Silent)}
rewards = {"evenness": (evenness, 1.0)}
"""

HELPER = """
import os, subprocess

if "AGENTKIT_JOB" in os.environ:  # in the processes that train
    subprocess.Popen(["sleep", "77777"])
"""

SLOW = """
import contextlib, time
from pathlib import Path

def slow(task, trajectory):
    here = Path(__file__).parent
    with contextlib.suppress(FileNotFoundError):  # one of the two processes sleeps
        (here / "slow").rename(here / "asleep")
        time.sleep(35)
    return evenness(task, trajectory)

rewards = {"slow": (slow, 1.0)}
"""


def test_a_job_that_fails_leaves_nothing_of_its_model_in_the_errors_frames(tmp_path, monkeypatch):
    """IPython keeps the last error, and would keep a model on the GPU while its cell is run again."""

    class Model:
        pass

    seen = []

    def fails(lab, run, tell):
        model = Model()
        seen.append(weakref.ref(model))
        raise RuntimeError("stopped")

    monkeypatch.setattr(launch, "function_of", lambda job: fails)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr(launch, "_collect", lambda: None)
    with pytest.raises(RuntimeError, match="stopped") as kept:
        Work(lab_with({}), Run.create(tmp_path / "run")).train()
    assert kept.value.__traceback__ is not None and seen[0]() is None


UNLIKE = """
from agentkit.policies.loading import agent_of
from agentkit.policies.process_group import rank

def train(lab, run, tell):
    made = lab.trainer(*agent_of(run, lab.recipe, "sft"), lab.load(run), run)
    after = made.saves.after

    def unlike():
        if rank():  # as where gradients were not shared
            made.trained[0].data.view(-1)[0] += 1e-6
        after()

    made.saves.after = unlike
    return made.train()
"""


@pytest.mark.slow
def test_processes_that_trained_unlike_adapters_refuse_to_have_trained(folder, monkeypatch):
    run, lab = prepared(folder, "unlike", steps=1, val_every=9)
    (folder / "unlike.py").write_text(UNLIKE)
    monkeypatch.syspath_prepend(folder)
    says = "RunError: the processes have trained different adapters.*Train in one process"
    with pytest.raises(RunError, match=says):
        Work(lab, run).do("unlike:train")
    assert not _workers(run) and steps_of(run)
    assert not run.file("train", "finished.json").exists(), "for there is nothing to measure"


WAIT = """
import sys
from torch import distributed
from agentkit.policies import process_group
from agentkit.recipe import Recipe

process_group.join(Recipe.from_mapping({"trajectory_timeout_s": 7000, "max_batch": 64, "n_tasks": 20}))
groups = distributed.group.WORLD, process_group._objects[0]
cpu = __import__("torch").device("cpu")
told = [int(group._get_backend(cpu).options._timeout.total_seconds()) for group in groups]
sys.stdout.write(f"{told}\\n")  # in one piece: two processes write
process_group.leave()
"""


def test_processes_wait_for_each_other_as_long_as_all_trajectories_may_take(tmp_path):
    """And not the 600 s of NCCL or the 1,800 s of gloo: a batch of 64 may run into its limit of time."""
    (tmp_path / "wait.py").write_text(WAIT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*command, str(tmp_path / "wait.py")], capture_output=True, text=True, timeout=300)
    wait = 1800 + 7000
    assert done.stdout.split("\n")[:2] == [str([wait, wait])] * 2, done.stdout + done.stderr[-2000:]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Rows are told soon: the tiny agent's steps take a fraction of a second."""
    monkeypatch.setattr(launch, "LOOK_S", 0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny agent as a folder, and tasks."""
    folder = tmp_path_factory.mktemp("launch")
    model, tokenizer = tiny_agent()
    model.save_pretrained(folder / "agent")
    tokenizer.save_pretrained(folder / "agent")
    return folder


def steps_of(run: Run) -> list[int]:
    return [row["step"] for row in read_jsonl(run.file("train", "metrics.jsonl"))]


def prepared(folder: Path, name: str, **changes) -> tuple[Run, Lab]:
    run = Run.create(folder / name)
    write_tasks(run.file("tasks.jsonl"), [*tasks(), *tasks(2, "validation"), *tasks(2, "test")])
    values = SMALL | {
        "model": str(folder / "agent"), "lab": str(folder / "tiny.py"), "reward": "none", "test_samples": 2,
        "prompts_per_step": 2, "micro_batch": 2, "steps": 3, "processes": 2,
    }  # fmt: skip
    (folder / "tiny.py").write_text(LAB)
    return run, Lab.open(Recipe.from_mapping(values | changes))


@pytest.mark.slow
def test_two_processes_train_one_adapter_on_whole_groups(folder):
    run, lab = prepared(folder, "two")
    rows = []
    work = Work(lab, run)
    result = work.train(rows.append)
    assert result["steps"] == 3 and rows[-1]["step"] == 3, "a cell hears of the newest row"
    rows = read_jsonl(run.file("train", "metrics.jsonl"))
    assert steps_of(run) == [0, 1, 2, 3]
    for step in (1, 2, 3):
        found = [t.task_id for t in run.trajectories(step)]
        assert len(found) == 8 and found == [found[0]] * 4 + [found[4]] * 4
    one, lab = prepared(folder, "one", processes=1, micro_batch=4)
    GRPO(lab, *tiny_agent(), tasks(), tasks(2, "validation"), one).train()
    alone = read_jsonl(one.file("train", "metrics.jsonl"))
    assert rows[1]["reward"] == pytest.approx(alone[1]["reward"])
    assert rows[2]["kl"] == pytest.approx(alone[2]["kl"], rel=1e-2)
    norms = [[row["grad_norm"] for row in found[1:]] for found in (rows, alone)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2), "two processes take the steps that one would"
    assert math.isfinite(rows[-1]["loss"]) and run.file("adapter", "adapter_model.safetensors").exists()
    assert len(work.measure("grpo")) == 4


@pytest.fixture
def interruptible():
    """As at a terminal: a worker of pytest-xdist ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_ctrl_c_waits_for_a_long_step_and_its_checkpoint(folder, interruptible):
    """torchrun would wait 30 seconds."""
    run, lab = prepared(folder, "slow-step", steps=60, save_every=0, val_every=60)
    (folder / "tiny.py").write_text(LAB + SLOW)

    def interrupt_the_sleeper():
        while not (folder / "asleep").exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    def slow_down(row):
        if row["step"] == 1:
            (folder / "slow").touch()
            threading.Thread(target=interrupt_the_sleeper).start()

    with pytest.raises(KeyboardInterrupt, match="run this again to go on"):
        Work(lab, run).train(slow_down)
    rows = read_jsonl(run.file("train", "metrics.jsonl"))
    assert rows[-1]["rollout_seconds"] > 34, "the step that was interrupted is the last"
    kept = [path.name for path in run.file("train", "checkpoints").glob("checkpoint-*")]
    assert kept == [f"checkpoint-{rows[-1]['step']}"] and not _workers(run)


@pytest.mark.slow
def test_a_killed_process_is_named_nobody_is_left_and_the_run_goes_on(folder):
    """A rank first, then torchrun itself, with a helper of the lab file's that holds the output."""
    run, lab = prepared(folder, "killed", steps=4, save_every=1, val_every=9)
    (folder / "tiny.py").write_text(LAB + HELPER)

    def kill(which, step):
        def at_step(row):
            if row["step"] >= step:
                found = [p for p in psutil.process_iter() if _of(p, run, which)]
                found[-1].kill()

        return at_step

    says = r"process \d was ended by SIGKILL.*checkpoint-\d is kept, run this again"
    with pytest.raises(RunError, match=says):
        Work(lab, run).train(kill("agentkit.training.worker", 2))
    assert not _workers(run)
    with pytest.raises(RunError, match=r"torchrun, which watches the processes, was ended by SIGKILL"):
        Work(lab, run).train(kill("torch.distributed.run", 3))
    assert not _workers(run)
    assert Work(lab, run).train()["steps"] == 4 and steps_of(run) == [0, 1, 2, 3, 4]
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "77777"]]
    assert not list(run.path.glob(".job*")), "a launch's file goes with it"


def _of(process: psutil.Process, run: Run, which: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    flag = "-c" if "-c" in words else "-m"
    return str(run.path.resolve()) in words and which in words[words.index(flag) + 1]


def _workers(run: Run) -> list[str]:
    found = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in found if "agentkit.training.worker" in line and str(run.path) in line]


@pytest.mark.slow
def test_two_interrupted_processes_leave_a_checkpoint_and_go_on_as_if_they_had_not_been(folder):
    run, lab = prepared(folder, "resumed", steps=6, save_every=0, val_every=6)
    threads = threading.active_count()

    def stop_after_two(row):
        if row["step"] >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Work(lab, run).train(stop_after_two)
    assert len([*run.file("train", "checkpoints").glob("checkpoint-*")]) == 1
    assert not _workers(run) and threading.active_count() <= threads + 2
    rows = []
    assert Work(lab, run).train(rows.append)["steps"] == 6
    assert rows[-1]["step"] == 6 and steps_of(run) == [*range(7)]
    whole, same = prepared(folder, "whole", steps=6, save_every=0, val_every=6)
    Work(same, whole).train()
    assert _untimed(run) == _untimed(whole)


def _untimed(run: Run) -> list[dict]:
    """Rows without times, and without the validation that a training ends with when it is stopped."""
    rows = read_jsonl(run.file("train", "metrics.jsonl"))
    return [{k: v for k, v in row.items() if "seconds" not in k and not k.startswith("val")} for row in rows]


@pytest.mark.slow
def test_two_processes_with_vllm_each_train_the_smoke_recipe_and_go_on_after_a_kill(stand_in, tmp_path):
    """On a tiny model of its architecture, by gloo; each process has an engine of its own."""
    pytest.importorskip("vllm")
    lab, run = smoke(stand_in, tmp_path, processes=2)

    def kill(row):
        if row["step"] >= 2:  # the first checkpoint is there
            next(p for p in psutil.process_iter() if _of(p, run, "agentkit.training.worker")).kill()

    with pytest.raises(RunError, match=r"was ended by SIGKILL.*checkpoint-\d is kept, run this again"):
        Work(lab, run).train(kill)
    assert not _workers(run) and Work(lab, run).train()["steps"] == 3
    rows = read_jsonl(run.file("train", "metrics.jsonl"))
    assert steps_of(run) == [0, 1, 2, 3] and all(row["sync_gap"] < 1e-3 for row in rows[1:])
    assert run.file("adapter", "adapter_model.safetensors").exists()


@pytest.mark.slow
def test_preflight_and_training_open_no_engine_in_the_notebooks_own_process(stand_in, tmp_path, monkeypatch):
    """On one device, and so never two of them after each other in one process."""
    pytest.importorskip("vllm")
    opened = lambda *given, **named: pytest.fail("an engine was opened here")  # noqa: E731
    monkeypatch.setattr(VllmPolicy, "__init__", opened)
    work = Work(*smoke(stand_in, tmp_path, steps=1))
    shown, report = first_look(work)
    assert shown and report is not None and work.train()["steps"] == 1 and work.measure("grpo")


def smoke(model: Path, folder: Path, **changes) -> tuple[Lab, Run]:
    keys = {"model": str(model), "engine": "vllm", "max_turns": 2, "max_turn_tokens": 16} | changes
    lab, run = Lab.open(Recipe.load("params/smoke.yaml", **keys)), Run.create(folder / "run")
    lab.suite().save(run.file("tasks.jsonl"))
    return lab, run


KERNEL = """
import sys
from agentkit.lab import Lab
from agentkit.runs import Run, read_json
from agentkit.training.launch import Work

Work(Lab.open(read_json(sys.argv[1])), Run(sys.argv[2])).train()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kernel_that_ends_takes_its_processes_along(folder, number):
    """Killed, at once; told to end, after the step and its checkpoint."""
    run, lab = prepared(folder, f"ended-{number}", steps=500, save_every=0)
    write_json(file := folder / "ended.json", lab.recipe.used())
    words = [sys.executable, "-c", KERNEL, str(file), str(run.path)]
    kernel = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    wait_until(lambda: run.steps or kernel.poll() is not None, 300)
    assert len(_workers(run)) == 3 and kernel.poll() is None, "torchrun and two"
    kernel.send_signal(number)
    wait_until(lambda: not _workers(run), 60)
    kept = [*run.file("train", "checkpoints").glob("checkpoint-*")]
    assert kernel.wait(30) and len(kept) == (number == signal.SIGTERM)


@pytest.mark.slow
def test_machines_train_together_under_one_torchrun_command_on_each(folder):
    """Two of them on this one, which meet at a port of it."""
    run, lab = prepared(folder, "machines")
    write_json(run.file("baseline.json"), {})
    recipe = folder / "machines.yaml"
    recipe.write_text(yaml.safe_dump({n: v for n, v in lab.recipe.used().items() if n != "processes"}))
    command = "--nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=1 --local-addr=localhost "
    command += f"--rdzv-endpoint=localhost:{free_port()} -m agentkit.training.worker {run.path} 03 {recipe}"
    words = [sys.executable, "-m", "torch.distributed.run", *command.split()]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    machines = [subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [machine.communicate(timeout=400)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    stage = run.manifest["stages"]["03_grpo"]
    assert (stage["status"], stage["steps"], stage["devices"]) == ("done", 3, 2)
    assert run.file("adapter", "adapter_model.safetensors").exists()
