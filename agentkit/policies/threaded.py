"""What the engines of this process share: one thread that serves all requests that have arrived.

Leaves out the engines themselves: transformers.py and vllm.py.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from agentkit.rollouts.policy import Policy, Request, Sample


class ThreadedPolicy(Policy):
    """A policy whose engine lives in one thread, where requests of any event loop join its batch.

    Which thread may touch what: ``sample`` runs in the callers' threads and appends to ``_inbox``, which is
    atomic. All else belongs to the engine's thread, where ``_serve`` and whatever is given to
    ``_between_batches`` run one after the other.
    """

    def __init__(self) -> None:
        self._inbox: deque[tuple[Request, Future[Sample]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")  # two would fight over the cores

    async def sample(self, request: Request) -> Sample:
        future: Future[Sample] = Future()
        self._inbox.append((request, future))
        self._thread.submit(self._serve)
        return await asyncio.wrap_future(future)

    def _between_batches(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do something else in the engine's thread, when nothing is in flight."""
        return self._thread.submit(work, *arguments).result()

    @abstractmethod
    def _serve(self) -> None:
        """Sample until nothing waits; most often an earlier call has done it all."""


def settle(future: Future[Sample], outcome: Sample | Exception) -> None:
    """Hand a sample, or why there is none, to whoever still waits for it."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
