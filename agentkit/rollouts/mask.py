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
        return self._append(ids, 1, logprobs)

    def observed(self, ids: list[int]) -> tuple[int, int]:
        """Append what the loop wrote, which is a tool's reply in the template's words. Returns its span."""
        return self._append(ids, 0, [0.0] * len(ids))

    def _append(self, ids: list[int], mask: int, logprobs: list[float]) -> tuple[int, int]:
        start = len(self.ids)
        self.ids += ids
        self.mask += [mask] * len(ids)
        self.logprobs += logprobs
        return start, len(self.ids)
