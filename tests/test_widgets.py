"""What the views are given, before any browser: payloads, X-ray data, notes, and pages that hold data safely."""

import base64
import gzip
import html
import json
import re
from pathlib import Path

import pytest
from hostile.widget_texts import TEXTS
from widget_cases import TASKS, call, group, read_notes, trajectory, widget

import agentkit.views.widgets
from agentkit.records import Task, Turn
from agentkit.rollouts.tokens import faults, xray
from agentkit.runs import Run
from agentkit.views.widgets import compare_trajectories, group_view, mask_xray

FOLDER = Path(agentkit.views.widgets.__file__).parent


def views():
    """One of each."""
    return [widget(), group_view(group(), TASKS), mask_xray(trajectory("t0", 1.0))]


# ---- trajectories side by side
def test_compare_payload(monkeypatch):
    monkeypatch.setattr("agentkit.views.widgets.trajectories.SAMPLES", 2)
    payload = widget().payload
    assert payload["policies"] == ["sft", "grpo"]
    assert [task["id"] for task in payload["tasks"]] == ["t0", "t1", "t2"]
    assert [task["solved"] for task in payload["tasks"]] == [[False, True], [True, False], [False, False]]
    sft, grpo = payload["tasks"][0]["columns"]
    assert (sft["right"], sft["scored"], sft["count"], len(sft["samples"])) == (1, 3, 3, 2)
    scored = payload["tasks"][1]["columns"][0]["samples"][0]
    assert scored["components"] == [["correct", 1.0], ["format", None]]
    assert [task["marks"] for task in payload["tasks"]] == [[], [], ["no answer", "failed call"]]
    assert [turn["actions"] for turn in grpo["samples"][0]["turns"]] == [
        ['search {"query": "peru"}'], ['search {"query": "peru people"}'], ["answer: 33"],
    ]  # fmt: skip


def test_odd_values():
    odd = trajectory("t0", None, reward=float("nan"), turns=(call("q", "y" * 5000),), answer=None)
    payload = compare_trajectories(TASKS, {"sft": [odd], "grpo": []}).payload
    task = payload["tasks"][0]
    sft, grpo = task["columns"]
    assert task["solved"] == [None, None] and sft["scored"] == 0 and sft["samples"][0]["reward"] is None
    assert sft["samples"][0]["turns"][0]["results"][0][0].endswith("(1000 more characters)")
    assert grpo == {"count": 0, "scored": 0, "right": 0, "samples": []}
    assert task["marks"] == ["not scored", "no answer"]


# ---- groups
def test_group_payload():
    other = trajectory("t0", 1.0, step=5, policy="grpo", reward=1.0)
    first, second = group_view([*group(), other], TASKS).payload["groups"]
    assert (first["id"], first["step"], first["mean"]) == ("t0", 4, 0.3)
    assert first["std"] == pytest.approx(0.39**0.5)
    assert [(r["sample"], r["calls"], r["failed"], r["reward"]) for r in first["rollouts"]] == [
        (0, 0, 0, 0.1), (1, 2, 1, -0.2), (2, 2, 0, 1.0), (3, 0, 0, None),
    ]  # fmt: skip
    assert (second["step"], second["mean"], second["std"]) == (5, 1.0, None), "another step"
    assert "prompt" not in group_view(group()).payload["groups"][0]


# ---- X-ray
def traced(**changes):
    """Two prompt tokens, a turn of two, an observation of one, a turn of two."""
    fields = {
        "prompt_ids": (8, 9), "completion_ids": (1, 2, 3, 4, 5), "action_mask": (1, 1, 0, 1, 1),
        "old_logprobs": (-0.1, -0.2, 0.0, -0.3, -0.4), "turns": (Turn("ab", (0, 2)), Turn("de", (3, 5))), "advantage": 0.5,
    }  # fmt: skip
    return trajectory("t0", 1.0, **(fields | changes))


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_mask": (1, 1)}, "action_mask has 2 values for 5 completion tokens"),
        ({"turns": (Turn("", (3, 9)),)}, r"turn 0 spans \[3, 9\) of 5"),
    ],
)
def test_xray_refuses_what_does_not_line_up(changes, message):
    with pytest.raises(ValueError, match=message):
        mask_xray(traced(**changes))


def test_a_trained_observation_is_a_fault():
    view = mask_xray(traced(action_mask=(1, 1, 1, 1, 1)))
    (fault,) = view.payload["faults"]
    assert fault.startswith("the action mask is wrong at 1 of 7 tokens")


# ---- notes
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


# ---- pages
def test_pages_are_self_contained_and_live_views_get_the_same_bytes():
    for view in views():
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
