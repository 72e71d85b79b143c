"""Messages of others as turns, and thoughts in whatever form they are kept."""

from collections import Counter

import pytest

from agentkit.records import DataError, ToolCall
from agentkit.rollouts.call_formats import parse_stored, parse_turn
from agentkit.training.conversation import checked_messages, turns_of

USER = {"role": "user", "content": "q"}
ASSISTANT = {"role": "assistant", "content": "Answer: 1"}
ASKS = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'


def read(messages, dropped=None):
    _, turns = turns_of(
        checked_messages(messages, "row 1"), "row 1", Counter() if dropped is None else dropped
    )
    return turns


# what a model said last, in the forms of others; its answer is 5, and 6 is a thought
TEXT = {"type": "text", "text": "5"}
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


@pytest.mark.parametrize("form", SAID)
def test_an_answer_is_read_beside_its_thoughts_whatever_form_they_have(form):
    (turn,) = read([USER, {"role": "assistant"} | SAID[form]])
    assert parse_stored(turn.text.removesuffix("<|im_end|>")).text.strip() == "5"


@pytest.mark.parametrize(
    "content", ["<think>Answer: 5", [{"type": "thinking", "thinking": "Answer: 5"}]], ids=["open", "apart"]
)
def test_an_unfinished_thought_is_no_answer(content):
    (turn,) = read([USER, {"role": "assistant", "content": content}])
    assert parse_stored(turn.text).text == ""


def test_a_mark_in_code_ends_no_thought():
    code = "```python\ndef f(s):\n    return s.split('</think>')[-1]\n```"
    (turn,) = read([USER, {"role": "assistant", "content": code}])
    assert parse_stored(turn.text).text == code


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
            ):
                messages = [USER, {"role": "assistant", "tool_calls": [{"id": "a"} | asked]} | thought]
                messages += [{"role": "tool", "tool_call_id": "a", "content": "3"}, ASSISTANT]
                turn, _ = read(messages)
                assert [(r.name, r.arguments) for r in turn.results] == [("look", {"q": "x"})]
                assert parse_turn(turn.text, thought=thought["content"] == "hm</think>").calls == (
                    ToolCall("look", {"q": "x"}),
                )


def test_replies_stand_in_the_order_of_the_calls_and_what_is_no_text_is_told():
    look = {"name": "look", "arguments": {"q": "three", "unused": None}}
    calls = [
        {"id": "b", "type": "function", "function": {"name": "add", "arguments": '{"x": 2}'}},
        {"id": "a", "type": "function", "function": look},
    ]
    asked = [{"type": "text", "text": "What is 2 + 3?"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "3"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: y is missing."},
        ASSISTANT,
    ]
    dropped = Counter()
    turn, _ = read(messages, dropped)
    assert [(r.name, r.arguments, r.ok) for r in turn.results] == [
        ("add", {"x": 2}, False),
        ("look", {"q": "three"}, True),
    ]
    told = {phrase.split(" (")[0] for phrase, n in dropped.items() if n}
    assert told == {"system prompts", "parts of messages that are no text"}


def test_a_reply_without_id_or_name_belongs_to_the_open_call():
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2 + 3"}}}
    asks = {"role": "assistant", "content": "", "tool_calls": [call]}
    turn, _ = read([USER, asks, {"role": "tool", "content": "5"}, ASSISTANT])
    assert [(r.name, r.arguments) for r in turn.results] == [("calculator", {"expression": "2 + 3"})]


def test_replies_go_to_the_calls_they_name():
    asked = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in ("slow", "fast")]
    replies = [{"role": "tool", "name": name, "content": name.upper()} for name in ("fast", "slow")]
    turn, _ = read([USER, {"role": "assistant", "content": "", "tool_calls": asked}, *replies, ASSISTANT])
    assert [(r.name, r.observation) for r in turn.results] == [("fast", "FAST"), ("slow", "SLOW")]


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
    asks = {"role": "assistant", "content": f"So: {CALLED}\n{SEARCHED}"}
    turn, _ = read([USER, asks, *replies, ASSISTANT])
    assert [(r.name, r.arguments, r.observation) for r in turn.results] == [
        ("calculator", {"expression": "1+1"}, "2"),
        ("search", {"query": "x"}, "found"),
    ]


def test_text_that_holds_tool_replies_is_told():
    dropped = Counter()
    said = f"{ASKS}\n<tool_response>\n5\n</tool_response>\nAnswer: 5"
    assert len(read([USER, {"role": "assistant", "content": said}], dropped)) == 1
    assert any(n and "holds tool replies itself" in phrase for phrase, n in dropped.items())


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (None, "row 1 is NoneType"),
        ("hello", "row 1 is str"),
        (["x"], "row 1, message 1 has the role 'None'"),
        ([USER, {"role": "robot", "content": "x"}], "row 1, message 2 has the role 'robot'"),
        ([USER, {"role": "assistant", "content": 3}], "row 1, message 2: content must be text"),
        ([USER, {"role": "assistant", "content": "", "tool_calls": "x"}], "tool_calls a list"),
        ([USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}], "row 1: a tool call has no name"),
        ([USER, {"role": "assistant", "tool_calls": [3]}], "row 1: a tool call has no name"),
        ([USER], "row 1 has no assistant message"),
    ],
)
def test_a_broken_row_is_named(messages, says):
    with pytest.raises(DataError, match=says):
        read(messages)
