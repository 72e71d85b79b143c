"""The environments that ship: classes in TRL's ``environment_factory`` form.

``reset(**row)``, public methods are tools, optional ``get_reward``. Any such class from elsewhere runs here,
and ours run in stock TRL. Leaves out how tools are declared and called (runtime).
"""

from functools import cache
from typing import Any

from agentkit.sandbox import AT_ONCE
from agentkit.tools.calculator import calculate
from agentkit.tools.corpus import Corpus
from agentkit.tools.files import Workspace
from agentkit.tools.python import run_program, with_last_shown
from agentkit.tools.runtime import tool
from agentkit.tools.search import Backend, Passages, search_passages

SYSTEM_PROMPT = (
    "Answer the question with the tools. Look up every fact with search, compute with calculator, "
    'and end with a line "Answer: ...".'
)


def _search_version(environment: Any) -> str | None:
    """What a search's answer depends on; None where the backend does not say."""
    backend = environment._backend
    version = getattr(backend, "version", None)
    return (
        version and f"{type(backend).__module__}.{type(backend).__qualname__} {version} {environment._top_k}"
    )


class Stateless:
    """An environment in which no call leaves anything behind."""

    def reset(self, **row: Any) -> None:
        """Nothing to reset."""


class _Calculates(Stateless):
    """The calculator, for the environments that have one."""

    @tool(pure=True)
    def calculator(self, expression: str) -> str:
        """Compute arithmetic.

        Args:
            expression: The arithmetic.
        """
        return calculate(expression)


class CalculatorEnvironment(_Calculates):
    """A calculator and nothing else, for problems that state all their facts, such as GSM8K's."""

    system_prompt = 'Solve the problem, compute with calculator, and end with a line "Answer: ...".'


_shipped = cache(Corpus)  # shared by a process's environments: each connection holds an open file


class SearchEnvironment(Stateless):
    """Search over the embedded corpus, or another backend."""

    def __init__(self, corpus: Corpus | None = None, top_k: int = 3, *, backend: Backend | None = None):
        self._corpus = _shipped() if corpus is None else corpus
        self._backend = self._corpus if backend is None else backend
        self._top_k = top_k

    @tool(pure=True, version=_search_version)
    def search(self, query: str) -> str:
        """Search facts.

        Args:
            query: What to look up.
        """
        return search_passages(self._backend, query, self._top_k)


class CorpusEnvironment(_Calculates, SearchEnvironment):
    """Search over the embedded corpus and a calculator."""


class PassagesEnvironment:
    """Search over the passages that come with the task, as in HotpotQA and 2WikiMultiHopQA.

    Args:
        top_k: passages of a search.
    """

    system_prompt = 'Look up every fact with search, and end with a line "Answer: ...".'

    def __init__(self, top_k: int = 3):
        self._top_k, self._passages = top_k, Passages()

    def reset(self, passages: Any = None, **row: Any) -> None:
        """The task's passages: texts, or objects with a text and a title; others raise ValueError."""
        self._passages = Passages(passages)

    @tool(pure=True, version=lambda environment: None)  # quicker searched than looked up
    def search(self, query: str) -> str:
        """Search the passages.

        Args:
            query: What to look up.
        """
        return search_passages(self._passages, query, self._top_k)


class CodeEnvironment(Stateless):
    """Programs in the sandbox, each in a fresh process."""

    system_prompt = 'Write the code, test it with python, and end with a line "Answer: ...".'

    @tool(timeout_s=20, max_concurrent=AT_ONCE)  # 5 processor seconds, three times that on the clock
    def python(self, code: str) -> str:
        """Run Python.

        Args:
            code: The program.
        """
        return run_program(code)


class InterpreterEnvironment(Stateless):
    """Open-AgentRL's code interpreter (arXiv 2510.11701): 30 s and 2,048 MB for a call."""

    system_prompt = 'Solve the problem, run code with code_interpreter, and end with a line "Answer: ...".'

    @tool(timeout_s=100, max_concurrent=AT_ONCE)  # 30 processor seconds, three times that on the clock
    def code_interpreter(self, code: str) -> str:
        """Run Python. It shows what is printed and the value of a last expression.

        Args:
            code: The program.
        """
        return run_program(with_last_shown(code), timeout_s=30.0, memory_mb=2048)


class WorkbenchEnvironment(CorpusEnvironment):
    """Every tool at once: search over any backend, calculator, Python and files.

    Programs see the workspace's files.

    Args:
        corpus: what search reads where no backend is given; by default the shipped one.
        top_k: passages of a search.
        backend: what search asks instead, such as a RetrievalServer.
    """

    def __init__(self, corpus: Corpus | None = None, top_k: int = 3, *, backend: Backend | None = None):
        super().__init__(corpus, top_k, backend=backend)
        self._workspace = Workspace()

    def reset(self, **row: Any) -> None:
        """An empty workspace."""
        self._workspace = Workspace()

    @tool(timeout_s=20, max_concurrent=AT_ONCE)  # 5 processor seconds, three times that on the clock
    def python(self, code: str) -> str:
        """Run Python.

        Args:
            code: The program.
        """
        return run_program(code, files=self._workspace.files)

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
