"""The transformers policy: turns of many trajectories sampled together, in this process.

Every trajectory keeps its keys and values in a slot of its own between turns, so that a turn costs its new tokens only.
Rows join and leave the batch that decodes at any token. Each row draws its own random numbers from its request's seed, one
a token, so the batch a request lands in does not matter beyond rounding; ``deterministic`` fixes the batches as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from agentkit.policies.base import Policy, Request, Sample
from agentkit.policies.slots import SlotCache

GATHER_S = 0.004  # how long an idle engine waits for more requests
JOIN_SHARE, JOIN_STEPS = 4, 8  # requests join a batch that decodes when they are a quarter of it, or have waited 8 tokens
PREFILL_TOKENS = 8192  # in one forward pass


@dataclass(slots=True, eq=False)
class _Slot:
    """One trajectory's place in the cache."""

    at: int  # where its keys and values lie
    trajectory: int = -1
    held: list[int] = field(default_factory=list)  # the tokens they stand for
    request: Request | None = None  # the turn it is sampling
    sample: Sample = field(default_factory=lambda: Sample([], []))
    draws: list[float] = field(default_factory=list)


class TransformersPolicy(Policy):
    """Samples from a causal language model of transformers, a PEFT model included.

    Args:
        model: the model; it is used in eval mode and left in the mode it was in. All its layers must attend to every
            earlier token.
        tokenizer: its tokenizer, whose eos_token ends a turn.
        name: recorded in trajectories.
        max_batch: trajectories whose keys and values are kept, and rows in one batch.
        deterministic: sample turn by turn, in batches that do not depend on timing: exact to the bit, and slower where
            tools are slow.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str = "policy", max_batch: int = 128, deterministic: bool = False):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.in_flight = max_batch
        self.deterministic = deterministic
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")  # one thread: each would bring its own OpenMP team
        self._cache = SlotCache(model)
        self._slots: list[_Slot] = []  # those that decode come first
        self._decoding = 0
        self._steps = 0  # tokens decoded since requests last joined
        self._trajectories: set[int] = set()  # in flight
        self._queue: list[tuple[Request, asyncio.Future]] = []
        self._futures: dict[int, asyncio.Future] = {}  # of the requests that decode, by trajectory
        self._worker: asyncio.Task | None = None

    def begin(self, trajectory: int) -> None:
        """A trajectory begins; in deterministic mode batches wait for it."""
        self._trajectories.add(trajectory)

    def end(self, trajectory: int) -> None:
        """A trajectory has ended; its slot is free at the next batch."""
        self._trajectories.discard(trajectory)

    async def sample(self, request: Request) -> Sample:
        """Continue one trajectory by one turn, together with the others."""
        future = asyncio.get_running_loop().create_future()
        self._queue.append((request, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue or self._decoding:
                if not self._decoding:
                    await self._gather()
                joining = self._take()
                for sample, trajectory in await loop.run_in_executor(self._thread, self._advance, joining):
                    if not (future := self._futures.pop(trajectory)).done():
                        future.set_result(sample)
                await asyncio.sleep(0)  # the trajectories take their samples
        except BaseException as error:
            waiting = [*self._futures.values(), *(future for _, future in self._queue)]
            self._futures, self._queue = {}, []
            self._thread.submit(self._clear).result()  # after a batch that a cancellation left behind
            for future in waiting:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else RuntimeError("the policy was cancelled"))
            if not isinstance(error, Exception):
                raise

    def _clear(self) -> None:
        self._slots, self._decoding = [], 0

    async def _gather(self) -> None:
        """Wait until no request has come for a while; in deterministic mode, until every trajectory in flight asks."""
        waiting = -1
        while waiting != len(self._queue) < self.in_flight or (self.deterministic and self._expected()):
            waiting = len(self._queue)
            await asyncio.sleep(GATHER_S)

    def _expected(self) -> bool:
        return len(self._queue) < min(self.in_flight, len(self._trajectories))

    def _may_join(self) -> bool:
        if self.deterministic or not self._queue or self._decoding == self.in_flight:
            return False
        return len(self._queue) * JOIN_SHARE >= self._decoding or self._steps >= JOIN_STEPS

    def _take(self) -> list[Request]:
        """The requests that join the batch now."""
        if self._decoding and not self._may_join():
            return []
        self._queue.sort(key=lambda item: (len(item[0].ids), item[0].seed))  # a fixed order; like lengths waste no padding
        room = self.in_flight - self._decoding
        taken, self._queue = self._queue[:room], self._queue[room:]
        self._futures |= {request.trajectory: future for request, future in taken}
        return [request for request, _ in taken]

    def _advance(self, joining: Sequence[Request]) -> list[tuple[Sample, int]]:
        """Let requests join, then decode until a turn ends or more may join; the turns that ended."""
        training = self.model.training
        self.model.eval()
        try:
            ended = self._join(joining) if joining else []
            while self._decoding and not ended and not self._may_join():
                ended = self._decode()
            return ended
        finally:
            self.model.train(training)

    def _join(self, requests: Sequence[Request]) -> list[tuple[Sample, int]]:
        """Compute what is new in each request and draw each turn's first token."""
        kept = self._trajectories | {request.trajectory for request in requests}
        joining = [self._claim(request, kept) for request in requests]
        first: dict[tuple[int, ...], _Slot] = {}
        copies: list[tuple[_Slot, _Slot]] = []
        for slot in joining:  # members of a group share their prompt: computed once, then copied
            leader = slot if slot.held else first.setdefault(tuple(slot.request.ids), slot)
            copies += [] if leader is slot else [(leader, slot)]
        copied = {id(slot) for _, slot in copies}
        logits: dict[int, torch.Tensor] = {}
        for chunk in _chunks([slot for slot in joining if id(slot) not in copied]):
            new = [slot.request.ids[len(slot.held) :] for slot in chunk]
            found = self._cache.forward(self.model, new, [s.at for s in chunk], [len(s.held) for s in chunk])
            logits |= {id(slot): row for slot, row in zip(chunk, found, strict=True)}
        if copies:
            longest = max(len(leader.request.ids) for leader, _ in copies)
            self._cache.move([leader.at for leader, _ in copies], [slot.at for _, slot in copies], longest)
            logits |= {id(slot): logits[id(leader)] for leader, slot in copies}
        for slot in joining:
            slot.held = list(slot.request.ids)
            self._swap(self._slots.index(slot), self._decoding)
            self._decoding += 1
        self._steps = 0
        return self._draw(joining, torch.stack([logits[id(slot)] for slot in joining]))

    def _claim(self, request: Request, kept: set[int]) -> _Slot:
        """The trajectory's slot with what it holds of the request, or a new one."""
        idle = self._slots[self._decoding :]
        slot = next((s for s in idle if s.trajectory == request.trajectory), None)
        if slot is None:
            slot = next((s for s in idle if s.trajectory not in kept), None)
            if slot is None and len(self._slots) < self.in_flight:
                slot = _Slot(len(self._slots))
                self._slots.append(slot)
            slot = slot or next(s for s in idle if s.request is None)  # a trajectory that waits for its tools makes room
            slot.trajectory, slot.held = request.trajectory, []
        if len(slot.held) >= len(request.ids) or request.ids[: len(slot.held)] != slot.held:
            slot.held = []
        slot.request, slot.sample = request, Sample([], [])
        slot.draws = np.random.default_rng(request.seed).random(request.max_new_tokens).tolist()
        return slot

    def _decode(self) -> list[tuple[Sample, int]]:
        """One more token for every row that decodes."""
        rows = self._slots[: self._decoding]
        self._settle()
        logits = self._cache.forward(
            self.model, [slot.sample.ids[-1:] for slot in rows], range(len(rows)), [len(slot.held) for slot in rows]
        )
        for slot in rows:
            slot.held.append(slot.sample.ids[-1])
        self._steps += 1
        return self._draw(rows, logits)

    def _draw(self, rows: Sequence[_Slot], logits: torch.Tensor) -> list[tuple[Sample, int]]:
        """Draw each row's next token; rows whose turn ends stop decoding."""
        device = logits.device
        temperature = torch.tensor([slot.request.temperature for slot in rows], device=device)
        uniforms = torch.tensor([slot.draws[len(slot.sample.ids)] for slot in rows], device=device, dtype=torch.float64)
        tokens, logprobs = draw(logits, temperature, uniforms)
        ended = []
        for slot, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            slot.sample.ids.append(token)
            slot.sample.logprobs.append(logprob)
            if token == self.tokenizer.eos_token_id or len(slot.sample.ids) == slot.request.max_new_tokens:
                ended.append((slot.sample, slot.trajectory))
                slot.request = None
                self._decoding -= 1
                self._swap(self._slots.index(slot), self._decoding)
        return ended

    def _swap(self, one: int, other: int) -> None:
        slots = self._slots
        slots[one], slots[other] = slots[other], slots[one]

    def _settle(self) -> None:
        """Bring keys and values to where the order of slots says."""
        moved = [(slot.at, i) for i, slot in enumerate(self._slots) if slot.at != i]
        if moved:
            self._cache.move(*zip(*moved, strict=True), max(len(self._slots[i].held) for _, i in moved))
            for i, slot in enumerate(self._slots):
                slot.at = i


def _chunks(slots: Sequence[_Slot]) -> list[list[_Slot]]:
    """Slots whose new tokens are computed together: like numbers of them, a bounded sum."""
    found: list[list[_Slot]] = [[]]
    for slot in sorted(slots, key=lambda s: len(s.request.ids) - len(s.held)):
        new = len(slot.request.ids) - len(slot.held)
        if found[-1] and new * (len(found[-1]) + 1) > PREFILL_TOKENS:
            found.append([])
        found[-1].append(slot)
    return found


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
