"""One trajectory token by token, in colour: what was sampled, how likely it was and is, what pushes it.

Leaves out the data (agentkit.rollouts.tokens) and computing log-probabilities (training).
"""

from collections.abc import Sequence
from typing import Any

from agentkit.records import Trajectory
from agentkit.rollouts.tokens import Decode, faults, xray
from agentkit.views.widgets.view import View, clip, number

TOKEN_LIMIT = 200  # characters of one token's text
_EXACT = ("id", "source", "mask", "turn")
_MEASURED = ("old_logprob", "logprob", "advantage", "entropy")


def mask_xray(
    trajectory: Trajectory,
    decode: Decode | None = None,
    *,
    logprobs: Sequence[float] | None = None,
    advantages: Sequence[float] | None = None,
    entropies: Sequence[float] | None = None,
    height: int = 560,
) -> View:
    """See a trajectory token by token.

    Args:
        trajectory: T completion tokens.
        decode: ids to text, as ``tokenizer.decode``; without it the tokens show their ids.
        logprobs: (T,) log-probabilities of the completion now, in nats; they show the change since sampling.
        advantages: (T,) advantages where they differ by token; otherwise the trajectory's own holds for all.
        entropies: (T,) entropies of the completion, in nats.
        height: of the view in a notebook, in pixels.

    Raises:
        ValueError: two of the token fields differ in length, or a turn's span lies outside the completion.
    """
    tokens = xray(trajectory, decode, logprobs=logprobs, advantages=advantages, entropies=entropies)
    columns: dict[str, list[Any]] = {name: [getattr(token, name) for token in tokens] for name in _EXACT}
    columns["text"] = [clip(token.text, TOKEN_LIMIT) for token in tokens]
    for name in _MEASURED:
        columns[name] = [number(getattr(token, name), 6) for token in tokens]
    payload = {
        "task": trajectory.task_id,
        "policy": trajectory.policy,
        "sample": trajectory.sample,
        "step": trajectory.step,
        "stop": trajectory.stop_reason.value,
        "answer": None if trajectory.answer is None else clip(trajectory.answer),
        "reward": number(trajectory.reward),
        "faults": faults(trajectory),
        "tokens": columns,
    }
    return View("xray", "Mask X-ray", payload, height)
