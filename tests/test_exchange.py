import dataclasses
import json
import math
import os
import zipfile
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from agentkit.evaluation import compare
from agentkit.exchange import (
    from_inspect,
    from_messages,
    from_trl,
    to_messages,
    write_inspect,
    write_messages,
    write_trl,
)
from agentkit.records import (
    AgentkitError,
    DataError,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)
from agentkit.rollouts.call_formats import parse_turn
from agentkit.runs import RunError
from agentkit.verifiers import KINDS, register

USER = {"role": "user", "content": "q"}
ASKS = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
NASTY = 'say "{}"\n</tool_call> <|im_end|> \u202e \x00 \ud800 é 日本 </script>'
TASKS = [Task("t0", "What is 2 + 3?", "5", "numeric"), Task("t1", f"Repeat: {NASTY}", "é")]


def trajectory(task_id="t0", sample=0, answer="5", success=1.0, policy="grpo", step=4, text=""):
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
    turns = (
        Turn(
            f"Let me see {text}{call}<tool_call>{{</tool_call><|im_end|>",
            (0, 2),
            (
                ToolResult(
                    "calculator",
                    {"expression": "2 + 3", "n": [1, None, 0.1], "unit": None},
                    f"5 {text}",
                    True,
                    0.1 + 0.2,
                    True,
                ),
                ToolResult("", {}, "Error: malformed tool call: no JSON.", False),
            ),
            1 / 3,
        ),
        Turn(f"Answer: {answer}<|im_end|>", (4, 6), (), 0.25),
    )
    return Trajectory(
        task_id, policy, sample, 7, (1, 2, 3), (4, 5, 6, 7, 8, 9), (1, 1, 0, 0, 1, 1), (-0.1, -1e-30, 0.0, 0.0, -2 / 3, -0.0),
        turns, StopReason.ANSWER, answer, success, "why", {"correctness": success, "format": 0.5}, 1.05, -0.7, step,
    )  # fmt: skip


ALL = [
    trajectory(),
    trajectory(sample=1, answer="6", success=0.0),
    trajectory("t1", text=NASTY, success=None),
]


# ---- there and back
# --------------------------------------------------------------------------------------------------
def test_messages_come_back_equal(tmp_path):
    from datasets import Dataset, load_dataset

    exported = to_messages(ALL, TASKS)
    for source in (exported, Dataset.from_list(exported)):
        assert from_messages(source).trajectories == ALL
    write_messages(tmp_path / "m.parquet", ALL, TASKS)
    read = from_messages(tmp_path / "m.parquet")
    assert read.trajectories == ALL and read.dropped == ()
    write_messages(tmp_path / "m.jsonl", ALL, TASKS)
    assert from_messages(tmp_path / "m.jsonl").trajectories == ALL
    with pytest.raises(DataError, match=r"m\.csv is not written. Let its name end in \.parquet or \.jsonl"):
        write_messages(tmp_path / "m.csv", ALL, TASKS)
    loaded = load_dataset(
        "parquet", data_files=str(tmp_path / "m.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert from_messages(loaded).trajectories == ALL
    roles = [message["role"] for message in exported[0]["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    call = exported[0]["messages"][1]["tool_calls"][0]["function"]
    assert call["name"] == "calculator" and json.loads(call["arguments"]) == {
        "expression": "2 + 3",
        "n": [1, None, 0.1],
        "unit": None,
    }


def test_trl_comes_back_equal(tmp_path):
    write_trl(tmp_path / "completions_00004.parquet", ALL, TASKS)
    assert from_trl(tmp_path / "completions_00004.parquet").trajectories == ALL
    assert from_trl(tmp_path).trajectories == ALL
    columns = pd.read_parquet(tmp_path / "completions_00004.parquet").columns
    assert list(columns[:6]) == ["step", "prompt", "completion", "correctness", "format", "advantage"]


def test_inspect_comes_back_equal(tmp_path):
    write_inspect(tmp_path / "log.json", ALL, TASKS)
    read = from_inspect(tmp_path / "log.json")
    assert read.trajectories == ALL and [(t.id, t.answer) for t in read.tasks] == [("t0", "5"), ("t1", "é")]
    text = (tmp_path / "log.json").read_text()
    assert "\\ud800" not in text.replace(
        "\\\\ud800", ""
    )  # half characters, which inspect_ai's reader refuses
    log = json.loads(text)
    assert log["version"] == 2 and log["status"] == "success" and log["eval"]["model"] == "grpo"
    assert [(s["id"], s["epoch"], bool(s["scores"])) for s in log["samples"]] == [
        ("t0", 1, True),
        ("t0", 2, True),
        ("t1", 1, False),
    ]
    assert log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 0.5
    assert log["samples"][0]["messages"][1]["tool_calls"][0]["arguments"]["expression"] == "2 + 3"


def test_what_the_text_alone_keeps(tmp_path):
    """Without the record: turns, calls, replies, answers and verdicts stay; tokens go, and it says so."""
    rows = [{k: v for k, v in row.items() if k != "trajectory"} for row in to_messages(ALL[:2], TASKS)]
    read = from_messages(rows)
    for before, after in zip(ALL[:2], read.trajectories, strict=True):
        assert (after.task_id, after.policy, after.sample, after.answer) == (
            before.task_id,
            "grpo",
            before.sample,
            before.answer,
        )
        assert after.success == before.success and len(after.turns) == 2
        kept = [(r.name, r.observation, r.ok) for r in after.turns[0].results]
        assert kept == [(r.name, r.observation, r.ok) for r in before.turns[0].results]
    assert any("no length in tokens" in phrase for phrase in read.dropped)
    scored = from_messages([row | {"success": None} for row in rows], tasks=TASKS)
    assert [t.success for t in scored.trajectories] == [1.0, 0.0] and scored.tasks == TASKS[:1]


# ---- what others write
# -----------------------------------------------------------------------------------------------
OPENAI = [
    {"role": "system", "content": "Use tools."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is 2 + 3?"},
            {"type": "image_url", "image_url": {"url": "x"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "b", "type": "function", "function": {"name": "add", "arguments": '{"x": 2}'}},
            {
                "id": "a",
                "type": "function",
                "function": {"name": "look", "arguments": {"q": "three", "unused": None}},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "3"},
    {"role": "tool", "tool_call_id": "b", "content": "Error: y is missing."},
    {"role": "assistant", "content": "It is 5.\nAnswer: 5"},
]


def test_messages_of_others(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"messages": OPENAI, "success": s}) for s in (True, 0)))
    read = from_messages(path, policy="theirs")
    first, second = read.trajectories
    assert (first.success, second.success, first.sample, second.sample) == (1.0, 0.0, 0, 1)
    assert first.task_id == second.task_id and first.answer == "5" and first.policy == "theirs"
    assert [(r.name, r.arguments, r.ok) for r in first.turns[0].results] == [
        ("add", {"x": 2}, False),  # in the order of the calls: their ids tell whose a reply is
        ("look", {"q": "three"}, True),
    ]
    assert {phrase.split(" (")[0] for phrase in read.dropped} >= {
        "system prompts",
        "parts of messages that are no text",
    }
    by_prompt = from_messages(path, policy="theirs", tasks=TASKS)
    assert {t.task_id for t in by_prompt.trajectories} == {"t0"} and {
        t.success for t in by_prompt.trajectories
    } == {1.0}
    comparison = compare({"ours": [trajectory(policy="ours")], "theirs": by_prompt.trajectories}, TASKS)
    assert comparison.n_tasks == 1
    ours, theirs = (comparison.policies[name] for name in ("ours", "theirs"))
    assert ours["tokens"] == 6 and theirs["tokens"] is theirs["tokens_per_solved"] is None  # text has none
    assert list(comparison.table().loc["Average tokens per task"]) == ["6", "–"]


def test_rows_that_pandas_read_are_as_their_file(tmp_path):
    """It has arrays in place of lists, NaN for no id, and whole ids beside one as floats."""
    function = {"name": "add", "arguments": '{"x": 2}'}
    said = [
        ("user", "What?", None),
        ("assistant", "", [{"id": "a", "function": function}]),
        ("tool", "5", None),
    ]
    said = [
        {"role": role, "content": [{"type": "text", "text": text}], "tool_calls": calls}
        for role, text, calls in [*said, ("assistant", "Answer: 5", None)]
    ]
    other = [said[0] | {"content": [{"type": "text", "text": "Who?"}]}, *said[1:]]
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"messages": [said, said, other], "task_id": [7, None, None]}).to_parquet(path)
    rows = [{"messages": said, "task_id": 7}, {"messages": said}, {"messages": other}]
    for source in (pd.read_parquet(path).to_dict("records"), path):
        assert from_messages(source).trajectories == from_messages(rows).trajectories


def test_a_users_last_word_takes_no_answer_away():
    said = [{"role": "assistant", "content": "Answer: 5"}, {"role": "user", "content": "Thanks!"}]
    (t,) = from_messages([{"messages": [USER, *said]}], tasks=[Task("a", USER["content"], "5")]).trajectories
    assert (t.answer, t.success, t.stop_reason) == ("5", 1.0, StopReason.ANSWER)


def test_a_reply_without_id_or_name_belongs_to_the_open_call(tmp_path):
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2 + 3"}}}
    messages = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "5"},
        {"role": "assistant", "content": "Answer: 5"},
    ]
    (read,) = from_messages([{"messages": messages}]).trajectories
    assert [(r.name, r.arguments) for r in read.turns[0].results] == [("calculator", {"expression": "2 + 3"})]


def test_a_trajectory_that_ran_out_of_time_is_not_scored_anew(tmp_path):
    late = dataclasses.replace(ALL[0], stop_reason=StopReason.TIME_LIMIT, answer=None, success=None)
    write_messages(tmp_path / "m.parquet", [late], TASKS)
    assert from_messages(tmp_path / "m.parquet", tasks=TASKS).trajectories[0].success is None


def test_examples_in_a_prompt_of_trl_are_no_turns(tmp_path):
    shown = [{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "Answer: 2"}]
    rows = {
        "prompt": [
            [*shown, {"role": "user", "content": text}] for text in ("What is 2 + 3?", "What is 9 + 9?")
        ],
        "completion": [[{"role": "assistant", "content": "Answer: 5"}]] * 2,
        "step": [1, 1],
    }
    pd.DataFrame(rows).to_parquet(tmp_path / "c.parquet")
    read = from_trl(tmp_path / "c.parquet", policy="theirs")
    assert [t.prompt for t in read.tasks] == ["What is 2 + 3?", "What is 9 + 9?"]
    assert [len(t.turns) for t in read.trajectories] == [1, 1] and any("examples" in d for d in read.dropped)


def test_trl_tables_of_others(tmp_path):
    """As TRL's GRPOTrainer.log makes them: pandas to_parquet of messages or texts, rewards, extra columns,
    advantage.
    """
    folder = tmp_path / "completions"
    folder.mkdir()
    prompt, calls = (
        OPENAI[:1] + [{"role": "user", "content": "What is 2 + 3?"}],
        OPENAI[2]["tool_calls"][:1],
    )
    completion = [{"role": "assistant", "content": "", "tool_calls": calls}, OPENAI[4], OPENAI[5]]
    table = {
        "step": [1, 1],
        "prompt": [prompt] * 2,
        "completion": [completion] * 2,
        "right": [1.0, float("nan")],
    }
    pd.DataFrame(table | {"note": ["x", "y"], "advantage": [0.5, -0.5]}).to_parquet(
        folder / "completions_00001.parquet"
    )
    text = {
        "step": [2],
        "prompt": ["What is 2 + 3?"],
        "completion": ["Answer: 6"],
        "right": [0.0],
        "advantage": [0.0],
    }
    pd.DataFrame(text).to_parquet(folder / "completions_00002.parquet")
    read = from_trl(folder, policy="theirs", success="right")
    assert [(t.step, t.sample, t.success, t.advantage) for t in read.trajectories] == [
        (1, 0, 1.0, 0.5), (1, 1, None, -0.5), (2, 0, 0.0, 0.0)
    ]  # fmt: skip
    assert [t.components for t in read.trajectories] == [{"right": 1.0}, {"right": None}, {"right": 0.0}]
    assert len({t.task_id for t in read.trajectories}) == 1 and [t.answer for t in read.trajectories] == [
        "5",
        "5",
        "6",
    ]
    with pytest.raises(DataError, match="no row has a number in the column 'acc'. Name one of: right."):
        from_trl(folder, success="acc")
    assert "the column 'note'" in read.dropped and any("plain text" in phrase for phrase in read.dropped)


def test_text_that_holds_tool_replies_is_one_turn_and_told(tmp_path):
    """As TRL 1.15 logs what a rollout_func returned: one assistant message, control tokens dropped."""
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    text = f"{call}\nuser\n<tool_response>\n5\n</tool_response>\nassistant\nAnswer: 5"
    row = {
        "step": [1],
        "prompt": [[USER]],
        "completion": [[{"role": "assistant", "content": text}]],
        "success": [1.0],
        "advantage": [0.0],
    }
    pd.DataFrame(row).to_parquet(tmp_path / "completions_00001.parquet")
    read = from_trl(tmp_path)
    assert len(read.trajectories[0].turns) == 1 and read.trajectories[0].answer == "5"
    assert any("holds tool replies itself" in phrase for phrase in read.dropped)


# what a model said last, in the forms of others; its answer is 5, and 6 is a thought
TEXT, PROMPT = {"type": "text", "text": "5"}, "What is 2 + 3?"
SAID = {
    "vLLM": {"content": "5", "reasoning_content": "Answer: 6?"}, "OpenRouter": {"content": "5", "reasoning": "Answer: 6?"},
    "Ollama": {"content": "5", "thinking": "Answer: 6?"}, "both keys": {"content": "5", "reasoning": "6", "reasoning_content": "6"},
    "blocks apart": {"content": "5", "thinking": [{"type": "thinking", "text": "Answer: 6?"}, {"type": "redacted_thinking", "data": "x"}]},
    "settings, no thought": {"content": "5", "reasoning": {"effort": "high"}}, "nothing": {"content": "5", "reasoning_content": None},
    "inspect_ai": {"content": [{"type": "reasoning", "reasoning": "Answer: 6?", "signature": "x", "redacted": False}, TEXT]},
    "Anthropic": {"content": [{"type": "thinking", "thinking": "Answer: 6?", "signature": "x"}, TEXT]},
    "Anthropic, redacted": {"content": [{"type": "redacted_thinking", "data": "x"}, TEXT]},
    "Mistral": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Answer: 6?"}]}, TEXT]},
    "Responses": {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Answer: 6?"}]}, {"type": "output_text", "text": "5"}]},
    "Gemini": {"content": [{"text": "Answer: 6?", "thought": True}, TEXT]}, "texts": {"content": ["5"]},
    "inline": {"content": "<think>\nAnswer: 6?\n</think>\n\n5"}, "inline, twice": {"content": "<think>6</think><think>Answer: 6</think>5"},
    "opened by the template": {"content": "Hm.\nAnswer: 6?\n</think>\n\n5"}, "with the end token": {"content": "Answer: 6?</think>5<|im_end|>"},
    "call in a thought": {"content": 'I could <tool_call>{"name": "add", "arguments": {}}</tool_call></think>5'},
    "an end in a thought": {"content": "5", "reasoning_content": "It ends with </think>\nAnswer: 6"},
    "a fence in a thought": {"content": "```\nAnswer: 6\n```\n</think>5"}, "parts and ends": {"content": [{"type": "text", "text": "6</think>5"}]},
}  # fmt: skip


def test_a_long_answer_reaches_its_verifier_as_in_a_rollout():
    register({"essay": lambda answer, gold: float(len(answer) > 2_000)})
    try:
        rows = [{"messages": [USER, {"role": "assistant", "content": "word " * 600}]}]
        kinds = (Task("t", USER["content"], "5", kind) for kind in ("essay", "numeric"))
        found = [from_messages(rows, tasks=[task]).trajectories[0] for task in kinds]
    finally:
        del KINDS["essay"]
    assert [t.success for t in found] == [1.0, 0.0] and "2000 is the limit" in found[1].why
    assert found[0].answer == ("word " * 600).strip() and found[1].answer is None, "as a rollout keeps them"


@pytest.mark.parametrize("form", SAID)
def test_an_answer_is_read_beside_its_thoughts_whatever_form_they_have(form):
    user = {"role": "user", "content": PROMPT}
    row = {"messages": [user, {"role": "assistant"} | SAID[form]]}
    task = Task("t0", PROMPT, "5")
    for imported in (from_messages([row]), from_messages([row], tasks=[task])):
        (t,) = imported.trajectories
        assert (t.answer, t.stop_reason) == ("5", StopReason.ANSWER)
    assert t.success == 1.0
    told = to_messages([t], [task])[0]["messages"]
    assert told[-1]["content"].strip().endswith("5") and "tool_calls" not in told[-1]


@pytest.mark.parametrize(
    ("prompt", "content"),
    [("q", "<think>Answer: 5"), ("q<|im_start|>assistant\n<think>\n", "Answer: 5"), ("q<think>", ASKS), ("q", [{"type": "thinking", "thinking": "Answer: 5"}])],
)  # fmt: skip
def test_an_unfinished_thought_is_no_answer(prompt, content):
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": content}]
    (t,) = from_messages([{"messages": messages}]).trajectories
    assert t.answer is None
    (message,) = to_messages([t], [Task(t.task_id, prompt, "5")])[0]["messages"][1:]
    assert message["content"] == "" and not message.get("tool_calls")


def test_a_finished_thought_after_an_opened_one_is_read(tmp_path):
    """As TRL logs a completion whose prompt opened the thought."""
    row = {
        "step": [1],
        "prompt": ["q<|im_start|>assistant\n<think>\n"],
        "completion": [f"{ASKS} Answer: 6</think>Answer: 5"],
    }
    pd.DataFrame(row | {"advantage": [0.0]}).to_parquet(tmp_path / "completions_00001.parquet")
    assert from_trl(tmp_path).trajectories[0].answer == "5"


def test_calls_keep_their_arguments_and_are_no_thoughts():
    for thought in (
        {"content": "<think>I look"},
        {"content": "hm</think>"},
        {"content": "", "reasoning_content": "I look"},
    ):
        for key in ("arguments", "parameters", "args", "input"):
            for asked in (
                {"name": "look", key: {"q": "x"}},
                {"function": {"name": "look", key: '{"q": "x"}'}},
                {"function": "look", key: {"q": "x"}},
            ):
                messages = [USER, {"role": "assistant", "tool_calls": [{"id": "a"} | asked]} | thought]
                messages += [
                    {"role": "tool", "tool_call_id": "a", "content": "3"},
                    {"role": "assistant", "content": "5"},
                ]
                (t,) = from_messages([{"messages": messages}]).trajectories
                assert [(r.name, r.arguments) for r in t.turns[0].results] == [("look", {"q": "x"})]
                assert parse_turn(t.turns[0].text, thought=thought["content"] == "hm</think>").calls == (
                    ToolCall("look", {"q": "x"}),
                )


CODE = "s.split('</think>')"
THINKS = {  # a turn with a call, and one that answers, as models write them
    "hermes": ("<think>\nHm.\n</think>\n\nSo: ", ASKS, "<think>\nHm.\n</think>\n\nAnswer: 5"),
    "opened by the prompt": ("Hm.\n</think>\n\nSo: ", ASKS, "\nHm.\n</think>Answer: 5"),
    "llama3": ("<think>Hm.</think>", '{"name": "add", "parameters": {}}', "<think>Hm.</think>Answer: 5"),
    "no thought": ("", f'{{"name": "add", "parameters": {{"code": "{CODE}"}}}}', f"Answer: 5\n```\n{CODE}\n```"),
}  # fmt: skip


EARLIER = {  # what versions that wrote no thoughts apart said of the same turns
    "hermes": ("So:", "Answer: 5"),
    "opened by the prompt": ("So:", "Answer: 5"),
    "llama3": ('{"name": "add", "parameters": {}}', "Answer: 5"),
    "no thought": ("')\"}}", f"Answer: 5\n```\n{CODE}\n```"),
}


def thinking(form):
    before, call, answers = THINKS[form]
    arguments = {"code": CODE} if form == "no thought" else {}
    turns = (
        Turn(f"{before}{call}<|im_end|>", (0, 2), (ToolResult("add", arguments, "5", True),)),
        Turn(f"{answers}<|im_end|>", (4, 6)),
    )
    return dataclasses.replace(ALL[0], turns=turns)


@pytest.mark.parametrize("form", THINKS)
def test_a_thought_is_written_apart_and_a_call_once(form, tmp_path):
    (before, _, answers), t = THINKS[form], thinking(form)
    (row,) = to_messages([t], TASKS)
    asks, answer = (message for message in row["messages"] if message["role"] == "assistant")
    thought = None if form == "no thought" else "Hm."
    assert [m.get("reasoning_content") for m in (asks, answer)] == [thought, thought]
    assert asks["content"] == ("So:" if "So: " in before else "") and len(asks["tool_calls"]) == 1
    assert answers.endswith(answer["content"]) and "5" in answer["content"] and "Hm." not in answer["content"]
    assert from_messages([row]).trajectories == [t]
    write_inspect(tmp_path / "log.json", [t], TASKS)
    assert from_inspect(tmp_path / "log.json").trajectories == [t]
    alone = from_messages([{k: v for k, v in row.items() if k != "trajectory"}]).trajectories
    assert to_messages(alone, TASKS)[0]["messages"] == row["messages"]
    path = tmp_path / "alone.json"
    log = json.loads((tmp_path / "log.json").read_text())
    log["samples"][0]["metadata"] = {}
    path.write_text(json.dumps(log))
    assert to_messages(from_inspect(path).trajectories, TASKS)[0]["messages"] == row["messages"]


@pytest.mark.parametrize("form", THINKS)
def test_what_earlier_versions_wrote_is_read(form, tmp_path):
    (asks, answers), t = EARLIER[form], thinking(form)
    (result,) = t.turns[0].results
    call = {"name": result.name, "arguments": json.dumps(result.arguments)}
    calls = [{"id": "call_0_0", "type": "function", "function": call}]
    messages = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": asks, "tool_calls": calls},
        {"role": "tool", "name": result.name, "content": "5", "tool_call_id": "call_0_0"},
        {"role": "assistant", "content": answers},
    ]
    row = to_messages([t], TASKS)[0] | {"messages": messages}
    assert from_messages([row]).trajectories == [t]
    write_inspect(tmp_path / "log.json", [t], TASKS)
    log = json.loads((tmp_path / "log.json").read_text())
    said = log["samples"][0]["messages"]
    said[1]["content"], said[3]["content"] = asks, answers
    (tmp_path / "log.json").write_text(json.dumps(log))
    assert from_inspect(tmp_path / "log.json").trajectories == [t]
    messages[3]["content"] = "Answer: 6"
    with pytest.raises(DataError, match="its messages are not those of its record"):
        from_messages([row])


def test_a_mark_in_code_ends_no_thought():
    code = "```python\ndef f(s):\n    return s.split('</think>')[-1]\n```"
    (t,) = from_messages([{"messages": [USER, {"role": "assistant", "content": code}]}]).trajectories
    assert t.answer == code


def inspect_log(**changes):
    call = {"id": "c1", "function": "add", "arguments": {"x": 2}, "type": "function"}
    messages = [
        {"id": "m1", "role": "user", "content": "attachment://abc", "source": "input"},
        {
            "id": "m2",
            "role": "assistant",
            "content": [{"type": "reasoning", "reasoning": "hm"}],
            "tool_calls": [call],
        },
        {
            "id": "m3",
            "role": "tool",
            "content": "",
            "tool_call_id": "c1",
            "function": "add",
            "error": {"type": "timeout", "message": "x"},
        },
        {"id": "m4", "role": "assistant", "content": "Answer: 5", "source": "generate"},
    ]
    sample = {
        "id": 3,
        "epoch": 2,
        "input": "attachment://abc",
        "target": ["5", "five"],
        "messages": messages,
        "events": [{"e": 1}],
    }
    sample |= {"attachments": {"abc": "What is 2 + 3?"}, "output": {"choices": [{"stop_reason": "stop"}]}}
    sample |= {
        "scores": {"match": {"value": "C", "explanation": "equal"}, "other": {"value": 0.25}}
    } | changes
    return {"version": 2, "status": "success", "eval": {"model": "openai/x"}, "samples": [sample]}


def test_inspect_logs_of_others(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log()))
    read = from_inspect(path)
    (t,) = read.trajectories
    assert (t.task_id, t.policy, t.sample, t.success, t.why, t.answer) == (
        "3",
        "openai/x",
        1,
        1.0,
        "equal",
        "5",
    )
    assert read.tasks[0].prompt == "What is 2 + 3?" and read.tasks[0].answer == "5; five"
    assert t.turns[0].text.startswith("<think>hm</think>") and t.turns[0].results[0].ok is False
    assert from_inspect(path, scorer="other").trajectories[0].success == 0.25
    assert any("other scorers" in phrase for phrase in read.dropped) and any(
        "events" in phrase for phrase in read.dropped
    )


def test_inspect_samples_that_failed_before_an_answer_are_left_out(tmp_path):
    path, log = tmp_path / "log.json", inspect_log()
    failed = log["samples"][0] | {
        "id": 4,
        "messages": [USER],
        "error": {"message": "no route"},
        "scores": None,
    }
    path.write_text(json.dumps(log | {"samples": [*log["samples"], failed]}))
    read = from_inspect(path)
    assert len(read.trajectories) == 1
    assert "samples that ended before the model said anything" in read.dropped
    path.write_text(json.dumps(log | {"samples": [failed]}))
    with pytest.raises(DataError, match="no row to read"):
        from_inspect(path)


@pytest.mark.parametrize(
    ("value", "success"),
    [("C", 1.0), ("I", 0.0), ("P", 0.5), ("N", 0.0), ("yes", 1.0), (True, 1.0), ("0.75", 0.75), (1, 1.0)]
    + [(float("nan"), None), ({"a": 1}, None), ([1], None), ("?", None), (None, None)],
)
def test_inspect_grades(tmp_path, value, success):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(scores={"match": {"value": value}})))
    assert from_inspect(path).trajectories[0].success == success


@pytest.mark.parametrize(
    ("change", "stop"),
    [
        ({}, StopReason.ANSWER),
        ({"limit": {"type": "time", "limit": 3}}, StopReason.TIME_LIMIT),
        ({"limit": {"type": "token", "limit": 3}}, StopReason.TOKEN_LIMIT),
        ({"output": {"choices": [{"stop_reason": "max_tokens"}]}}, StopReason.TOKEN_LIMIT),
        ({"error": {"message": "x"}}, StopReason.ERROR),
    ],
)
def test_inspect_stop_reasons(tmp_path, change, stop):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(**change)))
    assert from_inspect(path).trajectories[0].stop_reason == stop


def zstd_member(data: bytes) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("packed", ["stored", "deflated", "zstandard"])
def test_inspect_archives(tmp_path, packed):
    """.eval is a zip; inspect_ai packs its members with Zstandard (method 93), which this Python's zipfile
    cannot write.
    """
    log, path = inspect_log(), tmp_path / "log.eval"
    header, sample = ({k: v for k, v in log.items() if k != "samples"}, log["samples"][0])
    members = {
        "header.json": json.dumps(header).encode(),
        "samples/3_epoch_2.json": json.dumps(sample).encode(),
    }
    with zipfile.ZipFile(
        path, "w", zipfile.ZIP_DEFLATED if packed == "deflated" else zipfile.ZIP_STORED
    ) as archive:
        for name, data in members.items():
            archive.writestr(name, zstd_member(data) if packed == "zstandard" else data)
        if packed == "zstandard":  # what the central directory of a real one says of them
            for info in archive.infolist():
                data = members[info.filename]
                info.compress_type, info.file_size, info.CRC = 93, len(data), zipfile.crc32(data)
    assert from_inspect(path).trajectories[0].answer == "5"
    damaged = bytearray(path.read_bytes())
    damaged[60:80] = b"\0" * 20
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="log.eval"):
        from_inspect(path)


# ---- broken input
# ----------------------------------------------------------------------------------------------------
ASSISTANT = {"role": "assistant", "content": "Answer: 1"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": "x"}, "row 2: messages is NoneType"),
        ({"messages": "hello"}, "row 2: messages is str"),
        ({"messages": ["x"]}, "row 2: messages, message 1 has the role 'None'"),
        (
            {"messages": [USER, {"role": "robot", "content": "x"}]},
            "row 2: messages, message 2 has the role 'robot'",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": 3}]},
            "row 2: messages, message 2: content must be text",
        ),
        ({"messages": [USER, {"role": "assistant", "content": "", "tool_calls": "x"}]}, "tool_calls a list"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "row 2: a tool call has no name",
        ),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [3]}]}, "row 2: a tool call has no name"),
        ({"messages": [USER]}, "row 2 has no assistant message"),
        ({"messages": [USER, ASSISTANT], "success": 7}, "row 2: success is 7.0, which is not in"),
        (
            {"messages": [USER, ASSISTANT], "reward": math.inf},
            "row 2: reward is inf, beyond any number. Mend",
        ),
        ({"messages": [USER, ASSISTANT], "advantage": -(10**400)}, "row 2: advantage is -1000.*beyond any"),
        ({"messages": [USER, ASSISTANT], "trajectory": "{"}, "row 2: the record in 'trajectory' is damaged"),
        ({"messages": [USER, ASSISTANT], "trajectory": "[]"}, "row 2: the record in 'trajectory' is damaged"),
        ("x", "row 2 is str"),
    ],
)
def test_a_broken_row_is_named(row, says):
    with pytest.raises(DataError, match=says):
        from_messages([{"messages": [USER, ASSISTANT]}, row])


def test_a_reward_column_of_trl_has_bounds_and_nan_is_none(tmp_path):
    columns = {"step": 1, "prompt": "q", "completion": ["5", "6"], "right": [1.0, math.nan], "advantage": 0.0}
    for odd in (math.nan, math.inf):
        pd.DataFrame(columns | {"short": [0.5, odd]}).to_parquet(tmp_path / "completions_00001.parquet")
        if odd == math.inf:
            with pytest.raises(DataError, match="row 2: short is inf, beyond any number"):
                from_trl(tmp_path, success="right")
        else:
            read = from_trl(tmp_path, success="right").trajectories
            assert [t.components["short"] for t in read] == [0.5, None] and read[1].success is None


def test_a_score_of_another_scale_is_replaced_where_tasks_are_given_and_else_refused(tmp_path):
    rows = {"step": 1, "prompt": "What is 2 + 3?", "completion": ["Answer: 5"], "right": 7, "advantage": 0.0}
    pd.DataFrame(rows).to_parquet(tmp_path / "completions_00001.parquet")
    messages = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "Answer: 5"}]
    (tmp_path / "log.json").write_text(json.dumps(inspect_log(id="t0", scores={"match": {"value": 7}})))
    for read in (
        partial(from_trl, tmp_path, success="right"),
        partial(from_messages, [{"messages": messages, "success": 7}]),
        partial(from_inspect, tmp_path / "log.json"),
    ):
        with pytest.raises(DataError, match="1: success is 7.0, which is not in .* or pass tasks"):
            read()
        assert [t.success for t in read(tasks=TASKS).trajectories] == [1.0]


def test_other_faults_are_one_sentence(tmp_path):
    changed = to_messages(ALL[:1], TASKS)
    changed[0]["messages"][-1]["content"] = "Answer: 6"
    with pytest.raises(DataError, match="row 1: its messages are not those of its record"):
        from_messages(changed)
    short = json.loads(to_messages(ALL[:1], TASKS)[0]["trajectory"]) | {"action_mask": [1]}
    with pytest.raises(DataError, match="token fields differ in length"):
        from_messages([{"messages": [USER, ASSISTANT], "trajectory": json.dumps(short)}])
    with pytest.raises(DataError, match="'t0' of a trajectory is not among the tasks"):
        to_messages(ALL, TASKS[1:])
    with pytest.raises(DataError, match="row 1: its task 'prompt-.*' is not among the tasks given"):
        from_messages([{"messages": [USER, ASSISTANT]}], tasks=TASKS)
    with pytest.raises(DataError, match="no row to read"):
        from_messages([])
    with pytest.raises(DataError, match="no trajectory to write"):
        write_messages(tmp_path / "x.parquet", [], TASKS)
    with pytest.raises(RunError, match="does not exist"):
        from_messages(tmp_path / "nope.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(RunError, match="bad.parquet is not a readable Parquet file"):
        from_trl(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="holds no completions_"):
        from_trl(tmp_path)
    with pytest.raises(DataError, match="name of a column"):
        write_trl(tmp_path / "y.parquet", [dataclasses.replace(ALL[0], components={"step": 1.0})], TASKS)
    two = [ALL[0], dataclasses.replace(ALL[0], policy="sft")]
    with pytest.raises(DataError, match="one policy"):
        write_inspect(tmp_path / "z.json", two, TASKS)
    with pytest.raises(DataError, match="occurs twice"):
        write_inspect(tmp_path / "z.json", [ALL[0], ALL[0]], TASKS)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"samples": 3}', '{"samples": [1]}', '{"samples": []}']
)
def test_a_broken_log_is_named(tmp_path, text):
    for name in ("log.json", "log.eval"):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=name):
            from_inspect(tmp_path / name)
    with pytest.raises(DataError, match="no score 'nope'"):
        (tmp_path / "good.json").write_text(json.dumps(inspect_log()))
        from_inspect(tmp_path / "good.json", scorer="nope")


FAILED_SAMPLES = {
    "no messages": {"messages": None},
    "messages of text": {"messages": "lost"},
    "an empty list": {"messages": []},
    "a message of none": {"messages": [None]},
    "a call without a name": {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
    "content of a number": {"messages": [USER, {"role": "assistant", "content": 3}]},
    "too deep": {"messages": [USER, ASSISTANT], "extra": json.loads('{"a":' * 600 + "1" + "}" * 600)},
}


@pytest.mark.parametrize("name", FAILED_SAMPLES)
def test_one_failed_sample_costs_no_other(tmp_path, name):
    path, log = tmp_path / "log.json", inspect_log()
    failed = (
        log["samples"][0] | {"id": 4, "error": {"message": "no route"}, "scores": None} | FAILED_SAMPLES[name]
    )
    path.write_text(json.dumps(log | {"samples": [failed, *log["samples"], None]}))
    read = from_inspect(path)
    assert [t.task_id for t in read.trajectories] == ["3"]
    told = "before the model" if name == "an empty list" else "sample 1 cannot be read: "
    assert any(told in phrase for phrase in read.dropped)
    assert any("sample 3 cannot be read: it is damaged" in phrase for phrase in read.dropped)


def test_a_sample_that_failed_with_an_answer_is_not_scored(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(error={"message": "killed"})))
    (t,) = from_inspect(path, tasks=[Task("3", "What is 2 + 3?", "5", "numeric")]).trajectories
    assert t.stop_reason == StopReason.ERROR and t.success is None


def test_a_damaged_member_of_an_archive_costs_no_other(tmp_path):
    log = inspect_log()
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("header.json", json.dumps({"eval": log["eval"]}))
        archive.writestr("samples/a_epoch_1.json", json.dumps(log["samples"][0]))
        archive.writestr("samples/b_epoch_1.json", json.dumps(log["samples"][0])[:200])
    read = from_inspect(tmp_path / "log.eval")
    assert len(read.trajectories) == 1 and any("sample 2 cannot be read" in p for p in read.dropped)


@pytest.mark.parametrize("name", ["log.json", "log.eval", "rows.jsonl", "rows.json", "rows.parquet"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_log_that_is_no_file_is_a_sentence_and_nobody_waits(tmp_path, name, make):
    make(tmp_path / name)
    with pytest.raises(AgentkitError, match=name):
        (from_inspect if name.startswith("log") else from_messages)(tmp_path / name)


CALLED = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
SEARCHED = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
FRAMED = "<tool_response>\n2\n</tool_response>\n<tool_response>\nfound\n</tool_response>"


@pytest.mark.parametrize(
    "replies",
    [
        [{"role": "tool", "content": "2"}, {"role": "tool", "content": "found"}],
        [{"role": "user", "content": FRAMED}],
    ],
    ids=["role tool", "framed in a user message"],
)
def test_calls_that_stand_in_the_text_are_answered(replies):
    messages = [USER, {"role": "assistant", "content": f"So: {CALLED}\n{SEARCHED}"}, *replies]
    (cut,) = from_messages([{"messages": messages[:2]}]).trajectories
    assert cut.stop_reason is StopReason.TURN_LIMIT and cut.answer is None
    read = from_messages([{"messages": [*messages, ASSISTANT]}], tasks=[Task("a", USER["content"], "5")])
    (t,) = read.trajectories
    assert [(r.name, r.arguments, r.observation) for r in t.turns[0].results] == [
        ("calculator", {"expression": "1+1"}, "2"),
        ("search", {"query": "x"}, "found"),
    ]
    assert t.stop_reason is StopReason.ANSWER and not any("unscored" in phrase for phrase in read.dropped)


def test_trl_s_replies_go_to_the_calls_they_name_and_its_errors_are_failures():
    asked = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in ("slow", "fast")]
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": asked},
        {"role": "tool", "name": "fast", "content": str({"error": "it broke"})},
        {"role": "tool", "name": "slow", "content": "done"},
        ASSISTANT,
    ]
    (t,) = from_messages([{"messages": messages}]).trajectories
    messages[2] |= {"content": '{"error": null, "rows": []}'}  # no error
    assert from_messages([{"messages": messages}]).trajectories[0].turns[0].results[0].ok
    assert [(r.name, r.observation, r.ok) for r in t.turns[0].results] == [
        ("fast", "{'error': 'it broke'}", False),
        ("slow", "done", True),
    ]


@pytest.mark.parametrize(("more", "answer"), [({}, "5"), ({"limit": {"type": "message"}}, None)])
def test_an_answer_that_was_submitted_by_a_tool_is_one(tmp_path, more, answer):
    call = {"id": "1", "function": "submit", "arguments": {"answer": "5"}, "type": "function"}
    messages = [
        USER,
        {"role": "assistant", "content": "I submit.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "function": "submit", "content": "5"},
    ]
    sample = {"id": "a", "epoch": 1, "messages": messages, "output": {"completion": "5"}, "target": "5"}
    log = {"version": 2, "status": "success", "eval": {"task": "t", "model": "m"}, "samples": [sample | more]}
    (tmp_path / "log.json").write_text(json.dumps(log))
    (t,) = from_inspect(tmp_path / "log.json", tasks=[Task("a", USER["content"], "5")]).trajectories
    assert (t.answer, t.success) == (answer, float(answer is not None))
    call["arguments"] = {"answer": 5}  # a number where text was asked for
    (tmp_path / "log.json").write_text(json.dumps(log))
    (t,) = from_inspect(tmp_path / "log.json", tasks=[Task("a", USER["content"], "5")]).trajectories
    assert (t.answer, t.success) == (answer, float(answer is not None))
    log["samples"] = [sample | {"output": {"completion": "I submit."}}]  # its own text
    (tmp_path / "log.json").write_text(json.dumps(log))
    assert from_inspect(tmp_path / "log.json").trajectories[0].answer is None


def test_a_question_that_two_tasks_share_says_not_which_is_meant(tmp_path):
    """As of several databases, one a task: an answer would be judged by the other's."""
    row = {"prompt": [USER], "completion": [{"role": "assistant", "content": "Answer: 5"}]}
    (path := tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    tasks = [Task("a", "q", "5", "numeric"), Task("b", "q", "6", "numeric")]
    assert [t.success for t in from_trl(path, tasks=tasks[:1]).trajectories] == [1.0]
    assert from_trl(path, tasks=tasks[:1] * 2).trajectories[0].task_id == "a", "a task given twice is one"
    with pytest.raises(DataError, match="or its question is that of several"):
        from_trl(path, tasks=tasks)
