"""Chat template in, tool calls out, and the token bookkeeping between them.

Tokens are the truth: what the policy sampled is kept as ids, and observations are appended as ids, never by rendering
and tokenising the conversation again. Text from tools can never become a control token: every string that the
tokenizer would read as an added token is broken up before it is encoded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from agentkit.records import ParsedTurn, ToolCall

MAX_CALLS = 16  # parsed in one turn; the rest is reported as an error
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"
_MARK = re.compile(f"{_OPEN}|{_THINK}")
_SENTINEL = "OBSERVATION-{}-HERE"


def parse_turn(text: str, format: str = "hermes") -> ParsedTurn:
    """Read the tool calls out of one turn's text, the end token already removed.

    Hermes/Qwen form: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``. The JSON decides where a call ends, so a
    tag inside a string does no harm. ``<think>`` ends at ``</think>`` or with the text, and calls inside it do not count; code
    fences mean nothing. ``arguments`` may be a string that holds a JSON object. Each malformed call adds one sentence to
    ``errors``.

    Raises:
        ValueError: unknown format.
    """
    if format != "hermes":
        raise ValueError(f"unknown tool-call format {format!r}: use 'hermes'")
    prose, calls, errors, position = [], [], [], 0
    while mark := _MARK.search(text, position):
        prose.append(text[position : mark.start()])
        if mark[0] == _THINK:
            close = text.find(_THOUGHT, mark.end())
            position = len(text) if close < 0 else close + len(_THOUGHT)
            continue
        if len(calls) + len(errors) >= MAX_CALLS:
            errors.append(f"more than {MAX_CALLS} tool calls in one turn; the rest was ignored")
            position = len(text)
            break
        call, position = _parse_call(text, mark.end())
        (calls if isinstance(call, ToolCall) else errors).append(call)
    prose.append(text[position:])
    return ParsedTurn("".join(prose).strip(), tuple(calls), tuple(errors))


def _parse_call(text: str, start: int) -> tuple[ToolCall | str, int]:
    """One call from just after its opening tag: the call or what is wrong with it, and where to go on."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = _DECODER.raw_decode(text, begin)
        rest = text[end:].lstrip()
        if not rest.startswith(_CLOSE):
            raise ValueError(f"expected {_CLOSE} after the JSON object" if rest else f"{_CLOSE} is missing")
        return _checked_call(value), len(text) - len(rest) + len(_CLOSE)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)[:200]
        close, again = text.find(_CLOSE, start), text.find(_OPEN, start)
        end = len(text) if close < 0 else close + len(_CLOSE)
        return f"malformed tool call: {why}", min(end, again) if again >= 0 else end


def _checked_call(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        raise ValueError("a tool call must be a JSON object")
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError('"name" is missing or no string')
    if isinstance(arguments, str):
        arguments = _DECODER.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" must be an object')
    json.dumps([name, arguments], ensure_ascii=False).encode("utf-8")  # lone surrogates raise here, as a ValueError
    return ToolCall(name, arguments)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite_float)


def format_call(name: str, arguments: dict[str, Any]) -> str:
    """A call in Hermes form, as the chat template writes it."""
    return f"{_OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{_CLOSE}"


def _is_control(token: Any) -> bool:
    """Whether an added token steers the chat. Runs of spaces and plain words or characters, added as vocabulary, do not."""
    content = token.content.strip()
    return bool(content) and (token.special or not content.isalnum())


class ChatCodec:
    """Turns messages and observations into token ids for one tokenizer and its chat template."""

    def __init__(self, tokenizer: Any, system_prompt: str, tools: Sequence[dict]):
        self.tokenizer = tokenizer
        self.system_prompt = system_prompt
        self.tools = list(tools)
        control = {i: t.content.strip() for i, t in tokenizer.added_tokens_decoder.items() if _is_control(t)}
        self.control_ids = frozenset(control)
        pattern = "|".join(re.escape(t) for t in sorted(set(control.values()), key=len, reverse=True))
        self._control = re.compile(pattern or r"(?!)")
        self.end_id = tokenizer.eos_token_id
        self._frames: dict[int, list[list[int]]] = {}

    def prompt_ids(self, prompt: str) -> tuple[int, ...]:
        """Ids of system prompt, tools and question, up to where the policy's first turn starts."""
        messages = [{"role": "system", "content": self.system_prompt}, {"role": "user", "content": self.inert(prompt)}]
        return tuple(self._encode(self._render(messages, add_generation_prompt=True)))

    def observation_ids(self, observations: Sequence[str]) -> list[int]:
        """Ids appended after a turn's end token: the tool replies, up to where the next turn starts.

        The frame around the replies comes from the chat template, once per number of replies; the replies themselves are
        encoded apart from it, with control tokens made inert.
        """
        if len(observations) not in self._frames:
            self._frames[len(observations)] = self._frame(len(observations))
        frame = self._frames[len(observations)]
        ids = list(frame[0])
        for text, after in zip(observations, frame[1:], strict=True):
            ids += self.text_ids(text)
            ids += after
        return ids

    def text_ids(self, text: str) -> list[int]:
        """Ids of untrusted text: none of them is a control token."""
        ids = self._encode(self.inert(text))
        if not self.control_ids.isdisjoint(ids):
            raise AssertionError(f"untrusted text became a control token: {text[:80]!r}")
        return ids

    def inert(self, text: str) -> str:
        """Text with every added-token string broken by a space, and lone surrogates replaced.

        Repeated until nothing is left, since breaking one string may complete another.
        """
        text = text.encode("utf-8", "replace").decode()
        while self._control.search(text):
            text = self._control.sub(lambda m: f"{m[0][0]} {m[0][1:]}" if len(m[0]) > 1 else " ", text)
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, control tokens included."""
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _render(self, messages: list[dict], **options: Any) -> str:
        return self.tokenizer.apply_chat_template(messages, tools=self.tools or None, tokenize=False, **options)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _frame(self, count: int) -> list[list[int]]:
        """Template text around ``count`` tool replies, as ids: before the first, between, and after the last."""
        base = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "turn"}]
        replies = [{"role": "tool", "content": _SENTINEL.format(i)} for i in range(count)]
        before, after = self._render(base), self._render(base + replies, add_generation_prompt=True)
        end = self.tokenizer.eos_token
        if not after.startswith(before) or end not in before:
            raise ValueError("the chat template rewrites earlier turns when tool replies follow; use a prefix-preserving one")
        tail = before[before.rindex(end) + len(end) :] + after[len(before) :]
        pieces = re.split("|".join(re.escape(_SENTINEL.format(i)) for i in range(count)), tail)
        return [self._encode(piece) for piece in pieces]
