"""The tokens of a trajectory as they are written: what the policy sampled is trained on (1), else not (0).

Leaves out: checks and pictures of finished trajectories (tokens.py).
"""

from dataclasses import dataclass, field


@dataclass
class Completion:
    """Everything behind the prompt; the three lists stay equally long."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def sampled(self, ids: list[int], logprobs: list[float]) -> tuple[int, int]:
        """Append what the policy sampled. Returns its span."""
        return self.extended(Completion(ids, [1] * len(ids), logprobs))

    def observed(self, ids: list[int]) -> tuple[int, int]:
        """Append what the loop wrote: a tool's reply in the template's words, or a thought's end."""
        return self.extended(Completion(ids, [0] * len(ids), [0.0] * len(ids)))

    def extended(self, other: "Completion") -> tuple[int, int]:
        """Append another. Returns its span."""
        start = len(self.ids)
        self.ids += other.ids
        self.mask += other.mask
        self.logprobs += other.logprobs
        return start, len(self.ids)

    def until(self, end: int | None) -> "Completion":
        return Completion(self.ids[:end], self.mask[:end], self.logprobs[:end])
