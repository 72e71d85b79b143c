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
RESULTS = [("price", {"item": "egg"}, "2 euros", True), ("rate", {"of": "euro", "day": 3}, FAILS, False), ("now", {}, "noon", True)]  # fmt: skip
TYPES = {"price": {"item": "string"}, "rate": {"of": "string", "day": "integer"}, "now": {}}
SCHEMAS = {tool: {"type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}}
           for tool, types in TYPES.items()}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
         for name, schema in SCHEMAS.items()]  # fmt: skip


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
    replies = [{"type": "tool_result", "tool_use_id": i, "content": said, "is_error": said == FAILS}
               for i, said in REPLIES.items()]  # fmt: skip
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
    | {"tools": [json.dumps(tool) for tool in TOOLS]},
    "columns as text": {"messages": json.dumps(openai(as_text)["messages"]), "tools": json.dumps(TOOLS)},
    "blocks": blocks(),
    "prompt and completion": completion(),
}


def written(folder, row: dict, ending: str):
    """A file with this row."""
    path = folder / f"rows{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    return path if ending == ".parquet" else write_jsonl(path, [row])


def read(path, tokenizer):
    return read_transcripts(path, tokenizer, Lab.open({}), [Task("a", "p?", "1", family="A")])


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize("form", ROWS)
def test_a_conversation_is_the_same_in_every_form(tokenizer, tmp_path, form, ending):
    path = written(tmp_path, ROWS[form], ending)
    (shown,), (told,) = read(path, tokenizer), read_conversations(path)
    for trajectory in (shown, told):
        results = trajectory.turns[0].results
        assert [(r.name, r.arguments, r.observation, r.ok) for r in results] == RESULTS
        assert trajectory.turns[0].text.startswith("I look.\n<tool_call>") and len(trajectory.turns) == 2
    assert (told.answer, told.stop_reason.value, told.completion_ids) == ("2", "answer", ())
    (first,) = read(written(tmp_path, ROWS["arguments as text"], ".jsonl"), tokenizer)
    assert shown.prompt_ids == first.prompt_ids
    assert (shown.completion_ids, shown.action_mask) == (first.completion_ids, first.action_mask)
    prompt = tokenizer.decode(shown.prompt_ids)
    assert SYSTEM in prompt and QUESTION in prompt and '"integer"' in prompt and "input_schema" not in prompt


def test_an_explicit_null_argument_is_kept_in_json_lines_and_is_padding_in_a_table(tokenizer, tmp_path):
    def asks(given):
        call = {"id": "a", "name": "search", "arguments": given}
        said = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]
        said += [{"role": "tool", "content": "x"}, {"role": "assistant", "content": "Answer: x"}]
        return {"messages": said}

    null = {"query": "egg", "lang": None}
    as_json = json.dumps(null)
    for given, ending in ((null, ".jsonl"), (as_json, ".jsonl"), (as_json, ".parquet"), (null, ".parquet")):
        expected = {"query": "egg"} if (given, ending) == (null, ".parquet") else null
        (shown,) = read(written(tmp_path, asks(given), ending), tokenizer)
        assert shown.turns[0].results[0].arguments == expected


def test_conversations_of_others_have_their_fields_and_what_is_open_is_no_answer(tmp_path):
    own = {"task_id": "t1", "policy": "theirs", "sample": 3, "success": 0.5, "reward": 2, "own": "ignored"}
    row = openai(as_text) | own
    rows = [row, row | {"messages": row["messages"][:3]}, {"messages": row["messages"]}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    first, cut, bare = read_conversations(path)
    assert (first.task_id, first.policy, first.sample) == ("t1", "theirs", 3)
    assert (first.success, first.reward, bare.sample) == (0.5, 2.0, 0)
    assert (cut.stop_reason.value, cut.answer, cut.turns[0].results) == ("turn_limit", None, ())
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
REST = {"answer": "4", "meta": {"plan": PLAN}, "tools": ["calculator"]}
REST |= {"verifier": {"kind": "numeric", "abs_tol": 0.5}}
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
    ({"conversations": [{"from": "human", "value": "q"}]}, "no list of messages, but 'conversations': give rows"),
    ({"messages": "hi"}, "no list of messages, but 'hi'"),
    (messages(7), "the message 7 needs a role"),
    (messages({"role": "assistant", "content": {"a": 1}}), "content that is text"),
    (messages({"role": "assistant", "tool_calls": [{"name": {}}]}), "a tool call has no name"),
    (messages({"role": "assistant", "tool_calls": [{"name": "a", "arguments": "[1]"}]}), "no JSON object"),
    (messages({"role": "assistant", "content": [{"type": "image"}]}), "give text, thinking, tool_use"),
    (messages({"role": "assistant", "content": [{"type": "tool_result"}]}), "give text, thinking, tool_use"),
    (messages(LAST, {"role": "user", "content": "and 2?"}, LAST), "one question a row"),
    (messages(), "in another order"),
    (messages(LAST, LAST), "in another order"),
    (messages({"role": "wizard", "content": "x"}), "the message .*wizard.* needs a role"),
    (messages({"role": "assistant", "content": "half \ud83d"}), "it holds what JSON cannot"),
]  # fmt: skip
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


@pytest.mark.parametrize(("row", "says"), [
    ('{"prompt": "q", "ans', "line 3: it is not valid JSON"),
    ({"prompt": [{"role": "system", "content": "s"}, *ASKED], "answer": "1"}, "messages of system, user: give"),
    ({"prompt": [*ASKED, LAST], "answer": "1"}, "messages of user, assistant: give text"),
    ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "1"}, "parts of messages"),
    ({"prompt": [{"content": "q"}], "answer": "1"}, "prompt is .* should be text"),
    ({"prompt": {"role": "user"}, "answer": "1"}, "prompt is .* should be text"),
    ({"prompt": "q", "answer": "1", "meta": "{x"}, "meta is '{x'"),
    ({"prompt": "q", "answer": "1", "meta": {"plan": [{"tool": "t", "arguments": {}, "wrong": ["x"]}]}}, "wrong.0 is 'x'"),
    ({"data_source": "x", "prompt": ASKED, "reward_model": {}}, "it lacks .*answer.*, and has .*reward_model"),
    ({"prompt": None, "answer": "1"}, "it lacks .*prompt"),
    ({"id": "x"}, r"it lacks \['answer', 'prompt'\]"),
    ({"prompt": "q", "answer": "1", "anwser": "2"}, "it has an unknown key 'anwser'; what is yours goes into meta"),
    ({"prompt": "q", "answer": "1", "id": 3}, "id is 3; it should be text"),
    ({"prompt": "q", "answer": "1", "split": "dev"}, "split is 'dev'; it should be 'train', 'validation' or 'test'"),
    ({"prompt": "q", "answer": "1", "verifier": {"abs_tol": 1}}, "verifier"),
])  # fmt: skip
def test_a_task_that_cannot_be_read_is_named_by_file_and_line(tmp_path, row, says):
    path = tmp_path / "tasks.jsonl"
    path.write_text(f'{{"prompt": "p", "answer": "1"}}\n\n{row if isinstance(row, str) else json.dumps(row)}')
    with pytest.raises(RunError, match=f"^{path}, line 3: .*{says}" if "line" not in says else says):
        read_tasks(path)


def test_tasks_of_one_id_are_refused(tmp_path):
    path = write_jsonl(tmp_path / "tasks.jsonl", [{"id": "a", "prompt": "p", "answer": "1"}] * 2)
    with pytest.raises(RunError, match="task a occurs twice.*notebook 01"):
        read_tasks(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\n\n"])
@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "rows.json", "rows.csv"])
def test_a_file_without_rows_is_one_sentence(tokenizer, tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    for reader in (read_tasks, read_conversations, lambda path: read(path, tokenizer)):
        with pytest.raises(RunError, match=f"^{path}"):
            reader(path)


# ---- thoughts and calls of others
@pytest.fixture
def transcript(tokenizer, tmp_path):
    """Messages as a transcript."""
    path = tmp_path / "messages.jsonl"
    return lambda *said: read(write_jsonl(path, [{"messages": said}]), tokenizer)[0]


# what a model said last, in the forms of others; its answer is 5, and 6 is a thought
SAID = {
    "vLLM": {"content": "5", "reasoning_content": "Answer: 6?"}, "both keys": {"content": "5", "reasoning": "6", "reasoning_content": "6"},
    "settings, no thought": {"content": "5", "reasoning": {"effort": "high"}},
    "parts": {"content": [{"type": "text", "text": "5"}], "thinking": "Answer: 6?"},
    "Anthropic's": {"content": [{"type": "thinking", "thinking": "Answer: 6?"}, {"type": "text", "text": "5"}]},
    "inline": {"content": "<think>\nAnswer: 6?\n</think>\n\n5"}, "its end token": {"content": "<think>Answer: 6?</think>5<|im_end|>"},
    "an end in a thought": {"content": "5", "reasoning_content": "It ends with </think>\nAnswer: 6"},
}  # fmt: skip


@pytest.mark.parametrize("form", SAID)
def test_an_answer_is_read_beside_its_thoughts_whatever_form_they_have(transcript, tokenizer, form):
    read = transcript(ASKED[0], {"role": "assistant"} | SAID[form])
    assert read.answer == "5"
    written = tokenizer.decode(read.completion_ids)
    assert ("6" in written) == (form != "settings, no thought") and "im_end|>5" not in written


def test_a_mark_in_code_ends_no_thought(transcript):
    code = "```python\ndef f(s):\n    return s.split('</think>')[-1]\n```"
    assert "split(" in transcript(ASKED[0], {"role": "assistant", "content": code}).answer


CALL = {"id": "a", "name": "search", "input": {"query": "x"}}


@pytest.mark.parametrize(
    "said", [{"content": "<think>I look"}, {"content": "", "reasoning_content": "I look"}]
)
def test_calls_keep_their_arguments_and_are_no_thoughts(transcript, said):
    asks = {"role": "assistant", "tool_calls": [CALL]} | said
    turn, _ = transcript(ASKED[0], asks, {"role": "tool", "tool_call_id": "a", "content": "3"}, LAST).turns
    assert [(r.name, r.arguments, r.observation) for r in turn.results] == [("search", {"query": "x"}, "3")]
    assert turn.text.startswith("<think>\nI look\n</think>\n\n<tool_call>")


ADD = {"name": "calculator", "arguments": {"expression": "1+1"}}
CALLED = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
SEARCHED = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
FRAMED = "<tool_response>\n2\n</tool_response>\n<tool_response>\nfound\n</tool_response>"
BY_ORDER = [{"role": "tool", "content": "2"}, {"role": "tool", "content": "found"}]
BY_NAME = [{"role": "tool", "name": n, "content": c} for n, c in (("search", "found"), ("calculator", "2"))]


@pytest.mark.parametrize(("asks", "replies"), [
    ({"content": f"So: {CALLED}\n{SEARCHED}"}, BY_ORDER),
    ({"content": f"{CALLED}\n{SEARCHED}"}, [{"role": "user", "content": FRAMED}]),
    ({"content": None, "tool_calls": [ADD, CALL]}, BY_NAME),
    ({"tool_calls": [ADD, CALL]}, [{"role": "tool", "tool_call_id": "a", "content": "found"}, BY_ORDER[0]]),
    ({"tool_calls": [ADD | {"id": 1}, CALL | {"id": 2}]}, [BY_ORDER[1] | {"tool_call_id": 2}, BY_ORDER[0] | {"tool_call_id": 1}]),
], ids=["in the text", "framed in a user message", "by name", "by id", "by number"])  # fmt: skip
def test_replies_go_to_the_calls_they_name_else_in_order(transcript, asks, replies):
    turn, _ = transcript(ASKED[0], {"role": "assistant"} | asks, *replies, LAST).turns
    found = [(r.name, r.arguments, r.observation) for r in turn.results]
    assert found == [("calculator", {"expression": "1+1"}, "2"), ("search", {"query": "x"}, "found")]


@pytest.mark.parametrize(("said", "says"), [
    ({"content": "", "tool_calls": "x"}, "a list of tool_calls"),
    ({"content": "hm", "function_call": ADD}, "a list of tool_calls"),  # OpenAI's older form
    ({"content": "<think>Answer: 5"}, "a thought .* would be lost"),
    ({"content": None}, "neither text nor tool_calls"),
    ({"content": "<think>a</think>Yes <think>b</think>."}, "a thought .* would be lost"),
    ({"tool_calls": [CALL] * 17}, "17 calls of a turn need a reply each"),
    ({"content": [{"type": "redacted_thinking", "data": "6"}]}, "parts of messages that are no text"),
    ({"content": f"{CALLED}\n<tool_response>\n2\n</tool_response>\nAnswer: 2"}, "line 1: the 1 calls"),
])  # fmt: skip
def test_a_row_that_no_rollout_could_hold_is_named(transcript, said, says):
    with pytest.raises(RunError, match=says):
        transcript(ASKED[0], {"role": "assistant"} | said)
