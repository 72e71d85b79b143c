"""Answers as Python programs, tested in the sandbox without the tested code ever meeting what it is tested
for.

The program runs in one sandbox, gets arguments or standard input, and sends back plain values; they are
compared outside. Tests
written as source run in another sandbox: first around the reference solution, to record which calls they
make, then with those calls answered by what the program under test gave. So a program that exits early,
prints a success marker, patches builtins, walks frames or returns objects that claim to be equal to
everything changes nothing but its own values.
Leaves out: functions that change their arguments in place, and tests that look at more than what a call
returns.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import secrets
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentkit.records import Score
from agentkit.sandbox import run_python
from agentkit.verifiers.isolated.harness import pack

MAX_TESTS = 1_000
MEMORY_MB = 512
# of a time limit; where an empty program takes longer, a time-out says nothing about the program tested
BUSY_SHARE = 0.25
RECORD_S = 10.0  # for a reference solution and its tests, once a task
_HARNESS = Path(__file__).with_name("isolated").joinpath("harness.py").read_text(encoding="utf-8")
_BLOCK = re.compile(r"```[ \t]*(?:[Pp]y(?:thon)?3?)?[ \t]*\n(.*?)```", re.DOTALL)
_parsing = threading.Lock()  # CPython 3.11 counts the parser's recursion depth for all threads together


class TestsError(ValueError):
    """The tests themselves are of no use: the task's author must mend them. The message says why."""


def code(
    answer: str,
    gold: str,
    *,
    tests: Sequence[Any] = (),
    entry: str = "",
    setup: str = "",
    partial: bool = False,
    timeout_s: float = 1.8,
) -> Score:
    """The share of tests a program passes, or 1 for all and 0 otherwise.

    Args:
        answer: the policy's answer: a program, or text with one fenced block of code.
        gold: a reference solution. Needed for tests written as source; it never enters the tested program's
            sandbox.
        tests: any of ``[[arguments], expected]``, ``{"args": [..], "kwargs": {..}, "expected": ..}``,
            ``{"stdin": "..", "stdout": ".."}``, or source such as ``"assert f(1) == 2"``.
        entry: the expression that is called, such as "f" or "Solution().f"; in source tests it is also named
            ``candidate``.
        setup: source that comes before the program and the source tests, such as imports.
        partial: give the share passed instead of all or nothing.
        timeout_s: wall clock for all tests together, seconds; a test that was not reached counts as failed.
    """
    program = extract_code(answer, entry)
    if isinstance(program, Score):
        return program
    try:
        if not isinstance(tests, list | tuple) or not 0 < len(tests) <= MAX_TESTS:
            raise TestsError(f"a code task needs a list of 1 to {MAX_TESTS} tests")
        if all(isinstance(test, str) for test in tests):
            calls = _recorded(tuple(tests), entry, setup, gold)
            deadline = time.monotonic() + timeout_s
            found = run_calls(program, setup, entry, calls, timeout_s)
            passed = _replay(
                tests, entry, setup, calls, found, max(timeout_s / 2, deadline - time.monotonic())
            )
        else:
            cases = [_case(test, entry) for test in tests]
            found = run_calls(program, setup, entry, [call for call, _ in cases], timeout_s)
            passed = sum(_fits(f, wanted) for f, (_, wanted) in zip(found, cases, strict=True))
    except TestsError as error:
        return Score(None, str(error))
    except _Unscored as error:
        return Score(None, str(error))
    value = passed / len(tests) if partial else float(passed == len(tests))
    return Score(value, f"{passed} of {len(tests)} tests passed")


def extract_code(answer: str, entry: str = "") -> str | Score:
    """The one program in an answer: its fenced block, the only block that defines ``entry``, or the whole
    text.
    """
    blocks = list(dict.fromkeys(_BLOCK.findall(answer))) or [
        re.sub(r"\A\s*(?:final )?answer[:：]\s*\n", "", answer, flags=re.I)
    ]
    if len(blocks) > 1:
        name = re.escape(re.split(r"\W", entry)[0])
        blocks = [b for b in blocks if re.search(rf"^(?:def|class)\s+{name}\b|^{name}\s*=", b, re.MULTILINE)]
        if len(blocks) != 1:
            return Score(0.0, "several blocks of code and not one that is the answer")
    with (
        contextlib.suppress(RecursionError, MemoryError, ValueError, SystemError),
        _parsing,
    ):  # the sandbox will tell
        try:
            ast.parse(blocks[0])
        except SyntaxError as error:
            return Score(0.0, f"not Python: {str(error)[:80]}")
    return blocks[0]


def returned(
    answer: str, arguments: Sequence[list], *, entry: str, setup: str = "", timeout_s: float = 1.0
) -> list[Any]:
    """What the program in an answer returns for each list of arguments, as JSON values; ``NOTHING`` where it
    failed.

    Args:
        answer: a program, or text with one fenced block of code.
        arguments: those of each call.
        entry: the expression that is called.
        setup: source that comes before the program.
        timeout_s: wall clock for all calls together, seconds; a call that was not reached has failed.

    Raises:
        RuntimeError: there is no sandbox here, or no time for it: nothing is known about the program.
    """
    program = extract_code(answer, entry)
    if isinstance(program, Score):
        return [NOTHING] * len(arguments)
    calls = [{"args": pack(given), "kwargs": pack({})} for given in arguments]
    found = run_calls(program, setup, entry, calls, timeout_s)
    return [_plain(f["value"]) if "value" in f else NOTHING for f in found]


# ---- what is called and how results are judged
# -----------------------------------------------------------------------
class _Unscored(RuntimeError):
    """There is no sandbox here, or no time for it: nothing is known about the program."""


def _case(test: Any, entry: str) -> tuple[dict, Any]:
    if isinstance(test, list) and len(test) == 2 and isinstance(test[0], list):
        test = {"args": test[0], "expected": test[1]}
    if isinstance(test, dict) and isinstance(test.get("stdin"), str) and isinstance(test.get("stdout"), str):
        return {"stdin": test["stdin"]}, {"stdout": test["stdout"]}
    if not isinstance(test, dict) or "expected" not in test or not isinstance(test.get("args", []), list):
        raise TestsError(
            f"a test is {str(test)[:80]!r}; give [[arguments], expected], stdin and stdout, or only source"
        )
    if not entry:
        raise TestsError("tests with arguments need entry, the function they call")
    kwargs = test.get("kwargs", {})
    if not isinstance(kwargs, dict):
        raise TestsError("kwargs of a test must be an object")
    return {"args": pack(test.get("args", [])), "kwargs": pack(kwargs)}, {"value": test["expected"]}


def _fits(found: dict, wanted: dict) -> bool:
    if "stdout" in wanted:
        lines = [
            [line.rstrip() for line in text.rstrip().splitlines()]
            for text in (found.get("stdout", ""), wanted["stdout"])
        ]
        return "stdout" in found and lines[0] == lines[1]
    return "value" in found and _same(_plain(found["value"]), wanted["value"])


def _same(found: Any, wanted: Any) -> bool:
    """Equal as JSON values: numbers within 1e-9, NaN never, true and 1 apart."""
    if isinstance(wanted, bool | str | None) or isinstance(found, bool):
        return type(found) is type(wanted) and found == wanted
    if isinstance(wanted, float | int):
        if not isinstance(found, float | int):
            return False
        if isinstance(wanted, int) and isinstance(found, int):
            return found == wanted
        try:
            return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12)
        except OverflowError:
            return False
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_same, found, wanted))
    return (
        isinstance(found, dict)
        and found.keys() == wanted.keys()
        and all(_same(found[k], wanted[k]) for k in wanted)
    )


def _plain(packed: Any) -> Any:
    """A packed value as JSON would hold it: tuples as lists, keys as text. What JSON does not have is equal
    to nothing.
    """
    try:
        kind, content = packed
        if kind in ("l", "t"):
            return [_plain(item) for item in content]
        if kind == "d":
            return {_key(_plain(k)): _plain(v) for k, v in content}
        if kind == "v":
            return content if content is None or isinstance(content, bool | str) else NOTHING
        return int(content, 16) if kind == "i" else float.fromhex(content) if kind == "f" else NOTHING
    except Exception:  # a forged report
        return NOTHING


def _key(value: Any) -> Any:
    """A dictionary's key as JSON writes it."""
    return (
        next(iter(json.loads(json.dumps({value: 0}))))
        if isinstance(value, int | float | str | None)
        else NOTHING
    )


NOTHING = object()  # equal to no value


# ---- running
# ---------------------------------------------------------------------------------------------------------
def run_calls(program: str, setup: str, entry: str, calls: Sequence[dict], timeout_s: float) -> list[dict]:
    """Run a program's calls in one sandbox: for each {"value": packed}, {"stdout": text} or {} where it
    failed.
    """
    found: list[dict] = [{} for _ in calls]
    for number, message in _in_sandbox("run", (setup, program, entry, list(calls)), timeout_s):
        if isinstance(number, int) and 0 <= number < len(found) and isinstance(message, dict):
            found[number] = message
    return found


def _in_sandbox(function: str, arguments: tuple, timeout_s: float) -> list[tuple[Any, Any]]:
    """Call a function of the harness in a fresh sandbox; its reports, as (number, message) pairs."""
    marker = f"@{secrets.token_hex(8)} "
    source = f"{_HARNESS}\n{function}({marker!r}, *json.loads({json.dumps(arguments)!r}))\n"
    result = run_python(source, timeout_s=timeout_s, memory_mb=MEMORY_MB)
    if result.status == "refused":
        raise _Unscored(f"the sandbox refused: {result.stderr.strip()[:200]}")
    if (
        result.status == "timeout"
        and run_python("pass", timeout_s=timeout_s).seconds > timeout_s * BUSY_SHARE
    ):
        raise _Unscored(f"the machine is too busy: {timeout_s:g} s were not enough")
    pairs = []
    for line in result.stdout.splitlines():
        if line.startswith(marker):
            with contextlib.suppress(ValueError, RecursionError, TypeError):
                number, message = json.loads(line[len(marker) :])
                pairs.append((number, message))
    return pairs


@lru_cache(maxsize=4096)
def _recorded(tests: tuple[str, ...], entry: str, setup: str, gold: str) -> tuple[dict, ...]:
    """The calls that source tests make on the reference solution, each with the number of its test."""
    if not entry or not gold.strip():
        raise TestsError("tests written as source need entry and a reference solution as the gold answer")
    reference = extract_code(gold, entry)
    if isinstance(reference, Score):
        raise TestsError(f"the reference solution is {reference.why}")
    pairs = _in_sandbox("record", (setup, reference, entry, tests), RECORD_S)
    passed = {number for number, message in pairs if message == "passed"}
    calls = tuple(message for _, message in pairs if isinstance(message, dict))
    if len(passed) < len(tests) or not calls:
        raise TestsError(
            f"the reference solution passes {len(passed)} of its {len(tests)} tests in {len(calls)} calls"
        )
    return calls


def _replay(
    tests: Sequence[str], entry: str, setup: str, calls: Sequence[dict], found: list[dict], timeout_s: float
) -> int:
    """How many source tests pass when their calls are answered by what the program under test gave."""
    if not any(found):
        return 0
    pairs = _in_sandbox("replay", (setup, entry, tests, calls, found), timeout_s)
    return len({number for number, message in pairs if message == "passed"})
