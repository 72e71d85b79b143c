"""The states that environments show after each turn: what a view gets of them, and what hostile ones become."""

import base64
import time

import pytest
from widget_cases import TASKS, call, group, trajectory

from agentkit.records import Image, Picture, Table, Turn
from agentkit.tools.runtime import tools_of
from agentkit.views.widgets import compare_trajectories, gallery, group_view
from agentkit.views.widgets.states import States, as_json

TWO_TURNS = trajectory("t0", 1.0, turns=(call("peru"), Turn("33", (0, 1))))


def environment(state):
    """An environment whose render gives ``state(task, trajectory, turn)``; look_up is its only tool."""

    class Environment:
        def reset(self, **row):
            raise AssertionError("looking resets nothing")

        def look_up(self, query: str) -> str:
            raise AssertionError("looking calls no tool")

        @classmethod
        def render(cls, task, trajectory, turn):
            return state(task, trajectory, turn)

    return {"A": Environment}


def states(state, shown=TWO_TURNS):
    return States(environment(state)).after_turns(TASKS[0], shown)


def test_states_are_computed_from_the_records_turn_by_turn():
    found = states(lambda task, t, turn: f"{task.id}: {len(t.turns[: turn + 1])} of {len(t.turns)}")
    assert found == [{"text": "t0: 1 of 2"}, {"text": "t0: 2 of 2"}]
    assert list(tools_of(environment(print)["A"]())) == ["look_up"], "a class method is no tool"
    assert states(lambda *_: None) == [None, None] == states(lambda *_: "")
    assert States({}).after_turns(TASKS[0], TWO_TURNS) == [] == States().after_turns(None, TWO_TURNS)


def test_pictures_are_drawn_cell_by_cell():
    ((title, kind, data, width),) = as_json(Picture({"drawn": [[0, 1, 2], [3, 4, 9]]}))["images"]
    drawn = base64.b64decode(data).decode()
    assert (title, kind, width) == ("drawn", "svg+xml", 42) and 'viewBox="0 0 3 2"' in drawn
    colours = [part[:6] for part in drawn.split('fill="#')[1:]]
    assert colours == ["000000", "0074d9", "ff4136", "2ecc40", "ffdc00", "870c25"]
    page = gallery({"<b>": [[1]]})
    assert "<b>" not in page and "&lt;b&gt;" in page and page.count("<svg ") == 1


HOSTILE = {
    "no state": 3,
    "a cell that cannot be shown": Table(("a",), ((type("Bad", (), {"__str__": lambda self: 1})(),),)),
    "an empty row": Picture({"drawn": [[]]}),
    "rows of different lengths": Picture({"drawn": [[1], [1, 2]]}),
    "a million cells in a row": Picture({"drawn": [[1] * 1_000_000]}),
    "a colour of many digits": Picture({"drawn": [[10**4_000]]}),
    "a colour that is markup": Picture({"drawn": [["<script>"]]}),
    "an image of no known kind": Image("x", b"<script>", "html"),
    "no table": Table(None, None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_state_that_cannot_be_shown_is_a_sentence(name):
    for state in states(lambda *_: HOSTILE[name]):
        assert state["text"].startswith("This state cannot be shown: ") and len(state["text"]) < 400


def test_views_carry_the_states():
    known = environment(lambda *_: Picture({"drawn": [[1, 2]]}))
    (picture,) = as_json(Picture({"drawn": [[1, 2]]}))["images"]
    shown = compare_trajectories(TASKS, {"sft": [TWO_TURNS]}, environments=known).payload["tasks"][0]
    assert [t["state"] for t in shown["columns"][0]["samples"][0]["turns"]] == [{"images": [picture]}] * 2
    rollouts = group_view(group(), TASKS, environments=known).payload["groups"][0]["rollouts"]
    assert all(turn["state"]["images"] for rollout in rollouts for turn in rollout["turns"])
    plain = compare_trajectories(TASKS, {"sft": [TWO_TURNS]}).payload["tasks"][0]["columns"][0]
    assert all("state" not in turn for turn in plain["samples"][0]["turns"])


def test_a_render_that_does_not_end_holds_nothing_up(monkeypatch):
    monkeypatch.setattr("agentkit.views.widgets.states.LIMIT_S", 0.2)
    held = States(environment(lambda *_: time.sleep(30)))
    shown = [held.after_turns(TASKS[0], TWO_TURNS) for _ in range(2)]
    assert "took more than" in shown[0][0]["text"] and shown[1] == []
