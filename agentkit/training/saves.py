"""What keeps a training safe: the run's lock, signals, and checkpoints it goes on from to the bit.

A checkpoint is written between batches, when weights, moments, counters and random states are all there is:
every ``save_every`` steps, and where training ends or is stopped. Leaves out how a checkpoint becomes whole
(checkpoint_folders).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from tqdm.auto import tqdm

from agentkit.policies.process_group import gathered, on_main_process, rank, world
from agentkit.policies.shards import whole
from agentkit.records import Task, TrainingError
from agentkit.runs import Recipe, RunError, write_json
from agentkit.runs.children import signals
from agentkit.runs.run import CONTROL
from agentkit.training import checkpoint_folders
from agentkit.training.adapters import replacing, save_adapter, write_adapter
from agentkit.training.processes import TrainingStopped, locked, random_states, set_random_states

if TYPE_CHECKING:
    from agentkit.lab import Lab
    from agentkit.training.loop import GRPO

STAGE = "03_grpo"
FINISHED = "finished.json"  # in train/, once training came to its end
ADAPTER, STATE, BEST = "adapter_model.safetensors", "state.pt", "best"  # in a checkpoint
MEASURED = ("gaia.json", "comparison.json", "measures.json")  # in the run, of the adapter that it has
# recipe keys and settings that may change between two attempts
_FREE = (
    "save_every preflight report_to server_urls engine_memory shard max_batch micro_batch "
    "share_prefixes trajectory_timeout_s tool_timeout_s gpus measure_last"
).split()
_ASIDE = "it is kept beside this one, which starts anew"


def made_with(lab: Lab, model: Any, tasks: Iterable[Task], settings: dict[str, Any]) -> dict[str, Any]:
    """What a training must share with a checkpoint to go on from it, as JSON."""
    template = Path(lab.recipe.chat[0] or ".")
    keys = [name for name in Recipe.keys_of(STAGE) if name not in _FREE]
    made = {name: getattr(lab.recipe, name) for name in keys} | {
        "settings": {name: value for name, value in settings.items() if name not in _FREE},
        "tasks of this suite": _hash(f"{t.id}\0{t.prompt}\0{t.answer}" for t in tasks),
        "weights of the agent": _hash(_sketch(model)),
        "reward": {name: weight for name, (_, weight) in lab.reward.items()},
        "lab file": lab.digest,
        "processes": world(),
        "chat template": _hash([template.read_text(encoding="utf-8")]) if template.is_file() else "",
    }
    return json.loads(json.dumps(made))  # as a checkpoint gives it back


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join([*texts, ""]).encode("utf-8", "replace")).hexdigest()[:16]


def _sketch(model: Any) -> Iterator[str]:
    """Names, shapes and first numbers of the frozen weights: enough to tell one agent from another."""
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            yield f"{name} {tuple(weight.shape)} {whole(weight.detach()).flatten()[:16].tolist()}"


class Saves:
    """A context in which a training runs; within, this process holds the run's lock.

    Attributes:
        ending: whether training is to end after this batch though nothing went wrong: a watcher asked for it.
    """

    def __init__(self, training: GRPO):
        self._training, self._run = training, training.run
        self._folder = training.run.file("train", "checkpoints")

    def __enter__(self) -> Saves:
        t = self._training
        self.ending, self._stop = False, ""
        self._saved = 0  # step of the last checkpoint
        tasks = [*t.tasks.values(), *t.validation]
        self._made_with = made_with(t.lab, t.model, tasks, asdict(t.settings))
        with ExitStack() as stack:
            on_main_process(lambda: stack.enter_context(locked(self._run)))
            self._found = on_main_process(self._look_back)
            stack.enter_context(signals(self._on_signal, "SIGINT", "SIGTERM"))
            self._held = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._held.close()
        if isinstance(error, TrainingStopped):
            error.args = (f"{error}; {self._kept()}",)
        elif error is not None:
            _say(f"training stopped ({type(error).__name__}: {str(error)[:200]}); {self._kept()}")

    # ---- going on
    def _look_back(self) -> tuple[Path, dict[str, Any]] | None:
        """The checkpoint to go on from, if any; what an earlier training left otherwise is put aside.

        A training that came to its end starts anew, but where its stage was cut off after that.
        """
        run, finished = self._run, self._run.file("train", FINISHED)
        for name in MEASURED if finished.parent.exists() else ():  # of the adapter as it was
            if run.file(name).exists():
                run.file(name).rename(finished.with_name(name))
                run.remove(name)
        cut_off = run.manifest["stages"].get(STAGE, {}).get("interrupted", False)
        found = checkpoint_folders.newest_sound(self._folder)
        ours = self._made_with
        made = found[1]["made_with"] if found else ours
        other = [name for name in ours if made.get(name) != ours[name]]
        if other:
            _say(f"the training in {finished.parent} was made with another {', '.join(other[:5])}: {_ASIDE}")
        elif finished.exists() and not cut_off:
            _say(f"the training in {finished.parent} had come to its end: {_ASIDE}")
        elif found:
            _say(f"going on from {found[0]}")
            finished.unlink(missing_ok=True)
            checkpoint_folders.cut_back(run, found[0])
            run.metric_rows(found[1]["step"])  # says where rows are lost
            return found
        checkpoint_folders.set_aside(run.file("train"))
        return None

    def go_on(self) -> None:
        """Load the checkpoint that was found, into every process; the best adapter goes back where it was."""
        if not self._found:
            return
        path, about = self._found
        t, best = self._training, self._run.file("adapter")
        try:
            kept = torch.load(path / STATE, map_location="cpu", weights_only=True)
            set_peft_model_state_dict(t.model, load_file(path / ADAPTER))
            t.optimizer.load_state_dict(kept["optimizer"])
            t.schedule.load_state_dict(kept["schedule"])
            t.guards.restore(about["guards"])
            t.done, t.best = about["step"], tuple(about["best"])
            set_random_states(kept["random"][rank()])
        except Exception as error:  # what was written whole is not what this version of a library reads
            raise checkpoint_folders.CheckpointError(
                f"{path} cannot be gone on from ({type(error).__name__}: {_short(error)}): remove it to go "
                "on from the one before, or name another run folder"
            ) from None
        if rank() == 0 and (path / BEST).exists():
            with replacing(best) as new:
                shutil.copytree(path / BEST, new)
        self._saved = t.done

    # ---- between batches
    def listen(self) -> None:
        """Hear whether a watcher wrote stop into the control file."""
        self.ending = on_main_process(self._is_asked)

    def _is_asked(self) -> bool:
        file = self._run.file(*CONTROL)
        if not file.is_file():
            return False
        began = self._run.manifest["stages"].get(STAGE, {}).get("_clock", 0.0)
        is_new = file.stat().st_mtime >= began  # else nobody was training any more when it was written
        words = file.read_text(encoding="utf-8", errors="replace").split()
        file.unlink()
        return is_new and "stop" in words

    def after(self) -> None:
        """After a batch: a checkpoint where one is due, and where training ends.

        Raises:
            TrainingStopped: a signal came.
            TrainingError: a guard says that training cannot go on.
        """
        t, every = self._training, self._training.recipe.save_every
        is_stopped = any(gathered([bool(self._stop)]))
        is_due = every > 0 and t.done // every > self._saved // every
        if is_due or is_stopped or self.ending or t.over or t.guards.problem:
            self.save()
        if t.guards.problem:
            raise TrainingError(t.guards.problem)
        if is_stopped:
            raise TrainingStopped(f"stopped after step {t.done}")

    def save(self) -> None:
        """Write a checkpoint; RunError where it could not be, with the older ones unharmed."""
        step, states = self._training.done, gathered([random_states()])
        try:
            on_main_process(lambda: self._write(states))
        except Exception as error:  # each library has its own for a full disk
            shutil.rmtree(self._folder / f".checkpoint-{step}", ignore_errors=True)
            raise RunError(
                f"the checkpoint of step {step} could not be written to {self._folder} ({_short(error)}); "
                f"{self._kept()}. Make room on the disk first."
            ) from None
        self._saved = step

    def _write(self, states: list[Any]) -> None:
        t, best = self._training, self._run.file("adapter")
        new = checkpoint_folders.begin(self._folder, t.done)
        write_adapter(t.model, new)
        optimiser = {"optimizer": t.optimizer.state_dict(), "schedule": t.schedule.state_dict()}
        torch.save(optimiser | {"random": states}, new / STATE)
        if t.best[0] >= 0 and best.exists():
            shutil.copytree(best, new / BEST)
        about = {"step": t.done, "best": list(t.best), "guards": t.guards.state()}
        checkpoint_folders.commit(new, about | {"made_with": self._made_with})

    def finish(self) -> dict[str, Any]:
        """What training came to. The next starts anew, unless the stage is interrupted before its end.

        Where validation kept step 0, ``measure_last`` puts the last step's adapter in its place; checkpoints
        still have the one that validation kept.
        """
        t = self._training
        ended = t.guards.ended or ("steps" if t.done >= t.recipe.steps else "asked")
        best, step = t.best
        result = {"best_val_success": best, "best_step": step, "steps": t.done, "ended": ended}
        if t.recipe.measure_last and best >= 0 and step == 0 < t.done:
            on_main_process(lambda: save_adapter(t.model, t.tokenizer, self._run.file("adapter")))
            last = on_main_process(self._run.metric_rows)[-1]
            result |= {"measured_step": t.done, "measured_val_success": last.get("val_success")}
        if ended != "asked" and rank() == 0:
            write_json(self._run.file("train", FINISHED), result)
        return result

    # ---- interruptions
    def _on_signal(self, name: str) -> None:
        """Stop after this batch, or at once where a checkpoint holds all that was learnt.

        A second signal does not wait. Several processes stop together, after a batch.
        """
        again, self._stop = bool(self._stop), name
        if again or (world() == 1 and self._saved == self._training.done):
            raise TrainingStopped(f"stopped by {name} after step {self._training.done}")
        with suppress(RuntimeError):  # where this process was writing just now
            _say(f"{name}: training stops after this step, with a checkpoint; a second one does not wait")

    def _kept(self) -> str:
        path = self._folder / f"checkpoint-{self._saved}"
        there = f"{path} holds step {self._saved}, run this again to go on"
        return there if self._saved else "no step is kept"


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:150]


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)
