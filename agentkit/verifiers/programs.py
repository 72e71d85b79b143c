"""Answers as Python programs, tested in the sandbox without meeting what they are tested for.

The program runs in a sandbox, gets arguments or standard input, and sends back JSON values; they are compared
outside. So a program that exits early, prints a success marker, patches builtins, walks frames or returns
objects that claim to be equal to everything changes nothing but its own values. Leaves out tests written as
source (tasks/public turns those of data sets into values), functions that change their arguments in place,
and tasks with several right outputs: those bring a verifier of their own.
"""

import ast
import json
import math
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from typing import Any

from agentkit.records import Score, Unscored
from agentkit.rows import parse_json
from agentkit.sandbox import MAX_INPUT, MAX_OUTPUT, run_python
from agentkit.tools.calculator import PARSING

MAX_TESTS = 1_000
MEMORY_MB = 512
NOTHING = object()  # equal to no value
ROUNDING = 1e-12  # of a number that should be 0
REPORT = 48  # bytes of a report around its value
_HARNESS = Path(__file__).with_name("isolated").joinpath("harness.py").read_text(encoding="utf-8")
_FENCE = re.compile(r"(?P<before>(?:[^`~]|(?!```|~~~).)*+)(?P<marks>`{3,}+|~{3,}+)[ \t]*(?P<tag>[^`]*)")
_PYTHON = re.compile(r"[{.\s]*i?py(?:thon)?[\d.]*(?![\w+#-])", re.IGNORECASE)
_LEADS_IN = re.compile(r"(?:.*[:：])?[ \t*+-]*+(?:\d+[.)])?[ \t*]*")  # words, or a list's mark
_DECIMAL = re.compile(r"[-+]?\d{1,5}\.\d{9,300}")  # of more digits than anybody asks for
_ANSWER = re.compile(r"\A\s*(?:final )?answer[:：]\s*\n", re.IGNORECASE)


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
        gold: a reference solution; not looked at.
        tests: any of ``[[arguments], expected]``, ``{"args": [..], "kwargs": {..}, "expected": ..}`` and
            ``{"stdin": "..", "stdout": ".."}``. ``args`` may be a Python literal as text, such as
            ``"[(1, 2)]"``, for what JSON cannot hold.
        entry: the expression that is called, such as "f" or "Solution().f".
        setup: source that comes before the program, such as imports.
        partial: give the share passed instead of all or nothing.
        timeout_s: processor seconds for all tests together. A test that was not reached counts as failed.
    """
    program = extract_code(answer, entry)
    if isinstance(program, Score):
        return program
    if not isinstance(tests, list | tuple) or not 0 < len(tests) <= MAX_TESTS:
        raise Unscored(f"a code task needs a list of 1 to {MAX_TESTS} tests")
    passed = _passed(program, tests, entry, setup, timeout_s)
    value = passed / len(tests) if partial else float(passed == len(tests))
    return Score(value, f"{passed} of {len(tests)} tests passed")


def extract_code(answer: str, entry: str = "") -> str | Score:
    """The program in an answer: its fenced block of code, or the whole text where it is Python or holds none.

    Of several blocks it is the last one that defines ``entry``, or, without entry, the only one tagged
    as Python. Blocks tagged as another language do not count.
    """
    text = _outdented(_ANSWER.sub("", re.sub("\r\n?", "\n", answer).removeprefix("\ufeff")))
    tagged = _blocks(text) if _fault(text) else {}
    blocks = list(tagged) or [text]
    if len(blocks) > 1:
        name = re.escape(re.split(r"\W", entry)[0])
        defines = re.compile(rf"^(?:(?:async\s+)?def|class)\s+{name}\b|^{name}\s*[:=]", re.MULTILINE)
        blocks = [block for block in blocks if (defines.search(block) if name else tagged[block])]
        if not blocks or not (name or len(blocks) == 1):
            return Score(0.0, "several blocks of code and not one that is the answer")
    fault = _fault(blocks[-1])
    return Score(0.0, f"not Python: {fault[:80]}") if fault else blocks[-1]


def is_code(answer: str, entry: str = "") -> bool:
    """Whether there is a program in an answer that does something: "Unknown", "42" or "Sum: 42" does not."""
    program = extract_code(answer, entry)
    if isinstance(program, Score):
        return False
    with suppress(RecursionError, MemoryError, ValueError, SystemError, SyntaxError), PARSING:
        acts = (node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.stmt | ast.Call))
        return not all(isinstance(node, ast.Expr | ast.AnnAssign) for node in acts)
    return True


def _blocks(text: str) -> dict[str, bool]:
    """The fenced blocks that are tagged as Python (True) or not at all (False)."""
    found: dict[str, bool] = {}
    lines = iter(text.split("\n"))
    for line in lines:
        opened = _FENCE.fullmatch(line)
        tagged = bool(opened and _PYTHON.match(opened["tag"]))
        if tagged or (opened and _LEADS_IN.fullmatch(opened["before"])):
            end = re.compile(rf"\s*{opened['marks']}{opened['marks'][0]}*\s*")
            inside = takewhile(lambda line, end=end: not end.fullmatch(line), lines)
            block = _outdented("".join(f"{line}\n" for line in inside))
            if tagged or not opened["tag"].strip():
                found[block] = tagged or found.get(block, False)
    return found


def _outdented(block: str) -> str:
    """A block without what stands before all of its lines, as in a list, and without a byte order mark."""
    block = block.removeprefix("\ufeff")
    return dedent(block) if block[:1] in (" ", "\t") else block


def _fault(source: str) -> str:
    """Why a text is no Python; "" where it is, or where only the sandbox can tell."""
    with suppress(RecursionError, MemoryError, ValueError, SystemError), PARSING:
        try:
            ast.parse(source)
        except SyntaxError as error:
            return str(error)
    return ""


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
    calls = [{"args": given, "kwargs": {}} for given in arguments]
    reports = run_calls(program, setup, entry, calls, timeout_s)
    return [report.get("value", NOTHING) for report in reports]


# ---- tests
def _passed(program: str, tests: Sequence[Any], entry: str, setup: str, timeout_s: float) -> int:
    """How many tests pass."""
    cases = [_case(test, entry) for test in tests]
    if (size := sum(REPORT + len(json.dumps(expected)) for _, expected in cases)) > MAX_OUTPUT:
        raise Unscored(f"the tests expect {size} bytes of results, and the sandbox gives back {MAX_OUTPUT}")
    reports = run_calls(program, setup, entry, [call for call, _ in cases], timeout_s)
    return sum(_fits(report, expected) for report, (_, expected) in zip(reports, cases, strict=True))


def _case(test: Any, entry: str) -> tuple[dict, dict]:
    """A test as the call it makes and the report that passes."""
    if isinstance(test, list) and len(test) == 2 and isinstance(test[0], list):
        test = {"args": test[0], "expected": test[1]}
    if isinstance(test, dict) and isinstance(test.get("stdin"), str) and isinstance(test.get("stdout"), str):
        return {"stdin": test["stdin"]}, {"stdout": test["stdout"]}
    args, kwargs = (test.get("args", []), test.get("kwargs", {})) if isinstance(test, dict) else (None, None)
    if not isinstance(args, list | str) or not isinstance(kwargs, dict) or "expected" not in test:
        kinds = "[[arguments], expected], or args and expected, or stdin and stdout"
        raise Unscored(f"a test is {str(test)[:80]!r}; give {kinds}")
    if not entry:
        raise Unscored("tests with arguments need entry, the function they call")
    try:
        call = json.loads(json.dumps({"args": args, "kwargs": kwargs}))
        return call, {"value": json.loads(json.dumps(test["expected"]))}
    except (TypeError, ValueError, RecursionError):
        raise Unscored(f"a test is {str(test)[:80]}, which JSON cannot hold") from None


def _fits(report: dict, expected: dict) -> bool:
    if "stdout" in expected:
        printed = report.get("stdout")
        return isinstance(printed, str) and _same_print(printed, expected["stdout"])
    return "value" in report and same(report["value"], expected["value"])


def _same_print(printed: str, expected: str) -> bool:
    """Whether the lines are the same, but for spaces behind them; long decimals as in ``same``."""
    lines, wanted = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (printed, expected))
    words, golds = (" \n ".join(each).split(" ") for each in (lines, wanted))
    return len(words) == len(golds) and all(map(_same_word, words, golds))


def _same_word(word: str, gold: str) -> bool:
    is_close = _DECIMAL.fullmatch(word) and _DECIMAL.fullmatch(gold)
    return word == gold or bool(is_close and math.isclose(float(word), float(gold), rel_tol=1e-9))


def same(value: Any, gold: Any) -> bool:
    """Equal as JSON values: whole numbers exactly, others within 1e-9 of theirs, NaN never, true is not 1."""
    if isinstance(gold, list):
        return isinstance(value, list) and len(value) == len(gold) and all(map(same, value, gold))
    if isinstance(gold, dict):
        return (
            isinstance(value, dict)
            and value.keys() == gold.keys()
            and all(same(value[key], gold[key]) for key in gold)
        )
    if isinstance(gold, bool | str | None) or isinstance(value, bool):
        return type(value) is type(gold) and value == gold
    if isinstance(gold, int) or not isinstance(value, int | float):
        return value == gold
    with suppress(OverflowError):  # a whole number larger than any other
        return math.isclose(value, gold, rel_tol=1e-9, abs_tol=0 if gold else ROUNDING)
    return False


# ---- running
def run_calls(program: str, setup: str, entry: str, calls: Sequence[dict], timeout_s: float) -> list[dict]:
    """Run calls in one sandbox: for each {"value": ..}, {"stdout": text}, or {} where it failed."""
    reports: list[dict] = [{} for _ in calls]
    for number, message in in_sandbox("run", (setup, program, entry, list(calls)), timeout_s):
        if isinstance(number, int) and 0 <= number < len(reports) and isinstance(message, dict):
            reports[number] = message
    return reports


def in_sandbox(function: str, arguments: tuple, timeout_s: float) -> list[tuple[Any, Any]]:
    """Call a function of the harness in a fresh sandbox; its reports, as (number, message) pairs."""
    marker, given = f"@{secrets.token_hex(8)} ", json.dumps(arguments)
    if len(given) > MAX_INPUT:
        raise Unscored(f"the tests come to {len(given)} bytes; {MAX_INPUT} is the limit")
    source = f"{_HARNESS}\n{function}({marker!r}, *json.load(sys.stdin))\n"
    result = run_python(source, timeout_s=timeout_s, memory_mb=MEMORY_MB, stdin=given)
    if result.status == "refused":
        raise Unscored(f"the sandbox refused: {result.stderr.strip()[:200]}")
    reports = []
    for line in result.stdout.splitlines():
        if line.startswith(marker):
            with suppress(ValueError, TypeError):
                number, message = parse_json(line.removeprefix(marker))
                reports.append((number, message))
    return reports
