"""The sync guard: after weights were handed to an engine, does it compute what the trainer computes?

A stale prefix cache, weights loaded into the wrong place and log-probabilities of another kind all leave an
engine that answers without complaint; the run would learn from samples of another policy. Comparing a few
log-probabilities tells. Leaves out how weights get there, which is each policy's ``sync``.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import PeftModel

from agentkit.policies.attention import evaluating
from agentkit.records import Task
from agentkit.rollouts.policy import EngineError, Policy, Request, Sample
from agentkit.rollouts.tokens import token_logprobs
from agentkit.tools.runtime import run_blocking

PROBES, PROBE_LENGTH = 4, 320  # prompts, and tokens in each: over two of vLLM's blocks
PROBE_TOKENS = 32  # sampled after each
# nats a token: a mean difference above the limit stops the run; rounding alone stays below the noise
LIMITS = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.05}
NOISE = {torch.float32: 1e-4, torch.bfloat16: 0.015, torch.float16: 0.003}
TELLING = 2.0  # times the noise that the adapter must move log-probabilities, to tell whether it is in use
JUMP = 5.0  # times what a batch before it differed by, above the noise: something broke in between
FAR, SURE = 0.3, 5.0  # from 1 that a share may lie: at most, and in standard errors
HALF = 0.5  # a share below is nearer to the adapter off than to it on
SURELY = 0.12  # largest standard error of a share that tells: a half is then over four of them away
FEW = 2.0  # observations that weigh alike, or fewer, do not show their own noise
TEXT = (
    "The lighthouse keeper counted 1,024 waves, wrote the number down and asked: "
    "what is 7 times 13, and who lives in Oslo? "
)
_TASK = Task("sync-probe", "", "")


@dataclass(frozen=True, slots=True)
class Gap:
    """How far an engine's log-probabilities of some tokens lie from the trainer's."""

    mean: float  # absolute, nats
    largest: float  # absolute, nats
    tokens: int
    effect: float = 0.0  # what the adapter does to the trainer's, mean absolute, nats
    share: float | None = None  # of that effect, what the engine shows; None where it is too small to tell
    error: float = 0.0  # standard error of the share

    def problem(self, dtype: torch.dtype, limit: float = 0.0, before: float = math.inf) -> str | None:
        """Why the engine does not serve the policy that is trained; None where it does, or one cannot tell.

        ``limit`` is the largest mean difference in nats; 0 is 0.001 in float32 and 0.05 in half precision, or
        less: five times the mean difference ``before`` where that is known, but no less than the noise.
        """
        limit = limit or min(LIMITS[dtype], max(NOISE[dtype], JUMP * before))
        if not self.mean <= limit:
            return (
                f"engine and trainer differ by {self.mean:.2g} nats a token (largest {self.largest:.2g}, "
                f"over {self.tokens} tokens; the limit is {limit:g})"
            )
        far = max(FAR, SURE * self.error)
        if self.share is not None and not max(1 - far, HALF) <= self.share <= 1 + far:
            return (
                f"the engine shows {self.share:.0%} of what the trainer's adapter does ({self.effect:.2g} "
                f"nats a token, over {self.tokens} tokens)"
            )
        return None

    def metrics(self, prefix: str) -> dict[str, float]:
        """Columns of the metrics row; the share only where it tells."""
        return {prefix: self.mean} | ({} if self.share is None else {f"{prefix}_share": self.share})


Rows = Sequence[Sequence[float]]


def gap(engine: Rows, trainer: Rows, off: Rows | None = None, noise: float = NOISE[torch.float32]) -> Gap:
    """Compare B rows of log-probabilities of the same tokens; rows may differ in length.

    With e the engine's, a the trainer's and b the trainer's with its adapter off, the share of the adapter's
    effect that the engine shows is <e - b, a - b> / <a - b, a - b>: 1 where it serves the adapter, 0 where it
    serves the weights without it. Its standard error allows for tokens of unlike noise, for few that make up
    the most (HC3, MacKinnon and White 1985), and for trajectories that say the same: a token that several of
    them share is one observation. Where all weigh no more than two, it says nothing.
    ``noise`` is the most that rounding alone does, mean, nats.
    """
    e, a = np.concatenate(engine), np.concatenate(trainer)  # (tokens,)
    differences = np.abs(e - a)
    mean, largest = float(differences.mean()), float(differences.max())
    if off is None:
        return Gap(mean, largest, len(e))
    b = np.concatenate(off)
    change, seen = a - b, e - b
    effect, least = float(np.abs(change).mean()), min(mean, float(np.abs(seen).mean()), noise)
    if effect <= TELLING * least:
        return Gap(mean, largest, len(e), effect)
    share, error = _slope(change, seen, np.unique(np.stack([a, b]).round(5), axis=1, return_inverse=True)[1])
    if noise and error > SURELY:
        return Gap(mean, largest, len(e), effect)
    return Gap(mean, largest, len(e), effect, share, error)


def _slope(x: np.ndarray, y: np.ndarray, same: np.ndarray) -> tuple[float, float]:
    """The slope of y (N,) over x (N,) through 0, and its standard error; ``same`` (N,) are its clusters."""
    size = float(x @ x)
    slope = float(y @ x) / size
    scores, weights = np.bincount(same.ravel(), (y - slope * x) * x), np.bincount(same.ravel(), x * x) / size
    if float(weights @ weights) * FEW >= 1:
        return slope, math.inf
    return slope, float(np.linalg.norm(scores / (1 - weights))) / size


def probe_prompts(tokenizer: Any) -> list[list[int]]:
    """The prompts to compare on: the same each time, and long enough that an engine caches them."""
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    ids *= 1 + (PROBE_LENGTH + PROBES) // len(ids)
    return [ids[start : start + PROBE_LENGTH] for start in range(PROBES)]


def sync(policy: Policy, model: Any, temperature: float, noise: float | None = None) -> Gap | None:
    """Hand the model's weights to the policy's engine and compare what both say of a few sampled tokens.

    The same probes each time, so that an engine which kept keys and values of the old weights is found out.
    A model with an adapter is also asked without it: half precision rounds by more than a small adapter does,
    so that a difference alone would not tell whether the engine has it. ``noise`` is that of ``gap``, by the
    data type where it is not known. Returns None where the policy samples with the very model that is
    trained. Raises EngineError where the engine serves something else.
    """
    if policy.shares_weights:
        return None
    policy.sync(model)
    probes = probe_prompts(policy.tokenizer)
    samples = run_blocking(_probe(policy, probes, temperature))

    def scored() -> list[list[float]]:
        pairs = zip(probes, samples, strict=True)
        return [sampled_logprobs(model, ids, sample.ids, temperature) for ids, sample in pairs]

    off = None
    if isinstance(model, PeftModel):
        with model.disable_adapter():
            off = scored()
    result = gap([sample.logprobs for sample in samples], scored(), off, noise or NOISE[model.dtype])
    if why := result.problem(model.dtype):
        raise EngineError(
            f"after the weights were handed over, {why}: the engine serves other weights, keeps a stale "
            "prefix cache, or gives log-probabilities of another kind (start servers with agentkit serve). "
            "The run stops before it learns from them"
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
def sampled_logprobs(
    model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float
) -> list[float]:
    """The model's log-probabilities of T tokens after a prompt, at a temperature (1 where it is 0)."""
    ids = torch.tensor([[*prompt, *completion]], device=model.device)
    with evaluating(model):
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(completion) + 1).logits
    return token_logprobs(logits[0, :-1], ids[0, -len(completion) :], temperature or 1.0)[0].tolist()
