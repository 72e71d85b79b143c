"""Trajectories written for others: a ``messages`` data set, and a log that inspect_ai reads.

Leaves out token ids, masks, log-probabilities, times and the system prompt, which a run's own files hold, and
inspect_ai itself, whose cloud libraries need other versions than requirements.lock holds.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.records import DataError, StopReason, Task, Trajectory
from agentkit.runs import write_json, write_jsonl, write_table
from agentkit.training.conversation import as_messages, utf8

_FIELDS = ("task_id", "policy", "sample", "success", "reward")  # of a trajectory, beside its messages


def write_messages(path: str | Path, trajectories: Iterable[Trajectory], tasks: Iterable[Task]) -> None:
    """Write rows with ``messages`` in OpenAI's form, as .parquet, which ``datasets.load_dataset("parquet",
    data_files=...)`` reads, or as .jsonl.

    Arguments of tool calls are JSON text, so that their column has one type; thoughts stand in
    ``reasoning_content``. Raises DataError for a trajectory whose task is not among ``tasks``.
    """
    by_id = {task.id: task for task in tasks}
    rows = []
    for t in trajectories:
        fields = {name: getattr(t, name) for name in _FIELDS}
        rows.append(utf8({"messages": as_messages(t, _task_of(t, by_id).prompt)} | fields))
    if Path(path).suffix == ".parquet":
        import pyarrow as pa

        write_table(path, pa.Table.from_pylist(rows))
    elif Path(path).suffix == ".jsonl":
        write_jsonl(path, rows)
    else:
        raise DataError(f"{path} is not written. Let its name end in .parquet or .jsonl.")


def write_inspect(
    path: str | Path, trajectories: Sequence[Trajectory], tasks: Iterable[Task], *, name: str = "agentkit"
) -> None:
    """Write an inspect_ai log (version 2, .json) of one policy, for ``inspect view`` and ``read_eval_log``.

    A task is a sample, a trajectory an epoch of it; the verdict is the score named "verifier", absent where
    not scored.

    Raises:
        DataError: no trajectory, several policies, or one task's sample twice (as of two training steps).
    """
    by_id, policies = {task.id: task for task in tasks}, {t.policy for t in trajectories}
    if len(policies) != 1 or len({(t.task_id, t.sample) for t in trajectories}) < len(trajectories):
        raise DataError("a log holds the trajectories of one policy at one step. Write one for each.")
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    ids = sorted({t.task_id for t in trajectories})
    scored = [t.success for t in trajectories if t.success is not None]
    accuracy = {"name": "accuracy", "value": sum(scored) / max(1, len(scored)), "params": {}}
    score = {"name": "verifier", "scorer": "verifier", "params": {}, "metrics": {"accuracy": accuracy}}
    log = {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": uuid.uuid4().hex,
            "run_id": uuid.uuid4().hex,
            "created": now,
            "task": name,
            "task_id": uuid.uuid4().hex,
            "task_version": 0,
            "dataset": {"name": name, "samples": len(ids), "sample_ids": ids},
            "model": policies.pop(),
            "config": {"epochs": max(t.sample for t in trajectories) + 1},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(trajectories),
            "completed_samples": len(trajectories),
            "scores": [score] if scored else [],
        },
        "stats": {"started_at": now, "completed_at": now, "model_usage": {}},
        "samples": [utf8(_sample(t, _task_of(t, by_id))) for t in trajectories],
    }
    write_json(path, log)


def _sample(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    messages = as_messages(trajectory, task.prompt)
    answers = [message for message in messages if message["role"] == "assistant"]
    last = answers[-1] if answers else {"role": "assistant", "content": ""}
    stop = "tool_calls" if last.get("tool_calls") else "stop"
    if trajectory.stop_reason in (StopReason.TOKEN_LIMIT, StopReason.TRUNCATED_TURN):
        stop = "max_tokens"
    score = {"value": trajectory.success, "answer": trajectory.answer, "explanation": trajectory.why}
    choice = {"message": _message(last), "stop_reason": stop}
    return {
        "id": trajectory.task_id,
        "epoch": trajectory.sample + 1,
        "input": task.prompt,
        "target": task.answer,
        "messages": [_message(message) for message in messages],
        "output": {"model": trajectory.policy, "choices": [choice], "completion": last["content"]},
        "scores": {} if trajectory.success is None else {"verifier": score},
    }


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's form into inspect_ai's: flat calls with objects, thoughts as parts, tool messages with
    function names.
    """
    theirs = {
        key: message[key] for key in ("role", "content", "tool_call_id") if message.get(key) is not None
    }
    if thought := message.get("reasoning_content"):
        said = {"type": "text", "text": message["content"]}
        theirs["content"] = [{"type": "reasoning", "reasoning": thought}, said]
    if message.get("name"):
        theirs["function"] = message["name"]
    if message.get("tool_calls"):
        theirs["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": call["function"]["name"],
                "arguments": json.loads(call["function"]["arguments"]),
            }
            for call in message["tool_calls"]
        ]
    return theirs


def _task_of(trajectory: Trajectory, tasks: Mapping[str, Task]) -> Task:
    if trajectory.task_id not in tasks:
        raise DataError(
            f"task {trajectory.task_id[:80]!r} of a trajectory is not among the tasks. Pass its suite."
        )
    return tasks[trajectory.task_id]
