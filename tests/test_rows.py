"""Rows as the field stores them: the same tasks, transcripts and trajectories, whatever form and file they have."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentkit import Lab, Task
from agentkit.records import RunError
from agentkit.runs import read_tasks, write_jsonl
from agentkit.training.conversation import read_conversations
from agentkit.training.transcripts import read_transcripts

# ---- one conversation, in six forms
SYSTEM, QUESTION = "Answer with a line 'Answer: ...'.", "What is the price of egg?"
CALLS = (("c1", "price", {"item": "egg"}), ("c2", "rate", {"of": "euro", "day": 3}), ("c3", "now", {}))
FAILS = "there is no rate for day 3"
REPLIES = {"c2": FAILS, "c1": "2 euros", "c3": "noon"}  # in another order than the calls
RESULTS = [
    ("price", {"item": "egg"}, "2 euros", True),
    ("rate", {"of": "euro", "day": 3}, FAILS, False),
    ("now", {}, "noon", True),
]
TYPES = {"price": {"item": "string"}, "rate": {"of": "string", "day": "integer"}, "now": {}}
SCHEMAS = {
    tool: {"type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}}
    for tool, types in TYPES.items()
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


def reply(identity: str) -> dict:
    said = {"role": "tool", "tool_call_id": identity, "content": REPLIES[identity]}
    return said | ({"content": "", "error": {"message": FAILS}} if identity == "c2" else {})


def openai(form) -> dict:
    """Messages whose calls are ``form`` of id, name and arguments."""
    before = [{"role": "developer", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    asks = {"role": "assistant", "content": "I look.", "tool_calls": [form(*call) for call in CALLS]}
    return {"messages": [*before, asks, *map(reply, REPLIES), {"role": "assistant", "content": "Answer: 2"}]}


def as_text(identity: str, name: str, arguments: dict) -> dict:
    """As OpenAI has it; no arguments are empty text."""
    given = json.dumps(arguments) if arguments else ""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": given}}


def flat(identity: str, name: str, arguments: dict) -> dict:
    return {"id": identity, "name": name, "arguments": arguments or None}


def blocks() -> dict:
    """As Anthropic has it."""
    uses = [{"type": "tool_use", "id": i, "name": name, "input": given} for i, name, given in CALLS]
    replies = [
        {"type": "tool_result", "tool_use_id": i, "content": said, "is_error": i == "c2"}
        for i, said in REPLIES.items()
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *uses]},
        {"role": "user", "content": replies},
        {"role": "assistant", "content": [{"type": "text", "text": "Answer: 2"}]},
    ]
    tools = [{"name": name, "description": name, "input_schema": SCHEMAS[name]} for name in SCHEMAS]
    return {"messages": messages, "tools": tools, "system": SYSTEM}


def completion() -> dict:
    """As a results file has it: the prompt apart and again, calls as text, and nulls where there is nothing."""
    messages = openai(lambda *call: json.dumps(as_text(*call)))["messages"]
    said = [{"tool_calls": None, "name": None} | message for message in messages]
    return {"prompt": messages[:2], "completion": said, "tools": TOOLS, "messages": None, "error": None}


ROWS = {
    "arguments as text": openai(as_text) | {"tools": TOOLS},
    "calls as objects": openai(flat) | {"tools": [tool["function"] for tool in TOOLS]},
    "calls as text": openai(lambda *call: json.dumps(as_text(*call)))
    | {"tools": [json.dumps(t) for t in TOOLS]},
    "columns as text": {"messages": json.dumps(openai(as_text)["messages"]), "tools": json.dumps(TOOLS)},
    "blocks": blocks(),
    "prompt and completion": completion(),
}


def written(folder, row: dict, ending: str):
    """A file with this row."""
    path = folder / f"rows{ending}"
    if ending == ".jsonl":
        return write_jsonl(path, [row])
    pq.write_table(pa.Table.from_pylist([row]), path)
    return path


def read(path, tokenizer):
    return read_transcripts(path, tokenizer, Lab.open({}), [Task("a", "p?", "1", family="A")])


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize("form", ROWS)
def test_a_conversation_is_the_same_transcript_and_trajectory_in_every_form(
    tokenizer, tmp_path, form, ending
):
    path = written(tmp_path, ROWS[form], ending)
    (shown,), (told,) = read(path, tokenizer), read_conversations(path)
    for trajectory in (shown, told):
        results = trajectory.turns[0].results
        assert [(r.name, r.arguments, r.observation, r.ok) for r in results] == RESULTS
        assert trajectory.turns[0].text.startswith("I look.\n<tool_call>") and len(trajectory.turns) == 2
    assert (told.answer, told.stop_reason.value, told.completion_ids) == ("2", "answer", ())
    (first,) = read(written(tmp_path, ROWS["arguments as text"], ".jsonl"), tokenizer)
    assert (shown.prompt_ids, shown.completion_ids, shown.action_mask) == (
        first.prompt_ids,
        first.completion_ids,
        first.action_mask,
    )
    prompt = tokenizer.decode(shown.prompt_ids)
    assert SYSTEM in prompt and QUESTION in prompt and '"integer"' in prompt and "input_schema" not in prompt


def test_an_explicit_null_argument_is_kept_in_json_lines_and_is_padding_in_a_table(tokenizer, tmp_path):
    def asks(given):
        call = {"id": "a", "name": "search", "arguments": given}
        said = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]
        return {
            "messages": [
                *said,
                {"role": "tool", "content": "x"},
                {"role": "assistant", "content": "Answer: x"},
            ]
        }

    null = {"query": "egg", "lang": None}
    for given, ending, expected in (
        (null, ".jsonl", null),
        (json.dumps(null), ".jsonl", null),
        (json.dumps(null), ".parquet", null),
        (null, ".parquet", {"query": "egg"}),
    ):
        (shown,) = read(written(tmp_path, asks(given), ending), tokenizer)
        assert shown.turns[0].results[0].arguments == expected


def test_conversations_of_others_have_their_fields_and_what_is_open_is_no_answer(tmp_path):
    row = openai(as_text) | {
        "task_id": "t1",
        "policy": "theirs",
        "sample": 3,
        "success": 0.5,
        "reward": 2,
        "own": "ignored",
    }
    path = write_jsonl(
        tmp_path / "a.jsonl", [row, row | {"messages": row["messages"][:3]}, {"messages": row["messages"]}]
    )
    first, cut, bare = read_conversations(path)
    assert (first.task_id, first.policy, first.sample, first.success, first.reward) == (
        "t1",
        "theirs",
        3,
        0.5,
        2.0,
    )
    assert (bare.sample, cut.stop_reason.value, cut.answer, cut.turns[0].results) == (
        0,
        "turn_limit",
        None,
        (),
    )
    assert '"rate"' in cut.turns[0].text, "what was asked stands in the text"
    assert (bare.task_id, bare.policy, bare.success) == (f"{path}, line 3", "a", None)
    (theirs, *_) = read_conversations(path, success="reward")
    assert (theirs.success, bare.answer) == (2.0, "2")
    write_jsonl(path, [row | {"success": "yes"}])
    with pytest.raises(RunError, match="line 1: success is 'yes'"):
        read_conversations(path)


# ---- one task, in six forms
PROMPT, PLAN = "What is 2 plus 2?", [{"tool": "calculator", "arguments": {"expression": "2 + 2"}}]
USER = {"role": "user", "content": PROMPT}
REST = {
    "answer": "4",
    "verifier": {"kind": "numeric", "abs_tol": 0.5},
    "meta": {"plan": PLAN},
    "tools": ["calculator"],
}
TASKS = {
    "text": {"prompt": PROMPT} | REST,
    "a message": {"prompt": [USER]} | REST,
    "parts": {"prompt": [USER | {"content": [{"type": "text", "text": PROMPT}]}]} | REST,
    "messages as text": {"prompt": json.dumps([USER])} | REST,
    "columns as text": {"prompt": PROMPT, "answer": "4"} | {key: json.dumps(REST[key]) for key in ("verifier", "meta", "tools")},
    "nulls": {"prompt": [USER | {"tool_calls": None}], "id": None, "split": None, "family": None} | REST,
}  # fmt: skip


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize("form", TASKS)
def test_a_task_is_the_same_in_every_form(tmp_path, form, ending):
    (task,) = read_tasks(written(tmp_path, TASKS[form], ending))
    assert task == Task("task-1", PROMPT, "4", REST["verifier"], tools=("calculator",), meta=REST["meta"])


def test_a_prompt_that_only_looks_like_messages_is_text(tmp_path):
    asked = ['[{"a": 1}] is what?', '[{"a": 1}]', "[1, 2", "[]"]
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": prompt, "answer": "4"} for prompt in asked])
    assert [task.prompt for task in read_tasks(path)] == asked


# ---- what cannot be read
DEEP = '{"messages": ' + "[" * 900 + "]" * 900 + "}"
ASKED = [{"role": "user", "content": "q"}]
LAST = {"role": "assistant", "content": "Answer: 1"}


def messages(*said, **fields):
    return {"messages": [*ASKED, *said]} | fields


HOSTILE = [
    ('{"messages": [{"role": "us', "it is not valid JSON"),
    ("[1, 2]", "it is list, not an object"),
    ("[" * 100_000, "nested too deeply"),
    (DEEP, "nested too deeply|needs a role"),
    ('{"messages": [{"role": "user", "content": 1' + "0" * 5000 + "}]}", "it is not valid JSON"),
    (
        {"conversations": [{"from": "human", "value": "q"}]},
        "no list of messages, but 'conversations': give rows",
    ),
    ({"messages": "hi"}, "no list of messages, but 'hi'"),
    ({"messages": {"role": "user"}}, "no list of messages, but {'role"),
    (messages(7), "the message 7 needs a role"),
    (messages({"role": "assistant", "content": {"a": 1}}), "content that is text"),
    (messages({"role": "assistant", "tool_calls": [{"name": {}}]}), "a tool call has no name"),
    (messages({"role": "assistant", "tool_calls": ["price(egg)"]}), "a tool call has no name"),
    (messages({"role": "assistant", "tool_calls": [{"name": "a", "arguments": "[1]"}]}), "no JSON object"),
    (messages({"role": "assistant", "tool_calls": [{"name": "a", "arguments": [1]}]}), "no JSON object"),
    (messages({"role": "assistant", "content": [{"type": "image"}]}), "give text, thinking, tool_use"),
    (messages({"role": "assistant", "content": [{"type": "tool_result"}]}), "give text, thinking, tool_use"),
    (messages(LAST, {"role": "user", "content": "and 2?"}, LAST), "one question a row"),
    (messages(), "in another order"),
    (messages(LAST, LAST), "in another order"),
    (messages({"role": "wizard", "content": "x"}), "the message .*wizard.* needs a role"),
    (messages({"role": "assistant", "content": "half \ud83d"}), "it holds what JSON cannot"),
    ({"prompt": "q"}, "no list of messages"),
]
TOOL_FAULTS = ("{}x", "search", 3, [3], [{"name": 3}], [{"function": "x"}], [{"name": "a", "parameters": [1]}],
               [{"name": "a", "parameters": {"properties": ["b"]}}], ["{"])  # fmt: skip


@pytest.mark.parametrize(("row", "says"), HOSTILE)
def test_a_row_that_cannot_be_read_is_named_by_file_and_line(tokenizer, tmp_path, row, says):
    path = tmp_path / "rows.jsonl"
    good = json.dumps(messages(LAST))
    path.write_text(f"{good}\n\n{row if isinstance(row, str) else json.dumps(row)}")
    for reader in (lambda: read(path, tokenizer), lambda: read_conversations(path)):
        with pytest.raises(RunError, match=f"^{path}, line 3: .*(?:{says})") as error:
            reader()
        assert len(str(error.value)) < 500 and "\n" not in str(error.value)


@pytest.mark.parametrize("tools", TOOL_FAULTS)
def test_tools_that_are_no_schemas_are_named(tokenizer, tmp_path, tools):
    path = write_jsonl(tmp_path / "rows.jsonl", [messages(LAST, tools=tools)])
    with pytest.raises(RunError, match="line 1: its tools must be a list of JSON schemas"):
        read(path, tokenizer)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('{"prompt": "q", "ans', "line 3: it is not valid JSON"),
        (
            {"prompt": [{"role": "system", "content": "s"}, *ASKED], "answer": "1"},
            "messages of system, user: give",
        ),
        ({"prompt": [*ASKED, LAST], "answer": "1"}, "messages of user, assistant: give text"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "1"}, "parts of messages"),
        ({"prompt": [{"content": "q"}], "answer": "1"}, "prompt is .* should be text"),
        ({"prompt": {"role": "user"}, "answer": "1"}, "prompt is .* should be text"),
        ({"prompt": "q", "answer": "1", "meta": "{x"}, "meta is '{x'"),
        (
            {
                "prompt": "q",
                "answer": "1",
                "meta": {"plan": [{"tool": "t", "arguments": {}, "wrong": ["x"]}]},
            },
            "wrong.0 is 'x'",
        ),
        (
            {"data_source": "x", "prompt": ASKED, "reward_model": {}},
            "it lacks .*answer.*, and has .*reward_model",
        ),
        ({"prompt": None, "answer": "1"}, "it lacks .*prompt"),
    ],
)
def test_a_task_that_cannot_be_read_is_named_by_file_and_line(tmp_path, row, says):
    path = tmp_path / "tasks.jsonl"
    path.write_text(f'{{"prompt": "p", "answer": "1"}}\n\n{row if isinstance(row, str) else json.dumps(row)}')
    with pytest.raises(RunError, match=f"^{path}, line 3: .*{says}" if "line" not in says else says):
        read_tasks(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\n\n"])
@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "rows.json", "rows.csv"])
def test_a_file_without_rows_is_one_sentence(tokenizer, tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    for reader in (read_tasks, read_conversations, lambda path: read(path, tokenizer)):
        with pytest.raises(RunError, match=f"^{path}"):
            reader(path)
