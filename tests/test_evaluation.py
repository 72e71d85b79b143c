"""One policy measured, several compared, the headline and the tables, on literals."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from agentkit.evaluation import Comparison, compare, summarize, task_success
from agentkit.evaluation.examples import examples
from agentkit.evaluation.headline import spoilt
from agentkit.evaluation.tables import save, text_table, to_html
from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import Run, append_jsonl


def trajectory(task_id, success, sample=0, policy="sft", oks=(), tokens=4):
    """A trajectory with one turn per tool call in ``oks`` and a final turn."""
    called = [Turn("<tool_call>", (0, 1), (ToolResult("search", {}, "seen", ok),)) for ok in oks]
    own = (1,), tuple(range(tokens)), (1,) * tokens, (0.0,) * tokens, (*called, Turn("done", (0, 1)))
    return Trajectory(task_id, policy, sample, 0, *own, StopReason.ANSWER, "done", success)


def singles(outcomes, **options):
    """One sample a task."""
    return [trajectory(f"t{i}", s, **options) for i, s in enumerate(outcomes)]


def rated(rates, policy="sft"):
    """Four samples a task, so many of them right."""
    return [trajectory(f"t{i}", float(k < r), k, policy) for i, r in enumerate(rates) for k in range(4)]


KINDS = ("A", "hard"), ("A", "easy"), ("B", "easy"), ("B", "medium")
TASKS = [Task(f"t{i}", "?", "1", family=family, difficulty=level) for i, (family, level) in enumerate(KINDS)]
TASKS.append(Task("unused", "?", "1", family="C", difficulty="easy"))


# ---- one policy
def test_summary_of_literals():
    given = (1.0, (True, False), 10), (0.0, (False,), 20), (1.0, (True,), 30), (None, (), 40)
    ts = [trajectory(f"t{i}", s, oks=oks, tokens=n) for i, (s, oks, n) in enumerate(given)]
    got = summarize(ts, TASKS)
    assert got["success"] == pytest.approx(2 / 3)
    assert got["ci95"] == pytest.approx([0.2077, 0.9385], abs=1e-4)  # Wilson of 2 in 3, by hand
    assert (got["n"], got["samples"], got["unscored"]) == (3, 1, 1)
    assert (got["turns_solved"], got["tool_failure_rate"], got["tokens"]) == (2.5, 0.5, 25)
    assert got["by_category"]["A"]["success"] == 0.5 and got["by_category"]["A"]["n"] == 2
    assert list(got["by_category"]) == ["A", "B"]
    assert list(got["by_difficulty"]) == ["easy", "medium", "hard"]
    assert got["by_difficulty"]["medium"] == {"success": None, "ci95": None, "n": 0}
    nothing = summarize(singles([0.0, 0.0]))
    assert nothing["turns_solved"] is nothing["tool_failure_rate"] is None, "not 0"


def test_samples_are_averaged_within_a_task_first():
    ts = [trajectory("a", s, i) for i, s in enumerate([1.0, 1.0, 1.0, 0.0])] + [trajectory("b", 0.0)]
    got = summarize(ts)
    assert got["success"] == 0.375  # (0.75 + 0) / 2, not 3 / 5
    assert got["samples"] == 2.5 and got["by_category"] == {} and task_success(ts) == {"a": 0.75, "b": 0.0}


def test_the_best_and_the_worst_of_k_samples():
    ts = rated([4, 2, 0]) + [trajectory("t3", s, j) for j, s in enumerate([1.0, None, None, 1.0])]
    got = summarize(ts)
    assert (got["k"], got["unscored"]) == (4, 2)
    assert got["pass_at_k"]["n"] == 3, "a task of two samples is left out"
    assert got["pass_at_k"]["success"] == pytest.approx(2 / 3)
    assert got["pass_hat_k"]["success"] == pytest.approx(1 / 3)
    assert "k" not in summarize(singles([1.0, 0.0]))
    one_each = summarize({1: singles([1.0, None]), 2: singles([None, 1.0])})
    assert "k" not in one_each and one_each["unscored"] == 2, "no seed scored both"


def test_how_calls_fail_and_text_without_tokens():
    results = (
        ToolResult("search", {}, "found", True),
        ToolResult("", {}, "Error: no JSON.", False),
        ToolResult("fly", {}, "Error: there is no tool 'fly'; there are search.", False),
        ToolResult("search", {}, "Error: the index is closed.", False),
    )
    called = replace(trajectory("t0", 1.0), turns=(Turn("", (0, 1), results), Turn("", (1, 2))))
    entry = summarize([called, trajectory("t1", 0.0)])
    assert (entry["turns"], entry["tool_failure_rate"]) == (1.5, 0.75)
    assert entry["malformed_rate"] == entry["unknown_tool_rate"] == entry["failed_rate"] == 0.25
    text = [replace(t, prompt_ids=(), completion_ids=()) for t in singles([1.0, 0.0])]
    assert summarize(text)["tokens"] is None and summarize([*text, trajectory("t2", 1.0)])["tokens"] == 4


def test_clear_errors():
    some = singles([1.0, 0.0])
    with pytest.raises(ValueError, match="none of the 2 trajectories is scored"):
        summarize(singles([None, None]))
    with pytest.raises(ValueError, match=r"tasks of sft missing in grpo \(1\): t1"):
        compare({"sft": some, "grpo": some[:1]})
    with pytest.raises(ValueError, match=r"tasks of the trajectories missing in the given tasks \(1\): t9"):
        summarize([trajectory("t9", 1.0)], TASKS)
    with pytest.raises(ValueError, match="task t0, sample 0: success is nan"):
        summarize(singles([float("nan")]))
    with pytest.raises(ValueError, match=r"tasks of seed 1 missing in seed 7 \(1\): t2"):
        compare({"sft": singles([1.0] * 3), "grpo": {1: singles([1.0] * 3), 7: some}})
    with pytest.raises(ValueError, match="share no task that is scored"):
        compare({"a": singles([0.0, None]), "b": singles([None, 1.0])})


# ---- pairs
def test_comparison_json_has_its_form():
    sft, grpo = singles([0.0, 0.0, 1.0, 0.0]), singles([1.0, 1.0, 0.0, 0.0], policy="grpo")
    got = compare({"sft": sft, "grpo": grpo}, TASKS).to_json()
    (pair,) = got["paired"]
    assert got["n_tasks"] == 4 and pair.keys() >= {"a", "b", "diff", "ci95", "p", "test", "n"}
    assert (pair["a"], pair["b"]) == ("sft", "grpo")
    assert (pair["diff"], pair["test"], pair["n"]) == (0.25, "paired_t", 4)
    assert pair["p"] == pytest.approx(ttest_1samp([1, 1, -1, 0], 0).pvalue)
    part = compare({"a": singles([0.0, None, 1.0]), "b": singles([1.0, 1.0, None])}).paired[0]
    assert part["n"] == 1 and part["diff"] == part["p"] == 1.0, "what both have a score for"
    assert got["flipped"] == {"sft->grpo": {"to_right": ["t0", "t1"], "to_wrong": ["t2"]}}
    entry = "success ci95 by_category by_difficulty turns_solved tool_failure_rate tokens"
    assert got["policies"]["sft"].keys() >= set(entry.split())
    assert got["headline"].keys() == {"policy", "best_other", "diff", "ci95", "p", "sentence"}
    text = json.dumps(got, allow_nan=False)
    assert Comparison.from_json(json.loads(text)).to_json() == got


def test_every_pair_is_tested_and_holm_decides():
    flat, better = [0] * 30 + [1] * 30, [1] * 20 + [0] * 10 + [1] * 30
    names = {"base": flat, "sft": flat[::-1], "grpo": better}
    comparison = compare({n: singles(map(float, rates), policy=n) for n, rates in names.items()})
    pairs = {(p["a"], p["b"]): p for p in comparison.paired}
    assert list(pairs) == [("base", "sft"), ("base", "grpo"), ("sft", "grpo")]
    assert pairs["base", "grpo"]["verdict"] == "better"
    assert pairs["base", "sft"]["verdict"] == "no difference shown"
    assert pairs["base", "grpo"]["p_holm"] == pytest.approx(3 * pairs["base", "grpo"]["p"])  # the smallest
    said = comparison.sentences()
    assert "grpo is better." in said[1] and "after Holm over 3 comparisons" in said[1]
    assert "a single test could have seen" in said[0]


def test_families_difficulties_and_new_templates_are_described_and_not_tested():
    before, after = singles([0.0, 0.0, 0.0, 1.0]), singles([1.0, 1.0, 0.0, 0.0], policy="grpo")
    tasks = [replace(task, meta={"new_template": task.id < "t2"}) for task in TASKS]
    comparison = compare({"sft": before, "grpo": after}, tasks)
    (pair,) = comparison.paired
    assert pair["by_category"]["A"]["diff"] == 1.0 and pair["by_category"]["B"]["diff"] == -0.5
    assert pair["by_novelty"]["new"]["n"] == 2 and pair["by_category"]["A"].keys() == {"diff", "ci95", "n"}
    assert set(comparison.paired_table()["verdict"][1:]) == {"described, not tested"}
    assert list(comparison.paired_table()["tasks"]) == [
        "all tasks", "family A", "family B", "difficulty easy", "difficulty medium", "difficulty hard",
        "new templates", "trained templates",
    ]  # fmt: skip


def test_several_training_seeds_are_a_random_effect():
    rng = np.random.default_rng(0)
    base = rated(rng.integers(0, 5, 40))
    lifts = ((1, 0), (2, 1), (3, 3))
    seeds = {s: rated(np.clip(rng.integers(0, 5, 40) + lift, 0, 4), "grpo") for s, lift in lifts}
    comparison = compare({"sft": base, "grpo": seeds})
    (pair,), entry = comparison.paired, comparison.policies["grpo"]
    assert pair["test"] == "seeds_and_tasks_t" and list(entry["seeds"]) == ["1", "2", "3"]
    assert entry["success"] == pytest.approx(np.mean(list(entry["seeds"].values())))
    pooled = compare({"sft": base, "grpo": [t for own in seeds.values() for t in own]}).paired[0]
    width, pooled_width = (high - low for low, high in (pair["ci95"], pooled["ci95"]))
    assert pair["diff"] == pytest.approx(pooled["diff"])
    assert width > 2 * pooled_width, "seeds that differ are uncertainty"
    with pytest.raises(ValueError, match=r"training seeds \[\(1, 2, 3\), \(1, 2\)\]: pass the same ones"):
        compare({"a": seeds, "b": {1: base, 2: base}})


def test_two_seeds_give_an_interval_and_no_verdict():
    base, lifted = rated([0, 1, 1, 2] * 10), rated([4, 4, 3, 4] * 10, "b")
    two = compare({"a": base, "b": {1: lifted, 2: lifted}})
    (pair,) = two.paired
    assert pair["p"] is pair["p_holm"] is None and pair["ci95"][0] > 0.5
    assert "No verdict: two seeds" in two.sentences()[0] and two.paired_table()["p"][0] == "–"
    assert "two training seeds are too few for a test" in two.headline["sentence"]
    assert compare({"a": base, "b": {1: lifted, 2: lifted, 3: lifted}}).paired[0]["verdict"] == "better"


def test_a_template_is_no_more_than_one_piece_of_evidence():
    tasks = [Task(f"t{i}", "?", "1", "numeric", "A", meta={"template": "ab"[i > 0]}) for i in range(20)]
    found = compare({"sft": singles([1.0] + [0.0] * 19), "grpo": singles([0.0] + [1.0] * 19)}, tasks)
    (pair,), said = found.paired, found.headline["sentence"]
    assert pair["by_template"]["n"] == 2 and pair["by_template"]["p"] > 0.05 > pair["p"]
    assert "more than SFT" in said and " Clustered by template it is not shown: +90.0 [" in said
    assert "by_template" not in compare({"a": singles([1.0]), "b": singles([1.0])}).paired[0]


def test_a_share_of_a_programs_tests_has_one_meaning():
    """Table, sentences and interval speak of the mean of the shares, and no share solves a task."""
    rng = np.random.default_rng(0)

    def policy(name, shares):
        return [trajectory(f"t{i}", float(rng.choice(shares)), k, name) for i in range(60) for k in range(4)]

    sft = policy("sft", (0.2, 0.4, 0.6))
    found = compare({"sft": sft, "grpo": policy("grpo", (0.6, 0.8))})
    low, high = found.policies["sft"]["ci95"]
    error = np.std(list(task_success(sft).values()), ddof=1) / 60**0.5
    assert high - low == pytest.approx(2 * 2.001 * error, rel=1e-3), "a mean's interval, not a proportion's"
    assert found.lead()[0].startswith("GRPO scores ") and " on 60 held-out tasks, " in found.lead()[0]
    better = {"sft": [trajectory("t0", 0.25)], "grpo": [trajectory("t0", 9 / 16)]}
    assert list(examples(better, TASKS)["outcome"]) == ["still fails"]


# ---- the headline
def test_the_headline_is_the_last_policy_against_the_best_of_the_others():
    policies = {"base": rated([0] * 40), "sft": rated([1, 2] * 20), "sft_more": rated([2] * 40), "grpo": rated([3, 4] * 20)}  # fmt: skip
    comparison = compare(policies)
    pair = next(pair for pair in comparison.paired if (pair["a"], pair["b"]) == ("sft_more", "grpo"))
    (low, high), said = pair["ci95"], comparison.headline["sentence"]
    assert comparison.headline == {
        "sentence": said, "policy": "grpo", "best_other": "sft_more", "diff": 0.375, "ci95": [low, high], "p": pair["p_holm"],
    }  # fmt: skip
    assert said == (
        f"GRPO solves 87.5 % of 40 held-out tasks, 37.5 points [{100 * low:.1f}, {100 * high:.1f}] more than "
        "SFT with more data, the best of base, SFT and SFT with more data (p < 0.0001, corrected for 6 "
        "comparisons, clustered by task)."
    )
    beaten = compare(policies | {"sft_more": rated([4] * 40), "grpo": rated([1, 2] * 20)}).headline
    assert beaten["best_other"] == "sft_more" and beaten["diff"] == -0.625
    assert "] fewer than SFT with more data, the best of base, SFT and SFT with" in beaten["sentence"]
    first = compare(policies | {"base": rated([3] * 40)}).headline
    assert first["best_other"] == "base", "the best of the others, wherever it stands"
    worse = compare({"grpo": policies["grpo"], "rft": policies["sft_more"]}).headline["sentence"]
    assert worse.startswith("Rejection sampling solves 50.0 % of 40 held-out tasks, 37.5 points [")
    assert worse.endswith("] fewer than GRPO (p < 0.0001, clustered by task).")


def test_a_headline_says_where_nothing_is_shown():
    sft, grpo = singles([0.0, 0.0, 1.0, 0.0]), singles([1.0, 1.0, 0.0, 0.0], policy="grpo")
    found = compare({"sft": sft, "grpo": grpo})
    (low, high), p = found.headline["ci95"], found.headline["p"]
    assert found.headline["sentence"] == (
        "GRPO solves 50.0 % of 4 held-out tasks, and SFT 25.0 %: a difference is not shown "
        f"(+25.0 [{100 * low:+.1f}, {100 * high:+.1f}] points, p = {p:.2g}, clustered by task)."
    )
    assert compare({"sft": sft}).headline is None and compare({"sft": sft}).lead() == []


def trained(path, norm=0.1, **stage):
    """A run whose GRPO came to an end like that, after steps with this norm of the gradient."""
    run = Run.create(path)
    run.update(stages={"03_grpo": {"status": "done"} | stage})
    for step in (1, 2):
        append_jsonl(run.file("train", "metrics.jsonl"), {"step": step, "grad_norm": norm})
    return run


def test_grpo_that_kept_step_0_claims_no_gain(tmp_path):
    found = compare({"base": rated([0] * 40), "grpo": rated([4] * 40, "grpo")})
    kept = found.of_run(trained(tmp_path / "a", best_step=0, steps=40))
    assert kept.lead()[0].startswith("GRPO kept the adapter of step 0: no step improved on its start")
    assert kept.lead()[0].endswith("It solves 100.0 % of 40 held-out tasks, and no gain is claimed.")
    assert kept.to_json()["policies"]["grpo"]["trained_step"] == 0
    still = found.of_run(trained(tmp_path / "d", norm=0.0, best_step=2))
    assert still.lead() == kept.lead(), "no step had a gradient"
    later = found.of_run(trained(tmp_path / "b", best_step=20))
    assert later.policies["grpo"]["trained_step"] == 20 and later.lead() == found.lead()
    assert found.of_run(Run.create(tmp_path / "c")) == found, "notebook 03 has not ended"
    harmful = compare({"base": rated([4] * 40), "grpo": rated([0] * 40, "grpo")})
    (said,) = harmful.of_run(trained(tmp_path / "e", best_step=0, steps=40, measured_step=40)).lead()
    assert said.startswith("Validation preferred the start to what training made of it; the last step, 40, ")
    assert said.endswith(f"so that harm can be seen. {harmful.lead()[0]}") and "points" in harmful.lead()[0]


def test_a_cold_start_that_did_harm_is_warned_of():
    pair = compare({"base": rated([3, 4] * 20), "sft": rated([1, 2] * 20)}).paired[0]
    assert spoilt(pair).startswith("**The cold start made the agent worse than it was before: -50.0 [")
    assert spoilt(compare({"base": rated([1, 2] * 20), "sft": rated([2, 1] * 20)}).paired[0]) == ""


# ---- tables
def test_table_and_html():
    policies = {"sft": singles([0.0, 1.0, 1.0, 0.0]), "gr<b>po": singles([1.0] * 4, oks=(True, False))}
    comparison = compare(policies, TASKS)
    table = comparison.table()
    assert list(table.index) == [
        "Overall success", "Family A (math)", "Family B (multi-hop)", "Difficulty easy",
        "Difficulty medium", "Difficulty hard", "Average turns", "Average turns (successful tasks)",
        "Tool call failure rate", "… malformed calls", "… calls of unknown tools", "… calls that failed",
        "Average tokens per task",
    ]  # fmt: skip
    assert table["sft"]["Overall success"] == "50.0 % [15.0, 85.0]"
    assert table["sft"]["Tool call failure rate"] == "–"
    assert table["gr<b>po"]["Tool call failure rate"] == "50.0 %"
    page = comparison._repr_html_()
    assert "gr&lt;b&gt;po" in page and "<b>" not in page and "paired t test, 4 tasks" in page
    assert page.index("<p>") < page.index("<table>"), "the headline stands above the table"


def test_tables_are_saved_in_three_forms_that_escape_what_would_be_markup(tmp_path):
    table = text_table({"x|y\nz": {"a_b & 50 %": "1"}, "<i>": {"a_b & 50 %": "\ud800"}})
    paths = save(table, tmp_path / "t", "100 % of them")
    assert [path.suffix for path in paths] == [".md", ".tex", ".csv"]
    markdown, tex, rows = (path.read_text() for path in paths)
    assert markdown.splitlines()[2] == "| x\\|y z | 1 |" and "&lt;i>" in markdown
    assert r"a\_b \& 50 \%" in tex and r"\caption{100 \% of them}" in tex and "\\toprule" in tex
    assert rows.startswith(",a_b & 50 %") and "<i>" not in to_html(table)
