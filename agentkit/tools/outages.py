"""Calls that fail for the moment, as those of real services do: an error until the same call is repeated.

Leaves out outages that last, and slowness.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from agentkit.records import ToolCall, ToolResult

PROBLEMS = (
    "connection timed out",
    "service unavailable (503)",
    "too many requests (429)",
    "connection reset by peer",
    "the server is overloaded",
)


def momentary(result: ToolResult) -> bool:
    """Whether a call failed so that the same call may work."""
    return not result.ok and result.observation.removeprefix("Error: ").rstrip(".") in PROBLEMS


@dataclass(slots=True)
class Outages:
    """Of one trajectory. The first k of the same calls fail, k of them with a chance of ``rate`` to the k.

    Which do depends on ``key`` and call alone: all samples of a task that make a call meet the same.
    """

    rate: float
    key: str
    made: Counter[str] = field(default_factory=Counter)

    def problem(self, call: ToolCall) -> str | None:
        """How the call fails now, or None."""
        if not self.rate:
            return None
        text = f"{self.key} {call.name} {call.arguments!r}"
        self.made[text] += 1
        rng = random.Random(text)
        return rng.choice(PROBLEMS) if rng.random() < self.rate ** self.made[text] else None
