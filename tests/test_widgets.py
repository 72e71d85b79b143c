"""What the views are given, before any browser: payloads, X-ray data, notes, states, and pages that hold data safely."""

import base64
import gzip
import html
import json
import re
import time
from pathlib import Path

import pytest
from hostile.widget_texts import TEXTS
from widget_cases import TASKS, call, group, read_notes, traced, trajectory, widget

import agentkit.views.widgets
from agentkit.records import Image, Picture, Table, Task, Turn
from agentkit.rollouts.tokens import faults, xray
from agentkit.runs import Run
from agentkit.tools.runtime import tools_of
from agentkit.views.widgets import compare_trajectories, gallery, group_view, mask_xray
from agentkit.views.widgets.states import States, as_json

FOLDER = Path(agentkit.views.widgets.__file__).parent


def test_what_is_kept_of_many_samples_and_what_marks_a_task(monkeypatch):
    monkeypatch.setattr("agentkit.views.widgets.trajectories.SAMPLES", 2)
    tasks = widget().payload["tasks"]
    sft, _ = tasks[0]["columns"]
    assert (sft["right"], sft["scored"], sft["count"], len(sft["samples"])) == (1, 3, 3, 2)
    assert [task["solved"] for task in tasks] == [[False, True], [True, False], [False, False]]
    assert [task["marks"] for task in tasks] == [[], [], ["no answer", "failed call"]]


def test_odd_values():
    odd = trajectory("t0", None, reward=float("nan"), turns=(call("q", "y" * 5000),), answer=None)
    payload = compare_trajectories(TASKS, {"sft": [odd], "grpo": []}).payload
    task = payload["tasks"][0]
    sft, grpo = task["columns"]
    assert task["solved"] == [None, None] and sft["scored"] == 0 and sft["samples"][0]["reward"] is None
    assert sft["samples"][0]["turns"][0]["results"][0][0].endswith("(1000 more characters)")
    assert grpo == {"count": 0, "scored": 0, "right": 0, "samples": []}
    assert task["marks"] == ["not scored", "no answer"]


def test_steps_are_groups_of_their_own():
    other = trajectory("t0", 1.0, step=5, policy="grpo", reward=1.0)
    first, second = group_view([*group(), other], TASKS).payload["groups"]
    assert (first["id"], first["step"], first["mean"]) == ("t0", 4, 0.3)
    assert first["std"] == pytest.approx(0.39**0.5)
    assert (second["step"], second["mean"], second["std"]) == (5, 1.0, None)
    assert "prompt" not in group_view(group()).payload["groups"][0]


def test_xray_of_literals():
    tokens = xray(traced(), lambda ids: "".join("abcdefghijk"[i] for i in ids))
    assert "".join(token.text for token in tokens) == "ijbcdef"
    assert [(t.source, t.mask, t.turn) for t in tokens] == [
        ("prompt", 0, None), ("prompt", 0, None), ("model", 1, 0), ("model", 1, 0), ("observation", 0, 0),
        ("model", 1, 1), ("model", 1, 1),
    ]  # fmt: skip
    assert [t.old_logprob for t in tokens] == [None, None, -0.1, -0.2, None, -0.3, -0.4]
    columns = mask_xray(traced()).payload["tokens"]
    assert columns["advantage"] == [None, None, 0.5, 0.5, None, 0.5, 0.5] and columns["text"][0] == "#8"
    assert faults(traced()) == []


@pytest.mark.parametrize(("changes", "message"), [
    ({"action_mask": (1, 1)}, "action_mask has 2 values for 5 completion tokens"),
    ({"turns": (Turn("", (3, 9)),)}, r"turn 0 spans \[3, 9\) of 5"),
])  # fmt: skip
def test_xray_refuses_what_does_not_line_up(changes, message):
    with pytest.raises(ValueError, match=message):
        mask_xray(traced(**changes))


def test_a_trained_observation_is_a_fault():
    view = mask_xray(traced(action_mask=(1, 1, 1, 1, 1)))
    (fault,) = view.payload["faults"]
    assert fault.startswith("the action mask is wrong at 1 of 7 tokens")


def note(task_id, text, second=0):
    return {"task_id": task_id, "text": text, "at": f"2026-01-01T00:00:{second:02d}.000Z"}


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "demo")


def test_notes_go_into_the_run_as_they_are_written(run):
    live = widget(run=run).live()
    live.notes = [note("t0", "look here \ud800 </script>")]
    live.notes = [note("t0", "look here"), note("t1", "why?", 1)]
    assert re.fullmatch(r"saved in demo/notes\.jsonl at \d\d:\d\d:\d\d", live.status)
    assert read_notes(run) == {"t0": "look here", "t1": "why?"}
    assert (run.file("notes.jsonl").stat().st_mode & 0o777) == 0o600
    again = widget(run=run)
    assert [row["text"] for row in again.payload["notes"]] == ["look here", "why?"]
    other = again.live()
    other.notes = [*again.payload["notes"], note("t2", "second window", 2)]
    live.notes = [note("t0", "", 3), note("t1", "why?", 1)]  # it knows nothing of t2, and loses nothing
    assert read_notes(run) == {"t1": "why?", "t2": "second window"}
    live.close(), other.close()


def test_cells_of_a_sweep_do_not_share_the_notes_that_a_browser_keeps(tmp_path):
    places = ("kl/default/seed-1", "kl/beta-0/seed-1", "lr/default/seed-1")
    keys = [widget(run=Run.create(tmp_path / place)).payload["key"] for place in places]
    assert len(set(keys)) == 3 and keys[0] == widget(run=Run(tmp_path / places[0])).payload["key"]


def test_the_newest_note_counts_and_damage_is_left_out(run):
    rows = [note("t0", "new", 5), note("t0", "old", 1), {"task_id": 3}, note("t1", "x" * 20_001)]
    run.file("notes.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"task_id": "t2", "te')
    with pytest.warns(UserWarning, match="torn"):
        assert read_notes(run) == {"t0": "new"}


def test_a_note_that_cannot_be_saved_says_so(run):
    unsaved = widget().live()
    unsaved.notes = [note("t0", "a")]
    assert unsaved.status == "not saved: no run was given, so export the notes"
    live = widget(run=run).live()
    run.file("notes.jsonl").mkdir()
    live.notes = [note("t0", "a")]
    assert re.fullmatch(r"not saved: .*notes\.jsonl cannot be written \(.*irectory.*", live.status)
    run.file("notes.jsonl").rmdir()
    live.notes = [note("t0", "a"), {"task_id": "t1", "text": 3}, "junk"]
    assert read_notes(run) == {"t0": "a"}
    unsaved.close(), live.close()


def test_pages_are_self_contained_and_live_views_get_the_same_bytes():
    for view in (widget(), group_view(group(), TASKS), mask_xray(trajectory("t0", 1.0))):
        live = view.live()
        assert live.data == view.data and live._esm == view.source
        live.close()
        assert set(view._repr_mimebundle_()) == {"text/html", "text/plain"}
        page = html.unescape(re.search(r'srcdoc="([^"]*)"', view.html())[1])
        assert page == view.page
        assert 'sandbox="allow-scripts allow-downloads"' in view.html()
        assert "allow-same-origin" not in view.html()
        assert "default-src 'none'" in html.unescape(page)
        assert not re.search(r"https?://|\bimport\b[^a-z]*[\"'(]", page)


def test_sources_never_make_markup_of_text():
    sources = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js")}
    assert {"common.js", "trajectories.js", "group.js", "tokens.js", "relay.js"} <= sources.keys()
    for source in sources.values():
        assert "</script" not in source and "<!--" not in source
        makes = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|DOMParser"
        assert not re.search(makes, source)


@pytest.mark.parametrize("name", ["end of the data", "surrogates", "NUL", "line", "prototype"])
def test_any_text_travels_and_cannot_end_the_element_that_holds_it(name):
    text = TEXTS[name]
    turns = (call(text, text, text=text),)
    bad = trajectory("t", 0.0, answer=text, turns=turns, why=text)
    compared = compare_trajectories([Task("t", text, "<!--")], {"<script>": [bad]})
    for view in (compared, group_view([bad]), mask_xray(bad)):
        held = re.search(r'<script type="text/plain" id="payload">(.*?)</script>', view.page, re.DOTALL)[1]
        blocks = [gzip.decompress(base64.b64decode(line)) for line in held.split("\n")]
        assert blocks == [gzip.decompress(b) for b in view.data] and sum(map(len, view.data)) < 100_000
        assert view.page.count("</script>") == 2, "the data's and the module's"
        view.page.encode("utf-8")


# ---- the states that environments show after each turn
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
