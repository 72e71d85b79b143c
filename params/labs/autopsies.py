"""Three published trainings that taught nothing: their rewards on the small agent's tasks, broken and mended.

Each team saw the symptom and drew the wrong conclusion; preflight names the cause from about a hundred
rollouts. Leaves out their models and tasks, which were never released.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from agentkit.evaluation.evidence import stands
from agentkit.records import Task, Trajectory
from agentkit.rewards import Reward, correctness, tool_call_reward
from agentkit.rewards.components import TOOL_BONUS, WRONG_CEILING, outcome
from agentkit.trajectories import results_of

INVENTED = re.compile(r"\w*(entity)?\s*\w+")  # as published: not anchored, so that any text holds it


@dataclass(frozen=True)
class Autopsy:
    """One training: what was concluded, what was wrong, and the reward before and after."""

    concluded: str
    cause: str
    broken: Callable[[], Reward]
    mended: Callable[[], Reward]


# ---- 003, OR-debug: +20 for an action, -1 a step, +10 for an outcome, -20 for something invented
def acts(task: Task, trajectory: Trajectory) -> float:
    """A call that worked."""
    return 20.0 if any(result.ok for result in results_of(trajectory)) else 0.0


def step(task: Task, trajectory: Trajectory) -> float:
    """The price of an action."""
    return -1.0


def answers(task: Task, trajectory: Trajectory) -> float:
    """Any answer."""
    return 0.0 if trajectory.answer is None else 10.0


def matched(task: Task, trajectory: Trajectory) -> float:
    """The faulty penalty: INVENTED is looked for in every turn's text."""
    return -20.0 if any(INVENTED.search(turn.text) for turn in trajectory.turns) else 0.0


def ungrounded(task: Task, trajectory: Trajectory) -> float:
    """The penalty as it was meant: the answer stands in nothing that a tool returned."""
    answer, results = trajectory.answer or "", results_of(trajectory)
    return 0.0 if any(stands(answer, result.observation) for result in results if result.ok) else -20.0


def or_debug(faithfulness: Callable[[Task, Trajectory], float]) -> Reward:
    """The reward of seed 003 with one of its two penalties, without the price of an action, which all pay."""
    return {"acts": (acts, 1.0), "answers": (answers, 1.0), "faithfulness": (faithfulness, 1.0)}


# ---- 000, the image agent: a binary reward that nearly every rollout gets, and noise against zero variance
def approved(task: Task, trajectory: Trajectory) -> float:
    """Whether there is an answer at all."""
    return float(trajectory.answer is not None)


def noise(std: float) -> Callable[[Task, Trajectory], float]:
    """Normal noise, another value each time that a trajectory is scored.

    Equal rewards divided by a group's spread are no signal; noise divided by it is a full-size advantage for
    nothing. The published mean reward stayed flat for 200 steps.
    """
    rng = Random(0)
    return lambda task, trajectory: rng.gauss(0.0, std)


def noisy() -> Reward:
    """The binary reward with noise of standard deviation 0.05, as the team mended it."""
    return {"approved": (approved, 1.0), "noise": (noise(0.05), 1.0)}


# ---- 001, GRPO-TCR: a bonus for turns that reads a field nobody writes
def unwritten(task: Task, trajectory: Trajectory) -> float | None:
    """The faulty reward: a wrong answer gets -1 and 0.1 for each round, counted from ``num_turns``.

    That field counts messages, of which question and answer are no round. Nobody writes it, so that 0 is read
    as -1 rounds: every wrong answer scores min(-0.6, -1 - 0.1) = -1.1, whatever was called.
    """
    score = outcome(task, trajectory)
    if score is None or score >= 0:
        return score
    rounds = (task.meta.get("num_turns", 0) - 2) / 2
    return min(WRONG_CEILING, score + TOOL_BONUS * rounds)


AUTOPSIES = {
    "003": Autopsy(
        "zero variance: the SFT model is already optimal",
        "an unanchored pattern gives every text the -20 penalty: 20 - 1 + 10 - 20 = 9.0 for all",
        lambda: or_debug(matched) | {"step": (step, 1.0)},
        lambda: or_debug(ungrounded),
    ),
    "000": Autopsy(
        "random noise in the reward fixed zero variance",
        "noise divided by a group's spread becomes full-size advantages",
        noisy,
        lambda: {"correctness": (correctness, 1.0)},
    ),
    "001": Autopsy(
        "accuracy 0.0 and score -1.1 on three benchmarks",
        "the tool-call reward reads a number of turns that is never written: -1 - 0.1 for every wrong answer",
        lambda: {"tool_call": (unwritten, 1.0)},
        lambda: {"tool_call": (tool_call_reward, 1.0)},
    ),
}
