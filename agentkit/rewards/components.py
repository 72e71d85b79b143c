"""Components that read a trajectory's verdict, lengths and calls, each with the source of its formula.

Leaves out those that compare calls with the task's plan (calls.py).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from agentkit.records import Task, Trajectory
from agentkit.rewards.calls import subgoals
from agentkit.rewards.scoring import Component, Reward
from agentkit.tools.runtime import example
from agentkit.trajectories import results_of, verifier_kind
from agentkit.verifiers.judge import judge
from agentkit.verifiers.programs import is_code

TURN_PENALTY = 0.02
TOOL_BONUS, MAX_ROUNDS, WRONG_CEILING = 0.1, 4, -0.6  # of the tool-call reward


def correctness(task: Task, trajectory: Trajectory) -> float | None:
    """The verifier's value: 1 right, 0 wrong, None not scored; a program that fails any test is wrong."""
    if trajectory.success is not None and verifier_kind(task) == "code":
        return float(trajectory.success == 1.0)  # a verifier with ``partial`` gives the share of tests
    return trajectory.success


def format_score(task: Task, trajectory: Trajectory) -> float | None:
    """Share of attempted calls that were valid and ran; 0 where there was none.

    Stricter than "RLVR for Agents", which counts calls that parse: here one that parses and fails is none, so
    that a call of a tool that does not exist, or with arguments it refuses, earns nothing.
    """
    results = results_of(trajectory)
    return sum(result.ok for result in results) / max(len(results), 1)


def efficiency(task: Task, trajectory: Trajectory) -> float | None:
    """-0.02 a turn when correct, else 0: a fast wrong answer earns nothing ("RLVR for Agents")."""
    if trajectory.success is None:
        return None
    return -TURN_PENALTY * len(trajectory.turns) if trajectory.success == 1.0 else 0.0


def process(task: Task, trajectory: Trajectory) -> float | None:
    """Share of the plan's steps, the subgoals, whose value some observation showed; None without a plan."""
    reached = subgoals(task, trajectory)
    return None if reached is None else sum(reached) / max(len(task.meta["plan"]), 1)


def judged(**options: Any) -> Component:
    """A model's verdict on the answer, 1 or 0; None where it gave none. Options are ``verifiers.judge``'s."""

    def verdict(task: Task, trajectory: Trajectory) -> float | None:
        if trajectory.answer is None:
            return 0.0
        # raises where it is asked and does not answer: not the same as a judge that does not apply
        return judge(trajectory.answer, task.answer, **{"question": task.prompt} | options).value

    verdict.waits = True  # for a model, and reads nothing but the task and the answer
    return verdict


def of_environments(environments: Mapping[str, Callable[[], object]]) -> Reward:
    """What environments with ``get_reward`` give, with weight 1 under their class names, as in TRL.

    The rollout has asked them: here it is read off the trajectory. It does not apply to tasks of a family
    with another environment. ``environments`` make one each, by family.
    """
    kinds: dict[str, set[str]] = defaultdict(set)
    for family, environment in environments.items():
        if hasattr(kind := type(example(environment)), "get_reward"):
            kinds[kind.__name__].add(family)
    return {name: (_own_reward(name, families), 1.0) for name, families in kinds.items()}


def _own_reward(name: str, families: Collection[str]) -> Component:
    def given(task: Task, trajectory: Trajectory) -> float | None:
        if task.family not in families:
            return None
        is_none = name in trajectory.components and trajectory.components[name] is None
        # one that has a reward was scored without it, as get_reward said None
        if is_none and trajectory.reward is None:
            raise ValueError(trajectory.why or f"{name}.get_reward gave nothing")
        return trajectory.components.get(name)

    given.is_read = True  # off the trajectory: no other trajectory would tell what it gives
    return given


# ---- tool-call reward
def outcome(task: Task, trajectory: Trajectory) -> float | None:
    """The score of Open-AgentRL: 1 right, -1 wrong; for code the share of tests passed, -1 without code."""
    if trajectory.success is None or trajectory.success > 0:
        return trajectory.success
    asks_for_code = verifier_kind(task) == "code" and trajectory.answer
    return 0.0 if asks_for_code and is_code(trajectory.answer, task.verifier.get("entry", "")) else -1.0


def tool_call_bonus(task: Task, trajectory: Trajectory) -> float | None:
    """Eq. 8 of arXiv 2510.11701: correct 1 + 0.1 n, wrong -1 + 0.1 n, for n tool calls, the bonus clipped.

    The clip is not published; it is 4 calls here, as in the released code.
    """
    if trajectory.success is None:
        return None
    bonus = TOOL_BONUS * min(len(results_of(trajectory)), MAX_ROUNDS)
    return (1.0 if trajectory.success == 1.0 else -1.0) + bonus


def tool_call_reward(task: Task, trajectory: Trajectory) -> float | None:
    """The tool-call reward of Open-AgentRL's released code, after the outcome score.

    A score that is not negative is kept; a negative one becomes min(-0.6, score + 0.1 * rounds), at most 4
    rounds counted, where a round is a turn that called a tool.
    """
    score = outcome(task, trajectory)
    if score is None or score >= 0:
        return score
    rounds = sum(bool(turn.results) for turn in trajectory.turns)
    return min(WRONG_CEILING, score + TOOL_BONUS * min(rounds, MAX_ROUNDS))


# ---- length
def dapo_overlong(max_tokens: int = 20_480, buffer: int = 4_096) -> Component:
    """Soft overlong punishment of DAPO (arXiv 2503.14476, eq. 13), in [-1, 0].

    0 up to max_tokens - buffer completion tokens, falling linearly to -1 at max_tokens, and -1 beyond.
    """
    return _overlong(max_tokens, buffer, -1.0)


def tcr_overlong(max_tokens: int = 10_480, buffer: int = 3_000) -> Component:
    """Overlong penalty as coded in Open-AgentRL: DAPO's without a floor; defaults of GRPO-TCR-Qwen3-4B."""
    return _overlong(max_tokens, buffer, -math.inf)


def _overlong(max_tokens: int, buffer: int, floor: float) -> Component:
    if not 0 < buffer <= max_tokens:
        raise ValueError(f"an overlong buffer of {buffer} tokens: give 1 to max_tokens = {max_tokens}")

    def overlong(task: Task, trajectory: Trajectory) -> float:
        room = max_tokens - buffer - len(trajectory.completion_ids)
        return max(floor, min(0.0, room / buffer))

    return overlong
