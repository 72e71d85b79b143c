"""The audit: sound suites of every verifier pass, and each planted fault is named with its task."""

from __future__ import annotations

import pytest

from agentkit import Score, Task
from agentkit.runs import task_problem
from agentkit.tasks import Suite, SuiteError
from agentkit.tasks.audit import CHECKS, audit, longest_passage, perturb
from agentkit.tasks.expert import shows
from agentkit.verifiers import KINDS, verify

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
    assert {row["check"] for row in rows} == {*CHECKS, "timing"} - {"longest passage"}  # no task has passages
    timing = {row["verifier"]: row for row in rows if row["check"] == "timing"}
    assert set(timing) == {"numeric", "exact", "symbolic", "regex", "code"}
    assert all(0 < row["ms"] <= row["slowest_ms"] and row["tasks"] >= 8 for row in timing.values())
    assert sum(row["tasks"] for row in rows if row["check"] == "gold") == len(SOUND)


@pytest.mark.parametrize(
    ("check", "task"),
    [
        ("gold", Task("x", "p?", "many", "numeric")),
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
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(check, task):
    assert (check, "x") in failures(task)


PLAN = {"tool": "search", "arguments": {"query": "population of France"}}


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Task("x", "p?", "Paris", meta={"passages": None}), "passages (here NoneType) must be a list"),
        (Task("x", "p?", "Paris", meta={"passages": 5}), "passages (here int) must be a list"),
        (Task("x", "p?", "Paris", meta={"passages": [1]}), "passage 1 is '1': it must be a text"),
        (
            Task("x", "p?", "Paris", meta={"plan": [{"tool": "search"}]}),
            "a search needs arguments with a query",
        ),
        (
            Task("x", "p?", "Paris", meta={"plan": [PLAN | {"arguments": 5}]}),
            "a search needs arguments with a query",
        ),
        (
            Task("x", "p?", "Paris", meta={"plan": [PLAN | {"arguments": {"query": ""}}]}),
            "the query is empty",
        ),
        (
            Task("x", "p?", "Paris", meta={"plan": [PLAN | {"arguments": {"query": "x" * 600}}]}),
            "the query has 600 characters",
        ),
        (
            Task("x", "p?", "Paris", {"kind": "exact", "aliases": None}),
            "aliases is None; it must be a list of texts",
        ),
        (Task("x", "p?", "Paris", {"kind": "exact", "aliases": [1]}), "aliases is [1]"),
        (Task("x", "p?", "Paris", {"kind": "exact", "aliases": 5}), "aliases is 5"),
        (Task("x", "p?", "def f(x): return x + 1", CODE, meta={"near_misses": 5}), "near_misses is 5"),
    ],
)
def test_gold_data_of_another_form_is_one_finding(corpus, task, says):
    """And the other tasks are checked all the same."""
    (found,) = [row for row in audit([task, Task("y", "q?", "Lyon")]) if not row["passed"]]
    assert (found["check"], found["task"]) == ("data", "x") and says in found["why"]
    with pytest.raises(
        SuiteError, match="not saved: 1 checks of the audit failed, the first: check 'data' task 'x'"
    ):
        Suite([task]).save("unused")
    with pytest.raises(SuiteError, match="not to be trusted: 1 checks of the audit failed, .* task 'x'"):
        Suite([task]).check()


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


@pytest.mark.parametrize(
    ("gold", "options"),
    [("8", {"abs_tol": 1}), ("5", {"rel_tol": 0.2}), ("8 km", {"abs_tol": 1}), ("-40", {"abs_tol": 10}),
     ("1200", {"rel_tol": 0.1, "abs_tol": 1})],
)  # fmt: skip
def test_a_tolerance_that_can_be_meant_is_no_fault(gold, options):
    assert failures(Task("x", "How much?", gold, {"kind": "numeric"} | options)) == set()


def test_a_search_of_ones_own_and_passages_with_titles():
    own = {"tool": "search", "arguments": {"item": "apple"}, "expect": "3"}
    passages = [{"title": "Fruit", "text": "An apple is 3 euros."}]
    task = Task("x", "How much is it?", "3", "numeric", meta={"plan": [own], "passages": passages})
    assert failures(task) == set() and longest_passage(task) == "Fruit: An apple is 3 euros."
    assert shows("search", "3", "3") and not shows("search", "13", "3")


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ({"plan": [{"tool": "t", "arguments": {}, "expect": 3}]}, "meta.plan"),
        ({"required_tools": "calculator"}, "meta.required_tools is 'calculator'"),
        ({"forbidden_tools": [1]}, "meta.forbidden_tools"),
    ],
)
def test_gold_data_of_another_kind_is_told_when_a_task_is_read(meta, says):
    assert says in task_problem(Task("x", "How much?", "3", meta=meta))


def test_a_verifier_that_is_none_is_a_finding():
    for verifier in (5, {}, {"kind": [1]}):
        assert ("gold", "x") in failures(Task("x", "p?", "Paris", verifier))


@pytest.mark.parametrize(
    ("gold", "aliases"),
    [
        ("York", ["New York"]),
        ("York", "new york"),
        ("York", ["New York", "New New York"]),
        ("4", ["5"]),
        ("4", ["7", "6", "5"]),
    ],
)
def test_an_alias_that_looks_like_the_perturbed_answer_is_right(gold, aliases):
    assert failures(Task("x", "p?", gold, {"kind": "exact", "aliases": aliases})) == set()


def test_another_tasks_answer_that_passes_is_found():
    twins = [
        Task("x", "p?", "Lyon", {"kind": "exact", "rule": "squad"}),
        Task("y", "q?", "A Lyon 2nd", "exact"),
    ]
    assert failures(*twins) == set()
    loose = [Task("x", "p?", "1,000", {"kind": "exact", "rule": "gaia"}), Task("y", "q?", "$1000", "exact")]
    assert ("other entity", "x") not in failures(
        *loose
    )  # "1,000" is a list to GAIA, and $1000 is another length
    alias = [
        Task("x", "p?", "Lyon", {"kind": "exact", "aliases": ["Lyons"]}),
        Task("y", "q?", "Lyons", "exact"),
    ]
    assert failures(*alias) == set()  # an alias is right on purpose
    spelt = [Task("x", "When was it signed?", "July 4, 1776"), Task("y", "On which day?", "4 July 1776")]
    assert failures(*spelt) == set()  # two spellings of one answer


def test_a_wrong_option_of_tasks_that_are_spelt_alike_is_a_row():
    wrong = {"kind": "exact", "rule": "word"}
    tasks = [Task("x", "Where is it?", "New York", wrong), Task("y", "And this?", "new-york", wrong)]
    assert {("gold", "x"), ("gold", "y")} <= failures(*tasks)


def test_scoring_that_does_not_repeat_is_found(monkeypatch):
    from agentkit import verifiers

    answers = iter([1.0, 0.0] * 50)
    monkeypatch.setitem(verifiers.KINDS, "exact", lambda answer, gold: Score(next(answers), "by turns"))
    assert ("repeatable", "x") in failures(Task("x", "p?", "Paris"))


def test_the_longest_passage_comes_from_the_plans_search(corpus):
    plan = [{"tool": "search", "arguments": {"query": "population of France"}, "expect": "x"}]
    assert "France" in longest_passage(Task("x", "p?", "1", meta={"plan": plan}))
    assert longest_passage(Task("x", "p?", "1")) is None


def test_a_suite_that_fails_is_saved_by_force_only(tmp_path):
    suite = Suite([Task("x", "Paris?", "Paris")])
    with pytest.raises(SuiteError, match="not saved: .*'prompt echo' task 'x'"):
        suite.save(tmp_path / "tasks.jsonl")
    assert not (tmp_path / "tasks.jsonl").exists()
    assert Suite.load(suite.save(tmp_path / "tasks.jsonl", force=True)).tasks == suite.tasks


def test_digits_that_are_no_numerals_can_be_perturbed():
    assert perturb("Alien³") == "New Alien³"
    assert perturb("19.9") == "29.9" and perturb("-9") == "-0"


def test_a_pattern_need_not_take_itself():
    legs = Task("x", "How many legs has a dog?", "(?i)(four|4)", "regex")
    assert failures(legs) == set()
    (row,) = [row for row in audit([legs]) if row["check"] == "gold"]
    assert row["tasks"] == 0 and "no right answer was tried, as meta['right_answer'] of x" in row["why"]
    assert failures(Task("x", "How many legs has a dog?", ".*", "regex")) >= {
        ("prompt echo", "x"),
        ("refusal", "x"),
    }
    assert failures(Task("x", "How many?", "4", {"kind": "regex", "pattern": "5"})) == {("gold", "x")}


@pytest.mark.parametrize("name", ["gold", "answer", "trajectory"])
def test_an_option_that_a_verifier_is_given_anyway_is_named(name):
    task = Task("x", "p?", "5", {"kind": "numeric", name: 5})
    assert ("gold", "x") in failures(task)
    with pytest.raises(ValueError, match=f"no option of a verifier may be called '{name}'"):
        verify(task, "5")
