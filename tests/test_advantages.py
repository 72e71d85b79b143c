"""Every estimator on literals computed by hand, its degenerate groups, and token shapes from turns."""

import math

import pytest
import torch

from agentkit import Recipe, rewards
from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.training import advantages
from agentkit.training.advantages import ESTIMATORS, estimate

NAN = float("nan")
# two groups: [1, 0, 0, 0] has mean 1/4 and sample std 1/2; [2, 4] has mean 3 and sample std sqrt(2)
REWARDS = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0, 4.0])
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1])
CENTERED = [0.75, -0.25, -0.25, -0.25, -1.0, 1.0]
PER_TRAJECTORY = ("group", "dr_grpo", "rloo", "batch_std", "reinforce_baseline")
ROOT = math.sqrt(2)


def std(values):
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


@pytest.mark.parametrize(("estimator", "expected"), [
    ("group", [a / (0.5 + 1e-4) for a in CENTERED[:4]] + [a / (ROOT + 1e-4) for a in CENTERED[4:]]),
    ("dr_grpo", CENTERED),
    ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3, -2.0, 2.0]),
    ("batch_std", [a / (std([1, 0, 0, 0, 2, 4]) + 1e-4) for a in CENTERED]),
    ("reinforce_baseline", [a / (std(CENTERED) + 1e-4) for a in CENTERED]),
])  # fmt: skip
def test_estimators_on_two_groups(estimator, expected):
    assert estimate(REWARDS, GROUPS, estimator).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("values", [[0.1, 0.1, 0.1], [7.3], [NAN, NAN], [NAN, 2.0], []])
def test_a_group_that_says_nothing_has_advantages_of_exactly_zero(values):
    for estimator in PER_TRAJECTORY:
        found = estimate(torch.tensor(values), torch.zeros(len(values), dtype=torch.int64), estimator)
        assert found.tolist() == [0.0] * len(values), estimator


def test_what_is_not_scored_changes_nobody_elses_advantage():
    for estimator in PER_TRAJECTORY:
        with_none = estimate([1.0, None, 0.0, 0.0, 0.0, 2.0, NAN, 4.0], [0, 0, 0, 0, 0, 1, 1, 1], estimator)
        assert with_none[[1, 6]].tolist() == [0.0, 0.0]
        assert torch.equal(with_none[[0, 2, 3, 4, 5, 7]], estimate(REWARDS, GROUPS, estimator))


def test_labels_may_be_anything_in_any_order():
    order = [4, 0, 5, 1, 2, 3]
    labels = ["b", "a", "b", "a", "a", "a"]
    assert torch.equal(estimate(REWARDS[order], labels), estimate(REWARDS, GROUPS)[order])


# ---- gdpo
def test_gdpo_keeps_apart_what_a_sum_would_merge():
    """Right without format and wrong with format sum to the same; normalised apart and weighted, they differ."""
    components = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    given = components.sum(1), [0] * 4, "gdpo"
    found = estimate(*given, components=components)
    right = [x / (0.5 + 1e-4) for x in (0.75, -0.25, -0.25, -0.25)]
    form = [x / (std([0, 1, 0, 1]) + 1e-4) for x in (-0.5, 0.5, -0.5, 0.5)]
    summed = [a + b for a, b in zip(right, form, strict=True)]
    assert found.tolist() == pytest.approx([a / (std(summed) + 1e-4) for a in summed], abs=1e-5)
    assert found[0] > found[1] > found[2]
    only = estimate(*given, components=components, weights=torch.tensor([1.0, 0.0]))
    assert only.tolist() == pytest.approx([a / (std(right) + 1e-4) for a in right], abs=1e-5)


def test_gdpo_leaves_out_unscored_components_and_trajectories():
    components = torch.tensor([[1.0, NAN], [0.0, NAN], [1.0, 5.0]])
    found = estimate([1.0, 0.0, None], [0, 0, 0], "gdpo", components=components)
    assert found[2] == 0.0 and found[0] == -found[1] > 0
    shifted = torch.tensor([[1.0, 1.0], [0.0, 2.0], [9.0, 5.0]])  # what the unscored one has changes nothing
    three, two = (estimate([2.0, 1.0, None][:n], [0] * n, "gdpo", components=shifted[:n]) for n in (3, 2))
    assert torch.allclose(three[:2], two)
    assert estimate([1.0, 1.0], [0, 0], "gdpo", components=torch.ones(2, 3)).tolist() == [0.0, 0.0]


# ---- turns
def test_a_turns_tokens_carry_its_own_and_the_outcomes_advantage():
    given = {"turn_rewards": [[2.0, None], [0.0, None]], "spans": [[(0, 2), (3, 5)], [(0, 1), (4, 6)]]}
    found = estimate([1.0, 0.0], [0, 0], "turn", **given, length=7)
    outcome, own = 0.5 / (math.sqrt(0.5) + 1e-4), 1.0 / (ROOT + 1e-4)
    first, last = own + outcome, outcome
    expected = [[first, first, 0, last, last, 0, 0], [-first, 0, 0, 0, -last, -last, 0]]
    assert found.shape == (2, 7)
    assert found.tolist() == [pytest.approx(row, abs=1e-6) for row in expected]


def test_turns_of_unequal_number_and_unscored_trajectories():
    given = {"turn_rewards": [[1.0, 3.0], [0.0], [9.0]], "spans": [[(0, 1), (1, 2)], [(0, 1)], [(0, 1)]]}
    found = estimate([1.0, 0.0, None], [0, 0, 0], "turn", **given, length=2)
    outcome = 0.5 / (math.sqrt(0.5) + 1e-4)
    alone = [2 * outcome, outcome]  # nobody else had a second turn
    assert found[0].tolist() == pytest.approx(alone, abs=1e-6)
    assert found[2].tolist() == [0.0, 0.0]
    assert estimate([1.0], [0], "turn", turn_rewards=[[]], spans=[[]], length=3).tolist() == [[0.0] * 3]


# ---- steps
def test_step_groups_compare_turns_that_met_the_same_state():
    """Both start in s; a meets t alone. The discounted return of s is 0.95 in a, and 0 in b."""
    spans = [[(0, 1), (1, 2)], [(0, 1)]]
    found = estimate([1.0, 0.0], [0, 0], "step", states=[["s", "t"], ["s"]], spans=spans, length=3)
    episode = 0.5 / (math.sqrt(0.5) + 1e-4)
    shared = 0.475 / (std([0.95, 0.0]) + 1e-4)
    expected = [[episode + shared, episode, 0.0], [-episode - shared, 0.0, 0.0]]
    assert found.tolist() == [pytest.approx(row, abs=1e-6) for row in expected]
    alone = estimate([1.0, 0.0], [0, 1], "step", states=[["s"], ["s"]], spans=[[(0, 1)]] * 2, length=1)
    assert alone.tolist() == [[0.0], [0.0]], "a state of another task is another state"


def test_step_groups_leave_an_unscored_trajectory_out():
    given = {"states": [["s", "x"]] * 3, "spans": [[(0, 1), (1, 2)]] * 3}
    found = estimate([2.0, 1.0, None], [0] * 3, "step", **given, length=2)
    one = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert found[:2].tolist() == [pytest.approx([x, x], rel=1e-4) for x in (2 * one, -2 * one)]
    assert found[2].tolist() == [0.0, 0.0]


# ---- from trajectories
LOOK = {"tool": "search", "arguments": {"query": "area of A"}, "expect": "30"}
TASK = Task("t", "A?", "30", "numeric", meta={"plan": [LOOK]})
HIT = ToolResult("search", {"query": "area of A"}, "The area of A is 30.", ok=True)
MISS = ToolResult("search", {"query": "area"}, "Nothing.", ok=True)
FAULT = ToolResult("", {}, "Error.", ok=False)


def trajectory(sample, success, *results):
    """Turns of two sampled tokens each, two tokens of replies between them."""
    turns = tuple(Turn("", (4 * n, 4 * n + 2), own) for n, own in enumerate(results))
    length = 4 * len(results) - 2
    mask = tuple(int(i % 4 < 2) for i in range(length))
    tokens = (1,), (2,) * length, mask, (0.0,) * length
    made = Trajectory("t", "p", sample, 0, *tokens, turns, StopReason.ANSWER, "30", success)
    return rewards.score(TASK, made, rewards.plan())


BATCH = [
    trajectory(0, 1.0, (HIT,), ()),
    trajectory(1, 0.0, (MISS, FAULT), (HIT,), ()),
    trajectory(2, 0.0, ()),
]


def test_turn_rewards_and_states_are_read_from_results():
    assert [advantages.turn_rewards(TASK, t) for t in BATCH] == [[2.0, None], [0.5, 2.0, None], [None]]
    states = [advantages.turn_states(t) for t in BATCH]
    assert states[0][0] == states[1][0] == states[2][0] == frozenset()
    assert states[0][1] == {("search", "The area of A is 30.")} and len(states[1][2]) == 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_reads_a_batch(estimator):
    recipe = Recipe.from_mapping({"advantage": estimator})
    found = advantages.of_trajectories({"t": TASK}, BATCH, ["t"] * 3, rewards.plan(), recipe)
    assert found.isfinite().all() and found.abs().sum() > 0
    if estimator not in ("turn", "step"):
        assert found.shape == (3,) and found[0] > found[2]
        return
    assert found.shape == (3, 10)
    for row, t in zip(found, BATCH, strict=True):
        sampled = torch.tensor([*t.action_mask] + [0] * (10 - len(t.action_mask)), dtype=torch.bool)
        assert (row[~sampled] == 0).all() and (row[sampled] != 0).all()
