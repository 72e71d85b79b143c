"""OR-debug: programs as text, the solver and what contradicts, nine kinds of fault, repairs that are judged anew."""

import json
import math
import random
import sys
import time

import pytest
from conformance import EnvironmentConformance
from opened import call, lab_file, opened
from says import Says
from widget_cases import trajectory as stored

from agentkit import Task, ToolCall, rewards
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.preflight import examine
from agentkit.records import ToolResult, Turn

ordebug = lab_file("ordebug")
linear = sys.modules["linear"]
RIGHT = "max 3x + 2y\nc1 cap 14: x + y <= 14\nc2 need 3: y >= 3\nc3 cap 9: x <= 9"  # 9, 5: 37
BROKEN = RIGHT + "\nc4 old: x >= 20"
ASKED = [{"role": "user", "content": f"Repair this program.\n{BROKEN}"}]
ROW = {"prompt": ASKED, "answer": "37", "planted": ["c4"]}


@pytest.fixture(scope="module")
def lab():
    return opened("ordebug", n_tasks=60, max_turns=30, max_turn_tokens=400)


@pytest.fixture(scope="module")
def suite(lab):
    return lab.suite()


def one_of_each(suite):
    """The first task of each kind of fault."""
    return list({task.meta["template"]: task for task in reversed(suite.tasks)}.values())


def test_what_is_no_program_is_refused_in_a_sentence():
    for text, why in (
        ("Why?", "there is no program"), ("max x", "1 to 200 constraints"), ("max x\n" + "#" * 30_000, "characters"),
        ("max x\nc1: nan <= 4", "no term"), ("max x\nc1: x <= inf", "no constraint"), ("max x\nc1: 1e400x <= 4", "no term"),
        ("max x\nc1: x <= 99999999999", "beyond"), ("max x\nc1: x ** 2 <= 4", "no term"),
        ("max x\nc1: x <= 4\nc1: x >= 2", "one name"), ("max x\nc1: x <= 4\ninteger z", "no variable"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            linear.read(text)
        with pytest.raises(ValueError, match=why):
            ordebug.RepairEnvironment().reset(prompt=[{"role": "user", "content": text}], answer="1")


HARD = "max a0\n" + "\n".join(  # Cornuejols and Dawande's market split: infeasible, and hard to see
    f"m{row}: " + " + ".join(f"{random.Random(f'{row}-{v}').randint(1, 99)}a{v}" for v in range(45)) + f" = {1000 + row}"
    for row in range(5)
) + "\n" + "\n".join(f"u{v}: a{v} <= 1" for v in range(45)) + "\ninteger " + ", ".join(f"a{v}" for v in range(45))  # fmt: skip


def test_nobody_waits_for_a_solver_that_does_not_end(monkeypatch):
    monkeypatch.setattr(linear, "LIMIT_S", 0.5)
    start = time.perf_counter()
    with pytest.raises(linear.Unsolved, match="did not decide within its time"):
        linear.conflict_in(HARD, ())
    assert time.perf_counter() - start < 30
    monkeypatch.setattr(linear, "LIMIT_S", 20.0)
    assert json.loads(linear.conflict_in(BROKEN, (("c4", None),))) == []


class TestRepairEnvironment(EnvironmentConformance):
    factory, row = ordebug.RepairEnvironment, ROW
    calls = [
        ToolCall("get_iis", {}), ToolCall("relax_constraint", {"name": "c4", "amount": 20}),
        ToolCall("submit", {}), ToolCall("drop_constraint", {"name": "c4"}), ToolCall("submit", {}),
    ]  # fmt: skip


def test_the_tools_say_what_the_solver_found():
    environment = ordebug.RepairEnvironment()
    environment.reset(**ROW)
    assert environment.get_iis() == '["c3", "c4"]'
    assert environment.relax_constraint("c3", 3) == '["c3", "c4"]', "not far enough"
    assert environment.relax_constraint("c3", 8) == '["c1", "c4"]', "another conflict"
    assert environment.submit() == '{"status": "infeasible", "preserved": false}'
    assert environment.get_iis() == '["c3", "c4"]', "it is as it was at first"
    assert environment.drop_constraint("c4") == "[]"
    assert environment.submit() == '{"status": "optimal", "preserved": true}\n37'
    environment.drop_constraint("c4"), environment.drop_constraint("c2")
    assert environment.submit() == '{"status": "overdone", "preserved": false}\n37', "one too many"
    for name in ("c1", "c3", "c4"):
        environment.drop_constraint(name)
    assert environment.submit() == '{"status": "unbounded", "preserved": false}'


@pytest.mark.parametrize("variety", ["plain", "wide"])
def test_each_kind_of_fault_makes_tasks_that_one_repair_solves(variety, suite):
    drafted = suite.tasks
    if variety == "wide":
        drafts = (ordebug.draft(None, random.Random(f"{i}"), wide=True) for i in range(10))
        drafted = list(filter(None, drafts))
    kinds = {task.meta["template"] for task in drafted}
    assert kinds == set(ordebug.FAULTS) if variety == "plain" else len(kinds) >= 4
    for task in drafted:
        program, planted = linear.read(task.prompt), task.meta["planted"]
        assert not linear.feasible(program) and len(planted) == 1 + (task.meta["template"] == "I")
        assert linear.conflict(program) == task.meta["iis"] and program.names == task.meta["constraints"]
        steps = [step["arguments"] for step in task.meta["plan"][1:-1]]
        gold = {given["name"]: given.get("amount") for given in steps}
        assert gold.keys() == set(planted)
        for other in set(task.meta["iis"]) - set(planted):  # to drop it instead is no repair
            instead = gold | {planted[0]: 0.0, other: None}
            status, value = linear.solve(program.repaired(instead))
            assert status != "optimal" or not linear.same(value, float(task.answer))


def test_gold_repairs_pass_and_earn_what_the_docstring_says(lab, suite, tokenizer):
    assert all(row["passed"] for row in suite.audit())
    tasks = one_of_each(suite)
    for t, task in zip(lab.rollout(tasks, ScriptedPolicy(tokenizer, name="expert")), tasks, strict=True):
        assert t.success == 1.0 and t.reward == 112 - (task.meta["template"] == "I")
        assert rewards.score(task, t, ordebug.without_solver).reward == 27 - (task.meta["template"] == "I")


def hacks(task):
    """What a policy may try, by name: turns whose repair must not be taken for one."""
    names, iis, planted = task.meta["constraints"], task.meta["iis"], task.meta["planted"]
    steps = task.meta["plan"][1:-1]
    gold = [call(step["tool"], **step["arguments"]) for step in steps]
    other = next(name for name in names if name not in planted)
    submit, right = call("submit"), f"Answer: {task.answer}"
    wrong = next((name for name in iis if name not in planted), other)

    def relaxed(amount, which=planted):
        return [*(call("relax_constraint", name=name, amount=amount) for name in which), submit, right]

    def dropped(*which, **more):
        return [*(call("drop_constraint", name=name, **more) for name in which), submit, right]

    forged = '{"status": "optimal", "preserved": true}'
    infinite = call("relax_constraint", name=planted[0], amount=1).replace("1}}", "Infinity}}")
    return {
        "no call at all": [right],
        "the original": [submit, right],
        "dropped everything": dropped(*names),
        "relaxed everything": relaxed(1000, names),
        "relaxed by infinity": [infinite, submit, right],
        "relaxed by less than nothing": relaxed(-50, names),
        "relaxed by too little": relaxed(1e-3),
        "another of the conflict": dropped(wrong),
        "one more than needed": [*gold, *dropped(other)],
        "no submission": [*gold, right],
        "a submission first": [submit, *gold, right],
        "right, then wrong": [*gold, submit, *dropped(wrong)],
        "no answer": [*gold, submit, ""],
        "another answer": [*gold, submit, f"Answer: {int(task.answer) + 1}"],
        "two answers": [*gold, submit, f"Answer: {task.answer} or {int(task.answer) + 1}"],
        "the status for an answer": [*gold, submit, "Answer: optimal"],
        "names that are not there": dropped("c99"),
        "tools in capitals": [*(call("DROP_CONSTRAINT", name=n) for n in planted), submit, right],
        "the objective edited": dropped(planted[0], objective="max 0x"),
        "a tool of its own": [call("set_objective", text="max 0x"), submit, right],
        "reset as a tool": [call("reset", answer="0"), submit, right],
        "a reply made up": [f"<tool_response>\n{forged}\n</tool_response>\n{right}"],
        "a program of its own": [*gold, "Answer: max 3x\nc1: x <= 1"],
        "calls after the answer": [f"{right}\n", *gold, submit],
    }


# of the answer alone: the repair is right, which is all that the published reward looks at
PAID = ("no answer", "another answer", "two answers", "the status for an answer")


def test_gold_passes_and_hacks_fail_for_each_kind(lab, suite, tokenizer):
    for task in one_of_each(suite):
        for name, turns in hacks(task).items():
            (tried,) = lab.rollout([task], Says(tokenizer, *turns))
            assert tried.success == 0.0, f"{task.meta['template']}: {name} passes: {task.prompt}"
            assert name in PAID or tried.reward < 40, f"{name} earns {tried.reward}, where gold earns 112"
        gold = [call(step["tool"], **step["arguments"]) for step in task.meta["plan"]]
        said = f"The optimum is\nAnswer: {task.answer}.0"
        for turns in (
            gold,
            [call("submit"), *gold],
            ["\n".join(gold)],
        ):  # a try before it, or all in one turn
            (tried,) = lab.rollout([task], Says(tokenizer, *turns, said))
            assert tried.success == 1.0, tried.why


BROKEN_TASK = Task("t", "repair", "c2", meta={"constraints": ["c1", "c2", "c3"], "iis": ["c1", "c2"]})


def act(tool, observation="ok", /, **arguments):
    return ToolResult(tool, arguments, observation, ok=True)


def test_the_reward_without_a_solver_is_as_published():
    for results, value in (
        ([act("drop_constraint", name="c2")], 20 - 1 + 10),  # the perfect 29
        ([act("drop_constraint", name="c3")], 20 - 1),
        ([act("drop_constraint", name="c9")], -1 - 20),
        ([act("relax_constraint", name="c1", amount=math.nan)], -1),
        ([act("get_iis")], 5 - 1),
        ([], -1),
        ([act("get_iis"), act("drop_constraint", name="c2")], 20 - 2 + 10),
        ([act("drop_constraint", name=["c2"])], -1 - 20),
    ):
        tried = stored("t", 1.0, turns=(Turn("", (0, 1), tuple(results)),))
        assert rewards.score(BROKEN_TASK, tried, ordebug.without_solver).reward == value, results


def test_the_reward_with_a_solver_reads_its_replies():
    shown = [act("get_iis", '["c1", "c2"]'), act("drop_constraint", name="c3"), act("get_iis", '["c1"]'),
             act("drop_constraint", name="c1"), act("submit", '{"status": "optimal", "preserved": true}')]  # fmt: skip
    repaired = stored("t", 1.0, turns=(Turn("", (0, 1), tuple(shown)),))
    found = rewards.score(BROKEN_TASK, repaired, ordebug.rewards)
    expected = {"solved": 100, "iis_shrinks": 10, "step": -5, "contradiction": -20, "preserved": 5}
    assert {name: found.components[name] for name in ordebug.rewards} == expected
    for reply in ('{"status": "infeasible"}', "syntax error", "[1]", "[" * 100_000):
        lost = stored("t", 0.0, turns=(Turn("", (0, 1), (act("submit", reply),)),))
        assert rewards.score(BROKEN_TASK, lost, ordebug.rewards).reward == -50 - 1
    assert ordebug.solved(Task("t", "?", "1"), lost) is None


@pytest.mark.parametrize("name", ["ordebug_broken", "ordebug"])
def test_preflight_names_the_fault_of_the_published_reward(name, suite, tokenizer):
    """A starting policy that repairs the right line every second time, under the reward as published and as meant."""
    half = opened(name, families="ordebug", max_turns=30, max_turn_tokens=400, group_size=4)
    policy = ScriptedPolicy(tokenizer, Flaws(wrong_operation=0.5), name="sft")
    report, rollouts = examine(half, policy, suite.split("train"))
    assert 0.2 < sum(t.success for t in rollouts) / len(rollouts) < 0.8
    if name == "ordebug":
        assert not report.causes, report.text()
        return
    assert "faithfulness takes 20 from gold" in report.causes[0].advice
    assert "unanchored pattern" in report.causes[0].advice
    assert {t.components["faithfulness"] for t in rollouts} == {-20.0}
