"""Chat template in, token ids out: prompts, tool replies and the end of a turn, for one tokenizer and format.

Tokens are the truth: what the policy sampled is kept as ids, and observations are appended as ids, never by
rendering and tokenising the conversation again. Text from tools can never become a control token: every
string that the tokenizer would read as an added token is broken up before it is encoded. Leaves out reading
and writing calls (calls.py).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from agentkit.records import ParsedTurn
from agentkit.rollouts.calls import FORMATS, MAX_CALLS, check_format, detect_format, format_call, parse_turn

__all__ = ["FORMATS", "MAX_CALLS", "ChatCodec", "detect_format", "format_call", "parse_turn"]

MAX_OBSERVATION = 500  # tokens; Search-R1's limit
CUT = "\n[cut: {} more tokens]"
_SENTINEL = "OBSERVATION-{}-HERE"
# Search-R1's own prompt (its data/nq_search processing); the question follows it
SEARCH_R1_PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you "
    "get new information. After reasoning, if you find you lack some knowledge, you can call a search engine "
    "by <search> query </search> and it will return the top searched results between <information> and "
    "</information>. You can search as many times as your want. If you find no further external knowledge "
    "needed, you can directly provide the answer inside <answer> and </answer>, without detailed "
    "illustrations. For example, <answer> Beijing </answer>."
)
_SEARCH_R1_END = re.compile("</search>|</answer>")
_RESPONSE = ("<tool_response>", "</tool_response>")
_TAGS = {  # what frames a text and may be plain text to a tokenizer, as <tool_response> is to Qwen2.5's
    "hermes": _RESPONSE,
    "qwen3_coder": _RESPONSE,
    "search_r1": tuple(
        f"<{end}{tag}>" for tag in "information search answer think".split() for end in ("", "/")
    ),
}


def _is_control(token: Any) -> bool:
    """Whether an added token steers the chat; runs of spaces and plain words, added as vocabulary, do not."""
    content = token.content.strip()
    return bool(content) and (token.special or not content.isalnum())


class ChatCodec:
    """Turns messages and observations into token ids for one tokenizer and its chat template.

    Args:
        tokenizer: with a prefix-preserving chat template.
        system_prompt: what the policy is told first; for Search-R1's format its own prompt stands there
            instead.
        tools: JSON schemas of the tools.
        format: how the policy writes calls, one of FORMATS; None reads it from the chat template.

    Raises:
        ValueError: unknown format.
    """

    def __init__(self, tokenizer: Any, system_prompt: str, tools: Sequence[dict], format: str | None = None):
        self.tokenizer = tokenizer
        self.format = format or detect_format(getattr(tokenizer, "chat_template", None))
        check_format(self.format)
        self.system_prompt = SEARCH_R1_PROMPT if self.format == "search_r1" else system_prompt
        self.tools = list(tools)
        control = {i: t.content.strip() for i, t in tokenizer.added_tokens_decoder.items() if _is_control(t)}
        self.control_ids = frozenset(control)
        broken = sorted({*control.values(), *_TAGS.get(self.format, ())}, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, broken)) or r"(?!)")
        self.end_id = tokenizer.eos_token_id
        self._frames: dict[int, list[list[int]]] = {}

    def prompt_ids(self, prompt: str) -> tuple[int, ...]:
        """Ids of system prompt, tools and question, up to where the policy's first turn starts."""
        messages = [
            {"role": "system", "content": self.system_prompt},
            {"role": "user", "content": self.inert(prompt)},
        ]
        return tuple(self._encode(self._render(messages, add_generation_prompt=True)))

    def observation_ids(self, observations: Sequence[str]) -> list[int]:
        """Ids appended after a turn's end token: the tool replies, up to where the next turn starts.

        The frame around the replies comes from the chat template, once per number of replies; the replies
        themselves are encoded apart from it, with control tokens made inert.
        """
        if self.format == "search_r1":
            replies = [f"\n\n<information>{self.inert(text)}</information>\n\n" for text in observations]
            return self._encode("".join(replies))
        count = len(observations)
        if count not in self._frames:
            self._frames[count] = self._frame(count)
        first, *others = self._frames[count]
        ids = list(first)
        for text, after in zip(observations, others, strict=True):
            ids += self.text_ids(text)
            ids += after
        return ids

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        text = self.decode(ids)
        return parse_turn(text.removesuffix(self.tokenizer.eos_token), self.format, self.tools)

    def turn_end(self, ids: Sequence[int]) -> int | None:
        """How many of the sampled ids make up a whole turn; None where it has not ended.

        A turn ends with the end token. Search-R1's ends behind </search> or </answer> as well, and what an
        engine sampled after that is left out: the tokens before it were drawn without it.
        """
        if self.format == "search_r1" and (tag := _SEARCH_R1_END.search(self.decode(ids))):
            # the shortest prefix whose text holds the tag
            lengths = range(len(ids))
            return bisect_left(lengths, tag.end(), key=lambda n: len(self.decode(ids[:n])))
        return len(ids) if ids and ids[-1] == self.end_id else None

    def shorten(self, text: str, limit: int) -> str:
        """A tool's reply of at most ``limit`` tokens; a mark says how much is missing."""
        if len(text.encode("utf-8", "replace")) <= limit:  # no token is shorter than a byte
            return text
        large = len(text) > 16 * limit
        text = text[: 16 * limit]  # no tokenizer is asked to read megabytes
        ids = self.text_ids(text)
        if len(ids) <= limit and not large:
            return text
        mark = CUT.format(len(ids))
        keep = limit - len(self.text_ids(mark))
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
        return self._encode(self.inert(text))

    def inert(self, text: str) -> str:
        """Text with every added-token and framing string broken by a space, and lone surrogates replaced.

        Repeated until nothing is left, since breaking one string may complete another. A control token that
        the tokenizer makes of other characters, such as full-width ones, is left out.
        """
        text = text.encode("utf-8", "replace").decode()
        while True:
            while self._control.search(text):
                text = self._control.sub(lambda m: f"{m[0][0]} {m[0][1:]}" if len(m[0]) > 1 else " ", text)
            ids = self._encode(text)
            if self.control_ids.isdisjoint(ids):
                return text
            text = self.decode([i for i in ids if i not in self.control_ids])

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _render(self, messages: list[dict], **options: Any) -> str:
        tools = None if self.format == "search_r1" else self.tools or None
        return self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _frame(self, count: int) -> list[list[int]]:
        """Ids of the template's text before the first of ``count`` replies, between, and after the last."""
        base = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "turn"}]
        replies = [{"role": "tool", "content": _SENTINEL.format(i)} for i in range(count)]
        before, after = self._render(base), self._render(base + replies, add_generation_prompt=True)
        end = self.tokenizer.eos_token
        if not after.startswith(before) or end not in before:
            raise ValueError(
                "the chat template rewrites earlier turns when tool replies follow: use one that does not"
            )
        tail = before[before.rindex(end) + len(end) :] + after[len(before) :]
        return [self._encode(piece) for piece in re.split(_SENTINEL.format(r"\d+"), tail)]
