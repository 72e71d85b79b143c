"""A training that is stopped, killed or damaged goes on and ends as if nothing had happened."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from survive import KINDS, attempt, make_trainer, outcome, tiny_agent

from agentkit.records import EngineError
from agentkit.runs import Run, RunError, append_jsonl, read_json, read_jsonl
from agentkit.training import checkpoint_folders, loop, processes
from agentkit.training.checkpoint_folders import CheckpointError
from agentkit.training.processes import LOCK, TrainingStopped

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that was never interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    attempt(path, "plain")
    return path


def raising(step: int, error: BaseException):
    """Hears of rows of metrics, and raises at that of a step."""

    def tell(row):
        if row["step"] == step:
            raise error

    return tell


def interrupt(path: Path, step: int, error: BaseException, **changes):
    """A training that an error ends when a step has its row."""
    with pytest.raises(type(error)) as caught:
        make_trainer(path, on_metrics=raising(step, error), **changes).train()
    return caught.value


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A training that was stopped in step 6, with a checkpoint of each before, of which two are kept."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    interrupt(path, 6, KeyboardInterrupt("stop"), save_every=1)
    return path


def copy_of(path: Path, folder: Path) -> Path:
    return Path(shutil.copytree(path, folder / "run"))


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def newest(path: Path) -> list[str]:
    return [p.name for p in checkpoint_folders.steps(path / "train" / "checkpoints")]


# ---- going on
def test_an_interrupted_training_leaves_a_checkpoint_and_ends_like_a_whole_one(stopped, whole, tmp_path):
    path = copy_of(stopped, tmp_path)
    assert newest(path) == ["checkpoint-5", "checkpoint-4"]
    attempt(path, "plain")
    assert outcome(path) == outcome(whole)
    assert not (tmp_path / "run" / "train-1").exists()


def test_the_model_that_an_interrupted_trainer_had_goes_on_too(whole, tmp_path):
    """As where a notebook's training cell alone is run again: the first trainer's adapter is still in it."""
    agent = tiny_agent()
    stopped = interrupt(tmp_path / "run", 5, TrainingStopped("stopped"), agent=agent)
    assert str(stopped).startswith("stopped; ")
    assert "checkpoint-4 holds step 4, run this again to go on" in str(stopped)
    assert stopped._render_traceback_() == [f"TrainingStopped: {stopped}"]
    make_trainer(tmp_path / "run", agent=agent).train()
    assert outcome(tmp_path / "run") == outcome(whole) and not (tmp_path / "run" / "train-1").exists()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_it_ends_alike_where_a_batch_has_several_steps(kind, tmp_path):
    attempt(tmp_path / "whole", kind)
    interrupt(tmp_path / "run", 5, KeyboardInterrupt("stop"), **KINDS[kind])
    assert newest(tmp_path / "run")[0] == "checkpoint-4", "between batches"
    attempt(tmp_path / "run", kind)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_rows_and_trajectories_after_the_checkpoint_are_cut(stopped, whole, tmp_path):
    path = copy_of(stopped, tmp_path)
    shutil.rmtree(path / "train" / "checkpoints" / "checkpoint-5")
    append_jsonl(path / "train" / "alarms.jsonl", {"step": 5, "alarm": "of a step that is done again"})
    with (path / "train" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "rew')
    attempt(path, "plain")
    assert outcome(path) == outcome(whole)
    alarms = [[*read_jsonl(p / "train" / "alarms.jsonl")] for p in (path, whole)]
    assert alarms[0] == alarms[1]


def goes_on(path: Path, **changes) -> int:
    """The step from which a trainer of the run would go on."""
    trainer = make_trainer(path, **changes)
    with trainer.saves:
        trainer.saves.go_on()
    return trainer.done


def test_other_parameters_start_anew_and_keep_what_was_there(stopped, tmp_path, capsys):
    path = copy_of(stopped, tmp_path)
    assert goes_on(path, learning_rate=2e-2) == 0 and "learning_rate: it is kept" in capsys.readouterr().err
    assert [p.name for p in (path / "train-1" / "checkpoints").iterdir()]
    assert not (path / "train" / "metrics.jsonl").exists()
    path = copy_of(stopped, tmp_path / "settings")
    assert goes_on(path, until_solved=True) == 0 and "another settings" in capsys.readouterr().err
    path = copy_of(stopped, tmp_path / "agent")
    model, tokenizer = tiny_agent()
    torch.nn.init.normal_(model.model.layers[0].mlp.up_proj.weight)
    assert goes_on(path, agent=(model, tokenizer)) == 0


def test_limits_and_passes_may_change_and_the_step_is_the_same(stopped, whole, tmp_path):
    path = copy_of(stopped, tmp_path)
    changes = {"trajectory_timeout_s": 900.0, "tool_timeout_s": 20.0, "max_batch": 64}
    trainer = make_trainer(path, micro_batch=2, **changes)
    trainer.train()
    found, expected = outcome(path), outcome(whole)
    assert found["steps"] == expected["steps"] and found["trajectories 6"] == expected["trajectories 6"]
    last = "train/checkpoints/checkpoint-6/adapter_model.safetensors"
    for name, weight in load_file(path / last).items():
        torch.testing.assert_close(weight, load_file(whole / last)[name], rtol=1e-3, atol=1e-5)


def test_a_finished_training_starts_anew_unless_its_stage_was_cut_off(whole, tmp_path, capsys):
    path = copy_of(whole, tmp_path)
    Run(path).begin("03_grpo", {})
    assert goes_on(path) == 0 and (path / "train-1").exists()
    assert "had come to its end: it is kept beside" in capsys.readouterr().err
    path = copy_of(whole, tmp_path / "again")
    for _ in range(2):  # killed after training, before the end of the stage
        Run(path).begin("03_grpo", {})
    before, result = outcome(path), read_json(path / "train" / "finished.json")
    assert make_trainer(path).train() == result and result["steps"] == 6 and outcome(path) == before


def test_a_training_killed_after_its_last_step_takes_no_further_one(whole, tmp_path):
    path = copy_of(whole, tmp_path)
    (path / "train" / "finished.json").unlink()
    shutil.rmtree(path / "adapter")
    done = {"best_val_success": 0.0, "best_step": 6, "steps": 6, "ended": "steps"}
    assert make_trainer(path).train() == done
    assert outcome(path) == outcome(whole) and (path / "train" / "finished.json").exists()


# ---- what a watcher asks for
def test_a_watcher_may_ask_for_the_end(tmp_path):
    control = tmp_path / "run" / "train" / ".control"
    watch = lambda row: row["step"] == 1 and control.write_text("stop\n")  # noqa: E731
    trainer = make_trainer(tmp_path / "run", on_metrics=watch, save_every=0, val_every=3)
    assert trainer.train() == {"best_val_success": 0.0, "best_step": 2, "steps": 2, "ended": "asked"}
    assert newest(tmp_path / "run") == ["checkpoint-2"] and not control.exists()
    rows = read_jsonl(tmp_path / "run" / "train" / "metrics.jsonl")
    assert "val_success" in rows[-1], "what is kept is what it has learnt"


def test_a_validation_without_a_verdict_is_left_out_and_said(tmp_path, monkeypatch):
    unscored = [SimpleNamespace(success=None, why="the judge is down")]
    monkeypatch.setattr(loop, "spread", lambda *rest: unscored)
    with pytest.warns(UserWarning, match="validation is left out.*the judge is down"):
        result = make_trainer(tmp_path / "run", steps=1).train()
    assert result["best_val_success"] < 0
    assert "val_success" not in read_jsonl(tmp_path / "run" / "train" / "metrics.jsonl")[-1]


# ---- signals and kills
def test_sigterm_leaves_a_checkpoint_and_training_goes_on_from_it(tmp_path, whole):
    alarm, awake = threading.Event(), threading.Event()

    def ask(row):
        if row["step"] == 3:
            alarm.set()
            awake.wait(60)  # so that the signal comes soon after

    def send():
        alarm.wait(600)
        awake.set()
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(TrainingStopped, match="SIGTERM|stopped after step"):
        make_trainer(tmp_path / "run", on_metrics=ask, save_every=0).train()
    assert signal.getsignal(signal.SIGTERM) is before
    assert newest(tmp_path / "run")[0] in ("checkpoint-3", "checkpoint-4")
    attempt(tmp_path / "run", "plain")
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_again_and_again_while_files_are_written_it_ends_like_a_whole_one(kind, tmp_path):
    """At random file operations: checkpoints, metrics and trajectories are then half written."""
    attempt(tmp_path / "whole", kind)
    path, rng = tmp_path / "run", random.Random(1)
    for _ in range(3):
        words = [str(path), kind, str(rng.randrange(10, 150))]
        child = subprocess.run([sys.executable, str(HERE / "survive.py"), *words], stderr=subprocess.PIPE)
        assert child.returncode in (0, -signal.SIGKILL), child.stderr[-2000:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a damaged checkpoint
        attempt(path, kind)
    assert outcome(path) == outcome(tmp_path / "whole") and not list(path.rglob("damaged-*"))


def test_two_processes_cannot_train_in_one_run(tmp_path, monkeypatch):
    code = (
        "import sys, time\nfrom agentkit.runs import Run\nfrom agentkit.training.processes import locked\n"
        "run = Run(sys.argv[1])\n"
        "with locked(run):\n"
        "    open(run.path / '.training').close()\n"  # as a copy of the folder does: the lock must hold
        "    print('held', flush=True); time.sleep(600)"
    )
    path = Run.create(tmp_path / "run").path
    command = [sys.executable, "-c", code, str(path)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    monkeypatch.setattr(processes, "LOCK_S", 0.0)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"process {other.pid} is training"):
            make_trainer(path).train()
    finally:
        other.kill()
        other.wait()
    assert goes_on(path) == 0


def test_a_training_that_could_not_begin_lets_others_train_in_the_run(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise EngineError("vLLM did not start")

    monkeypatch.setattr("agentkit.training.loop.make_policy", fails)
    with pytest.raises(EngineError, match="did not start"):
        make_trainer(tmp_path / "run").train()
    code = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run" / LOCK)], check=True)


# ---- damage
def first_file(path: Path) -> Path:
    return path / "adapter_model.safetensors"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def swap(path: Path) -> None:
    a, b, spare = path / "state.pt", first_file(path), path / "spare"
    a.rename(spare), b.rename(a), spare.rename(b)


def reseal(path: Path) -> None:
    """Make a manifest that vouches for the files as they are."""
    kept = json.loads((path / "manifest.json").read_text())["about"]
    (path / "manifest.json").unlink()
    shutil.move(path, path.with_name(f".{path.name}"))
    checkpoint_folders.commit(path.with_name(f".{path.name}"), kept)


DAMAGES = {
    "adapter one bit": lambda path: flip(first_file(path)),
    "state cut": lambda path: os.truncate(path / "state.pt", 1000),
    "files swapped": swap,
    "manifest missing": lambda path: (path / "manifest.json").unlink(),
    "manifest not JSON": lambda path: (path / "manifest.json").write_text("]["),
    "manifest a number": lambda path: (path / "manifest.json").write_text("3"),
    "a file in its place": lambda path: [shutil.rmtree(path), path.write_text("")],
    "renamed": lambda path: path.rename(path.with_name("checkpoint-7")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_falls_back_loudly(damage, stopped, tmp_path):
    folder = copy_of(stopped, tmp_path) / "train" / "checkpoints"
    assert checkpoint_folders.newest_sound(folder)[0].name == "checkpoint-5"
    DAMAGES[damage](folder / "checkpoint-5")
    with pytest.warns(UserWarning, match=r"damaged and is not used: checkpoint-\d"):
        assert checkpoint_folders.newest_sound(folder)[0].name == "checkpoint-4"


def test_training_falls_back_and_ends_alike(stopped, whole, tmp_path):
    path = copy_of(stopped, tmp_path)
    flip(first_file(path / "train" / "checkpoints" / "checkpoint-5"))
    with pytest.warns(UserWarning, match="not used: checkpoint-5"):
        attempt(path, "plain")
    assert outcome(path) == outcome(whole)
    assert (path / "train" / "checkpoints" / "damaged-checkpoint-5-1").exists()


def test_without_a_sound_checkpoint_training_starts_anew_and_keeps_the_rest(stopped, tmp_path):
    path = copy_of(stopped, tmp_path)
    for name in newest(path):
        flip(first_file(path / "train" / "checkpoints" / name))
    with pytest.warns(UserWarning, match="not used: checkpoint-4"):
        assert goes_on(path) == 0
    assert (path / "train-1" / "metrics.jsonl").exists()


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil-was-here",)


def test_a_checkpoint_that_holds_something_else_runs_no_code(stopped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = copy_of(stopped, tmp_path)
    last = path / "train" / "checkpoints" / "checkpoint-5"
    torch.save(Evil(), last / "state.pt")
    reseal(last)
    with pytest.raises(CheckpointError, match="checkpoint-5 cannot be gone on from .* remove it to go on"):
        goes_on(path)
    assert not (tmp_path / "evil-was-here").exists()


def test_a_checkpoint_of_an_earlier_version_is_refused(stopped, tmp_path):
    path = copy_of(stopped, tmp_path)
    manifest = path / "train" / "checkpoints" / "checkpoint-5" / "manifest.json"
    manifest.write_text(json.dumps({"about": {"step": 5}, "files": {}, "sha256": "0"}))
    with pytest.raises(RunError, match="by an earlier version of agentkit.* name another run folder"):
        make_trainer(path).train()


def test_a_disk_without_room_is_one_sentence_and_the_last_checkpoint_stays(stopped, tmp_path):
    path = copy_of(stopped, tmp_path)
    before = files_of(path / "train" / "checkpoints")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(row):
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, hard))  # the kernel refuses larger files

    says = r"checkpoint of step 6 could not be written .*checkpoint-5 holds step 5.* Make room"
    try:
        with pytest.raises(RunError, match=says):
            make_trainer(path, on_metrics=fill).train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_of(path / "train" / "checkpoints") == before
    attempt(path, "plain")
    assert newest(path)[0] == "checkpoint-6"


def test_a_checkpoint_is_whole_private_and_two_are_kept(tmp_path):
    for step in (1, 2, 10):
        new = checkpoint_folders.begin(tmp_path, step)
        (new / "a").write_text(str(step))
        path = checkpoint_folders.commit(new, {"step": step})
    assert [p.name for p in checkpoint_folders.steps(tmp_path)] == ["checkpoint-10", "checkpoint-2"]
    assert checkpoint_folders.verify(path) == {"step": 10} and path.stat().st_mode & 0o777 == 0o700
    assert (path / "a").stat().st_mode & 0o777 == 0o600
    (path / "a").write_text("x")
    with pytest.raises(CheckpointError, match="checkpoint-10 is not as it was written"):
        checkpoint_folders.verify(path)
