"""The code verifier: what passes, what fails, and programs that try to pass without being right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkit import Task, verify
from agentkit.verifiers import check, final_answer
from agentkit.verifiers.isolated.harness import pack, unpack
from agentkit.verifiers.programs import extract_code

GOLD = "def f(x):\n    return x + 1"
CASES = [[[1], 2], [[5], 6], [[-3], -2]]
SOURCE = [
    "assert f(1) == 2",
    "def test(candidate):\n    for n in range(20):\n        assert candidate(n) == n + 1\ntest(candidate)",
]


def value(answer: str, gold: str = GOLD, **options) -> float | None:
    """The verdict; asked for again where the machine is too busy to give one."""
    for _ in range(10):
        score = check("code", answer, gold, **({"tests": CASES, "entry": "f"} | options))
        if "too busy" not in score.why:
            return score.value
    pytest.fail(score.why)


# ---- ordinary programs
@pytest.mark.parametrize(
    "answer",
    [GOLD, f"```python\n{GOLD}\n```", f"Here it is:\n```\n{GOLD}\n```\nDone.", "f = lambda x: x + 1", f"Answer:\n{GOLD}",
     "from __future__ import annotations\ndef f(x: Whatever) -> int: return x + 1", f"print('noise')\n{GOLD}\nprint(f(1))",
     f"```python\n{GOLD}\n```\nIt prints:\n```\nprint(f(1))\n```"],
)  # fmt: skip
@pytest.mark.parametrize("tests", [CASES, SOURCE], ids=["values", "source"])
def test_right_programs_pass(answer, tests):
    assert value(answer, tests=tests, timeout_s=10) == 1


def test_share_passed_and_all_passed():
    half = "def f(x): return 2 if x == 1 else 0"
    assert value(half) == 0 and value(half, partial=True) == pytest.approx(1 / 3)
    assert value(half, tests=SOURCE) == 0 and value(half, tests=SOURCE, partial=True) == 0.5


def test_programs_with_standard_input():
    tests = [{"stdin": "4\n", "stdout": "5\n"}, {"stdin": "1", "stdout": "2"}]
    for program in ("print(int(input()) + 1)", "import sys\nprint(int(open(0).read()) + 1)\nsys.exit()",
                    "import sys\nsys.stdout.buffer.write(b'%d' % (int(sys.stdin.read()) + 1))"):  # fmt: skip
        assert value(program, tests=tests, entry="", timeout_s=10) == 1
    assert value("print(5)", tests=tests, entry="", partial=True) == 0.5
    assert value("print(int(input()) + 1)\nraise SystemExit(1)", tests=tests, entry="") == 0


def test_methods_keywords_and_setup():
    program = (
        "class Solution:\n    def add(self, x: List[int], y: int = 0) -> int:\n        return sum(x) + y"
    )
    options = {"entry": "Solution().add", "setup": "from typing import *", "timeout_s": 10}
    assert value(program, tests=[{"args": [[1]], "kwargs": {"y": 2}, "expected": 3}], **options) == 1
    source = ["assert Solution().add([1], 2) == 3", "assert candidate(x=[1]) == 1"]
    assert value(program, program, tests=source, **options) == 1


def test_values_are_compared_as_json_and_numbers_with_rounding():
    assert value("def f(x): return {1: (x, 2), 'a': {}}", tests=[[[1], {"1": [1, 2], "a": {}}]]) == 1
    assert value("def f(x): return 0.1 + 0.2", tests=[[[1], 0.3]]) == 1
    assert value("def f(x): return 10**3000", tests=[[[1], 10**3000]]) == 1
    assert value("def f(x): return float('nan')", tests=[[[1], float("nan")]]) == 0
    assert value("def f(x): return True", tests=[[[1], 1]]) == 0
    assert value("def f(x): return {1}", tests=[[[1], [1]]]) == 0


# ---- cheats: every one of them is wrong
CHEATS = json.loads((Path(__file__).parent / "hostile" / "cheats.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("tests", [CASES, SOURCE], ids=["values", "source"])
def test_cheats_are_wrong(cheat, tests):
    assert value(CHEATS[cheat], tests=tests) == 0


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
    """Everything a program can reach in its process is searched for the expected value, a number made for
    this.
    """
    secret = 81_726_354_433
    gold = f"def f(x): return {secret} if x == 1 else 'not seen'"
    for tests in (
        [[[1], secret], [[2], "not seen"]],
        [f"assert f(1) == {secret}", "assert f(2) == 'not seen'"],
    ):
        assert value(gold, gold, tests=tests, timeout_s=10) == 1
        assert value(SPY, gold, tests=tests, timeout_s=10, partial=True) == 0.5


# ---- the author's mistakes are unscored
@pytest.mark.parametrize(
    ("options", "says"),
    [({"tests": []}, "1 to 1000 tests"), ({"tests": "assert f(1)"}, "1 to 1000 tests"), ({"tests": [5]}, "a test is '5'"),
     ({"entry": ""}, "need entry"), ({"tests": [["assert f(1) == 2"]]}, "a test is"),
     ({"tests": SOURCE, "entry": ""}, "need entry"),
     ({"tests": ["assert f(1) == 3"]}, "passes 0 of its 1 tests"), ({"tests": ["assert True"]}, "in 0 calls")],
)  # fmt: skip
def test_useless_tests_are_unscored(options, says):
    score = check("code", GOLD, GOLD, **({"tests": CASES, "entry": "f"} | options))
    assert score.value is None and says in score.why


def test_no_sandbox_is_unscored(monkeypatch):
    from agentkit.sandbox import Result
    from agentkit.verifiers import programs

    monkeypatch.setattr(
        programs, "run_python", lambda *_, **__: Result("refused", "", "no sandbox here", 0.0, "D")
    )
    score = check("code", GOLD, GOLD, tests=CASES, entry="f")
    assert score.value is None and "no sandbox here" in score.why


def test_a_time_out_on_a_machine_without_time_is_unscored(monkeypatch):
    from agentkit.sandbox import Result
    from agentkit.verifiers import programs

    for seconds, expected in ((1.5, None), (0.01, 0.0)):  # what an empty program takes beside it
        answers = iter([Result("timeout", "", "", 1.8, "A"), Result("ok", "", "", seconds, "A")])
        monkeypatch.setattr(programs, "run_python", lambda *_, answers=answers, **__: next(answers))
        assert check("code", "def f(x): return 1", GOLD, tests=CASES, entry="f").value == expected


# ---- parts
@pytest.mark.parametrize(
    "content", [None, True, 0, -7, 10**40, 0.1, "a\ud800", (1, [2]), {1: {2}, "a": b"x"}, frozenset({1}), 1j]
)
def test_packing_and_unpacking_gives_the_same_value(content):
    assert unpack(json.loads(json.dumps(pack(content)))) == content


def test_code_on_an_answer_line_goes_on_to_the_end():
    text = f"I tested it.\nAnswer: {GOLD}"
    assert final_answer(text) == GOLD
    assert (
        verify(Task("x", "p", GOLD, {"kind": "code", "entry": "f", "tests": CASES}), final_answer(text)).value
        == 1
    )
    assert (
        final_answer("# Answer: no\n```python\n# answer: 1\nx = 1\n```")
        == "# Answer: no\n```python\n# answer: 1\nx = 1\n```"
    )
    assert extract_code(f"```py\n{GOLD}\n```") == f"{GOLD}\n"
