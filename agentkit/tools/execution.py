"""Where tools run: in a thread, or on the tools' own event loop; waiting always ends in time.

A user's verifiers, rewards and environments run here too (``settled``). When the time is up an async tool is
cancelled. A thread cannot be ended: it is left behind, and a tool that has left MAX_HUNG behind is refused
while they hang. Leaves out what calls mean and what the policy is shown (agentkit.tools.runtime).
"""

import asyncio
import contextlib
import functools
import inspect
import os
import queue
import threading
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

MAX_THREADS = 128  # tools running in threads at once in one event loop
MAX_HUNG = 64  # calls of one tool that may be left behind

_limits: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by event loop: semaphores by name


def limited(name: str, limit: int | None) -> contextlib.AbstractAsyncContextManager:
    """At most ``limit`` at once under one name in one event loop; "" stands for all threads."""
    if limit is None:
        return contextlib.nullcontext()
    limits = _limits.setdefault(asyncio.get_running_loop(), {})
    return limits.setdefault(name, asyncio.Semaphore(limit))


# ---- calls that may never end
_hung: dict[str, set[Future]] = defaultdict(set)  # by tool: the ends of calls that were left behind


def _refuse_hung(name: str) -> None:
    """Raise ValueError where too many earlier calls of a tool never ended."""
    _hung[name] = {end for end in _hung[name] if not end.done()}
    if len(_hung[name]) >= MAX_HUNG:
        raise ValueError(f"{name.rpartition('.')[2]} is out of order: {MAX_HUNG} earlier calls still hang")


async def _within(future: Future, limit_s: float, name: str, end: Future) -> Any:
    """The result of work elsewhere. Raises what the work raised, or TimeoutError and cancels it.

    ``end`` is done when the work has ended, which a cancelled ``future`` does not tell. A result that is
    there when the time is up counts, so that a busy event loop makes no tool look slow.
    """
    waiting = asyncio.wrap_future(future)
    try:
        await asyncio.wait({waiting}, timeout=limit_s)
        if future.done():
            return future.result()
        raise TimeoutError
    finally:
        if name and not future.done():  # left behind, by its own time limit or because nobody waits any more
            _hung[name].add(end)
        if not waiting.cancel() and not waiting.cancelled():
            waiting.exception()  # has been seen


# ---- tools in threads
_idle: list[queue.SimpleQueue] = []  # inboxes of threads that wait for work


async def in_thread(work: Callable[[], Any], limit_s: float, name: str = "") -> Any:
    """What ``work`` returns, called in a daemon thread. Raises what it raised, or TimeoutError.

    Not asyncio.to_thread: its few workers would be used up by hung tools, and asyncio.run would wait for them
    at the end. The time starts when one of MAX_THREADS is free.
    """
    async with limited("", MAX_THREADS):
        if name:
            _refuse_hung(name)
        future = _handed_over(work)
        return await _within(future, limit_s, name, future)


def settled(work: Callable[[], Any]) -> Any:
    """What a user's code gives, sync or async, and whether or not this thread runs an event loop.

    Where it does, as a notebook's kernel does, ``work`` is called in a thread, so that it may call
    asyncio.run. What it gives to be awaited is awaited on the tools' event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        given = work()
    else:
        given = _handed_over(work).result()
    if not inspect.isawaitable(given):
        return given
    waiting = asyncio.run_coroutine_threadsafe(_awaited(lambda: given, Future()), _started_loop())
    try:
        return waiting.result()
    finally:  # nobody waits any more where it was interrupted
        waiting.cancel()


def _handed_over(work: Callable[[], Any]) -> Future:
    """Have a daemon thread call ``work``: what it will give."""
    future: Future = Future()
    future.set_running_or_notify_cancel()
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="tool", daemon=True).start()
    inbox.put(functools.partial(_fulfil, work, future))
    return future


def _serve(inbox: queue.SimpleQueue) -> None:
    """Do one job after another; a thread that hangs is never idle again."""
    while True:
        inbox.get()()
        _idle.append(inbox)


def _fulfil(work: Callable[[], Any], future: Future) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            # SystemExit would end the event loop, and StopIteration is what no future can hold
            error = RuntimeError(f"the tool raised {type(error).__name__}")
        future.set_exception(error)


# ---- async tools
_tool_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


async def on_tool_loop(work: Callable[[], Awaitable[Any]], limit_s: float, name: str) -> Any:
    """Await an async tool on the tools' event loop, which lives in a thread of its own, as in TRL.

    So a tool that blocks holds up no sampling, and a client that a tool keeps open outlives the rollout's
    event loop.
    """
    _refuse_hung(name)
    loop, end = _started_loop(), Future()
    try:
        future = asyncio.run_coroutine_threadsafe(_awaited(work, end), loop)
        return await _within(future, limit_s, name, end)
    except TimeoutError:
        await _abandon_if_blocked(loop)
        raise


async def _awaited(work: Callable[[], Awaitable[Any]], end: Future) -> Any:
    try:
        return await work()
    except (KeyboardInterrupt, SystemExit) as error:  # would end the event loop
        raise RuntimeError(f"the tool raised {type(error).__name__}") from None
    finally:
        end.set_result(None)


def _started_loop() -> asyncio.AbstractEventLoop:
    global _tool_loop
    with _loop_lock:
        if _tool_loop is None:
            _tool_loop = asyncio.new_event_loop()
            threading.Thread(target=_tool_loop.run_forever, name="async tools", daemon=True).start()
        return _tool_loop


async def _abandon_if_blocked(loop: asyncio.AbstractEventLoop) -> None:
    """Leave an event loop behind that a tool blocks; the next call starts another."""
    global _tool_loop
    alive = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
    await asyncio.wait({alive}, timeout=0.5)
    if not alive.done():
        alive.cancel()
        with _loop_lock:
            if _tool_loop is loop:
                _tool_loop = None


def _forget() -> None:
    """A forked process has none of its parent's threads and must not use its pipes."""
    global _tool_loop, _loop_lock
    _tool_loop, _loop_lock = None, threading.Lock()
    _idle.clear()
    _hung.clear()


os.register_at_fork(after_in_child=_forget)
