"""Rewards of an image agent that grounds its prompts in facts (the model card Qwen3.5-27B Agent GRPO v2).

Its reward table was never published; it names ToolRLA's product (rewards.calls). What is measured here in the
place of equal arguments are the facts in the prompt, since no two prompts are alike. Leaves out the verdict
(verifiers.pictures).
"""

from agentkit.records import Task, Trajectory
from agentkit.rewards.calls import plan_efficiency
from agentkit.trajectories import results_of
from agentkit.verifiers.pictures import facts_right


def prompt_accuracy(task: Task, trajectory: Trajectory) -> float | None:
    """S_acc: the share of facts that the last prompt holds and tools showed, the answer counted as one more.

    None for a task that asks for no picture's facts.
    """
    if "holds" not in task.verifier:
        return None
    options = {name: value for name, value in task.verifier.items() if name != "kind"}
    right = facts_right(
        trajectory.answer, task.answer, results_of(trajectory), **{"question": task.prompt, **options}
    )
    return sum(right) / len(right)


def leanness(task: Task, trajectory: Trajectory) -> float | None:
    """S_eff: ToolRLA's efficiency, at most 1: what is left out is no virtue."""
    efficiency = plan_efficiency(task, trajectory)
    return None if efficiency is None else min(1.0, efficiency)
