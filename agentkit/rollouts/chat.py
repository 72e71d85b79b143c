"""Chat template in, token ids out: prompts, tool replies and the end of a turn, for one tokenizer and format.

Tokens are the truth: what the policy sampled is kept as ids, and observations are appended as ids, never by
rendering and tokenising the conversation again. Text from tools can never become a control token: every
string that the tokenizer would read as an added token is broken up before it is encoded. Leaves out reading
and writing calls (call_formats.py).
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from agentkit.records import DataError, ParsedTurn, RecipeError
from agentkit.rollouts.call_formats import (
    FORMATS,
    MAX_CALLS,
    THINK,
    THOUGHT,
    detect_format,
    format_call,
    parse_turn,
    prose_of,
)
from agentkit.rollouts.template_probe import (
    HERMES,
    REPLY,
    behind,
    end_of_turn,
    end_of_turn_ids,
    on_one_day,
    template_of,
    turn_with,
)
from agentkit.rollouts.tokens import exact_decode

__all__ = ["FORMATS", "MAX_CALLS", "ChatCodec", "detect_format", "format_call", "parse_turn"]

CUT = "\n[cut: {} more tokens]"
# what frames a reply and may be plain text to a tokenizer, as it is to Qwen2.5's
_RESPONSE = ("<tool_response>", "</tool_response>")
# what a turn is made of, and may be a token of its own
FRAMES = frozenset(
    (THINK, THOUGHT, "<tool_call>", "</tool_call>", "<|python_tag|>")
    + tuple(f"<{mark}arg_{part}>" for mark in ("", "/") for part in ("key", "value"))
)
_TAIL = 32  # tokens in which a template's last word stands


def turn_after(tokenizer: Any, ids: Sequence[int], text: str) -> str:
    """A turn that somebody wrote, as it follows these ids: it goes on with a thought that they open, or ends
    it.
    """
    if not opens_thought(tokenizer, ids):
        return text
    if text.startswith(THINK):
        rest = text.removeprefix(THINK)
        return rest.lstrip("\n") if exact_decode(tokenizer)(ids[-_TAIL:]).endswith("\n") else rest
    return f"\n{THOUGHT}\n\n{text}"


def opens_thought(tokenizer: Any, ids: Sequence[int]) -> bool:
    """Whether a turn that follows these ids begins inside a thought, as some chat templates have it."""
    return exact_decode(tokenizer)(ids[-_TAIL:]).rstrip().endswith(THINK)


def turn_ids(tokenizer: Any, before: Sequence[int], text: str, called: bool) -> list[int]:
    """Ids of a turn that somebody wrote, as it follows the ids ``before``, with its end: what a policy could
    have sampled.

    Raises DataError where a control token stands in it, which would end the turn or begin another.
    """
    text = turn_after(tokenizer, before, text) + end_of_turn(tokenizer, called)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if inside := marks_of(tokenizer).steering.intersection(ids[:-1]):
        mark = tokenizer.decode([min(inside)], skip_special_tokens=False)
        raise DataError(f"a turn holds the control token {mark}, which no policy samples before its end")
    return ids


@lru_cache(maxsize=16)
def marks_of(tokenizer: Any) -> "Marks":
    return Marks(tokenizer)


class Marks:
    """The tokens that steer the chat for one tokenizer, and text that holds none of them.

    Attributes:
        ids: all control tokens, the frames of calls and thoughts included.
        steering: those that no turn holds before its end.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        control = {i: t for i, t in tokenizer.added_tokens_decoder.items() if _is_control(t)}
        self.ids = frozenset(control)
        self.steering = frozenset(i for i, t in control.items() if t.special and t.content not in FRAMES)
        strings = {token.content.strip() for token in control.values()} | {*_RESPONSE}
        strings = sorted(strings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, strings)) or r"(?!)")

    def inert(self, text: str) -> tuple[str, list[int]]:
        """Text with every control token's and frame's string broken by a space, and lone surrogates replaced;
        and its ids: both are needed of long replies, and encoding them takes time.

        Repeated until nothing is left, since breaking one string may complete another. A control token that
        the tokenizer makes of other characters, such as full-width ones, is left out.
        """
        text = text.encode("utf-8", "replace").decode()
        while True:
            while self._pattern.search(text):
                text = self._pattern.sub(lambda m: f"{m[0][0]} {m[0][1:]}" if len(m[0]) > 1 else " ", text)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            if self.ids.isdisjoint(ids):
                return text, ids
            ids = [i for i in ids if i not in self.ids]
            text = exact_decode(self.tokenizer)(ids)

    def inert_value(self, value: Any) -> Any:
        """A JSON value, such as a call's arguments, with every text in it inert."""
        if isinstance(value, str):
            return self.inert(value)[0]
        if isinstance(value, dict):
            return {self.inert(key)[0]: self.inert_value(item) for key, item in value.items()}
        return [self.inert_value(item) for item in value] if isinstance(value, list | tuple) else value


def _is_control(token: Any) -> bool:
    """Whether an added token steers the chat; runs of spaces and plain words, added as vocabulary, do not."""
    content = token.content.replace("▁", " ").strip()  # as SentencePiece spells spaces
    return bool(content) and (token.special or not content.isalnum())


class ChatCodec:
    """Turns messages and observations into token ids for one tokenizer and its chat template.

    Args:
        tokenizer: with a chat template.
        system_prompt: what the policy is told first.
        tools: JSON schemas of the tools.

    Attributes:
        format: how the policy writes calls, one of FORMATS: as the chat template shows, or Hermes' way, which
            the system message asks for, where it shows none that is read here.

    Raises:
        RecipeError: a chat template that cannot carry tool calls.
    """

    def __init__(self, tokenizer: Any, system_prompt: str, tools: Sequence[dict]):
        self.tokenizer, self.decode = tokenizer, exact_decode(tokenizer)
        self.marks = marks_of(tokenizer)
        self.tools = self.marks.inert_value(list(tools))  # a server may have written them
        self.template = template_of(tokenizer)
        if tools and not self.template.ends[0]:
            raise RecipeError(
                "what the chat template puts behind a turn is no token of this tokenizer: set chat_template "
                "to a template of the model's own family"
            )
        self.system_prompt, self.format = system_prompt, "hermes"
        self._shown = (self.tools if self.template.shows_tools else []) or self.template.toolless
        if self.template.shows_tools:
            self.format = self.template.format
        elif tools:
            listed = HERMES.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
            self.system_prompt = f"{system_prompt}\n\n{listed}".strip()
        self.ends = end_of_turn_ids(tokenizer)
        self._end = self._encode(end_of_turn(tokenizer, called=True))
        self._frames: dict[int, list[list[int]]] = {}

    def prompt_ids(self, prompt: str) -> tuple[int, ...]:
        """Ids of system prompt, tools and question, up to where the policy's first turn starts."""
        question = self.marks.inert(prompt)[0]
        messages = [{"role": "system", "content": self.system_prompt}, {"role": "user", "content": question}]
        return tuple(self._encode(self._render(messages, add_generation_prompt=True)))

    def observation_ids(self, observations: Sequence[str], turn: Sequence[int] = ()) -> list[int]:
        """Ids appended after a turn: the tool replies, up to where the next turn starts.

        The frame around the replies comes from the chat template, once for each number of replies; the
        replies themselves are encoded apart from it, with control tokens made inert. Where the ids of the
        ``turn`` end with another token than the template puts there, that one follows first.
        """
        count = len(observations)
        if count not in self._frames:
            self._frames[count] = self._frame(count)
        first, *others = self._frames[count]
        ids = [*self._end, *first] if turn and [*turn[-1:]] != self._end else list(first)
        for text, after in zip(observations, others, strict=True):
            ids += self.text_ids(self.template.written(text))
            ids += after
        return ids

    def parse(self, ids: Sequence[int], before: Sequence[int] = ()) -> ParsedTurn:
        """What a turn says that follows the ids ``before``; nothing is a call where there are no tools."""
        text, opened = self.decode(ids), opens_thought(self.tokenizer, before)
        if ids and ids[-1] in self.ends:
            text = text.removesuffix(self.decode(ids[-1:]))
        if not self.tools:
            return prose_of(text, opened)
        return parse_turn(text, self.format, self.tools, opened)

    def shorten(self, text: str, limit: int) -> str:
        """A tool's reply of at most ``limit`` tokens; a mark says how much is missing."""
        if len(text.encode("utf-8", "replace")) <= limit:  # no token is shorter than a byte
            return text
        large = len(text) > 16 * limit
        ids = self.text_ids(text[: 16 * limit])  # no tokenizer is asked to read megabytes
        if len(ids) <= limit and not large:
            return text
        keep = limit - len(self.text_ids(CUT.format(len(ids))))
        while keep > 0:
            mark = CUT.format(f"at least {len(ids) - keep}" if large else len(ids) - keep)
            short = self.decode(ids[:keep]).rstrip("\ufffd") + mark
            over = len(self.text_ids(short)) - limit
            if over <= 0:
                return short
            keep -= over
        return self.decode(ids[:limit]).rstrip("\ufffd")

    def text_ids(self, text: str) -> list[int]:
        """Ids of untrusted text: none of them is a control token."""
        return self.marks.inert(text)[1]

    def _render(self, messages: list[dict], **options: Any) -> str:
        return self.tokenizer.apply_chat_template(
            messages,
            tools=self._shown,
            tokenize=False,
            chat_template=self.template.text,
            strftime_now=on_one_day,
            **options,
        )

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _frame(self, count: int) -> list[list[int]]:
        """Ids of the template's text before the first of so many replies, between, and after the last."""
        replies = [REPLY.format(i) for i in range(count)]
        messages = [{"role": "user", "content": "question"}, *turn_with(replies)]
        after = behind(self._render(messages, add_generation_prompt=True))
        tail = after.partition(self.template.ends[0])[2]
        return [self._encode(piece) for piece in re.split(REPLY.format(r"\d+"), tail)]
