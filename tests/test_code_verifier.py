"""The code verifier: what passes, what fails, and programs that try to pass without being right."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentkit import Task
from agentkit.sandbox import Result
from agentkit.sandbox.run import CORES
from agentkit.verifiers import answer_of, check, programs
from agentkit.verifiers.programs import extract_code

GOLD = "def f(x):\n    return x + 1"
CASES = [[[1], 2], [[5], 6], [[-3], -2]]


def value(answer: str, gold: str = GOLD, **options) -> float | None:
    return check("code", answer, gold, **({"tests": CASES, "entry": "f", "timeout_s": 5} | options)).value


# ---- ordinary programs
RIGHT = [
    GOLD, f"```python\n{GOLD}\n```", f"Here it is:\n```\n{GOLD}\n```\nDone.", "f = lambda x: x + 1", f"Answer:\n{GOLD}",
    "from __future__ import annotations\ndef f(x: Whatever) -> int: return x + 1", f"print('noise')\n{GOLD}\nprint(f(1))",
    f"```python\n{GOLD}\n```\nIt prints:\n```\nprint(f(1))\n```",
]  # fmt: skip


def test_right_programs_pass():
    assert [answer for answer in RIGHT if value(answer, timeout_s=10) != 1] == []


def test_share_passed_and_all_passed():
    half = "def f(x): return 2 if x == 1 else 0"
    assert value(half) == 0 and value(half, partial=True) == pytest.approx(1 / 3)


def test_methods_keywords_and_setup():
    method = "def add(self, x: List[int], y: int = 0) -> int:\n        return sum(x) + y"
    program = f"class Solution:\n    {method}"
    options = {"entry": "Solution().add", "setup": "from typing import *", "timeout_s": 10}
    assert value(program, tests=[{"args": [[1]], "kwargs": {"y": 2}, "expected": 3}], **options) == 1


GIVES = [
    ("{1: (x, 2), 'a': {}}", {"1": [1, 2], "a": {}}, 1), ("10**3000", 10**3000, 1), ("True", 1, 0), ("{1}", [1], 0),
    ("0", 6.6e-34, 0), ("1e-13", 6.6e-34, 0), ("6.6e-34 * (1 + 1e-12)", 6.6e-34, 1), ("[1.0, 0.0]", [1.0, 1e-20], 0),
    ("float(10**18)", 10**18 + 1, 0), ("10**18 + 1", 10**18 + 1, 1), ("2.0", 2, 1), ("2.0000000001", 2, 0), ("2", 2.0, 1),
    ("10**400", 1e300, 0), ("6.02214076e23 * (1 + 1e-15)", 6.02214076e23, 1), ("6.03e23", 6.02e23, 0),
    ("0.1 + 0.2 - 0.3", 0.0, 1), ("1e-9", 0.0, 0), ("1e-13", 0, 0), ("float('inf')", float("inf"), 1),
    ("1e308", float("inf"), 0), ("float('nan')", float("nan"), 0), ("True", 1.0, 0), ("1", True, 0), ("'2'", 2, 0),
    ("None", 0, 0), ("[]", 0, 0), ("(1, (2, 3))", [1, [2, 3]], 1), ("[1, 2]", [2, 1], 0), ("[1]", [1, 1], 0),
    ("{'a': 1}", {"a": 1, "b": 2}, 0), ("__import__('fractions').Fraction(1, 4)", 0.25, 0),
    ("__import__('numpy').float64(0.25)", 0.25, 1), ("__import__('numpy').bool_(True)", 1, 0),
    ("__import__('numpy').arange(3)", [0, 1, 2], 1), ("3 + 0j", 3, 0),
]  # fmt: skip


def test_values_are_compared_as_json_and_numbers_relative_to_what_is_expected():
    def judged(gives, expected):
        return value(f"def f(x): return {gives}", tests=[[[1], expected]], timeout_s=10)

    assert [row for row in GIVES if judged(*row[:2]) != row[2]] == []


# ---- fences
F, PLAIN = "```", f"{GOLD}\n"
LISTED = "\n".join(f"   {line}" for line in GOLD.split("\n"))
DOC = 'def f(x):\n    """Adds.\n\n    ```\n    >>> f(1)\n    ```\n    """\n    return x + 1\n'
FENCED = {
    "CRLF": f"Here:\n{F}python\n{PLAIN}{F}\nDone.".replace("\n", "\r\n"),
    "in a list": f"1. So:\n\n   {F}python\n{LISTED}\n   {F}\n2. Done.", "behind a list's mark": f"1. {F}py\n{LISTED}\n   {F}",
    "capitals": f"{F}PY\n{PLAIN}{F}", "version": f"{F}python3.11\n{PLAIN}{F}", "attributes": f'{F}python title="a.py"\n{PLAIN}{F}',
    "braces": f"{F}{{.python}}\n{PLAIN}{F}", "BOM inside": f"{F}python\n\ufeff{PLAIN}{F}", "BOM, no fence": f"\ufeff{GOLD}",
    "docstring, no fence": DOC, "docstring on an answer line": f"Answer:\n{DOC}", "marks in a text": f'{F}python\nX = "{F}"\n{PLAIN}{F}',
    "tildes": f"~~~python\n{PLAIN}~~~\nDone.", "four marks": f'````py\n"""\n{F}\n"""\n{PLAIN}````', "no end": f"{F}python\n{GOLD}",
    "behind words": f"Answer: {F}\n{PLAIN}{F}", "mentioned before": f"I use {F} fences.\n\n{F}python\n{PLAIN}{F}",
    "shell first": f"{F}bash\npip install x\n{F}\n{F}python\n{PLAIN}{F}", "output after": f"{F}python\n{PLAIN}{F}\nIt prints\n{F}\n2\n{F}",
    "use after": f"{F}py\n{PLAIN}{F}\nUse:\n{F}py\nprint(f(1))\n{F}", "use first": f"{F}python\nf(1)\n{F}\n{F}\n{PLAIN}{F}",
    "a draft first": f"{F}py\ndef f(x): return x\n{F}\nBetter:\n{F}py\n{PLAIN}{F}",
}  # fmt: skip
NO_SINGLE_PROGRAM = [
    f"{F}python\n{PLAIN}{F}\nor\n{F}python\ndef f(x): return x\n{F}", f"{F}c\n{PLAIN}{F}", f"{F}pytorch\n{PLAIN}{F}",
    f"~~~\n{PLAIN}~~~\n{F}\ndef f(x): return x\n{F}",
]  # fmt: skip


def test_right_code_is_read_however_it_is_fenced():
    assert [name for name, text in FENCED.items() if value(read(text)) != 1] == []
    assert [text for text in NO_SINGLE_PROGRAM if value(text) != 0] == []


def test_no_fences_take_long(thread_time):
    for text in ("`" * 20_000, "```\n" * 5_000, "```py\n(\n```\n" * 1_500, "```c\n" * 4_000 + "```", "a:" * 9_000 + "```",
                 "~~~" * 6_000, "```py\n" + "(\n" * 5_000 + "```\n" * 2_000):  # fmt: skip
        start = thread_time()
        extract_code(text, "f")
        assert thread_time() - start < 3


# ---- as under python main.py
SCRIPTS = [
    "print(int(input()) + 1)\nexit()", "print(int(input()) + 1)\nexit(None)\nprint(0)",
    "import sys\nprint(int(open(0).read()) + 1)\nsys.exit()",
    "import sys\nsys.stdout.buffer.write(b'%d' % (int(sys.stdin.read()) + 1))",
    "import os\nassert os.path.isabs(__file__) and open(__file__).read()\nprint(int(input()) + 1)",
    "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(int(input())).x + 1)",
    "import pickle\nclass A: y = 1\nprint(int(input()) + pickle.loads(pickle.dumps(A())).y)",
    "import threading\nthreading.Thread(target=lambda: print(int(input()) + 1)).start()",
    "import atexit\nx = int(input())\natexit.register(lambda: print(x + 1))", "import os\nos.write(1, b'%d' % (int(os.read(0, 99)) + 1))",
    "import sys\nsys.__stdout__.write(str(int(sys.__stdin__.read()) + 1))", "if __name__ == '__main__':\n    print(int(input()) + 1)",
    "import io, os, sys\nclass Fast(io.IOBase):\n    def __init__(s, f): s.fd, s.b = f.fileno(), []\n    def write(s, t): s.b.append(t)\n"
    "    def flush(s):\n        os.write(s.fd, ''.join(s.b).encode())\n        s.b = []\nsys.stdout = Fast(sys.stdout)\nprint(int(input()) + 1)",
    "import inspect\ndef f(x): return x + 1\nassert 'x + 1' in inspect.getsource(f)\nprint(f(int(input())))",
]  # fmt: skip


def test_a_script_finds_what_it_would_find_as_main():
    tests = [{"stdin": "4\n", "stdout": "5\n"}, {"stdin": "1", "stdout": "2"}]
    assert [p for p in SCRIPTS if value(p, tests=tests, entry="", timeout_s=10) != 1] == []
    for end in ("exit(1)", "quit('no')", "raise SystemExit(1)"):
        assert value(f"print(int(input()) + 1)\n{end}", tests=tests, entry="") == 0


PRINTED = {
    "1 0.3333333333 ": 1, "1 0.3333333333333333": 1, "1  0.3333333333": 0, "1\n0.3333333333": 0, "1 0.33333": 0,
    "1.0 0.3333333333": 0, "1 0.3333333343": 0, " 1 0.3333333333": 0, "1 0.3333333333\n\n": 1,
}  # fmt: skip


def test_what_is_printed_is_compared_as_text_but_for_long_decimals():
    options = {"tests": [{"stdin": "", "stdout": "1 0.3333333333\n"}], "entry": "", "timeout_s": 10}
    assert {text: value(f"print({text!r})", **options) for text in PRINTED} == PRINTED
    start = time.monotonic()
    assert value("print('x' + ' ' * 250_000 + 'x')", **options) == 0
    assert time.monotonic() - start < 60, "a pattern took minutes, in the trainer itself"


def test_results_that_the_sandbox_cannot_give_back_are_unscored_and_never_wrong():
    echo = "def f(n):\n    return 'x' * n"
    assert value(echo, tests=[[[200_000], "x" * 200_000]], entry="f", timeout_s=10) == 1
    assert value(echo, tests=[[[300_000], "x" * 300_000]], entry="f", timeout_s=10) is None


def test_what_one_test_printed_is_no_other_tests_output():
    tests = [{"stdin": str(n), "stdout": str(n + 1)} for n in range(4)]
    for fails in ("1 / 0", "exit(2)", "raise KeyboardInterrupt"):
        program = f"n = int(input())\nprint(n + 1)\nif n % 2 == 0:\n    {fails}"
        assert value(program, tests=tests, entry="", partial=True, timeout_s=10) == 0.5


# ---- cheats: every one of them is wrong
CHEATS = json.loads((Path(__file__).parent / "hostile" / "cheats.json").read_text(encoding="utf-8"))


def test_cheats_are_wrong():
    assert [name for name, cheat in CHEATS.items() if value(cheat, timeout_s=2) != 0] == []


FORGES = """
import gc, os, sys
report = next(o for o in gc.get_objects() if getattr(o, '__qualname__', '') == 'reporter.<locals>.report')
report({0})
"""
FORGED = [5, True, None, "x", [], {}, {"stdout": 5}, {"stdout": None}, {"stdout": []}, {"stdout": {}}, {"value": 5},
          {"value": None}, {"value": ["l", 5]}, {"value": ["d", [[["l", []], 1]]]}, {"value": ["x", ["os", "2"]]},
          {"value": {"l": 1}}, "passed", ["passed"], {"test": 0, "args": [], "kwargs": []}]  # fmt: skip


def test_a_forged_report_is_wrong_whatever_it_is():
    printed = [{"stdin": "1", "stdout": "2"}]
    right = FORGES.format("0, {'stdout': '2'}") + "os._exit(0)"
    assert value(right, tests=printed, entry="") == 1, "a forger does reach the reports"
    for message in FORGED:
        forged = FORGES.format(f"0, {message!r}") + f"report({message!r}, {message!r})\nos._exit(0)"
        for tests, entry in ((CASES, "f"), (printed, "")):
            assert value(forged, tests=tests, entry=entry) == 0, message


# ---- more than the sandbox takes
def test_large_tests_are_scored_and_larger_ones_unscored_never_wrong():
    for tests, program in (
        ([[["x" * 200_000], "x" * 200_000]], "def f(x): return x"),
        ([[["x" * 900, i], i] for i in range(1_000)], "def f(x, i): return i"),
    ):
        assert value(program, tests=tests, timeout_s=30) == 1
        assert value("def f(*x): return 0.5", tests=tests, timeout_s=30) == 0
    score = check("code", GOLD, GOLD, tests=[[["x" * 5_000_000], 1]], entry="f", timeout_s=30)
    assert score.value is None and "4194304 is the limit" in score.why


SPY = """
import gc, sys
def f(x):
    frame, text = sys._getframe(), repr(gc.get_objects())
    while frame:
        text += repr(frame.f_locals) + repr(frame.f_globals) + repr(frame.f_code.co_consts)
        frame = frame.f_back
    return "seen" if "8172635443" + chr(51) in text else "not seen"
"""


def test_the_program_never_sees_what_is_expected():
    """Everything that it can reach in its process is searched for the expected value."""
    secret = 81_726_354_433
    gold = f"def f(x): return {secret} if x == 1 else 'not seen'"
    tests = [[[1], secret], [[2], "not seen"]]
    assert value(gold, tests=tests, timeout_s=10) == 1
    assert value(SPY, tests=tests, timeout_s=10, partial=True) == 0.5


def test_programs_that_share_the_cores_have_their_time_and_one_that_sleeps_has_no_more():
    right = "import time\ndef f(x):\n    while time.process_time() < 0.6: pass\n    return x + 1"
    asleep = "import time\ndef f(x):\n    time.sleep(20)\n    return x + 1"
    with ThreadPoolExecutor(4 * CORES + 1) as pool:
        slept = pool.submit(value, asleep, timeout_s=2)
        found = list(pool.map(lambda _: value(right, tests=CASES[:1], timeout_s=2), range(4 * CORES)))
    assert found == [1] * (4 * CORES) and slept.result() == 0


# ---- the author's mistakes are unscored
def test_useless_tests_are_unscored():
    for options, says in (
        ({"tests": []}, "1 to 1000 tests"), ({"tests": "assert f(1)"}, "1 to 1000 tests"), ({"tests": [5]}, "a test is '5'"),
        ({"entry": ""}, "need entry"), ({"tests": ["assert f(1) == 2"]}, "a test is"), ({"tests": [[[1], {2}]]}, "JSON cannot hold"),
    ):  # fmt: skip
        score = check("code", GOLD, GOLD, **({"tests": CASES, "entry": "f", "timeout_s": 10} | options))
        assert score.value is None and says in score.why


def test_no_sandbox_is_unscored(monkeypatch):
    refused = Result("refused", "", "no sandbox here", 0.0)
    monkeypatch.setattr(programs, "run_python", lambda *_, **__: refused)
    score = check("code", GOLD, GOLD, tests=CASES, entry="f")
    assert score.value is None and "no sandbox here" in score.why


# ---- what of a turn is the program
CODE = Task("x", "p", GOLD, {"kind": "code", "entry": "f", "tests": CASES, "timeout_s": 10})


def read(text: str) -> str:
    return answer_of(CODE, text).answer
