"""Every reward formula on literals computed by hand, and how components combine, fail and are logged."""

import dataclasses
import math
import warnings
from typing import get_args

import pytest
from test_judge import server  # noqa: F401  (a fixture)

from agentkit import rewards
from agentkit.recipe import Preset, Recipe, RecipeError
from agentkit.records import StopReason, Task, ToolCall, ToolResult, Trajectory, Turn
from agentkit.rewards import calls, components

SUM = {"tool": "calculator", "arguments": {"expression": "{0} + {1}"}}
AREAS = (("area of A", "30"), ("area of B", "12"))
LOOK = [{"tool": "search", "arguments": {"query": query}, "expect": area} for query, area in AREAS]
TASK = Task("t", "A and B?", "42", "numeric", meta={"plan": [*LOOK, SUM]})
FIRST = ToolResult("search", {"query": "area of A"}, "The area of A is 30.", ok=True)
SECOND = ToolResult("search", {"query": "area of B"}, "The area of B is 12.", ok=True)
ADD = ToolResult("calculator", {"expression": "30 + 12"}, "42", ok=True)
MALFORMED = ToolResult("", {}, "Error: malformed.", ok=False)
INVENTED = ToolResult("lookup", {"query": "area of A"}, "Error: there is no tool 'lookup'.", ok=False)


def trajectory(*turns, success=1.0, tokens=10, **changes) -> Trajectory:
    """A trajectory of these turns' results, an answering turn included where there is a verdict."""
    made = tuple(Turn("", (i, i + 1), tuple(results)) for i, results in enumerate(turns))
    own = (1,), (2,) * tokens, (1,) * tokens, (0.0,) * tokens
    fields = {"turns": made, "stop_reason": StopReason.ANSWER, "answer": "42", "success": success} | changes
    return Trajectory("t", "p", 0, 0, *own, **fields)


PERFECT = trajectory([FIRST], [SECOND], [ADD], [])


# ---- plan
def test_the_plans_reward():
    for tried, value in (
        (PERFECT, 1 + 0.1 - 0.02 * 4),
        (trajectory([FIRST, MALFORMED], [], success=1.0), 1 + 0.1 * 0.5 - 0.02 * 2),
        (trajectory([FIRST, MALFORMED], [], success=0.0), 0.05),
        (trajectory([], success=1.0), 0.98),
    ):
        assert rewards.score(TASK, tried, rewards.plan()).reward == pytest.approx(value)
    assert rewards.score(TASK, trajectory([], success=None), rewards.plan()).reward is None


@pytest.mark.parametrize(("share", "value"), [(1.0, 0.98), (0.99, 0.0), (None, None)])
def test_the_plan_takes_a_program_as_right_only_when_all_its_tests_pass(share, value):
    code = Task("t", "Write f.", "", {"kind": "code", "tests": [[[1], 1]], "partial": True})
    assert rewards.score(code, trajectory([], success=share), rewards.plan()).reward == value
    graded = rewards.score(TASK, trajectory([], success=share), rewards.plan()).components["correctness"]
    assert graded == share  # a verdict of another kind may be graded


@pytest.mark.parametrize("reward", [{"m": len}, {"m": (1.0, len)}, {"m": (len, float("nan"))}, None], ids=str)
def test_what_is_no_reward_is_told_how_one_looks(reward):
    with pytest.raises(ValueError, match=r"\(function, weight\)"):
        rewards.score(TASK, PERFECT, reward)


# ---- ToolRL
def call(tool, /, **arguments):
    return ToolCall(tool, arguments)


TOOLRL = [
    ([call("f", a=1)], [call("f", a=1)], 3.0),  # score 1 + 1 + 1 of 1 + 2
    ([], [call("f", a=1)], -3.0),
    ([call("f", a=2)], [call("f", a=1)], 6 * 2 / 3 - 3),  # the name and the parameter's name
    ([call("f", a=1), call("f", a=1)], [call("f", a=1)], 6 * 2.5 / 3 - 3),  # names overlap 1 of 2
    ([call("f", a=1), call("f", a=2)], [call("f", a=2), call("f", a=1)], 3.0),  # each once, the best first
    ([call("f", a=1)], [call("f", a=1), call("f", a=1)], 6 * (0.5 + 2) / 5 - 3),
    ([call("f", a=1, b=2)], [call("f", a=1, c=3)], 6 * (1 + 1 / 3 + 1) / 4 - 3),
    ([call("f", b=2)], [call("f", a=1), call("f", b=2)], 6 * (0.5 + 2) / 5 - 3),  # no agreement, no use
    ([], [], 3.0),
    ([call("f")], [], -3.0),
]


def test_toolrl_match():
    for called, gold, value in TOOLRL:
        assert calls.toolrl_match(called, gold) == pytest.approx(value), (called, gold)


def test_toolrl_on_trajectories():
    assert rewards.score(TASK, PERFECT, rewards.toolrl()).reward == pytest.approx(4.0)
    broken = trajectory([MALFORMED], [FIRST], [], success=0.0)
    # names 1 of 3; one search exact: 2 of its 2; max = 1 + 3 * 2
    found = rewards.score(TASK, broken, rewards.toolrl()).components
    assert found == {"format": 0.0, "match": pytest.approx(6 * (1 / 3 + 2) / 7 - 3)}


def test_a_task_without_a_plan_is_not_scored_by_its_calls():
    bare = dataclasses.replace(TASK, meta={})
    found = rewards.score(bare, PERFECT, rewards.toolrl())
    assert found.components == {"format": 1.0, "match": None} and found.reward == 1.0
    assert rewards.process(bare, PERFECT) is None


# ---- ToolRLA
FACTORS = [
    (PERFECT, 1, 1, 1, 1),
    (trajectory([FIRST], [INVENTED], [SECOND], [ADD], []), 0, 1, 1, 1 - 1 / 3),
    (trajectory([FIRST], []), 1, 1 / 3, 1, 1 + 2 / 3),
    (trajectory([FIRST], [FIRST], [ADD], []), 1, 1, 2 / 3, 1),
    (trajectory(*[[FIRST]] * 7, []), 1, 2 / 3, 1 / 2, 0),
    (trajectory([]), 1, 0, 1, 2),
    (trajectory([MALFORMED], [FIRST], [SECOND], [ADD], []), 1, 1, 1, 1 - 1 / 3),
]


@pytest.mark.parametrize(("tried", "names", "complete", "accurate", "efficient"), FACTORS)
def test_toolrla_factors_and_their_product(tried, names, complete, accurate, efficient):
    factors = [f(TASK, tried) for f in (calls.tool_names, calls.completeness, calls.argument_accuracy)]
    assert factors == pytest.approx([names, complete, accurate])
    found = rewards.score(TASK, tried, rewards.toolrla())
    assert found.components["correct_calls"] == pytest.approx(names * complete * accurate)
    assert found.components["efficiency"] == pytest.approx(efficient)


def test_toolrla_adds_its_four_parts_and_compliance_is_minus_ten():
    assert rewards.score(TASK, PERFECT, rewards.toolrla()).reward == pytest.approx(3.0)
    strict = dataclasses.replace(TASK, meta=TASK.meta | {"forbidden_tools": ["calculator"]})
    assert rewards.score(strict, PERFECT, rewards.toolrla()).reward == pytest.approx(3.0 - 10.0)
    assert calls.compliance(strict, trajectory([FIRST], [])) == 0.0
    assert calls.compliance(TASK, PERFECT) is None


def test_a_plan_that_does_not_say_what_a_later_step_needs_is_not_compared():
    add = {"tool": "calculator", "arguments": {"expression": "{0} * 2"}}
    priced = {"tool": "price", "arguments": {"of": "apple"}}
    for plan, known in (
        ([priced, add], False),
        ([priced | {"expect": "3"}, add], True),
        ([add | {"arguments": {"expression": "3 kg + 2 kg"}}], True),
        ([priced | {"expect": {"path": "price"}}, add], False),
    ):
        task = dataclasses.replace(TASK, meta={"plan": plan})
        assert (calls.gold_calls(task) is not None) is known
        assert (calls.subgoals(task, PERFECT) is not None) is known
        assert rewards.score(task, PERFECT, rewards.toolrl()).reward is not None


# ---- tool-call reward, both readings
def test_the_papers_bonus_and_the_released_codes_reward():
    for n, right, wrong in ((0, 1.0, -1.0), (1, 1.1, -0.9), (4, 1.4, -0.6), (9, 1.4, -0.6)):
        for success, bonus, coded in ((1.0, right, 1.0), (0.0, wrong, wrong)):
            tried = trajectory(*[[FIRST]] * n, [], success=success)
            assert rewards.tool_call_bonus(TASK, tried) == pytest.approx(bonus)
            assert rewards.tool_call_reward(TASK, tried) == pytest.approx(coded)
    assert rewards.tool_call_bonus(TASK, trajectory([], success=None)) is None


def test_code_keeps_its_share_of_tests_and_no_code_is_minus_one():
    code = dataclasses.replace(TASK, verifier={"kind": "code", "entry": "f", "tests": [[[1], 1]]})
    assert components.outcome(code, trajectory([], success=7 / 16)) == 0.4375
    assert components.outcome(code, trajectory([], success=0.0, answer="def f(x): return 2")) == 0.0
    two = "```python\ndef g(x): return 2\n```\n```python\ndef f(x): return g(x)\n```"
    assert components.outcome(code, trajectory([], success=0.0, answer=two)) == 0.0
    assert components.outcome(code, trajectory([], success=0.0, answer="print(input())")) == 0.0
    for prose in ("I cannot write that.", "Unknown", "42", "not sure", "Sum: 42", "two, maybe", "# nothing"):
        assert components.outcome(code, trajectory([], success=0.0, answer=prose)) == -1.0
    assert components.outcome(code, trajectory([], success=0.0, answer=None)) == -1.0


def test_overlong_at_100_tokens_with_a_buffer_of_40():
    for tokens, dapo, coded in ((60, 0, 0), (70, -0.25, -0.25), (100, -1, -1), (140, -1, -2)):
        tried = trajectory([], tokens=tokens)
        assert rewards.dapo_overlong(100, 40)(TASK, tried) == pytest.approx(dapo)
        assert rewards.tcr_overlong(100, 40)(TASK, tried) == pytest.approx(coded)
    for buffer in (0, 101):
        with pytest.raises(ValueError, match="buffer"):
            rewards.dapo_overlong(100, buffer)


def test_subgoals_are_read_from_observations():
    failed = dataclasses.replace(FIRST, ok=False)
    other = dataclasses.replace(FIRST, observation="The area of A is 31.")
    for tried, reached in (
        (PERFECT, [1, 1, 1, 0]),
        (trajectory([FIRST], [FIRST], []), [1, 0, 0]),
        (trajectory([SECOND, FIRST], []), [2, 0]),
        (trajectory([failed], []), [0, 0]),
        (trajectory([other], [ADD], []), [0, 1, 0]),
    ):
        assert calls.subgoals(TASK, tried) == reached
        assert rewards.process(TASK, tried) == pytest.approx(sum(reached) / 3)


# ---- combining
def constant(value):
    return lambda task, trajectory: value


def raising(task, trajectory):
    raise RuntimeError("no")


def leaving(task, trajectory):
    raise SystemExit


def test_weighted_sums():
    for values, summed in (
        ([2.0, 3.0], 2.0 + 0.5 * 3.0),
        ([2.0, None], 2.0),
        ([None, None], None),
        ([2.0, math.nan], None),
        ([1e15, 1e15], None),  # too large together
    ):
        reward = {"a": (constant(values[0]), 1.0), "b": (constant(values[1]), 0.5)}
        assert rewards.score(TASK, PERFECT, reward).reward == summed


@pytest.mark.parametrize("bad", [raising, leaving, constant("text"), constant(10**400)])
def test_a_component_that_fails_leaves_the_trajectory_unscored_and_is_never_zero(bad):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = rewards.score(TASK, PERFECT, rewards.plan() | {"bad": (bad, 1.0)})
    assert found.reward is None and found.components["bad"] is None and found.components["correctness"] == 1.0


def test_in_a_group_all_rewards_are_made_of_the_same_components():
    mine = lambda task, t: None if t.sample == 1 else 0.5  # noqa: E731
    sometimes = {"correctness": (rewards.correctness, 1.0), "mine": (mine, 1.0)}
    group = [dataclasses.replace(PERFECT, sample=i) for i in range(3)]
    assert [t.reward for t in rewards.score_all([TASK], group, sometimes)] == [1.5, None, 1.5]
    never = sometimes | {"mine": (constant(None), 1.0)}
    found = [t.reward for t in rewards.score_all([TASK], group, never)]
    assert found == [1.0, 1.0, 1.0], "it does not apply to this task"


def test_a_judges_verdict_is_a_component_and_its_silence_is_not_zero(server, tmp_path):  # noqa: F811
    reward = {"judge": (rewards.judged(url=server.url, model="m", cache=tmp_path / "judge.sqlite"), 0.5)}
    for answer, paid in (("It is 42.", 0.5), ("It is 41.", 0.0), (None, 0.0)):
        assert rewards.score(TASK, trajectory([], answer=answer, success=0.0), reward).reward == paid
    server.judge = lambda asked: 500
    with pytest.warns(UserWarning, match="status 500"):
        silent = rewards.score(TASK, trajectory([], answer="It may be 42."), reward)
    assert silent.reward is None and silent.components == {"judge": None}


# ---- presets and recipes
@pytest.mark.parametrize("name", get_args(Preset))
def test_every_preset_is_a_reward_that_scores(name):
    own = {"mine": (constant(1.0), 0.5)}
    reward = rewards.from_recipe(Recipe.from_mapping({"reward": name}), own)
    assert reward["mine"] == own["mine"]
    assert isinstance(rewards.score(TASK, PERFECT, reward).reward, float)


def test_a_recipe_weighs_components_by_name():
    own = {"mine": (constant(1.0), 0.5), "left": (constant(0.0), 0.1)}
    weights = {"correctness": 1, "format": 0.7, "overlong": 0.5, "mine": 2}
    reward = rewards.from_recipe(Recipe.from_mapping({"reward": weights}), own)
    assert {name: weight for name, (_, weight) in reward.items()} == weights | {"left": 0.1}
    halved = rewards.from_recipe(Recipe(reward={"mine": 2, "format": 0.3, "plan": 0.5}), own)
    expected = {"correctness": 0.5, "format": 0.3, "efficiency": 0.5, "mine": 2, "left": 0.1}
    assert {name: weight for name, (_, weight) in halved.items()} == expected
    with pytest.raises(RecipeError, match="two presets that have 'efficiency'"):
        rewards.from_recipe(Recipe(reward={"plan": 1, "toolrla": 1}), own)
    with pytest.raises(RecipeError, match="reward names 'exactness'; the components are correctness.*toolrl"):
        rewards.from_recipe(Recipe.from_mapping({"reward": {"exactness": 1}}))
