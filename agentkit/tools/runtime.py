"""How a tool is declared, and the runtime that calls it: bounded in time and number, whatever the tool does.

``@tool(...)`` on a method says what the runtime may rely on; a method without it is a plain tool that is run
in a thread, or on the tools' own event loop where it is ``async``. Whatever goes wrong (unknown name, bad
arguments, exceptions, time-outs) becomes an observation that tells the policy what to mend. Leaves out where
the work is done and how it is ended (agentkit.tools.execution).
"""

import asyncio
import contextlib
import copy
import ctypes
import functools
import inspect
import json
import os
import sys
import time
import typing
import warnings
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from agentkit.records import DataError, Task, ToolCall, ToolResult, Unscored
from agentkit.runs.files import finite
from agentkit.runs.labfile import blame
from agentkit.tools.cache import Outcome, ToolCache, canonical, key_of
from agentkit.tools.execution import in_thread, limited, on_tool_loop, settled

T = TypeVar("T")
NO_TOOLS = ("reset", "get_reward", "state")  # methods of an environment that no policy calls
MAX_OBSERVATION = 100_000  # characters; the limit in tokens is the rollout's
_TYPES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


# ---- declaring
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a tool's author declares."""

    # same arguments, same answer, no effect: answers are cached and shared by calls under way
    pure: bool = False
    # what answers depend on beside arguments and the tool's own code, or a function of the environment that
    # says it; None: this environment's answers are not cached
    version: str | Callable[[Any], str | None] = ""
    max_concurrent: int | None = None  # calls at once in one event loop; None: no limit
    timeout_s: float | None = None  # wall clock of a call; None: the rollout's

    def __post_init__(self) -> None:
        for name, low in (("max_concurrent", 1), ("timeout_s", 0.001)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= low):
                raise ValueError(f"a tool's {name} is {value!r}; it must be a number of at least {low}")


def tool(function: Callable | None = None, /, **declared: Any) -> Callable:
    """Declare how a tool method is run: ``@tool``, or ``@tool(pure=True)`` with fields of ToolSpec.

    The method itself is not changed.

    Raises:
        ValueError: a value out of bounds.
        TypeError: an unknown field.
    """
    spec = ToolSpec(**declared)

    def mark(function: Callable) -> Callable:
        plain = getattr(function, "__func__", function)  # of a static method: its class gives that out
        plain.tool_spec = spec
        return function

    return mark if function is None else mark(function)


def tools_of(environment: object) -> dict[str, Callable]:
    """An environment's tools by name: its public methods, without reset, get_reward and state.

    They are listed on the class, as TRL does: listing them on the instance would evaluate its properties.
    """
    names = [n for n, _ in inspect.getmembers(type(environment), inspect.isfunction) if not n.startswith("_")]
    return {n: getattr(environment, n) for n in names if n not in NO_TOOLS}


def tool_schemas(environment: object) -> list[dict]:
    """JSON schemas of an environment's tools, as the chat template gets them."""
    from transformers.utils import get_json_schema

    tools = tools_of(environment).values()
    schemas = [copy.deepcopy(getattr(tool, "json_schema", None)) or get_json_schema(tool) for tool in tools]
    for schema in schemas:
        schema["function"].pop("return", None)  # the chat formats have no place for it
    return schemas


def check_call(call: ToolCall, tools: dict[str, Callable]) -> str | None:
    """What is wrong with a call, in one sentence, or None."""
    if call.name not in tools:
        return f"there is no tool {call.name[:60]!r}; there are {', '.join(tools)}"
    method = tools[call.name]
    parameters, hints = _signature(getattr(method, "__func__", method))
    parameters = dict(list(parameters.items())[inspect.ismethod(method) :])  # without self
    named = [name for name, parameter in parameters.items() if parameter.kind not in _VARIADIC]
    unknown = sorted(set(call.arguments) - set(named))
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return f"{call.name} has no argument {unknown[0][:60]!r}; it takes {', '.join(named)}"
    for name in named:
        if name not in call.arguments:
            if parameters[name].default is inspect.Parameter.empty:
                return f"{call.name} needs the argument {name!r}"
        elif not _fits(call.arguments[name], kind := typing.get_origin(hints.get(name)) or hints.get(name)):
            return f"{call.name}: {name!r} must be {_TYPES[kind]}"
    return None


@functools.lru_cache(maxsize=1024)
def _signature(function: Callable) -> tuple[Mapping[str, inspect.Parameter], dict[str, Any]]:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # an annotation that names nothing importable: its arguments go unchecked
        hints = {}
    return inspect.signature(function).parameters, hints


def _fits(value: Any, hint: Any) -> bool:
    if hint not in _TYPES:  # an Enum, say: the tool gets what JSON has for it, as in TRL
        return True
    if hint in (int, float) and isinstance(value, bool):  # which Python counts among the integers
        return False
    return isinstance(value, (int, float) if hint is float else hint)


# ---- calling
async def run_call(
    call: ToolCall, environment: object, *, timeout_s: float = 10.0, cache: ToolCache | None = None
) -> ToolResult:
    """Run one call; whatever fails becomes an observation that starts with "Error:" and ok=False.

    ``timeout_s`` holds where the tool declares none; it starts when the call does, not while it waits for its
    turn among ``max_concurrent``. Without a cache every call is asked.
    """
    start, cached = time.perf_counter(), False
    tools = tools_of(environment)
    if problem := check_call(call, tools):
        return malformed(problem, call)
    method = tools[call.name]
    spec = getattr(method, "tool_spec", ToolSpec())
    arguments, key = _cacheable(method, spec, environment, copy.deepcopy(call.arguments))
    ask = functools.partial(_ask, method, spec, arguments, spec.timeout_s or timeout_s)
    if key is None or cache is None:
        observation, ok = await ask()
    else:
        (observation, ok), cached = await cache.answer(_name(method), key, ask)
    return ToolResult(call.name, call.arguments, observation, ok, time.perf_counter() - start, cached)


def malformed(problem: str, call: ToolCall = ToolCall("", {})) -> ToolResult:  # noqa: B008 - frozen
    """The result shown for a call that could not be parsed, or that fits no tool."""
    return ToolResult(call.name, call.arguments, f"Error: {problem}.", ok=False)


async def _ask(method: Callable, spec: ToolSpec, arguments: dict[str, Any], limit_s: float) -> Outcome:
    """What the policy is shown of a call, whatever the tool raises."""
    try:
        async with limited(_name(method), spec.max_concurrent):
            value = await call_method(method, arguments, limit_s)
            if type(value) is not str:
                value = await in_thread(functools.partial(_as_text, value), limit_s)
            return _cut(value), True
    except TimeoutError:
        problem = f"{method.__name__} did not answer within {limit_s:g} s"
    except Unscored:  # no fault of the policy: its trajectory is not judged
        raise
    except Exception as error:  # a tool is somebody else's code: nothing it raises may end the run
        problem = _message(error)
    return _cut(f"Error: {problem}."), False


async def call_method(method: Callable, arguments: dict[str, Any], timeout_s: float) -> Any:
    """What a tool, reset or get_reward returns. Raises TimeoutError, or whatever the method raises."""
    work = functools.partial(method, **arguments)
    if inspect.iscoroutinefunction(method):
        return await on_tool_loop(work, timeout_s, _name(method))
    return await in_thread(functools.partial(settled, work), timeout_s, _name(method))


async def reset(environment: Any, task: Task, timeout_s: float = 10.0) -> str:
    """Reset an environment with the row that TRL would hand it; what it adds to the question."""
    row = {
        **copy.deepcopy(task.meta),  # tools may change it
        "prompt": [{"role": "user", "content": task.prompt}],
        "task_id": task.id,
        "answer": task.answer,
    }
    where = f"{type(environment).__name__}.reset, task {task.id}"
    timeout_s = getattr(environment.reset, "tool_spec", ToolSpec()).timeout_s or timeout_s
    try:
        parameters = inspect.signature(environment.reset).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            row = {name: value for name, value in row.items() if name in parameters}
        text = await call_method(environment.reset, row, timeout_s)
    except TimeoutError:
        raise DataError(f"{where}: no answer within {timeout_s:g} s") from None
    except Exception as error:  # by a ValueError it speaks to the author of a task
        why = str(error) if isinstance(error, ValueError) else blame(error)
        raise DataError(f"{where}: {why}") from error
    if not isinstance(text, str | None):
        raise DataError(f"{where}: it returned {type(text).__name__}; return text for the question, or None")
    return text or ""


async def state_of(environment: object, timeout_s: float = 10.0) -> Any:
    """What an environment's method ``state`` gives, as JSON values; None where it has no such method.

    Raises DataError where it fails, takes longer than a call may, or gives no JSON or too much of it.
    """
    where = f"{type(environment).__name__}.state"
    if not callable(getattr(type(environment), "state", None)):
        return None
    try:
        value = await call_method(environment.state, {}, timeout_s)
        text = await in_thread(lambda: json.dumps(finite(value)), timeout_s)
    except TimeoutError:
        raise DataError(f"{where}: no answer within {timeout_s:g} s") from None
    except Exception as error:
        raise DataError(f"{where}: {blame(error)}") from error
    if len(text) > MAX_OBSERVATION:
        raise DataError(
            f"{where}: {len(text)} characters of JSON, and the limit is {MAX_OBSERVATION}: give what counts"
        )
    return json.loads(text)


def free_workers() -> None:
    """End the threads that the calling one computes with, until it computes again.

    libgomp, of torch on Linux, counts them all: where they are more than the cores every one of them sleeps
    between two operations, those of a thread that only waits included.
    """
    with contextlib.suppress(OSError, AttributeError):  # another library
        ctypes.CDLL("libgomp.so.1", os.RTLD_NOLOAD).omp_pause_resource_all(2)  # 2 is hard, in OpenMP 5.0


def example(factory: Callable[[], T]) -> T:
    """An environment; its ``__init__`` may call asyncio.run."""
    return settled(factory)


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, whether or not the caller has a running event loop, as a notebook has.

    Interrupted, it cancels the coroutine.
    """
    free_workers()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    begun: Future = Future()

    async def work() -> T:
        begun.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await coroutine

    with ThreadPoolExecutor(1, thread_name_prefix="blocking") as thread:
        try:
            return thread.submit(asyncio.run, work()).result()
        except BaseException:
            with contextlib.suppress(RuntimeError, TimeoutError):  # no loop runs: the coroutine failed
                loop, task = begun.result(timeout=1)
                loop.call_soon_threadsafe(task.cancel)
            raise


def _as_text(value: Any) -> str:
    """What a tool returned, as plain text: a subclass of str may have methods of its own. Objects and lists
    are JSON, where they can be.
    """
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        if isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False)
    return str.__str__(value if isinstance(value, str) else str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_OBSERVATION else text[:MAX_OBSERVATION] + " [cut]"


def _message(error: Exception) -> str:
    """What an exception says; its type too, but for ValueError, by which tools speak to the policy."""
    try:
        message = _as_text(error)
        if not isinstance(error, ValueError):
            message = f"{type(error).__name__}: {message}"
    except Exception:  # its own __str__ fails
        message = ""
    return message or type(error).__name__


# ---- what an answer is kept by
def _cacheable(
    method: Callable, spec: ToolSpec, environment: object, arguments: dict
) -> tuple[dict, bytes | None]:
    """A pure tool's arguments, in canonical order so that answers depend on the key alone; and the key."""
    if not spec.pure:
        return arguments, None
    try:
        text = canonical(arguments)
        version = spec.version(environment) if callable(spec.version) else spec.version
    except Exception as error:  # arguments that no parser gives, or a version that cannot be told
        warnings.warn(f"answers of {_name(method)} are not cached: {_message(error)}", stacklevel=2)
        return arguments, None
    key = None
    if version is not None and (source := _source(getattr(method, "__func__", method))):
        key = key_of(_name(method), f"{version} {source}", text)
    return json.loads(text), key


def _name(method: Callable) -> str:
    return f"{method.__module__}.{method.__qualname__}"


@functools.lru_cache(maxsize=1024)
def _source(function: Callable) -> str | None:
    """The source of a tool's file, since its answers may depend on a table beside it; of one from a notebook
    cell the cell's definition; None and a warning where there is none. What it closes over and what other
    files hold is not in it: the version stands for that.
    """
    module = sys.modules.get(function.__module__)
    try:
        in_file = getattr(module, "__file__", None) == inspect.getsourcefile(function)
        return inspect.getsource(module if in_file else function)
    except (OSError, TypeError):
        why = "its source cannot be read; define it in a file or a notebook cell"
        warnings.warn(f"answers of {_name(function)} are not cached: {why}", stacklevel=2)
        return None
