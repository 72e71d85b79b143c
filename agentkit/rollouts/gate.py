"""The gate before the first update: the batch that the loss will read is the batch that was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentkit.records import Trajectory
from agentkit.rollouts.tokens import batch_faults
from agentkit.runs import RunError

SHOWN = 5  # faults in the message


class BatchError(RunError):
    """The batch to be trained on is not what was sampled; nothing has been trained."""


def check_batch(
    batch: dict[str, Any], trajectories: Sequence[Trajectory], group_size: int, tokenizer: Any
) -> None:
    """Compare TRL's batch with the trajectories it was made from (``xray.batch_faults``).

    Args:
        batch: TRL's, with completion_ids and completion_mask (B, T) and, where there are tool replies,
            tool_mask (B, T).
        trajectories: the B trajectories, group by group.
        group_size: G.
        tokenizer: decodes what was sampled.

    Raises:
        BatchError: naming each fault.
    """
    lengths = batch["completion_mask"].sum(1).tolist()
    used = batch.get("tool_mask", batch["completion_mask"])
    rows = [row[:n].tolist() for row, n in zip(batch["completion_ids"], lengths, strict=True)]
    masks = [row[:n].int().tolist() for row, n in zip(used, lengths, strict=True)]
    found = batch_faults(
        trajectories,
        group_size,
        rows=rows,
        masks=masks,
        decode=lambda ids: tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        ),
    )
    if found:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        raise BatchError("the batch must not be trained on: " + " ".join(found[:SHOWN]) + more)
