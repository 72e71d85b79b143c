"""The transformers policy: turns of many trajectories sampled together, in this process.

Every trajectory keeps its keys and values in a slot between turns, so that a turn costs its new tokens
only. Rows join and leave the batch that decodes at any token. Each row draws its own random numbers from
its request's seed, one a token, so the batch a request lands in does not matter beyond rounding;
``deterministic`` fixes the batches as well. Leaves out several GPUs, and models that do not attend to every
earlier token.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch

from agentkit.policies.attention import evaluating
from agentkit.policies.slot_cache import SlotCache, memory_of, token_bytes
from agentkit.policies.threaded import ThreadedPolicy, settle
from agentkit.rollouts.policy import EngineError, Request, Sample
from agentkit.rollouts.template_probe import end_of_turn_ids
from agentkit.tools.runtime import free_workers

LOOP_ROUNDS, LOOP_WAIT_S = 4, 5.0  # of an event loop, before a batch is called complete; for each, at most
GATHER_S = 0.004  # how long an idle engine waits for more requests
JOIN_SHARE, JOIN_STEPS = 4, 8  # requests join when they are a quarter of the batch, or have waited 8 tokens
PREFILL_TOKENS = 8192  # in one forward pass
TOO_LONG = (
    "keys and values of a trajectory of {} tokens do not fit: engine_memory leaves room for {}. Raise it, "
    "lower max_tokens, or use engine: vllm"
)


@dataclass(slots=True, eq=False)
class _Slot:
    trajectory: int = -1
    held: list[int] = field(default_factory=list)  # the tokens whose keys and values it has
    request: Request | None = None  # the turn it is sampling; None while it decodes nothing
    future: Future[Sample] | None = None  # of that turn
    sample: Sample = field(default_factory=lambda: Sample([], []))
    draws: list[float] = field(default_factory=list)


class TransformersPolicy(ThreadedPolicy):
    """Samples from a causal language model of transformers, a PEFT model included.

    ``begin`` and ``end`` run in the callers' threads as ``sample`` does; they keep ``_trajectories``,
    ``sample`` keeps ``_loops``. The model is used in eval mode and left in the mode it was in. ``max_batch``
    bounds the trajectories whose keys and values are kept, and the rows of a batch, and ``memory_share`` the
    memory of the device that these take: long trajectories come fewer at a time. With ``deterministic`` what
    is sampled together does not depend on timing: whenever half of a batch's turns have ended, it waits for
    all their trajectories to ask again or end. Exact to the bit, and slower where tools are slow.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str = "policy",
        max_batch: int = 128,
        deterministic: bool = False,
        memory_share: float = 0.3,
    ):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.ends = end_of_turn_ids(tokenizer)
        self.name = name
        self.max_length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.in_flight = max_batch
        self.deterministic = deterministic
        self._trajectories: set[int] = set()  # in flight
        self._loops: set[asyncio.AbstractEventLoop] = set()  # of the callers
        room = memory_share * memory_of(model.device) / max(token_bytes(model.config, model.dtype), 1)
        self._cache = SlotCache(model, max_batch, int(room))
        self._slots: list[_Slot] = []  # by their index in the cache
        self._limit = max_batch  # of slots, at the lengths they have
        self._steps = 0  # tokens decoded since requests last joined
        self._rows = 0  # that decoded then

    async def sample(self, request: Request) -> Sample:
        self._loops.add(asyncio.get_running_loop())
        return await super().sample(request)

    def begin(self, trajectory: int) -> None:
        """A trajectory begins; in deterministic mode batches wait for it."""
        self._trajectories.add(trajectory)

    def end(self, trajectory: int) -> None:
        """A trajectory has ended; its slot is free at the next batch, and with the last one all memory is."""
        self._trajectories.discard(trajectory)
        if not self._trajectories:
            self._thread.submit(lambda: self._trajectories or self._clear())  # others may begin meanwhile

    def sync(self, model: Any) -> None:
        """Forget what was computed with the old weights."""
        self.close()

    def close(self) -> None:
        """Give back all keys and values; the policy could sample again."""
        self._between_batches(self._clear)

    sleep = close

    # ---- in the engine's thread
    def _clear(self) -> None:
        self._slots = []
        self._cache.clear()
        free_workers()

    def _serve(self) -> None:
        if not self._inbox:  # the model may be training again: leave its mode alone
            return
        try:
            with evaluating(self.model):
                self._sample_all()
        except Exception as error:
            waiting = [slot.future for slot in self._slots if slot.request]
            waiting += [self._inbox.popleft()[1] for _ in range(len(self._inbox))]
            self._clear()
            for future in waiting:
                settle(future, error)

    def _sample_all(self) -> None:
        while (decoding := self._decoding()) or self._inbox:
            joining = self._take(decoding) if self._may_join(len(decoding)) else []
            if joining:
                self._rows = len(decoding) + len(joining)
                self._join(joining)
            elif decoding:
                self._decode(decoding)

    def _decoding(self) -> list[int]:
        """Places of the slots that sample a turn; one that nobody waits for any more is stopped."""
        for slot in self._slots:
            if slot.request and slot.future.cancelled():
                slot.request = None
        return [index for index, slot in enumerate(self._slots) if slot.request]

    def _gather(self, decoding: int) -> None:
        """Wait until no request has come for a while; in deterministic mode, until all trajectories ask."""
        before, now = None, self._asked(decoding)
        while now[0] < self.in_flight and (now != before or (self.deterministic and now[0] < now[1])):
            time.sleep(GATHER_S)
            if self.deterministic:
                self._let_callers_run()
            before, now = now, self._asked(decoding)

    def _let_callers_run(self) -> None:
        """Return once every caller's event loop has gone round a few times.

        What is about to begin there has then begun, however long the processor was busy with something else.
        """
        for loop in list(self._loops):
            for _ in range(LOOP_ROUNDS):
                event = threading.Event()
                try:
                    loop.call_soon_threadsafe(event.set)
                except RuntimeError:  # it is closed
                    self._loops.discard(loop)
                    break
                event.wait(LOOP_WAIT_S)

    def _asked(self, decoding: int) -> tuple[int, int]:
        """Requests, with those that decode, and trajectories: one may end just before another begins."""
        return decoding + len(self._inbox), len(self._trajectories)

    def _may_join(self, decoding: int) -> bool:
        """Whether requests join now; deterministic batches count the turns that ended, and wait for those."""
        if not decoding or (self.deterministic and self._rows >= 2 * decoding):
            self._gather(decoding)
            self._rows = decoding
            return True
        if self.deterministic or not self._inbox or decoding == self.in_flight:
            return False
        return len(self._inbox) * JOIN_SHARE >= decoding or self._steps >= JOIN_STEPS

    def _take(self, decoding: Sequence[int]) -> list[tuple[Request, Future[Sample]]]:
        """The requests that join the batch now, in a fixed order: like lengths waste no padding.

        No more than there is memory for; the longer wait until others are done.
        """
        waiting = [self._inbox.popleft() for _ in range(len(self._inbox))]
        waiting = [entry for entry in waiting if not entry[1].cancelled()]
        waiting.sort(key=lambda entry: (len(entry[0].ids), entry[0].seed))
        for slot in self._slots:
            if not slot.request and slot.trajectory not in self._trajectories:
                slot.held = []
        taken: list[tuple[Request, Future[Sample]]] = []
        longest = max(map(_length, self._slots), default=0)
        for request, future in waiting:
            asked = len(request.ids) + request.max_new_tokens
            slots = self._cache.slots_for(max(longest, asked))
            if not self._cache.slots_for(asked):
                settle(future, EngineError(TOO_LONG.format(asked, self._cache.room)))
            elif len(decoding) + len(taken) < slots and max(decoding, default=0) < slots:
                taken.append((request, future))
                longest = max(longest, asked)
            elif not decoding and not taken:  # what idle trajectories hold stands in the way
                self._clear()
                taken, longest = [(request, future)], asked
            else:
                self._inbox.append((request, future))
        if taken:
            self._limit = self._cache.slots_for(longest)
            del self._slots[self._limit :]
        return taken

    def _join(self, entries: Sequence[tuple[Request, Future[Sample]]]) -> None:
        """Compute what is new in each request and draw each turn's first token."""
        kept = self._trajectories | {request.trajectory for request, _ in entries}
        joining = [self._claim(request, future, kept) for request, future in entries]
        slots = self._slots
        self._cache.reserve(len(slots), max(map(_length, slots)))
        # of equal requests one is computed and copied: groups share their prompt
        first: dict[tuple[int, ...], int] = {}
        leaders = {index: first.setdefault(tuple(slots[index].request.ids), index) for index in joining}
        logits: dict[int, torch.Tensor] = {}
        for chunk in self._chunks([index for index in joining if leaders[index] == index]):
            new = [slots[index].request.ids[len(slots[index].held) :] for index in chunk]
            computed = self._cache.forward(
                self.model, new, chunk, [len(slots[index].held) for index in chunk]
            )
            logits |= dict(zip(chunk, computed, strict=True))
        copies = [(leader, index) for index, leader in leaders.items() if leader != index]
        for start, pairs in groupby(copies, key=lambda pair: len(slots[pair[1]].held)):
            sources, targets = zip(*pairs, strict=True)
            self._cache.copy(sources, targets, start, max(len(slots[index].request.ids) for index in targets))
        for index in joining:
            slots[index].held = list(slots[index].request.ids)
        self._steps = 0
        self._draw(joining, torch.stack([logits[leaders[index]] for index in joining]))

    def _claim(self, request: Request, future: Future[Sample], kept: set[int]) -> int:
        """The index of the trajectory's slot with what it holds of the request, or of a new one."""
        idle = [index for index, slot in enumerate(self._slots) if slot.request is None]
        own = [index for index in idle if self._slots[index].trajectory == request.trajectory]
        free = [index for index in idle if self._slots[index].trajectory not in kept]
        if not (own or free) and len(self._slots) < self._limit:
            free = [len(self._slots)]
            self._slots.append(_Slot())
        index = (own or free or idle)[0]  # of the idle ones one that waits for its tools makes room
        if not own:
            self._slots[index] = _Slot(request.trajectory)
        slot = self._slots[index]
        if len(slot.held) >= len(request.ids) or request.ids[: len(slot.held)] != slot.held:
            slot.held = []
        slot.request, slot.future, slot.sample = request, future, Sample([], [])
        slot.draws = np.random.default_rng(request.seed).random(request.max_new_tokens).tolist()
        return index

    def _chunks(self, indices: Sequence[int]) -> list[list[int]]:
        """Places whose new tokens are computed together: like numbers of them, a bounded sum."""
        new = {index: len(self._slots[index].request.ids) - len(self._slots[index].held) for index in indices}
        chunks: list[list[int]] = [[]]
        for index in sorted(indices, key=new.__getitem__):
            if chunks[-1] and new[index] * (len(chunks[-1]) + 1) > PREFILL_TOKENS:
                chunks.append([])
            chunks[-1].append(index)
        return chunks

    def _decode(self, indices: Sequence[int]) -> None:
        rows = [self._slots[index] for index in indices]
        new = [slot.sample.ids[-1:] for slot in rows]
        logits = self._cache.forward(self.model, new, indices, [len(slot.held) for slot in rows])
        for slot, ids in zip(rows, new, strict=True):
            slot.held += ids
        self._steps += 1
        self._draw(indices, logits)

    def _draw(self, indices: Sequence[int], logits: torch.Tensor) -> None:
        """Draw the next token of the slots at B indices from logits (B, V); rows whose turn ends are done."""
        rows, device = [self._slots[index] for index in indices], logits.device
        temperature = torch.tensor([slot.request.temperature for slot in rows], device=device)
        uniforms = [slot.draws[len(slot.sample.ids)] for slot in rows]
        tokens, logprobs = draw(
            logits, temperature, torch.tensor(uniforms, device=device, dtype=torch.float64)
        )
        if not logprobs.isfinite().all():
            raise EngineError(
                "the model's log-probabilities are not finite numbers: look at its weights and its precision"
            )
        for slot, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            slot.sample.ids.append(token)
            slot.sample.logprobs.append(logprob)
            if token in self.ends or len(slot.sample.ids) == slot.request.max_new_tokens:
                slot.request = None
                settle(slot.future, slot.sample)


def _length(slot: _Slot) -> int:
    """Tokens that a slot has, or will have when its turn has ended."""
    return len(slot.request.ids) + slot.request.max_new_tokens if slot.request else len(slot.held)


def draw(
    logits: torch.Tensor, temperature: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row by inverting the cumulative distribution at a given uniform number in [0, 1).

    Takes logits (B, V), temperatures (B,) and uniform numbers (B,); 0 takes the likeliest token.
    Returns tokens (B,) and their log-probabilities (B,) at the temperature, at temperature 1 for greedy rows.
    """
    assert logits.ndim == 2 and logits.dtype == torch.float32
    scale = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    logprobs = torch.log_softmax(logits / scale[:, None], dim=-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    target = uniforms.double()[:, None] * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
    tokens = torch.where(temperature > 0, sampled, logits.argmax(-1))
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)
