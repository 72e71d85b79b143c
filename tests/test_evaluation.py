import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from agentkit.evaluation import (
    Comparison,
    case_of,
    case_scores,
    case_table,
    compare,
    family_table,
    summarize,
    task_success,
)
from agentkit.evaluation.behaviour import behaviour
from agentkit.evaluation.examples import examples
from agentkit.evaluation.failures import failures
from agentkit.evaluation.headline import untrained
from agentkit.evaluation.tables import level_table, to_csv
from agentkit.records import DataError, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import Run, RunError, append_jsonl
from agentkit.views.plots import success_bars


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
    unscored = got["by_difficulty"]["medium"]
    assert (unscored["success"], unscored["ci95"], unscored["n"], unscored["tokens"]) == (None, None, 0, 40.0)


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


def test_comparison_with_one_sample():
    sft, grpo = singles([0.0, 0.0, 1.0, 0.0]), singles([1.0, 1.0, 0.0, 0.0], policy="grpo")
    got = compare({"sft": sft, "grpo": grpo}, TASKS).to_json()
    (pair,) = got["paired"]
    assert (pair["a"], pair["b"], pair["diff"], pair["test"], pair["n"]) == (
        "sft",
        "grpo",
        0.25,
        "mcnemar_mid_p",
        4,
    )
    assert pair["p"] == pytest.approx(1 - 3 / 8)  # 2 against 1, which counts by half
    assert got["n_tasks"] == 4
    assert got["flipped"] == {"sft->grpo": {"to_right": ["t0", "t1"], "to_wrong": ["t2"]}}
    json.dumps(got, allow_nan=False)
    assert Comparison.from_json(json.loads(json.dumps(got))).to_json() == got


def test_comparison_with_several_samples_and_three_policies():
    def policy(rates):
        return [trajectory(f"t{i}", float(k < r), k) for i, r in enumerate(rates) for k in range(4)]

    comparison = compare(
        {"base": policy([0, 0, 1, 2]), "sft": policy([2, 1, 4, 2]), "grpo": policy([4, 3, 4, 1])}
    )
    assert [(p["a"], p["b"]) for p in comparison.paired] == [
        ("base", "sft"),
        ("base", "grpo"),
        ("sft", "grpo"),
    ]
    pair = comparison.paired[1]
    assert pair["diff"] == pytest.approx(9 / 16)  # differences 1, 0.75, 0.75, -0.25
    assert pair["test"] == "sign_flip_permutation"
    assert pair["p"] == pytest.approx(3 / 16)  # sums above 2.25: one; equal: one, by half; doubled
    assert comparison.flipped["base->grpo"] == {"to_right": ["t0", "t1"], "to_wrong": []}
    assert comparison.flipped["sft->grpo"] == {"to_right": [], "to_wrong": []}  # the first of each was right


def rated(rates, policy):
    """Four samples a task, so many of them right."""
    return [trajectory(f"t{i}", float(k < r), k, policy) for i, r in enumerate(rates) for k in range(4)]


def test_the_headline_is_the_last_policy_against_the_best_of_the_others():
    """grpo - sft_more is 0.25 in 20 of 40 tasks and 0.5 in the others: no flip of signs sums to as much."""
    policies = {
        "base": rated([0] * 40, "base"),
        "sft": rated([1, 2] * 20, "sft"),
        "sft_more": rated([2] * 40, "sft_more"),
        "grpo": rated([3, 4] * 20, "grpo"),
    }
    comparison = compare(policies)
    pair = next(pair for pair in comparison.paired if (pair["a"], pair["b"]) == ("sft_more", "grpo"))
    (low, high), said = pair["ci95"], comparison.headline["sentence"]
    assert comparison.headline == {
        "sentence": said, "policy": "grpo", "best_other": "sft_more", "diff": 0.375, "ci95": [low, high], "p": pair["p_holm"],
    }  # fmt: skip
    assert said == (
        f"GRPO solves 87.5 % of 40 held-out tasks, 37.5 points [{100 * low:.1f}, {100 * high:.1f}] more than "
        "SFT with more data, the best of base, SFT and SFT with more data (p < 0.0001, p and interval "
        "corrected for 6 comparisons, clustered by task)."
    )
    worse = compare({"grpo": policies["grpo"], "rft": policies["sft_more"]})
    assert worse.headline["sentence"] == (
        f"Rejection sampling solves 50.0 % of 40 held-out tasks, {spoken(worse)} fewer than GRPO "
        "(p < 0.0001, clustered by task)."
    )
    page = comparison._repr_html_()
    assert compare(policies).to_json()["headline"]["sentence"] == said
    assert page.index("<p>") < page.index("<table>"), "above the table"


def spoken(comparison):
    low, high = sorted(abs(100 * bound) for bound in comparison.headline["ci95"])
    return f"37.5 points [{low:.1f}, {high:.1f}]"


def test_a_headline_whose_interval_holds_0_says_so():
    sft, grpo = singles([0.0, 0.0, 1.0, 0.0]), singles([1.0, 1.0, 0.0, 0.0], policy="grpo")
    base = singles([1.0, 0.0, 0.0, 0.0], policy="base")  # as good as sft, which is named as it comes later
    one, two = compare({"sft": sft, "grpo": grpo}), compare({"base": base, "sft": sft, "grpo": grpo})
    (low, high), p = two.headline["ci95"], two.headline["p"]
    assert one.headline["sentence"] == (
        "GRPO solves 50.0 % of 4 held-out tasks, and SFT 25.0 %: a difference is not shown (+25.0 [-47.3, +80.6] points, p = 0.63, clustered by task)."
    )
    assert two.headline["sentence"] == (
        "GRPO solves 50.0 % of 4 held-out tasks, and SFT, the best of base and SFT, 25.0 %: a difference is "
        f"not shown (+25.0 [{100 * low:+.1f}, {100 * high:+.1f}] points, p = {p:.2g}, p and interval "
        "corrected for 3 comparisons, clustered by task)."
    )
    assert compare({"sft": sft}).headline is None and compare({"sft": sft}).lead() == []


def test_a_headline_tells_seeds_unscored_tasks_and_templates_that_say_otherwise():
    runs = {s: rated([1] * 12, "sft") for s in (1, 2)}, {s: rated([4] * 12, "grpo") for s in (1, 2)}
    said = compare(dict(zip(("sft", "grpo"), runs, strict=True))).headline["sentence"]
    assert "not shown (+75.0 [" in said and "two training seeds are too few for a test" in said
    assert said.endswith("clustered by task and training seed).")
    some = compare({"sft": singles([0.0, None, 0.0]), "grpo": singles([1.0, 1.0, 1.0])}).headline
    assert "on the 2 tasks scored for both" in some["sentence"]
    alike = [
        Task(f"t{i}", "?", "1", "numeric", "A", "easy", "test", meta={"template": "ab"[i > 0]})
        for i in range(20)
    ]
    two = compare({"sft": singles([1.0] + [0.0] * 19), "grpo": singles([0.0] + [1.0] * 19)}, alike).headline
    assert (
        "more than SFT" in two["sentence"]
        and " Clustered by template it is not shown: +90.0 [" in two["sentence"]
    )


# ---- GRPO that kept the agent it started from
def planted(path, rows=(), **stage):
    run = Run.create(path)
    run.update(stages={"03_grpo": {"status": "done"} | stage})
    for row in rows:
        append_jsonl(run.file("train", "metrics.jsonl"), row)
    return run


KEPT_0 = (
    "GRPO kept the adapter of step 0: no step improved on its start, so this is the agent before training, "
    "compared with itself."
)


def test_grpo_that_kept_step_0_claims_no_gain(tmp_path):
    run = planted(tmp_path / "a", best_step=0, steps=40)
    found = compare({"base": rated([0] * 40, "base"), "grpo": rated([4] * 40, "grpo")})
    assert "more than base" in found.headline["sentence"]
    kept = found.of_run(run)
    assert kept.lead() == [f"{KEPT_0} It solves 100.0 % of 40 held-out tasks, and no gain is claimed."]
    assert kept.to_json()["policies"]["grpo"]["trained_step"] == 0
    assert "trained_step" not in kept.policies["base"]
    assert kept._repr_html_().index(KEPT_0) < kept._repr_html_().index("<table>")
    assert Comparison.from_json(json.loads(json.dumps(kept.to_json()))).lead() == kept.lead()
    later = found.of_run(planted(tmp_path / "b", best_step=20))
    assert later.policies["grpo"]["trained_step"] == 20 and later.lead() == found.lead()
    assert found.of_run(Run.create(tmp_path / "c")) == found, "notebook 03 has not ended"
    assert compare({"sft": rated([1] * 9, "sft"), "base": rated([1] * 9, "base")}).of_run(
        run
    ).policies.keys() == {"sft", "base"}


@pytest.mark.parametrize(
    ("norms", "step"), [([0.0, 0.0, 0.5], 0), ([0.0, 0.1, 0.0], 2), ([None, 0.0, 0.0], 2), ([], 2)]
)
def test_steps_without_a_gradient_leave_the_agent_as_it_was(tmp_path, norms, step):
    rows = [{"step": 0}, *({"step": i, "grad_norm": norm} for i, norm in enumerate(norms, 1))]
    assert planted(tmp_path / "a", rows, best_step=2).trained_step == step


@pytest.mark.parametrize(("best", "said"), [(0, KEPT_0), (2, "")])
def test_notebook_03_ends_with_what_grpo_kept(tmp_path, best, said):
    cells = json.loads((Path(__file__).parents[1] / "notebooks" / "03_grpo.ipynb").read_text())["cells"]
    last, run = "".join(cells[-1]["source"]), planted(tmp_path / "a")
    run.begin("03_grpo", {})
    names = {
        "run": run,
        "result": {"best_step": best},
        "work": SimpleNamespace(record={}),
        "untrained": untrained,
    }
    shown = []
    exec(last, names | {"Markdown": shown.append})
    assert shown[0].split("Saved")[0].strip() == said


def test_paired_leaves_out_what_either_policy_has_no_score_for():
    got = compare({"a": singles([0.0, None, 1.0]), "b": singles([1.0, 1.0, None])})
    assert got.paired[0]["n"] == 1 and got.paired[0]["diff"] == 1.0 and got.paired[0]["p"] == 1.0
    with pytest.raises(ValueError, match="share no task that is scored"):
        compare({"a": singles([0.0, None]), "b": singles([None, 1.0])})


def test_table_and_html():
    sampled = {"sft": singles([0.0, 1.0, 1.0, 0.0]), "gr<b>po": singles([1.0] * 4, oks=(True, False))}
    comparison = compare(sampled, TASKS)
    table = comparison.table()
    assert list(table.index) == [
        "Overall success", "Family A (math)", "Family B (multi-hop)", "Difficulty easy",
        "Difficulty medium", "Difficulty hard", "Average turns", "Average turns (successful tasks)",
        "Tool call failure rate", "… malformed calls", "… calls of unknown tools", "… calls that failed",
        "Average tokens per task", "Tokens per solved task",
    ]  # fmt: skip
    assert table["sft"]["Overall success"] == "50.0 % [15.0, 85.0]"
    assert table["sft"]["Tool call failure rate"] == "–"
    assert table["gr<b>po"]["Tool call failure rate"].startswith("50.0 % [")
    page = comparison._repr_html_()
    assert "gr&lt;b&gt;po" in page and "<b>" not in page
    assert "sft → gr&lt;b&gt;po: +50.0 points" in page and "mid-p, 4 tasks" in page


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
    with pytest.raises(ValueError, match=r"tasks of the trajectories missing in the given tasks \(1\): t9"):
        summarize([trajectory("t9", 1.0)], TASKS)
    with pytest.raises(ValueError, match="task t0, sample 0: success is nan"):
        summarize(singles([float("nan")]))


def test_one_policy_and_one_task_are_well_defined():
    got = compare({"sft": singles([1.0])}).to_json()
    assert got["paired"] == [] and got["flipped"] == {}
    assert got["policies"]["sft"]["ci95"] == pytest.approx([0.2065, 1.0], abs=1e-4)
    json.dumps(got, allow_nan=False)


# ---- several samples, seeds, verdicts
def sampled(rates, policy="sft", k=4, seed=0):
    return [trajectory(f"t{i}", float(j < r), j, policy) for i, r in enumerate(rates) for j in range(k)]


def test_draws_of_literals():
    got = summarize(sampled([4, 2, 0, 1]))
    assert list(got["pass_at_k"]) == ["1", "2", "4"]
    assert got["pass_at_k"]["1"]["success"] == pytest.approx(got["success"])
    assert got["pass_at_k"]["2"]["success"] == pytest.approx(
        (1 + 5 / 6 + 0 + 1 / 2) / 4
    )  # 1 - C(n-c, 2) / C(4, 2)
    assert got["pass_hat_k"]["2"]["success"] == pytest.approx((1 + 1 / 6 + 0 + 0) / 4)
    assert got["pass_at_k"]["4"]["success"] == 0.75 and got["pass_hat_k"]["4"]["success"] == 0.25


def test_a_share_of_a_programs_tests_is_no_right_program():
    ts = [trajectory(f"t{i}", 9 / 16, k) for i in range(3) for k in range(4)]
    got = summarize(ts)
    assert got["success"] == 9 / 16
    assert all(b["success"] == 0.0 for draw in ("pass_at_k", "pass_hat_k") for b in got[draw].values())


def test_a_task_is_solved_by_right_programs_not_by_shares_of_their_tests():
    better = {name: [trajectory("t0", share, k, name) for k in range(4)] for name, share in
              (("sft", 0.25), ("grpo", 9 / 16))}  # fmt: skip
    chosen = examples(better, [Task("t0", "?", "1")])
    assert (chosen.gained, chosen.failing) == ([], ["t0"])


def test_draws_leave_out_tasks_with_too_few_scored_samples():
    ts = sampled([4, 2, 0]) + [trajectory("t3", s, j) for j, s in enumerate([1.0, None, None, 1.0])]
    got = summarize(ts)
    assert got["unscored"] == 2
    assert {k: block["n"] for k, block in got["pass_at_k"].items()} == {"1": 4, "2": 4, "4": 3}


def test_cluster_intervals_of_ratios():
    ts = [trajectory("a", 1.0, tokens=9), trajectory("b", 0.0, tokens=29), trajectory("c", None, tokens=99)]
    got = summarize(ts)
    assert got["tokens_per_solved"] == 38  # the unscored one is not paid for here
    assert got["intervals"]["tokens_per_solved"][0] >= 0
    assert got["tokens"] == pytest.approx(137 / 3)
    one = summarize(singles([1.0, 0.0] * 30, tokens=7, oks=(True, False)))["intervals"]
    many = summarize([trajectory(f"t{i}", s, j, tokens=7, oks=(True, False)) for i, s in enumerate([1.0, 0.0] * 30)
                      for j in range(8)])["intervals"]  # fmt: skip
    assert many["tokens_per_solved"] == pytest.approx(
        one["tokens_per_solved"]
    )  # copies of a sample are no evidence


def test_text_without_tokens_has_no_length():
    text = [replace(t, prompt_ids=(), completion_ids=()) for t in singles([1.0, 0.0, None])]
    for got in (summarize(text), summarize(text, TASKS)["by_category"]["A"]):
        assert got["tokens"] is got["tokens_per_solved"] is None and got["turns"] == 1
    mixed = summarize([*singles([1.0, 0.0], tokens=9), *text[2:], replace(text[0], sample=1)])
    assert (mixed["tokens"], mixed["tokens_per_solved"]) == (9, 18)  # of those that have some
    unsampled = replace(text[0], prompt_ids=(1,))  # one that ended before its first token
    assert summarize([unsampled])["tokens"] == 0


def test_nothing_solved_and_no_calls_are_none_not_zero():
    got = summarize(singles([0.0, 0.0, 0.0]))
    assert got["turns_solved"] is got["tokens_per_solved"] is got["tool_failure_rate"] is None
    json.dumps(got, allow_nan=False)


def test_verdicts_and_holm():
    flat, better = [0] * 30 + [1] * 30, [1] * 20 + [0] * 10 + [1] * 30
    names = {"base": flat, "sft": flat[::-1], "grpo": better}
    comparison = compare({n: singles(map(float, rates), policy=n) for n, rates in names.items()})
    by_pair = {(p["a"], p["b"]): p for p in comparison.paired}
    assert (
        by_pair["base", "grpo"]["verdict"] == "better"
        and by_pair["base", "sft"]["verdict"] == "no difference shown"
    )
    assert by_pair["base", "grpo"]["p_holm"] == pytest.approx(
        3 * by_pair["base", "grpo"]["p"]
    )  # the smallest of three
    assert all(p["p"] <= p["p_holm"] for p in comparison.paired)
    levels = [f"{100 * (1 - p['level']):.3g} %" for p in comparison.paired]
    assert list(comparison.paired_table()["interval"]) == levels and "98.3 %" in levels
    by_level = level_table(comparison.policies, comparison.paired)
    assert by_level.loc["all", "base → grpo"].endswith("points at 98.3 %")
    said = comparison.sentences()
    assert "grpo is better." in said[1] and "Holm over 3 comparisons" in said[1]
    assert (
        f"could have seen {100 * by_pair['base', 'sft']['detectable']:.1f} points with 80 % power" in said[0]
    )


def test_identical_policies_show_no_difference_and_say_what_could_have_been_seen():
    same = sampled([4, 2, 0, 1] * 10)
    (pair,) = compare({"a": same, "b": same}).paired
    assert pair["p"] == 1.0 and pair["verdict"] == "no difference shown" and pair["diff"] == 0
    assert pair["ci95"][0] < 0 < pair["ci95"][1] and 0 < pair["detectable"] < 0.3
    few = compare({"a": singles([1.0, 0.0]), "b": singles([0.0, 1.0])})
    assert (
        few.paired[0]["detectable"] is None
        and "with 2 tasks the test could have seen none" in few.sentences()[0]
    )


def test_more_samples_flip_no_fewer_tasks():
    rng = np.random.default_rng(0)
    outcomes = [(rng.random((2, 8)) < p).astype(float) for p in rng.random(60)]

    def drawn(which, k):
        return [
            trajectory(f"t{i}", row[which][j], j, "ab"[which])
            for i, row in enumerate(outcomes)
            for j in range(k)
        ]

    flips = [compare({"a": drawn(0, k), "b": drawn(1, k)}).flipped["a->b"] for k in (1, 4, 8)]
    assert flips[0] == flips[1] == flips[2] and len(flips[0]["to_right"]) > 3


def test_what_is_unscored_is_counted_against_and_for():
    some = [trajectory(f"t{i}", s, j) for i, s in enumerate([1.0, None, 0.0, 1.0]) for j in range(2)]
    entry = summarize(some)
    assert entry["success"] == pytest.approx(2 / 3) and entry["worst_case"] == [0.5, 0.75]
    comparison = compare({"a": singles([0.0, 0.0, 0.0, 1.0]), "b": some})
    assert comparison.paired[0]["worst_case"] == [0.25, 0.5]
    assert "+25.0 to +50.0 if the unscored" in comparison.sentences()[0]
    table = comparison.table()
    assert table.loc["… success with these counted wrong", "b"] == "50.0 %"
    assert "worst_case" not in summarize(singles([1.0, 0.0]))


def test_templates_stand_beside_where_tasks_name_them():
    rng = np.random.default_rng(1)
    meta = [{"template": f"kind {i % 6}"} for i in range(60)]
    tasks = [Task(f"t{i}", "?", "1", family="A", meta=m) for i, m in enumerate(meta)]
    better = rng.random(6) < 0.5
    before = singles((rng.random(60) < 0.4).astype(float))
    after = singles([1.0 if better[i % 6] else t.success for i, t in enumerate(before)])
    comparison = compare({"a": before, "b": after}, tasks)
    (pair,) = comparison.paired
    width = [block["ci95"][1] - block["ci95"][0] for block in (pair, pair["by_template"])]
    assert pair["by_template"]["n"] == 6 and width[1] > 2 * width[0] and pair["by_template"]["p"] > pair["p"]
    assert "with 6 templates as the evidence" in comparison.sentences()[0]
    assert comparison.policies["b"]["by_template"]["n"] == 6
    assert "Overall success, clustered by template" in comparison.table().index
    assert "by_template" not in compare({"a": before, "b": after}).paired[0]


def test_two_seeds_give_an_interval_and_no_verdict():
    base, lifted = sampled([0, 1, 1, 2] * 10), sampled([4, 4, 3, 4] * 10, "b")
    (pair,) = (two := compare({"a": base, "b": {1: lifted, 2: lifted}})).paired
    assert pair["p"] is pair["p_holm"] is None and pair["ci95"][0] > 0.5
    assert "No verdict: two seeds" in two.sentences()[0] and two.paired_table()["p"][0] == "–"
    assert Comparison.from_json(json.loads(json.dumps(two.to_json()))).sentences() == two.sentences()
    assert compare({"a": base, "b": {1: lifted, 2: lifted, 3: lifted}}).paired[0]["verdict"] == "better"
    mixed = compare({"a": base, "b": {1: lifted, 2: lifted}, "c": lifted}).paired
    assert [p["verdict"] for p in mixed] == ["two seeds, no verdict", "better", "two seeds, no verdict"]


def test_breakdowns_are_described_and_not_tested():
    before, after = singles([0.0, 0.0, 0.0, 1.0]), singles([1.0, 1.0, 0.0, 0.0], policy="grpo")
    comparison = compare({"sft": before, "grpo": after}, TASKS)
    (pair,) = comparison.paired
    assert pair["by_category"]["A"]["diff"] == 1.0 and pair["by_category"]["B"]["diff"] == -0.5
    assert list(pair["by_difficulty"]) == ["easy", "medium", "hard"]
    assert pair["by_category"]["A"].keys() == {"diff", "ci95", "n"}
    assert set(comparison.paired_table()["verdict"][1:]) == {"described, not tested"}
    assert list(comparison.paired_table()["tasks"]) == [
        "all tasks", "family A", "family B", "difficulty easy", "difficulty medium", "difficulty hard",
    ]  # fmt: skip


def test_new_templates_are_reported_apart():
    before, after = singles([0.0, 0.0, 0.0, 1.0]), singles([1.0, 0.0, 0.0, 1.0], policy="grpo")
    tasks = [
        replace(task, meta={"new_template": True}) if task.id in ("t0", "t1") else task for task in TASKS
    ]
    comparison = compare({"sft": before, "grpo": after}, tasks)
    (pair,) = comparison.paired
    assert {name: (block["diff"], block["n"]) for name, block in pair["by_novelty"].items()} == {
        "new": (0.5, 2),
        "trained": (0.0, 2),
    }
    assert list(comparison.table().index[6:8]) == ["New templates", "Trained templates"]
    assert comparison.paired_table()["tasks"].iloc[-2:].tolist() == ["new templates", "trained templates"]


def test_several_training_seeds_are_a_random_effect():
    rng = np.random.default_rng(0)
    base = sampled(rng.integers(0, 5, 40))
    seeds = {
        s: sampled(np.clip(rng.integers(0, 5, 40) + lift, 0, 4), "grpo")
        for s, lift in ((1, 0), (2, 1), (3, 3))
    }
    comparison = compare({"sft": base, "grpo": seeds})
    (pair,) = comparison.paired
    assert pair["test"] == "seeds_and_tasks_t" and comparison.policies["grpo"]["seeds"].keys() == {
        "1",
        "2",
        "3",
    }
    assert comparison.policies["grpo"]["success"] == pytest.approx(
        np.mean(list(comparison.policies["grpo"]["seeds"].values()))
    )
    pooled = compare({"sft": base, "grpo": [t for own in seeds.values() for t in own]}).paired[0]
    width = [high - low for low, high in (pair["ci95"], pooled["ci95"])]
    assert (
        pair["diff"] == pytest.approx(pooled["diff"]) and width[0] > 2 * width[1]
    )  # seeds that differ are uncertainty
    json.dumps(comparison.to_json(), allow_nan=False)
    with pytest.raises(ValueError, match=r"a has the training seeds 1, 2, 3 and b has 1, 2\."):
        compare({"a": seeds, "b": {1: base, 2: base}})
    assert compare({"a": seeds, "b": dict(seeds)}).paired[0]["diff"] == 0


def test_seeds_whose_tasks_differ_are_not_pooled():
    base, seeds = sampled([1, 2, 3]), {1: sampled([1, 2, 3]), 7: sampled([1, 2])}
    said = (
        r"different tasks cannot be pooled: tasks of seed 1 missing in seed 7 \(1\): t2\. Use the same tasks"
    )
    with pytest.raises(ValueError, match=f"grpo: training seeds measured on {said}"):
        compare({"sft": base, "grpo": seeds})
    with pytest.raises(ValueError, match=said):
        summarize(seeds)
    with pytest.raises(ValueError, match="there is no trajectory"):
        summarize({})


def test_a_baseline_says_how_calls_fail_overall_and_by_family():
    results = [
        ToolResult("search", {}, "found", True),
        ToolResult("", {}, "Error: no JSON.", False),
        ToolResult("fly", {}, "Error: there is no tool 'fly'; there are search.", False),
        ToolResult("search", {}, "Error: the index is closed.", False),
    ]
    ts = [
        replace(trajectory("t0", 1.0, tokens=10), turns=(Turn("", (0, 1), tuple(results)), Turn("", (1, 2)))),
        trajectory("t1", 0.0, tokens=30),
    ]
    entry = summarize(ts, TASKS)
    assert (entry["turns"], entry["tokens"], entry["tool_failure_rate"]) == (1.5, 20.0, 0.75)
    assert entry["malformed_rate"] == entry["unknown_tool_rate"] == entry["failed_rate"] == 0.25
    family = entry["by_category"][TASKS[0].family]
    assert family["n"] >= 1 and family["tool_failure_rate"] == 0.75
    table = family_table(entry)
    assert table.loc["all", "malformed"] == "25.0 %" and table.loc["all", "turns"] == "1.50"
    assert list(table.index) == ["all", *entry["by_category"]]


def test_an_id_may_hold_half_a_character():
    ts = [trajectory("t\ud800", 1.0, oks=(True,)), trajectory("u\udfff", 0.0)]
    tasks = [Task(t.task_id, "\ud800?", "1", family="\udfffA") for t in ts]
    comparison = compare({"sft": ts, "g": ts}, tasks)
    assert comparison.policies["sft"]["by_category"]["\udfffA"]["n"] == 2
    assert "\udfff" not in comparison._repr_html_() and "\\udfff" in comparison._repr_html_()
    assert behaviour({"sft": ts, "g": ts}, tasks).rates["calls"]["sft"]["value"] == 1.0
    assert failures({"sft": ts}, tasks)._repr_html_() and examples({"sft": ts, "g": ts}, tasks)._repr_html_()
    for table in (comparison.table(), family_table(comparison.policies["sft"])):
        to_csv(table).encode("utf-8", "replace")


def test_a_comparison_from_before_verdicts_still_reads():
    new = compare({"sft": singles([0.0, 1.0]), "grpo": singles([1.0, 1.0])}, TASKS).to_json()
    entry = {k: new["policies"]["sft"][k] for k in ("success", "ci95", "n", "samples", "unscored", "by_category",
             "by_difficulty", "turns_solved", "tool_failure_rate", "tokens")}  # fmt: skip
    pair = {k: new["paired"][0][k] for k in ("a", "b", "diff", "ci95", "p", "test", "n")}
    old = Comparison(2, {"sft": entry, "grpo": entry}, [pair], new["flipped"])
    assert (
        "Overall success" in old.table().index
        and "sft → grpo" in old.sentences()[0]
        and len(old.paired_table()) == 1
    )
    assert "Overall success" in old._repr_html_()


@pytest.mark.parametrize("part", ["n_tasks", "policies", "paired", "flipped"])
@pytest.mark.parametrize(
    "value", [None, 3, [3], {"sft": 3}, {"sft": {"success": "high"}}, [{"a": 1}], "missing"]
)
def test_a_comparison_of_wrong_types_is_one_sentence(part, value):
    found = compare({"sft": singles([0.0, 1.0]), "grpo": singles([1.0, 1.0])}, TASKS).to_json()
    damaged = {k: v for k, v in (found | {part: value}).items() if (k, v) != (part, "missing")}
    for broken in (damaged, value):
        try:
            assert Comparison.from_json(broken, "a/comparison.json").table() is not None
            assert part in ("n_tasks", "flipped") and broken is damaged, "nothing else can be shown so"
        except RunError as error:
            assert (
                "a/comparison.json" in str(error) and "notebook 05" in str(error) and "\n" not in str(error)
            )


def test_an_entry_without_breakdowns_is_shown_without_them():
    found = compare({"sft": singles([0.0, 1.0]), "grpo": singles([1.0, 1.0])}, TASKS).to_json()
    for entry in found["policies"].values():
        del entry["by_category"], entry["by_difficulty"]
    comparison = Comparison.from_json(found)
    assert "Overall success" in comparison.table().index and len(success_bars(comparison).data)


PUBLISHED = {  # the three-way table of six cases that a model card reported as -5 % for RL
    "Base": dict(zip("abcdef", (0.70, 0.70, 1.00, 1.00, 0.75, 0.70), strict=True)),
    "SFT": dict(zip("abcdef", (0.85, 1.00, 1.00, 1.00, 0.75, 0.85), strict=True)),
    "RL": dict(zip("abcdef", (0.70, 0.85, 1.00, 1.00, 0.75, 0.85), strict=True)),
}


def test_a_table_of_six_cases_shows_no_difference():
    table, sentences = case_table(PUBLISHED)
    assert list(table.loc["Average"]) == ["0.81", "0.91", "0.86"] and len(table) == 7
    assert (
        "SFT → RL: -5.0 points" in sentences[2] and "p = 0.25" in sentences[2] and "6 cases" in sentences[2]
    )
    assert all("No difference shown" in s for s in sentences)
    with pytest.raises(ValueError, match=r"scored on different cases: \['f'\]"):
        case_table({"a": PUBLISHED["Base"], "b": {c: 0.5 for c in "abcde"}})


def test_cases_follow_the_plan_or_the_tasks_own_name():
    def task(i, **meta):
        return Task(f"t{i}", "?", "1", meta=meta)

    search, compute = {"tool": "search"}, {"tool": "calculator"}
    plans = [
        [],
        [search],
        [search, search],
        [search, compute],
        [search, search, compute],
        [search] * 3 + [compute],
    ]
    tasks = [task(i, plan=plan) for i, plan in enumerate(plans)] + [task(6, case="Fictional scene"), task(7)]
    assert [case_of(t) for t in tasks] == [
        "No tools needed", "One tool call", "Multi-step, one tool", "Two tools, one call each",
        "Multi-step, several tools", "Full pipeline, 4 or more calls", "Fictional scene", "Family custom",
    ]  # fmt: skip
    assert case_scores(singles([1.0, 0.0, None]), tasks) == {"No tools needed": 1.0, "One tool call": 0.0}


def test_sentences_on_draws_and_on_where():
    comparison = compare({"sft": sampled([4, 2, 0, 1]), "grpo": sampled([4, 4, 0, 1])}, TASKS)
    assert comparison.draws()[0] == (
        "sft: 43.8 % with one sample; of 4 samples, 75.0 % if any right "
        "one counts, 25.0 % if all must be right."
    )
    assert "family A +25.0 [" in comparison.where("sft", "grpo")
    assert "none tested" in comparison.where("sft", "grpo")
    assert "difficulty hard" in comparison.where("sft", "grpo")
    bare = compare({"sft": singles([1.0, 0.0])})
    assert bare.draws() == [] and bare.where("sft", "grpo") == "There is no breakdown to compare."


def test_trajectories_under_each_others_names_are_refused():
    sft, grpo = singles([0.0, 1.0]), singles([1.0, 1.0], policy="grpo")
    assert compare({"sft": sft, "grpo": grpo}).paired[0]["diff"] == 0.5
    assert compare({"before": sft, "after": grpo}).paired[0]["diff"] == 0.5
    with pytest.raises(DataError, match="passed as sft are of grpo, and those passed as grpo are not"):
        compare({"sft": grpo, "grpo": sft})
    with pytest.raises(DataError, match="passed as a are of b"):
        compare(
            {
                "a": singles([0.0], policy="b"),
                "b": singles([0.0], policy="c"),
                "c": singles([1.0], policy="a"),
            }
        )
    with pytest.raises(DataError, match="a trajectory of task t0 is there twice"):
        compare({"sft": sft + sft, "grpo": grpo})
