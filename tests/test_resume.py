"""A training that is stopped, killed or finds its checkpoint damaged goes on and ends as if nothing had
happened.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from survive import KINDS, SMALL, attempt, make_trainer, outcome, tasks, tiny_agent
from transformers import TrainerCallback

from agentkit.cli import main
from agentkit.diagnostics import Alarm
from agentkit.recipe import Recipe
from agentkit.records import EngineError
from agentkit.runs import Run, RunError, append_jsonl, cut_jsonl, read_json, read_jsonl
from agentkit.runs.children import TOKEN
from agentkit.training import checkpoint_folders
from agentkit.training.adapters import save_adapter
from agentkit.training.checkpoint_folders import CheckpointError
from agentkit.training.grpo import AgentGRPOTrainer, train
from agentkit.training.guards import Guards
from agentkit.training.processes import LOCK, TrainingStopped
from agentkit.training.resume import made_with

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def agent():
    """One tiny agent's configuration is all a trainer needs; weights are made anew."""
    return tiny_agent()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that was never interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    attempt(path, "plain")
    return path


class Stop(TrainerCallback):
    """Raise at a moment of a step."""

    def __init__(self, moment: str, step: int, error: BaseException):
        self._step, self._error = step, error
        setattr(self, moment, self._raise)

    def _raise(self, args, state, control, **kwargs):
        if state.global_step == self._step:
            raise self._error


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A training that was stopped in step 6, with checkpoints of steps 2, 4 and 5, of which two are kept."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    trainer = make_trainer(path)
    trainer.add_callback(Stop("on_step_begin", 5, KeyboardInterrupt("stop")))
    with pytest.raises(KeyboardInterrupt):
        train(trainer)
    return path


def copy_of(path: Path, folder: Path) -> Path:
    return Path(shutil.copytree(path, folder / "run"))


def newest(path: Path) -> list[str]:
    return [p.name for p in checkpoint_folders.steps(path / "train" / "checkpoints")]


# ---- going on
def test_an_interrupted_training_leaves_a_checkpoint_of_the_last_step_and_ends_like_a_whole_one(
    stopped, whole, tmp_path
):
    path = copy_of(stopped, tmp_path)
    assert newest(path) == ["checkpoint-5", "checkpoint-4"]
    attempt(path, "plain")
    assert outcome(path) == outcome(whole)
    assert not (tmp_path / "run" / "train-1").exists()


def test_the_model_that_an_interrupted_trainer_had_goes_on_too(whole, tmp_path):
    """As where a notebook's training cell alone is run again: the first trainer's adapter is still in it."""
    agent = tiny_agent()
    trainer = make_trainer(tmp_path / "run", agent=agent)
    trainer.add_callback(Stop("on_step_begin", 5, TrainingStopped("stopped")))
    with pytest.raises(
        TrainingStopped, match="stopped; .*checkpoint-5 holds step 5, run this again to go on"
    ) as caught:
        train(trainer)
    assert caught.value._render_traceback_() == [f"TrainingStopped: {caught.value}"]
    train(make_trainer(tmp_path / "run", agent=agent))
    assert outcome(tmp_path / "run") == outcome(whole) and not (tmp_path / "run" / "train-1").exists()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_it_ends_alike_where_a_step_trains_on_rollouts_made_before(kind, tmp_path):
    changes, parts = KINDS[kind]
    attempt(tmp_path / "whole", kind)
    trainer = make_trainer(tmp_path / "run", parts, **changes)
    trainer.add_callback(Stop("on_step_begin", 3, KeyboardInterrupt("stop")))
    with pytest.raises(KeyboardInterrupt):
        train(trainer)
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
    fired, wanted = (
        [(row["step"], row["alarm"]) for row in read_jsonl(p / "train" / "alarms.jsonl")]
        for p in (path, whole)
    )
    assert fired == wanted


@pytest.mark.parametrize("damage", [lambda file: file.write_text(""), lambda file: file.unlink()])
def test_a_run_resumed_after_its_metrics_were_lost_says_that_there_is_a_gap(
    stopped, tmp_path, capsys, damage
):
    path = copy_of(stopped, tmp_path)
    alarms = path / "train" / "alarms.jsonl"
    append_jsonl(alarms, dataclasses.asdict(Alarm(3, "kl_spike", "warning", 0.5, (), "cause", "advice")))
    damage(path / "train" / "metrics.jsonl")
    with pytest.warns(UserWarning, match="there is a gap: steps 1 to 5 have no row"):
        trainer = make_trainer(path)
    train(trainer)
    assert [row["step"] for row in read_jsonl(path / "train" / "metrics.jsonl")] == [6]
    assert "kl_spike" in [row["alarm"] for row in read_jsonl(alarms)]
    capsys.readouterr()
    assert main(["alarms", str(path)]) in (0, 2)
    assert "there is a gap: steps 1 to 5 have no row" in capsys.readouterr().err


def test_an_error_of_user_code_leaves_a_checkpoint_too(tmp_path):
    trainer = make_trainer(tmp_path / "run")
    trainer.add_callback(Stop("on_substep_end", 3, ValueError("a fault")))
    with pytest.raises(ValueError, match="a fault"):
        train(trainer)
    assert newest(tmp_path / "run")[0] == "checkpoint-3"


def test_what_is_stopped_while_weights_move_goes_on_from_the_checkpoint_before(tmp_path, whole):
    trainer = make_trainer(tmp_path / "run")
    trainer.add_callback(Stop("on_optimizer_step", 4, RuntimeError("between update and log")))
    with pytest.raises(RuntimeError):
        train(trainer)
    assert newest(tmp_path / "run")[0] == "checkpoint-4"
    attempt(tmp_path / "run", "plain")
    assert outcome(tmp_path / "run") == outcome(whole)


def test_the_best_adapter_comes_back_with_the_checkpoint(stopped, tmp_path):
    path = copy_of(stopped, tmp_path)
    best = (path / "adapter" / "adapter_model.safetensors").read_bytes()
    shutil.rmtree(path / "adapter")
    trainer = make_trainer(path)
    trainer.add_callback(Stop("on_train_begin", 5, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        train(trainer)
    assert (path / "adapter" / "adapter_model.safetensors").read_bytes() == best and trainer.best == (0.0, 4)


def test_other_parameters_start_anew_and_keep_what_was_there(stopped, tmp_path, capsys):
    path = copy_of(stopped, tmp_path)
    trainer = make_trainer(path, learning_rate=2e-2)
    assert trainer.resume_from is None and "learning_rate" in capsys.readouterr().err
    assert [p.name for p in (path / "train-1" / "checkpoints").iterdir()] and not (
        path / "train" / "metrics.jsonl"
    ).exists()


def test_another_spelling_of_the_models_folder_goes_on(stopped, tmp_path):
    path = copy_of(stopped, tmp_path)
    last = path / "train" / "checkpoints" / "checkpoint-5"
    reseal(last, made_with=checkpoint_folders.verify(last)["made_with"] | {"model": "outputs/mine"})
    assert make_trainer(path, model=os.path.abspath("outputs/mine")).resume_from == last


def test_limits_and_parts_of_a_batch_may_change_and_the_step_is_the_same(stopped, whole, tmp_path):
    path = copy_of(stopped, tmp_path)
    last = path / "train" / "checkpoints" / "checkpoint-5"
    reseal(
        last, made_with=checkpoint_folders.verify(last)["made_with"] | {"patience": 0}
    )  # of an older version
    changes = {"trajectory_timeout_s": 900.0, "tool_timeout_s": 20.0, "patience": 99, "max_batch": 64}
    trainer = make_trainer(path, micro_batch=2, sync_threshold=0.1, **changes)
    assert trainer.resume_from == last
    train(trainer)
    found, expected = outcome(path), outcome(whole)
    assert found["steps"] == expected["steps"] and found["trajectories 6"] == expected["trajectories 6"]
    adapters = [
        load_file(p / "train/checkpoints/checkpoint-6/adapter_model.safetensors") for p in (path, whole)
    ]
    for name, weight in adapters[0].items():
        torch.testing.assert_close(weight, adapters[1][name], rtol=1e-3, atol=1e-5)


def test_rollouts_that_are_kept_in_parts_fit_parts_of_that_size_only(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "run", num_iterations=2)
    trainer.add_callback(Stop("on_step_begin", 3, KeyboardInterrupt("stop")))
    with pytest.raises(KeyboardInterrupt):
        train(trainer)
    lab = dataclasses.replace(trainer.lab, recipe=trainer.recipe.but(micro_batch=2))
    told = []
    monkeypatch.setenv(TOKEN, "a launch")  # whose notebook does not see what this process prints
    rest = trainer.run, told.append
    other = AgentGRPOTrainer(lab, *tiny_agent(), tasks(), tasks(2, "validation"), *rest)
    assert other.resume_from is None and "made with another micro_batch: it is kept" in told[0]["notice"]


def test_never_starts_anew(stopped, tmp_path):
    path = copy_of(stopped, tmp_path)
    assert make_trainer(path, resume="never").resume_from is None
    assert (path / "train-1").exists()


def test_another_agent_under_the_same_name_starts_anew(stopped, tmp_path):
    model, tokenizer = tiny_agent()
    torch.nn.init.normal_(model.model.layers[0].mlp.up_proj.weight)
    trainer = make_trainer(copy_of(stopped, tmp_path), agent=(model, tokenizer))
    assert trainer.resume_from is None


def test_a_finished_training_starts_anew_unless_its_stage_was_cut_off(whole, tmp_path, capsys):
    path = copy_of(whole, tmp_path)
    run = Run(path)
    run.begin("03_grpo", {})
    assert make_trainer(path, learning_rate=2e-2).resume_from is None and (path / "train-1").exists()
    told = capsys.readouterr().err
    assert "another learning_rate: it is kept" in told and "had come to its end: it is kept beside" in told
    path = copy_of(whole, tmp_path / "again")
    run = Run(path)
    run.begin("03_grpo", {})  # killed after training, before the end of the stage
    run.begin("03_grpo", {})
    last = path / "train" / "checkpoints" / "checkpoint-6"
    made_with = checkpoint_folders.verify(last)["made_with"]
    assert made_with.pop("micro_batch_tokens") == 0  # as an older version wrote it
    reseal(last, made_with=made_with)
    before, result = outcome(path), read_json(run.file("train", "finished.json"))
    assert train(make_trainer(path)) == result and result["steps"] == 6 and outcome(path) == before


def test_a_measurement_on_gaia_goes_with_the_training_of_its_adapter(whole, tmp_path):
    path = copy_of(whole, tmp_path)
    (path / "gaia.json").write_text("{}")
    make_trainer(path)
    assert not (path / "gaia.json").exists() and (path / "train-1" / "gaia.json").read_text() == "{}"


def test_a_damaged_note_of_the_end_does_not_hinder(whole, tmp_path):
    path = copy_of(whole, tmp_path)
    (path / "train" / "finished.json").write_text("[1")
    for _ in range(2):
        Run(path).begin("03_grpo", {})
    assert train(make_trainer(path))["steps"] == 6 and outcome(path) == outcome(whole)


def test_a_finished_training_without_steady_checkpoints_is_not_lost(tmp_path):
    path = tmp_path / "run"
    result = train(make_trainer(path, save_every=0))
    before = outcome(path)
    for _ in range(2):  # the stage was cut off after training
        Run(path).begin("03_grpo", {})
    trainer = make_trainer(path, save_every=0)
    assert trainer.resume_from is not None
    assert train(trainer) == result and outcome(path) == before and not (path / "train-1").exists()


def test_patience_that_ran_out_is_known_from_older_checkpoints_and_may_be_raised():
    guards = Guards(Recipe(patience=2))
    guards.restore({"skipped": 0, "since_best": 2})
    assert guards.watch.ended == "patience"
    longer = Guards(Recipe(patience=3))
    longer.restore(guards.state())
    assert longer.watch.ended is None


def test_a_training_killed_after_its_last_step_takes_no_further_one(whole, tmp_path):
    path = copy_of(whole, tmp_path)
    (path / "train" / "finished.json").unlink()
    shutil.rmtree(path / "adapter")
    trainer = make_trainer(path)
    assert train(trainer) == {"best_val_success": 0.0, "best_step": 6, "steps": 6, "ended": "steps"}
    assert outcome(path) == outcome(whole) and (path / "train" / "finished.json").exists()


def test_a_training_killed_after_its_patience_ran_out_takes_no_further_step(tmp_path):
    trainer = make_trainer(tmp_path / "run", patience=2, val_every=1, save_every=1)
    trainer.best = (0.5, 0)  # no validation of the tiny agent is that good
    save_adapter(trainer.model, trainer.processing_class, tmp_path / "run" / "adapter")
    ended = train(trainer)
    assert ended == {"best_val_success": 0.5, "best_step": 0, "steps": 1, "ended": "patience"}
    (tmp_path / "run" / "train" / "finished.json").unlink()
    assert train(make_trainer(tmp_path / "run", patience=2, val_every=1, save_every=1)) == ended


def test_a_watcher_may_ask_for_a_checkpoint_and_for_the_end(tmp_path):
    trainer = make_trainer(tmp_path / "run", save_every=0)
    control = tmp_path / "run" / "train" / ".control"

    class Watcher(TrainerCallback):
        def on_step_begin(self, args, state, control_, **kwargs):
            if state.global_step in (1, 3):
                control.write_text("checkpoint\n" if state.global_step == 1 else "stop\n")

    trainer.add_callback(Watcher())
    assert train(trainer) == {"best_val_success": 0.0, "best_step": 4, "steps": 4, "ended": "asked"}
    assert newest(tmp_path / "run") == ["checkpoint-4", "checkpoint-2"] and not control.exists()


def test_the_step_that_is_asked_to_be_the_last_is_validated(tmp_path):
    """Else what is kept is what an earlier validation saw: at first the agent that began."""
    trainer = make_trainer(tmp_path / "run", save_every=0, val_every=5)
    control = tmp_path / "run" / "train" / ".control"

    class Watcher(TrainerCallback):
        def on_step_begin(self, args, state, control_, **kwargs):
            if state.global_step == 1:
                control.write_text("stop\n")

    trainer.add_callback(Watcher())
    assert train(trainer) == {"best_val_success": 0.0, "best_step": 2, "steps": 2, "ended": "asked"}


def test_a_training_that_ran_out_of_patience_goes_on_where_the_recipe_has_more(tmp_path):
    trainer = make_trainer(tmp_path / "run", patience=2, val_every=1, save_every=1)
    trainer.best = (0.5, 0)  # no validation of the tiny agent is that good
    save_adapter(trainer.model, trainer.processing_class, tmp_path / "run" / "adapter")
    assert train(trainer)["ended"] == "patience"
    again = make_trainer(tmp_path / "run", patience=9, val_every=1, save_every=1)
    assert again.resume_from is not None and again.resume_from.name == "checkpoint-1"
    assert train(again)["steps"] == 6 and not (tmp_path / "run" / "train-1").exists()
    assert make_trainer(tmp_path / "run", patience=9, val_every=1, save_every=1).resume_from is None


def test_what_measured_an_earlier_training_is_put_aside(whole, tmp_path):
    path = copy_of(whole, tmp_path)
    (path / "comparison.json").write_text("{}")
    make_trainer(path)
    assert not (path / "comparison.json").exists() and (path / "train-1" / "comparison.json").exists()
    alone = Run.create(tmp_path / "alone").path
    (alone / "comparison.json").write_text("{}")
    make_trainer(alone)
    assert not (alone / "train-1").exists()  # there is no earlier training that it could go with


def test_another_chat_template_in_the_same_file_is_another_training(tmp_path):
    lab, template = make_trainer(tmp_path / "run").lab, tmp_path / "mine.jinja"
    prints = []
    for text in ("{{ messages }}", "{{ messages }} "):
        template.write_text(text)
        recipe = lab.recipe.but(chat_template=str(template))
        prints.append(made_with(dataclasses.replace(lab, recipe=recipe), tiny_agent()[0], [], 1))
    assert prints[0] != prints[1] and "chat template" not in made_with(lab, tiny_agent()[0], [], 1)


def test_what_was_asked_of_an_earlier_training_does_not_stop_the_next(tmp_path):
    """A click may reach the kernel when training has ended."""
    Run.create(tmp_path / "run").begin("03_grpo", {})
    trainer, control = make_trainer(tmp_path / "run", save_every=0), tmp_path / "run" / "train" / ".control"
    control.parent.mkdir(exist_ok=True)
    control.write_text("stop\n")
    os.utime(control, (1e9, 1e9))
    assert train(trainer)["ended"] == "steps" and not control.exists()


def test_an_error_in_a_validation_keeps_the_step_that_was_trained(tmp_path):
    """Its weights have moved and its state is whole: only its row and its validation are missing."""
    changes = {"save_every": 0, "val_every": 2}
    trainer, validate = make_trainer(tmp_path / "run", **changes), AgentGRPOTrainer.validate
    trainer.validate = lambda: validate(trainer) if trainer.state.global_step < 4 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        train(trainer)
    assert newest(tmp_path / "run") == ["checkpoint-4"]
    again = make_trainer(tmp_path / "run", **changes)
    assert again.resume_from is not None and train(again)["steps"] == 6


def test_an_error_in_the_last_validation_is_made_up_for(tmp_path):
    trainer, validate = make_trainer(tmp_path / "run", save_every=0), AgentGRPOTrainer.validate
    trainer.validate = lambda: validate(trainer) if trainer.state.global_step < 6 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        train(trainer)
    assert newest(tmp_path / "run") == ["checkpoint-6"]
    with pytest.warns(UserWarning, match="gap"):
        again = make_trainer(tmp_path / "run", save_every=0)
    assert train(again) == {"best_val_success": 0.0, "best_step": 6, "steps": 6, "ended": "steps"}
    last = read_jsonl(tmp_path / "run" / "train" / "metrics.jsonl")[-1]
    assert last["step"] == 6 and "val_success" in last


def test_a_validation_without_a_verdict_is_left_out_and_said(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "run")
    unscored = [SimpleNamespace(success=None, why="the judge is down")]
    monkeypatch.setattr("agentkit.training.validation.spread", lambda *rest: unscored)
    with pytest.warns(UserWarning, match="validation is left out.*the judge is down"):
        trainer.validate()
    assert "val_success" not in trainer._measured and trainer.best[0] <= 0


# ---- signals and kills
def test_sigterm_leaves_a_checkpoint_at_once_and_training_goes_on_from_it(tmp_path, whole):
    trainer = make_trainer(tmp_path / "run", save_every=0)
    alarm, awake = threading.Event(), threading.Event()

    class Ask(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 3:
                alarm.set()
                awake.wait(60)  # so that the signal comes within this step

    def send():
        alarm.wait(600)
        awake.set()
        os.kill(os.getpid(), signal.SIGTERM)

    trainer.add_callback(Ask())
    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(TrainingStopped, match="SIGTERM"):
        train(trainer)
    assert signal.getsignal(signal.SIGTERM) is before
    step = int(newest(tmp_path / "run")[0].removeprefix("checkpoint-"))
    assert step in (3, 4)
    attempt(tmp_path / "run", "plain")
    found, expected = outcome(tmp_path / "run"), outcome(whole)
    assert found == expected


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_like_a_whole_one():
    """A handful of the 50 of ``python tests/survive.py``."""
    words = [
        sys.executable,
        str(HERE / "survive.py"),
        "--runs",
        "2",
        "--kinds",
        "num_iterations=2",
        "steps_per_generation=4",
    ]
    child = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=600
    )
    assert child.returncode == 0, child.stdout + child.stderr[-2000:]
    assert "2 runs killed and resumed" in child.stdout


def test_two_processes_cannot_train_in_one_run(tmp_path, monkeypatch):
    code = (
        "import sys, time\nfrom agentkit.runs import Run\nfrom agentkit.training.processes import lock\n"
        "lock(Run(sys.argv[1])); print('held', flush=True); time.sleep(600)"
    )
    path = Run.create(tmp_path / "run").path
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, cwd=HERE.parent
    )
    try:
        assert other.stdout.readline() == "held\n"
        monkeypatch.setattr("agentkit.training.processes.LOCK_S", 0.0)
        with pytest.raises(RunError, match=f"process {other.pid} is training"):
            make_trainer(path)
    finally:
        other.kill()
        other.wait()
    make_trainer(path)


@pytest.mark.parametrize("part", ["make_policy", "AgentGRPOTrainer._check_prompts"])
def test_a_trainer_that_could_not_be_made_lets_others_train_in_the_run(part, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise EngineError("vLLM did not start")

    monkeypatch.setattr(f"agentkit.training.grpo.{part}", fails)
    with pytest.raises(EngineError, match="did not start"):
        make_trainer(tmp_path / "run")
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run" / LOCK)], check=True)


# ---- damage
def first_file(path: Path) -> Path:
    return path / "adapter_model.safetensors"


def swap(path: Path) -> None:
    a, b, spare = path / "optimizer.pt", path / "scheduler.pt", path / "spare"
    a.rename(spare), b.rename(a), spare.rename(b)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def reseal(path: Path, **about) -> None:
    """Make a manifest that vouches for the files as they are."""
    kept = json.loads((path / "manifest.json").read_text())["about"] | about
    (path / "manifest.json").unlink()
    shutil.move(path, path.with_name(f".{path.name}"))
    checkpoint_folders.commit(path.with_name(f".{path.name}"), kept)


def no_state(path: Path) -> None:
    (path / "trainer_state.json").write_text("[]")
    reseal(path)


def other_step(path: Path) -> None:
    state = json.loads((path / "trainer_state.json").read_text())
    (path / "trainer_state.json").write_text(json.dumps(state | {"global_step": 99}))
    reseal(path)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil-was-here",)


def evil(path: Path) -> None:
    torch.save(Evil(), path / "scheduler.pt")
    reseal(path)


def cut(name: str, to: int):
    return lambda path: os.truncate(path / name, to)


DAMAGES = {
    "adapter cut": cut("adapter_model.safetensors", 100),
    "adapter empty": cut("adapter_model.safetensors", 0),
    "adapter missing": lambda path: first_file(path).unlink(),
    "adapter one bit": lambda path: flip(first_file(path)),
    "optimiser cut": cut("optimizer.pt", 1000),
    "optimiser missing": lambda path: (path / "optimizer.pt").unlink(),
    "schedule empty": cut("scheduler.pt", 0),
    "schedule runs code": evil,
    "random states cut": cut("rng_state.pth", 10),
    "trainer state not JSON": lambda path: (path / "trainer_state.json").write_text("{nope"),
    "trainer state a list": no_state,
    "trainer state of another step": other_step,
    "counters missing": lambda path: (path / "state.json").unlink(),
    "best adapter one bit": lambda path: flip(path / "best" / "adapter_model.safetensors"),
    "files swapped": swap,
    "manifest missing": lambda path: (path / "manifest.json").unlink(),
    "manifest not JSON": lambda path: (path / "manifest.json").write_text("]["),
    "manifest empty": lambda path: (path / "manifest.json").write_text(""),
    "manifest a number": lambda path: (path / "manifest.json").write_text("3"),
    "manifest names fewer files": lambda path: (path / "manifest.json").write_text(
        json.dumps({"about": {"step": 5}, "files": {}, "sha256": "0"})
    ),
    "folder empty": lambda path: [shutil.rmtree(path), path.mkdir()],
    "a file in its place": lambda path: [shutil.rmtree(path), path.write_text("")],
    "a folder in a file's place": lambda path: [first_file(path).unlink(), first_file(path).mkdir()],
    "renamed": lambda path: path.rename(path.with_name("checkpoint-7")),
}


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A trainer that says whether a checkpoint fits it."""
    return make_trainer(tmp_path_factory.mktemp("judge") / "run")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_falls_back_loudly(damage, stopped, judge, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copy_of(stopped, tmp_path) / "train" / "checkpoints"
    assert checkpoint_folders.newest_sound(folder, judge._fits).name == "checkpoint-5"
    DAMAGES[damage](folder / "checkpoint-5")
    with pytest.warns(
        UserWarning, match=r"damaged and is not used: checkpoint-\d: .*falling back to checkpoint-4"
    ):
        assert checkpoint_folders.newest_sound(folder, judge._fits).name == "checkpoint-4"
    assert not (tmp_path / "evil-was-here").exists()


def test_training_falls_back_and_ends_alike(stopped, whole, tmp_path):
    path = copy_of(stopped, tmp_path)
    flip(first_file(path / "train" / "checkpoints" / "checkpoint-5"))
    with pytest.warns(UserWarning, match="falling back to checkpoint-4"):
        attempt(path, "plain")
    assert outcome(path) == outcome(whole)
    assert (path / "train" / "checkpoints" / "damaged-checkpoint-5-1").exists()


def test_without_a_sound_checkpoint_training_starts_anew_and_keeps_the_rest(stopped, tmp_path):
    path = copy_of(stopped, tmp_path)
    for name in newest(path):
        flip(first_file(path / "train" / "checkpoints" / name))
    with pytest.warns(UserWarning, match="there is no older one"):
        assert make_trainer(path).resume_from is None
    assert len(newest(tmp_path / "run" / "..")) == 0 and (path / "train-1" / "metrics.jsonl").exists()


def test_a_disk_without_room_is_one_sentence_and_the_last_checkpoint_stays(stopped, tmp_path):
    path = copy_of(stopped, tmp_path)
    before = {p: p.read_bytes() for p in (path / "train" / "checkpoints").rglob("*") if p.is_file()}
    trainer = make_trainer(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Fill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (8000, hard)
            )  # the kernel refuses larger files, as a full disk would

    trainer.add_callback(Fill())
    try:
        with pytest.raises(
            RunError, match=r"checkpoint of step 6 could not be written .* checkpoint-5 is whole.* Make room"
        ):
            train(trainer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {p: p.read_bytes() for p in (path / "train" / "checkpoints").rglob("*") if p.is_file()} == before
    attempt(path, "plain")
    assert newest(path)[0] == "checkpoint-6"


# ---- files
def test_a_checkpoint_is_whole_private_and_two_are_kept(tmp_path):
    for step in (1, 2, 10):
        new = checkpoint_folders.begin(tmp_path, step)
        (new / "a").write_text(str(step))
        path = checkpoint_folders.commit(new, {"step": step})
    assert [p.name for p in checkpoint_folders.steps(tmp_path)] == ["checkpoint-10", "checkpoint-2"]
    assert checkpoint_folders.verify(path) == {"step": 10} and path.stat().st_mode & 0o777 == 0o700
    assert (path / "a").stat().st_mode & 0o777 == 0o600
    (path / "a").write_text("x")
    with pytest.raises(CheckpointError, match="checkpoint-10: a is not as it was written"):
        checkpoint_folders.verify(path)


def test_a_half_written_checkpoint_is_never_seen(tmp_path):
    (checkpoint_folders.begin(tmp_path, 3) / "a").write_text("half")
    assert (
        checkpoint_folders.steps(tmp_path) == []
        and checkpoint_folders.newest_sound(tmp_path, lambda *a: None) is None
    )
    checkpoint_folders.begin(tmp_path, 4)
    assert [p.name for p in tmp_path.iterdir()] == [".checkpoint-4"]


def test_cutting_rows_keeps_those_without_a_step_and_drops_torn_ones(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n{"note": 1}\n{"step": 3}\n\n{"step": 2}\n{"step": "x"}\n{"step": 1')
    assert cut_jsonl(path, 2) == 2 and cut_jsonl(path, 2) == 0 and cut_jsonl(tmp_path / "none", 1) == 0
    assert path.read_bytes() == b'{"step": 1}\n{"note": 1}\n{"step": 2}\n{"step": "x"}\n'


def test_the_harness_would_see_a_difference(whole, tmp_path):
    """survive.py compares what it should: a run whose last adapter or metrics differ is not equal."""
    path = copy_of(whole, tmp_path)
    flip(first_file(path / "train" / "checkpoints" / f"checkpoint-{SMALL['steps']}"))
    assert outcome(path) != outcome(whole)
    path = copy_of(whole, tmp_path / "b")
    rows = read_jsonl(path / "train" / "metrics.jsonl")
    rows[3]["reward"] += 1e-7
    (path / "train" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert outcome(path) != outcome(whole)
    assert len({json.dumps(r["loss"]) for r in rows if "loss" in r}) > 3, (
        "weights move, or equality would say nothing"
    )
