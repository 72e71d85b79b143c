"""The verifier is the reward: what must pass, what must not, and what it cannot judge. Bounded on any text."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit import Score, Task, verify
from agentkit.evaluation.evidence import stands
from agentkit.records import StopReason, ToolResult, Trajectory, Turn
from agentkit.verifiers import KINDS, MAX_ANSWER, SHIPPED, answer_of, check, numbers, register
from agentkit.verifiers.numbers import parse_number
from agentkit.verifiers.protocol import final_answer

TEXT = st.text(st.characters(), max_size=40)


def value(kind, answer, gold, **options):
    """The verdict; asked for again where the machine is too busy to give one."""
    for _ in range(10):
        score = check(kind, answer, gold, **options)
        if "too busy" not in score.why:
            break
    return score.value


def wrong_verdicts(kind, rows) -> list:
    """The rows of answer, gold, options and verdict that get another verdict."""
    judged = [(row, value(kind, row[0], row[1], **row[2])) for row in rows]
    return [(row, given) for row, given in judged if given != row[3]]


# ---- the protocol
TURNS = [
    ("Answer: 42", "42"), ("I think so.\nAnswer: 42", "42"), ("**Answer:** 42", "42"), ("> Final answer: **Paris**", "Paris"),
    ("ANSWER： Paris", "Paris"), ("So the answer is 42.", "42."), ("#### 42", "42"), ("1\n**Final Answer:**\n\n\\[ \\boxed{5} \\]\n", "5"),
    ("It is 1.5 h.\n\n### Answer\n\n1.5 hours", "1.5 hours"), ("Answer: 5\nAnswer: 5", "5"), ("Answer: $\\boxed{5}$", "5"),
    ("So\n\n$$\\boxed{7}$$", "7"), ("So\n\\boxed{ 7 } km.", "7 km"), ("So\n**\\boxed{A*}**", "A*"), ("Paris", "Paris"),
    ("<think>Answer: 1\n\\boxed{2}</think>\n7", "7"), ("x" * 150_000 + "\nAnswer: 7", "7"),
]  # fmt: skip
NO_ANSWER = [
    ("Answer: 1\nAnswer: 2", "two answer lines that differ"), ("#### 1\nThe answer is 2", "two answer lines that differ"),
    ("Answer: 7\nWait, it is 8.", "text behind the answer line"), ("Answer: 7\n\nLet me know if you need more.", "text behind the answer"),
    ("\\boxed{1}\nor\n\\boxed{2}", "two boxes that differ"), ("Answer: \\boxed{1} or \\boxed{2}", "two boxes that differ"),
    ("So it is Paris.\nIt is the capital.", "no last line 'Answer: ...'"), ("The area is \\boxed{14}.", "no last line 'Answer: ...'"),
    ("\\boxed{14}\nSo it is 12.", "no last line 'Answer: ...'"), ("Not this:\n\n\\boxed{5}", "denies its box"),
    ("", "nothing where its answer"), ("Answer: **", "nothing where its answer"), ("x" * (MAX_ANSWER + 1), "more than 2000 characters"),
    ("x" * 300_000 + "\nAnswer: 7", "more than 200000 characters"),
]  # fmt: skip
LONG = [
    "Answer: a" + " " * 190_000 + "b", "answer" + " " * 190_000, "#" * 190_000, "Answer:" * 27_000, "final " * 30_000,
    ("Answer: " + "* " * 50 + "x\n") * 1_500, "Answer: a" + "*" * 190_000 + "b", "#answer" + "*" * 190_000, "Answer:\n" * 24_000,
    "\\boxed{" * 27_000, "<think>" * 27_000, "\\boxed{1}" * 20_000, "a\n" * 90_000 + "\\boxed{1}",
]  # fmt: skip


def test_the_answer_of_a_last_turn():
    assert [text for text, answer in TURNS if final_answer(text) != (answer, "")] == []


def test_a_turn_without_one_answer_in_its_place_has_none_and_says_why():
    read = [(final_answer(text), why) for text, why in NO_ANSWER]
    assert [(given, why) for given, why in read if given.answer is not None or why not in given.why] == []


def test_no_last_turn_takes_long(thread_time):
    for text in LONG:
        for box in ("", "sentence"):
            start = thread_time()
            final_answer(text, box=box)
            assert thread_time() - start < 2, text[:20]


def test_the_sentence_of_a_lone_box_is_read_where_the_task_says_so():
    task = Task("t", "How many?", "5", {"kind": "numeric", "box": "sentence"})
    assert verify(task, "First 2, then 3.\nSo there are \\boxed{5} in all.").value == 1
    other = "It is not \\boxed{5}.", "It is \\boxed{5} or 6.", "It is 2 + \\boxed{5}.", "\\boxed{5}\n\nNo."
    for text in (*other, "\\boxed{5} km"):
        assert verify(task, text).value == 0, text
    assert check("numeric", "So there are \\boxed{5} in all.", "5").value == 0
    with pytest.raises(ValueError, match="box is 'anywhere'"):
        check("numeric", "5", "5", box="anywhere")


def test_programs_and_verifiers_of_the_users_see_every_line():
    program = "def f(x):\n    # Answer: one more\n    return x + 1"
    for text in (program, f"I tested it.\nAnswer: {program}", f"Answer:\n{program}"):
        assert answer_of(Task("t", "?", "", "code"), text).answer == program
    fenced = f"Answer: x\n```python\n{program}\n```"
    assert answer_of(Task("t", "?", "", "code"), fenced).answer == fenced
    essay = Task("t", "?", "", "judge")
    assert answer_of(essay, "I think.\nAnswer: one\ntwo").answer == "one\ntwo"
    assert answer_of(essay, long := "Answer: " + "word " * 2_000 + "end").answer == long[8:]
    assert final_answer(long).answer is None and "more than 20000" in answer_of(essay, "x" * 20_001).why


# ---- exact
EXACT = [
    ("Paris", "Paris", {}, 1), ("  paris. ", "Paris", {}, 1), ("The Hague", "Hague", {}, 1), ("São Tomé", "Sao Tome", {}, 1),
    ("Ｐａｒｉｓ", "Paris", {}, 1), ("A", "A", {}, 1), ("the", "A", {}, 0), ("Paris or Lyon", "Paris", {}, 0), ("not Paris", "Paris", {}, 0),
    ("New Paris", "Paris", {}, 0), ("", "Paris", {}, 0), (None, "Paris", {}, 0), (42, "42", {}, 0), ("Paris" * 1000, "Paris", {}, 0),
    ("Pa\ud800ris", "Paris", {}, 0), ("C", "C#", {}, 0), ("July 4, 1776", "4 July 1776", {}, 1), ("1/2", "1 2", {}, 0),
    ("Vitamin A", "Vitamin", {}, 0), ("Holland", "Netherlands", {"aliases": ["Holland", ""]}, 1), (".", "Paris", {"aliases": ["..."]}, 0),
    ("x", "?!", {}, None), ("x", None, {}, None), ("", "", {}, 0),  # empty for empty earns nothing
]  # fmt: skip
GAIA = [
    ("1,000", "1000", 1), ("$1000%", "1000", 1), ("about 1000", "1000", 0), ("inf", "1000", 0), ("a; b", "A,B", 1), ("b, a", "a, b", 0),
    ("a", "a, b", 0), ("1.0, x", "1;X", 1), ("a., b", "a, b", 0), ("St. Paul's", "st pauls", 1), ("Saint Paul", "St. Paul", 0), ("", "x", 0),
]  # fmt: skip
SQUAD = [
    ("The U.S.A.", "USA", 1), ("well-known", "wellknown", 1), ("a  cat", "cat", 1), ("São", "Sao", 0), ("cats", "cat", 0),
]  # fmt: skip


def test_words_are_compared_by_our_rule_and_by_the_published_ones():
    assert wrong_verdicts("exact", EXACT) == []
    for rule, rows in (("gaia", GAIA), ("squad", SQUAD)):
        assert wrong_verdicts("exact", [(*row[:2], {"rule": rule}, row[2]) for row in rows]) == []


# ---- numeric
NUMERIC = [
    ("42.", "42", {}, 1), ("−42", "-42", {}, 1), (".5", "0.5", {}, 1), ("1,000", "1000", {}, 1), (r"1\,000\,000", "1000000", {}, 1),
    ("1\u202f000", "1000", {}, 1), ("1.5E+3", "1500", {}, 1), ("$5", "5", {}, 1), ("１２", "12", {}, 1), ("1380004386", "1380004385", {}, 0),
    ("12", "1", {}, 0), ("1 or 2", "1", {}, 0), ("1, 2", "1", {}, 0), ("1,2", "12", {}, 0), ("1-2", "1", {}, 0), ("1/2", "0.5", {}, 1),
    ("½", "0.5", {}, 1), ("10²", "102", {}, 0), ("about 1", "1", {}, 0), ("not 1", "1", {}, 0), ("1e-12", "0", {}, 0), ("0.333333", "1/3", {}, 0),
    ("2 3/4", "2.75", {}, 1), ("2 5/4", "3.25", {}, 0), ("1/0", "1", {}, 0), ("nan", "1", {}, 0), ("1e999", "1", {}, 0), ("50 %", "0.5", {}, 0),
    ("5 km", "5", {}, 0), ("0x10", "16", {}, 0), ("9^{9^{9}}", "1", {}, 0), ("\\boxed{4}", "4", {}, 1), ("1\n2", "1", {}, 0),
    ("1", "many", {}, None), ("1", "", {}, None), ("nan", "nan", {}, None), ("1", "1 or 2", {}, None), ("1", "9" * 401, {}, None),
    ("1", "4 crayons", {}, None), ("3 crayons", "3 crayons", {"unit": "crayons"}, 1),
]  # fmt: skip
UNITS = [
    ("5cm", "5", "cm", 1), ("5 CM.", "5", "cm", 1), ("5 km", "5", "cm", 0), ("5 cm 3", "5", "cm", 0), ("5 minute", "5", "minutes", 1),
    ("5 cm or so", "5", "cm", 0), ("0.05 m", "5", "cm", 1), ("0.05 m", "5 cm", "", 1), ("5 cm", "5 km", "", 0), ("1 kg", "1", "m", 0),
    ("212 degF", "100", "degC", 1), ("50 %", "50 %", "", 1), ("0.5", "50 %", "", 0), ("$5", "$5", "", 1), ("€5", "$5", "", 0),
    ("5 mW", "5", "MW", 0), ("5 m²", "5", "m^2", 1), ("5 USD", "5", "$", 1), ("5 yen", "5", "$", 0), ("3 pears", "3", "apples", 0),
]  # fmt: skip
ASKED = [
    ("How many apples are left?", "5 apples", "5 pears"), ("What is its length in km?", "5 km", "5 m"), ("What percentage is it?", "5%", "5 km"),
    ("How many dollars does he pay?", "$5", "€5"),
]  # fmt: skip


def test_numbers_and_their_units():
    assert wrong_verdicts("numeric", NUMERIC) == []
    assert wrong_verdicts("numeric", [(a, gold, {"unit": unit}, v) for a, gold, unit, v in UNITS]) == []
    assert "declare it as unit" in check("numeric", "3", "3 crayons").why


def test_what_the_question_asks_for_may_stand_behind_a_number():
    right = [(text, "5", {"question": asked}, 1) for asked, text, _ in ASKED]
    wrong = [(text, "5", {"question": asked}, 0) for asked, _, text in ASKED]
    assert wrong_verdicts("numeric", [*right, *wrong, ("5 kg", "5", {}, 0)]) == []


def test_numbers_are_exact_and_tolerances_are_as_written():
    assert parse_number("9007199254740993") == 2**53 + 1 and parse_number("0.1") == Fraction(1, 10)
    rows = [
        ("1.3", "1", {"abs_tol": 0.3}, 1), ("1.03", "1", {"rel_tol": 0.03}, 1), ("101.005", "100", {"rel_tol": 0.01}, 0),
        ("12.35", "12.34", {"abs_tol": 0.0051}, 0), ("0.333333", "1/3", {"rel_tol": 1e-4}, 1), ("1e-999", "0", {}, 0),
    ]  # fmt: skip
    assert wrong_verdicts("numeric", rows) == []
    assert stands("9007199254740993", "9007199254740993 of them")
    assert not stands("9007199254740993", "9007199254740992 of them")


@given(st.integers(-(10**14), 10**14), st.integers(0, 4))
def test_a_number_equals_itself_however_it_is_written(number, places):
    plain = str(Decimal(number).scaleb(-places))
    fixed = f"{Decimal(number).scaleb(-places):f}"
    grouped = f"{Decimal(number).scaleb(-places):,f}"
    assert [value("numeric", written, fixed) for written in (plain, fixed, grouped)] == [1, 1, 1]


def test_threads_that_ask_for_a_unit_first_share_one_registry():
    """Rollouts verify in threads; units of two registries could never be compared again."""
    for function in (numbers._registry, numbers.known):
        function.cache_clear()
    together = threading.Barrier(8)

    def ask(unit: str) -> float | None:
        together.wait()
        return value("numeric", f"3 {unit}", "3", unit=unit)

    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(ask, ["km", "miles", "hours", "grams", "litres", "meters", "seconds", "days"]))
    assert values == [1.0] * 8
    assert value("numeric", "120 minutes", "2", unit="hours") == 1.0


# ---- symbolic and regex; most cases are in tests/hostile
SYMBOLIC = [
    (r"\frac{1}{2}", "0.5", {}, 1), ("(x+1)^2", "x^2+2x+1", {}, 1), ("x = 4", "4", {}, 1), ("0.333333", r"\frac13", {}, 0), ("nan", "nan", {}, None),
    ("(1, 2)", "[1, 2]", {}, 0), (r"\{2, 1\}", r"\{1,2\}", {}, 1), ("1 or 2", "1", {}, 0), ("1/2004!", "1/2006!", {}, 0), ("10_2", "10", {}, 0),
    ("6/36 = 1/6", "1/6", {}, 1), ("1 = 1/6", "1/6", {}, 0), (r"x \in [-2,7]", r"-2 \le x \le 7", {}, 1), ("2:30", "2:30", {}, 1),
    (r"5\text{ cm}", "5", {}, 1), ("2m", "2", {}, 0),
]  # fmt: skip


def test_mathematics_is_compared_by_value_and_bounded(thread_time):
    assert wrong_verdicts("symbolic", SYMBOLIC) == []
    start = thread_time()
    for answer in ("1" + "+1" * 990, r"\boxed{5} " + r"\, " * 600, "(" * 1_990, r"\frac{1}" * 240):
        assert value("symbolic", answer, "9001") == 0
    assert thread_time() - start < 5


def test_a_task_tells_its_verifier_what_was_asked():
    task = Task("a", "Wanda had 3 apples and bought 2. How many apples has she?", "5", "symbolic")
    assert verify(task, r"\boxed{5\text{ apples}}").value == 1
    assert verify(task, r"\boxed{5\text{ pears}}").value == 0
    assert check("exact", "5", "5", question="p").value == 1  # not every kind looks at it


def test_a_pattern_takes_the_answer_out_of_a_text():
    assert value("regex", "I see 5 apples.", "5", pattern=r"(\d+) apples", then="numeric") == 1
    assert value("regex", "5 apples, no, 6 apples", "5", pattern=r"(\d+) apples") == 0
    assert value("regex", "A-17", r"[A-Z]-\d+") == 1 and value("regex", "so A-17", r"[A-Z]-\d+") == 0
    assert value("regex", "x", "(") is None and value("regex", "a" * 5_000 + "!", r"(a|aa)+$") == 0


# ---- check and verify
@given(TEXT, TEXT, st.sampled_from(["exact", "numeric"]))
def test_any_answer_gets_a_verdict_and_the_same_one_twice(answer, gold, kind):
    score = check(kind, answer, gold)
    assert score.value in (0.0, 1.0, None) and score.why
    assert check(kind, answer, gold) == score


def test_mistakes_of_the_author_are_errors():
    with pytest.raises(ValueError, match="unknown verifier kind 'exakt': use one of .*exact"):
        check("exakt", "1", "1")
    with pytest.raises(ValueError, match="unknown verifier kind None"):
        verify(Task("a", "p", "1", {"abs_tol": 1}), "1")
    with pytest.raises(ValueError, match="verifier 'numeric'.*tolerance"):
        check("numeric", "1", "1", tolerance=1)
    with pytest.raises(ValueError, match="verifier 'numeric'"):
        check("numeric", "1", "2", abs_tol="wide")
    for name in ("answer", "gold", "trajectory"):
        with pytest.raises(ValueError, match=f"no option of a verifier may be called '{name}'"):
            verify(Task("a", "p", "1", {"kind": "exact", name: "1"}), "1")
    with pytest.raises(ValueError, match="unknown rule 'lenient'"):
        check("exact", "a", "a", rule="lenient")
    with pytest.raises(ValueError, match="cannot go on with 'judge'"):
        check("regex", "a", "a", pattern="a", then="judge")


# ---- verifiers of the user's own
def thrifty(answer, gold, *, trajectory=None, most=2):
    """Right, and found with few calls: looks at what the policy did."""
    if answer != gold:
        return Score(0.0, f"{answer} is not {gold}")
    if trajectory is None:
        return 1.0
    calls = [result.name for turn in trajectory.turns for result in turn.results]
    return Score(float(len(calls) <= most), f"{len(calls)} calls: {', '.join(calls)}")


@pytest.fixture
def kinds():
    """What a test registers goes with it."""
    yield KINDS
    for kind in KINDS.keys() - SHIPPED:
        del KINDS[kind]


def after(calls: int, answer: str = "7") -> Trajectory:
    results = tuple(ToolResult("search", {"query": str(n)}, "found", ok=True) for n in range(calls))
    turns = (Turn("calls", (0, 1), results), Turn(f"Answer: {answer}", (1, 2)))
    return Trajectory("t", "p", 0, 0, (), (), (), (), turns, StopReason.ANSWER, answer)


def test_a_users_verifier_looks_at_the_tool_calls(kinds):
    register({"thrifty": thrifty})
    task = Task("t", "How many?", "7", {"kind": "thrifty", "most": 3})
    assert verify(task, after(3)) == Score(1.0, "3 calls: search, search, search")
    assert verify(task, after(4)).value == 0
    assert verify(task, after(0, "8")).value == verify(task, after(0, " ")).value == 0
    assert verify(task, "7").value == check("thrifty", "7", "7").value == 1  # there is no trajectory
    assert check("thrifty", "7", "7", trajectory=after(3)).value == 0
    assert check("exact", "7", "7", trajectory=after(0)).value == 1  # shipped kinds look at none


GIVEN = [
    (1.0, 1.0), (0, 0.0), (True, 1.0), (Fraction(1, 2), 0.5), (np.float32(0.5), 0.5), (Score(0.5, "x"), 0.5), (Score(None, "no data"), None),
    (None, None), (Score(None), None), (1.1, None), (-0.1, None), (math.nan, None), ("1", None), (Score(2.0), None), (1j, None),
]  # fmt: skip


def test_what_a_users_verifier_gives_is_a_number_up_to_one_or_unscored(kinds):
    for result, expected in GIVEN:
        register({"mine": lambda answer, gold, result=result: result})
        score = check("mine", "a", "b", trajectory=after(0))
        assert score.value == expected and (expected is not None or score.why), result
        assert type(score.value) in (float, type(None))


def test_a_users_verifier_that_fails_is_unscored(kinds):
    class Speechless(Exception):
        def __str__(self):
            raise RuntimeError

    def raising(answer, gold):
        raise {"exit": SystemExit, "silent": Speechless}[answer]

    register({"whole": lambda answer, gold: float(int(answer) == int(gold)), "raising": raising})
    assert check("whole", "7", "7").value == 1
    failed = [check("raising", answer, "7") for answer in ("exit", "silent")]
    for score in (*failed, check("whole", "seven", "7"), check("whole", "7", "7", tolerance=1)):
        assert score.value is None and "verifier failed" in score.why


def test_registering_replaces_the_users_own_and_no_shipped_kind(kinds):
    register({"mine": lambda answer, gold: 0.0})
    register({"mine": lambda answer, gold: 1.0})
    assert check("mine", "a", "b").value == 1
    with pytest.raises(ValueError, match="'exact' ships with agentkit: give yours another name"):
        register({"other": thrifty, "exact": thrifty})
    assert "other" not in kinds and check("exact", "a", "b").value == 0
    for wrong in (lambda answer: 1.0, lambda answer, gold, tolerance: 1.0, 5):
        with pytest.raises(ValueError, match=r"'odd' cannot be called with \(answer, gold\)"):
            register({"odd": wrong})


def test_verify_reads_the_tasks_verifier_and_a_trajectorys_answer(suite, kinds):
    task = Task("a", "p", "5", {"kind": "numeric", "unit": "cm"})
    assert verify(task, "5 cm") == Score(1.0, "within tolerance")
    assert task.verifier == {"kind": "numeric", "unit": "cm"}  # not consumed

    def ticking_off(answer, gold, *, todo=None):
        return float(answer == gold and todo["items"].pop() == "x" and not todo["items"])

    register({"ticking": ticking_off})
    task = Task("b", "p", "5", {"kind": "ticking", "todo": {"items": ["x"]}})
    assert verify(task, "5") == verify(task, "5") == Score(1.0) and task.verifier["todo"] == {"items": ["x"]}
    assert verify(task, None).value == 0
    assert verify(Task("a", "p", "Paris"), "paris").value == 1
