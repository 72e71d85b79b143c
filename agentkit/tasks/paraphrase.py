"""Questions said in other words by rule: greetings, politeness, framing, order of sentences.

Ten kinds, with which tests/compare_paraphrases.py measures an agent. Leaves out synonyms inside a question.
"""

from collections.abc import Callable

_MOVABLE = ["Round to 2 decimals.", "What is the result?", "Example: f(", "If the question assumes"]


def reordered(prompt: str) -> str:
    """The last sentence first, where there is one that can stand there."""
    for start in _MOVABLE:
        before, found, after = prompt.rpartition(f" {start}")
        if found:
            return f"{start}{after} {before}"
    return prompt


PARAPHRASES: dict[str, Callable[[str], str]] = {
    "help": lambda q: f"Please help me with this question: {q}",
    "please": lambda q: f"Please tell me. {q}",
    "polite": lambda q: f"{q} Thank you!",
    "greeting": lambda q: f"Good morning. {q}",
    "framed": lambda q: f"Question: {q}",
    "story": lambda q: f"I am preparing a quiz and need one answer. {q}",
    "hurry": lambda q: f"{q} Please be quick.",
    "both ends": lambda q: f"Hello! {q} Thanks a lot.",
    "order": reordered,
    "new line": lambda q: f"Answer the following.\n{q}",
}
