"""What a policy is asked and what it returns. Leaves out the engines (policies)."""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from agentkit.records import EngineError as EngineError
from agentkit.records import Task, ToolResult


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to be sampled.

    ``seed`` fixes every random number of this turn, whatever else is in the batch. A model reads the tool
    replies to the previous turn and how to write calls from ``ids``; a script reads them from ``results``,
    ``tool_format`` and ``tools``.
    """

    task: Task
    trajectory: int  # a number of its own, the same for all turns of one trajectory
    turn: int  # 0 for the first
    ids: list[int]  # prompt and everything since, T tokens
    seed: tuple[int, ...]
    max_new_tokens: int
    temperature: float  # 0 is greedy
    results: tuple[ToolResult, ...] = ()
    tool_format: str = "hermes"
    tools: Sequence[Mapping[str, Any]] = ()  # JSON schemas


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled turn: ids with the end token where the policy gave one, and each token's log-probability.

    Log-probabilities are taken at the sampling temperature (at temperature 1 where sampling is greedy).
    """

    ids: list[int]
    logprobs: list[float]


class Policy(AbstractContextManager):
    """Samples turns.

    Attributes:
        name: recorded in trajectories.
        tokenizer: a Hugging Face tokenizer with a chat template.
        in_flight: trajectories it can serve at a time; None is any number.
        max_length: tokens of a prompt and its completion that it can read; None is any number.
        shares_weights: it samples with the very model it was given, so that nothing needs to be copied after
            an update.
    """

    name: str
    tokenizer: Any
    in_flight: int | None = None
    max_length: int | None = None
    shares_weights: bool = True

    @abstractmethod
    async def sample(self, request: Request) -> Sample:
        """Continue ``request.ids`` by one turn."""

    def begin(self, trajectory: int) -> None:  # noqa: B027 - most policies keep nothing
        """A trajectory begins."""

    def end(self, trajectory: int) -> None:  # noqa: B027
        """A trajectory has ended, however it did: what is kept for it can go."""

    def sync(self, model: Any) -> None:  # noqa: B027
        """Take over the trained model's weights, and forget what was computed with the old ones."""

    def sleep(self) -> None:  # noqa: B027
        """Give back what memory it can spare until the next request or sync."""

    def close(self) -> None:  # noqa: B027
        """Give back what the engine holds; the policy samples no more."""

    def __exit__(self, *error: object) -> None:
        self.close()


def seed_number(seed: tuple[int, ...]) -> int:
    """A request's seed as one number in [0, 2^63), for engines that take one."""
    return int.from_bytes(hashlib.sha256(repr(seed).encode()).digest()[:8]) >> 1
