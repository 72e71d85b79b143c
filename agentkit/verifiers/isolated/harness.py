"""Runs in the sandbox, around a program under test or around its tests; sent there as source.

Values cross as tagged JSON (``pack``, ``unpack``), one line a report, behind a marker that tells them from
what is printed. Nothing here is trusted by the caller: a program may forge a report, but a report is only a
value. Leaves out everything but the standard library, and the verdict.
"""

import collections
import io
import itertools
import json
import numbers
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

MAX_DEPTH = 60
MAX_ITEMS = 10_000  # of an iterator
# type, tag, how its values are written: by the type's own methods, since a subclass could lie
_WRITERS = (
    (int, "i", lambda value: int.__format__(value, "x")),
    (float, "f", float.hex),
    (str, "v", str.__str__),
    (complex, "c", lambda value: [float.hex(value.real), float.hex(value.imag)]),
    (bytes | bytearray, "y", lambda value: bytes(value).hex()),
    (numbers.Integral, "i", lambda value: format(int(value), "x")),  # numpy's, say
    (numbers.Real, "f", lambda value: float(value).hex()),
)
_READERS = {
    "v": lambda content: content,
    "i": lambda content: int(content, 16),
    "f": float.fromhex,
    "c": lambda content: complex(*map(float.fromhex, content)),
    "y": bytes.fromhex,
}
_GROUPS = {"l": list, "t": tuple, "S": set, "F": frozenset}


def pack(value: Any, depth: int = 0) -> list:
    """A plain value as tagged JSON. Raises on other objects."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if value is None or type(value) is bool:
        return ["v", value]
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
    compiled, scope = compile(program, "answer.py", "exec"), {"__name__": "answer"}
    sys.stdout = io.StringIO()
    if not takes_stdin:
        exec(setup, scope)
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


def _printed(setup: str, program: Any, stdin: str) -> str:
    """What a program prints, run as a script with this standard input, descriptor 0 included."""
    with open("stdin.txt", "w", encoding="utf-8") as file:
        file.write(stdin)
    descriptor = os.open("stdin.txt", os.O_RDONLY)
    if descriptor != 0:  # the last program may have closed it
        os.dup2(descriptor, 0)
        os.close(descriptor)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)
    sys.stdout = printed
    scope = {"__name__": "__main__"}
    exec(setup, scope)
    try:
        exec(program, scope)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    return printed.buffer.getvalue().decode("utf-8", "replace")


def record(marker: str, setup: str, reference: str, entry: str, tests: list[str]) -> None:
    """Run source tests on the reference; report every call they make, and "passed" for each that passes."""
    report, solution, state = reporter(marker), {"__name__": "answer"}, {"test": 0}
    sys.stdout = io.StringIO()
    exec(setup, solution)
    exec(compile(reference, "answer.py", "exec"), solution)

    def candidate(*args: Any, **kwargs: Any) -> Any:
        report(-1, {"test": state["test"], "args": pack(list(args)), "kwargs": pack(kwargs)})
        return eval(entry, solution)(*args, **kwargs)

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
        scope: dict[str, Any] = {"__name__": "tests"}
        try:
            exec(setup, scope)
            scope.update(names)
            exec(compile(test, "test.py", "exec"), scope)
        except BaseException:  # whatever a test raises, it has not passed
            continue
        report(number, "passed")
