"""Verifiers that judge an environment's state at the end: recorded, stored, audited by changed calls."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from agentkit import Lab, StopReason, rollout, verify
from agentkit.evaluation.failures import failure_class
from agentkit.policies.loading import load_tokenizer
from agentkit.policies.scripted import ScriptedPolicy
from agentkit.preflight.examination import report
from agentkit.records import DataError
from agentkit.rewards import score
from agentkit.rollouts import Limits
from agentkit.runs import read_trajectories, write_trajectories
from agentkit.tasks.audit import audit
from agentkit.tools.runtime import tools_of
from agentkit.verifiers import KINDS
from agentkit.views.widgets.base import trajectory_fields


@pytest.fixture(scope="module")
def lab():
    keys = {"lab": "tests/labs/booking.py", "families": "booking", "n_tasks": 30, "model": "nano"}
    return Lab.open(keys)


@pytest.fixture(scope="module")
def tasks(lab):
    return lab.suite().tasks


@pytest.fixture(scope="module")
def expert():
    return ScriptedPolicy(load_tokenizer("nano"))


PLANS = {}  # by question, for the verifier that reads them


def bookings(state):
    return [f"{b['number']} x {b['nights']}" for b in state["booked"]]


def everything(answer, gold, *, state):
    return 1.0


def all_but_the_last(answer, gold, *, state):
    return float(set(gold.split(", ")[:-1]) <= set(bookings(state)))


def with_an_answer(answer, gold, *, state):
    return float(sorted(bookings(state)) == gold.split(", ") and bool(answer))


def the_plan(answer, gold, *, state, trajectory=None, question=""):
    calls = [result.name for turn in trajectory.turns for result in turn.results]
    return float(calls == PLANS[question])


def in_order(answer, gold, *, state):
    return float(bookings(state) == gold.split(", "))


def counted(answer, gold, *, state=None, trajectory=None):
    return float(Counter(bookings(state)) == Counter(gold.split(", ")))


async def waited_for(answer, gold, *, state):
    await asyncio.sleep(0)
    return float(set(bookings(state)) == set(gold.split(", ")) and len(bookings(state)) == gold.count("x"))


@pytest.mark.parametrize(("verifier", "refused_by"), [
    (everything, {"no calls", "call dropped", "call repeated", "another argument", "calls alone"}),
    (all_but_the_last, {"call dropped", "another argument", "no calls", "calls alone"}),
    (with_an_answer, {"no answer", "state alone"}),
    (the_plan, {"state alone", "calls alone", "call dropped", "another argument"}),
    (in_order, {"another order"}),
    (counted, set()),
    (waited_for, set()),
])  # fmt: skip
def test_the_audit_tells_right_verifiers_of_a_state(lab, tasks, monkeypatch, verifier, refused_by):
    """A lookup that is dropped or repeated changes no state, and counts against none of them."""
    monkeypatch.setitem(KINDS, "booked", verifier)
    planned = [task for task in tasks if _asks_in_order(task)]
    one, two = (next(task for task in planned if len(task.meta["plan"]) == calls) for calls in (2, 4))
    PLANS.update({t.prompt: [step["tool"] for step in t.meta["plan"]] for t in (one, two)})
    failed = [row for row in audit([one, two], lab.environments) if not row["passed"]]
    assert {row["check"] for row in failed} >= refused_by and bool(failed) == bool(refused_by)
    assert all("must score" in row["why"] for row in failed)


def _asks_in_order(task) -> bool:
    paths = [step["expect"]["path"] for step in task.meta["plan"] if "expect" in step]
    return paths == sorted(paths)


def test_what_makes_an_audit_impossible_is_said(lab, tasks, monkeypatch):
    monkeypatch.setitem(KINDS, "booked", everything)
    desk = lab.environments["booking"]

    def why(make, task=tasks[0]):
        (row,) = [row for row in audit([task], {"booking": make}) if not row["passed"]]
        return row["check"], row["why"]

    class Clock(desk):
        def state(self):
            return time.perf_counter_ns()

    silent = type("Silent", (desk,), {"state": None})
    assert "its environment has no method state" in why(silent)[1]
    assert why(Clock)[0] == "data" and "leave out times" in why(Clock)[1]
    without_plan = replace(tasks[0], meta={})
    assert why(desk, without_plan)[0] == "no calls"  # all that can be tried


def test_a_state_is_recorded_stored_judged_rewarded_and_shown(lab, tasks, expert, tmp_path):
    assert "state" not in tools_of(lab.environments["booking"]())
    (done,) = lab.rollout(tasks[:1], expert)
    assert sorted(bookings(done.state)) == tasks[0].answer.split(", ") and done.success == 1.0
    path = write_trajectories(tmp_path / "t.parquet", [done, replace(done, state=None)])
    assert read_trajectories(path) == [done, replace(done, state=None)]
    older = pq.read_table(path).drop_columns("state")
    pq.write_table(older, path)
    assert read_trajectories(path) == [replace(done, state=None)] * 2
    assert json.loads(trajectory_fields(done, [])["ending"]) == done.state

    def rooms(task, trajectory, *, state):
        return len(state.pop("booked"))  # what it changes is its own

    rewarded = score(tasks[0], done, {"rooms": (rooms, 2.0)})
    assert rewarded.reward == 2.0 * len(done.state["booked"])
    with pytest.warns(UserWarning, match="rooms"):
        assert score(tasks[0], replace(done, state=None), {"rooms": (rooms, 2.0)}).reward is None
    assert verify(tasks[0], replace(done, state=None)).value is None  # nothing is known


def test_a_state_is_judged_without_an_answer(lab, tasks, expert):
    task = tasks[0]
    limits = Limits(max_turns=len(task.meta["plan"]))
    (done,) = lab.rollout([task], expert, limits=limits)
    assert (done.stop_reason, done.answer, done.success) == (StopReason.TURN_LIMIT, None, 1.0)
    (early,) = lab.rollout([task], expert, limits=Limits(max_turns=len(task.meta["plan"]) - 1))
    assert early.success == 0.0 and failure_class(early, task) == "out of turns"
    assert failure_class(replace(done, stop_reason=StopReason.ANSWER, success=0.0), task) == "wrong result"


async def _later(self):
    await asyncio.sleep(0)
    return {"nan": float("nan"), 1: (1, 2)}


@pytest.mark.parametrize(("state", "says"), [
    (_later, None),
    (lambda self: {1, 2}, "set is not JSON serializable"),
    (lambda self: "x" * 100_001, "100003 characters of JSON, and the limit is 100000"),
    (lambda self: time.sleep(3), "no answer within 0.2 s"),
    (lambda self: 1 / 0, "ZeroDivisionError"),
])  # fmt: skip
def test_a_state_is_bounded_as_a_call_is(lab, tasks, expert, state, says):
    desk = type("Desk", (lab.environments["booking"],), {"state": state})
    options = {"environment": desk, "limits": Limits(tool_timeout_s=0.2)}
    if says:
        with pytest.raises(DataError, match=says):
            rollout(tasks[:1], expert, **options)
        (done,) = rollout(tasks[:1], expert, step=1, **options)  # a training goes on
        assert (done.stop_reason, done.success) == (StopReason.ERROR, None) and says in done.why
    else:
        assert rollout(tasks[:1], expert, **options)[0].state == {"nan": None, "1": [1, 2]}


def test_preflight_knows_that_a_state_is_no_answer(lab, tasks, expert):
    """Right without an answer is no fault, and a reward that reads the state is not dead."""

    def rooms(task, trajectory, *, state):
        return float(len(state["booked"]) > 0)

    some = tasks[:6]
    golden = rollout(some, expert, environment=lab.environments)
    silent = rollout(some, expert, environment=lab.environments, limits=Limits(max_turns=2), group_size=2)
    found = report(lab.recipe, silent, golden, some, {"rooms": (rooms, 1.0)})
    lights = {item.name: item.light for item in found.items}
    assert lights["What silence earns"] == lights["What being right earns"] == "green"
    assert lights["Component rooms"] != "red"
