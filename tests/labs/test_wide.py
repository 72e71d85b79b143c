"""More questions for the families that ship: units, premises, longer chains."""

from __future__ import annotations

import collections
import random

import pytest
from opened import lab_file, opened, take_two_steps

from agentkit import verify
from agentkit.runs import Run
from agentkit.tasks import PlanError, shipped_families, solve
from agentkit.tasks.families import lookup
from agentkit.tasks.families.facts import QUESTIONS
from agentkit.tools.corpus import facts

wide = lab_file("wide")


def test_a_suite_of_them_is_sound():
    suite = opened("wide", families="A,B", n_tasks=60, reward="plan").suite()
    assert {task.family for task in suite} == {"A", "B"} and all(row["passed"] for row in suite.audit())


@pytest.mark.parametrize(("family", "draft"), [("A", wide.lookup_draft), ("B", wide.multihop_draft)])
def test_wide_questions_are_solved_and_their_golds_checked(corpus, family, draft):
    rng, kinds, false = random.Random(7), collections.Counter(), collections.Counter()
    for _ in range(700):
        task = draft(corpus, rng)
        try:
            solution = solve(task, shipped_families(corpus)[family].environment()) if task else None
        except PlanError:  # another passage ranks first: such drafts are left out of suites
            continue
        if solution is not None:
            assert verify(task, solution.answer).value == 1.0, task
            kinds[task.meta["template"].removesuffix(" distractor")] += 1
            if "assumes something wrong" in task.prompt:
                false[task.answer == wide.FALSE] += 1
    plain = set(lookup.TEMPLATES) if family == "A" else set(QUESTIONS["chains"])
    assert len(set(kinds) - plain) >= 7 and min(false[True], false[False]) > 0.3 * sum(false.values()) > 3


def test_literal_golds(corpus):
    """Premises and percentages, worked out again from the tables."""
    rng, checked = random.Random(3), collections.Counter()
    population = {
        e: value for kind, (e, *_), value in facts(corpus.connection) if kind == "country.population"
    }
    for _ in range(3000):
        task = wide.lookup_draft(corpus, rng)
        if task is None or not all(
            e.startswith("country:") and e[8:] in population for e in task.meta["entities"]
        ):
            continue
        values = [population[e[8:]] for e in task.meta["entities"]]
        match task.meta["template"]:
            case "premise" if "more people" in task.prompt:
                assert task.answer == (str(values[0] - values[1]) if values[0] > values[1] else wide.FALSE)
            case "percentage" if "population" in task.prompt:
                assert (
                    float(task.answer) == pytest.approx(100 * values[0] / values[1], abs=0.0051)
                    and values[0] <= values[1]
                )
            case "share":
                assert float(task.answer) == pytest.approx(100 * values[0] / sum(values), abs=0.0051)
            case "largest":
                choose = max if "most" in task.prompt else min
                assert population[task.answer] == choose(values)
            case _:
                continue
        checked[task.meta["template"]] += 1
    assert set(checked) == {"premise", "percentage", "share", "largest"}


def test_a_false_premise_is_answered_by_saying_so(corpus):
    rng = random.Random(2)
    task = next(
        t for t in (wide.lookup_draft(corpus, rng) for _ in range(2000)) if t and t.answer == wide.FALSE
    )
    for answer, value in (("false premise", 1.0), ("The premise is false.", 1.0), ("0", 0.0), ("I could not find this.", 0.0),
                          (next(iter(task.meta["answer_if"])), 0.0), (f"{wide.FALSE} or 3", 0.0)):  # fmt: skip
        assert verify(task, answer).value == value, answer


@pytest.mark.slow
def test_two_steps_of_grpo(tmp_path):
    lab = opened("wide", families="A,B", n_tasks=40, reward="plan")
    take_two_steps(lab, lab.suite(), Run.create(tmp_path / "run"))
