"""Which task did a program solve? Hindsight's relabelling for family C and all code tasks tested by
arguments.

Leaves out sampling, ordering and imitating the relabelled tasks (training.hindsight).
"""

import ast
import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from agentkit.records import Task, Trajectory
from agentkit.verifiers.programs import NOTHING, extract_code, returned

MAX_PROGRAM = 2_000  # characters; a longer one is not relabelled
MAX_VALUE = 400  # characters of a value in a prompt
SHOWN = 2  # inputs with their results in a relabelled prompt, at most
TIMEOUT_S = 1.0  # for a program on all its inputs, as in arc25


def relabel_code(task: Task, trajectory: Trajectory) -> Task | None:
    """The task to write a function that gives what the trajectory's program gives on the inputs of this
    task's tests.

    None where there is no program, or it fails on some input, or gives the same for all of several: nothing
    is asked then. Last lines without effect on the results are dropped. The new task's ``meta`` holds
    ``outcome``, the results as JSON, and ``closeness``, the share that was right for the task really asked.
    """
    verifier = task.verifier
    tests = [test for test in verifier.get("tests", ()) if isinstance(test, list) and len(test) == 2]
    program = extract_code(trajectory.answer or "", verifier.get("entry", "f"))
    if (
        verifier.get("kind") != "code"
        or not tests
        or not isinstance(program, str)
        or len(program) > MAX_PROGRAM
    ):
        return None
    inputs = [test[0] for test in tests]
    running = {"entry": verifier["entry"], "setup": verifier.get("setup", ""), "timeout_s": TIMEOUT_S}
    try:
        values = returned(program, inputs, **running)
        if NOTHING in values or (len(values) > 1 and all(value == values[0] for value in values)):
            return None
        short = without_idle_lines(program, lambda code: returned(code, inputs, **running) == values)
        printed = f"(lambda *given: str({verifier['entry']}(*given)))"  # (1, 2), where JSON has [1, 2]
        prints = returned(short, inputs, **running | {"entry": printed})
    except RuntimeError as error:
        warnings.warn(f"a trajectory of {task.id} was not relabelled: {error}", stacklevel=2)
        return None
    new = verifier | {"tests": [list(pair) for pair in zip(inputs, values, strict=True)]}
    close = closeness(values, [test[1] for test in tests])
    try:
        return _asked(dataclasses.replace(task, verifier=new, answer=short), values, prints, close)
    except ValueError:  # an integer of more digits than Python writes
        return None


def _asked(task: Task, values: list[Any], prints: list[Any], close: float) -> Task | None:
    """The relabelled task; None where no input has a result that is short and prints as it is."""
    entry = task.verifier["entry"]
    calls = [f"{entry}({', '.join(map(repr, test[0]))})" for test in task.verifier["tests"]]
    shown = [
        (call, value, text)
        for call, value, text in zip(calls, values, prints, strict=True)
        if isinstance(text, str) and len(call) + len(repr(value)) <= MAX_VALUE and text == text.strip() != ""
    ]
    if not shown:
        return None
    call, _, text = shown[0]
    prompt = f"Write {entry}. " + " ".join(f"Example: {c} is {value!r}." for c, value, _ in shown[:SHOWN])
    outcome = json.dumps(values)
    code = f"{task.answer}\nprint({call})"
    tool = next(iter(task.tools), "python")
    plan = [{"tool": tool, "arguments": {"code": code}, "expect": text}]
    meta = {"plan": plan, "answer_if": {text: task.answer}, "outcome": outcome, "closeness": close}
    name = f"{task.id}-h{hashlib.sha256(outcome.encode()).hexdigest()[:8]}"
    return dataclasses.replace(task, id=name, prompt=prompt, meta=meta, tools=(tool,))


def without_idle_lines(program: str, same: Callable[[str], bool]) -> str:
    """The program without the last statements that change nothing ``same`` sees, such as its own trials.

    The code is parsed and never run here.
    """
    short = program
    try:
        tree = ast.parse(program)
        while len(tree.body) > 1:
            tree.body.pop()
            if not same(text := ast.unparse(tree)):
                break
            short = text
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # deeper than parser or printer go
        return program
    return short


def closeness(values: Sequence[Any], wanted: Sequence[Any]) -> float:
    """How near results are to those wanted: the share of equal ones, in [0, 1]."""
    return fmean(type(a) is type(b) and a == b for a, b in zip(values, wanted, strict=True))
