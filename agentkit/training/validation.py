"""Validation during training: success on held-out tasks at intervals, and which adapter is kept.

That is the last one within a standard error of the best: a few tasks cannot tell closer ones apart.

Leaves out the test, which training never sees (lab.measure), and stopping early (guards).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from transformers import TrainerCallback

from agentkit.evaluation import summarize
from agentkit.policies.process_group import on_main_process, spread
from agentkit.records import Task
from agentkit.training import metrics
from agentkit.training.adapters import save_adapter


def spread_over(tasks: Sequence[Task], count: int) -> list[Task]:
    """So many of the tasks, or all, evenly over their order: a suite goes family by family."""
    count = min(count, len(tasks))
    return [tasks[i * len(tasks) // count] for i in range(count)]


def one_standard_error(success: float, n_tasks: int) -> float:
    """Of a success rate in [0, 1] over so many tasks: what validation cannot tell apart."""
    return math.sqrt(max(success, 0.0) * (1 - success) / n_tasks)


class Validated:
    """Mixin of a GRPOTrainer with ``recipe``, ``run``, ``validation``, ``best`` and ``guards``.

    It samples by ``_synced`` and ``_rollout``, and what it measures goes into ``_measured``.
    """

    def validate(self) -> None:
        """Success on the validation tasks, sampled as in training, and the adapter if it is to be kept."""
        if not self.validation:
            return
        start = time.monotonic()
        samples = self.recipe.val_samples
        step = self.state.global_step + 1
        roll = partial(self._rollout, group_size=samples, seed=self.recipe.seed, step=step)
        with self._synced():
            sampled = spread(roll, self.validation, samples, "validation")
        if all(trajectory.success is None for trajectory in sampled):
            why = next((t.why for t in sampled if t.why), "their time was up or the engine failed")
            warnings.warn(
                f"validation is left out: none of its samples has a verdict ({why[:200]})", stacklevel=2
            )
            return
        summary = summarize(sampled, self.validation)
        best, success = self.best[0], summary["success"]
        if success >= best - one_standard_error(best, len(self.validation)):
            model, out = self.accelerator.unwrap_model(self.model), self.run.file("adapter")
            on_main_process(lambda: save_adapter(model, self.processing_class, out))
            self.best = (max(best, success), self.state.global_step)
        self.guards.validated(success > best)
        self._measured |= metrics.validation_metrics(summary, sampled, time.monotonic() - start)


class Validate(TrainerCallback):
    """Validation before the first step, every ``val_every`` steps, and after the last."""

    def __init__(self, trainer: Any):
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:  # else training goes on from a checkpoint
            self._trainer.validate()
            self._trainer._write_row({})
        self._trainer._started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        last = state.global_step == state.max_steps or self._trainer.guards.watch.ended
        if state.global_step % self._trainer.recipe.val_every == 0 or last:
            self._trainer.validate()
