"""The sync guard: after weights were handed to an engine, does it compute what the trainer computes?

A stale prefix cache, weights loaded into the wrong place and log-probabilities of another kind all leave an
engine that answers without complaint; the run would learn from samples of another policy. Comparing a few
log-probabilities tells. Leaves out how weights get there, which is each policy's ``sync``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agentkit.records import Task
from agentkit.rollouts.policy import EngineError, Policy, Request, Sample
from agentkit.rollouts.tokens import completion_logprobs
from agentkit.tools.runtime import run_blocking

PROBES, PROBE_LENGTH, PROBE_TOKENS = (
    4,
    320,
    12,
)  # prompts, tokens in each (over two of vLLM's blocks), sampled
THRESHOLDS = {
    torch.float32: 1e-3,
    torch.bfloat16: 0.05,
    torch.float16: 0.05,
}  # mean, nats; rounding stays below
TEXT = (
    "The lighthouse keeper counted 1,024 waves, wrote the number down and asked: "
    "what is 7 times 13, and who lives in Oslo? "
)
_TASK = Task("sync-probe", "", "")


class SyncError(EngineError):
    """Engine and trainer compute different log-probabilities for the same tokens."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far two sets of log-probabilities of the same tokens lie apart."""

    mean: float  # absolute, nats
    largest: float  # absolute, nats
    tokens: int


def gap(engine: Sequence[Sequence[float]], trainer: Sequence[Sequence[float]]) -> Gap:
    """Compare B rows of log-probabilities of the same tokens; rows may differ in length.

    Raises:
        ValueError: the rows do not line up, or hold no token.
    """
    if [len(row) for row in engine] != [len(row) for row in trainer] or not any(engine):
        raise ValueError(
            "engine and trainer must give one log-probability for each of the same tokens, and one at least"
        )
    differences = np.abs(np.concatenate(engine) - np.concatenate(trainer))  # (tokens,)
    return Gap(float(differences.mean()), float(differences.max()), len(differences))


def probe_prompts(tokenizer: Any) -> list[list[int]]:
    """The prompts to compare on: the same each time, and long enough that an engine caches them."""
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    ids *= 1 + (PROBE_LENGTH + PROBES) // len(ids)
    return [ids[start : start + PROBE_LENGTH] for start in range(PROBES)]


def sync(policy: Policy, model: Any, temperature: float, threshold: float = 0.0) -> Gap | None:
    """Hand the model's weights to the policy's engine and compare what both say of a few sampled tokens.

    The same probes each time, so that an engine which kept keys and values of the old weights is found out.
    ``threshold`` is the largest mean difference in nats; 0 is 0.001 in float32 and 0.05 in half precision.
    Returns None where the policy samples with the very model that is trained.

    Raises:
        SyncError: further than the threshold, or the engine's log-probabilities are not finite.
        EngineError: the engine could not take the weights.
    """
    if policy.shares_weights:
        return None
    policy.sync(model)
    probes = probe_prompts(policy.tokenizer)
    samples = run_blocking(_probe(policy, probes, temperature))
    pairs = zip(probes, samples, strict=True)
    trainer = [sampled_logprobs(model, ids, sample.ids, temperature) for ids, sample in pairs]
    result = gap([sample.logprobs for sample in samples], trainer)
    threshold = threshold or THRESHOLDS[model.dtype]
    if not result.mean <= threshold:
        raise SyncError(
            "after the weights were handed over, engine and trainer differ by "
            f"{result.mean:.2g} nats a token (largest {result.largest:.2g}, over {result.tokens} tokens; the "
            f"limit is {threshold:g}): the engine serves other weights, keeps a stale prefix cache, or gives "
            "log-probabilities of another kind (start servers with agentkit serve). The run stops before it "
            "learns from them"
        )
    return result


async def _probe(policy: Policy, probes: Sequence[list[int]], temperature: float) -> list[Sample]:
    requests = [
        Request(_TASK, -2 - i, 0, ids, (i,), PROBE_TOKENS, temperature) for i, ids in enumerate(probes)
    ]
    try:
        return await asyncio.gather(*map(policy.sample, requests))
    finally:
        for request in requests:
            policy.end(request.trajectory)


@torch.no_grad()
def sampled_logprobs(model: Any, prompt: list[int], completion: list[int], temperature: float) -> list[float]:
    """The model's log-probabilities of T tokens after a prompt, at a temperature (1 where it is 0)."""
    training = model.training
    model.eval()
    try:
        ids = torch.tensor([prompt + completion], device=model.device)
        logprobs, _ = completion_logprobs(
            model, ids, torch.ones_like(ids), len(completion), temperature or 1.0
        )
    finally:
        model.train(training)
    return logprobs[0].tolist()
