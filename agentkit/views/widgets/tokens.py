"""One trajectory token by token, in colour: what was sampled, how likely it was and is, what pushes it.

Leaves out finding tokens and masks out (rollouts.tokens).
"""

from collections.abc import Mapping, Sequence

from agentkit.records import Trajectory
from agentkit.rollouts.tokens import Decode, faults, xray
from agentkit.views.widgets.base import View, clip, number

TOKEN_LIMIT = 200  # characters of one token's text
COLUMNS = ("id", "source", "mask", "turn")


def mask_xray(
    trajectory: Trajectory,
    decode: Decode | None = None,
    *,
    logprobs: Sequence[float] | None = None,
    advantages: Sequence[float] | None = None,
    entropies: Sequence[float] | None = None,
) -> View:
    """See a trajectory of T completion tokens, one by one.

    Args:
        trajectory: of any policy.
        decode: ids to text, as ``tokenizer.decode``; without it tokens show their ids.
        logprobs: (T,) log-probabilities under other weights, as those of now, in nats: the change is shown.
        advantages: (T,) where they differ by token; otherwise the trajectory's mean stands at each.
        entropies: (T,) of the distributions that the tokens were drawn from, in nats.

    Raises:
        ValueError: two of the token fields differ in length, or a turn's span lies outside the completion.
    """
    given = {"logprob": logprobs, "advantage": advantages, "entropy": entropies}
    tokens, measured = xray(trajectory, decode), _measured(trajectory, given)
    columns = {name: [getattr(token, name) for token in tokens] for name in COLUMNS} | {
        "text": [clip(token.text, TOKEN_LIMIT) for token in tokens],
        "old_logprob": [number(token.old_logprob, 6) for token in tokens],
        **{name: [None] * len(trajectory.prompt_ids) + values for name, values in measured.items()},
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
        "by_token": advantages is not None,
        "tokens": columns,
    }
    return View("tokens", "Mask X-ray", payload, 560)


def _measured(trajectory: Trajectory, given: Mapping[str, Sequence[float] | None]) -> dict[str, list]:
    """Values of each completion token, None where there are none."""
    mask, found = trajectory.action_mask, {}
    for name, values in given.items():
        values = [None] * len(mask) if values is None else [float(x) for x in values]
        if len(values) != len(mask):
            raise ValueError(
                f"{name} has {len(values)} values for {len(mask)} completion tokens: they must line up."
            )
        found[name] = [number(x, 6) for x in values]
    if given["advantage"] is None:
        found["advantage"] = [number(trajectory.advantage, 6)] * len(mask)
    return found | {"advantage": [x if m else None for x, m in zip(found["advantage"], mask, strict=True)]}
