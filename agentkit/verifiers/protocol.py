r"""Which part of a last turn is the answer: one rule, which the system prompts tell the policy.

A text has one candidate or none, picked by where it stands and never by looking for the gold answer:

1. what stands on the last line ``Answer: X`` (``The answer is X``, ``#### X``; as a heading, with X below);
2. else what stands in a last line that is nothing but one ``\boxed{X}`` and its unit;
3. else a turn of one line is itself.

Text behind the answer line, or two lines or boxes that differ: there is no answer, and ``why`` says so. A
closed thought in front is no part of the turn. Leaves out whether the answer is right.
"""

import re
from typing import NamedTuple

MAX_ANSWER, MAX_CODE, MAX_TURN = 2_000, 20_000, 200_000  # characters
MAX_BOXES = 100
_THOUGHT = re.compile(r"\A\s*<(think|thinking|thought)>.*?</\1>", re.DOTALL)
_MARK = re.compile(
    r"""^[ \t>*_\#]*(?:
      (?:(?:so|thus|hence|therefore|then)\b,?[ ]+)?(?:the[ ]+)?(?:final[ ]+|correct[ ]+)?answer[ ]*[*_]*
      (?:[ ]*[:：]|[ ]+is\b[ ]*[:：]?|[ ]*$)
    | \#{4})
    [ \t*_]*(?P<said>.*)$""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_DELIMITERS = re.compile(r"\\[()\[\]]|^\s*\$\$\s*$|\$\$?(?=\s*\\(?:boxed|fbox))", re.MULTILINE)  # of formulas
_EMPHASISED = re.compile(r"(\*{0,3})(.*?)(?<=[^*\s])(?:\1|\*\*)", re.DOTALL)  # the mark took those in front
_FENCE = re.compile(r"```|^[ \t]*~~~", re.MULTILINE)
_CODE = re.compile(r"\s*(?:(?:async )?def \w+\(|class \w+\W|import \w|from [\w.]+ import |@\w)")
_DENIES = re.compile(  # what takes a box back, compares it or makes it one of several; and other languages
    r"""(?i)(?<![\w-])(?:not|no|never|none|neither|nor|without|cannot|\w+n['’]t|but|except|unless|instead
      |rather|if|whether|or|more|less|fewer|half|twice|times|about|around|almost|nearly|over|under|between
      |maybe|perhaps|might|may|could|would|wrong|incorrect|false|before|after|each|other|another|second|third
      |plus|minus|said|says|think|guess\w*|doubt\w*|suppos\w+|assum\w+|unlike)(?![\w-])
    | [?？❌✗] | [^\x00-\x7f“”‘’–—…×·÷°€£≈✓✅]""",
    re.VERBOSE,
)
_DENIES_BELOW = re.compile(
    r"(?<![\w-])(?:not|\w+n['’]t|never|wrong|incorrect|false|anything but)(?![\w-])", re.IGNORECASE
)
_SUMMED_BEFORE = re.compile(r"[-+*/^<>≤≥≠(_|!]\s*\Z|\\[a-z]+\s*\{?\Z")
_SUMMED_BEHIND = re.compile(r"\s*\$?\s*[-+*/^_!<>=(|]")


class Reading(NamedTuple):
    """The one candidate of a turn, or why there is none."""

    answer: str | None
    why: str = ""


def final_answer(text: str, *, box: str = "") -> Reading:
    """The answer of a last turn by the protocol.

    Args:
        text: the whole turn.
        box: "sentence" also takes the only box of a text from its last sentence, where nothing there denies
            or compares it: for models that were never told the protocol.

    Raises:
        ValueError: another ``box``.
    """
    if box not in ("", "sentence"):
        raise ValueError(f"box is {box!r}: give 'sentence', or leave it out")
    if len(text) > MAX_TURN:
        return _limited(text, MAX_TURN)
    text = _THOUGHT.sub("", text, count=1).strip()
    marks = list(_MARK.finditer(text))
    if len({mark["said"].strip(" *_.$") for mark in marks} - {""}) > 1:
        return Reading(None, "the turn has two answer lines that differ")
    found = list(_BOX.finditer(text))
    boxes = {(_content(text, start.end()) or "").strip() for start in found[:MAX_BOXES]}
    if len(boxes) > 1 or len(found) > MAX_BOXES:
        return Reading(None, "the turn has two boxes that differ")
    if marks:
        said, _, below = _without_delimiters(text[marks[-1].start("said") :]).partition("\n")
        if below.strip():
            return Reading(None, "the turn has text behind the answer line")
    elif boxes and _DENIES_BELOW.search(_lead_in(text)):
        return Reading(None, "the turn denies its box in the line above")
    else:
        said = _boxed(text, box) if boxes else text
    said = said.strip(" \t\n_`")
    emphasised = _EMPHASISED.fullmatch(said)
    answer = _unboxed(emphasised[2] if emphasised else said)
    if "\n" in answer or _BOX.search(answer):
        return Reading(None, r"the turn has no last line 'Answer: ...' and none that is only one \boxed{...}")
    return _limited(answer, MAX_ANSWER)


def asks_for_answer(prompt: str) -> bool:
    """Whether a system prompt tells the policy to answer by the protocol."""
    return bool(re.search(r"answer[*_ ]*[:：]|answer is|#{4}|\\boxed", prompt, re.IGNORECASE))


def whole_answer(text: str) -> Reading:
    """The answer of a last turn where it may have many lines: a program, or an essay that a judge reads.

    It is everything from the last answer line on, from the one that starts a program where there is one, and
    the whole turn where there is none or where the turn holds a fenced block of code.
    """
    if len(text) > MAX_TURN:
        return _limited(text, MAX_TURN)
    text = _THOUGHT.sub("", text, count=1).strip()
    starts = [mark.start("said") for mark in _MARK.finditer(text)]
    if _FENCE.search(text) or _CODE.match(text):  # a comment in code may look like an answer line
        starts = []
    programs = [start for start in starts if _CODE.match(text, start)]
    start = next(iter(programs or starts[-1:]), 0)
    return _limited(text[start:].strip(), MAX_CODE)


def _limited(answer: str, limit: int) -> Reading:
    if not answer:
        return Reading(None, "the turn has nothing where its answer should stand")
    if len(answer) > limit:
        return Reading(None, f"the answer has more than {limit} characters")
    return Reading(answer)


def _without_delimiters(text: str) -> str:
    return _DELIMITERS.sub(" ", text).strip()


def _lead_in(text: str) -> str:
    """The line above the one with the box; "" for a whole sentence, which may deny something else."""
    above = text[: _BOX.search(text).start()].rpartition("\n")[0].rstrip(" \t\n$*[\\")
    return "" if above.endswith((".", "!", "?")) else above.rpartition("\n")[2]


def _boxed(text: str, box: str) -> str:
    """The last line where it is one box and its unit; a text without one there stays whole: no answer."""
    whole = _without_delimiters(text)
    last = whole.rsplit("\n", 1)[-1]
    led = _leading_box(last)
    if box and (led is None or len(led[1].split()) > 2):
        return _in_last_sentence(whole) or whole
    return last if led else whole


def _in_last_sentence(text: str) -> str:
    """The box in the last sentence, in no sum and among words that neither deny nor compare; else ""."""
    last = re.split(r"\n\s*\n", text)[-1]
    last = re.split(r"(?<=[a-z][.!]) (?=[A-Z])", last)[-1]
    found = _BOX.search(last)
    content = _content(last, found.end()) if found else None
    if content is None:
        return ""
    before, after = last[: found.start()], last[found.end() + len(content) + 1 :]
    is_summed = _SUMMED_BEFORE.search(before.rstrip("$ ")) or _SUMMED_BEHIND.match(after)
    is_denied = _DENIES.search(re.sub(r"\$[^$]*\$", " ", before + after))
    return "" if is_summed or is_denied else f"\\boxed{{{content}}}"


def _unboxed(text: str) -> str:
    r"""What a line holds that is nothing but one \boxed{...} and its unit; any other line as it is."""
    content, rest = _leading_box(text) or (text, "_")
    return text if re.match(r"[_!]|\^\{", rest) else f"{content.strip()} {rest.strip(' .$')}".strip()


def _leading_box(line: str) -> tuple[str, str] | None:
    """The content of the box that a line begins with, and what stands behind it."""
    bare = _DELIMITERS.sub(" ", line).strip(" *")
    found = _BOX.match(bare)
    content = _content(bare, found.end()) if found else None
    return None if content is None else (content, bare[found.end() + len(content) + 1 :])


def _content(text: str, start: int) -> str | None:
    """What stands in the braces that open before ``start``; None where they do not close."""
    depth = 1
    for end in range(start, min(len(text), start + MAX_ANSWER)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            return text[start:end]
    return None
