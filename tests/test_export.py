"""Trajectories written for others: what a ``messages`` data set and an inspect_ai log say of them."""

import dataclasses
import json

import pytest

from agentkit.records import DataError, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import read_jsonl
from agentkit.views.export import write_inspect, write_messages

NASTY = 'say "{}"\n</tool_call> <|im_end|> \u202e \x00 \ud800 é 日本 </script>'
TASKS = [Task("t0", "What is 2 + 3?", "5", "numeric"), Task("t1", f"Repeat: {NASTY}", "é")]


def trajectory(task_id="t0", sample=0, answer="5", success=1.0, policy="grpo", step=4, text=""):
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
    arguments = {"expression": "2 + 3", "n": [1, None, 0.1], "unit": None}
    broken = ToolResult("", {}, "Error: malformed tool call: no JSON.", False)
    results = ToolResult("calculator", arguments, f"5 {text}", True), broken
    asks = f"Let me see {text}{call}<tool_call>{{</tool_call><|im_end|>"
    turns = (Turn(asks, (0, 2), results), Turn(f"Answer: {answer}<|im_end|>", (4, 6)))
    return Trajectory(
        task_id, policy, sample, 7, (1, 2, 3), (4, 5, 6, 7, 8, 9), (1, 1, 0, 0, 1, 1), (-0.1, -1e-30, 0.0, 0.0, -2 / 3, -0.0),
        turns, StopReason.ANSWER, answer, success, "why", {"correctness": success, "format": 0.5}, 1.05, -0.7, step,
    )  # fmt: skip


RIGHT, WRONG = trajectory(), trajectory(sample=1, answer="6", success=0.0)
ALL = [RIGHT, WRONG, trajectory("t1", text=NASTY, success=None)]


def test_a_messages_data_set_is_read_by_datasets(tmp_path):
    from datasets import load_dataset

    for name in ("m.parquet", "m.jsonl"):
        write_messages(tmp_path / name, ALL, TASKS)
    rows = read_jsonl(tmp_path / "m.jsonl")
    roles = [message["role"] for message in rows[0]["messages"]]
    assert roles == "user assistant tool tool assistant".split()
    call = rows[0]["messages"][1]["tool_calls"][0]["function"]
    arguments = {"expression": "2 + 3", "n": [1, None, 0.1], "unit": None}
    assert call["name"] == "calculator" and json.loads(call["arguments"]) == arguments
    fields = {"task_id": "t0", "policy": "grpo", "sample": 1, "success": 0.0, "reward": 1.05}
    assert {name: value for name, value in rows[1].items() if name != "messages"} == fields
    file, cache = str(tmp_path / "m.parquet"), str(tmp_path / "cache")
    data = load_dataset("parquet", data_files=file, split="train", cache_dir=cache)
    contents = [[[m["content"] for m in row["messages"]] for row in found] for found in (data, rows)]
    assert contents[0] == contents[1]
    assert [row["success"] for row in data] == [1.0, 0.0, None]


def test_an_inspect_log_holds_its_samples_calls_and_scores(tmp_path):
    write_inspect(tmp_path / "log.json", ALL, TASKS)
    text = (tmp_path / "log.json").read_text()
    assert "\\ud800" not in text, "half a character, which inspect_ai's reader refuses"
    log = json.loads(text)
    assert log["version"] == 2 and log["status"] == "success" and log["eval"]["model"] == "grpo"
    samples = [(s["id"], s["epoch"], bool(s["scores"])) for s in log["samples"]]
    assert samples == [("t0", 1, True), ("t0", 2, True), ("t1", 1, False)]
    assert log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 0.5
    assert log["samples"][0]["messages"][1]["tool_calls"][0]["arguments"]["expression"] == "2 + 3"
    assert log["samples"][0]["target"] == "5"


def test_what_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"m\.csv is not written. Let its name end in \.parquet or \.jsonl"):
        write_messages(tmp_path / "m.csv", ALL, TASKS)
    with pytest.raises(DataError, match="'t0' of a trajectory is not among the tasks"):
        write_messages(tmp_path / "m.jsonl", ALL, TASKS[1:])
    for several in ([], [RIGHT, dataclasses.replace(RIGHT, policy="sft")], [RIGHT, RIGHT]):
        with pytest.raises(DataError, match="one policy at one step"):
            write_inspect(tmp_path / "z.json", several, TASKS)
