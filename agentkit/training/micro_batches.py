"""Which trajectories go together in one forward and backward pass, by how many tokens they have.

Leaves out the loss, whose weights of such parts update.py knows.
"""

from collections.abc import Sequence


def packed(
    prompts: Sequence[int], groups: Sequence[int], own: Sequence[int], budget: int, least: int = 1
) -> list[list[int]]:
    """Indices of B trajectories in parts of at most ``budget`` tokens, the part with the most first.

    ``prompts`` and ``own`` are (B,) tokens of prompts and completions; a prompt counts once in a part for all
    trajectories of equal number in ``groups`` (B,), which stay together where they can. One that is longer
    than the budget is a part of its own. There are ``least`` parts at the least, where there are so many
    trajectories. The longest come first, so that a batch that will not fit fails at once.
    """
    assert len(prompts) == len(groups) == len(own) and budget > 0 and least <= len(own)
    longest = {g: max(n for n, other in zip(own, groups, strict=True) if other == g) for g in set(groups)}
    order = sorted(range(len(own)), key=lambda i: (-longest[groups[i]], groups[i], -own[i]))
    parts: list[list[int]] = []
    for i in order:
        if parts and _tokens([*parts[-1], i], prompts, groups, own) <= budget:
            parts[-1].append(i)
        else:
            parts.append([i])
    while len(parts) < least:
        largest = max(parts, key=len)
        parts.append([largest.pop() for _ in range(len(largest) // 2)])
    return sorted(parts, key=lambda part: -_tokens(part, prompts, groups, own))


def _tokens(part: Sequence[int], prompts: Sequence[int], groups: Sequence[int], own: Sequence[int]) -> int:
    prompt: dict[int, int] = {}
    for i in part:  # a row that is not trained has no prompt of its own
        prompt[groups[i]] = max(prompts[i], prompt.get(groups[i], 0))
    return sum(prompt.values()) + sum(own[i] for i in part)
