"""Records as the JSON that the views show: long texts are cut with a visible mark, numbers are finite or None.

Leaves out drawing them (the JavaScript beside it).
"""

from __future__ import annotations

import json
import math
from typing import Any

from agentkit.evaluation import SOLVED
from agentkit.records import Task, ToolResult, Trajectory, Turn

TEXT_LIMIT = 4000  # characters of one observation, call or turn that are kept


def task_fields(task: Task) -> dict[str, str]:
    """What a view says about a task."""
    fields = {"id": task.id, "family": task.family, "difficulty": task.difficulty}
    return fields | {"prompt": clip(task.prompt), "answer": clip(task.answer)}


def trajectory_fields(trajectory: Trajectory) -> dict[str, Any]:
    """What a view says about a trajectory, turn by turn."""
    turns = [_turn(turn, None) for turn in trajectory.turns[:-1]]
    turns += [_turn(turn, trajectory.answer) for turn in trajectory.turns[-1:]]
    return {
        "sample": trajectory.sample,
        "turns": turns,
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
    """A turn and its actions, by which turns differ: the calls it made, else its answer, else its text."""
    calls = [clip(_call(result)) for result in turn.results]
    words = turn.text.strip() if answer is None else f"answer: {answer}"
    results = [[clip(result.observation), result.ok] for result in turn.results]
    return {"text": clip(turn.text), "actions": calls or [clip(words)], "results": results}


def _call(result: ToolResult) -> str:
    arguments = json.dumps(result.arguments, ensure_ascii=False, sort_keys=True, default=str)
    return f"{result.name or 'malformed call'} {arguments if result.arguments else ''}".rstrip()


def clip(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, or its beginning and how much was left out."""
    rest = len(text) - limit
    return text if rest <= 0 else f"{text[:limit]} … ({rest} more characters)"


def number(value: float | None, places: int = 4) -> float | None:
    """The value, rounded; None where it is missing, infinite or NaN."""
    return None if value is None or not math.isfinite(value) else round(float(value), places)
