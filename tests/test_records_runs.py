"""Records and the run folder: atomic files, honest readers, private modes, nothing lost."""

import dataclasses
import math
import os
import stat
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit import Suite, runs
from agentkit.records import RunError, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import Run, check_name, load_run, read_json, read_jsonl, read_tasks, read_trajectories

TASK = {"id": "A-1", "prompt": "What is 1 + 1?", "answer": "2"}


def one_sentence(error: pytest.ExceptionInfo) -> str:
    """The message, checked to be a short single line."""
    message = str(error.value)
    assert message and "\n" not in message and len(message) < 600
    return message


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_trajectory(**changes) -> Trajectory:
    base = Trajectory(
        task_id="A-00001", policy="nano", sample=3, seed=7, prompt_ids=(1, 2, 3), completion_ids=(4, 5, 6, 7),
        action_mask=(1, 1, 0, 0), old_logprobs=(-0.5, -1.25, 0.0, 0.0),
        turns=(Turn("sea\ud800rch", (0, 2), (ToolResult("search", {"query": "x"}, "Error: \udfff.", False, 0.5, True),), 0.25),),
        stop_reason=StopReason.ANSWER, answer="42", success=1.0, why="equal",
        components={"correctness": 1.0, "judge": None}, reward=1.06, advantage=-0.25, step=4,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


# ---- JSON
def test_a_crash_while_writing_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = runs.write_json(tmp_path / "a.json", {"old": 1})

    def crash(*_):
        raise KeyboardInterrupt

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, crash)
            with pytest.raises(KeyboardInterrupt):
                runs.write_json(path, {"new": 2})
        assert read_json(path) == {"old": 1}
        assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_json_holds_no_nan_and_lone_surrogates_survive(tmp_path):
    value = {"a": [math.nan, math.inf, -math.inf, 0.5], "b": "Zoë \ud800", 3: (1, None)}
    path = runs.write_json(tmp_path / "a.json", value)
    assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()
    assert read_json(path) == {"a": [None, None, None, 0.5], "b": "Zoë \ud800", "3": [1, None]}
    assert "Zoë" in runs.write_json(path, {"b": "Zoë"}).read_text(encoding="utf-8")


def test_missing_files_and_folders_are_one_sentence(tmp_path):
    for read in (read_json, read_jsonl, read_tasks, read_trajectories):
        for place in (tmp_path / "gone.jsonl", tmp_path):
            with pytest.raises(RunError) as error:
                read(place)
            one_sentence(error)
    with pytest.raises(RunError, match="no run at .*notebook 01"):
        load_run(tmp_path / "gone")


# ---- JSON lines
def test_lines_come_back_and_a_torn_last_one_is_reported(tmp_path):
    path = runs.write_jsonl(tmp_path / "a.jsonl", [{"step": 1}, {"step": 2, "text": "a\u2028b\r\n"}])
    assert read_jsonl(path) == [{"step": 1}, {"step": 2, "text": "a\u2028b\r\n"}]
    with path.open("ab") as file:
        file.write(b'[1]\n{"step": 3, "text": "Zo\xc3')
    with pytest.warns(UserWarning, match=r"line 3 is torn and was left out \(it is list.*; and 1") as told:
        assert read_jsonl(path) == [{"step": 1}, {"step": 2, "text": "a\u2028b\r\n"}]
    assert len(told) == 1


def test_appending_after_a_tear_keeps_the_new_line(tmp_path):
    path = tmp_path / "train" / "metrics.jsonl"
    runs.append_jsonl(path, {"step": 1})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "lo')
    runs.append_jsonl(path, {"step": 3, "text": "\ud800"})
    with pytest.warns(UserWarning, match="line 2 is torn"):
        assert read_jsonl(path) == [{"step": 1}, {"step": 3, "text": "\ud800"}]
    assert mode(path) == 0o600


# ---- trajectories
def test_a_trajectory_comes_back_as_it_was(tmp_path):
    bare = make_trajectory(turns=(), answer=None, success=None, components={}, reward=None, advantage=None, step=None,
                           stop_reason=StopReason.ERROR, completion_ids=(), action_mask=(), old_logprobs=())  # fmt: skip
    for stop in StopReason:
        bare = dataclasses.replace(bare, stop_reason=stop)
        path = runs.write_trajectories(tmp_path / "a.parquet", [make_trajectory(), bare])
        assert read_trajectories(path) == [make_trajectory(), bare]
    assert read_trajectories(runs.write_trajectories(tmp_path / "none.parquet", [])) == []


def test_a_lone_surrogate_in_an_answer_does_not_lose_the_file(tmp_path):
    odd = make_trajectory(answer="4\ud800", why="\udfff", policy="p\ud800")
    path = runs.write_trajectories(tmp_path / "a.parquet", [odd])
    (found,) = read_trajectories(path)
    assert (found.answer, found.why, found.policy) == ("4?", "?", "p?")
    assert found.turns == make_trajectory().turns  # turns keep them


@given(
    texts=st.lists(st.text(st.characters()), max_size=4),
    logprobs=st.lists(st.floats(-50, 0, width=32), max_size=6),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_text_and_number_round_trips(tmp_path_factory, texts, logprobs, reward):
    length = len(logprobs)
    spans = [(min(i, length), min(i + 1, length)) for i in range(len(texts))]
    results = [(ToolResult(t, {"q": t}, t, True),) for t in texts]
    turns = tuple(map(Turn, texts, spans, results))
    trajectory = make_trajectory(turns=turns, old_logprobs=tuple(logprobs), completion_ids=tuple(range(length)),
                                 action_mask=(1,) * length, reward=reward)  # fmt: skip
    path = tmp_path_factory.mktemp("t") / "a.parquet"
    assert read_trajectories(runs.write_trajectories(path, [trajectory])) == [trajectory]


def test_damaged_trajectory_files_are_one_sentence(tmp_path):
    good = runs.write_trajectories(tmp_path / "good.parquet", [make_trajectory()] * 40).read_bytes()
    middle = len(good) // 3
    damaged = {"empty": b"", "text": b"hello", "torn": good[: len(good) // 2]}
    damaged["overwritten"] = good[:middle] + bytes(64) + good[middle + 64 :]
    ids = pq.read_metadata(tmp_path / "good.parquet").row_group(0).column(5)
    assert ids.path_in_schema.startswith("completion_ids")
    last = (ids.dictionary_page_offset or ids.data_page_offset) + ids.total_compressed_size - 3
    damaged["one bit"] = good[:last] + bytes([good[last] ^ 1]) + good[last + 1 :]
    for name, content in damaged.items():
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(content)
        with pytest.raises(RunError, match="not a (readable Parquet|trajectory) file") as error:
            read_trajectories(path)
        one_sentence(error)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(RunError, match="not a trajectory file of this version"):
        read_trajectories(tmp_path / "other.parquet")


# ---- tasks
@pytest.mark.parametrize(("tasks", "says"), [
    ([], "it holds no task"),
    ([Task(**TASK)] * 2, "task A-1 occurs twice"),
    ([Task(**TASK, split="dev")], "task 1 ('A-1'): split is 'dev'"),
    ([Task(**TASK | {"answer": 2})], "task 1 ('A-1'): answer is 2"),
    ([Task(**TASK, meta={"a": {1}})], "it cannot be written (Object of type set"),
    ([Task(**TASK, meta={None: 1})], "task 1 ('A-1'): "),
    ([Task(**TASK, verifier={"kind": "code", "tests": [[[1], math.inf]]})], "it cannot be written (Out of range"),
])  # fmt: skip
def test_what_would_not_be_read_back_is_not_written(tmp_path, tasks, says):
    path = runs.write_tasks(tmp_path / "tasks.jsonl", [Task(**TASK)])
    before = path.read_bytes()
    with pytest.raises(RunError) as error:
        runs.write_tasks(path, tasks)
    assert says in one_sentence(error) and path.read_bytes() == before
    with pytest.raises(RunError):
        Suite(tasks).save(path, force=True)


# ---- run folders
@pytest.mark.parametrize("name", ["../x", "a\0b", "x" * 300, "-rf", "", "..", "a b", "a\n", "ü"])
def test_hostile_run_names_are_refused(name):
    with pytest.raises(RunError) as error:
        check_name(name)
    one_sentence(error)


@pytest.mark.parametrize("path", ["-rf", "bad\0/run", f"{'x' * 300}/run", ".."])
def test_hostile_run_folders_are_refused_and_nothing_is_made(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for make in (Run.create, load_run):
        with pytest.raises(RunError) as error:
            make(path)
        one_sentence(error)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_name_cannot_leave_the_run(tmp_path):
    run = Run.create(tmp_path / "a")
    for name in ("../../x", "/etc/passwd", "a\0b"):
        with pytest.raises(RunError, match="refused"):
            run.trajectories(name)


def test_stages_are_recorded_and_folders_are_private(tmp_path):
    run = Run.create(tmp_path / "deep" / "a")
    assert mode(run.path) == 0o700 and mode(run.path / "run.json") == 0o600
    run.begin("01_tasks", {"seed": 3})
    runs.write_tasks(run.file("tasks.jsonl"), [Task(**TASK)])
    run.file("train", "checkpoints").mkdir(parents=True)
    run.file("train", "state.pt").write_text("x")
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    run.file("link").symlink_to(outside)
    run.end("01_tasks", note="fine")
    stage = run.manifest["stages"]["01_tasks"]
    assert stage["status"] == "done" and stage["parameters"] == {"seed": 3} and stage["note"] == "fine"
    assert stage["seconds"] >= 0 and "_clock" not in stage
    assert run.manifest["hashes"]["tasks.jsonl"] == runs.digest(run.file("tasks.jsonl"))
    assert run.manifest["versions"]["python"] == sys.version.split()[0]
    for root, folders, files in os.walk(run.path):
        assert all(mode(Path(root, f)) == 0o700 for f in folders)
        assert all(mode(Path(root, f)) == 0o600 for f in files if not Path(root, f).is_symlink())
    assert mode(outside) == 0o644


def test_a_stage_names_the_notebook_whose_output_it_lacks(tmp_path):
    run = Run.create(tmp_path / "a")
    with pytest.raises(RunError, match=r"adapter, which does not exist: run .* --to 04") as error:
        run.begin("05_compare", {}, inputs=["run.json", "adapter"])
    one_sentence(error)
    assert run.manifest["stages"] == {}


@pytest.mark.parametrize(
    "content", ["", "[]", '{"stages": 3}', '{"stages": {', '{"stages": {"a": 3}}', '{"stages": {"a": {"parameters": 3}}}']
    + [f'{{"{name}": 7}}' for name in ("recipe", "hashes", "versions", "git")]
)  # fmt: skip
def test_a_damaged_manifest_is_one_sentence_and_stays(tmp_path, content):
    run = Run.create(tmp_path / "a")
    run.file("run.json").write_text(content)
    again = Run.create(run.path)
    for act in (lambda: run.manifest, lambda: run.begin("01_tasks", {}), lambda: again.end("01_tasks")):
        with pytest.raises(RunError, match=r"run\.json") as error:
            act()
        one_sentence(error)
    assert run.file("run.json").read_text() == content


def test_a_run_gives_its_steps_back_in_order(tmp_path):
    run = Run.create(tmp_path / "a")
    for step in (12, 3):
        path = run.file("train", "trajectories", f"step_{step:05d}.parquet")
        runs.write_trajectories(path, [make_trajectory(step=step)])
    run.file("train", "trajectories", "step_old.parquet").write_text("not a step")
    assert run.steps == [3, 12]
    assert run.trajectories(12) == run.trajectories(np.int64(12)) == [make_trajectory(step=12)]
