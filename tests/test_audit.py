"""The audit: sound suites of every verifier pass, and each planted fault is named with its task."""

import pytest

from agentkit import Score, Task
from agentkit.tasks import Suite, SuiteError
from agentkit.tasks.audit import CHECKS, audit, longest_passage
from agentkit.verifiers import KINDS

CODE = {"kind": "code", "entry": "f", "tests": [[[1], 2], [[5], 6]]}
SOUND = [
    Task("n", "How many?", "42", "numeric"),
    Task("u", "How far?", "5 km", {"kind": "numeric", "unit": "km"}),
    Task("e1", "Capital of France?", "Paris"),
    Task("e2", "Capital of Spain?", "Madrid", {"kind": "exact", "aliases": ["Villa de Madrid"]}),
    Task("g", "List them.", "a, 2", {"kind": "exact", "rule": "gaia"}),
    Task("s", "Expand it.", "x^2+2x+1", "symbolic"),
    Task("r", "How many apples?", "3", {"kind": "regex", "pattern": r"(\d+) apples", "then": "numeric"},
         meta={"right_answer": "I count 3 apples."}),
    Task("c", "Write f.", "def f(x): return x + 1", CODE),
]  # fmt: skip


def failures(*tasks: Task) -> set[tuple[str, str]]:
    return {(row["check"], row["task"]) for row in audit(tasks) if not row["passed"]}


def test_a_sound_suite_of_every_local_verifier_passes():
    rows = audit(SOUND)
    assert [row for row in rows if not row["passed"]] == []
    assert {row["check"] for row in rows} == {*CHECKS} - {"longest passage"}  # no task has passages
    assert {row["verifier"] for row in rows} == {"numeric", "exact", "symbolic", "regex", "code"}
    assert sum(row["tasks"] for row in rows if row["check"] == "gold") == len(SOUND)


@pytest.mark.parametrize(("check", "task"), [
    ("gold", Task("x", "p?", "many", "numeric")),
    ("gold", Task("x", "p?", "Paris", {"kind": [1]})),
    ("gold", Task("x", "p?", "5", {"kind": "numeric", "tolerance": 1})),
    ("gold", Task("x", "p?", "def f(x): return x", CODE)),
    ("perturbed", Task("x", "p?", "5", {"kind": "numeric", "abs_tol": 10})),
    ("perturbed", Task("x", "p?", "def f(x): return None", {"kind": "code", "entry": "f", "tests": [[[1], None]]})),
    ("perturbed", Task("x", "p?", ".*", {"kind": "regex"}, meta={"right_answer": "anything"})),
    ("prompt echo", Task("x", "Paris?", "Paris")),
    ("both answers", Task("x", "p?", "3", {"kind": "regex", "pattern": r"(\d)\D*\d?$"})),
    ("refusal", Task("x", "p?", "I could not find this.")),
    ("longest passage", Task("x", "p?", "Paris", meta={"passages": ["the", "Paris."]})),
    ("longest passage", Task("x", "p?", "3", {"kind": "regex", "pattern": r"(\d) apples"},
                             meta={"right_answer": "3 apples", "passages": ["There were 3 apples once upon a time."]})),
])  # fmt: skip
def test_a_planted_fault_is_found(check, task):
    assert (check, "x") in failures(task)


@pytest.mark.parametrize(("task", "says"), [
    (Task("x", "p?", "Paris", meta={"passages": [1]}), "passage 1 is '1': it must be a text"),
    (Task("x", "p?", "Paris", meta={"plan": [{"tool": "search"}]}), "a search needs arguments with a query"),
    (Task("x", "p?", "Paris", {"kind": "exact", "aliases": [1]}), "aliases is [1]"),
    (Task("x", "p?", "def f(x): return x + 1", CODE, meta={"near_misses": 5}), "near_misses is 5"),
])  # fmt: skip
def test_gold_data_of_another_form_is_one_finding(corpus, task, says):
    """And the other tasks are checked all the same."""
    (found,) = [row for row in audit([task, Task("y", "q?", "Lyon")]) if not row["passed"]]
    assert (found["check"], found["task"]) == ("data", "x") and says in found["why"]
    with pytest.raises(SuiteError, match="not saved: 1 checks .*, the first: check 'data' task 'x'"):
        Suite([task]).save("unused")


def test_a_verifier_of_ones_own_judges_tasks_without_a_plan(monkeypatch):
    """Where it looks at trajectories too, of which there is none to try it with."""

    def used(answer, gold, *, trajectory=None):
        return float(answer == gold and len(trajectory.turns) > 0)

    monkeypatch.setitem(KINDS, "used", used)
    rows = audit([Task("x", "How much is it?", "5 euros", "used")])
    assert [row for row in rows if not row["passed"]] == []
    assert {row["check"] for row in rows} >= {"data", "perturbed", "empty", "refusal"}
    monkeypatch.setitem(KINDS, "used", lambda answer, gold, *, trajectory=None: 1.0)
    assert ("perturbed", "x") in failures(Task("x", "How much is it?", "5 euros", "used"))


def test_a_search_of_ones_own_and_passages_with_titles():
    own = {"tool": "search", "arguments": {"item": "apple"}, "expect": "3"}
    passages = [{"title": "Fruit", "text": "An apple is 3 euros."}]
    task = Task("x", "How much is it?", "3", "numeric", meta={"plan": [own], "passages": passages})
    assert failures(task) == set() and longest_passage(task) == "Fruit: An apple is 3 euros."
    plan = [{"tool": "search", "arguments": {"query": "population of France"}, "expect": "x"}]
    assert "France" in longest_passage(Task("x", "p?", "1", meta={"plan": plan}))
    assert longest_passage(Task("x", "p?", "1")) is None


def test_another_tasks_answer_is_wrong_unless_it_is_an_alias_or_the_same_in_other_words(monkeypatch):
    alias = Task("x", "p?", "Lyon", {"kind": "exact", "aliases": ["Lyons"]})
    assert failures(alias, Task("y", "q?", "Lyons", "exact")) == set()
    spelt = [Task("x", "When was it signed?", "July 4, 1776"), Task("y", "On which day?", "4 July 1776")]
    assert failures(*spelt) == set()  # two spellings of one answer
    monkeypatch.setitem(KINDS, "exact", lambda answer, gold: Score(float(answer in ("Lyon", "Rome"))))
    assert ("other entity", "x") in failures(Task("x", "p?", "Lyon"), Task("y", "q?", "Rome"))


def test_scoring_that_does_not_repeat_is_found(monkeypatch):
    answers = iter([1.0, 0.0] * 50)
    monkeypatch.setitem(KINDS, "exact", lambda answer, gold: Score(next(answers), "by turns"))
    assert ("repeatable", "x") in failures(Task("x", "p?", "Paris"))


def test_a_verifier_that_cannot_judge_what_is_wrong_is_found(monkeypatch):
    unsure = lambda answer, gold: Score(1.0 if answer == gold else None, "no idea")  # noqa: E731
    monkeypatch.setitem(KINDS, "exact", unsure)
    assert failures(Task("x", "p?", "Paris")) >= {("perturbed", "x"), ("refusal", "x")}


def test_a_pattern_need_not_take_itself():
    legs = Task("x", "How many legs has a dog?", "(?i)(four|4)", "regex")
    assert failures(legs) == set()
    (row,) = [row for row in audit([legs]) if row["check"] == "gold"]
    assert row["tasks"] == 0 and "no right answer was tried, as meta['right_answer'] of x" in row["why"]
    anything = failures(Task("x", "How many legs has a dog?", ".*", "regex"))
    assert anything >= {("prompt echo", "x"), ("refusal", "x")}
    assert failures(Task("x", "How many?", "4", {"kind": "regex", "pattern": "5"})) == {("gold", "x")}
