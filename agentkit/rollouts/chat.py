"""Chat template in, token ids out: prompts, tool replies and the end of a turn, for one tokenizer and format.

Tokens are the truth: what the policy sampled is kept as ids, and observations are appended as ids, never by
rendering and tokenising the conversation again. Text from tools can never become a control token: every
string that the tokenizer would read as an added token is broken up before it is encoded. Leaves out reading
and writing calls (call_formats.py).
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from agentkit.records import ParsedTurn, RecipeError
from agentkit.rollouts import lfm2_gemma4
from agentkit.rollouts.call_formats import (
    CHANNEL,
    FORMATS,
    MAX_CALLS,
    OPENINGS,
    THINK,
    THOUGHT,
    check_format,
    detect_format,
    format_call,
    open_thought,
    parse_turn,
    prose_of,
)
from agentkit.rollouts.template_probe import (
    ANSWERED,
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
# Search-R1's own prompt (its data/nq_search processing); the question follows it
SEARCH_R1_PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you "
    "get new information. After reasoning, if you find you lack some knowledge, you can call a search engine "
    "by <search> query </search> and it will return the top searched results between <information> and "
    "</information>. You can search as many times as your want. If you find no further external knowledge "
    "needed, you can directly provide the answer inside <answer> and </answer>, without detailed "
    "illustrations. For example, <answer> Beijing </answer>."
)
_EACH = "For each function call"  # where HERMES says how calls are written
_SEARCH_R1_END = re.compile(f"{THINK}.*?(?:{THOUGHT}|\\Z)|(</search>|</answer>)", re.DOTALL)
_RESPONSE = ("<tool_response>", "</tool_response>")
_TAGS = {  # what frames a text and may be plain text to a tokenizer, as <tool_response> is to Qwen2.5's
    "hermes": _RESPONSE,
    "qwen3_coder": _RESPONSE,
    "gemma4": (lfm2_gemma4.QUOTE, *lfm2_gemma4.GEMMA4, "<|tool_response>", "<tool_response|>"),
    "lfm2": ("<|tool_response_start|>", "<|tool_response_end|>", *lfm2_gemma4.LFM2),
    "search_r1": tuple(
        f"<{end}{tag}>" for tag in "information search answer think".split() for end in ("", "/")
    ),
}


_TAIL = 32  # tokens in which a template's last word stands


def turn_after(tokenizer: Any, ids: Sequence[int], text: str) -> str:
    """A turn that somebody wrote, as it follows these ids: it goes on with a thought that they open, or ends
    it.
    """
    if not opens_thought(tokenizer, ids):
        return text
    tail = exact_decode(tokenizer)(ids[-_TAIL:])
    if opening := next(filter(text.startswith, OPENINGS), ""):
        rest = text.removeprefix(opening)
        return rest.lstrip("\n") if tail.endswith("\n") else rest
    channel = CHANNEL[0] in tail
    return f"{CHANNEL[1]}{text}" if channel else f"\n{THOUGHT}\n\n{text}"


def opens_thought(tokenizer: Any, ids: Sequence[int]) -> bool:
    """Whether a turn that follows these ids begins inside a thought, as some chat templates have it."""
    return exact_decode(tokenizer)(ids[-_TAIL:]).rstrip().endswith(OPENINGS)


def _is_control(token: Any) -> bool:
    """Whether an added token steers the chat; runs of spaces and plain words, added as vocabulary, do not."""
    content = token.content.replace("▁", " ").strip()  # as SentencePiece spells spaces
    return bool(content) and (token.special or not content.isalnum())


class ChatCodec:
    """Turns messages and observations into token ids for one tokenizer and its chat template.

    Args:
        tokenizer: with a chat template.
        system_prompt: what the policy is told first; for Search-R1's format its own prompt stands there
            instead.
        tools: JSON schemas of the tools.
        format: how the policy writes calls, one of FORMATS; None reads it from the chat template. Where that
            does not ask for it, the system message does.

    Raises:
        ValueError: unknown format, or a chat template that cannot carry tool calls.
    """

    def __init__(self, tokenizer: Any, system_prompt: str, tools: Sequence[dict], format: str | None = None):
        self.tokenizer, self.decode = tokenizer, exact_decode(tokenizer)
        if format is not None:
            check_format(format)
        self.tools = list(tools)
        self.template = template_of(tokenizer)
        if tools and format != "search_r1" and not self.template.ends[0]:
            raise RecipeError(
                "what the chat template puts behind a turn is no token of this tokenizer: set chat_template "
                "to a template of the model's own family"
            )
        native = detect_format(self.template.text) if self.template.shows_tools else "hermes"
        self.format = format or native
        asked = self.template.shows_tools and native == self.format
        if self.format != "hermes" and self.format == self.template.format:
            asked = self.template.offers_tools()
        own = self.format != "search_r1" and not asked
        self._shown = (self.tools if asked else None) or self.template.toolless
        self.system_prompt = SEARCH_R1_PROMPT if self.format == "search_r1" else system_prompt
        if own and self.tools:
            shown = HERMES.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in self.tools))
            if self.format != "hermes":
                example = format_call("function_name", {"argument_name": "value"}, self.format)
                shown = f"{shown.partition(_EACH)[0]}{_EACH}, write it like this:\n{example}"
            self.system_prompt = f"{self.system_prompt}\n\n{shown}".strip()
        control = {i: t.content.strip() for i, t in tokenizer.added_tokens_decoder.items() if _is_control(t)}
        self.control_ids = frozenset(control)
        broken = sorted({*control.values(), *_TAGS.get(self.format, _RESPONSE)}, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, broken)) or r"(?!)")
        self.ends = end_of_turn_ids(tokenizer)
        self._end = self._encode(end_of_turn(tokenizer, called=True))
        channel = CHANNEL[0] in self.template.text and self.format not in ("llama3", "search_r1")
        self.thoughts = CHANNEL if channel else (THINK, THOUGHT)
        space = "" if channel else "\n\n"
        self.closing = self._encode(f"\n{self.thoughts[1]}{space}")  # what the loop ends a thought with
        self._names = frozenset(tool["function"]["name"] for tool in self.tools)
        self._frames: dict[tuple[str, ...], list[list[int]]] = {}

    def prompt_ids(self, prompt: str) -> tuple[int, ...]:
        """Ids of system prompt, tools and question, up to where the policy's first turn starts."""
        question = self.inert(prompt)
        messages = [{"role": "system", "content": self.system_prompt}, {"role": "user", "content": question}]
        if not self.template.system:
            whole = f"{self.system_prompt}\n\n{question}".strip()
            messages = [{"role": "user", "content": whole}]
        return tuple(self._encode(self._render(messages, add_generation_prompt=True)))

    def observation_ids(
        self, observations: Sequence[str], turn: Sequence[int] = (), names: Sequence[str] = ()
    ) -> list[int]:
        """Ids appended after a turn: the tool replies, up to where the next turn starts.

        The frame around the replies comes from the chat template, once for each number of replies (with the
        ``names`` of their tools where it shows them); the replies themselves are encoded apart from it, with
        control tokens made inert. Where the ids of the ``turn`` end with another token than the template puts
        there, that one follows first.
        """
        if self.format == "search_r1":
            replies = [f"\n\n<information>{self.inert(text)}</information>\n\n" for text in observations]
            return self._encode("".join(replies))
        key = ("",) * len(observations)
        if self.template.role == ANSWERED:  # a name that is no tool's was made up by the model
            key = tuple(name if name in self._names else "unknown" for name in names or key)
        if key not in self._frames:
            self._frames[key] = self._frame(key)
        first, *others = self._frames[key]
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
        if not self.tools and self.format != "search_r1":
            return prose_of(text, self.thoughts, opened)
        return parse_turn(text, self.format, self.tools, opened, self.thoughts)

    def turn_end(self, ids: Sequence[int], before: Sequence[int] = ()) -> int | None:
        """How many of the ids sampled after ``before`` make up a whole turn; None where it has not ended.

        A turn ends with the template's token for it, or the tokenizer's. Search-R1's ends behind </search> or
        </answer> as well, outside thoughts, and what an engine sampled after that is left out: the tokens
        before it were drawn without it.
        """
        if self.format == "search_r1":
            text = self.decode(ids)
            start = len(text.partition(THOUGHT)[0]) if opens_thought(self.tokenizer, before) else 0
            if ends := [found.end() for found in _SEARCH_R1_END.finditer(text, start) if found[1]]:
                # the shortest prefix whose text holds the tag
                return bisect_left(range(len(ids)), ends[0], key=lambda n: len(self.decode(ids[:n])))
        if not ids or ids[-1] not in self.ends:
            return None
        whole = self.format != "search_r1" or len(ids) == 1  # its replies go on in the same message
        return len(ids) if whole else len(ids) - 1

    def thought_length(self, ids: Sequence[int], before: Sequence[int] = ()) -> int:
        """Tokens of the thought that a turn's ``ids`` so far, sampled after ``before``, leave open; or 0."""
        opened = opens_thought(self.tokenizer, before)
        inside = open_thought(self.decode(ids), self.format, self.thoughts, opened)
        if inside is None:
            return 0
        return len(ids) - bisect_left(range(len(ids)), inside, key=lambda n: len(self.decode(ids[:n])))

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
        return self._inert(text)[1]

    def inert(self, text: str) -> str:
        """Text with every added-token and framing string broken by a space, and lone surrogates replaced."""
        return self._inert(text)[0]

    def _inert(self, text: str) -> tuple[str, list[int]]:
        """Inert text, and its ids: both are needed of long replies, and encoding them takes time.

        Repeated until nothing is left, since breaking one string may complete another. A control token that
        the tokenizer makes of other characters, such as full-width ones, is left out.
        """
        text = text.encode("utf-8", "replace").decode()
        while True:
            while self._control.search(text):
                text = self._control.sub(lambda m: f"{m[0][0]} {m[0][1:]}" if len(m[0]) > 1 else " ", text)
            ids = self._encode(text)
            if self.control_ids.isdisjoint(ids):
                return text, ids
            text = self.decode([i for i in ids if i not in self.control_ids])

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

    def _frame(self, names: tuple[str, ...]) -> list[list[int]]:
        """Ids of the template's text before the first of so many replies, between, and after the last."""
        role, replies = self.template.role, [REPLY.format(i) for i in range(len(names))]
        messages = [{"role": "user", "content": "question"}, *turn_with(replies, role, names)]
        after = behind(self._render(messages, add_generation_prompt=True), role)
        tail = after.partition(self.template.ends[0])[2]
        return [self._encode(piece) for piece in re.split(REPLY.format(r"\d+"), tail)]
