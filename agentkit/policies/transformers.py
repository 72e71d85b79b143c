"""The transformers policy: turns of many trajectories sampled in one batch, in this process.

Requests are collected until every trajectory in flight waits for the policy (or a short wait is over), then continued in
one batch over a KV cache. Each row draws its own random numbers from its request's seed, one a token, so the batch a
request lands in does not matter. Leaves out keeping the KV cache between turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from agentkit.policies.base import Request, Sample

GATHER_S = 0.004  # how long a batch waits for more requests


class TransformersPolicy:
    """Samples from a causal language model of transformers, a PEFT model included.

    Args:
        model: the model; it is used in eval mode and left in the mode it was in.
        tokenizer: its tokenizer, whose eos_token ends a turn.
        name: recorded in trajectories.
        max_batch: rows in one batch.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str = "policy", max_batch: int = 128):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.max_batch = max_batch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")  # one thread: each would bring its own OpenMP team
        self._queue: list[tuple[Request, asyncio.Future]] = []
        self._worker: asyncio.Task | None = None

    async def sample(self, request: Request) -> Sample:
        """Continue one trajectory by one turn, batched with the others that wait."""
        future = asyncio.get_running_loop().create_future()
        self._queue.append((request, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self._queue:
            waiting = -1
            while waiting != len(self._queue) < self.max_batch:  # until no request has come for a while
                waiting = len(self._queue)
                await asyncio.sleep(GATHER_S)
            self._queue.sort(key=lambda item: (len(item[0].ids), item[0].seed))  # like lengths waste no padding
            batch, self._queue = self._queue[: self.max_batch], self._queue[self.max_batch :]
            try:
                samples = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self.sample_batch, [request for request, _ in batch]
                )
            except BaseException as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error if isinstance(error, Exception) else RuntimeError("cancelled"))
                if not isinstance(error, Exception):
                    raise
                continue
            for (_, future), sample in zip(batch, samples, strict=True):
                if not future.done():
                    future.set_result(sample)

    def sample_batch(self, requests: Sequence[Request]) -> list[Sample]:
        """Continue B requests by one turn each."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                return self._decode(requests)
        finally:
            self.model.train(training)

    def _decode(self, requests: Sequence[Request]) -> list[Sample]:
        device, end = self.model.device, self.tokenizer.eos_token_id
        ids, mask = left_pad([r.ids for r in requests], self.tokenizer.pad_token_id, device)  # (B, T)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        draws = [_uniforms(r) for r in requests]
        temperature = torch.tensor([r.temperature for r in requests], device=device)
        budgets = torch.tensor([r.max_new_tokens for r in requests])
        cache = DynamicCache(config=self.model.config)
        samples = [Sample([], []) for _ in requests]
        active = torch.arange(len(requests))  # rows of the batch that still grow
        step = 0
        while True:
            out = self.model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1)
            uniforms = torch.tensor([draws[row][step] for row in active.tolist()], device=device, dtype=torch.float64)
            tokens, logprobs = draw(out.logits[:, -1].float(), temperature, uniforms)
            for row, token, logprob in zip(active.tolist(), tokens.tolist(), logprobs.tolist(), strict=True):
                if not samples[row].ids or samples[row].ids[-1] != end:
                    samples[row].ids.append(token)
                    samples[row].logprobs.append(logprob)
            step += 1
            growing = (tokens.cpu() != end) & (budgets[active] > step)
            if not growing.any():
                return samples
            keep = growing.nonzero().flatten()
            if len(keep) < len(active):  # rows that ended leave the batch
                cache.batch_select_indices(keep.to(device))
                active, mask, tokens, positions = active[keep], mask[keep], tokens[keep], positions[keep]
                temperature = temperature[keep]
            ids = tokens[:, None]
            mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=1)
            positions = positions[:, -1:] + 1


def _uniforms(request: Request) -> np.ndarray:
    """The turn's random numbers, one a token: (max_new_tokens,) in [0, 1). Padded rows never use theirs."""
    return np.random.default_rng(request.seed).random(request.max_new_tokens)


def left_pad(rows: Sequence[Sequence[int]], pad: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """B rows of ids as (B, T) ids and mask, padded on the left."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row)
        mask[i, width - len(row) :] = 1
    return ids.to(device), mask.to(device)


def draw(logits: torch.Tensor, temperature: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row by inverting the cumulative distribution at a given uniform number.

    Args:
        logits: (B, V) float32.
        temperature: (B,); 0 takes the most likely token.
        uniforms: (B,) in [0, 1).

    Returns:
        Tokens (B,) and their log-probabilities (B,) at the temperature, at temperature 1 for greedy rows.
    """
    assert logits.ndim == 2 and logits.dtype == torch.float32
    scale = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    logprobs = torch.log_softmax(logits / scale[:, None], dim=-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    target = uniforms.double()[:, None] * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
    tokens = torch.where(temperature > 0, sampled, logits.argmax(-1))
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)
