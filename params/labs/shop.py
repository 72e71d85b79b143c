"""A lab file: tasks, tools, a verifier and a reward of your own, named by the recipe beside it.

`agentkit new mine` copies this file and its two recipes. They run as they stand; then change one
part after the other.
"""

from __future__ import annotations

import random

from agentkit import Family, Task, tool
from agentkit.tools import calculate

PRICES = {"apple": 3, "bread": 14, "candle": 26, "drum": 489, "egg": 2, "fork": 17, "globe": 145, "honey": 32,
          "iron": 71, "jar": 9, "kettle": 58, "lamp": 138, "melon": 5, "needle": 11, "oven": 620, "pencil": 8,
          "quilt": 203, "rope": 44, "saddle": 377, "table": 250, "urn": 95, "violin": 812}  # fmt: skip


class Shop:
    """The environment. Put your tools here: each public method is one, and the agent reads its docstring.

    The small agent has learnt to use search and calculator; a larger one takes tools of any name. With others
    than these two, say what to do in a text of the class, system_prompt: the agent is told it first.
    """

    def reset(self, **row) -> None:
        """Called before each trajectory with the task's fields; put the state of a new trajectory here."""

    @tool(pure=True, version=str(PRICES))  # answers may be kept as long as what it reads is the same
    def search(self, query: str) -> str:
        """Search facts.

        Args:
            query: What to look up.
        """
        item = query.split()[-1]
        if item not in PRICES:  # an error that the agent reads
            raise ValueError(f"the shop has no {item!r}")
        return f"[1] The price of {item} is {PRICES[item]} euros."

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
    word, sign = rng.choice([("plus", "+"), ("minus", "-"), ("times", "*")])
    plan = [  # how an expert goes about it: it shows the small agent how, and says how hard the task is
        {"tool": "search", "arguments": {"query": f"price of {first}"}, "expect": PRICES[first]},
        {"tool": "search", "arguments": {"query": f"price of {second}"}, "expect": PRICES[second]},
        {"tool": "calculator", "arguments": {"expression": f"{{0}} {sign} {{1}}"}},  # {0}: the first value
    ]
    return Task(
        id="",
        prompt=f"What is the price of {first} {word} the price of {second}?",
        answer=calculate(f"{PRICES[first]} {sign} {PRICES[second]}"),
        verifier={"kind": "euros"},
        meta={"plan": plan, "entities": [first, second]},  # no two splits share such a pair
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
