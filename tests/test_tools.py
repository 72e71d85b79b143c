"""The tools: right on literals, and a sentence in bounded time for whatever else they are given."""

import asyncio
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit import ToolCall, sandbox
from agentkit.tools import calculate, run_program, search_passages
from agentkit.tools import files as file_tool
from agentkit.tools.environments import CodeEnvironment
from agentkit.tools.files import Workspace
from agentkit.tools.runtime import run_call

CHARACTERS = st.text(st.characters(), max_size=60)


# ---- calculator
ARITHMETIC = [
    ("1 + 2 * 3", "7"), ("7 / 2", "3.5"), ("8 / 2", "4"), ("-7 % 3", "2"), ("2 ** -1", "0.5"), ("round(2.5)", "2"),
    ("round(66987244 / 547030, 2)", "122.46"), ("round(1234, -2)", "1200"), ("0.1 + 0.2", "0.3"), ("1e3", "1000"),
    ("1 / 3", "0.333333333333"), ("-0.0", "0"), ("abs(-3) + min(4, 2) + max(1, 5, 2) + sqrt(16)", "14"),
    ("3 > 2", "true"), ("3 <= 2", "false"), ("  1 + 1\n", "2"), ("123456789 * 987654321", "121932631112635269"),
]  # fmt: skip
NO_ARITHMETIC = [
    ("", "not an arithmetic expression"), ("1; 2", "not an arithmetic expression"), ("1 + \x00", "not an arithmetic"),
    ("1 + \ud800", "not an arithmetic expression"), ("(" * 400, "not an arithmetic expression"), ("1 / 0", "division by zero"),
    ("0 ** -1", "division by zero"), ("France", "'France' is not a number"), ("pow(2, 3)", "unknown function 'pow'"),
    ("__import__('os')", "unknown function"), ("(1).__class__.__bases__", "not allowed"), ("[x for x in (1,)]", "not allowed"),
    ("'a' * 9", "not allowed"), ("True + 1", "only numbers"), ("1j", "not allowed"), ("1,000 + 1", "not allowed"),
    ("1 < 2 < 3", "not allowed"), ("max(*[1, 2])", "not allowed"), ("(-8) ** 0.5", "not a finite real"), ("1e400", "not a finite"),
    ("min()", "cannot compute"), ("round(1.5, 0.5)", "cannot compute"), ("1" * 501, "limit is 500"), ("-" * 60 + "1", "nests deeper"),
]  # fmt: skip


def test_arithmetic():
    assert [calculate(expression) for expression, _ in ARITHMETIC] == [value for _, value in ARITHMETIC]


def test_what_is_no_arithmetic_is_a_sentence():
    for expression, says in NO_ARITHMETIC:
        with pytest.raises(ValueError) as error:
            calculate(expression)
        assert says in str(error.value) and not isinstance(error.value, UnicodeError)


BOMBS = [
    "9**9**9**9", "(9**9)**(9**9)", "2**(10**6)", "10.0**10**10", "(2**3999)**2", "(-9)**-99999999999",
    "round(1, -100000000)", "round(1, -10**30)", "*".join(["9**400"] * 60), "+".join(["2**3999"] * 50),
    "max(" + "9**9," * 90 + "9**9**9)", "(" * 90 + "1" + ")" * 90, "--" * 240 + "1", "1" + "0" * 480, "1e308**999",
]  # fmt: skip


def test_no_bomb_takes_long():
    outcome: dict[str, str] = {}

    def work():
        for expression in BOMBS:
            try:
                outcome[expression] = calculate(expression)
            except ValueError as error:
                outcome[expression] = str(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert outcome.keys() == set(BOMBS) and max(map(len, outcome.values())) < 1_500


@given(CHARACTERS | st.text("0123456789.+-*/%()<>=eE, roundabsmixqt", max_size=60))
def test_any_text_is_a_value_or_a_value_error(expression):
    try:
        value = calculate(expression)
    except ValueError as error:
        assert str(error)
    else:
        assert value in ("true", "false") or math.isfinite(float(value))


# ---- search
def test_passages_are_numbered_and_best_first(corpus):
    found = search_passages(corpus, "capital of France", 2).split("\n")
    assert found[0] == "[1] The capital of France is Paris."
    assert found[1].startswith("[2] ") and len(found) == 2


def test_a_query_that_is_none_is_refused_and_one_that_finds_nothing_says_so(corpus):
    for query, says in (("", "empty"), (" \n", "empty"), ("x" * 501, "limit is 500")):
        with pytest.raises(ValueError, match=says):
            search_passages(corpus, query)
    for query in ("???", "the of and", "xqzzyv", "\ud800", "\x00"):
        assert search_passages(corpus, query) == "No passage matches. Try other words."


# ---- files
def test_a_workspace_keeps_files():
    space = Workspace()
    assert space.list() == "the workspace is empty"
    assert space.write("notes/a.txt", "hello") == "Wrote 5 characters to notes/a.txt."
    space.write("notes/a.txt", "hello again")
    assert space.read("notes/a.txt") == "hello again" and space.read("notes/a.txt", 6) == "again"
    assert space.list() == "notes/a.txt (11 characters)"
    assert Workspace().files == {}


NAMES = ["", ".", "..", "../x", "a/../b", "/etc/passwd", "~/x", "a//b", "a/", "./a", ".hidden", "a\\b", "C:x", "a\0b",
         "a\nb", "a b", "é", "x" * 300, "a/b/c/d/e/f/g", "-rf", "\ud800", "/".join(["x" * 60] * 4)]  # fmt: skip


def test_a_name_that_leads_elsewhere_is_refused():
    space = Workspace()
    for path in NAMES:
        for act in (lambda path=path: space.write(path, "x"), lambda path=path: space.read(path)):
            with pytest.raises(ValueError, match="is refused: use a relative name"):
                act()
    assert space.files == {}


def test_a_workspace_has_quotas():
    space = Workspace()
    with pytest.raises(ValueError, match="limit of a file"):
        space.write("a", "x" * (file_tool.MAX_FILE + 1))
    for n in range(file_tool.MAX_TOTAL // file_tool.MAX_FILE):
        space.write(f"f{n}", "x" * file_tool.MAX_FILE)
    with pytest.raises(ValueError, match="together"):
        space.write("more", "x")
    space.write("f0", "")
    with pytest.raises(ValueError, match="in the way"):
        space.write("f0/inside", "")
    with pytest.raises(ValueError, match="there is no file 'nowhere'"):
        space.read("nowhere")
    with pytest.raises(ValueError, match="at least 0"):
        space.read("f0", -1)


# ---- python
needs_sandbox = pytest.mark.skipif(bool(sandbox.missing()), reason="no sandbox on this machine")


@needs_sandbox
def test_a_program_answers_with_what_it_printed():
    assert run_program("print(6 * 7)") == "42"
    assert run_program("x = 1") == "(no output; use print)"
    assert run_program("print(open('a.csv').read())", files={"a.csv": "1,2"}) == "1,2"


@needs_sandbox
def test_a_program_that_fails_is_a_sentence():
    for code, says in (
        ("print('seen')\n1 / 0", "the program failed\nseen\nTraceback"),
        ("while True: pass", "the program ran longer than 0.5 s and was stopped"),
        ("x = ' ' * 2**40", "the program ran out of memory"),
        ("while True: print('x' * 10**6)", "the program printed too much"),
        ("import subprocess\nsubprocess.run('id')", "Operation not permitted"),
    ):
        with pytest.raises(ValueError) as error:
            run_program(code, timeout_s=0.5 if "while True: pass" in code else 20)
        assert says in str(error.value) and len(str(error.value)) < 8_000


@needs_sandbox
def test_a_program_that_waits_for_its_turn_loses_no_time():
    call = ToolCall("python", {"code": "import time; time.sleep(6)"})

    async def one_too_many():
        calls = [run_call(call, CodeEnvironment(), timeout_s=10) for _ in range(sandbox.AT_ONCE + 1)]
        return await asyncio.gather(*calls)

    assert [r.observation for r in asyncio.run(one_too_many()) if not r.ok] == []
