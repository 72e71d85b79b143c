"""Answers as Python programs, tested in the sandbox without meeting what they are tested for.

The program runs in one sandbox, gets arguments or standard input, and sends back plain values; they are
compared outside. Tests written as source run in another sandbox: first around the reference solution, to
record which calls they make, then with those calls answered by what the program under test gave. So a program
that exits early, prints a success marker, patches builtins, walks frames or returns objects that claim to be
equal to everything changes nothing but its own values. Leaves out: functions that change their arguments in
place, and tests that look at more than what a call returns.
"""

from __future__ import annotations

import ast
import json
import math
import re
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentkit.records import Score, Unscored
from agentkit.runs.files import parse_json
from agentkit.sandbox import run_python
from agentkit.verifiers.isolated.harness import pack

MAX_TESTS = 1_000
MEMORY_MB = 512
# of a time limit; where an empty program takes longer, a time-out says nothing about the program tested
BUSY_SHARE = 0.25
RECORD_S = 10.0  # for a reference solution and its tests, once a task
NOTHING = object()  # equal to no value
_HARNESS = Path(__file__).with_name("isolated").joinpath("harness.py").read_text(encoding="utf-8")
_BLOCK = re.compile(r"```[ \t]*(?:[Pp]y(?:thon)?3?)?[ \t]*\n(.*?)```", re.DOTALL)
_ANSWER = re.compile(r"\A\s*(?:final )?answer[:：]\s*\n", re.IGNORECASE)
_parsing = threading.Lock()  # CPython 3.11 counts the parser's recursion depth for all threads together


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
        answer: a program, or text with one fenced block of code.
        gold: a reference solution, for tests written as source; it never meets the tested program.
        tests: any of ``[[arguments], expected]``, ``{"args": [..], "kwargs": {..}, "expected": ..}``,
            ``{"stdin": "..", "stdout": ".."}``, or source such as ``"assert f(1) == 2"``.
        entry: the expression that is called, such as "f" or "Solution().f"; ``candidate`` in source tests.
        setup: source that comes before the program and the source tests, such as imports.
        partial: give the share passed instead of all or nothing.
        timeout_s: wall clock for all tests together, seconds; a test that was not reached counts as failed.
    """
    program = extract_code(answer, entry)
    if isinstance(program, Score):
        return program
    if not isinstance(tests, list | tuple) or not 0 < len(tests) <= MAX_TESTS:
        raise Unscored(f"a code task needs a list of 1 to {MAX_TESTS} tests")
    if all(isinstance(test, str) for test in tests):
        passed = _passed_source(program, gold, tuple(tests), entry, setup, timeout_s)
    else:
        passed = _passed_values(program, tests, entry, setup, timeout_s)
    value = passed / len(tests) if partial else float(passed == len(tests))
    return Score(value, f"{passed} of {len(tests)} tests passed")


def extract_code(answer: str, entry: str = "") -> str | Score:
    """The program in an answer: its fenced block, the only one that defines ``entry``, or the whole text."""
    blocks = list(dict.fromkeys(_BLOCK.findall(answer))) or [_ANSWER.sub("", answer)]
    if len(blocks) > 1:
        name = re.escape(re.split(r"\W", entry)[0])
        defines = re.compile(rf"^(?:def|class)\s+{name}\b|^{name}\s*=", re.MULTILINE)
        blocks = [block for block in blocks if defines.search(block)]
        if len(blocks) != 1:
            return Score(0.0, "several blocks of code and not one that is the answer")
    with suppress(RecursionError, MemoryError, ValueError, SystemError), _parsing:  # the sandbox will tell
        try:
            ast.parse(blocks[0])
        except SyntaxError as error:
            return Score(0.0, f"not Python: {str(error)[:80]}")
    return blocks[0]


def returned(
    answer: str, arguments: Sequence[list], *, entry: str, setup: str = "", timeout_s: float = 1.0
) -> list[Any]:
    """What the program in an answer returns for each list of arguments, as JSON values.

    ``NOTHING`` where a call failed, or was not reached in ``timeout_s``, which is for all together. Raises
    Unscored.
    """
    program = extract_code(answer, entry)
    if isinstance(program, Score):
        return [NOTHING] * len(arguments)
    calls = [{"args": pack(given), "kwargs": pack({})} for given in arguments]
    reports = run_calls(program, setup, entry, calls, timeout_s)
    return [_plain(report["value"]) if "value" in report else NOTHING for report in reports]


# ---- tests with values
def _passed_values(program: str, tests: Sequence[Any], entry: str, setup: str, timeout_s: float) -> int:
    """How many tests pass whose expected values are known."""
    cases = [_case(test, entry) for test in tests]
    reports = run_calls(program, setup, entry, [call for call, _ in cases], timeout_s)
    return sum(_fits(report, expected) for report, (_, expected) in zip(reports, cases, strict=True))


def _case(test: Any, entry: str) -> tuple[dict, Any]:
    """A test as the call it makes and the report that passes."""
    if isinstance(test, list) and len(test) == 2 and isinstance(test[0], list):
        test = {"args": test[0], "expected": test[1]}
    if isinstance(test, dict) and isinstance(test.get("stdin"), str) and isinstance(test.get("stdout"), str):
        return {"stdin": test["stdin"]}, {"stdout": test["stdout"]}
    if not isinstance(test, dict) or "expected" not in test or not isinstance(test.get("args", []), list):
        kinds = "[[arguments], expected], stdin and stdout, or only source"
        raise Unscored(f"a test is {str(test)[:80]!r}; give {kinds}")
    if not entry:
        raise Unscored("tests with arguments need entry, the function they call")
    kwargs = test.get("kwargs", {})
    if not isinstance(kwargs, dict):
        raise Unscored("kwargs of a test must be an object")
    return {"args": pack(test.get("args", [])), "kwargs": pack(kwargs)}, {"value": test["expected"]}


def _fits(report: dict, expected: dict) -> bool:
    if "stdout" in expected:
        return "stdout" in report and _lines(report["stdout"]) == _lines(expected["stdout"])
    return "value" in report and _same(_plain(report["value"]), expected["value"])


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same(value: Any, gold: Any) -> bool:
    """Equal as JSON values: numbers within 1e-9, NaN never, true is not 1."""
    if isinstance(gold, bool | str | None) or isinstance(value, bool):
        return type(value) is type(gold) and value == gold
    if isinstance(gold, int) and isinstance(value, int):
        return value == gold
    if isinstance(gold, float | int):
        try:
            return isinstance(value, float | int) and math.isclose(value, gold, rel_tol=1e-9, abs_tol=1e-12)
        except OverflowError:
            return False
    if isinstance(gold, list):
        return isinstance(value, list) and len(value) == len(gold) and all(map(_same, value, gold))
    if not isinstance(value, dict) or value.keys() != gold.keys():
        return False
    return all(_same(value[key], gold[key]) for key in gold)


def _plain(packed: Any) -> Any:
    """A packed value as JSON would hold it: tuples as lists, keys as text; NOTHING for any other value."""
    with suppress(Exception):  # a forged report
        match packed:
            case ["l" | "t", content]:
                return [_plain(item) for item in content]
            case ["d", content]:
                return {_key(_plain(key)): _plain(value) for key, value in content}
            case ["i", content]:
                return int(content, 16)
            case ["f", content]:
                return float.fromhex(content)
            case ["v", None | bool() | str() as content]:
                return content
    return NOTHING


def _key(value: Any) -> Any:
    """A dictionary's key as JSON writes it."""
    if not isinstance(value, int | float | str | None):
        return NOTHING
    return next(iter(json.loads(json.dumps({value: 0}))))


# ---- tests written as source
def _passed_source(
    program: str, gold: str, tests: tuple[str, ...], entry: str, setup: str, timeout_s: float
) -> int:
    """How many tests pass when their calls are answered by what the program under test gave."""
    calls = _recorded(tests, entry, setup, gold)
    deadline = time.monotonic() + timeout_s
    reports = run_calls(program, setup, entry, calls, timeout_s)
    if not any(reports):
        return 0
    left = max(timeout_s / 2, deadline - time.monotonic())
    replayed = _in_sandbox("replay", (setup, entry, tests, calls, reports), left)
    return len({number for number, message in replayed if message == "passed"})


@lru_cache(maxsize=4096)
def _recorded(tests: tuple[str, ...], entry: str, setup: str, gold: str) -> tuple[dict, ...]:
    """The calls that tests make on the reference solution, each with the number of its test."""
    if not entry or not gold.strip():
        raise Unscored("tests written as source need entry and a reference solution as the gold answer")
    reference = extract_code(gold, entry)
    if isinstance(reference, Score):
        raise Unscored(f"the reference solution is {reference.why}")
    recorded = _in_sandbox("record", (setup, reference, entry, tests), RECORD_S)
    passed = {number for number, message in recorded if message == "passed"}
    calls = tuple(message for _, message in recorded if isinstance(message, dict))
    if len(passed) < len(tests) or not calls:
        outcome = f"{len(passed)} of its {len(tests)} tests in {len(calls)} calls"
        raise Unscored(f"the reference solution passes {outcome}")
    return calls


# ---- running
def run_calls(program: str, setup: str, entry: str, calls: Sequence[dict], timeout_s: float) -> list[dict]:
    """Run calls in one sandbox: for each {"value": packed}, {"stdout": text}, or {} where it failed."""
    reports: list[dict] = [{} for _ in calls]
    for number, message in _in_sandbox("run", (setup, program, entry, list(calls)), timeout_s):
        if isinstance(number, int) and 0 <= number < len(reports) and isinstance(message, dict):
            reports[number] = message
    return reports


def _in_sandbox(function: str, arguments: tuple, timeout_s: float) -> list[tuple[Any, Any]]:
    """Call a function of the harness in a fresh sandbox; its reports, as (number, message) pairs."""
    marker = f"@{secrets.token_hex(8)} "
    source = f"{_HARNESS}\n{function}({marker!r}, *json.loads({json.dumps(arguments)!r}))\n"
    result = run_python(source, timeout_s=timeout_s, memory_mb=MEMORY_MB)
    if result.status == "refused":
        raise Unscored(f"the sandbox refused: {result.stderr.strip()[:200]}")
    if result.status == "timeout":
        seconds = run_python("pass", timeout_s=timeout_s).seconds
        if seconds > timeout_s * BUSY_SHARE:
            raise Unscored(f"the machine is too busy: {timeout_s:g} s were not enough")
    reports = []
    for line in result.stdout.splitlines():
        if line.startswith(marker):
            with suppress(ValueError, TypeError):
                number, message = parse_json(line.removeprefix(marker))
                reports.append((number, message))
    return reports
