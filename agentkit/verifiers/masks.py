r"""A text whose boxes and formulas are one character each, so that its sentences can be read as prose.

Leaves out what the sentences say (frames) and what the mathematics means (symbolic).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from agentkit.verifiers.extraction import MAX_ANSWER
from agentkit.verifiers.words import sections

MAX_BOXES, MAX_FORMULAS = 50, 6_000  # that are looked at
DOLLAR = "＄"  # in place of \$, which is no delimiter
FACTORIAL = "¡"  # in place of ! behind a box inside a formula
BOX, FORMULA = 0xE000, 0xE100  # characters from here on stand in place of boxes and of formulas
IS_BOX = re.compile("[\ue000-\ue0ff]")
IS_MASK = re.compile("[\ue000-\uf8ff]")
_DISPLAY = r"(?:align|equation|gather|eqnarray)\*?"
_SEGMENT = re.compile(
    # a dollar that opens mathematics stands before no space, unless one closes it too, and no digit follows
    # one that closes it: $2.70 and $18.90 are amounts
    r"\$\$([^$]+)\$\$|\$((?=\S)(?:[^$\n]|\n(?!\s*\n))+(?<=\S)|\s(?:[^$\n]|\n(?!\s*\n))+\s)\$(?!\d)|\\\((.{1,2000}?)\\\)|\\\[(.{1,2000}?)\\\]"
    rf"|\\begin\{{{_DISPLAY}\}}(.{{1,2000}}?)\\end\{{{_DISPLAY}\}}",
    re.DOTALL,
)
STYLE = re.compile(
    r"""
      \\(?:displaystyle|textstyle|[Ll]arge|left|right|bigl?|bigr?|q?quad)(?![A-Za-z])
    | \\[ ,;:!]  # spaces
    | \\(?:color|begin|end)\s*\{\w+\*?\}
    | \\(?:text[a-z]*|math(?:bf|rm)|mbox|underline)\s*(?=\{)  # what the braces hold stays
    | </?(?:final_?)?(?:answer|b|i|u|em|strong|p|div|span|center|br)>
    | [{}&$]
    | (?<=\w)~
    """,
    re.VERBOSE,
)
MARKUP = re.compile(
    r"""
      ^[^\S\n]*(?:[-+*•]|\#{1,6})\s  # an item, a heading
    | (?<!\w)\*\* | \*\*(?!\w) | __ | `
    | (?<![\w*])(?<!\d\s)\*(?=[^\s*])  # emphasis opens; 2 *3 is a product
    | (?<=[^\s\d*])\*(?![\w*])
    """,
    re.MULTILINE | re.VERBOSE,
)
_CONTROL = re.compile(r"<\|\w+\|>\w*\s*\Z")  # a template's own marks
_TAGGED = re.compile(r"<(answer|final_answer)>\s*([^<{}\\]{1,2000}?|[^<]{1,2000}?)\s*</\1>", re.IGNORECASE)
_END = re.compile(r"[.!?…]{1,9}[\"')\]*_$}]{0,9}(?=\s|\Z)|[。！？।]|\n\s*")


@dataclass(frozen=True, slots=True)
class Masked:
    """A text with one character for every box and every formula, and what they hold."""

    text: str
    boxes: list[str]
    formulas: list[str]

    def shown(self, part: str) -> str:
        """A part of the text with what the masks hold in their place."""

        def held(mask: re.Match) -> str:
            number = ord(mask[0])
            return self.formulas[number - FORMULA] if number >= FORMULA else self.boxes[number - BOX]

        return IS_MASK.sub(held, part)


def masked(text: str) -> Masked:
    text = text[:-50] + _CONTROL.sub("", text[-50:])
    text = IS_MASK.sub("\ufffd", text.replace(r"\$", DOLLAR).replace("~$", " $"))
    text = re.sub(r"(?<!\\)\\\\(?=boxed)", r"\\", text)
    text = _TAGGED.sub(r"\\boxed{\2}", text)  # as some prompts ask for
    boxes, formulas, pieces, position = [], [], [], 0
    for content, start, end in islice(_boxes(text), MAX_BOXES + 1):
        if content not in boxes:
            boxes.append(content)
        pieces += [text[position:start], chr(BOX + boxes.index(content))]
        position = end

    def mask(formula: re.Match) -> str:
        """A formula's mask; a full stop in it, or in front of a new line's capital, ends the sentence."""
        inside = next(group for group in formula.groups() if group is not None)
        has_stop = inside.rstrip().endswith(".")
        following = formula.string[formula.end() : formula.end() + 5].lstrip()[:1]
        ends = has_stop or (formula[2] is None and following.isupper())  # [2] is inline
        if IS_BOX.search(inside) or len(formulas) >= MAX_FORMULAS:
            return re.sub(rf"(?<={IS_BOX.pattern})\s*!", FACTORIAL, inside) + "\n" * ends
        formulas.append(formula[0])
        return chr(FORMULA + len(formulas) - 1) + ends * (". " if has_stop else "\n")

    return Masked(_SEGMENT.sub(mask, "".join([*pieces, text[position:]])), boxes, formulas)


def _boxes(text: str) -> Iterator[tuple[str, int, int]]:
    r"""Every \boxed{...}, braces balanced: what it holds, its start and its end."""
    for match in islice(re.finditer(r"\\(?:boxed|fbox)\s*\{", text), 4 * MAX_BOXES):
        depth = 1
        for end in range(match.end(), min(len(text), match.end() + MAX_ANSWER)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                yield text[match.end() : end], match.start(), end + 1
                break


def sentences(text: str) -> list[str]:
    """The sentences of a masked text; a line goes on in the next one where nothing ends it."""
    found, start = [], 0
    for end in _END.finditer(text):
        before = text[max(start, end.start() - 40) : end.start()]
        if not _goes_on(end[0], before, text[end.end() : end.end() + 20]):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [sentence for sentence in [*found, text[start:].strip()] if STYLE.sub("", sentence).strip()]


def _goes_on(end: str, before: str, after: str) -> bool:
    number, word = re.search(rf"((?:\d|{IS_MASK.pattern})\W*)?([^\W\d_]*)\Z", before[-14:]).groups()
    if end[0] == ".":
        initial = len(word) == 1 and re.search(r"[.]\w\Z|[:：]\W*[A-J]\Z", before)
        return bool(initial) or (not number and word.casefold() in sections()["abbreviation"])  # 20 ms
    if end[0] != "\n":
        return False
    last, following = before.rstrip("*_`#>$ ")[-1:], after.lstrip("*_`#>-•$ \\[(")[:1]
    unfinished = re.search(r"[^\W\d_]*\Z", before.rstrip("*_`#>$ :"))[0].casefold() in _unfinished()
    is_box = IS_BOX.match(following) and (unfinished or "\n" not in end.strip(" ")[1:])
    is_formula = IS_MASK.match(following) and unfinished
    ends_word = last.isalpha() and not re.search(r"[-+*/=^(\d−·]\s?[A-Za-z]\Z", before.rstrip("*_`#>$ "))
    in_words = ends_word and (following.islower() or bool(is_box or is_formula))
    goes_on = re.match(r"\s*(?!(?:so|hence|thus|since|therefore|because|then)\b)[a-z]", after)
    displayed = IS_BOX.match(last) and goes_on  # a box on lines of its own
    return not last or last in ":：,，、;" or in_words or bool(displayed)


@lru_cache(maxsize=1)
def _unfinished() -> frozenset[str]:
    """Words that no sentence ends with."""
    return frozenset().union(*(sections()[name] for name in ("link", "verb", "closed", "answer", "lead")))


def compact(text: str) -> str:
    """Mathematics without spacing and delimiters, to find it by."""
    return re.sub(r"\\(?:left|right|cdot|[ ,;:!()\[\]])|[\s{}$*]", "", text)
