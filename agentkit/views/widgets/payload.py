"""Records as the JSON that the views show. Long texts are cut with a visible mark; numbers are finite or
None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from agentkit.evaluation import SOLVED
from agentkit.records import Task, Trajectory, Turn

TEXT_LIMIT = 4000  # characters of one observation, call or turn that are kept


def task_fields(task: Task) -> dict[str, str]:
    """What a view says about a task."""
    fields = {"id": task.id, "family": task.family, "difficulty": task.difficulty}
    return fields | {"prompt": clip(task.prompt), "answer": clip(task.answer)}


def trajectory_fields(trajectory: Trajectory) -> dict[str, Any]:
    """What a view says about a trajectory, turn by turn."""
    last = len(trajectory.turns) - 1
    return {
        "sample": trajectory.sample,
        "turns": [
            _turn(turn, trajectory.answer if i == last else None) for i, turn in enumerate(trajectory.turns)
        ],
        "stop": trajectory.stop_reason.value,
        "answer": None if trajectory.answer is None else clip(trajectory.answer),
        "right": None if trajectory.success is None else trajectory.success > SOLVED,
        "why": clip(trajectory.why),
        "reward": number(trajectory.reward),
        "advantage": number(trajectory.advantage),
        "components": [[name, number(value)] for name, value in trajectory.components.items()],
        "tokens": len(trajectory.completion_ids),
    }


def _turn(turn: Turn, answer: str | None) -> dict[str, Any]:
    """A turn and its actions: the calls it made, else its answer, else its text. Two turns differ where these
    do.
    """
    calls = [clip(_call(result.name, result.arguments)) for result in turn.results]
    said = turn.text.strip() if answer is None else f"answer: {answer}"
    results = [[clip(result.observation), result.ok] for result in turn.results]
    return {"text": clip(turn.text), "actions": calls or [clip(said)], "results": results}


def _call(name: str, arguments: dict[str, Any]) -> str:
    given = json.dumps(arguments, ensure_ascii=False, sort_keys=True, default=str) if arguments else ""
    return f"{name or 'malformed call'} {given}".rstrip()


def alarms(trajectories: Sequence[Trajectory]) -> list[str]:
    """What deserves a look in these trajectories, whatever their reward."""
    results = [result for t in trajectories for turn in t.turns for result in turn.results]
    found = {
        "not scored": any(t.success is None for t in trajectories),
        "no answer": any(t.answer is None for t in trajectories),
        "failed call": any(not result.ok for result in results),
    }
    return [name for name, holds in found.items() if holds]


def clip(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, or its beginning and how much was left out."""
    rest = len(text) - limit
    return text if rest <= 0 else f"{text[:limit]} … ({rest} more characters)"


def number(value: float | None, places: int = 4) -> float | None:
    """The value, rounded; None where it is missing, infinite or NaN."""
    return None if value is None or not math.isfinite(value) else round(float(value), places)
