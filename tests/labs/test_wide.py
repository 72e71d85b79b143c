"""More questions for the families that ship: units, premises, longer chains."""

import collections
import random

import pytest
from opened import lab_file

from agentkit import verify
from agentkit.tasks import PlanError, shipped_families, solve
from agentkit.tasks.families import lookup
from agentkit.tasks.families.facts import QUESTIONS

wide = lab_file("wide")


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


def test_a_false_premise_is_answered_by_saying_so(corpus):
    rng = random.Random(2)
    drafted = (wide.lookup_draft(corpus, rng) for _ in range(2000))
    task = next(task for task in drafted if task and task.answer == wide.FALSE)
    for answer, value in (("false premise", 1.0), ("The premise is false.", 1.0), ("0", 0.0), ("I could not find this.", 0.0),
                          (next(iter(task.meta["answer_if"])), 0.0), (f"{wide.FALSE} or 3", 0.0)):  # fmt: skip
        assert verify(task, answer).value == value, answer
