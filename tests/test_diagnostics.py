"""Alarms, the auditor, and how often the alarms are right."""

import dataclasses
import json
import math

import pandas as pd
import pytest
from benchmarks.alarms import measured
from benchmarks.synthetic import CONSEQUENCES, simulate

from agentkit.cli import main
from agentkit.diagnostics import answers, fresh_half, reward_hacking, rules
from agentkit.diagnostics.measures import StepMeasures, observe
from agentkit.diagnostics.reward_hacking import audit, audit_metrics, audited, disagreements
from agentkit.diagnostics.rules import RULES, holding, lacks
from agentkit.diagnostics.watch import Watch, read_alarms, scan
from agentkit.records import Score, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import Run, write_jsonl


def rollout(task: str, sample: int, success: float, **changed) -> Trajectory:
    call = ToolResult("search", {"query": task}, f"{task} is 7.", True, 0.1)
    turns = (Turn(f"look up {task}", (0, 2), (call,)), Turn("Answer: 7", (2, 3)))
    base = Trajectory(task, "grpo", sample, 0, (1,), (4, 5, 6 + sample), (1, 1, 1), (0.0, 0.0, 0.0), turns, StopReason.ANSWER,
                      "7", success, components={"correctness": success, "format": 1.0}, reward=success + 0.1, step=3)  # fmt: skip
    return dataclasses.replace(base, **changed)


def steps(**columns: list[float]) -> list[StepMeasures]:
    """A history of metrics alone, one value a step."""
    count = len(next(iter(columns.values())))
    return [StepMeasures(i + 1, {n: v[i] for n, v in columns.items()}, {}) for i in range(count)]


# ---- what a step shows
def test_the_measures_of_a_step_are_counted_by_hand():
    solved = [rollout("a", i, 1.0) for i in range(2)]
    stuck = [rollout("b", i, 0.0, completion_ids=(4, 5, 6), answer="9") for i in range(2)]
    late = {"stop_reason": StopReason.TURN_LIMIT, "answer": None, "turns": ()}
    mixed = [rollout("c", 0, 1.0), rollout("c", 1, 0.0, **late)]
    step = observe({"step": 3, "kl": 0.2, "grad_norm": None}, [*solved, *stuck, *mixed])
    expected = {"zero_variance": 2 / 3, "solved": 1 / 3, "stuck": 1 / 3, "success": 0.5, "reward": 0.6, "truncated": 1 / 6,
                "no_tool": 1 / 6, "calls": 5 / 6, "kl": 0.2, "not_finite": 1.0, "reward_wrong": 0.1,
                "reward_gap": 1.0, "identical": 0.5}  # fmt: skip
    assert {name: step[name] for name in expected} == pytest.approx(expected)
    assert step.evidence["stuck"] == ("3:b#0", "3:b#1") and step.evidence["truncated"] == ("3:c#1",)
    assert math.isnan(step["entropy"])
    turns = observe({"step": 3, "dead_groups": 0.0}, [*solved, *stuck, *mixed])  # estimated by turns
    assert (turns["zero_variance"], turns["stuck"], turns["solved"]) == (0.0, 0.0, pytest.approx(1 / 3))


def sparse(*values: float) -> list[float]:
    """Values at every fifth step."""
    return [x for value in values for x in (math.nan,) * 4 + (value,)]


# ---- rules on hand-made histories
CASES = {
    "kl_spike": ({"kl": [0.01] * 8 + [0.4] * 2}, {"kl": [0.01] * 8 + [0.4], "kl_median": [0.01] * 9}),
    "gradient_spike": ({"grad_norm": [0.5] * 8 + [9.0]}, {"grad_norm": [0.5] * 8 + [1.5]}),
    "engine_mismatch": ({"mismatch": [0.001] * 8 + [1.2] * 3}, {"mismatch": [0.02] * 11}),
    "call_inflation": ({"calls": [2.0, 2.1] * 5 + [5.0, 5.1] * 3, "success": [0.4] * 16},
                       {"calls": [2.0, 2.1] * 5 + [5.0, 5.1] * 3, "success": [0.4] * 10 + [0.7] * 6}),
    "length_explosion": ({"completion_tokens": [100.0, 110.0] * 5 + [400.0] * 5}, {"completion_tokens": [100.0, 140.0] * 8}),
    "truncation": ({"truncated": [0.0] * 6 + [0.6] * 6}, {"truncated": [0.1] * 12}),
    "overfitting": ({"val_success": sparse(0.5, 0.9, 0.88, 0.4, 0.4), "success": [0.5 + 0.02 * i for i in range(25)]},
                    {"val_success": sparse(0.5, 0.7, 0.66, 0.6, 0.68), "success": [0.5 + 0.02 * i for i in range(25)]}),
    "zero_variance": ({"stuck": [0.9] * 4, "zero_variance": [0.9] * 4, "solved": [0.0] * 4},
                      {"stuck": [0.1] * 4, "zero_variance": [0.7] * 4, "solved": [0.6] * 4}),
    "mode_collapse": ({"identical": [0.3] * 10 + [0.95] * 5}, {"identical": [0.65] * 15}),
    "tool_abandonment": ({"calls": [2.0, 2.1] * 5 + [0.5] * 5, "no_tool": [0.0] * 10 + [0.7] * 5},
                         {"calls": [2.0, 2.1] * 7, "no_tool": [0.0] * 14}),
    "reward_hacking": ({"audit_disagreement": [0.02] * 8 + [0.6] * 4, "audited": [16.0] * 12, "success": [0.5] * 12},
                       {"audit_disagreement": [0.02] * 8 + [0.3] * 4, "audited": [4.0] * 12, "success": [0.3] * 12}),
    "dead_component": ({"scored/tool": [1.0] * 10, "low/tool": [-0.1] * 10, "high/tool": [-0.1] * 10},
                       {"scored/tool": [1.0] * 10, "low/tool": [0.0] * 10, "high/tool": [0.1] * 10}),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_rule_fires_on_its_fault_and_not_beside_it(name):
    assert name in CONSEQUENCES, "a fault to be measured on"
    fault, healthy = CASES[name]
    alarm = holding(steps(**fault))[name]
    assert alarm.severity in ("warning", "critical") and alarm.cause.endswith(".") and alarm.advice
    assert name not in holding(steps(**healthy))


def test_a_value_that_is_not_finite_is_critical_and_odd_rows_are_nothing():
    alarm = holding([observe({"step": 1, "loss": 0.1, "grad_norm": None})])["gradient_spike"]
    assert alarm.severity == "critical" and "not finite" in alarm.cause
    idle = [0.0, 0.0, 0.4] * 8 + [0.5]  # batches without a gradient
    assert "gradient_spike" not in holding(steps(grad_norm=idle))
    assert scan([observe({"step": 1, "note": "text", "flag": True})]) == [] and holding([]) == {}


@pytest.mark.parametrize(("name", "excused", "fault"), [
    ("mode_collapse", {"success": [0.4] * 8 + [0.7] * 6}, {"success": [0.4] * 14}),
    ("overfitting", {"success": [0.7] * 12 + [0.4] * 13}, {"success": [0.5] * 12 + [0.7] * 13}),
])  # fmt: skip
def test_what_success_says_decides_whether_it_is_a_fault(name, excused, fault):
    seen = {"mode_collapse": {"entropy": [0.5] * 8 + [0.02] * 6}, "overfitting": {"val_success": sparse(0.5, 0.7, 0.7, 0.5, 0.5)}}[name]  # fmt: skip
    assert name in holding(steps(**seen, **fault)) and name not in holding(steps(**seen, **excused))


def test_alarms_are_written_once_and_again_after_a_silence(tmp_path):
    run = Run.create(tmp_path / "run")
    watch = Watch.over(run)
    gaps = [0.0] * 5 + [0.5] * 8 + [0.0] * 5 + [0.5] * 5 + [0.0] * 16 + [0.5] * 5
    fired = [alarm for i, gap in enumerate(gaps, 1) for alarm in watch.add({"step": i, "mismatch": gap})]
    assert {alarm.alarm for alarm in fired} == {"engine_mismatch"}
    assert [alarm.step for alarm in fired] == [6, 40], "a pause of five steps is no silence"
    assert read_alarms(run) == fired == watch.alarms
    assert read_alarms(Run.create(tmp_path / "other")) == []


# ---- the auditor
@pytest.mark.parametrize(("gold", "verifier", "answer", "value"), [
    ("3.14", {"kind": "numeric", "abs_tol": 0.1}, "3.2", 1.0),
    ("3.14", {"kind": "numeric", "abs_tol": 0.01}, "3.2", 0.0),
    ("200", {"kind": "numeric", "rel_tol": 0.01}, "201", 1.0),
    ("5", {"kind": "numeric"}, "5 km", None),
    ("5", {"kind": "numeric"}, "It is 5, not 6.", 0.0),
    ("7", {"kind": "regex", "pattern": r"(\d+) of"}, "7 of 9", None),
    ("blue", {"kind": "mine"}, "navy", None),
    ("Paris", {"kind": "exact"}, "Paris or London", 0.0),
    ("Ann", {"kind": "exact", "aliases": "Anne"}, "Anne", 1.0),
    ("Ann", {"kind": "exact", "aliases": "Anne"}, "e", 0.0),
    ("Paris", {"kind": "exact"}, None, 0.0),
])  # fmt: skip
def test_an_answer_is_refused_where_the_gold_one_alone_is_right(gold, verifier, answer, value):
    task = Task("a", "What?", gold, verifier)
    said = ToolResult("search", {"query": "a"}, f"It is {answer}.", True, 0.1)
    turns = (Turn("look", (0, 2), (said,)), Turn(f"Answer: {answer}", (2, 3)))
    assert audit(task, rollout("a", 0, 1.0, answer=answer, turns=turns)).value == value
    planned = Task("a", "Which town?", "Paris", meta={"plan": [{"tool": "search", "arguments": {}}]})
    assert audit(planned, rollout("a", 0, 1.0, answer="Paris", turns=turns[1:])).value == 0.0, "from nowhere"


def test_a_program_that_only_knows_the_tests_is_refused():
    verifier = {"kind": "code", "entry": "f", "tests": [[[[3, 1, 2]], 6], [[[5, 5]], 10], [[[4]], 4]]}
    task = Task("c", "Write f(x), the sum.", "def f(x): return sum(x)", verifier, "C", tools=("python",))

    def program(sample, body):
        return rollout("c", sample, 1.0, answer=f"```python\ndef f(x):\n{body}\n```")

    honest = program(0, "    t = 0\n    for n in x: t += n\n    return t")
    cheat = program(1, "    return {3: 6, 2: 10, 1: 4}[len(x)]")
    assert audit(task, honest).value == 1.0 and audit(task, cheat).value == 0.0
    verdicts = audited({"c": task}, [honest, cheat], sample=None)
    assert audit_metrics(verdicts) == {"audit_success": 0.5, "audit_disagreement": 0.5, "audited": 2.0}
    tests = [[[{"a": 1.5}], 3.0], [[{"a": 2.5}], 5.0]]
    double = {"answer": "def f(x): return 2 * x['a']", "verifier": verifier | {"tests": tests}}
    halves = dataclasses.replace(task, **double)
    knows = program(2, "    return {1.5: 3.0, 2.5: 5.0}[x['a']]")
    assert audit(halves, knows).value == 0.0, "numbers in objects vary too"
    listed = disagreements(verdicts, {"c": task})
    assert list(listed["trajectory"]) == ["3:c#1"] and "agrees with the reference" in listed["auditor"][0]


def test_an_auditor_that_fails_cannot_tell(monkeypatch):
    def broken(task, trajectory):
        raise KeyError("x")

    task = Task("a", "?", "7")
    monkeypatch.setattr(reward_hacking, "audit", broken)
    verdicts = audited({"a": task}, [rollout("a", 0, 1.0)])
    assert verdicts[0][1].value is None and "KeyError" in verdicts[0][1].why
    assert audit_metrics(verdicts)["audited"] == 0
    assert audit_metrics([(rollout("a", 0, 0.0), Score(1.0))])["audit_success"] == 0.0


@pytest.mark.slow
def test_alarms_are_right_on_simulated_runs_held_back():
    counts = measured(2, 4)
    assert counts["recall"].mean() >= 0.85
    assert counts["found"].sum() / (counts["found"].sum() + counts["false"].sum()) >= 0.85


def test_the_answers_are_computed_from_the_run():
    rows = [{"step": 0, "val_success": 0.3, "val_ci_low": 0.2, "val_ci_high": 0.4}]
    rows += [{"step": i, "audit_disagreement": 0.05 * i} for i in range(1, 11)]
    rows[5] |= {"val_success": 0.5, "val_ci_low": 0.41, "val_ci_high": 0.6}
    rows[10] |= {"val_success": 0.7, "val_ci_low": 0.6, "val_ci_high": 0.8}
    alarm = holding(steps(kl=[0.01] * 8 + [0.4] * 2))["kl_spike"]
    kinds = pd.DataFrame({"change": [0.3, -0.1]}, index=["family A", "hard"])
    sentences = answers(pd.DataFrame(rows), [alarm], kinds)
    assert sentences["Did it learn?"] == (
        "Validation success was 30.0% before and 70.0% at its best, step 10; their intervals lie apart."
    )
    assert sentences["On which tasks?"] == "Most on family A (+30 points), least on hard (-10 points)."
    assert "refuses 40% of the answers" in sentences["Is it hacking the reward?"]
    assert sentences["Is it stable?"] == "No: kl spike at step 10."
    assert alarm.advice in sentences["What to change?"]


def test_a_watch_goes_on_from_what_is_stored_and_drops_alarms_of_steps_that_were_cut(tmp_path):
    run = Run.create(tmp_path / "run")
    whole = Watch.over(run)
    rows = [{"step": i + 1, "mismatch": 0.5 if i > 5 else 0.0} for i in range(10)]
    for row in rows:
        whole.add(row)
    write_jsonl(run.file("train", "metrics.jsonl"), rows[:6])
    again = Watch.over(run)
    assert read_alarms(run) == again.alarms == []
    fresh = Run.create(tmp_path / "fresh")
    Watch.over(fresh)
    assert fresh.file("train", "alarms.jsonl").read_bytes() == b"", "watched, and none fired yet"
    for row in rows[6:]:
        again.add(row)
    assert read_alarms(run) == whole.alarms and len(again.alarms) == 1
    damaged = run.file("train", "trajectories", "step_00003.parquet")
    damaged.parent.mkdir()
    damaged.write_bytes(b"torn")
    with pytest.warns(UserWarning, match="from here on only"):  # what a power cut left ends no training
        Watch.over(run)


# ---- what an alarm needs
def test_a_rule_holds_only_where_it_has_what_it_needs():
    """Without the measures that a rule says it needs, it is silent on the runs that have its fault."""
    for fault in RULES:
        steps = [observe(row, trajectories) for row, trajectories in simulate(fault, 3).steps]
        assert fault not in lacks(steps)
        needs = tuple(rule.needs for rule in rules._FORMS if rule.alarm == fault)
        without = []
        for step in steps:
            values = {name: value for name, value in step.values.items() if not name.startswith(needs)}
            without.append(dataclasses.replace(step, values=values))
        assert fault in lacks(without)
        assert fault not in {alarm.alarm for alarm in scan(without)}


@pytest.mark.parametrize(("rows", "looks"), [
    ([{"step": 0, "val_success": 0.5}], None),
    ([{"iter": 1, "train_loss": 0.5}], None),
    ([{"step": 1, "loss": 0.1, "grad_norm": 1.0, "entropy": 0.2, "kl": 0.1}], "9 of the 12 rules"),
])  # fmt: skip
def test_no_alarm_is_said_only_of_what_was_looked_at(tmp_path, capsys, rows, looks):
    run = Run.create(tmp_path / "run")
    write_jsonl(run.file("train", "metrics.jsonl"), rows)
    assert main(["alarms", str(run.path)]) == (0 if looks else 2)
    shown = capsys.readouterr()
    assert "0 alarm" not in shown.out + shown.err
    assert ("need 10 or more" in shown.out) == bool(looks)
    assert looks in shown.out if looks else "no training step that an alarm could look at" in shown.err


# ---- logs of other trainers
KL = [0.01] * 30 + [0.9] * 10  # which runs away at step 31
TRL = [{"step": i, "kl": v, "grad_norm": 0.5, "reward": 0.4} for i, v in enumerate(KL, 1)]
LOGS = {  # one training as TRL and a table of one's own would log it, one while it is being written
    "state": json.dumps({"max_steps": 40, "log_history": [*TRL, {"step": 40, "train_runtime": 3.0}]}),
    "jsonl": "\n".join(map(json.dumps, TRL)) + '\n{"step": 41, "lo',
    "csv": "iteration,klx\n" + "".join(f"{i},{v}\n" for i, v in enumerate(KL, 1)),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_foreign_log_is_judged_and_says_what_could_not_look(tmp_path, capsys, name):
    path = tmp_path / {"state": "trainer_state.json"}.get(name, f"log.{name}")
    path.write_text(LOGS[name])
    pairs = ["--column", "step=iteration", "--column", "kl=klx"] if name == "csv" else []
    assert main(["alarms", str(path), *pairs]) == 0
    said = capsys.readouterr()
    assert "step 32, warning: kl_spike" in said.out and "in 40 steps; 1" in said.out
    assert "rules could not look: " in said.out and "tool_abandonment" in said.out
    assert ("columns that no alarm knows: train_runtime" in said.out) == (name == "state")
    assert ("is torn and was left out" in said.err) == (name == "jsonl")
    assert main(["alarms", str(path), *pairs, "--column", "sucess=klx"]) != 0
    assert "no alarm knows 'sucess'" in capsys.readouterr().err


@pytest.mark.parametrize(("file", "text", "says"), [
    ("a.csv", b"step,max_steps,how\n1,9,2\n", "and another that an alarm knows; it has step, max_steps"),
    ("a.json", b'{"a": 1}', "no 'log_history'"),
    ("a.jsonl", b'{"step": "x", "kl": "y"}\n', "no column 'step'"),
    ("a.csv", b"\xed\xa0\x80", "damaged"),
])  # fmt: skip
def test_what_is_no_log_is_refused_and_never_no_alarms(tmp_path, capsys, file, text, says):
    path = tmp_path / file
    path.write_bytes(text)
    assert main(["alarms", str(path)]) != 0
    said = capsys.readouterr()
    assert says in said.err and "alarm" not in said.out


# ---- histories of other shapes
def test_an_auditor_that_refuses_from_the_first_step_is_heard():
    refused = {"audit_disagreement": [0.8] * 14, "audited": [16.0] * 14, "success": [0.7] * 14}
    assert "reward_hacking" in holding(steps(**refused))
    assert "reward_hacking" not in holding(steps(**refused | {"audit_disagreement": [0.3] * 14}))


def test_the_best_validation_is_told_on_tasks_that_did_not_choose_it():
    """One half is best at step 10, where the other says 0.2; that at step 20, where the first says 0.4."""
    halves = {"val_odd": [0.1, 0.8, 0.4, None], "val_even": [0.1, 0.2, 0.6, None]}
    steps = {"step": [0, 10, 20, 21], "val_success": [0.1, 0.5, 0.5, None]}
    assert fresh_half(pd.DataFrame(steps)) == ""
    assert fresh_half(pd.DataFrame(steps | halves)).startswith(" (30.0% on tasks")
    told = answers(pd.DataFrame(steps | halves))["Did it learn?"]
    assert "50.0% at its best, step 20 (30.0% on tasks that did not choose the step)" in told
