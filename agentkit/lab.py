"""Measuring a policy: roll it out on tasks, sampled and greedily, score, and store the trajectories in the
run.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentkit.records import Task, Trajectory
from agentkit.rewards import from_recipe, score_all
from agentkit.rollouts import rollout, rollout_options
from agentkit.rollouts.policy import Policy
from agentkit.runs import Run, write_trajectories
from agentkit.runs.recipe import Recipe


def measure(
    run: Run, policy: Policy, tasks: Sequence[Task], recipe: Recipe
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Roll a policy out on tasks, sampled (``test_samples`` each) and greedily, and store both in the run.

    Every policy meets the same tasks with the same random numbers, so that comparisons are paired.

    Returns:
        Sampled and greedy trajectories; they are written to eval/<name>.parquet and
        eval/<name>_greedy.parquet.
    """
    options = rollout_options(recipe) | {"seed": recipe.seed}
    found = []
    for suffix, extra in (("", {"group_size": recipe.test_samples}), ("_greedy", {"temperature": 0.0})):
        label = f"{policy.name}, {'greedy' if suffix else 'sampled'}"
        sampled = rollout(tasks, policy, progress=label, **(options | extra))
        found.append(score_all(tasks, sampled, from_recipe(recipe)))
        write_trajectories(run.file("eval", f"{policy.name}{suffix}.parquet"), found[-1])
    return found[0], found[1]
