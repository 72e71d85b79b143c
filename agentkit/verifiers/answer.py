"""Which part of a policy's last turn is its answer. Leaves out whether it is right (the other modules)."""

from __future__ import annotations

import re

MAX_ANSWER = 2_000  # characters; anything longer is no answer, except for code
MAX_CODE = 20_000
_ANSWER_LINE = re.compile(
    r"^[ \t>*_#]*(?:final[ ]+)?answer[ \t*_]*[:：][ \t*_]*(.+)$", re.IGNORECASE | re.MULTILINE
)
_CODE = re.compile(r"(?:async )?def \w+\(|class \w+\W|import \w|from [\w.]+ import |@\w")
FENCE = "```"


def final_answer(text: str) -> str | None:
    """The answer of a final turn: its last "Answer: ..." line, else all of it; None where empty or huge.

    A turn that holds a code block is one answer as a whole: a comment in code may look like an answer line.
    Code that starts on the answer line goes on to the end. Reasoning that ends in a box may be as long.
    """
    if len(text) > 100 * MAX_ANSWER:
        return None
    lines = list(_ANSWER_LINE.finditer(text))
    if FENCE in text:
        answer, limit = text.strip(), MAX_CODE
    elif starts := [line for line in lines if _CODE.match(line[1])]:
        answer, limit = text[starts[0].start(1) :].strip(), MAX_CODE
    else:
        answer = (lines[-1][1].rstrip(" \t*_") if lines else text).strip()
        limit = MAX_CODE if r"\boxed{" in answer else MAX_ANSWER
    return answer if 0 < len(answer) <= limit else None
