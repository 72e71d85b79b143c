"""What a policy is asked and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from agentkit.records import Task, ToolResult


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to be sampled.

    ``seed`` fixes every random number of this turn, whatever else is in the batch. ``results`` are the tool replies to the
    previous turn; a model reads them from ``ids``, a script reads them here.
    """

    task: Task
    sample: int  # index in the task's group
    turn: int  # 0 for the first
    ids: list[int]  # prompt and everything since, T tokens
    seed: tuple[int, ...]
    max_new_tokens: int
    temperature: float  # 0 is greedy
    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled turn: ids with the end token where the policy gave one, and each token's log-probability.

    Log-probabilities are taken at the sampling temperature (at temperature 1 where sampling is greedy).
    """

    ids: list[int]
    logprobs: list[float]


class Policy(Protocol):
    """Samples turns. ``tokenizer`` is a Hugging Face tokenizer with a chat template."""

    name: str
    tokenizer: Any

    async def sample(self, request: Request) -> Sample:
        """Continue ``request.ids`` by one turn."""
        ...
