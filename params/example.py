"""A lab file: tasks, tools, a verifier and a reward of your own, named by the recipe beside it.

`agentkit new mine` copies both files. They run as they stand; then change one part after the other.
"""

from __future__ import annotations

import random

from agentkit import Family, Task, tool
from agentkit.tools import calculate

PRICES = {"apple": 3, "bread": 4, "candle": 6, "drum": 89, "egg": 2, "fork": 7, "globe": 45, "honey": 12,
          "lamp": 38, "melon": 5, "notebook": 8, "pen": 9}  # fmt: skip


class Shop:
    """The environment. Put your tools here: each public method is one, and the agent reads its docstring."""

    system_prompt = (
        'Look up every price with price, compute with calculator, and end with a line "Answer: ...".'
    )

    def reset(self, **row) -> None:
        """Called before each trajectory with the task's fields; put the state of a new trajectory here."""

    @tool(pure=True, version="1")  # the same answer every time, so answers may be cached
    def price(self, item: str) -> str:
        """Look up a price.

        Args:
            item: What it is for.
        """
        if item not in PRICES:  # an error that the agent reads
            raise ValueError(f"the shop has no {item!r}")
        return str(PRICES[item])

    @tool(pure=True)
    def calculator(self, expression: str) -> str:
        """Compute arithmetic.

        Args:
            expression: The arithmetic.
        """
        return calculate(expression)


def draft(corpus, rng: random.Random) -> Task:
    """One random task. Ask your question; the suite checks that the plan leads to the answer."""
    first, second = rng.sample(sorted(PRICES), 2)
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    plan = [  # how an expert goes about it: it shows the small agent how, and says how hard the task is
        {"tool": "price", "arguments": {"item": first}},
        {"tool": "price", "arguments": {"item": second}},
        {
            "tool": "calculator",
            "arguments": {"expression": f"{a} * {{0}} + {b} * {{1}}"},
        },  # {0}: the first step's reply
    ]
    return Task(
        id="",
        prompt=f"What do {a} of {first} and {b} of {second} cost?",
        answer=str(a * PRICES[first] + b * PRICES[second]),
        verifier={"kind": "euros"},
        tools=("price", "calculator"),
        meta={
            "plan": plan,
            "entities": [f"{a} {first}", f"{b} {second}"],
        },  # no two splits share both entities
    )


def euros(answer: str, gold: str, *, trajectory=None) -> float:
    """The verifier: 1 for the right amount, with or without the unit. Say what is right in your tasks."""
    return float(answer.removesuffix("euros").strip() == gold)


def brevity(task: Task, trajectory) -> float:
    """A component of the reward: it grows as the trajectory gets shorter. None would mean: not scored."""
    return 1 / (1 + len(trajectory.turns))


families = {"shop": Family(draft, environment=Shop)}  # named by the recipe's key families
verifiers = {"euros": euros}  # named by a task's verifier
rewards = {"brevity": (brevity, 0.1)}  # component and weight, added to the recipe's preset
