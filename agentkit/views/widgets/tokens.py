"""One trajectory token by token, in colour: what was sampled, how likely it was, what pushes it.

Leaves out finding tokens and masks out (rollouts.tokens).
"""

from agentkit.records import Trajectory
from agentkit.rollouts.tokens import Decode, faults, xray
from agentkit.views.widgets.base import View, clip, number

TOKEN_LIMIT = 200  # characters of one token's text
COLUMNS = ("id", "source", "mask", "turn")


def mask_xray(trajectory: Trajectory, decode: Decode | None = None) -> View:
    """See a trajectory of T completion tokens, one by one.

    Args:
        trajectory: of any policy.
        decode: ids to text, as ``tokenizer.decode``; without it tokens show their ids.

    Raises:
        ValueError: two of the token fields differ in length, or a turn's span lies outside the completion.
    """
    tokens, mean = xray(trajectory, decode), number(trajectory.advantage, 6)
    columns = {name: [getattr(token, name) for token in tokens] for name in COLUMNS} | {
        "text": [clip(token.text, TOKEN_LIMIT) for token in tokens],
        "old_logprob": [number(token.old_logprob, 6) for token in tokens],
        "advantage": [mean if token.mask else None for token in tokens],
    }
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
    return View("tokens", "Mask X-ray", payload, 560)
