"""The code tool: a program in the sandbox, its output as the observation.

Stateless by default: every call is a fresh process. ``PythonSession`` keeps what earlier calls defined by
running them again before the new one, in order and with the same random seeds, so that a session needs no
living process, survives anything a call does, and gives the same result on every replay. Leaves out: files
that a program writes; they go with it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import replace

from agentkit.sandbox import Result, run_python

MAX_SHOWN = 3_000  # characters of output
MAX_CELLS = 50  # of one session


def run_program(
    code: str, *, timeout_s: float = 5.0, memory_mb: int = 512, files: Mapping[str, str | bytes] | None = None
) -> tuple[str, str]:
    """Run a program in the sandbox.

    Args:
        code: the program.
        timeout_s: wall clock, seconds.
        memory_mb: MiB on top of the interpreter's own.
        files: relative name -> content, put into the program's folder.

    Returns:
        What it printed, and the sandbox's tier.

    Raises:
        ValueError: it failed; the message holds what it printed, the end of its traceback and why it was
            stopped.
    """
    result = run_python(code, timeout_s=timeout_s, memory_mb=memory_mb, files=files)
    return _shown(result, timeout_s), result.tier


class PythonSession:
    """An interpreter that remembers the calls that went well; one a trajectory."""

    def __init__(self, *, timeout_s: float = 5.0, memory_mb: int = 512):
        self.timeout_s, self.memory_mb = timeout_s, memory_mb
        self.cells: list[str] = []

    def run(self, code: str, files: Mapping[str, str | bytes] | None = None) -> tuple[str, str]:
        """Run one cell after the earlier ones; what it defines stays when it succeeds. As ``run_program``
        otherwise.

        The time limit holds for the earlier cells and the new one together.
        """
        if len(self.cells) >= MAX_CELLS:
            raise ValueError(f"this session has run {MAX_CELLS} programs, which is its limit")
        end = secrets.token_hex(8)
        program = _REPLAY.format(earlier=json.dumps(self.cells), code=json.dumps(code), end=end)
        result = run_python(program, timeout_s=self.timeout_s, memory_mb=self.memory_mb, files=files)
        reached, said = result.stderr.endswith(f"{end}\n"), result.stderr.replace(f"{end}\n", "")
        shown = _shown(replace(result, stderr=said), self.timeout_s)
        if reached:  # a cell that ended the interpreter would end every later one too
            self.cells.append(code)
        return shown, result.tier


# JSON text of strings and lists is Python too: json.dumps escapes everything else
_REPLAY = """
def replay(earlier, code):
    import contextlib, io, linecache, random, sys, traceback
    random.seed(0)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(0)
    space = {{"__name__": "__main__", "__builtins__": __builtins__}}
    for cell in earlier:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.suppress(SystemExit):
                exec(compile(cell, "earlier.py", "exec"), space)
    linecache.cache["cell.py"] = (len(code), None, code.splitlines(True), "cell.py")
    try:
        with contextlib.suppress(SystemExit):
            exec(compile(code, "cell.py", "exec"), space)
    except MemoryError:
        raise
    except Exception as error:
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
        sys.exit(1)
    print("{end}", file=sys.__stderr__)
replay({earlier}, {code})
"""


def _shown(result: Result, timeout_s: float) -> str:
    """The observation of a program that succeeded. Raises ValueError with that of one that did not."""
    printed = _cut(result.stdout.strip("\n"))
    if result.status == "ok":
        return "\n".join(filter(None, (printed, _cut(result.stderr.strip("\n"))))) or "(no output; use print)"
    said = _cut(result.stderr.strip("\n"), tail=True)
    why = {
        "error": "the program failed",
        "timeout": f"the program ran longer than {timeout_s:g} s and was stopped",
        "memory": "the program ran out of memory",
        "output": "the program printed too much and was stopped",
        "killed": "the program was stopped",
        "refused": "programs cannot be run here",
    }[result.status]
    raise ValueError("\n".join(filter(None, (why, printed, said))))


def _cut(text: str, tail: bool = False) -> str:
    if len(text) <= MAX_SHOWN:
        return text
    return f"[cut] {text[-MAX_SHOWN:]}" if tail else f"{text[:MAX_SHOWN]} [cut]"
