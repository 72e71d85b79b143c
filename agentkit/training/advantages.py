"""Advantages: how much better a trajectory, or a turn of it, was than others of its group.

Pure functions on tensors. ``estimate`` is the one way in; ``of_trajectories`` gathers what an estimator needs
from a batch. Rewards that are NaN (None) are not scored: they enter no mean and no spread, and their
advantage is 0. So is that of a group of one, or of equal rewards. Dimensions: B trajectories, K reward
components, T completion tokens, N turns. Leaves out which groups are trained on (selection).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from statistics import fmean
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentkit.recipe import Recipe
from agentkit.records import Group, Task, Trajectory
from agentkit.rewards import Reward
from agentkit.rewards.calls import subgoals

EPSILON = 1e-4  # added to every standard deviation, as in TRL
DISCOUNT = 0.95  # of a reward, a turn (GiGPO)
NAN = float("nan")
Spans = Sequence[Sequence[tuple[int, int]]]  # of each trajectory's turns, [start, end) in its completion


def estimate(
    rewards: Tensor | Sequence[float | None],
    groups: Tensor | Sequence[Hashable],
    estimator: str | Callable[[Tensor, Tensor], Tensor] = "group",
    **options: Any,
) -> Tensor:
    """Advantages of a batch.

    Args:
        rewards: (B,) floating point; None or NaN is not scored.
        groups: (B,) the group of each trajectory, as integers or any labels, in any order.
        estimator: one of ESTIMATORS, or a lab's own function.
        **options: what that estimator needs besides; see its function.

    Returns:
        (B,) advantages, or (B, T) for "turn" and "step", in the dtype of ``rewards``, for a list float32.
    """
    if not isinstance(rewards, Tensor):
        rewards = torch.tensor([NAN if r is None else float(r) for r in rewards], dtype=torch.float32)
    if not isinstance(groups, Tensor):
        groups = _numbered(groups, rewards.device)
    assert rewards.ndim == 1 and rewards.is_floating_point(), "rewards: (B,) floats"
    assert groups.shape == rewards.shape and groups.dtype == torch.int64, "groups: (B,) int64"
    assert not rewards.isinf().any(), "rewards: infinite"
    if callable(estimator):
        return estimator(rewards, groups)
    if estimator not in ESTIMATORS:
        raise ValueError(f"unknown advantage estimator {estimator!r}: use {', '.join(ESTIMATORS)}")
    return ESTIMATORS[estimator](rewards, groups, **options)


# ---- one number a trajectory
def group(rewards: Tensor, groups: Tensor) -> Tensor:
    """GRPO (arXiv 2402.03300): (r - mean) / (std + 1e-4), sample std over the group. (B,)"""
    return _centered(rewards, groups) / (_group_std(rewards, groups) + EPSILON)


def dr_grpo(rewards: Tensor, groups: Tensor) -> Tensor:
    """Dr.GRPO (arXiv 2503.20783): r - mean, so that hard and easy groups keep their weight. (B,)"""
    return _centered(rewards, groups)


def rloo(rewards: Tensor, groups: Tensor) -> Tensor:
    """RLOO (arXiv 2402.14740): r - mean of the others = G / (G - 1) * (r - mean), G scored ones. (B,)"""
    size = _counts(rewards, groups)
    return _centered(rewards, groups) * size / (size - 1).clamp(min=1)


def batch_std(rewards: Tensor, groups: Tensor) -> Tensor:
    """Lite-PPO (arXiv 2508.08221): r - group mean, over the standard deviation of the batch. (B,)"""
    return _centered(rewards, groups) / (_group_std(rewards, torch.zeros_like(groups)) + EPSILON)


def reinforce_baseline(rewards: Tensor, groups: Tensor) -> Tensor:
    """REINFORCE++ as a baseline (arXiv 2501.03262): r - group mean, whitened over the batch. (B,)"""
    return _whitened(_centered(rewards, groups), rewards)


def gdpo(rewards: Tensor, groups: Tensor, *, components: Tensor, weights: Tensor | None = None) -> Tensor:
    """GDPO (arXiv 2601.05242): each component normalised in its group, weighted and summed, normalised over
    the batch. (B,)

    Args:
        components: (B, K) floating point, NaN where a component is not scored. A trajectory whose reward is
            NaN enters nothing.
        weights: (K,) of the components; 1 each by default.
    """
    assert components.ndim == 2 and len(components) == len(rewards) and components.is_floating_point(), (
        "components: (B, K) floats"
    )
    components = components.to(rewards).masked_fill(rewards.isnan()[:, None], float("nan"))
    weights = components.new_ones(components.shape[1]) if weights is None else weights.to(components)
    assert weights.shape == components.shape[1:], "weights: (K,)"
    normalised = torch.stack([group(column, groups) for column in components.unbind(1)], dim=1)
    return _whitened((normalised * weights).sum(1).to(rewards.dtype), rewards)


# ---- one number a token
def turn(
    rewards: Tensor,
    groups: Tensor,
    *,
    turn_rewards: Sequence[Sequence[float | None]],
    spans: Spans,
    length: int,
) -> Tensor:
    """MT-GRPO (arXiv 2505.11821): a turn's tokens have A_T + A_O, A_O the outcome's. (B, T)

    A_T is the turn's own reward normalised among the turns of the same number in the group. A turn without a
    reward of its own, such as the answer, has A_O alone.

    Args:
        turn_rewards: of each trajectory's turns; None for a turn that has none.
        spans: of each trajectory's turns, from the records.
        length: T, at least as long as the longest completion.
    """
    assert [*map(len, turn_rewards)] == [*map(len, spans)], "one entry a turn"
    unscored = rewards.isnan()[:, None]
    outcome = group(rewards, groups)[:, None]
    known = [rewards.new_tensor([NAN if v is None else v for v in row]) for row in turn_rewards]
    values = pad_sequence(known, batch_first=True, padding_value=NAN).masked_fill(unscored, NAN)  # (B, N)
    columns = [group(column, groups) for column in values.unbind(1)]
    normalised = torch.stack(columns, dim=1) if columns else values
    combined = torch.where(values.isnan(), outcome, normalised + outcome)
    return _spread(combined.masked_fill(unscored, 0.0), spans, length)


def step(
    rewards: Tensor, groups: Tensor, *, states: Sequence[Sequence[Hashable]], spans: Spans, length: int
) -> Tensor:
    """GiGPO (arXiv 2505.10978): A = A_episode + A_step on each turn's tokens. (B, T)

    A_step compares the turns of a group that met the same state, by their discounted returns 0.95^k r of the
    reward k turns later; a turn alone in its state has 0.

    Args:
        states: of each trajectory's turns: anything hashable that is equal where the policy stood before the
            same choice.
        spans: of each trajectory's turns, from the records.
        length: T, at least as long as the longest completion.
    """
    assert [*map(len, states)] == [*map(len, spans)], "one entry a turn"
    met = [(i, n) for i, turns in enumerate(states) for n in range(len(turns))]
    later = [DISCOUNT ** (len(states[i]) - 1 - n) for i, n in met]
    same = _numbered([(int(groups[i]), states[i][n]) for i, n in met], rewards.device)
    among = group(rewards[[i for i, _ in met]] * rewards.new_tensor(later), same)
    advantages = group(rewards, groups)[:, None].repeat(1, max(map(len, states), default=0))  # (B, N)
    for (i, n), gain in zip(met, among, strict=True):
        advantages[i, n] += gain
    return _spread(advantages, spans, length)


ESTIMATORS: Mapping[str, Callable[..., Tensor]] = {
    estimator.__name__: estimator
    for estimator in (group, dr_grpo, rloo, batch_std, reinforce_baseline, gdpo, turn, step)
}


# ---- from trajectories
def of_trajectories(
    tasks: Mapping[str, Task],
    trajectories: Sequence[Trajectory],
    groups: Sequence[Hashable],
    reward: Reward,
    recipe: Recipe,
    own: Mapping[str, Callable] = MappingProxyType({}),
) -> Tensor:
    """Advantages of scored trajectories as the recipe asks: (B,), or (B, T) with T the longest completion.

    ``tasks`` are by id, ``groups`` the group of each; the reward's weights are those of gdpo; ``own`` are the
    lab's estimators.
    """
    options: dict[str, Any] = {}
    if recipe.advantage == "gdpo":
        values = [[t.components[name] for name in reward] for t in trajectories]
        values = [[NAN if v is None else v for v in row] for row in values]
        options["components"] = torch.tensor(values, dtype=torch.float64)
        weights = [weight for _, weight in reward.values()]
        options["weights"] = torch.tensor(weights, dtype=torch.float64)
    elif recipe.advantage in ("turn", "step"):
        options["spans"] = [[turn.span for turn in t.turns] for t in trajectories]
        options["length"] = max(len(t.completion_ids) for t in trajectories)
    if recipe.advantage == "turn":
        options["turn_rewards"] = [turn_rewards(tasks[t.task_id], t) for t in trajectories]
    elif recipe.advantage == "step":
        options["states"] = [turn_states(t) for t in trajectories]
    estimator = own.get(recipe.advantage, recipe.advantage)
    return estimate([t.reward for t in trajectories], groups, estimator, **options)


def teaches_nothing(
    tasks: Mapping[str, Task],
    reward: Reward,
    recipe: Recipe,
    group: Group,
    own: Mapping[str, Callable] = MappingProxyType({}),
) -> bool:
    """Whether the recipe's estimator gives every token of a scored group's trajectories no advantage."""
    one = [0] * len(group.trajectories)
    values = of_trajectories(tasks, group.trajectories, one, reward, recipe, own)
    return not (values.abs() >= EPSILON**2).any()


def recorded(trajectories: Sequence[Trajectory], values: Tensor) -> tuple[Trajectory, ...]:
    """The trajectories with their advantages, (B,) or (B, T), as one number each for the record: the mean
    over sampled tokens.
    """
    told = values.tolist()
    if values.ndim == 2:
        own = [list(compress(row, t.action_mask)) for row, t in zip(told, trajectories, strict=True)]
        told = [fmean(row) if row else 0.0 for row in own]
    return tuple(replace(t, advantage=number) for t, number in zip(trajectories, told, strict=True))


def turn_rewards(task: Task, trajectory: Trajectory) -> list[float | None]:
    """For each turn with calls, the share that ran, plus 1 a subgoal it reached first; None for others."""
    reached = subgoals(task, trajectory) or [0] * len(trajectory.turns)
    return [
        sum(r.ok for r in turn.results) / len(turn.results) + new if turn.results else None
        for turn, new in zip(trajectory.turns, reached, strict=True)
    ]


def turn_states(trajectory: Trajectory) -> list[Hashable]:
    """Where the policy stood before each turn: the set of tool replies it had seen, failed calls left out.

    Two trajectories of a task that looked up the same facts in another order stand in the same state.
    """
    seen: frozenset = frozenset()
    states = []
    for turn in trajectory.turns:
        states.append(seen)
        seen |= {(r.name, r.observation) for r in turn.results if r.ok}
    return states


# ---- arithmetic
def _numbered(labels: Sequence[Hashable], device: torch.device) -> Tensor:
    """Labels as integers, in the order they first come. (B,)"""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return torch.tensor([numbers[label] for label in labels], dtype=torch.int64, device=device)


def _group_sum(values: Tensor, groups: Tensor) -> Tensor:
    labels, index = groups.unique(return_inverse=True)
    return values.new_zeros(len(labels)).index_add(0, index, values)[index]


def _counts(rewards: Tensor, groups: Tensor) -> Tensor:
    return _group_sum((~rewards.isnan()).to(rewards.dtype), groups)


def _centered(rewards: Tensor, groups: Tensor) -> Tensor:
    """r - group mean; exactly 0 where it is not scored, or all of the group's are equal. (B,)"""
    scored = ~rewards.isnan()
    labels, index = groups.unique(return_inverse=True)
    none = rewards.new_full((len(labels),), float("inf"))
    smallest = none.scatter_reduce(0, index[scored], rewards[scored], "amin")[index]
    largest = (-none).scatter_reduce(0, index[scored], rewards[scored], "amax")[index]
    mean = _group_sum(rewards.nan_to_num(0.0), groups) / _counts(rewards, groups).clamp(min=1)
    return torch.where(scored & (smallest < largest), rewards - mean, 0.0)


def _group_std(rewards: Tensor, groups: Tensor) -> Tensor:
    """Sample standard deviation of each trajectory's group; 0 for a group of one. (B,)"""
    squares = _group_sum(_centered(rewards, groups).square(), groups)
    return (squares / (_counts(rewards, groups) - 1).clamp(min=1)).sqrt()


def _whitened(values: Tensor, rewards: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the scored; 0 where not scored, and where all are equal. (B,)"""
    one_group = torch.zeros_like(values, dtype=torch.int64)
    return group(values.masked_fill(rewards.isnan(), NAN), one_group)


def _spread(of_turns: Tensor, spans: Spans, length: int) -> Tensor:
    """Each turn's value on its own tokens, 0 on tool replies and padding: (B, N) to (B, T)."""
    longest = max((end for turns in spans for _, end in turns), default=0)
    assert longest <= length, f"a turn ends at token {longest}, beyond length {length}"
    advantages = of_turns.new_zeros(len(spans), length)
    for i, turns in enumerate(spans):
        for n, (start, end) in enumerate(turns):
            advantages[i, start:end] = of_turns[i, n]
    return advantages
