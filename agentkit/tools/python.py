"""The code tool: a program in the sandbox, its output as the observation.

Every call is a fresh process. Leaves out: what a program defines and the files it writes; they go with it.
"""

import ast
from collections.abc import Mapping

from agentkit.sandbox import run_python
from agentkit.tools.calculator import PARSING

MAX_SHOWN = 3_000  # characters of output
_SHOW = b"(lambda value: value is None or __import__('builtins').print(value))(("
_FAILURES = {
    "error": "the program failed",
    "timeout": "the program ran longer than {:g} s and was stopped",
    "memory": "the program ran out of memory",
    "output": "the program printed too much and was stopped",
    "killed": "the program was stopped",
    "refused": "programs cannot be run here",
}


def run_program(
    code: str, *, timeout_s: float = 5.0, memory_mb: int = 512, files: Mapping[str, str | bytes] | None = None
) -> str:
    """What a program printed, run in the sandbox; ``files`` lie in its folder.

    Raises ValueError where it failed: what it printed, the end of its traceback and why it was stopped.
    """
    result = run_python(code, timeout_s=timeout_s, memory_mb=memory_mb, files=files)
    printed, errors = _cut(result.stdout.strip("\n")), result.stderr.strip("\n")
    if result.status == "ok":
        return "\n".join(filter(None, (printed, _cut(errors)))) or "(no output; use print)"
    why = _FAILURES[result.status].format(timeout_s)
    end = f"[cut] {errors[-MAX_SHOWN:]}" if len(errors) > MAX_SHOWN else errors
    raise ValueError("\n".join(filter(None, (why, printed, end))))


def with_last_shown(code: str) -> str:
    """The program, which prints the value of its last expression too, unless that is None.

    The syntax tree says whether its last statement is an expression and from where to where; all lines keep
    their numbers. What cannot be parsed is left for the sandbox to complain about.
    """
    try:
        with PARSING:
            statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return code
    if not statements or not isinstance(last := statements[-1], ast.Expr):
        return code
    lines = code.encode().splitlines(keepends=True)  # the tree counts bytes
    if len(lines) < last.end_lineno:  # lines ended by what only the tokenizer takes for an end
        return code
    end, start = (last.end_lineno - 1, last.end_col_offset), (last.lineno - 1, last.col_offset)
    for (line, column), text in ((end, b"))"), (start, _SHOW)):
        lines[line] = lines[line][:column] + text + lines[line][column:]
    return b"".join(lines).decode()


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} [cut]"
