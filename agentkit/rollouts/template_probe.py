"""What a tokenizer's chat template can carry, found out by rendering it: prompt, tool replies, end of a turn.

Where the model's own template rewrites earlier turns, the training template that TRL ships for it is taken;
where it shows no tools, or asks for calls that nothing here reads, the tools are shown in Hermes' way. A
template without a tool role is refused, with what to use. Leaves out rendering a conversation (chat.py) and
reading calls (call_formats.py).
"""

import copy
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from agentkit.records import RecipeError
from agentkit.rollouts.call_formats import THINK, THOUGHT, detect_format, parse_turn

TURN = "TURN-SAID-HERE"
REPLY = "REPLY-{}-HERE"
_REPLY = REPLY.format(r"\d+")
_REPLIES = [REPLY.format(0), REPLY.format(1)]
_QUESTION = "QUESTION-ASKED-HERE"
_SYSTEM = {"role": "system", "content": "SYSTEM-SAID-HERE"}
_USER = {"role": "user", "content": _QUESTION}
_THOUGHT = "THOUGHT-HELD-HERE"
_TURN = {"role": "assistant", "content": TURN}
_THOUGHTFUL = {"role": "assistant", "content": f"{THINK}\n{_THOUGHT}\n{THOUGHT}\n\n{TURN}"}
_KEY = {"key": {"type": "string", "description": "A word."}}
_PARAMETERS = {"type": "object", "properties": _KEY, "required": ["key"]}
_TOOL = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "A probe.", "parameters": _PARAMETERS},
}
_CALL = {"type": "function", "function": {"name": "probe_tool", "arguments": {"key": "word"}}}
_OPENING = re.compile(rf"(?:\s|{THINK}|{THOUGHT})*\Z")
# that a model may write and its template does not put behind a turn
_ENDS = ("<|eom_id|>", "<|observation|>")
_CALLS = ("<tool_call>", '{"name"')  # how they begin
_HEADER = re.compile(r"(?:\{% set \w+ = [^%\n]* %\})*")  # as with_template writes it
# How Qwen2.5's template shows tools, which is Hermes' way
HERMES = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\nFor each function call, "
    "return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


# what templates do to a reply before they show it
_WRITINGS: tuple[Callable[[str], str], ...] = (str, _as_json, str.strip)


def template_of(tokenizer: Any) -> "Template":
    """What the tokenizer's chat template can do. Raises RecipeError, which says what to use, where it
    cannot.
    """
    return _probed(tokenizer, _text(tokenizer), tokenizer.eos_token)


def end_of_turn_ids(tokenizer: Any) -> frozenset[int]:
    """The tokens that end a turn: what the chat template puts there, and the tokenizer's own end."""
    ids = {getattr(tokenizer, "eos_token_id", None)} - {None}
    if getattr(tokenizer, "chat_template", None):
        with suppress(RecipeError):  # the rollout refuses that template, in its own words
            added = tokenizer.get_added_vocab()
            ids |= {added[end] for end in (*template_of(tokenizer).ends, *_ENDS) if end in added}
    return frozenset(ids)


def end_of_turn(tokenizer: Any, called: bool = False) -> str:
    """What the chat template puts behind a turn: one that made calls, or the last."""
    with suppress(RecipeError):
        return template_of(tokenizer).ends[not called] or tokenizer.eos_token
    return tokenizer.eos_token


def turn_with(replies: Sequence[str]) -> list[dict[str, Any]]:
    """A turn and the messages that hold the replies of its tools."""
    return [_TURN, *({"role": "tool", "content": reply} for reply in replies)]


def behind(text: str) -> str:
    """What a text has behind its last turn."""
    return text.rpartition(TURN)[2]


def with_template(tokenizer: Any, template: str = "", arguments: Mapping[str, Any] | None = None) -> Any:
    """The tokenizer with another chat template and the arguments that it is always called with.

    Args:
        tokenizer: is changed.
        template: empty keeps the tokenizer's own; "training" takes TRL's training template for it; else a
            file, or the name of a template that TRL ships, such as qwen2_5.
        arguments: names and values, such as {"enable_thinking": False}.

    Raises:
        RecipeError: there is no such template.
    """
    if template == "training":
        text = _training(tokenizer, _text(tokenizer))
        if text is None:
            raise RecipeError(
                "chat_template: training: TRL ships none for this model's template; leave the key empty, or "
                "name a file"
            )
        tokenizer.chat_template = text
    elif template:
        tokenizer.chat_template = _named(template)
    if arguments:
        header = "".join(f"{{% set {name} = {json.dumps(value)} %}}" for name, value in arguments.items())
        tokenizer.chat_template = header + _text(tokenizer)
    return tokenizer


def _named(template: str) -> str:
    if Path(template).is_file():
        return Path(template).read_text(encoding="utf-8")
    from trl import chat_template_utils  # takes seconds

    shipped = vars(chat_template_utils).get(f"{template}_chat_template")
    if not isinstance(shipped, str):
        raise RecipeError(
            f"chat_template: there is no file {template[:200]!r}; name one, or training, or a template "
            "that TRL ships, such as qwen2_5 or qwen3_training"
        )
    return shipped


def on_one_day(form: str) -> str:
    """What a template that prints today's date is told, so that a prompt is the same on another day."""
    return date(2024, 7, 26).strftime(form)  # what Llama's prints where it is told none


def _text(tokenizer: Any) -> str:
    """The chat template that is used with tools, where there are several."""
    text = tokenizer.chat_template
    if isinstance(text, dict):
        text = text.get("tool_use") or text.get("default")
    if not text:
        raise RecipeError(
            "the model has no chat template: set chat_template to a file, or to the name of one that TRL "
            "ships, such as qwen2_5, whose end of turn the model must then learn (sft: true)"
        )
    return text


def _training(tokenizer: Any, text: str) -> str | None:
    """TRL's training template for an official one, with the same arguments; None where there is none."""
    from trl.chat_template_utils import get_training_chat_template  # takes seconds

    bare, header = copy.copy(tokenizer), _HEADER.match(text)[0]
    bare.chat_template = text.removeprefix(header)
    with suppress(Exception):  # a template that it does not know, or that fails as it is tried
        found = get_training_chat_template(bare)
        return found and header + found
    return None


@lru_cache(maxsize=16)
def _probed(tokenizer: Any, text: str, eos: str | None) -> "Template":
    """The model's own template, or TRL's where that keeps more of what was said. Announced once."""
    best = Template(tokenizer, text)
    if best.faithful < 2 and (training := _training(tokenizer, text)):
        better = Template(tokenizer, training, True)
        best = better if better.faithful > best.faithful else best
    if why := best.refused():
        raise RecipeError(
            f"the chat template cannot carry tool calls token for token: it does not {why}. Set "
            "chat_template to a file with one that can, or to the name of one that TRL ships, such as "
            "qwen2_5 or qwen3_training, which the model then learns in its cold start (sft: true)"
        )
    if best.training:
        warnings.warn(
            "the model's chat template rewrites earlier turns or drops their thoughts: TRL's training "
            "template for it is used, which keeps them",
            stacklevel=4,
        )
    if not best.shows_tools and best.offers_tools():
        warnings.warn(
            "the chat template asks for tool calls in a form that agentkit does not read: the system message "
            "asks for them in Hermes' form instead",
            stacklevel=4,
        )
    return best


class Template:
    """A chat template and what it can do, found out by rendering conversations that tell.

    Attributes:
        text: the template itself.
        training: whether it is TRL's training template in place of the model's own.
        faithful: 0: it rewrites a turn when replies follow; 1: it drops or rewrites thoughts; 2: neither.
    """

    def __init__(self, tokenizer: Any, text: str, training: bool = False):
        self.tokenizer, self.text, self.training = tokenizer, text, training
        self.format, self.toolless = detect_format(text), None
        self.toolless = None if self.render(_USER) else []  # what some, such as Hermes 3's, go through
        self.faithful = sum(self._kept(turn) for turn in (_TURN, _THOUGHTFUL))

    def render(self, *messages: dict, prompt: bool = False, tools: list | None = None) -> str:
        """The text; empty where the template fails."""
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tools=self.toolless if tools is None else tools,
                tokenize=False,
                add_generation_prompt=prompt,
                chat_template=self.text,
                strftime_now=on_one_day,
            )
        except Exception:  # whatever a template raises
            return ""

    def _kept(self, turn: dict) -> bool:
        """Whether a turn stays as it was when replies follow, with its thought where it has one."""
        _, *replies = turn_with(_REPLIES[:1])
        before = self.render(_USER, turn).partition(TURN)[0]
        last = {"role": "assistant", "content": "the next turn"}
        texts = [self.render(_USER, turn, *replies, prompt=True), self.render(_USER, turn, *replies, last)]
        stays = all(text.partition(TURN)[0] == before for text in texts)
        return stays and (turn is _TURN or _THOUGHT in before)

    def refused(self) -> str | None:
        """What it does not do, so that it cannot be used."""
        prompt, one = self.render(_USER, prompt=True), turn_with(_REPLIES)
        first, second = (behind(self.render(_USER, *rounds, prompt=True)) for rounds in (one, one * 2))
        replies = re.search(".+".join(["", *_REPLIES, ""]), first, re.DOTALL)
        said = self.render(_USER, _TURN).partition(TURN)[0]
        system = _SYSTEM["content"] in self.render(_SYSTEM, _USER)
        needed = {
            "show a question that is text": _QUESTION in prompt,
            "show the replies of tools": first == second and replies,
            "leave earlier turns as they were when replies follow": self.faithful,
            "show a system message, and leave it in its place": system and self._stays(_SYSTEM),
            "begin a turn as its prompt does": _OPENING.sub("", prompt) == _OPENING.sub("", said),
            "show replies as they are given, or in a known form": self.written,
        }
        return next((what for what, done in needed.items() if not done), None)

    def _stays(self, *first: dict, tools: list | None = None) -> bool:
        """Whether a prompt stays as it was when replies follow: some show what is said first, or the tools,
        with the last question.
        """
        prompt = self.render(*first, _USER, prompt=True, tools=tools)
        later = self.render(*first, _USER, *turn_with(_REPLIES), tools=tools)
        return later.startswith(_OPENING.sub("", prompt))

    def offers_tools(self) -> bool:
        """Whether it shows tools in any form."""
        return "probe_tool" in self.render(_USER, prompt=True, tools=[_TOOL])

    @cached_property
    def shows_tools(self) -> bool:
        """Whether tools are shown, with calls asked for as the detected format reads them."""
        if not self.offers_tools() or not self._stays(tools=[_TOOL]):
            return False
        said = self.render(_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]})
        text = said.removeprefix(self.render(_USER))
        start = min((i for i in map(text.find, _CALLS) if i >= 0), default=0)
        call = text[start:].partition(self.ends[1])[0] if self.ends[1] else text[start:]
        calls = parse_turn(call, self.format, [_TOOL]).calls
        return [(call.name, call.arguments) for call in calls] == [tuple(_CALL["function"].values())]

    @cached_property
    def ends(self) -> tuple[str, str]:
        """The first token behind a turn that replies follow, and behind the last turn; empty where that is no
        token of the tokenizer.
        """
        replied = behind(self.render(_USER, *turn_with(_REPLIES), prompt=True))
        last, asked = behind(self.render(_USER, _TURN)), behind(self.render(_USER, _TURN, _USER, prompt=True))
        return self._first_token(replied), self._first_token(last) or self._first_token(asked)

    def _first_token(self, tail: str) -> str:
        added = {token.content for token in self.tokenizer.added_tokens_decoder.values()}
        tokens = sorted(filter(str.strip, added), key=len, reverse=True)
        tail = re.split(f"{_QUESTION}|<tool_response>|{_REPLY}", tail)[0]
        found = re.search("|".join(map(re.escape, tokens)) or r"(?!)", tail)
        return found[0] if found else ""

    @cached_property
    def written(self) -> Callable[[str], str] | None:
        """How it writes a reply: as it is, stripped, or as JSON has it."""
        reply = ' \n"a\nreply" \n'
        text = behind(self.render(_USER, *turn_with([reply]), prompt=True))
        return next((written for written in _WRITINGS if written(reply) in text), None)
