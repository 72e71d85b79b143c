"""Rollouts of the next batches while the update runs: ``max_staleness`` batches, sampled ahead of it.

``Ahead`` goes in front of TRL's GRPOTrainer. The engine is handed the weights as they are, and threads
sample as many batches with them as may be stale. That waits until nothing is sampled any more, unless the
engine keeps the weights before them (``Policy.keeps_weights``): then it is done while the last batch of those
still comes in, whose longest trajectories leave room. Tasks follow from the order that TRL's sampler draws.
What comes out does not depend on what is faster. The main thread alone talks to other processes. A checkpoint
holds no rollouts: it holds the adapter that samples, and whoever goes on from it samples the same batches
again. Leaves out weights of the engine's own (policies), the correction of what is stale (mismatch), and how
a batch is sampled (grpo).
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from agentkit.policies.process_group import gathered
from agentkit.records import Task
from agentkit.training.adapters import trained_weights, with_weights
from agentkit.training.selection import Selected

LOOK_S = 0.1  # between looks whether what is sampled is still wanted


@dataclass(frozen=True, slots=True)
class Batch:
    """The tasks of one batch of rollouts."""

    number: int  # from 0
    tasks: tuple[Task, ...]  # that this process rolls out
    everyone: tuple[str, ...]  # ids of all processes' tasks, in the order of the processes


@dataclass(frozen=True, slots=True)
class Lead:
    """Weights that an engine was handed, and the batches they sample that are not trained on yet."""

    version: int  # batches that these weights had been trained on
    weights: Mapping[str, torch.Tensor]  # of the adapter, by parameter
    pending: tuple[int, ...]  # numbers of the batches


class Background:
    """Works on batches, ``at_once`` at a time and begun in order, in threads; results come in that order.

    ``run`` is for coroutines of a work: it ends them where the work is no longer wanted. All run in one event
    loop, which shares out what is limited and asks a tokenizer one question at a time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="rollouts ahead")
        self._loop: asyncio.AbstractEventLoop | None = None  # from the first work on
        self._looping = threading.Thread(target=self._serve, name="loop ahead", daemon=True)
        self._closing = False
        self._works: deque[tuple[Batch, Future[Any]]] = deque()
        self._unwanted = threading.Event()

    def _serve(self) -> None:
        while not self._closing:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # of a task, which holds it too
                self._loop.run_forever()

    @property
    def first(self) -> Batch | None:
        """The batch whose result comes next."""
        return self._works[0][0] if self._works else None

    def start(self, batch: Batch, work: Callable[[], Any]) -> None:
        if not self._loop:
            self._loop = asyncio.new_event_loop()
            self._looping.start()
        self._works.append((batch, self._threads.submit(work)))

    def take(self) -> Any:
        """Wait for the next result; what went wrong is raised here."""
        result = self._works[0][1].result()
        self._works.popleft()
        return result

    def wait(self) -> None:
        """Wait until nothing is under way; results, and what went wrong, are kept."""
        wait([future for _, future in self._works])

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def unless_unwanted() -> Any:
            task = asyncio.ensure_future(coroutine)
            while not (task.done() or self._unwanted.is_set()):
                await asyncio.wait([task], timeout=LOOK_S)
            task.cancel()  # which one that is done ignores
            return await task

        return asyncio.run_coroutine_threadsafe(unless_unwanted(), self._loop).result()

    def drop(self) -> None:
        """End what is under way, and forget all works; returns once the threads are at rest."""
        for _, future in self._works:
            future.cancel()
        self._unwanted.set()
        self.wait()
        self._works.clear()
        self._unwanted.clear()

    def close(self) -> None:
        self.drop()
        self._threads.shutdown()
        if self._loop and not self._closing:
            self._closing = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._looping.join()
            self._loop.close()


class Ahead:
    """Mixin of a GRPOTrainer with ``recipe``, ``step``, ``policy``, ``background``, ``_tasks``, ``_synced``
    and ``_sample``.
    """

    lead: Lead | None = None  # what samples, or sampled last
    sampled_with: Mapping[str, torch.Tensor] | None = None  # the step's rollouts, where they are stale

    def sampled_ahead(self) -> tuple[Selected, dict[str, float]]:
        """The step's rollouts and metrics; the next batches are under way when it returns.

        Raises:
            EngineError: the engine does not serve the weights that it was handed.
            Whatever the rollouts of the step raised in their thread.
        """
        number, first = self._batch_number, self.background.first
        gap: dict[str, float] = {}
        fits = first is not None and first.number == number and first.tasks == self.step.tasks
        if not all(gathered([fits])):
            gap = self._begin(number)
        lead, handed = self.lead, None
        last = len(lead.pending) == 1
        following = self._numbers(number + 1, self.recipe.max_staleness) if last else ()
        if following and self.policy.keeps_weights:
            handed = self._hand_over(number, following)
        selected = self.background.take()
        gathered([None])  # no engine is busy with these weights any more: processes may share servers
        if following and not handed:
            handed = self._hand_over(number, following)
        self.lead, more = handed or (replace(lead, pending=lead.pending[1:]), {})
        self.sampled_with = lead.weights if lead.version < number else None
        return selected, gap | more | {"staleness": number - lead.version}

    def wait_ahead(self) -> None:
        """Return once no process samples, so that the engine may be handed other weights for a while."""
        self.background.wait()
        gathered([None])

    @property
    def _updates(self) -> int:
        """Optimiser steps on a batch of rollouts."""
        parts = self.args.steps_per_generation * self.num_iterations
        return max(parts // self.args.gradient_accumulation_steps, 1)

    @property
    def _batch_number(self) -> int:
        return self.state.global_step // self._updates

    def _numbers(self, first: int, count: int) -> tuple[int, ...]:
        """``count`` batches from the first on, as far as the training has any."""
        return tuple(range(first, min(first + count, -(-self.args.max_steps // self._updates))))

    def _begin(self, number: int) -> dict[str, float]:
        """Start without batches that fit: anew, or as a checkpoint says; metrics of the sync.

        What was sampled is lost, as where TRL asks for other tasks than those that were to come.
        """
        lead = self.lead if self.background.first is None else None  # a checkpoint has one and no rollouts
        self.background.drop()
        gathered([None])
        if lead is None or lead.pending[:1] != (number,):
            self.lead, gap = self._hand_over(number, self._numbers(number, 1 + self.recipe.max_staleness))
            return gap
        with with_weights(self.accelerator.unwrap_model(self.model), lead.weights):
            self.lead, _ = self._hand_over(lead.version, lead.pending)
        return {}  # the step that handed them over first has told

    def _hand_over(self, version: int, numbers: Sequence[int]) -> tuple[Lead, dict[str, float]]:
        """Give the engine the weights as they are and have it sample these batches; metrics of the sync."""
        with self._synced() as gap:
            pass
        policy = self.policy.as_it_is()
        for number in numbers:
            batch, step = self._batch(number), number * self._updates + 1
            work = partial(self._sample, step, batch.tasks, batch.everyone, self.background.run, policy)
            self.background.start(batch, work)
        return Lead(version, trained_weights(self.accelerator.unwrap_model(self.model)), tuple(numbers)), gap

    def _batch(self, number: int) -> Batch:
        """The tasks of a batch: the step's where it is the step's, else those that TRL will ask for."""
        if number == self._batch_number:
            return Batch(number, self.step.tasks, tuple(gathered([task.id for task in self.step.tasks])))
        each = self.recipe.prompts_per_step
        epoch, position = divmod(number, len(self.train_dataset) // each)
        rows = self._order(epoch)[position * each : (position + 1) * each]
        ids = tuple(self.train_dataset[row]["task_id"] for row in rows)
        share = each // self.accelerator.num_processes
        start = self.accelerator.process_index * share
        return Batch(number, tuple(self._tasks[i] for i in ids[start : start + share]), ids)

    def _order(self, epoch: int) -> list[int]:
        """Rows of the data set in the order in which an epoch of TRL's sampler asks for them, each once."""
        sampler = super()._get_train_sampler()  # draws what the one in use draws
        for _ in range(epoch):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return list(dict.fromkeys(sampler))
