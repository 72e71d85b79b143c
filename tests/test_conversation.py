"""Messages of others as transcripts, whatever form their thoughts and calls have."""

import pytest

from agentkit import Lab, Task
from agentkit.records import RunError
from agentkit.runs import write_jsonl
from agentkit.training.transcripts import read_transcripts

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "Answer: 1"}


@pytest.fixture
def read(tokenizer, tmp_path):
    """One row of messages as a transcript."""

    def read(*messages):
        write_jsonl(path := tmp_path / "messages.jsonl", [{"messages": messages}])
        (transcript,) = read_transcripts(path, tokenizer, Lab.open({}), [Task("a", "p?", "1", family="A")])
        return transcript

    return read


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
def test_an_answer_is_read_beside_its_thoughts_whatever_form_they_have(read, tokenizer, form):
    transcript = read(USER, {"role": "assistant"} | SAID[form])
    assert transcript.answer == "5"
    written = tokenizer.decode(transcript.completion_ids)
    assert ("6" in written) == (form != "settings, no thought") and "im_end|>5" not in written


def test_a_mark_in_code_ends_no_thought(read):
    code = "```python\ndef f(s):\n    return s.split('</think>')[-1]\n```"
    assert "split(" in read(USER, {"role": "assistant", "content": code}).answer


CALL = {"id": "a", "name": "search", "input": {"query": "x"}}


@pytest.mark.parametrize(
    "said", [{"content": "<think>I look"}, {"content": "", "reasoning_content": "I look"}]
)
def test_calls_keep_their_arguments_and_are_no_thoughts(read, said):
    asks = {"role": "assistant", "tool_calls": [CALL]} | said
    turn, _ = read(USER, asks, {"role": "tool", "tool_call_id": "a", "content": "3"}, ANSWER).turns
    assert [(r.name, r.arguments, r.observation) for r in turn.results] == [("search", {"query": "x"}, "3")]
    assert turn.text.startswith("<think>\nI look\n</think>\n\n<tool_call>")


ADD = {"name": "calculator", "arguments": {"expression": "1+1"}}
CALLED = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
SEARCHED = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
FRAMED = "<tool_response>\n2\n</tool_response>\n<tool_response>\nfound\n</tool_response>"
BY_ORDER = [{"role": "tool", "content": "2"}, {"role": "tool", "content": "found"}]
BY_NAME = [{"role": "tool", "name": n, "content": c} for n, c in (("search", "found"), ("calculator", "2"))]


@pytest.mark.parametrize(
    ("asks", "replies"),
    [
        ({"content": f"So: {CALLED}\n{SEARCHED}"}, BY_ORDER),
        ({"content": f"{CALLED}\n{SEARCHED}"}, [{"role": "user", "content": FRAMED}]),
        ({"content": None, "tool_calls": [ADD, CALL]}, BY_NAME),
        (
            {"tool_calls": [ADD, CALL]},
            [{"role": "tool", "tool_call_id": "a", "content": "found"}, BY_ORDER[0]],
        ),
        (
            {"tool_calls": [ADD | {"id": 1}, CALL | {"id": 2}]},
            [BY_ORDER[1] | {"tool_call_id": 2}, BY_ORDER[0] | {"tool_call_id": 1}],
        ),
    ],
    ids=["in the text", "framed in a user message", "by name", "by id", "by number"],
)
def test_replies_go_to_the_calls_they_name_else_in_order(read, asks, replies):
    turn, _ = read(USER, {"role": "assistant"} | asks, *replies, ANSWER).turns
    assert [(r.name, r.arguments, r.observation) for r in turn.results] == [
        ("calculator", {"expression": "1+1"}, "2"),
        ("search", {"query": "x"}, "found"),
    ]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"content": "", "tool_calls": "x"}, "a list of tool_calls"),
        ({"content": "hm", "function_call": ADD}, "a list of tool_calls"),  # OpenAI's older form
        ({"tool_calls": [{"id": "1"}]}, "line 1: a tool call has no name"),
        ({"tool_calls": [3]}, "line 1: a tool call has no name"),
        ({"content": "<think>Answer: 5"}, "a thought .* would be lost"),
        ({"content": None}, "neither text nor tool_calls"),
        ({"content": "<think>a</think>Yes <think>b</think>."}, "a thought .* would be lost"),
        ({"tool_calls": [CALL] * 17}, "17 calls of a turn need a reply each"),
        ({"content": [{"type": "redacted_thinking", "data": "6"}]}, "parts of messages that are no text"),
        ({"content": f"{CALLED}\n<tool_response>\n2\n</tool_response>\nAnswer: 2"}, "line 1: the 1 calls"),
    ],
)
def test_a_row_that_no_rollout_could_hold_is_named(read, said, says):
    with pytest.raises(RunError, match=says):
        read(USER, {"role": "assistant"} | said)
