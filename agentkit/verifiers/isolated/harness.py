"""Runs in the sandbox, around a program under test or around its tests; sent there as source.

Values cross as tagged JSON (``pack``, ``unpack``), one line a report, behind a marker that tells them from
what is printed. Nothing here is trusted by the caller: a program may forge a report, but a report is only a
value. Leaves out everything but the standard library, and the verdict.
"""

import atexit
import collections
import importlib
import io
import itertools
import json
import numbers
import os
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

MAX_DEPTH = 60
MAX_ITEMS = 10_000  # of an iterator
PROGRAM = "main.py"  # where the program under test finds itself
_EXACT = {"Decimal": "decimal", "Fraction": "fractions"}  # name and module, imported only where used
# type, tag, how its values are written: by the type's own methods, since a subclass could lie
_WRITERS = (
    (int, "i", lambda value: int.__format__(value, "x")),
    (float, "f", float.__repr__),
    (str, "v", str.__str__),
    (complex, "c", lambda value: [repr(value.real), repr(value.imag)]),
    (bytes | bytearray, "y", lambda value: bytes(value).hex()),
    (numbers.Integral, "i", lambda value: format(int(value), "x")),  # numpy's, say
    (numbers.Real, "f", lambda value: repr(float(value))),
)
_READERS = {
    "v": lambda content: content,
    "i": lambda content: int(content, 16),
    "f": float,
    "c": lambda content: complex(*map(float, content)),
    "x": lambda content: getattr(importlib.import_module(_EXACT[content[0]]), content[0])(content[1]),
    "y": bytes.fromhex,
}
_GROUPS = {"l": list, "t": tuple, "S": set, "F": frozenset}


def pack(value: Any, depth: int = 0) -> list:
    """A plain value as tagged JSON. Raises on other objects."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if type(value).__module__ == "numpy":  # scalars and arrays
        value = value.tolist()
    if value is None or type(value) is bool:
        return ["v", value]
    for name, module in _EXACT.items():
        if isinstance(value, getattr(sys.modules.get(module), name, ())):
            return ["x", [name, str(value)]]
    for kind, tag, write in _WRITERS:
        if issubclass(type(value), kind):
            return [tag, write(value)]
    for tag, group in _GROUPS.items():
        if issubclass(type(value), group):
            return [tag, [pack(item, depth + 1) for item in group.__iter__(value)]]
    if issubclass(type(value), dict):
        return ["d", [[pack(k, depth + 1), pack(v, depth + 1)] for k, v in dict.items(value)]]
    if isinstance(value, Iterator):
        return ["it", [pack(item, depth + 1) for item in itertools.islice(value, MAX_ITEMS)]]
    raise TypeError("not a plain value")


def unpack(packed: list) -> Any:
    """The value that ``pack`` was given."""
    tag, content = packed
    if tag in _READERS:
        return _READERS[tag](content)
    if tag == "d":
        return {unpack(key): unpack(value) for key, value in content}
    items = [unpack(item) for item in content]
    return iter(items) if tag == "it" else _GROUPS[tag](items)


def reporter(marker: str) -> Callable[[int, Any], None]:
    """A function that writes numbered messages to standard output, whatever becomes of sys.stdout."""
    descriptor, write, dumps = os.dup(1), os.write, json.dumps

    def report(number: int, message: Any) -> None:
        data = f"\n{marker}{dumps([number, message])}\n".encode()
        while data:
            data = data[write(descriptor, data) :]

    return report


def run(marker: str, setup: str, program: str, entry: str, calls: list[dict]) -> None:
    """Make calls on a program: of ``entry`` with packed arguments, or of all of it with standard input."""
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
                value = eval(entry, scope)(*unpack(call["args"]), **unpack(call["kwargs"]))
                report(number, {"value": pack(value)})
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
    """Run source tests on the reference; report every call they make, how long its result is, and "passed"
    for each that passes.

    Tests meet the reference as ``replay`` lets them meet a program: through values that were packed.
    """
    report, state = reporter(marker), {"test": 0}
    sys.stdout = io.StringIO()
    solution = _scope("answer", setup)
    exec(_compiled(reference), solution)

    def candidate(*args: Any, **kwargs: Any) -> Any:
        call = {"test": state["test"], "args": pack(list(args)), "kwargs": pack(kwargs)}
        report(-1, call)
        try:
            value = pack(eval(entry, solution)(*unpack(call["args"]), **unpack(call["kwargs"])))
        except Exception:
            raise KeyError("value") from None  # as where a program under test fails
        report(-1, len(json.dumps(value)))
        return unpack(value)

    _run_tests(report, setup, entry, tests, candidate, state)


def replay(
    marker: str, setup: str, entry: str, tests: list[str], calls: list[dict], reports: list[dict]
) -> None:
    """Run source tests, calls answered from the reports of ``run``; report "passed" for each that passes."""
    report, state = reporter(marker), {"test": 0}
    answers: dict[int, collections.deque] = collections.defaultdict(collections.deque)
    sys.stdout = io.StringIO()
    for call, answer in zip(calls, reports, strict=True):
        answers[call["test"]].append((call, answer))

    def candidate(*args: Any, **kwargs: Any) -> Any:
        call, answer = answers[state["test"]].popleft()
        if [pack(list(args)), pack(kwargs)] != [call["args"], call["kwargs"]]:
            raise AssertionError("not the call that was made on the reference")
        return unpack(answer["value"])

    _run_tests(report, setup, entry, tests, candidate, state)


def _run_tests(
    report: Callable, setup: str, entry: str, tests: list[str], candidate: Callable, state: dict[str, int]
) -> None:
    names: dict[str, Any] = {"candidate": candidate}
    if entry.isidentifier():
        names[entry] = candidate
    elif entry.startswith("Solution()."):
        method = staticmethod(candidate)
        names["Solution"] = type("Solution", (), {entry.removeprefix("Solution()."): method})
    for number, test in enumerate(tests):
        state["test"] = number
        random.seed(0)  # tests that draw at random make the same calls again
        try:
            scope = _scope("tests", setup)
            scope.update(names)
            exec(compile(test, "test.py", "exec"), scope)
        except BaseException:  # whatever a test raises, it has not passed
            continue
        report(number, "passed")
