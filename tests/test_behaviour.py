"""Behaviour, failure classes and examples on small written trajectories, each of which shows one thing."""

import csv
import io
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from agentkit.evaluation import tables
from agentkit.evaluation.behaviour import MEASURES, _change, behaviour
from agentkit.evaluation.examples import examples
from agentkit.evaluation.failures import FAILURES, failure_class, failures
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.records import DataError, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.rollouts import rollout
from agentkit.rollouts.call_formats import FORMATS, format_call


def step(tool, expect=None, **arguments):
    return {"tool": tool, "arguments": arguments} | ({"expect": expect} if expect is not None else {})


RATIO = Task(
    "ratio", "What is the area of Sudan divided by the area of Japan?", "4.93", {"kind": "numeric", "abs_tol": 0.0051}, "A",
    meta={"plan": [step("search", "1861484", query="area of Sudan"), step("search", "377835", query="area of Japan"),
                   step("calculator", expression="round({0} / {1}, 2)")]},
)  # fmt: skip
CHAIN = Task(
    "chain", "What is the capital of the country of the city Samfya?", "Lusaka", "exact", "B",
    meta={"plan": [step("search", "Zambia", query="country of Samfya"), step("search", "Lusaka", query="capital of Zambia")]},
)  # fmt: skip
WHICH = Task(
    "which", "Which country is larger, Iran or Mayotte?", "Iran", "exact", "A",
    meta={"plan": [step("search", "1648000", query="area of Iran"), step("search", "374", query="area of Mayotte"),
                   step("calculator", expression="{0} > {1}")], "answer_if": {"true": "Iran", "false": "Mayotte"}},
)  # fmt: skip
CODE = Task(
    "code", "Write f(n) that returns 2 n.", "def f(n): return 2 * n", {"kind": "code"}, "C", tools=("python",)
)
GIVES = Task(
    "gives",
    "Take x = 2: double it.",
    "4",
    "numeric",
    "C",
    tools=("python",),
    meta={"plan": [step("python", "4", code="...")]},
)
OPEN = Task("open", "Who wrote Emma?", "Jane Austen", "exact", "custom", tools=("search",))
PLAIN = Task("plain", "Say hello.", "hello", "exact", "custom", tools=(), meta={"plan": []})
OPPOSITE = Task("opposite", "The opposite of hot?", "cold", "exact", "custom", tools=(), meta={"plan": []})
TASKS = [RATIO, CHAIN, WHICH, CODE, GIVES, OPEN, PLAIN, OPPOSITE]

SEARCH = [{"type": "function", "function": {"name": "search", "parameters": {
    "type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}]  # fmt: skip
SUDAN = ToolResult("search", {"query": "area of Sudan"}, "[1] The area of Sudan is 1861484 square km.", True)
JAPAN = ToolResult("search", {"query": "area of Japan"}, "[1] The area of Japan is 377835 square km.", True)
RIGHT = ToolResult("calculator", {"expression": "round(1861484 / 377835, 2)"}, "4.93", True)
SUM = ToolResult("calculator", {"expression": "1861484 + 377835"}, "2239319", True)
TYPO = ToolResult("calculator", {"expression": "round(1861484 / 37783, 2)"}, "49.27", True)
BROKEN = ToolResult("", {}, "Error: malformed tool call.", False)
ZAMBIA = ToolResult(
    "search", {"query": "country of Samfya"}, "[1] The country of the city Samfya is Zambia.", True
)
LUSAKA = ToolResult("search", {"query": "capital of Zambia"}, "[1] The capital of Zambia is Lusaka.", True)
IRAN = ToolResult("search", {"query": "area of Iran"}, "[1] The area of Iran is 1648000 square km.", True)
MAYOTTE = ToolResult(
    "search", {"query": "area of Mayotte"}, "[1] The area of Mayotte is 374 square km.", True
)
LARGER = ToolResult("calculator", {"expression": "1648000 > 374"}, "true", True)
RAN = ToolResult("python", {"code": "print(f(2))"}, "5", True)
TESTED = ToolResult("python", {"code": "def f(n):\n  return n\nprint(f(2))"}, "2", True)


def made(task, answer, *calls, success=0.0, stop=StopReason.ANSWER, sample=0, said="", policy="sft"):
    """One trajectory: each call is a turn (a tuple of calls is one turn), then the answer."""
    turns = [
        Turn(f"{said}<tool_call>...</tool_call><|im_end|>", (0, 1), c if isinstance(c, tuple) else (c,))
        for c in calls
    ]
    turns += [Turn(f"Answer: {answer}<|im_end|>", (0, 1))] if answer is not None else []
    return Trajectory(
        task.id, policy, sample, 0, (1,), (2,), (1,), (0.0,), tuple(turns), stop, answer, success
    )


CASES = [
    ("engine failed", made(RATIO, None, SUDAN, stop=StopReason.ERROR)),
    ("out of time", made(RATIO, None, SUDAN, stop=StopReason.TIME_LIMIT)),
    ("went in circles", made(RATIO, None, SUDAN, SUDAN, SUDAN, stop=StopReason.TURN_LIMIT)),
    ("out of turns", made(RATIO, None, SUDAN, SUDAN, JAPAN, stop=StopReason.TURN_LIMIT)),
    ("out of tokens", made(RATIO, None, SUDAN, stop=StopReason.TOKEN_LIMIT)),
    ("out of tokens", made(RATIO, None, BROKEN, BROKEN, BROKEN, BROKEN, stop=StopReason.TRUNCATED_TURN)),
    ("no answer", made(RATIO, None, SUDAN, JAPAN)),
    ("no answer", made(RATIO, "  ", SUDAN, JAPAN)),
    ("gave up", made(RATIO, "I could not find this.", SUDAN)),
    ("gave up", made(OPEN, "Sorry, I don't know.")),
    ("answer form", made(RATIO, "4.93 or 5", SUDAN, JAPAN, RIGHT)),
    ("misreported", made(RATIO, "4.9", SUDAN, JAPAN, RIGHT)),
    ("answer form", made(CHAIN, "It is Lusaka, I think", ZAMBIA, LUSAKA)),
    ("no tool used", made(RATIO, "12")),
    ("no tool used", made(OPEN, "Charlotte Brontë")),
    ("no call worked", made(RATIO, "12", BROKEN, BROKEN)),
    ("lookup skipped", made(RATIO, "4", SUDAN)),
    ("lookup skipped", made(CHAIN, "Zambia", ZAMBIA)),
    ("lookup skipped", made(RATIO, "4", SUDAN, SUDAN)),  # the same call twice is one lookup
    ("lookup missed", made(RATIO, "4", SUDAN, LUSAKA, RIGHT)),
    ("lookup missed", made(OPEN, "Charlotte Brontë", ZAMBIA)),
    ("misreported", made(RATIO, "49.3", SUDAN, JAPAN, RIGHT)),
    ("misreported", made(CHAIN, "Zambia", ZAMBIA, LUSAKA)),
    ("misreported", made(WHICH, "Mayotte", IRAN, MAYOTTE, LARGER)),
    ("stopped after a failed call", made(RATIO, "377835", SUDAN, JAPAN, BROKEN)),
    ("step skipped", made(RATIO, "377835", SUDAN, JAPAN)),
    ("step skipped", made(WHICH, "Mayotte", IRAN, MAYOTTE)),
    ("wrong operands", made(RATIO, "49.27", SUDAN, JAPAN, TYPO)),
    ("wrong operation", made(RATIO, "2239319", SUDAN, JAPAN, SUM)),
    ("no tool used", made(CODE, "def f(n): return n")),
    ("untested program", made(CODE, "def f(n): return n", RAN)),
    ("wrong program", made(CODE, "```python\ndef f(n):\n    return n\n```", TESTED)),
    ("wrong program", made(GIVES, "5", RAN)),
    ("misreported", made(GIVES, "5", RAN, replace(RAN, observation="4"))),
    ("stopped after a failed call", made(GIVES, "5", RAN, replace(RAN, ok=False))),
    ("wrong result", made(PLAIN, "bye")),
    ("wrong result", made(OPPOSITE, "warm")),
    ("wrong result", made(OPEN, "Charlotte Brontë", RIGHT)),  # a tool that looks nothing up
    ("gave up", made(RATIO, "I couldn’t find this.", SUDAN)),
    ("gave up", made(OPEN, "I can’t determine it.")),
    ("gave up", made(OPEN, "I don’t know.")),
]


@pytest.mark.parametrize(("wanted", "trajectory"), CASES, ids=[f"{i} {c}" for i, (c, _) in enumerate(CASES)])
def test_each_failure_is_in_the_class_that_names_it(wanted, trajectory):
    assert failure_class(trajectory, {t.id: t for t in TASKS}[trajectory.task_id]) == wanted


def test_every_class_is_shown_by_a_case():
    assert {wanted for wanted, _ in CASES} == set(FAILURES)


def test_failures_count_each_failed_trajectory_once_and_leave_out_the_unscored():
    failed = [t for _, t in CASES]
    others = [made(RATIO, "4.93", SUDAN, JAPAN, RIGHT, success=1.0), made(RATIO, "?", SUDAN, success=None)]
    found = failures({"sft": failed + others, "grpo": others}, TASKS)
    assert sum(own["sft"] for own in found.counts.values()) == len(failed) and found.totals == {
        "sft": len(failed) + 1,
        "grpo": 1,
    }
    assert found.unscored == {"sft": 1, "grpo": 1} and list(found.counts) == list(FAILURES)
    assert (
        found.counts
        == {c: {"sft": n, "grpo": 0} for c, n in Counter(c for c, _ in CASES).items()} | found.counts
    )
    assert f"sft: {len(failed)} of {len(failed) + 1} trajectories failed" in found.sentences()[0]
    assert found.table().loc["all failures", "grpo"] == "0 (0.0%)"
    assert "1 trajectories could not be scored" in found._repr_html_()


@pytest.mark.parametrize(
    ("name", "trajectory", "wanted"),
    [
        ("retries", made(RATIO, "4.93", SUDAN, BROKEN, JAPAN), (1, 1)),
        ("retries", made(RATIO, "4.93", SUDAN, BROKEN), (0, 1)),
        ("retries", made(RATIO, None, SUDAN, BROKEN), (0, 0)),  # nothing came after: no occasion
        ("recovers", made(RATIO, "4.93", BROKEN, BROKEN, JAPAN), (1, 2)),
        ("plans", made(RATIO, "4.93", SUDAN, said="First I need both areas. "), (1, 1)),
        ("plans", made(RATIO, "4.93", SUDAN, said="<think>First I need both areas.</think>"), (1, 1)),
        ("plans", made(RATIO, "4.93", SUDAN), (0, 1)),
        ("plans", made(RATIO, "4.93"), (0, 0)),
        ("ungrounded", made(CODE, "def f(n): return n", TESTED), (0, 1)),
        ("ungrounded", made(CODE, "def f(n): return 2 * n", TESTED), (1, 1)),
        ("ungrounded", made(CODE, "def f(n): return n", replace(TESTED, ok=False)), (1, 1)),
        ("skips", made(GIVES, "4", RAN), (0, 0)),
        ("verifies", made(RATIO, "4.93", SUDAN, JAPAN, RIGHT, RIGHT), (1, 1)),
        ("verifies", made(RATIO, "4.93", SUDAN, JAPAN, RIGHT), (0, 1)),
        ("verifies", made(RATIO, "7", SUDAN, JAPAN, RIGHT), (0, 0)),
        ("repeats", made(RATIO, "4.93", SUDAN, JAPAN, SUDAN), (1, 3)),
        ("calls", made(RATIO, "4.93", SUDAN, (JAPAN, RIGHT), success=1.0), (3, 1)),
        ("calls", made(RATIO, "4", SUDAN, (JAPAN, RIGHT)), (0, 0)),
        ("no_tool", made(RATIO, "5"), (1, 1)),
        ("no_tool", made(PLAIN, "hello"), (0, 0)),
        ("skips", made(RATIO, "5", SUDAN, SUDAN, JAPAN), (1, 1)),
        ("skips", made(RATIO, "5", SUDAN, JAPAN, RIGHT), (0, 1)),
        ("skips", made(OPEN, "Jane Austen"), (0, 0)),
        ("ungrounded", made(RATIO, "5", SUDAN, JAPAN, RIGHT), (1, 1)),
        ("ungrounded", made(CHAIN, "lusaka.", ZAMBIA, LUSAKA), (0, 1)),
        ("gives_up", made(OPEN, "No information about this."), (1, 1)),
        ("gives_up", made(OPEN, "Jane Austen"), (0, 1)),
    ],
)
def test_each_measure_on_a_literal(name, trajectory, wanted):
    values = MEASURES[name].values(trajectory, {t.id: t for t in TASKS}[trajectory.task_id])
    assert (sum(values), len(values)) == wanted


@pytest.mark.parametrize("form", FORMATS)
def test_a_call_is_no_plan_in_any_form(form):
    call = format_call("search", {"query": "area of Sudan in square kilometres"}, form, SEARCH)
    for said, is_plan in ((call, 0), (f"First I need both areas. {call}", 1)):
        (first, *rest) = made(RATIO, "4.93", SUDAN).turns
        t = replace(made(RATIO, "4.93", SUDAN), turns=(replace(first, text=said), *rest))
        assert sum(MEASURES["plans"].values(t, RATIO)) == is_plan, said


def test_a_program_for_another_interpreter_is_a_program():
    plan = {"plan": [step("code_interpreter", "4", code="...")]}
    task = replace(GIVES, tools=("code_interpreter",), meta=plan)
    ran = replace(RAN, name="code_interpreter")
    assert failure_class(made(GIVES, "5", ran), task) == failure_class(made(GIVES, "5", RAN), GIVES)


def test_changes_are_over_tasks_and_corrected():
    tasks = [Task(f"t{i}", "?", "4.93", "exact", meta=RATIO.meta) for i in range(24)]
    before = [made(t, "5", SUDAN, sample=k) for t in tasks for k in range(3)]
    after = [made(t, "4.93", SUDAN, JAPAN, RIGHT, success=1.0, sample=k) for t in tasks[3:] for k in range(3)]
    after += [made(t, "5", SUDAN, sample=k) for t in tasks[:3] for k in range(3)]
    got = behaviour({"sft": before, "grpo": after}, tasks)
    skips = got.rates["skips"]
    assert skips["sft"]["value"] == 1.0 and skips["grpo"]["value"] == pytest.approx(3 / 24)
    assert skips["sft"]["ci95"][0] < 1.0 and skips["grpo"]["occasions"] == 72
    change = next(c for c in got.changes if c["measure"] == "skips")
    assert change["diff"] == pytest.approx(-21 / 24) and change["p"] < change["p_holm"] < 1e-6
    assert change["ci95"][0] < -21 / 24 < change["ci95"][1]
    assert any("skips a planned step: sft 100.0 %, grpo 12.5 %" in s for s in got.sentences())
    assert got.rates["retries"]["sft"] == {"value": None, "ci95": None, "occasions": 0, "tasks": 0}
    assert "no occasion" in got.table().loc["Retries after a failed call", "sft"]
    same = behaviour({"a": before, "b": before}, tasks)
    assert all(c["p"] == 1.0 for c in same.changes) and "No behaviour changed" in same.sentences()[0]


def test_policies_that_share_no_task_or_no_occasion_have_no_change():
    plain, ratio, which = (made(task, "5") for task in (PLAIN, RATIO, WHICH))
    with pytest.raises(DataError, match="a and b share no task"):
        behaviour({"a": [plain], "b": [ratio]}, TASKS)
    found = behaviour({"a": [plain, ratio], "b": [plain, which]}, TASKS)
    assert "no_tool" not in {change["measure"] for change in found.changes}


def test_a_change_in_a_few_tasks_is_judged_by_these():
    """Tasks without an occasion say nothing about it; a change that is the same everywhere is one."""
    calls = MEASURES["calls"]
    before = {f"t{i}": np.array([4.0 + i % 2, 1.0] if i < 10 else [0.0, 0.0]) for i in range(100)}
    after = {
        t: np.array([own[0] - 1 - (i % 3 == 0), 1.0]) if own[1] else own
        for i, (t, own) in enumerate(before.items())
    }
    few = _change(before, after, calls)
    alone = [{t: own[t] for t in list(own)[:10]} for own in (before, after)]
    assert few == _change(*alone, calls) and few["p"] < 1e-3 and few["ci95"][1] < 0
    steady = _change(alone[0], {t: own + [1.0, 0.0] for t, own in alone[0].items()}, calls)
    assert steady["diff"] == 1.0 and steady["p"] < 0.01


def test_examples_are_diverse_and_chosen_by_the_rule():
    rng = np.random.default_rng(0)
    tasks, before, after = [], [], []
    for i in range(60):
        family, difficulty = "AB"[i % 2], ("easy", "medium", "hard")[i // 2 % 3]
        tasks.append(Task(f"t{i:02}", f"q{i}", "4.93", "exact", family, difficulty, meta=RATIO.meta))
        wrong = [
            made(tasks[i], "5", SUDAN),
            made(tasks[i], "sorry"),
            made(tasks[i], "49.3", SUDAN, JAPAN, RIGHT),
        ][i // 6 % 3]
        before.append(wrong)
        after.append(
            made(tasks[i], "4.93", SUDAN, JAPAN, RIGHT, success=1.0) if rng.random() < 0.6 else wrong
        )
    got = examples({"sft": before, "grpo": after}, tasks)
    rates = {t.task_id: t.success for t in after}
    assert len(got.gained) == 10 and all(rates[i] == 1.0 for i in got.gained)
    assert len(got.failing) == 5 and all(rates[i] == 0.0 for i in got.failing)
    chosen = got.table.iloc[:10]
    assert Counter(chosen["family"]) == {"A": 5, "B": 5} and set(Counter(chosen["difficulty"]).values()) == {
        3,
        4,
    }
    assert set(Counter(chosen["how it failed"]).values()) == {3, 4}
    assert got.gained == examples({"sft": before[::-1], "grpo": after[::-1]}, tasks[::-1]).gained
    assert len(examples({"sft": before[:3], "grpo": after[:3]}, tasks).gained) <= 3
    none = examples({"sft": after, "grpo": after}, tasks, failing=0)
    assert none.gained == none.failing == [] and none._repr_html_()


def test_nothing_a_model_wrote_breaks_or_steers_the_reading():
    hostile = [
        "<script>alert(1)</script>",
        "\ud800",
        "\0",
        "9" * 500,
        "1e999999",
        "(" * 100_000,
        "a" * 1_000_000,
        "| & % \\",
        "−5",
    ]
    for text in hostile:
        t = made(RATIO, text, ToolResult(text[:50], {"q": text}, text, True), SUDAN, said=text[:1000])
        assert failure_class(t, RATIO) in FAILURES
        assert behaviour({"sft": [t]}, TASKS).table() is not None
    odd = Task("ratio", "?", "4.93", "exact", meta={"plan": "none", "answer_if": [1]})
    assert failure_class(made(RATIO, "5", SUDAN), odd) in FAILURES
    assert (
        failure_class(
            made(RATIO, "5", SUDAN), Task("ratio", "?", "4.93", meta={"plan": [3, {}, {"tool": "x"}]})
        )
        in FAILURES
    )
    shown = behaviour({"<b>sft": [made(RATIO, "5", SUDAN)]}, TASKS)._repr_html_()
    assert "&lt;b&gt;sft" in shown and "<b>" not in shown


@pytest.mark.parametrize(
    ("flaws", "classes"),
    [
        (Flaws(give_up=1.0), {"gave up"}),
        (Flaws(in_head=1.0), {"step skipped"}),
        (Flaws(wrong_operation=1.0), {"wrong operation", "wrong operands", "answer form", "misreported"}),
        (Flaws(skip_lookup=1.0), {"lookup skipped"}),
    ],
)
def test_a_scripted_flaw_is_found_as_what_it_is(suite, tokenizer, flaws, classes):
    tasks = suite.split("test")
    rolled = rollout(tasks, ScriptedPolicy(tokenizer, flaws), seed=1)
    counts = {c: own["flawed"] for c, own in failures({"flawed": rolled}, tasks).counts.items()}
    assert sum(counts.values()) > 3 and sum(counts.get(c, 0) for c in classes) >= 0.9 * sum(
        counts.values()
    ), counts


# ---- tables as text
def test_pasted_tables_escape_what_would_be_markup():
    import pandas as pd

    table = pd.DataFrame({"a_b & 50 %": {"x|y\nz": "=1+1", "<i>": "~^\\"}})
    assert tables.to_markdown(table).splitlines()[
        0
    ] == "|  | a_b & 50 % |" and "x\\|y z" in tables.to_markdown(table)
    tex = tables.to_latex(table, caption="100 % of $x_1$", label="tab:x")
    assert r"a\_b \& 50 \%" in tex and r"\textasciitilde{}\textasciicircum{}\textbackslash{}" in tex
    assert r"\caption{100 \% of \$x\_1\$}" in tex and r"\label{tab:x}" in tex and tex.count(r" \\") == 3
    assert "'=1+1" in tables.to_csv(table)
    assert "&lt;i&gt;" in tables.to_html(table) and "<i>" not in tables.to_html(table)


@pytest.mark.parametrize(
    ("cell", "guarded"),
    [("+cmd|' /C calc'!A0", True), ("-1+1", True), ("-A1", True), ("+1\n=2", True), ("-", True), ("--1", True),
     ("-1+1 [0, 1]", True), ("-1.5", False), ("+1e-05", False), ("-1.5 [-3.7, +0.8]", False), ("+0.5 points", False),
     ("-1.5 [-3.7, +0.8] points", False), ("-2.0 % [-3.0, -1.0]", False), ("5-4", False), ("–", False)],
)  # fmt: skip
def test_no_cell_of_a_csv_runs_and_numbers_stay_numbers(cell, guarded):
    import pandas as pd

    text = tables.to_csv(pd.DataFrame({"a": {cell: "x"}}))
    assert list(csv.reader(io.StringIO(text, newline="")))[1][0] == "'" * guarded + cell


def test_a_row_of_latex_begins_with_nothing_that_its_line_break_would_take():
    import pandas as pd

    tex = tables.to_latex(pd.DataFrame({"a": {"[2pt] x": "*", "*": "b", "c*[1]": "d"}}))
    rows = tex.split(r"\midrule" + "\n")[1].split("\n")[:3]
    assert rows == [r"{[2pt] x} & {*} \\", r"{*} & b \\", r"c*[1] & d \\"]
