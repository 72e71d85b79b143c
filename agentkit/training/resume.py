"""Training that survives a kill: what a checkpoint holds, when one is written, and how training goes on from
it.

``Resumable`` goes in front of TRL's GRPOTrainer. transformers' Trainer saves and restores the optimiser, the
schedule, the random states and the data position; added here is what it leaves out: whole checkpoints only
(checkpoints), the batch of rollouts in use, the order of later epochs, the best adapter, the kit's own
counters, and the position in metrics.jsonl. A checkpoint of the last finished step is also written when
training is interrupted, by Ctrl-C, SIGTERM or an error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerState
from transformers.trainer_pt_utils import safe_globals

from agentkit.records import Task
from agentkit.runs import RunError, read_json, write_json
from agentkit.runs.recipe import Recipe
from agentkit.training import checkpoints
from agentkit.training.checkpoints import CheckpointError, cut_back, set_aside
from agentkit.training.common import replace_folder
from agentkit.training.process import TrainingStopped, lock, random_states, set_random_states, signals, unlock

if TYPE_CHECKING:
    from agentkit.lab import Lab

STAGE = "03_grpo"
FINISHED = "finished.json"  # in train/, once training came to its end
CONTROL = ".control"  # in train/: the words stop and checkpoint, written by whoever watches
ADAPTER = "adapter_model.safetensors"
# recipe keys that may change between two attempts
_FREE = (
    "run",
    "lab",
    "resume",
    "save_every",
    "preflight",
    "report_to",
    "server_urls",
    "engine_memory",
    "tool_cache",
)


def made_with(lab: Lab, model: Any, tasks: list[Task], world: int) -> dict:
    """What a training must share with a checkpoint to go on from it, as JSON."""
    keys = [name for name in Recipe.keys_of("03_grpo") if name not in _FREE]
    return {name: getattr(lab.recipe, name) for name in keys} | {
        "tasks of this suite": _hash(f"{t.id}\0{t.prompt}\0{t.answer}" for t in tasks),
        "weights of the agent": _hash(_sketch(model)),
        "reward": {name: weight for name, (_, weight) in lab.reward.items()},
        "lab file": lab.digest,
        "processes": world,
    }


def _hash(texts: Any) -> str:
    found = hashlib.sha256()
    for text in texts:
        found.update(text.encode("utf-8", "replace") + b"\0")
    return found.hexdigest()[:16]


def _sketch(model: Any) -> Iterator[str]:
    """Names, shapes and first numbers of the frozen weights: enough to tell one agent from another without
    reading it all.
    """
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            yield f"{name} {tuple(weight.shape)} {weight.detach().flatten()[:16].tolist()}"


class Resumable:
    """Mixin of a GRPOTrainer with ``recipe``, ``run``, ``best``, ``guards``, ``kept_state()`` and
    ``restore_state(state)``.
    """

    def open_training(self, fingerprint: dict[str, Any]) -> None:
        """Decide between going on and starting anew. Called once the trainer is built.

        What an earlier training left is cut back to the checkpoint, or set aside as train-1, train-2 and so
        on.

        Raises:
            RunError: another process trains in this run.
        """
        self._fingerprint = fingerprint
        self._boundary: tuple[int, Any] | None = None  # the last finished step and the random states after it
        self._moving = (
            False  # the weights have moved since, so that no checkpoint can be written before the step ends
        )
        self._stop_asked = self._leaving = False
        self.resume_from: Path | None = None
        self.finished: dict[str, Any] | None = None
        self.add_callback(_Marks(self))
        if self.accelerator.is_main_process:
            lock(self.run)
            self.finished = self._finished_before()
            self.resume_from = None if self.finished else self._checkpoint()
            if self.resume_from:
                cut_back(self.run, self.resume_from)
            elif not self.finished:
                set_aside(self.run.file("train"))
        shared = [self.resume_from, self.finished]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(shared)
        self.resume_from, self.finished = shared

    def _finished_before(self) -> dict[str, Any] | None:
        """The result of a training that came to its end although the stage did not."""
        file = self.run.file("train", FINISHED)
        stage = self.run.manifest["stages"].get(STAGE, {})
        if self.recipe.resume == "never" or not file.exists() or not stage.get("interrupted"):
            return None
        try:
            found = read_json(file)
            whole = self.run.file("adapter", ADAPTER).exists()
            return found["result"] if whole and found["made_with"] == self._fingerprint else None
        except (RunError, KeyError, TypeError):
            _say(f"{file} is damaged and is not used")
            file.unlink()  # so that training goes on from its last checkpoint
            return None

    def _checkpoint(self) -> Path | None:
        """The checkpoint to go on from; None to start anew."""
        folder = self.run.file("train", "checkpoints")
        if self.recipe.resume == "never" or self.run.file("train", FINISHED).exists():
            return None
        found = checkpoints.newest_sound(folder, self._fits)
        if found is None:
            return None
        made = checkpoints.verify(found)["made_with"]
        if other := sorted(
            name for name in {*made, *self._fingerprint} if made.get(name) != self._fingerprint.get(name)
        ):
            _say(
                f"the training in {folder.parent} was made with another {', '.join(other[:5])}: it is kept "
                "beside this one, which"
                " starts anew"
            )
            return None
        _say(f"going on from {found}")
        return found

    def _fits(self, path: Path, about: dict[str, Any]) -> None:
        """Raise CheckpointError where a checkpoint cannot be loaded into this model."""
        if about.get("made_with") != self._fingerprint:
            return  # not ours: nothing to load
        try:
            state = TrainerState.load_from_json(str(path / "trainer_state.json"))
            adapter = load_file(path / ADAPTER)
            optimizer = _load(path / "optimizer.pt")["state"]
            for file in path.glob("*.pt*"):
                _load(file)
            read_json(path / "state.json")
        except Exception as error:  # whatever a damaged file makes its reader raise
            raise CheckpointError(
                f"{path.name}: {type(error).__name__}: {' '.join(str(error).split())[:150]}"
            ) from None
        own = get_peft_model_state_dict(self.accelerator.unwrap_model(self.model))
        if {name: tuple(x.shape) for name, x in adapter.items()} != {
            name: tuple(x.shape) for name, x in own.items()
        }:
            raise CheckpointError(f"{path.name}: its adapter has other shapes than this model's")
        if state.global_step != about["step"] or path.name != f"checkpoint-{about['step']}":
            raise CheckpointError(f"{path.name}: it holds step {state.global_step}")
        moments = [tuple(entry["exp_avg"].shape) for entry in optimizer.values() if "exp_avg" in entry]
        trained = [tuple(p.shape) for p in self.model.parameters() if p.requires_grad]
        if moments and sorted(moments) != sorted(trained):  # a guard may have emptied it
            raise CheckpointError(f"{path.name}: its optimiser has other shapes than this model's")

    # ---- writing
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """In place of transformers' own, which leaves half a checkpoint where it is killed."""
        self.write_checkpoint()

    def write_checkpoint(self) -> Path:
        """Write a checkpoint of the current step.

        Raises:
            RunError: it could not be written, such as on a full disk; the checkpoints before it are as they
                were.
        """
        folder, step = self.run.file("train", "checkpoints"), self.state.global_step
        try:
            new = (
                checkpoints.begin(folder, step)
                if self.accelerator.is_main_process
                else folder / f".checkpoint-{step}"
            )
            self.accelerator.wait_for_everyone()
            self._save_rng_state(str(new))
            if self._in_use():
                torch.save(self._buffered_inputs, new / f"rollouts_{self.accelerator.process_index}.pt")
            if self.accelerator.is_main_process:
                self._fill(new)
            self.accelerator.wait_for_everyone()
            if not self.accelerator.is_main_process:
                return folder / f"checkpoint-{step}"
            return checkpoints.commit(new, {"step": step, "made_with": self._fingerprint})
        except Exception as error:  # each library has its own for a full disk
            shutil.rmtree(folder / f".checkpoint-{step}", ignore_errors=True)
            last = checkpoints.steps(folder)
            kept = f"{last[0].name} is whole" if last else "there is none before it"
            raise RunError(
                f"the checkpoint of step {step} could not be written to {folder} "
                f"({' '.join(str(error).split())[:150]}); {kept}. "
                "Make room on the disk and run this again: it goes on from there."
            ) from None

    def _in_use(self) -> bool:
        """Whether the next step trains on rollouts that are already made."""
        done = self.state.global_step * self.args.gradient_accumulation_steps
        return (
            self._buffered_inputs is not None
            and done % (self.args.steps_per_generation * self.num_iterations) != 0
        )

    def _fill(self, new: Path) -> None:
        """What the main process writes into a checkpoint."""
        self.accelerator.unwrap_model(self.model).save_pretrained(new)
        (new / "README.md").unlink(missing_ok=True)  # PEFT's model card is an empty form
        self._save_optimizer_and_scheduler(str(new))
        dataclasses.replace(self.state, log_history=[]).save_to_json(
            str(new / "trainer_state.json")
        )  # metrics.jsonl has it
        write_json(new / "state.json", self.kept_state())
        best = self.run.file("adapter")
        if self.best[0] >= 0 and best.exists():
            shutil.copytree(best, new / "best")

    # ---- going on
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """The adapter's weights; the best adapter goes back to its place."""
        path = Path(resume_from_checkpoint)
        set_peft_model_state_dict(self.accelerator.unwrap_model(self.model), load_file(path / ADAPTER))
        if self.accelerator.is_main_process and (path / "best").exists():
            new = self.run.file(".adapter.new")
            shutil.rmtree(new, ignore_errors=True)
            shutil.copytree(path / "best", new)
            replace_folder(new, self.run.file("adapter"))

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: Any,
        trial: Any,
    ) -> tuple[int, int]:
        """Restore what transformers does not: rollouts in use, the order of the tasks in this epoch, the
        kit's counters.
        """
        epochs, batches = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        self._step = self.state.global_step * self.args.gradient_accumulation_steps
        if resume_from_checkpoint is None:
            return epochs, batches
        for _ in range(epochs):  # each epoch drew one order
            torch.randperm(self._sampler.num_samples, generator=self._sampler.generator)
        path = Path(resume_from_checkpoint)
        rollouts = path / f"rollouts_{self.accelerator.process_index}.pt"
        self._buffered_inputs = _load(rollouts, self.args.device) if rollouts.exists() else None
        self.restore_state(read_json(path / "state.json"))
        return epochs, batches

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._boundary, self._moving = (self.state.global_step, random_states()), False
        if self._everywhere(self._stop_asked):
            self.write_checkpoint()  # together: on its way out a process no longer waits for the others
            raise TrainingStopped(f"stopped after step {self.state.global_step}")

    def _everywhere(self, flag: bool) -> bool:
        """Whether any process raised the flag; all of them get the same answer."""
        if self.accelerator.num_processes == 1:
            return flag
        return bool(self.accelerator.reduce(torch.tensor(float(flag), device=self.accelerator.device)) > 0)

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """Train from the checkpoint that was found, or from the beginning; an interrupted training leaves a
        checkpoint.
        """
        if self.resume_from and self._was_over():
            unlock(self.run)
            return None
        start = str(self.resume_from) if self.resume_from else None
        with signals(self._on_signal):
            try:
                return super().train(resume_from_checkpoint=resume_from_checkpoint or start, **options)
            except BaseException as error:
                self._leaving = True
                self._leave(error)
                raise
            finally:
                unlock(self.run)

    def _was_over(self) -> bool:
        """Restore a training that was killed after its last step; transformers would train one more."""
        self.state = TrainerState.load_from_json(str(self.resume_from / "trainer_state.json"))
        self.restore_state(read_json(self.resume_from / "state.json"))
        if self.state.global_step < self.args.max_steps and not self.guards.ended:
            return False
        self._load_from_checkpoint(str(self.resume_from))
        return True

    def _on_signal(self, name: str) -> None:
        """Stop now, or at the end of this step where its weights have moved but its checkpoint cannot be
        written yet.

        A second Ctrl-C does not wait. Several processes stop together, after a step.
        """
        if self._leaving:
            return
        again, self._stop_asked = self._stop_asked and name == "SIGINT", True
        if again or (self.accelerator.num_processes == 1 and not self._moving):
            raise TrainingStopped(
                f"stopped by {name} after step {self.state.global_step}; run this again to go on"
            )

    def _leave(self, error: BaseException) -> None:
        """The checkpoint of the last finished step, where it is not on the disk yet and this process can
        write it.
        """
        if self._boundary is None or self._moving or self.accelerator.num_processes > 1:
            return
        step, states = self._boundary
        path = self.run.file("train", "checkpoints", f"checkpoint-{step}")
        if not path.exists():
            set_random_states(states)
            try:
                path = self.write_checkpoint()
            except RunError as second:
                _say(f"{type(error).__name__}: {error}; {second}")
                return
        _say(
            f"training stopped ({type(error).__name__}: {str(error)[:200]}); {path} holds step {step}, run "
            "this again to go on"
        )

    def asked_for(self) -> set[str]:
        """The words in the control file, which is then removed; every process gets the same."""
        words: list[Any] = [set()]
        file = self.run.file("train", CONTROL)
        if self.accelerator.is_main_process and file.exists():
            words = [set(file.read_text(encoding="utf-8", errors="replace").split()) & {"stop", "checkpoint"}]
            file.unlink()
        if self.accelerator.num_processes > 1:
            broadcast_object_list(words)
        return words[0]

    def mark_finished(self, result: dict[str, Any]) -> None:
        """Training came to its end: another one starts anew, unless the stage around this one is interrupted
        before its end.
        """
        if self.accelerator.is_main_process:
            write_json(self.run.file("train", FINISHED), {"result": result, "made_with": self._fingerprint})


class _Marks(TrainerCallback):
    """Says when the weights are about to move, when a checkpoint is due, and what a watcher asked for."""

    def __init__(self, trainer: Any):
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here to the end of the step no checkpoint can be written."""
        self._trainer._moving = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for a checkpoint every ``save_every`` steps, and for what the control file says."""
        asked = self._trainer.asked_for()
        every = self._trainer.recipe.save_every
        control.should_save |= bool(asked) or (every > 0 and state.global_step % every == 0)
        control.should_training_stop |= "stop" in asked


def _load(path: Path, device: Any = "cpu") -> Any:
    """A file of torch's, without running what it says."""
    with safe_globals():
        return torch.load(path, map_location=device, weights_only=True)


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)
