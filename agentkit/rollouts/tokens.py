"""A trajectory token by token: what was sampled, what is trained on, how likely it was then and is now.

The data behind the mask X-ray, without torch: log-probabilities of now and entropies come from whoever has
the model (``training.grpo.token_logprobs``). Leaves out: drawing (widgets).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentkit.records import Trajectory

_UNFINISHED = "\ufffd"  # what a tokenizer gives for the first bytes of a character
_MOST_BYTES = 4  # of one character in UTF-8, so tokens that can share one
_ROUNDING = 1e-4  # nats that a log-probability may lie above 0
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a trajectory. None is "not known" or "does not apply"."""

    id: int
    text: str  # "" where the character goes on in the next token
    source: str  # prompt, model (inside a turn's span) or observation (after one)
    mask: int  # action_mask: 1 is trained on; 0 in the prompt
    turn: int | None  # 0-based; None in the prompt
    old_logprob: float | None  # at sampling, nats; None where mask is 0
    logprob: float | None  # now, nats
    advantage: float | None  # None where mask is 0
    entropy: float | None  # of the next-token distribution it was drawn from, nats


def xray(
    trajectory: Trajectory,
    decode: Decode | None = None,
    *,
    logprobs: Sequence[float] | None = None,
    advantages: Sequence[float] | None = None,
    entropies: Sequence[float] | None = None,
) -> list[Token]:
    """Prompt and completion, token by token.

    Args:
        trajectory: T completion tokens.
        decode: ids to text, as ``tokenizer.decode``; without it the text is the id.
        logprobs: (T,) log-probabilities of the completion now, in nats.
        advantages: (T,) advantages where they differ by token; otherwise the trajectory's own holds for all.
        entropies: (T,) entropies of the completion, in nats.

    Raises:
        ValueError: two of the token fields differ in length, or a turn's span lies outside the completion.
    """
    length = len(trajectory.completion_ids)
    given = {"logprobs": logprobs, "advantages": advantages, "entropies": entropies}
    fields = {"action_mask": trajectory.action_mask, "old_logprobs": trajectory.old_logprobs} | given
    for name, values in fields.items():
        if values is not None and len(values) != length:
            raise ValueError(
                f"{name} has {len(values)} values for {length} completion tokens: they must line up."
            )
    texts = token_texts([*trajectory.prompt_ids, *trajectory.completion_ids], decode)
    start = len(trajectory.prompt_ids)
    tokens = [
        Token(token, text, "prompt", 0, None, None, None, None, None)
        for token, text in zip(trajectory.prompt_ids, texts, strict=False)
    ]
    for i, (turn, source) in enumerate(_places(trajectory)):
        mask = int(trajectory.action_mask[i])
        advantage = trajectory.advantage if advantages is None else float(advantages[i])
        tokens.append(
            Token(
                id=trajectory.completion_ids[i],
                text=texts[start + i],
                source=source,
                mask=mask,
                turn=turn,
                old_logprob=float(trajectory.old_logprobs[i]) if mask else None,
                logprob=None if logprobs is None else float(logprobs[i]),
                advantage=advantage if mask else None,
                entropy=None if entropies is None else float(entropies[i]),
            )
        )
    return tokens


def _places(trajectory: Trajectory) -> list[tuple[int | None, str]]:
    """Turn and source of each completion token: a turn's own tokens, then what was appended before the next."""
    length = len(trajectory.completion_ids)
    places: list[tuple[int | None, str]] = [(None, "observation")] * length
    for number, turn in enumerate(trajectory.turns):
        start, end = turn.span
        if not 0 <= start <= end <= length:
            raise ValueError(
                f"turn {number} spans [{start}, {end}) of {length} completion tokens: the record is damaged."
            )
        places[start:] = [(number, "model")] * (end - start) + [(number, "observation")] * (length - end)
    return places


def faults(tokens: Sequence[Token]) -> list[str]:
    """What no trajectory may have, one sentence each: tokens trained on that no turn sampled."""
    trained = [i for i, token in enumerate(tokens) if token.mask and token.source != "model"]
    if not trained:
        return []
    shown = ", ".join(map(str, trained[:5])) + (" and more" if len(trained) > 5 else "")
    what = "1 token is" if len(trained) == 1 else f"{len(trained)} tokens are"
    return [f"{what} trained on that no turn sampled (position {shown}): the action mask is wrong."]


def batch_faults(
    trajectories: Sequence[Trajectory],
    group_size: int,
    *,
    rows: Sequence[Sequence[int]] | None = None,
    masks: Sequence[Sequence[int]] | None = None,
    decode: Decode | None = None,
) -> list[str]:
    """What no batch may have before it is trained on, one sentence for each trajectory or group at fault.

    Token fields that do not line up, tokens trained on that no turn sampled (or the reverse), ids that are
    not those sampled (a conversation rendered and tokenised anew drifts), and groups that are not one task's.

    Args:
        trajectories: the batch, group by group.
        group_size: G trajectories a group.
        rows: the completion ids that the update will read, one row a trajectory without padding.
        masks: the action masks that the update will use, likewise; all zeros where the loss leaves a
            trajectory out.
        decode: ids to text, control tokens included; with it, each turn's text is compared with its tokens.
    """
    found = []
    for i, t in enumerate(trajectories):
        named = f"trajectory {i} (task {t.task_id}, sample {t.sample})"
        found += [f"{named}: {fault}" for fault in _token_faults(t, decode)]
        if rows is not None and list(rows[i]) != list(t.completion_ids):
            found.append(f"{named}: the update reads other ids than were sampled: it was tokenised again.")
        if masks is not None and any(masks[i]) and list(masks[i]) != list(t.action_mask):
            found.append(f"{named}: the update uses another action mask than was sampled.")
    return found + _group_faults(trajectories, group_size)


def _token_faults(trajectory: Trajectory, decode: Decode | None) -> list[str]:
    try:
        tokens = xray(trajectory)
    except ValueError as error:
        return [str(error)]
    own = tokens[len(trajectory.prompt_ids) :]
    found = faults(tokens)
    if untrained := sum(token.source == "model" and not token.mask for token in own):
        found.append(f"{untrained} sampled tokens are masked out: the action mask is wrong.")
    if not all(math.isfinite(x) and x <= _ROUNDING for x in trajectory.old_logprobs):
        found.append("a log-probability at sampling is not finite or above 0.")
    for number, turn in enumerate(trajectory.turns):
        if decode and decode(trajectory.completion_ids[slice(*turn.span)]) != turn.text:
            found.append(f"turn {number}'s tokens do not spell its text: one of the two was made anew.")
    return found


def _group_faults(trajectories: Sequence[Trajectory], size: int) -> list[str]:
    found = []
    if len(trajectories) % size:
        found.append(f"{len(trajectories)} trajectories are no whole number of groups of {size}.")
    for start in range(0, len(trajectories), size):
        group, named = trajectories[start : start + size], f"group {start // size}"
        tasks = sorted({t.task_id for t in group})
        if len(tasks) > 1:
            found.append(
                f"{named} holds trajectories of several tasks ({', '.join(tasks[:3])}): its advantages would "
                "mix them."
            )
        elif len({t.prompt_ids for t in group}) > 1:
            found.append(f"{named} (task {tasks[0]}) holds different prompts for one task.")
        elif len({t.sample for t in group}) < len(group):
            found.append(f"{named} (task {tasks[0]}) holds one sample twice.")
    return found


def token_texts(ids: Sequence[int], decode: Decode | None = None) -> list[str]:
    """The text that each id adds. Together they are the decoded text, also where a character spans several
    tokens.

    Each id is decoded after the one before it, because some tokenizers drop the space before a first word.
    """
    if decode is None:
        return [f"#{token}" for token in ids]
    texts: list[str] = []
    before, start = 0, 0  # ids[before:start] is context, ids[start:] is not shown yet
    for end in range(1, len(ids) + 1):
        context, whole = decode(ids[before:start]), decode(ids[before:end])
        waiting = whole.endswith(_UNFINISHED) and end - start < _MOST_BYTES and end < len(ids)
        texts.append("" if waiting else whole[len(context) :])
        if not waiting:
            before, start = (
                end if whole.endswith(_UNFINISHED) else start,
                end,
            )  # broken bytes are no context
    return texts
