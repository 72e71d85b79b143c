"""The transformers policy: turns of many trajectories sampled together, in this process.

Every trajectory keeps its keys and values in a slot of its own between turns, so that a turn costs its new
tokens only. Rows join and leave the batch that decodes at any token. Each row draws its own random numbers
from its request's seed, one a token, so the batch a request lands in does not matter beyond rounding;
``deterministic`` fixes the batches as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch

from agentkit.policies.slots import SlotCache
from agentkit.rollouts.policy import EngineError, Policy, Request, Sample

GATHER_S = 0.004  # how long an idle engine waits for more requests
JOIN_SHARE, JOIN_STEPS = (
    4,
    8,
)  # requests join a batch that decodes when they are a quarter of it, or have waited 8 tokens
PREFILL_TOKENS = 8192  # in one forward pass
_Ended = tuple[Sample, int]  # a turn and its trajectory


@dataclass(slots=True, eq=False)
class _Slot:
    """One trajectory's place in the cache."""

    trajectory: int = -1
    held: list[int] = field(default_factory=list)  # the tokens whose keys and values it has
    request: Request | None = None  # the turn it is sampling; None while it decodes nothing
    sample: Sample = field(default_factory=lambda: Sample([], []))
    draws: list[float] = field(default_factory=list)


class TransformersPolicy(Policy):
    """Samples from a causal language model of transformers, a PEFT model included.

    Args:
        model: the model; it is used in eval mode and left in the mode it was in. All its layers must attend
            to every earlier token.
        tokenizer: its tokenizer, whose eos_token ends a turn.
        name: recorded in trajectories.
        max_batch: trajectories whose keys and values are kept, and rows in one batch.
        deterministic: sample turn by turn, in batches that do not depend on timing: exact to the bit, and
            slower where tools are slow.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str = "policy",
        max_batch: int = 128,
        deterministic: bool = False,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.in_flight = max_batch
        self.deterministic = deterministic
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="policy"
        )  # one thread: each would bring its own OpenMP team
        self._cache = SlotCache(model, max_batch)
        self._slots: list[_Slot] = []  # by their place in the cache
        self._decoding = 0  # slots that do
        self._steps = 0  # tokens decoded since requests last joined
        self._trajectories: set[int] = set()  # in flight
        self._queue: list[tuple[Request, asyncio.Future]] = []
        self._futures: dict[int, asyncio.Future] = {}  # of the requests that decode, by trajectory
        self._worker: asyncio.Task | None = None

    def begin(self, trajectory: int) -> None:
        """A trajectory begins; in deterministic mode batches wait for it."""
        self._trajectories.add(trajectory)

    def end(self, trajectory: int) -> None:
        """A trajectory has ended; its slot is free at the next batch, and with the last one all memory is."""
        self._trajectories.discard(trajectory)
        if not self._trajectories:
            self._thread.submit(self._clear)

    def sync(self, model: Any) -> None:
        """Forget what was computed with the old weights."""
        self.close()

    def close(self) -> None:
        """Give back all keys and values; the policy could sample again."""
        self._thread.submit(self._clear).result()

    async def sample(self, request: Request) -> Sample:
        """Continue one trajectory by one turn, together with the others."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        elif self._worker.get_loop() is not loop:
            raise RuntimeError(
                "this policy samples for other rollouts right now: wait for them, or make another policy"
            )
        self._queue.append((request, future))
        try:
            return await future
        except asyncio.CancelledError:
            self._queue = [item for item in self._queue if item[1] is not future]
            self._futures.pop(request.trajectory, None)
            raise

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue or self._futures:
                if not self._futures:
                    await self._gather()
                await loop.run_in_executor(self._thread, self._advance, self._take(), loop)
                await asyncio.sleep(0)  # the trajectories take their samples
        except BaseException as error:
            waiting = [*self._futures.values(), *(future for _, future in self._queue)]
            self._futures, self._queue = {}, []
            self._thread.submit(self._clear).result()  # after a batch that a cancellation left behind
            for future in waiting:
                if not future.done():
                    future.set_exception(
                        error if isinstance(error, Exception) else RuntimeError("the policy was cancelled")
                    )
            if not isinstance(error, Exception):
                raise

    def _hand_out(self, ended: Sequence[_Ended]) -> None:
        for sample, trajectory in ended:
            future = self._futures.pop(trajectory, None)
            if future is not None and not future.done():
                future.set_result(sample)

    def _clear(self) -> None:
        self._slots, self._decoding = [], 0
        self._cache.clear()

    async def _gather(self) -> None:
        """Wait until no request has come for a while; in deterministic mode, until every trajectory in flight
        asks.
        """
        before, now = None, self._asked()
        while len(self._queue) < self.in_flight and (
            now != before or (self.deterministic and self._expected())
        ):
            await asyncio.sleep(GATHER_S)
            before, now = now, self._asked()

    def _asked(self) -> tuple[int, int]:
        """Requests, and trajectories that may ask: one may end just before another begins."""
        return len(self._queue), len(self._trajectories)

    def _expected(self) -> bool:
        return len(self._queue) < min(self.in_flight, len(self._trajectories))

    def _may_join(self) -> bool:
        if self.deterministic or not self._queue or self._decoding == self.in_flight:
            return False
        return len(self._queue) * JOIN_SHARE >= self._decoding or self._steps >= JOIN_STEPS

    def _take(self) -> list[Request]:
        """The requests that join the batch now."""
        self._queue.sort(
            key=lambda item: (len(item[0].ids), item[0].seed)
        )  # a fixed order; like lengths waste no padding
        room = self.in_flight - self._decoding
        taken, self._queue = self._queue[:room], self._queue[room:]
        self._futures |= {request.trajectory: future for request, future in taken}
        return [request for request, _ in taken]

    def _advance(self, joining: Sequence[Request], loop: asyncio.AbstractEventLoop) -> None:
        """Let requests join, then decode until nothing is left or more may join; turns are handed out as they
        end.
        """
        training = self.model.training
        self.model.eval()
        for slot in self._slots:
            if slot.request and slot.trajectory not in self._futures:  # its caller was cancelled
                slot.request = None
                self._decoding -= 1
        try:
            ended = self._join(joining) if joining else []
            while True:
                if ended:
                    loop.call_soon_threadsafe(self._hand_out, ended)
                if (
                    not self._decoding or not self._futures or self._may_join()
                ):  # no futures: nobody waits any more
                    return
                ended = self._decode()
        finally:
            self.model.train(training)

    def _join(self, requests: Sequence[Request]) -> list[_Ended]:
        """Compute what is new in each request and draw each turn's first token."""
        kept = self._trajectories | {request.trajectory for request in requests}
        joining = [self._claim(request, kept) for request in requests]
        slots = self._slots
        first: dict[
            tuple[int, ...], int
        ] = {}  # of equal requests one is computed and copied: groups share their prompt
        leaders = {place: first.setdefault(tuple(slots[place].request.ids), place) for place in joining}
        logits: dict[int, torch.Tensor] = {}
        for chunk in self._chunks([place for place in joining if leaders[place] == place]):
            new = [slots[place].request.ids[len(slots[place].held) :] for place in chunk]
            found = self._cache.forward(self.model, new, chunk, [len(slots[place].held) for place in chunk])
            logits |= dict(zip(chunk, found, strict=True))
        copies = [(leader, place) for place, leader in leaders.items() if leader != place]
        for start, some in groupby(copies, key=lambda pair: len(slots[pair[1]].held)):
            sources, targets = zip(*some, strict=True)
            self._cache.copy(sources, targets, start, max(len(slots[place].request.ids) for place in targets))
        for place in joining:
            slots[place].held = list(slots[place].request.ids)
        self._decoding += len(joining)
        self._steps = 0
        return self._draw(joining, torch.stack([logits[leaders[place]] for place in joining]))

    def _claim(self, request: Request, kept: set[int]) -> int:
        """The place of the trajectory's slot with what it holds of the request, or of a new one."""
        idle = [place for place, slot in enumerate(self._slots) if slot.request is None]
        place = next((p for p in idle if self._slots[p].trajectory == request.trajectory), None)
        if place is None:
            place = next((p for p in idle if self._slots[p].trajectory not in kept), None)
            if place is None and len(self._slots) < self.in_flight:
                place = len(self._slots)
                self._slots.append(_Slot())
            if place is None:
                place = idle[0]  # a trajectory that waits for its tools makes room
            self._slots[place] = _Slot(request.trajectory)
        slot = self._slots[place]
        if len(slot.held) >= len(request.ids) or request.ids[: len(slot.held)] != slot.held:
            slot.held = []
        slot.request, slot.sample = request, Sample([], [])
        slot.draws = np.random.default_rng(request.seed).random(request.max_new_tokens).tolist()
        return place

    def _chunks(self, places: Sequence[int]) -> list[list[int]]:
        """Places whose new tokens are computed together: like numbers of them, a bounded sum."""
        new = {place: len(self._slots[place].request.ids) - len(self._slots[place].held) for place in places}
        found: list[list[int]] = [[]]
        for place in sorted(places, key=new.__getitem__):
            if found[-1] and new[place] * (len(found[-1]) + 1) > PREFILL_TOKENS:
                found.append([])
            found[-1].append(place)
        return found

    def _decode(self) -> list[_Ended]:
        """One more token for every row that decodes."""
        places = [place for place, slot in enumerate(self._slots) if slot.request]
        rows = [self._slots[place] for place in places]
        new = [slot.sample.ids[-1:] for slot in rows]
        logits = self._cache.forward(self.model, new, places, [len(slot.held) for slot in rows])
        for slot, ids in zip(rows, new, strict=True):
            slot.held += ids
        self._steps += 1
        return self._draw(places, logits)

    def _draw(self, places: Sequence[int], logits: torch.Tensor) -> list[_Ended]:
        """Draw the next token of the slots at B places from logits (B, V); rows whose turn ends stop
        decoding.
        """
        rows, device = [self._slots[place] for place in places], logits.device
        temperature = torch.tensor([slot.request.temperature for slot in rows], device=device)
        uniforms = torch.tensor(
            [slot.draws[len(slot.sample.ids)] for slot in rows], device=device, dtype=torch.float64
        )
        tokens, logprobs = draw(logits, temperature, uniforms)
        if not logprobs.isfinite().all():
            raise EngineError(
                "the model's log-probabilities are not finite numbers: look at its weights and its precision"
            )
        ended = []
        for slot, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            slot.sample.ids.append(token)
            slot.sample.logprobs.append(logprob)
            if token == self.tokenizer.eos_token_id or len(slot.sample.ids) == slot.request.max_new_tokens:
                ended.append((slot.sample, slot.trajectory))
                slot.request = None
        self._decoding -= len(ended)
        return ended


def draw(
    logits: torch.Tensor, temperature: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
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
