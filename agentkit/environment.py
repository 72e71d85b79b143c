"""The tool protocol and the runtime that calls tools for a policy.

An environment is a class in TRL's ``environment_factory`` form: ``reset(**row)``, public methods are tools, optional
``get_reward``. Any such class from elsewhere runs here, and ours run in stock TRL. The runtime turns whatever goes wrong
in a tool (unknown name, bad arguments, exceptions, time-outs) into an observation that tells the policy what to mend.
Leaves out process isolation and the shared cache: a timed-out thread is abandoned, not killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import time
import typing
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from agentkit.knowledge import Corpus
from agentkit.records import ToolCall, ToolResult
from agentkit.tools import PythonSession, Workspace, calculate, query_database, run_program, search_passages
from agentkit.tools.search import Backend

SYSTEM_PROMPT = (
    "Answer the question with the tools. Look up every fact with search, compute with calculator, "
    'and end with a line "Answer: ...".'
)
CODE_PROMPT = 'Write the code, test it with python, and end with a line "Answer: ...".'
MAX_OBSERVATION = 4_000  # characters
MAX_THREADS = 128  # tools running at once in one event loop
_TYPES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


class CorpusEnvironment:
    """Search over the embedded corpus and a calculator."""

    def __init__(self, corpus: Corpus | None = None, top_k: int = 3, *, backend: Backend | None = None):
        self._corpus = corpus or Corpus.open()
        self._backend = backend or self._corpus
        self._top_k = top_k

    def reset(self, **row: Any) -> None:
        """Nothing to reset: both tools are pure."""

    def search(self, query: str) -> str:
        """Search facts.

        Args:
            query: What to look up.
        """
        return search_passages(self._backend, query, self._top_k)

    def calculator(self, expression: str) -> str:
        """Compute arithmetic.

        Args:
            expression: The arithmetic.
        """
        return calculate(expression)


class CodeEnvironment:
    """Programs in the sandbox, each in a fresh process."""

    system_prompt = CODE_PROMPT

    def reset(self, **row: Any) -> None:
        """Nothing to reset: no program leaves anything behind."""

    def python(self, code: str) -> str:
        """Run Python.

        Args:
            code: The program.
        """
        return run_program(code)[0]


class WorkbenchEnvironment(CorpusEnvironment):
    """Every tool at once: search over any backend, calculator, SQL over the corpus, Python and a workspace of files.

    Programs see the workspace's files. One environment serves one trajectory.

    Args:
        corpus: what sql reads, and search where no backend is given; by default the shipped one.
        top_k: passages of a search.
        backend: what search asks instead: a RetrievalServer, a WebSearch, or a Recording of one.
        session: whether programs remember what earlier ones defined.
    """

    def __init__(self, corpus: Corpus | None = None, top_k: int = 3, *, backend: Backend | None = None, session: bool = False):
        super().__init__(corpus, top_k, backend=backend)
        self._keeps = session
        self.reset()

    def reset(self, **row: Any) -> None:
        """An empty workspace and a new interpreter."""
        self._workspace, self._session = Workspace(), PythonSession() if self._keeps else None

    def sql(self, query: str) -> str:
        """Ask the database.

        Args:
            query: One SELECT.
        """
        return query_database(self._corpus, query)

    def python(self, code: str) -> str:
        """Run Python.

        Args:
            code: The program.
        """
        run = self._session.run if self._session else run_program
        return run(code, files=self._workspace.files)[0]

    def write_file(self, path: str, content: str) -> str:
        """Write a file.

        Args:
            path: Its name.
            content: Its text.
        """
        return self._workspace.write(path, content)

    def read_file(self, path: str, start: int = 0) -> str:
        """Read a file.

        Args:
            path: Its name.
            start: The first character.
        """
        return self._workspace.read(path, start)

    def list_files(self) -> str:
        """List the files."""
        return self._workspace.list()


def environments(corpus: Corpus, top_k: int = 3) -> dict[str, Callable[[], object]]:
    """Each family's environment: programs for C, search and calculator for the others."""
    around = functools.partial(CorpusEnvironment, corpus, top_k)
    return defaultdict(lambda: around, {"C": CodeEnvironment})


def tools_of(environment: object) -> dict[str, Callable]:
    """An environment's tools by name: its public methods, without reset and get_reward.

    They are listed on the class, as TRL does: listing them on the instance would evaluate its properties.
    """
    names = [n for n, _ in inspect.getmembers(type(environment), inspect.isfunction) if not n.startswith("_")]
    return {n: getattr(environment, n) for n in names if n not in ("reset", "get_reward")}


def tool_schemas(environment: object) -> list[dict]:
    """JSON schemas of an environment's tools, as the chat template gets them."""
    from transformers.utils import get_json_schema

    schemas = [get_json_schema(tool) for tool in tools_of(environment).values()]
    for schema in schemas:
        schema["function"].pop("return", None)  # the chat formats have no place for it
    return schemas


def check_call(call: ToolCall, tools: dict[str, Callable]) -> str | None:
    """What is wrong with a call, in one sentence, or None."""
    if call.name not in tools:
        return f"there is no tool {call.name[:60]!r}; there are {', '.join(tools)}"
    kinds = {n: p.kind for n, p in inspect.signature(tools[call.name]).parameters.items()}
    parameters = {n: p for n, p in inspect.signature(tools[call.name]).parameters.items() if p.kind not in _VARIADIC}
    hints = _hints(tools[call.name])
    unknown = sorted(set(call.arguments) - set(parameters))
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds.values():
        return f"{call.name} has no argument {unknown[0][:60]!r}; it takes {', '.join(parameters)}"
    for name, parameter in parameters.items():
        if name not in call.arguments:
            if parameter.default is inspect.Parameter.empty:
                return f"{call.name} needs the argument {name!r}"
        elif not _fits(call.arguments[name], hints.get(name)):
            return f"{call.name}: {name!r} must be {_TYPES.get(hints[name], hints[name])}"
    return None


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _hints(tool: Callable) -> dict[str, Any]:
    try:
        return typing.get_type_hints(tool)
    except Exception:  # an annotation that names nothing importable: its arguments go unchecked
        return {}


def _fits(value: Any, hint: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


async def run_call(call: ToolCall, environment: object, *, timeout_s: float = 10.0) -> ToolResult:
    """Run one call; whatever fails becomes an observation that starts with "Error:" and ok=False."""
    start = time.perf_counter()
    tools = tools_of(environment)
    problem, ok = check_call(call, tools), False
    if problem is None:
        tool = tools[call.name]
        if inspect.iscoroutinefunction(tool):
            work = asyncio.wait_for(_awaited(tool, call.arguments), timeout_s)
        else:
            work = in_thread(functools.partial(tool, **call.arguments), timeout_s)
        try:
            observation, ok = str(await work), True
        except TimeoutError:
            problem = f"{call.name} did not answer within {timeout_s:g} s"
        except Exception as error:  # a tool is somebody else's code: nothing it raises may end the run
            problem = _described(error)
    if problem is not None:
        observation = f"Error: {problem}."
    if len(observation) > MAX_OBSERVATION:
        observation = observation[:MAX_OBSERVATION] + " [cut]"
    return ToolResult(call.name, call.arguments, observation, ok, time.perf_counter() - start)


_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


async def _awaited(tool: Callable, arguments: dict[str, Any]) -> Any:
    try:
        return await tool(**arguments)
    except SystemExit:  # would end the event loop
        raise RuntimeError("the tool raised SystemExit") from None


async def in_thread(work: Callable[[], Any], timeout_s: float) -> Any:
    """What ``work`` returns, called in a daemon thread of its own. Raises TimeoutError, or what ``work`` raised.

    Not asyncio.to_thread: its few workers would be used up by hung tools, and asyncio.run would wait for them at the end.
    A result that is there when the time is up counts, so that a busy event loop makes no tool look slow; and the time starts
    when one of MAX_THREADS slots is free, so that a thousand calls at once do not time each other out.
    """
    loop, finished = asyncio.get_running_loop(), asyncio.Event()
    outcome: list[tuple[Any, Exception | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except Exception as error:
            outcome.append((None, error))
        except BaseException as error:  # such as SystemExit, which would end the event loop
            outcome.append((None, RuntimeError(f"the tool raised {type(error).__name__}")))
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(finished.set)

    async with _slots.setdefault(loop, asyncio.Semaphore(MAX_THREADS)):
        threading.Thread(target=run, name="tool", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(finished.wait(), timeout_s)
    if not outcome:
        raise TimeoutError
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def _described(error: Exception) -> str:
    """What an exception says; its type too, except for ValueError, which tools raise to speak to the policy."""
    try:
        return f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ fails
        return type(error).__name__


def malformed(problem: str) -> ToolResult:
    """The result shown for a call that could not be parsed."""
    return ToolResult("", {}, f"Error: {problem}.", ok=False)
