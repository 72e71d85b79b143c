"""Guards of a training: steps that are not finite, rewards that fail, validation that no longer improves.

The decisions are pure functions and one small record, ``Watch``, which a checkpoint carries; ``Guards``
applies them to a trainer. Leaves out checkpoints and signals (resume).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback

from agentkit.recipe import Recipe
from agentkit.records import TrainingError, Trajectory

MAX_SKIPPED = 3  # steps in a row that are not finite
MAX_UNSCORED = 0.2  # share of trajectories without a reward
WINDOW = 64  # trajectories over which the share is taken, or one batch
MIN_UNSCORED = 3  # one or two are no pattern


@dataclass(slots=True)
class Watch:
    skipped: int = 0  # steps whose loss or gradient was not finite, in all
    skipped_in_row: int = 0
    unscored: list[int] = field(
        default_factory=list
    )  # 1 for each of the latest trajectories without a reward
    since_best: int = 0  # validations since the best
    ended: str | None = None  # why training ends before its last step: "patience" or "solved"


def too_many_unscored(recent: Sequence[int]) -> bool:
    """Whether more than 20 % of the latest trajectories, and at least three, have no reward."""
    return sum(recent) >= MIN_UNSCORED and sum(recent) > MAX_UNSCORED * len(recent)


def is_finite_step(parameters: Sequence[torch.nn.Parameter]) -> bool:
    """Whether every gradient is finite. A loss that is not finite leaves no finite gradient behind."""
    return all(torch.isfinite(p.grad).all() for p in parameters if p.grad is not None)


def _unknown(trajectories: Iterable[Trajectory]) -> set[str]:
    return {name for t in trajectories for name, value in t.components.items() if value is None}


class Guards(TrainerCallback):
    """Applies the guards, as a callback of the trainer.

    ``problem`` says why training cannot go on, which is raised once the step is written.
    """

    def __init__(self, recipe: Recipe):
        self._recipe = recipe
        self.watch = Watch()
        self.problem: str | None = None

    def state(self) -> dict[str, Any]:
        return asdict(self.watch)

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint. Whoever goes on after three skipped steps gets three more."""
        self.watch = Watch(**state)
        self.watch.skipped_in_row %= MAX_SKIPPED
        if self.watch.ended == "patience":  # the recipe may have more by now
            self.watch.ended = None
        self._consider_patience()

    def metrics(self) -> dict[str, float]:
        columns: dict[str, float] = {"skipped_steps": self.watch.skipped} if self.watch.skipped else {}
        if self.watch.skipped_in_row:
            columns["loss"] = math.nan  # transformers logs 0
        return columns

    # ---- steps
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Drop gradients that are not finite: the optimiser then changes neither weights nor moments."""
        parameters = list(kwargs["model"].parameters())
        if is_finite_step(parameters):
            self.watch.skipped_in_row = 0
            return
        for parameter in parameters:
            parameter.grad = None
        self.watch.skipped += 1
        self.watch.skipped_in_row += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop, with a checkpoint, after three steps in a row that were skipped."""
        if self.watch.skipped_in_row >= MAX_SKIPPED:
            self.problem = (
                f"{MAX_SKIPPED} steps in a row had a loss or gradient that is not finite (the last is step "
                f"{state.global_step}); they were skipped. Run this again and it goes on from here. A lower "
                "learning_rate, or a lab file without infinite rewards, begins anew; agentkit merge makes a "
                "model of the adapter that validation chose, to begin it from."
            )
        control.should_save |= self.problem is not None
        control.should_training_stop |= self.problem is not None or self.watch.ended is not None

    # ---- rollouts
    def scored(self, batch: Sequence[Trajectory]) -> None:
        """Count a batch's trajectories without a reward, which are masked; TrainingError beyond 20 %.

        Says that training ends where the batch solved all it was asked and the recipe wants no more.
        """
        solved = {t.task_id for t in batch if t.success == 1.0}
        if self._recipe.until_solved and solved == {t.task_id for t in batch}:
            self.watch.ended = "solved"
        latest = self.watch.unscored + [int(t.reward is None) for t in batch]
        self.watch.unscored = latest = latest[-max(WINDOW, len(batch)) :]
        if not too_many_unscored(latest):
            return
        self.watch.unscored = []
        lost = [t for t in batch if t.reward is None]
        unknown, idle = _unknown(lost), _unknown(t for t in batch if t.reward is not None)
        reasons = sorted(
            {t.why for t in lost if t.why and (t.success is None or ".get_reward failed" in t.why)}
        )
        reasons += [f"{name} failed" for name in sorted(unknown - idle)]  # an idle one may merely not apply
        reasons = reasons or [f"{name} failed" for name in sorted(unknown)]
        raise TrainingError(
            f"{sum(latest) / len(latest):.0%} of the latest trajectories have no reward, more than "
            f"{MAX_UNSCORED:.0%}: {'; '.join(reasons)[:400]}. Mend it (a verifier or a reward that raises, "
            "gives no finite number or is None for some trajectories of a task only, or a limit on time), "
            "then run this again: with another limit it goes on from here, with another lab file anew."
        )

    # ---- validation
    def validated(self, improved: bool) -> None:
        self.watch.since_best = 0 if improved else self.watch.since_best + 1
        self._consider_patience()

    def _consider_patience(self) -> None:
        if self._recipe.patience and self.watch.since_best >= self._recipe.patience:
            self.watch.ended = "patience"
