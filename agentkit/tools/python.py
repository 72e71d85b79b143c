"""The code tool: a program in the sandbox, its output as the observation.

Every call is a fresh process. Leaves out: what a program defines and the files it writes; they go with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentkit.sandbox import run_python

MAX_SHOWN = 3_000  # characters of output
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
    printed, errors = _cut(result.stdout.strip("\n")), result.stderr.strip("\n")
    if result.status == "ok":
        return "\n".join(filter(None, (printed, _cut(errors)))) or "(no output; use print)", result.tier
    why = _FAILURES[result.status].format(timeout_s)
    end = f"[cut] {errors[-MAX_SHOWN:]}" if len(errors) > MAX_SHOWN else errors
    raise ValueError("\n".join(filter(None, (why, printed, end))))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} [cut]"
