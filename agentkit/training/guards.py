"""When a training skips a step, stops or ends early: steps that are not finite, rewards that fail.

Decisions only; a checkpoint carries their counters. Leaves out checkpoints and signals (saves).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentkit.records import StopReason, TrainingError, Trajectory

MAX_SKIPPED = 3  # steps in a row that are not finite
MAX_UNSCORED = 0.2  # share of trajectories without a reward
WINDOW = 64  # trajectories over which the share is taken, or one batch
MIN_UNSCORED = 3  # one or two are no pattern


class Guards:
    """The counters of one training, and what follows from them."""

    def __init__(self, until_solved: bool = False):
        self._until_solved = until_solved
        self.skipped = 0  # steps whose gradient was not finite, in all
        self.in_row = 0  # the latest of them
        self.unscored: list[int] = []  # 1 for each of the latest trajectories without a reward
        self.ended: str | None = None  # why training ends before its last step: solved

    def state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint. Whoever goes on after three skipped steps gets three more."""
        vars(self).update({name: state[name] for name in self.state()})
        self.in_row %= MAX_SKIPPED

    def take(self, norm: float) -> bool:
        """Whether the optimiser may step on a gradient of this norm, which must be finite."""
        spoiled = not math.isfinite(norm)
        self.in_row = (self.in_row + 1) * spoiled
        self.skipped += spoiled
        return not spoiled

    @property
    def problem(self) -> str | None:
        """Why training cannot go on, which is raised once the step is written."""
        if self.in_row < MAX_SKIPPED:
            return None
        return (
            f"{MAX_SKIPPED} steps in a row had a loss or gradient that is not finite; they were skipped. Run "
            "this again and it goes on from here. A lower learning_rate, or a lab file without infinite "
            "rewards, begins anew."
        )

    def scored(self, batch: Sequence[Trajectory]) -> None:
        """Count a batch's trajectories without a reward, which are masked; TrainingError beyond 20 %.

        Training ends where the batch solved all it was asked and the recipe wants no more.
        """
        if self._until_solved and {t.task_id for t in batch} == {t.task_id for t in batch if t.success == 1}:
            self.ended = "solved"
        latest = (self.unscored + [int(t.reward is None) for t in batch])[-max(WINDOW, len(batch)) :]
        self.unscored = latest
        cut = sum(t.stop_reason is StopReason.ERROR for t in batch)  # as where a server is away
        share = max(sum(latest) / len(latest), cut / len(batch))
        if sum(latest) < MIN_UNSCORED or share <= MAX_UNSCORED:
            return
        self.unscored = []
        lost = [t for t in batch if t.reward is None]
        reasons = {t.why for t in lost if t.success is None} - {""}
        reasons |= {f"{name} failed" for t in lost for name, value in t.components.items() if value is None}
        raise TrainingError(
            f"{share:.0%} of the latest trajectories have no reward, more than "
            f"{MAX_UNSCORED:.0%}: {'; '.join(sorted(reasons))[:400]}. Mend it (a verifier or a reward that "
            "raises, gives no finite number or is None for some trajectories of a task only, a limit on "
            "time, a server that is away), then run this again: it goes on from its last checkpoint, with "
            "another lab file anew."
        )
