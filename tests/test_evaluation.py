import json
import time

import numpy as np
import pytest

from agentkit.evaluation import (
    RESAMPLES,
    Comparison,
    bootstrap_interval,
    compare,
    mcnemar_p,
    sign_flip_p,
    success_interval,
    summarize,
    task_success,
)
from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn


def trajectory(task_id, success, sample=0, policy="sft", oks=(), tokens=4):
    """A trajectory with one turn per tool call in ``oks`` and a final turn."""
    called = [Turn("<tool_call>", (0, 1), (ToolResult("search", {}, "seen", ok),)) for ok in oks]
    ids = tuple(range(tokens))
    return Trajectory(
        task_id, policy, sample, 0, (1,), ids, (1,) * tokens, (0.0,) * tokens, (*called, Turn("done", (0, 1))),
        StopReason.ANSWER, "done", success,
    )  # fmt: skip


def singles(outcomes, **options):
    return [trajectory(f"t{i}", s, **options) for i, s in enumerate(outcomes)]


TASKS = [
    Task("t0", "?", "1", family="A", difficulty="hard"),
    Task("t1", "?", "1", family="A", difficulty="easy"),
    Task("t2", "?", "1", family="B", difficulty="easy"),
    Task("t3", "?", "1", family="B", difficulty="medium"),
    Task("unused", "?", "1", family="C", difficulty="easy"),
]


def test_summary_of_literals():
    ts = [
        trajectory("t0", 1.0, oks=(True, False), tokens=10),
        trajectory("t1", 0.0, oks=(False,), tokens=20),
        trajectory("t2", 1.0, oks=(True,), tokens=30),
        trajectory("t3", None, tokens=40),
    ]
    got = summarize(ts, TASKS)
    assert got["success"] == pytest.approx(2 / 3)
    assert got["ci95"] == pytest.approx([0.2077, 0.9385], abs=1e-4)  # Wilson of 2 in 3, by hand
    assert (got["n"], got["samples"], got["unscored"]) == (3, 1, 1)
    assert got["turns_solved"] == 2.5  # 3 and 2 turns
    assert got["tool_failure_rate"] == 0.5  # 2 of 4 calls
    assert got["tokens"] == 25
    assert got["by_category"]["A"]["success"] == 0.5 and got["by_category"]["A"]["n"] == 2
    assert list(got["by_category"]) == ["A", "B"]
    assert list(got["by_difficulty"]) == ["easy", "medium", "hard"]
    assert got["by_difficulty"]["medium"] == {"success": None, "ci95": None, "n": 0}


def test_samples_are_averaged_within_a_task_first():
    ts = [trajectory("a", s, i) for i, s in enumerate([1.0, 1.0, 1.0, 0.0])] + [trajectory("b", 0.0)]
    got = summarize(ts)
    assert got["success"] == 0.375  # (0.75 + 0) / 2, not 3 / 5
    assert got["samples"] == 2.5 and got["by_category"] == {}
    assert task_success(ts) == {"a": 0.75, "b": 0.0}


def test_interval_clusters_by_task():
    """Eight identical samples of a task are no more evidence than one."""
    outcomes = [1.0, 0.0] * 20
    one = summarize(singles(outcomes))["ci95"]
    eight = summarize([trajectory(f"t{i}", s, k) for i, s in enumerate(outcomes) for k in range(8)])["ci95"]
    assert eight == pytest.approx(one, abs=0.02)


def test_bootstrap_interval_matches_the_normal_one_and_is_reproducible():
    values = np.linspace(0, 1, 400)
    half = 1.96 * values.std() / 20
    got = bootstrap_interval(values, low=0.0, high=1.0)
    assert got == pytest.approx([0.5 - half, 0.5 + half], abs=0.005)
    assert got == bootstrap_interval(values, low=0.0, high=1.0)


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_equal_outcomes_do_not_claim_certainty(n, value):
    low, high = success_interval(np.full(n, value), single=False)
    assert 0 <= low <= value <= high <= 1 and high - low > 0.1
    low, high = bootstrap_interval(np.full(n, value), low=-1.0, high=1.0)
    assert -1 <= low <= value <= high <= 1 and high - low > 0.1
    if n == 20 and value == 1.0:
        assert success_interval(np.full(n, value), single=False) == pytest.approx([0.8316, 1.0], abs=1e-4)  # Clopper


def test_mcnemar_of_literals():
    before, after = np.array([0, 0, 0, 0, 0, 0, 1, 1.0]), np.array([1, 1, 1, 1, 1, 0, 0, 1.0])
    assert mcnemar_p(before, after) == pytest.approx(2 * (1 + 6) / 2**6)  # 5 against 1 of 6
    assert mcnemar_p(before, before) == 1.0
    assert mcnemar_p(np.zeros(3000), np.ones(3000)) > 0


def test_sign_flip_of_literals():
    assert sign_flip_p(np.array([0.5, 0.25, 0.25, 1.0, 0.0])) == pytest.approx(2 / 16)  # all 4 differing one way
    assert sign_flip_p(np.array([0.5, -0.5])) == 1.0
    assert sign_flip_p(np.array([0.5])) == 1.0 and sign_flip_p(np.zeros(3)) == 1.0
    started = time.perf_counter()
    assert sign_flip_p(np.full(200, 0.25)) == pytest.approx(2 / (RESAMPLES + 1))  # never 0
    assert time.perf_counter() - started < 5


def test_comparison_with_one_sample():
    sft, grpo = singles([0.0, 0.0, 1.0, 0.0]), singles([1.0, 1.0, 0.0, 0.0], policy="grpo")
    got = compare({"sft": sft, "grpo": grpo}, TASKS).to_json()
    (pair,) = got["paired"]
    assert (pair["a"], pair["b"], pair["diff"], pair["test"], pair["n"]) == ("sft", "grpo", 0.25, "mcnemar_exact", 4)
    assert pair["p"] == 1.0  # 2 against 1
    assert got["n_tasks"] == 4
    assert got["flipped"] == {"sft->grpo": {"to_right": ["t0", "t1"], "to_wrong": ["t2"]}}
    json.dumps(got, allow_nan=False)
    assert Comparison(**json.loads(json.dumps(got))).to_json() == got


def test_comparison_with_several_samples_and_three_policies():
    def policy(rates):
        return [trajectory(f"t{i}", float(k < r), k) for i, r in enumerate(rates) for k in range(4)]

    comparison = compare({"base": policy([0, 0, 1, 2]), "sft": policy([2, 1, 4, 2]), "grpo": policy([4, 3, 4, 1])})
    assert [(p["a"], p["b"]) for p in comparison.paired] == [("base", "sft"), ("base", "grpo"), ("sft", "grpo")]
    pair = comparison.paired[1]
    assert pair["diff"] == pytest.approx(9 / 16)  # differences 1, 0.75, 0.75, -0.25
    assert pair["test"] == "sign_flip_permutation"
    assert pair["p"] == pytest.approx(4 / 16)  # sums at least 2.25: all plus, and the smallest one flipped; doubled
    assert comparison.flipped["base->grpo"] == {"to_right": ["t0", "t1", "t2"], "to_wrong": []}
    assert comparison.flipped["sft->grpo"] == {"to_right": ["t0", "t1"], "to_wrong": []}  # exactly half is not solved


def test_paired_leaves_out_what_either_policy_has_no_score_for():
    got = compare({"a": singles([0.0, None, 1.0]), "b": singles([1.0, 1.0, None])})
    assert got.paired[0]["n"] == 1 and got.paired[0]["diff"] == 1.0 and got.paired[0]["p"] == 1.0
    with pytest.raises(ValueError, match="share no task that is scored"):
        compare({"a": singles([0.0, None]), "b": singles([None, 1.0])})


def test_table_and_html():
    sampled = {"sft": singles([0.0, 1.0, 1.0, 0.0]), "gr<b>po": singles([1.0] * 4, oks=(True, False))}
    comparison = compare(sampled, TASKS, greedy={"sft": singles([1.0, 1.0, 1.0, 0.0])})
    table = comparison.table()
    assert list(table.index) == [
        "Overall success", "Overall success, greedy", "Category A", "Category B", "Difficulty easy",
        "Difficulty medium", "Difficulty hard", "Average turns (successful tasks)", "Tool call failure rate",
        "Average tokens per task",
    ]  # fmt: skip
    assert table["sft"]["Overall success"] == "50.0 % [15.0, 85.0]"
    assert table["sft"]["Overall success, greedy"].startswith("75.0 %")
    assert table["gr<b>po"]["Overall success, greedy"] == "–" and table["sft"]["Tool call failure rate"] == "–"
    assert table["gr<b>po"]["Tool call failure rate"] == "50.0 %"
    page = comparison._repr_html_()
    assert "gr&lt;b&gt;po" in page and "<b>" not in page
    assert "sft → gr&lt;b&gt;po: +50.0 points" in page and "exact McNemar, 4 tasks" in page


def test_clear_errors():
    some = singles([1.0, 0.0])
    with pytest.raises(ValueError, match="no policy to compare"):
        compare({})
    with pytest.raises(ValueError, match="grpo: there is no trajectory"):
        compare({"sft": some, "grpo": []})
    with pytest.raises(ValueError, match="none of the 2 trajectories is scored"):
        summarize(singles([None, None]))
    with pytest.raises(ValueError, match=r"tasks of sft missing in grpo \(1\): t1"):
        compare({"sft": some, "grpo": some[:1]})
    with pytest.raises(ValueError, match=r"tasks of grpo missing in sft \(1\): t1"):
        compare({"sft": some[:1], "grpo": some})
    with pytest.raises(ValueError, match=r"tasks of sft missing in sft, greedy \(1\): t1"):
        compare({"sft": some}, greedy={"sft": some[:1]})
    with pytest.raises(ValueError, match="not among the policies"):
        compare({"sft": some}, greedy={"grpo": some})
    with pytest.raises(ValueError, match=r"tasks of the trajectories missing in the given tasks \(1\): t9"):
        summarize([trajectory("t9", 1.0)], TASKS)
    with pytest.raises(ValueError, match="task t0, sample 0: success is nan"):
        summarize(singles([float("nan")]))


def test_one_policy_and_one_task_are_well_defined():
    got = compare({"sft": singles([1.0])}).to_json()
    assert got["paired"] == [] and got["flipped"] == {}
    assert got["policies"]["sft"]["ci95"] == pytest.approx([0.2065, 1.0], abs=1e-4)
    json.dumps(got, allow_nan=False)
