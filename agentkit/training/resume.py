"""Training that survives a kill: what a checkpoint holds, when one is written, and how training goes on.

``Resumable`` goes in front of TRL's GRPOTrainer. transformers' Trainer saves and restores the optimiser, the
schedule, the random states and the data position; added here is what it leaves out: whole checkpoints only
(checkpoints), the batch of rollouts in use, the order of later epochs, the best adapter, the kit's own
counters, and the position in metrics.jsonl. A checkpoint of the last finished step is also written when
training is interrupted, by Ctrl-C, SIGTERM or an error. Leaves out how a checkpoint becomes whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerState
from transformers.trainer_pt_utils import safe_globals

from agentkit.policies.process_group import from_main, gathered
from agentkit.policies.shards import whole
from agentkit.records import Task
from agentkit.runs import Recipe, RunError, read_json, read_jsonl, write_json
from agentkit.runs.children import TOKEN, signals
from agentkit.runs.run import placed
from agentkit.training import checkpoint_folders
from agentkit.training.adapters import replacing, write_adapter
from agentkit.training.checkpoint_folders import CheckpointError, cut_back, set_aside
from agentkit.training.guards import Guards
from agentkit.training.processes import TrainingStopped, lock, random_states, set_random_states, unlock

if TYPE_CHECKING:
    from agentkit.lab import Lab

STAGE = "03_grpo"
FINISHED = "finished.json"  # in train/, once training came to its end
CONTROL = ".control"  # in train/: the words stop and checkpoint, written by whoever watches
ADAPTER = "adapter_model.safetensors"
# recipe keys that may change between two attempts
_FREE = (
    "run resume save_every preflight report_to server_urls engine_memory tool_cache shard "
    "max_batch sync_threshold trajectory_timeout_s tool_timeout_s patience gpus"
).split()
_PARTS = ("micro_batch", "micro_batch_tokens")  # may too, where no rollouts are kept in parts of that size
_ASIDE = "it is kept beside this one, which starts anew"


def made_with(lab: Lab, model: Any, tasks: list[Task], world: int) -> dict:
    """What a training must share with a checkpoint to go on from it, as JSON."""
    keys, template = [n for n in Recipe.keys_of(STAGE) if n not in _FREE], Path(lab.recipe.chat[0] or ".")
    return (
        {name: getattr(lab.recipe, name) for name in keys}
        | {
            "tasks of this suite": _hash(f"{t.id}\0{t.prompt}\0{t.answer}" for t in tasks),
            "weights of the agent": _hash(_sketch(model)),
            "reward": {name: weight for name, (_, weight) in lab.reward.items()},
            "lab file": lab.digest,
            "processes": world,
        }
        | ({"chat template": _hash([template.read_text(encoding="utf-8")])} if template.is_file() else {})
    )


def _ended(finished: Path) -> str:
    with suppress(RunError, KeyError, TypeError):
        return str(read_json(finished)["ended"])
    return "steps"


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join([*texts, ""]).encode("utf-8", "replace")).hexdigest()[:16]


def _sketch(model: Any) -> Iterator[str]:
    """Names, shapes and first numbers of the frozen weights: enough to tell one agent from another."""
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            yield f"{name} {tuple(weight.shape)} {whole(weight.detach()).flatten()[:16].tolist()}"


def _value(made: dict[str, Any], name: str) -> Any:
    """What a fingerprint says of a key, however a file is spelt; the default where the key is newer."""
    return placed(name, made.get(name, getattr(Recipe(), name, None)))


class Resumable:
    """Mixin of a GRPOTrainer with ``recipe``, ``run``, ``best`` and ``guards``."""

    resume_from: Path | None = None

    def open_training(self, fingerprint: dict[str, Any]) -> None:
        """Decide between going on and starting anew, once the trainer is built; RunError where another
        trains.
        """
        self._fingerprint = fingerprint
        # the last finished step, with the random states and the guards after it
        self._boundary: tuple[int, Any, dict[str, Any]] | None = None
        self._moving = False  # the weights have moved since: no checkpoint before the step ends
        self._stop_asked = self._leaving = False
        self.add_callback(_Marks(self))
        if self.accelerator.is_main_process:
            lock(self.run)
            self._look_back()
        (self.resume_from,) = from_main(self.resume_from)

    def _look_back(self) -> None:
        """A training that came to its end starts anew, but where its stage was cut off after that."""
        earlier = self.run.file("train", "metrics.jsonl").exists()
        for name in ("gaia.json", "comparison.json", "measures.json") if earlier else ():
            with suppress(FileNotFoundError):  # it measured the adapter as it was
                self.run.file(name).rename(self.run.file("train", name))
                self.run.remove(name)
        finished = self.run.file("train", FINISHED)
        cut_off = self.run.manifest["stages"].get(STAGE, {}).get("interrupted", False)
        ended = "" if cut_off or not finished.exists() else _ended(finished)
        if self.recipe.resume != "never":
            self.resume_from = self._checkpoint()
        if ended and not (ended == "patience" and self.resume_from and self._has_patience_again()):
            self._tell(f"the training in {finished.parent} had come to its end: {_ASIDE}")
            self.resume_from = None
        if self.resume_from:
            if not finished.exists():
                self._tell(f"going on from {self.resume_from}")
            finished.unlink(missing_ok=True)
            cut_back(self.run, self.resume_from)
            self.run.metric_rows(checkpoint_folders.step_of(self.resume_from))  # says where rows are lost
        else:
            set_aside(self.run.file("train"))

    def _has_patience_again(self) -> bool:
        """Whether a training that ended for lack of patience may go on, as the recipe has more by now."""
        guards = Guards(self.recipe)
        guards.restore(read_json(self.resume_from / "state.json")["guards"])
        return guards.watch.ended is None

    def _checkpoint(self) -> Path | None:
        """The newest sound checkpoint; None where it was made with other parameters."""
        folder = self.run.file("train", "checkpoints")
        path = checkpoint_folders.newest_sound(folder, self._fits)
        if path is None:
            return None
        if other := self._unlike(path, checkpoint_folders.verify(path)["made_with"]):
            self._tell(
                f"the training in {folder.parent} was made with another {', '.join(other[:5])}: {_ASIDE}"
            )
            return None
        return path

    def _unlike(self, path: Path, made: dict[str, Any]) -> list[str]:
        """What a checkpoint was made with another of, so that training cannot go on from it."""
        ours, free = self._fingerprint, {*_FREE, *_PARTS}
        if any(path.glob("rollouts_*")) or self.recipe.loss_type == "bnpo":  # a mean over a micro-batch
            free -= {*_PARTS}
        free |= {"chat template"} - made.keys()  # of an older version
        return sorted(name for name in {*made, *ours} - free if _value(made, name) != _value(ours, name))

    def _tell(self, text: str) -> None:
        """Say it here, and in the notebook's cell where that has launched this process."""
        _say(text)
        if TOKEN in os.environ:
            self.on_metrics({"notice": text})

    def _fits(self, path: Path, about: dict[str, Any]) -> None:
        if self._unlike(path, about.get("made_with", {})):
            return  # not ours: nothing to load
        try:
            state = TrainerState.load_from_json(str(path / "trainer_state.json"))
            load_file(path / ADAPTER)
            for file in path.glob("*.pt*"):
                _load(file)
            read_json(path / "state.json")
        except Exception as error:  # whatever a damaged file makes its reader raise
            raise CheckpointError(f"{path.name}: {type(error).__name__}: {_short(error)}") from None
        if state.global_step != about["step"] or path.name != f"checkpoint-{about['step']}":
            raise CheckpointError(f"{path.name}: it holds step {state.global_step}")

    # ---- writing
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """In place of transformers' own, which leaves half a checkpoint where it is killed."""
        self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the current step; RunError where it could not be, with the older ones
        unharmed.
        """
        folder, step = self.run.file("train", "checkpoints"), self.state.global_step
        new, main = folder / f".checkpoint-{step}", self.accelerator.is_main_process
        try:
            if main:
                checkpoint_folders.begin(folder, step)
            self.accelerator.wait_for_everyone()
            self._save_rng_state(str(new))
            if self._in_use():
                torch.save(self._buffered_inputs, new / f"rollouts_{self.accelerator.process_index}.pt")
            if main:
                self._fill(new)
            self.accelerator.wait_for_everyone()
            if main:
                checkpoint_folders.commit(new, {"step": step, "made_with": self._fingerprint})
        except Exception as error:  # each library has its own for a full disk
            shutil.rmtree(new, ignore_errors=True)
            last = checkpoint_folders.steps(folder)
            kept = f"{last[0].name} is whole" if last else "there is none before it"
            raise RunError(
                f"the checkpoint of step {step} could not be written to {folder} ({_short(error)}); {kept}. "
                "Make room on the disk and run this again: it goes on from there."
            ) from None

    def _in_use(self) -> bool:
        """Whether the next step trains on rollouts that are already made."""
        done = self.state.global_step * self.args.gradient_accumulation_steps
        parts = self.args.steps_per_generation * self.num_iterations
        return self._buffered_inputs is not None and done % parts != 0

    def _fill(self, new: Path) -> None:
        write_adapter(self.accelerator.unwrap_model(self.model), new)
        self._save_optimizer_and_scheduler(str(new))
        state = dataclasses.replace(self.state, log_history=[])  # which metrics.jsonl holds
        state.save_to_json(str(new / "trainer_state.json"))
        write_json(new / "state.json", {"best": list(self.best), "guards": self.guards.state()})
        best = self.run.file("adapter")
        if self.best[0] >= 0 and best.exists():
            shutil.copytree(best, new / "best")

    # ---- going on
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """The adapter's weights; the best adapter goes back to where it was."""
        path = Path(resume_from_checkpoint)
        set_peft_model_state_dict(self.accelerator.unwrap_model(self.model), load_file(path / ADAPTER))
        if self.accelerator.is_main_process and (path / "best").exists():
            with replacing(self.run.file("adapter")) as new:
                shutil.copytree(path / "best", new)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Restore what transformers does not: rollouts in use, the order of this epoch, our counters."""
        epochs, batches = super()._init_training_state(*args, **kwargs)
        self._step = self.state.global_step * self.args.gradient_accumulation_steps
        if self.resume_from is None:
            return epochs, batches
        for _ in range(epochs):  # each epoch drew one order
            torch.randperm(self._sampler.num_samples, generator=self._sampler.generator)
        rollouts = self.resume_from / f"rollouts_{self.accelerator.process_index}.pt"
        self._buffered_inputs = _load(rollouts, self.args.device) if rollouts.exists() else None
        self._restore_counters()
        return epochs, batches

    def _restore_counters(self) -> None:
        kept = read_json(self.resume_from / "state.json")
        self.best = tuple(kept["best"])
        self.guards.restore(kept["guards"])

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._boundary = self.state.global_step, random_states(), self.guards.state()
        self._moving = False
        if any(gathered([self._stop_asked])):
            self.write_checkpoint()  # together: on its way out a process no longer waits for the others
            raise TrainingStopped(f"stopped after step {self.state.global_step}")

    def train(self) -> None:
        """Train from the checkpoint that was found, or anew; interrupted, it leaves a checkpoint."""
        try:
            if self.resume_from and self._was_over():
                return
            with signals(self._on_signal, "SIGINT", "SIGTERM"):
                try:
                    super().train(resume_from_checkpoint=str(self.resume_from) if self.resume_from else None)
                except BaseException as error:
                    self._leaving = True
                    self._leave(error)
                    raise
        finally:
            unlock(self.run)

    def _was_over(self) -> bool:
        """Restore a training that was killed after its last step; transformers would train one more.

        Where that was in its last validation, it is made up for.
        """
        self.state = TrainerState.load_from_json(str(self.resume_from / "trainer_state.json"))
        self._restore_counters()
        if self.state.global_step < self.args.max_steps and not self.guards.watch.ended:
            return False
        self._load_from_checkpoint(str(self.resume_from))
        rows = read_jsonl(self.run.file("train", "metrics.jsonl"))
        if self.state.global_step not in [row.get("step") for row in rows]:
            self.validate()
            self._write_row({})
        return True

    def _on_signal(self, name: str) -> None:
        """Stop now, or at the end of a step whose weights have moved and have no checkpoint yet.

        A second Ctrl-C does not wait. Several processes stop together, after a step.
        """
        if self._leaving:
            return
        again, self._stop_asked = self._stop_asked and name == "SIGINT", True
        if again or (self.accelerator.num_processes == 1 and not self._moving):
            step = self.state.global_step
            raise TrainingStopped(f"stopped by {name} after step {step}")

    def _leave(self, error: BaseException) -> None:
        """The checkpoint of the last finished step, if it is not there yet and this process can write it."""
        if self._boundary is None or self.accelerator.num_processes > 1:
            return
        step, states, guards = self._boundary
        is_error = not isinstance(error, KeyboardInterrupt)  # a second Ctrl-C goes back, bit for bit
        if self._moving and is_error and step < self.state.global_step:  # in validation
            step, states, guards = self.state.global_step, random_states(), self.guards.state()
        elif self._moving:
            return
        path, why = self.run.file("train", "checkpoints", f"checkpoint-{step}"), type(error).__name__
        if not path.exists():
            set_random_states(states)
            self.guards.restore(guards)
            try:
                self.write_checkpoint()
            except RunError as second:
                _say(f"{why}: {error}; {second}")
                return
        kept = f"{path} holds step {step}, run this again to go on"
        if isinstance(error, TrainingStopped):
            error.args = (f"{error}; {kept}",)
        else:
            _say(
                f"training stopped ({why}: {str(error)[:200]}); {kept}, with recipe and lab file as they are"
            )

    def asked_for(self) -> set[str]:
        """The words in the control file, which is then removed; every process gets the same."""
        words: set[str] = set()
        file = self.run.file("train", CONTROL)
        if self.accelerator.is_main_process and file.is_file():
            began = self.run.manifest["stages"].get(STAGE, {}).get("_clock", 0.0)
            if file.stat().st_mtime >= began:  # else nobody was training any more when it was written
                words = set(file.read_text(encoding="utf-8", errors="replace").split()) & {
                    "stop",
                    "checkpoint",
                }
            file.unlink()
        return from_main(words)[0]

    def mark_finished(self, result: dict[str, Any]) -> None:
        """Training came to its end: the next starts anew, unless the stage is interrupted before its end."""
        if self.accelerator.is_main_process:
            write_json(self.run.file("train", FINISHED), result)


class _Marks(TrainerCallback):
    """Says when the weights are about to move, when a checkpoint is due, and what a watcher asked for."""

    def __init__(self, trainer: Any):
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._moving = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        asked = self._trainer.asked_for()
        ended = self._trainer.guards.watch.ended or state.global_step == state.max_steps  # validated already
        control.should_training_stop |= "stop" in asked
        if "stop" in asked and state.global_step % self._trainer.recipe.val_every and not ended:
            watch = self._trainer.guards.watch
            since = watch.since_best
            self._trainer.validate()  # the last step: what is kept is what it has learnt
            watch.since_best, watch.ended = since, None  # it takes no patience from the training that goes on
        every = self._trainer.recipe.save_every
        due = control.should_training_stop or (every > 0 and state.global_step % every == 0)
        control.should_save |= bool(asked) or due


def _on_cpu(storage: Any, location: str) -> Any:
    """Storages for "cpu:0", as transformers calls the CPU of several processes; torch knows "cpu" only."""
    return storage if location == "cpu:0" else None


torch.serialization.register_package(100, lambda storage: None, _on_cpu)


def _load(path: Path, device: Any = "cpu") -> Any:
    """A file of torch's, without running what it says."""
    with safe_globals():
        return torch.load(path, map_location=device, weights_only=True)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:150]


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)
