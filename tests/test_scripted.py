"""The scripted policy through the real rollout loop: right without flaws, and each flaw at about its stated
rate.
"""

from functools import partial
from itertools import pairwise

import pytest
from test_templates import templated

from agentkit import StopReason, Task, rollout
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.rollouts import Limits
from agentkit.tasks import solve
from agentkit.tasks.expert import PlanError
from agentkit.tools.environments import CorpusEnvironment
from agentkit.tools.outages import PROBLEMS

ROOMY = Limits(max_turns=20, max_turn_tokens=400, max_tokens=8_000)


@pytest.fixture(scope="session")
def roll(corpus, tokenizer):
    """Roll out the scripted policy with some flaws."""

    def run(tasks, group_size=1, seed=0, **flaws):
        policy, make = ScriptedPolicy(tokenizer, Flaws(**flaws)), partial(CorpusEnvironment, corpus)
        return rollout(list(tasks), policy, environment=make, group_size=group_size, seed=seed, limits=ROOMY)

    return run


def calls(trajectory):
    return [result for turn in trajectory.turns for result in turn.results]


def without(trajectory):
    """What the same seed must give again: everything but seconds."""
    results = [(r.name, r.arguments, r.observation, r.ok) for r in calls(trajectory)]
    ids = trajectory.prompt_ids, trajectory.completion_ids
    return *ids, trajectory.action_mask, trajectory.answer, results


def test_without_flaws_everything_is_solved(roll, suite, corpus):
    tasks = list(suite)[::2]
    for task, t in zip(tasks, roll(tasks), strict=True):
        assert (t.task_id, t.success, t.stop_reason) == (task.id, 1.0, StopReason.ANSWER)
        expected = calls(solve(task, CorpusEnvironment(corpus)))
        made = [(r.name, r.arguments, r.observation, r.ok) for r in calls(t)]
        assert made == [(r.name, r.arguments, r.observation, True) for r in expected]


def test_a_call_that_fails_for_the_moment_is_repeated(suite, corpus, tokenizer):
    options = {"environment": partial(CorpusEnvironment, corpus), "limits": ROOMY, "tool_failures": 0.3}
    rolled = rollout(list(suite)[::4], ScriptedPolicy(tokenizer), group_size=2, seed=1, **options)
    failed = [result for t in rolled for result in calls(t) if not result.ok]
    assert sum(t.success for t in rolled) > 0.9 * len(rolled)
    assert len({r.observation for r in failed}) == len(PROBLEMS)
    for t in rolled:
        for one, other in pairwise(calls(t)):
            assert one.ok or other.arguments == one.arguments
    for one, other in zip(rolled[::2], rolled[1::2], strict=True):  # samples of a task meet the same
        assert [r.ok for r in calls(one)] == [r.ok for r in calls(other)]


def test_same_seed_same_trajectories(roll, suite):
    flaws = dict(skip_lookup=0.3, wrong_operation=0.3, in_head=0.3, give_up=0.2, malformed=0.3)
    tasks = list(suite)[:40]
    first, again, other = (roll(tasks, group_size=2, seed=s, **flaws) for s in (1, 1, 2))
    assert [without(t) for t in first] == [without(t) for t in again]
    assert [without(t) for t in first] != [without(t) for t in other]
    backwards = {(t.task_id, t.sample): t for t in roll(tasks[::-1], group_size=2, seed=1, **flaws)}
    assert all(without(backwards[t.task_id, t.sample]) == without(t) for t in first), "in any order"


def searches(task):
    return sum(step["tool"] == "search" for step in task.meta["plan"])


def calculates(task):
    return any(step["tool"] == "calculator" for step in task.meta["plan"])


def test_malformed_calls_occur_at_their_rate_and_cost_nothing_else(roll, suite):
    found = roll(suite, malformed=0.3)
    assert all(t.success == 1.0 for t in found)
    failed, made = (sum(r.ok is ok for t in found for r in calls(t)) for ok in (False, True))
    assert failed / made == pytest.approx(0.3, abs=0.1)  # a few slips leave the call valid
    kinds = {r.observation.split(":")[1].split("'")[0].strip() for t in found for r in calls(t) if not r.ok}
    assert len(kinds) == 2 and any("no tool" in k for k in kinds) and any("malformed" in k for k in kinds)


@pytest.mark.parametrize(("flaw", "had", "occasion"), [
    ("give_up", lambda t, right: t.answer == "I could not find this.", lambda t: searches(t) == 2),
    ("skip_lookup", lambda t, right: sum(r.name == "search" for r in calls(t)) == 1, lambda t: searches(t) == 2),
    ("in_head", lambda t, right: all(r.name != "calculator" for r in calls(t)), calculates),
    ("wrong_operation", lambda t, right: calls(t)[-1].arguments != right, calculates),
])  # fmt: skip
def test_a_flaw_occurs_at_its_rate_and_costs_the_answer(roll, suite, flaw, had, occasion):
    tasks = [task for task in suite if occasion(task)]
    right = {t.task_id: calls(t)[-1].arguments for t in roll(tasks)}
    found = roll(tasks, group_size=3, **{flaw: 0.3})
    flawed = [t for t in found if had(t, right[t.task_id])]
    assert len(found) > 200
    assert len(flawed) / len(found) == pytest.approx(0.3, abs=3.5 * (0.21 / len(found)) ** 0.5)
    assert sum(t.success for t in flawed) < 0.3 * len(flawed)  # a comparison may still come out right
    assert all(t.success == 1.0 for t in found if t not in flawed)


TEMPLATES = ("qwen2_5", "qwen3_6", "llama3_1", "glm4moe")  # one of each format


class Scales:
    """Tools that take a number, a count, a flag and a list."""

    system_prompt = "Weigh."

    def reset(self, **row):
        self.said = []

    def weigh(self, amount: float, times: int, exact: bool, names: list, note: str) -> str:
        """Weigh something.

        Args:
            amount: in kilograms
            times: how often
            exact: or rounded
            names: of what is weighed
            note: a text
        """
        assert [type(x) for x in (times, exact, names, note)] == [int, bool, list, str]
        return f"{amount * times:g}"


@pytest.mark.parametrize("malformed", [0.0, 1.0])
@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_written_in_the_format_of_the_template_by_their_schemas(tokenizer, name, malformed):
    arguments = {"amount": 2.5, "times": 2, "exact": True, "names": ["a", "b"], "note": "3"}
    plan = [
        {"tool": "weigh", "arguments": arguments},
        {"tool": "weigh", "arguments": arguments | {"note": "{0}"}},
    ]
    task = Task("w", "Weigh it.", "5", "exact", "x", meta={"plan": plan})
    policy = ScriptedPolicy(templated(tokenizer, name), Flaws(malformed=malformed))
    for t in rollout([task], policy, environment=Scales, limits=ROOMY, group_size=4):
        right = [result for result in calls(t) if result.ok]
        assert t.success == 1.0 and [r.arguments for r in right] == [arguments, arguments | {"note": "5"}]
        assert (len(calls(t)) > len(right)) is bool(malformed)


def test_a_stand_in_solves_at_its_skill_and_each_sample_by_its_own_seed(suite, corpus, tokenizer):
    tasks, make = list(suite)[:100], partial(CorpusEnvironment, corpus)

    def found(skill, tasks, seed=0):
        policy = ScriptedPolicy(tokenizer, skill=skill)
        return rollout(tasks, policy, environment=make, group_size=3, limits=ROOMY, seed=seed)

    first = found(0.6, tasks)
    assert {t.success for t in first} == {0.0, 1.0} and {t.stop_reason for t in first} == {StopReason.ANSWER}
    assert sum(t.success for t in first) / 300 == pytest.approx(0.6, abs=0.1)
    by_id = {task.id: task for task in tasks}
    assert all((len(calls(t)) < len(by_id[t.task_id].meta["plan"])) is (t.success == 0.0) for t in first)
    again = {(t.task_id, t.sample): without(t) for t in found(0.6, tasks[:20][::-1])}
    assert all(again[t.task_id, t.sample] == without(t) for t in first[:60])
    assert [t.success for t in found(0.6, tasks[:20], seed=1)] != [t.success for t in first[:60]]
    assert {t.success for t in found(0.0, tasks[:20])} == {0.0}


class Shop:
    """Buying changes its state, so a call too many or a wrong one shows."""

    def reset(self, **row):
        self.bought = []

    def buy(self, item: str, count: int) -> str:
        """Buy something.

        Args:
            item: What.
            count: How many.
        """
        self.bought.append((item, count))
        return f"{sum(n for _, n in self.bought)} in the cart: {self.bought}"

    def compute(self, text: str) -> str:
        """Echo a text; it has the name that a slip of the calculator takes.

        Args:
            text: The text.
        """
        return text


CART = "3 in the cart: [('tea', 1), ('jam', 2)]"
BUY = [{"tool": "buy", "arguments": {"item": "tea", "count": 1}}, {"tool": "buy", "arguments": {"item": "jam", "count": 2}}]  # fmt: skip
EVERY = {name: 1.0 for name in ("skip_lookup", "wrong_operation", "in_head", "give_up")}


@pytest.fixture(scope="module")
def shop(tokenizer):
    """Play a plan in the shop."""

    def run(plan, answer=CART, n=20, **flaws):
        tools = ("buy", "compute", "search", "calculator", "python")
        task = Task("shop-1", "Buy tea and jam.", answer, tools=tools, meta={"plan": plan})
        policy = ScriptedPolicy(tokenizer, Flaws(**flaws))
        return rollout([task], policy, environment=Shop, group_size=n, limits=ROOMY)

    return run


@pytest.mark.parametrize("flaws", [{}, EVERY, {"malformed": 1.0}])
def test_a_tool_of_the_users_own_is_played_as_planned(shop, flaws):
    found = shop(BUY, **flaws)
    assert all(t.success == 1.0 for t in found)  # no purchase too many, and nothing guessed
    assert all([r.arguments for r in calls(t) if r.ok] == [s["arguments"] for s in BUY] for t in found)
    assert all((len(calls(t)) == 4) == ("malformed" in flaws) for t in found)


def test_a_step_may_carry_its_own_wrong_variants(shop):
    wrong = [{"item": "jam", "count": 20}, {"item": "ham", "count": 2}]
    found = shop([BUY[0], BUY[1] | {"wrong": wrong}], wrong_operation=1.0)
    assert all(calls(t)[0].arguments == BUY[0]["arguments"] and t.success == 0.0 for t in found)
    assert {str(calls(t)[1].arguments) for t in found} == {str(variant) for variant in wrong}
    then = {"tool": "compute", "arguments": {"text": "I see {0}"}}
    expecting = {"expect": "1 tea", "wrong": [{"item": "ham", "count": 5}]}
    (wrong,) = shop([BUY[0] | expecting, then], n=1, wrong_operation=1.0)
    assert wrong.answer == "I see 5 in the cart: [('ham', 5)]"  # what it saw, not what the plan expects
    (right,) = shop([BUY[0] | expecting, then], n=1)
    assert right.answer == "I see 1 in the cart: [('tea', 1)]", "no tool said 1 tea"


@pytest.mark.parametrize("plan", [
    None, "buy", ["buy"], [{}], [{"tool": None, "arguments": {}}], [{"tool": "buy", "arguments": "tea"}],
    [BUY[0] | {"wrong": 5}], [{"tool": "buy", "arguments": {"item": {1, 2}}}],
])  # fmt: skip
def test_a_malformed_plan_is_one_sentence(shop, plan):
    with pytest.raises(PlanError, match=r"^'Buy tea and jam.'(: step \d of the plan cannot be| has no plan)"):
        shop(plan, n=1, wrong_operation=1.0)
