"""Runs in the sandbox, around a program under test; sent there as source.

Values cross as JSON, one line a report, behind a marker that tells them from what is printed. Nothing here is
trusted by the caller: a program may forge a report, but a report is only a value. Leaves out everything but
the standard library, and the verdict.
"""

import ast
import atexit
import copy
import io
import json
import os
import random
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

PROGRAM = "main.py"  # where the program under test finds itself


def plain(value: Any) -> Any:
    """What JSON writes by itself, and numpy's arrays and numbers. Raises for other objects."""
    if type(value).__module__ == "numpy":
        return value.tolist()
    raise TypeError("not a plain value")


def reporter(marker: str) -> Callable[[int, Any], None]:
    """A function that writes numbered messages to standard output, whatever becomes of sys.stdout."""
    descriptor, write, dumps = os.dup(1), os.write, json.dumps

    def report(number: int, message: Any) -> None:
        data = f"\n{marker}{dumps([number, message], default=plain)}\n".encode()
        while data:
            data = data[write(descriptor, data) :]

    return report


def run(marker: str, setup: str, program: str, entry: str, calls: list[dict]) -> None:
    """Make calls on a program: of ``entry`` with arguments, or of all of it with standard input."""
    report, takes_stdin = reporter(marker), "stdin" in calls[0]
    compiled = _compiled(program)
    sys.stdout = io.StringIO()
    if not takes_stdin:
        scope = _scope("answer", setup)
        exec(compiled, scope)
    for number, call in enumerate(calls):
        try:
            if takes_stdin:
                report(number, {"stdout": _printed(setup, compiled, call["stdin"])})
            else:
                args = call["args"]  # as text, a Python literal: tuples, and keys that are no text
                args = ast.literal_eval(args) if isinstance(args, str) else args
                report(number, {"value": eval(entry, scope)(*args, **call["kwargs"])})
        except BaseException:  # SystemExit and KeyboardInterrupt are failures like any other
            continue


def _compiled(program: str) -> Any:
    """A program that is there as a file, too."""
    with open(PROGRAM, "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(program)
    return compile(program, os.path.abspath(PROGRAM), "exec")


def _scope(name: str, setup: str) -> dict[str, Any]:
    """The names of a new module after its set-up; it is where dataclasses and pickle look for it."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = os.path.abspath(PROGRAM)
    exec(setup, module.__dict__)
    return module.__dict__


def _printed(setup: str, program: Any, stdin: str) -> str:
    """What a program prints, run as a script to its very end, with files as its descriptors 0 and 1."""
    with open("stdin.txt", "w", encoding="utf-8") as file:
        file.write(stdin)
    _open_as(0, "stdin.txt", os.O_RDONLY)
    _open_as(1, "stdout.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    printed = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = printed
    scope = _scope("__main__", setup)
    try:
        exec(program, scope)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    finally:
        for thread in threading.enumerate()[1:]:
            if not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, printed):
            stream.flush()
        scope.clear()  # what it opened itself is written out
    with open("stdout.txt", encoding="utf-8", errors="replace") as file:
        return file.read()


def _open_as(number: int, name: str, flags: int) -> None:
    """Open a file as a descriptor, which the last program may have closed."""
    descriptor = os.open(name, flags)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)


def record(marker: str, setup: str, reference: str, entry: str, tests: list[str]) -> None:
    """Run tests written as source on the reference; report the calls they make, then "passed" for each.

    A call is reported as a test, or as null where the reference raises.
    """
    report = reporter(marker)
    sys.stdout = io.StringIO()
    solution = _scope("answer", setup)
    exec(_compiled(reference), solution)

    def candidate(*args: Any, **kwargs: Any) -> Any:
        call = {"args": repr(list(args)), "kwargs": copy.deepcopy(kwargs)}
        ast.literal_eval(call["args"])
        try:
            value = eval(entry, solution)(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        except Exception:
            report(-1, None)
            raise
        report(-1, call | {"expected": value})
        return copy.deepcopy(value)

    names: dict[str, Any] = {"candidate": candidate, entry: candidate}
    for number, test in enumerate(tests):
        random.seed(0)
        exec(compile(test, "test.py", "exec"), _scope("tests", setup) | names)
        report(number, "passed")
