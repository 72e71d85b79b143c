"""What an answer and its task show: whether a value stands in a text, the policy gave up.

The rules that behaviour and failures are counted by. Leaves out intent: nothing here guesses.
"""

import re
from fractions import Fraction

from agentkit.records import Task
from agentkit.trajectories import plan_of, verifier_kind
from agentkit.verifiers import normalize, parse_number

TEXT_LIMIT = 20_000  # characters of one observation or answer that are searched
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]{0,40}(?:\.\d{1,40})?(?![\w])")
_GIVING_UP = re.compile(
    r"\b(?:could ?n[o'’]t|cannot|can['’]t|unable to|not able to|do(?:es)? ?n[o'’]t (?:know|say|exist)|"
    r"no (?:answer|information|results?)|not (?:found|available|known)|unknown|sorry)\b",
    re.IGNORECASE,
)


_CODE = ("python", "code_interpreter")


def answer_if(task: Task) -> dict:
    """What the answer is for each value of the last step, where the task says so."""
    answers = task.meta.get("answer_if")  # a stranger's tasks may mean another thing by it
    return answers if isinstance(answers, dict) else {}


def writes_code(task: Task) -> bool:
    """Whether a program is the answer: tests check it, or the plan does nothing but run programs."""
    plan = plan_of(task)
    return verifier_kind(task) == "code" or (bool(plan) and all(step["tool"] in _CODE for step in plan))


def gave_up(answer: str, task: Task) -> bool:
    """Whether an answer says that there is none, and the right answer does not."""
    return len(answer) < 400 and bool(_GIVING_UP.search(answer)) and not _GIVING_UP.search(task.answer)


def _numbers(text: str) -> set[Fraction]:
    return {Fraction(n.replace(",", "").replace("−", "-")) for n in _NUMBER.findall(text[:TEXT_LIMIT])}


def stands(value: str, text: str) -> bool:
    """Whether a text holds this value: as a number, or as words in a row, case and punctuation aside."""
    number = parse_number(value) if len(value) < 100 else None
    if number is not None:
        return number in _numbers(text)
    words = normalize(value[:TEXT_LIMIT])
    return bool(words) and f" {words} " in f" {normalize(text[:TEXT_LIMIT])} "
