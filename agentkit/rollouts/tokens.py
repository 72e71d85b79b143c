"""A trajectory token by token: what was sampled, what is trained on, and how likely it was.

Also the faults that no batch may have when it is trained on: preflight looks for them, the first step refuses
them. Leaves out drawing (views) and log-probabilities that share prefixes (training.prefix).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentkit.records import StopReason, Trajectory

if TYPE_CHECKING:  # who looks at stored tokens needs no torch
    import torch

ROUNDING = 1e-4  # nats that a log-probability may lie above 0
_UNFINISHED = "\ufffd"  # what a tokenizer gives for the first bytes of a character
_MOST_BYTES = 4  # of one character in UTF-8, so tokens that can share one
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a trajectory. None is "not known" or "does not apply"."""

    id: int
    text: str  # "" where the character goes on in the next token
    source: str  # prompt, model (sampled in a turn) or observation (what the loop appended)
    mask: int = 0  # action_mask: 1 is trained on; 0 in the prompt
    turn: int | None = None  # 0-based; None in the prompt
    old_logprob: float | None = None  # at sampling, nats; None where mask is 0


# ---- the mask X-ray
def xray(trajectory: Trajectory, decode: Decode | None = None) -> list[Token]:
    """Prompt and completion, token by token; ``decode`` is ``tokenizer.decode``, without it texts are ids.

    Raises:
        ValueError: two of the token fields differ in length, or a turn's span lies outside the completion.
    """
    t, length = trajectory, len(trajectory.completion_ids)
    for name in ("action_mask", "old_logprobs"):
        if len(values := getattr(t, name)) != length:
            raise ValueError(
                f"{name} has {len(values)} values for {length} completion tokens: they must line up."
            )
    texts = token_texts([*t.prompt_ids, *t.completion_ids], decode)
    tokens = [Token(id, text, "prompt") for id, text in zip(t.prompt_ids, texts, strict=False)]
    rows = zip(
        t.completion_ids, texts[len(tokens) :], _sources(t), t.action_mask, t.old_logprobs, strict=True
    )
    for id, text, (turn, source), mask, old in rows:
        tokens.append(Token(id, text, source, int(bool(mask)), turn, float(old) if mask else None))
    return tokens


def _sources(trajectory: Trajectory) -> list[tuple[int | None, str]]:
    """Turn and source of each completion token: a turn's own, then what was appended before the next."""
    length = len(trajectory.completion_ids)
    sources: list[tuple[int | None, str]] = [(None, "observation")] * length
    for number, turn in enumerate(trajectory.turns):
        start, end = turn.span
        if not 0 <= start <= end <= length:
            raise ValueError(
                f"turn {number} spans [{start}, {end}) of {length} completion tokens: the record is damaged."
            )
        sources[start:] = [(number, "model")] * (end - start) + [(number, "observation")] * (length - end)
    return sources


def token_texts(ids: Sequence[int], decode: Decode | None = None) -> list[str]:
    """The text that each id adds; together they are the decoded text, also where tokens share a character.

    Each id is decoded after the one before it, because some tokenizers drop the space before a first word.
    """
    if decode is None:
        return [f"#{token}" for token in ids]
    texts: list[str] = []
    before, start = 0, 0  # ids[before:start] is context, ids[start:] is not written out yet
    for end in range(1, len(ids) + 1):
        context, whole = decode(ids[before:start]), decode(ids[before:end])
        broken = whole.endswith(_UNFINISHED)
        if broken and end - start < _MOST_BYTES and end < len(ids):
            texts.append("")
            continue
        texts.append(whole[len(context) :])
        before = end if broken else start  # broken bytes are no context
        start = end
    return texts


# ---- faults
def faults(trajectory: Trajectory, decode: Decode | None = None) -> list[str]:
    """What no trajectory may have when it is trained on, one sentence each.

    Token fields that do not line up, tokens trained on that no turn sampled or the reverse, log-probabilities
    that are none; with ``decode``, which must show control tokens, turns whose tokens spell another text.
    """
    try:
        tokens = xray(trajectory)
    except ValueError as error:
        return [str(error)]
    sentences = []
    if wrong := [i for i, token in enumerate(tokens) if token.mask != (token.source == "model")]:
        sentences.append(
            f"the action mask is wrong at {len(wrong)} of {len(tokens)} tokens (the first is {wrong[0]}): it "
            "must be 1 on what the policy sampled and 0 on all else."
        )
    if not all(math.isfinite(x) and x <= ROUNDING for x in trajectory.old_logprobs):
        sentences.append("a log-probability at sampling is not finite or above 0.")
    for number, turn in enumerate(trajectory.turns):
        if decode and decode(trajectory.completion_ids[slice(*turn.span)]) != turn.text:
            sentences.append(f"turn {number}'s tokens do not spell its text: one of the two was made anew.")
    return sentences


def group_faults(group: Sequence[Trajectory]) -> list[str]:
    """Why trajectories are not one group: several tasks, several prompts, or one sample twice."""
    tasks = sorted({t.task_id for t in group})
    if len(tasks) > 1:
        named = ", ".join(tasks[:3])
        return [f"trajectories of several tasks ({named}) are one group: its advantages would mix them."]
    if len({t.prompt_ids for t in group if t.stop_reason is not StopReason.ERROR}) > 1:
        return [f"a group of task {tasks[0]} holds different prompts."]
    if len({t.sample for t in group}) < len(group):
        return [f"a group of task {tasks[0]} holds one sample twice."]
    return []


def batch_faults(
    trajectories: Sequence[Trajectory],
    group_size: int,
    *,
    rows: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
    decode: Decode,
) -> list[str]:
    """What no batch may have before it is trained on, one sentence for each trajectory or group at fault.

    Beside ``faults`` and ``group_faults``: ids that are not those sampled, as a conversation rendered and
    tokenised anew drifts.

    Args:
        trajectories: the batch, group by group.
        group_size: G trajectories a group.
        rows: the completion ids that the update will read, one row a trajectory without padding.
        masks: the action masks that the update will use, likewise; all zeros where the loss leaves a
            trajectory out.
        decode: ids to text, control tokens included.
    """
    sentences = []
    for i, t in enumerate(trajectories):
        named = f"trajectory {i} (task {t.task_id}, sample {t.sample})"
        sentences += [f"{named}: {fault}" for fault in faults(t, decode)]
        if list(rows[i]) != list(t.completion_ids):
            sentences.append(
                f"{named}: the update reads other ids than were sampled: it was tokenised again."
            )
        if any(masks[i]) and list(masks[i]) != list(t.action_mask):
            sentences.append(f"{named}: the update uses another action mask than was sampled.")
    if len(trajectories) % group_size:
        sentences.append(f"{len(trajectories)} trajectories are no whole number of groups of {group_size}.")
    for start in range(0, len(trajectories), group_size):
        sentences += group_faults(trajectories[start : start + group_size])
    return sentences


def exact_decode(tokenizer: Any) -> Decode:
    """A tokenizer's ids to text, control tokens and spaces as they are."""
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


# ---- log-probabilities of given tokens
def token_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0, entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities of tokens (...) under logits (..., V) at a temperature, in float32.

    Returns:
        Log-probabilities (...), and the entropies (...) of the distributions where asked, in nats, without
        gradient.
    """
    import torch

    logits = logits.float()
    distribution = torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)
    logprobs = distribution.gather(-1, tokens[..., None]).squeeze(-1)
    if not entropy:
        return logprobs, None
    with torch.no_grad():
        return logprobs, distribution.exp().mul_(distribution).sum(-1).neg_()
