"""Behaviour, failure classes and examples on small written trajectories, each of which shows one thing."""

from collections import Counter
from dataclasses import replace

import pytest

from agentkit.evaluation.behaviour import HABITS, behaviour
from agentkit.evaluation.failures import FAILURES, failure_class, failures
from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn


def step(tool, expect=None, **arguments):
    return {"tool": tool, "arguments": arguments} | ({"expect": expect} if expect is not None else {})


RATIO = Task(
    "ratio", "What is the area of Sudan divided by the area of Japan?", "4.93", {"kind": "numeric", "abs_tol": 0.0051}, "A",
    meta={"plan": [step("search", "1861484", query="area of Sudan"), step("search", "377835", query="area of Japan"),
                   step("calculator", expression="round({0} / {1}, 2)")]})  # fmt: skip
WHICH = Task(
    "which", "Which country is larger, Iran or Mayotte?", "Iran", "exact", "A",
    meta={"plan": [step("search", "1648000", query="area of Iran"), step("search", "374", query="area of Mayotte"),
                   step("calculator", expression="{0} > {1}")], "answer_if": {"true": "Iran", "false": "Mayotte"}})  # fmt: skip
CODE = Task("code", "Write f(n): 2 n.", "def f(n): return 2 * n", {"kind": "code"}, "C", tools=("python",))
PLANNED = {"plan": [step("python", "4", code="...")]}
GIVES = Task("gives", "Take x = 2: double it.", "4", "numeric", "C", tools=("python",), meta=PLANNED)
OPEN = Task("open", "Who wrote Emma?", "Jane Austen", "exact", "custom", tools=("search",))
PLAIN = Task("plain", "Say hello.", "hello", "exact", "custom", tools=(), meta={"plan": []})
TASKS = [RATIO, WHICH, CODE, GIVES, OPEN, PLAIN]


def seen(query, said):
    return ToolResult("search", {"query": query}, f"[1] The {query} is {said}.", True)


def computed(expression, value):
    return ToolResult("calculator", {"expression": expression}, value, True)


SUDAN, JAPAN = seen("area of Sudan", "1861484 square km"), seen("area of Japan", "377835 square km")
LUSAKA = seen("capital of Zambia", "Lusaka")
IRAN, MAYOTTE = seen("area of Iran", "1648000 square km"), seen("area of Mayotte", "374 square km")
RIGHT, SUM = computed("round(1861484 / 377835, 2)", "4.93"), computed("1861484 + 377835", "2239319")
TYPO, LARGER = computed("round(1861484 / 37783, 2)", "49.27"), computed("1648000 > 374", "true")
BROKEN = ToolResult("", {}, "Error: malformed tool call.", False)
RAN = ToolResult("python", {"code": "print(f(2))"}, "5", True)
TESTED = ToolResult("python", {"code": "def f(n):\n  return n\nprint(f(2))"}, "2", True)


def made(task, answer, *calls, success=0.0, stop=StopReason.ANSWER, sample=0, policy="sft"):
    """One trajectory: each call is a turn, then the answer."""
    turns = [Turn("<tool_call>...</tool_call><|im_end|>", (0, 1), (call,)) for call in calls]
    turns += [Turn(f"Answer: {answer}<|im_end|>", (0, 1))] if answer is not None else []
    tokens = (1,), (2,), (1,), (0.0,)
    return Trajectory(task.id, policy, sample, 0, *tokens, tuple(turns), stop, answer, success)


CASES = [
    ("engine failed", made(RATIO, None, SUDAN, stop=StopReason.TIME_LIMIT)),
    ("out of turns", made(RATIO, None, SUDAN, SUDAN, JAPAN, stop=StopReason.TURN_LIMIT)),
    ("out of tokens", made(RATIO, None, BROKEN, stop=StopReason.TRUNCATED_TURN)),
    ("answer form", made(RATIO, None, SUDAN, JAPAN)),
    ("answer form", made(RATIO, "4.93 or 5", SUDAN, JAPAN, RIGHT)),
    ("no call worked", made(RATIO, "12")),
    ("misreported", made(RATIO, "49.3", SUDAN, JAPAN, RIGHT)),
    ("misreported", made(WHICH, "Mayotte", IRAN, MAYOTTE, LARGER)),
    ("misreported", made(GIVES, "5", RAN, replace(RAN, observation="4"))),
    ("stopped after a failed call", made(RATIO, "377835", SUDAN, JAPAN, BROKEN)),
    ("fact not found", made(RATIO, "4", SUDAN, LUSAKA, SUM)),
    ("step skipped", made(RATIO, "377835", SUDAN, JAPAN)),
    ("wrong result", made(RATIO, "49.27", SUDAN, JAPAN, TYPO)),
    ("wrong result", made(CODE, "```python\ndef f(n):\n    return n\n```", TESTED)),
]


@pytest.mark.parametrize(("wanted", "trajectory"), CASES, ids=[f"{i} {c}" for i, (c, _) in enumerate(CASES)])
def test_each_failure_is_in_the_class_that_names_it(wanted, trajectory):
    assert failure_class(trajectory, {t.id: t for t in TASKS}[trajectory.task_id]) == wanted


def test_failures_count_each_failed_trajectory_once_and_leave_out_the_unscored():
    failed = [t for _, t in CASES]
    others = [made(RATIO, "4.93", SUDAN, JAPAN, RIGHT, success=1.0), made(RATIO, "?", SUDAN, success=None)]
    found = failures({"sft": failed + others, "grpo": others}, TASKS)
    assert dict(found["sft"]) == Counter(c for c, _ in CASES) and list(found.index) == list(FAILURES)
    assert found["grpo"].sum() == 0 and failures({"sft": others}, TASKS).empty


@pytest.mark.parametrize(("name", "trajectory", "wanted"), [
    ("Retries", made(RATIO, "4.93", SUDAN, BROKEN, JAPAN), (1, 1)),
    ("Retries", made(RATIO, None, SUDAN, BROKEN), (0, 0)),  # nothing came after: no occasion
    ("Recovers", made(RATIO, "4.93", BROKEN, BROKEN, JAPAN), (1, 2)),
    ("Verifies", made(RATIO, "4.93", SUDAN, JAPAN, RIGHT, RIGHT), (1, 1)),
    ("Verifies", made(RATIO, "4.93", SUDAN, JAPAN, RIGHT), (0, 1)),
    ("Repeats", made(RATIO, "4.93", SUDAN, JAPAN, SUDAN), (1, 3)),
    ("Shortcut: answers", made(RATIO, "5"), (1, 1)),
    ("Shortcut: answers", made(PLAIN, "hello"), (0, 0)),
    ("Shortcut: skips", made(RATIO, "5", SUDAN, SUDAN, JAPAN), (1, 1)),
    ("Shortcut: skips", made(GIVES, "4", RAN), (0, 0)),
    ("Shortcut: answer from", made(RATIO, "5", SUDAN, JAPAN, RIGHT), (1, 1)),
    ("Shortcut: answer from", made(CODE, "def f(n): return n", TESTED), (0, 0)),
    ("Gives", made(OPEN, "No information about this."), (1, 1)),
])  # fmt: skip
def test_each_habit_on_a_literal(name, trajectory, wanted):
    (habit,) = (habit for habit in HABITS if habit.title.startswith(f"{name} "))
    values = habit.values(trajectory, {t.id: t for t in TASKS}[trajectory.task_id])
    assert (sum(values), len(values)) == wanted


def test_nothing_a_model_wrote_breaks_the_reading():
    for text in ("\ud800", "\0", "9" * 500, "1e999999", "(" * 100_000, "a" * 1_000_000, "−5"):
        t = made(RATIO, text, ToolResult(text[:50], {"q": text}, text, True), SUDAN)
        assert failure_class(t, RATIO) in FAILURES
        assert len(behaviour({"sft": [t]}, TASKS)) == len(HABITS)


def test_habits_are_shares_of_their_occasions_clustered_by_task():
    tasks = [Task(f"t{i}", "?", "4.93", "exact", meta=RATIO.meta) for i in range(24)]
    after = [made(t, "4.93", SUDAN, JAPAN, RIGHT, success=1.0, sample=k) for t in tasks[3:] for k in range(3)]
    after += [made(t, "5", SUDAN, sample=k) for t in tasks[:3] for k in range(3)]
    got = behaviour({"grpo": after}, tasks).set_index("habit")
    skips = got.loc["Shortcut: skips a planned step"]
    assert skips["share"] == pytest.approx(3 / 24) and (skips["occasions"], skips["tasks"]) == (72, 24)
    assert 0.02 < skips["low"] < 0.06 and 0.28 < skips["high"] < 0.35, "of 24 tasks, not of 72 samples"
    assert got.loc["Retries after a failed call", ["share", "low", "high"]].isna().all(), "no occasion"
