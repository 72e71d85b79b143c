"""What a tokenizer's chat template can carry, found out by rendering it: prompt, tool replies, end of a turn.

Where the model's own template rewrites earlier turns, the training template that TRL ships for it is taken;
where it shows no tools, or asks for calls that nothing here reads, the tools are shown in Hermes' way; where
it has no tool role, replies come as a user's message. One that can do none of it is refused, with what to
use. Leaves out rendering a conversation (chat.py) and reading calls (call_formats.py).
"""

import importlib.util
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
_QUESTION = "QUESTION-ASKED-HERE"
_SYSTEM = "SYSTEM-SAID-HERE"
_THOUGHT = "THOUGHT-HELD-HERE"
_KEY = {"key": {"type": "string", "description": "A word."}}
_PARAMETERS = {"type": "object", "properties": _KEY, "required": ["key"]}
_TOOL = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "A probe.", "parameters": _PARAMETERS},
}
_CALL = {"type": "function", "function": {"name": "probe_tool", "arguments": {"key": "word"}}}
_OPENING = re.compile(rf"(?:\s|{THINK}|{THOUGHT})*\Z")
_ENDS = (
    "<|eom_id|>",
    "<|observation|>",
)  # that a model may write and its template does not put behind a turn
_CALLS = ("<tool_call>", '{"name"')  # how they begin
_HEADER = re.compile(r"(?:\{% set \w+ = [^%\n]* %\})*")  # as with_arguments writes it
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
_WRITINGS: tuple[Callable[[str], str], ...] = (str, _as_json, str.strip, lambda text: _as_json(text.strip()))


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


def turn_with(replies: Sequence[str], role: str) -> list[dict[str, Any]]:
    """A turn and the messages that hold the replies of its tools."""
    turn = {"role": "assistant", "content": TURN}
    if role == "tool":
        return [turn, *({"role": "tool", "content": reply} for reply in replies)]
    framed = [f"<tool_response>\n{reply}\n</tool_response>" for reply in replies]
    return [turn, {"role": "user", "content": "\n".join(framed)}]


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
        if (text := _training(_text(tokenizer))) is None:
            raise RecipeError(
                "chat_template: training: TRL ships none for this model's template; leave the key empty, or "
                "name a file"
            )
        tokenizer.chat_template = text
    elif template:
        file = next(
            (file for file in (Path(template), _shipped() / f"{template}.jinja") if file.is_file()), None
        )
        if file is None:
            raise RecipeError(
                f"chat_template: there is no file {template[:200]!r}; name one, or training, or a template "
                f"that TRL ships, such as qwen2_5 (all of them: {_shipped()})"
            )
        tokenizer.chat_template = file.read_text(encoding="utf-8")
    if arguments:
        tokenizer.chat_template = with_arguments(_text(tokenizer), arguments)
    return tokenizer


def on_one_day(form: str) -> str:
    """What a template that prints today's date is told, so that a prompt is the same on another day."""
    return date(2024, 7, 26).strftime(form)  # what Llama's prints where it is told none


def with_arguments(template: str, arguments: Mapping[str, Any]) -> str:
    """A template that is always called with these arguments."""
    header = "".join(f"{{% set {name} = {json.dumps(value)} %}}" for name, value in arguments.items())
    return header + template


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


def _shipped() -> Path:
    """TRL's folder of templates, found without importing it."""
    spec = importlib.util.find_spec("trl")
    return Path(spec.origin).parent / "chat_templates" if spec and spec.origin else Path("chat_templates")


@lru_cache(maxsize=1)
def _trainable() -> dict[str, str]:
    """TRL's training templates by the official ones, character by character, as TRL finds them."""
    found = {}
    for training in _shipped().glob("*_training.jinja"):
        official = training.with_name(training.name.replace("_training", ""))
        if official.is_file():
            found[official.read_text(encoding="utf-8")] = training.read_text(encoding="utf-8")
    return found


def _training(text: str) -> str | None:
    """TRL's training template for an official one, with the same arguments."""
    for official, training in _trainable().items():
        header = text.removesuffix(official)
        if header != text and _HEADER.fullmatch(header):
            return header + training
    return None


@lru_cache(maxsize=16)
def _probed(tokenizer: Any, text: str, eos: str | None) -> "Template":
    """The model's own template, or TRL's where that keeps more of what was said. Announced once."""
    own = Template(tokenizer, text)
    training = _training(text)
    better = Template(tokenizer, training, True) if training and own.faithful < 2 else None
    best = better if better and better.faithful > own.faithful else own
    if best is better:
        warnings.warn(
            "the model's chat template rewrites earlier turns or drops their thoughts: TRL's training "
            "template for it is used, which keeps them",
            stacklevel=4,
        )
    best.check()
    if not best.shows_tools and best.offers_tools():
        warnings.warn(
            "the chat template asks for tool calls in a form that agentkit does not read: the system message "
            "asks for them in Hermes' form instead (tool_format: hermes)",
            stacklevel=4,
        )
    return best


def _in_order(text: str, parts: Sequence[str]) -> bool:
    return bool(re.search(".+".join(["", *parts, ""]), text, re.DOTALL))


class Template:
    """A chat template and what it can do, found out by rendering conversations that tell.

    Attributes:
        text: the template itself.
        training: whether it is TRL's training template in place of the model's own.
        toolless: what it is told where there are no tools: None, or [] where it fails on that.
        role: of tool replies: "tool" or "user"; None where it shows none.
        faithful: 0: it rewrites a turn when replies follow; 1: it drops or rewrites thoughts; 2: neither.
    """

    def __init__(self, tokenizer: Any, text: str, training: bool = False):
        self.tokenizer, self.text, self.training = tokenizer, text, training
        self.user = {"role": "user", "content": _QUESTION}
        self.turn = {"role": "assistant", "content": TURN}
        self.thoughtful = {"role": "assistant", "content": f"{THINK}\n{_THOUGHT}\n{THOUGHT}\n\n{TURN}"}
        self.replies = [REPLY.format(i) for i in range(2)]
        self.format, self.toolless = detect_format(text), None
        self.toolless = None if self.render(self.user) else []
        self.role = self._role()
        self.faithful = self._faithful() if self.role else 0

    def check(self) -> None:
        """Raise RecipeError where it cannot be used."""
        if why := self._refused():
            raise RecipeError(
                f"the chat template cannot carry tool calls token for token: {why}. Set chat_template to a "
                "file with one that can, or to the name of one that TRL ships, such as qwen2_5 or "
                "qwen3_training, which the model then learns in its cold start (sft: true)"
            )

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

    def _role(self) -> str | None:
        """By which role replies come in: the first that shows them all in order, in each round alike, and
        has a token before them, if there is one that has.
        """
        roles = []
        for role in ("tool", "user"):
            one = turn_with(self.replies, role)
            first, second = (
                behind(self.render(self.user, *rounds, prompt=True)) for rounds in (one, one * 2)
            )
            if first == second and _in_order(first, self.replies):
                roles.append(role)
                if self._first_token(first):
                    return role
        return roles[0] if roles else None

    def _faithful(self) -> int:
        levels = [self._kept(self.turn), self._kept(self.thoughtful)]
        return 2 if all(levels) else int(any(levels))

    def _kept(self, turn: dict) -> bool:
        last = {"role": "assistant", "content": "the next turn"}
        _, *replies = turn_with(self.replies[:1], self.role)
        before, _, _ = self.render(self.user, turn).partition(TURN)
        texts = [
            self.render(self.user, turn, *replies, prompt=True),
            self.render(self.user, turn, *replies, last),
        ]
        return all(
            text.partition(TURN)[0] == before and (turn is self.turn or _THOUGHT in before) for text in texts
        )

    def _refused(self) -> str | None:
        """Why it cannot be used."""
        prompt = self.render(self.user, prompt=True)
        if _QUESTION not in prompt:
            return "it does not show a question that is text"
        if not self.role:
            return "it shows no reply to a turn, neither by a tool nor by a user"
        if not self.faithful:
            return "it rewrites earlier turns when tool replies follow"
        said, _, _ = self.render(self.user, self.turn).partition(TURN)
        begun, held = _OPENING.sub("", prompt), _OPENING.sub("", said)
        if begun != held:
            return f"a turn begins with {held.removeprefix(begun)[-60:]!r}, in channels that are not read"
        if not self.written:
            return "it shows replies in another form than they are given, and in none that is known"
        return None

    @cached_property
    def system(self) -> bool:
        """Whether it has a system message; else that stands before the question."""
        system = {"role": "system", "content": _SYSTEM}
        return _SYSTEM in self.render(system, self.user).partition(_QUESTION)[0] and self._stays(system)

    def _stays(self, *first: dict, tools: list | None = None) -> bool:
        """Whether a prompt stays as it was when replies follow: some show what is said first, or the tools,
        with the last question.
        """
        prompt = self.render(*first, self.user, prompt=True, tools=tools)
        later = self.render(*first, self.user, *turn_with(self.replies, self.role), tools=tools)
        return later.startswith(_OPENING.sub("", prompt))

    def offers_tools(self) -> bool:
        """Whether it shows tools in any form."""
        return "probe_tool" in self.render(self.user, prompt=True, tools=[_TOOL])

    @cached_property
    def shows_tools(self) -> bool:
        """Whether tools are shown, with calls asked for as the detected format reads them."""
        if not self.offers_tools() or not self._stays(tools=[_TOOL]):
            return False
        said = self.render(self.user, {"role": "assistant", "content": "", "tool_calls": [_CALL]})
        if "probe_tool" not in said:
            shown = self.render(self.user, prompt=True, tools=[_TOOL])
            return "<tool_call>" in shown
        text = said.removeprefix(self.render(self.user))
        start = min((i for i in map(text.find, _CALLS) if i >= 0), default=0)
        call = text[start:].partition(self.ends[1])[0] if self.ends[1] else text[start:]
        calls = parse_turn(call, self.format, [_TOOL]).calls
        return [(call.name, call.arguments) for call in calls] == [tuple(_CALL["function"].values())]

    @cached_property
    def ends(self) -> tuple[str, str]:
        """The first token behind a turn that replies follow, and behind the last turn; empty where that is no
        token of the tokenizer.
        """
        replied = behind(self.render(self.user, *turn_with(self.replies, self.role), prompt=True))
        last = behind(self.render(self.user, self.turn))
        asked = behind(self.render(self.user, self.turn, self.user, prompt=True))
        return self._first_token(replied), self._first_token(last) or self._first_token(asked)

    def _first_token(self, tail: str) -> str:
        tokens = {
            token.content for token in self.tokenizer.added_tokens_decoder.values() if token.content.strip()
        }
        tail = re.split("|".join((_QUESTION, "<tool_response>", REPLY.format(r"\d+"))), tail)[0]
        pattern = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)"
        found = re.search(pattern, tail)
        return found[0] if found else ""

    @cached_property
    def written(self) -> Callable[[str], str] | None:
        """How it writes a reply: as it is, stripped, or as JSON has it."""
        reply = ' \n"a\nreply" \n'
        text = behind(self.render(self.user, *turn_with([reply], self.role), prompt=True))
        return next((written for written in _WRITINGS if written(reply) in text), None)
