"""Which part of a policy's last turn is its answer. Leaves out whether it is right (the other modules)."""

import re

MAX_ANSWER = 2_000  # characters; anything longer is no answer, except for code
MAX_CODE = 20_000
_ANSWER_LINE = re.compile(
    r"^[ \t>*_#]*(?:final[ ]+)?answer[ \t*_]*[:：][ \t*_]*([^\s*_].*)$", re.IGNORECASE | re.MULTILINE
)
_HEADING = re.compile(  # the answer stands below: "### Answer", "**Final answer:**"
    r"""^[ \t>]*(?:[*_#]+[ \t]*(?:final[ ]+)?answer[ \t*_]*+[:：]?|(?:final[ ]+)?answer[ \t]*+[:：])
    [ \t*_#]*+\n(?=\s*\S)""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_CODE = re.compile(r"(?:async )?def \w+\(|class \w+\W|import \w|from [\w.]+ import |@\w")
_EMPTY = re.compile(r"\W*(?:final )?answer\W*[*_][\W_]*", re.IGNORECASE)
_THOUGHT = re.compile(r"\A\s*<(think|thinking|thought)>(?:(?!<\1>).)*?</\1>", re.DOTALL)
_RETRACTED = re.compile(
    r"\b(?:wrong|incorrect|mistake\w*|correction|wait|actually|sorry|retract|misread"
    r"|miscalculated|oops|hmm+|hold on"
    r"|second thought|not right|should have been|corrected"
    r"|falsch|irrtum|erreur|equivoqu\w|errado|sbagliat\w)\b"
    r"|^\W*(?:edit|update)\s*:|(?:^|[.!?]\s)\W*i (?:forgot|missed|overlooked)\b"
    r"|不对|不對|错了|錯了|間違|ошиб|неверн",
    re.IGNORECASE | re.MULTILINE,
)
_CORRECTED = re.compile(  # what is said to be the correct one
    r"\bcorrect (?:(?!(?:and|or|as|but|that|if)\b)\w+ )?(?:is|was|should be)(?!\w)"
    r"[\s*_$]*(?:indeed |the |an? )*(.*)",
    re.IGNORECASE,
)
FENCE = re.compile(r"```|^[ \t]*~~~", re.MULTILINE)


def final_answer(text: str) -> str | None:
    """The answer of a final turn: its last "Answer: ..." line, or all below such a heading, else all of it.

    None where that is empty or huge.

    A turn that holds a code block is one answer as a whole: a comment in code may look like an answer line.
    Code that starts on the answer line goes on to the end, and so does a line that has a box or is taken back
    below. A closed thought in front is no part of it. Reasoning that ends in a box may be as long.
    """
    if len(text) > 100 * MAX_ANSWER:
        return None
    text = _THOUGHT.sub("", text, count=1)
    lines = list(_ANSWER_LINE.finditer(text))
    if FENCE.search(text):
        answer, limit = text.strip(), MAX_CODE
    elif starts := [line for line in lines if _CODE.match(line[1])]:
        answer, limit = text[starts[0].start(1) :].strip(), MAX_CODE
    else:
        below = [heading.end() for heading in _HEADING.finditer(text)]
        if below and (not lines or lines[-1].start() < below[-1]):
            text, lines = text[below[-1] :], []
        answer = (lines[-1][1].rstrip(" \t*_") if lines else text).strip()
        if lines and (r"\boxed{" in answer or _is_retracted(answer, text[lines[-1].end() :])):
            answer = text[lines[-1].start(1) :].strip()
        limit = MAX_CODE if r"\boxed{" in answer else MAX_ANSWER
    return answer if not _EMPTY.fullmatch(answer) and 0 < len(answer) <= limit else None


def _is_retracted(answer: str, below: str) -> bool:
    """Whether the lines below an answer take it back, or call another one correct."""
    same = re.compile(
        rf"{re.escape(answer.rstrip('.'))}(?!\w|[.,]\d|\s*[-+*/^=])(?!.*\bnot\b)", re.IGNORECASE
    )
    others = (match[1] for match in _CORRECTED.finditer(below))
    return bool(_RETRACTED.search(below)) or not all(map(same.match, others))
