"""Logs of inspect_ai, read and written as the JSON they are.

Leaves out inspect_ai itself, whose cloud libraries need other versions than requirements.lock holds, and the
transcript of events.
"""

import copy
import json
import re
import time
import uuid
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.exchange.conversation import (
    RECORD,
    Imported,
    Row,
    as_messages,
    asked_of,
    checked_messages,
    encode_record,
    number,
    prompt_of,
    read_conversations,
    turns_of,
    utf8,
)
from agentkit.records import DataError, StopReason, Task, Trajectory
from agentkit.runs import open_file, parse_json, write_json
from agentkit.verifiers.extraction import MAX_CODE, final_answer

_MAX_MEMBER = 1 << 30  # bytes of one sample in an .eval archive
_UNREAD = ("attachments", "events", "events_data")  # parts of a sample
_ZSTANDARD = 93  # the method of an archive's member
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_DAMAGED = (OSError, ValueError, KeyError, RuntimeError, EOFError, zlib.error, zipfile.BadZipFile)
_LIMITS = {"time": StopReason.TIME_LIMIT, "working": StopReason.TIME_LIMIT, "token": StopReason.TOKEN_LIMIT}


# ---- writing
def write_inspect(
    path: str | Path, trajectories: Sequence[Trajectory], tasks: Iterable[Task], *, name: str = "agentkit"
) -> None:
    """Write an inspect_ai log (version 2, .json) of one policy, for ``inspect view`` and ``read_eval_log``.

    A task is a sample, a trajectory an epoch of it; the verdict is the score named "verifier", absent where
    not scored.

    Raises:
        DataError: no trajectory, several policies, or one task's sample twice (as of two training steps).
    """
    by_id, policies = {task.id: task for task in tasks}, sorted({t.policy for t in trajectories})
    if len(policies) != 1:
        raise DataError(
            f"a log holds one policy's trajectories, these are of {policies or 'none'}. Write one each."
        )
    for (task_id, sample), count in Counter((t.task_id, t.sample) for t in trajectories).items():
        if count > 1:
            raise DataError(
                f"sample {sample} of task {task_id} occurs twice. Write the trajectories of one step a log."
            )
    samples = [utf8(_sample(t, prompt_of(t, by_id), by_id[t.task_id].answer)) for t in trajectories]
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    ids = sorted({t.task_id for t in trajectories})
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
            "model": policies[0],
            "config": {"epochs": max(t.sample for t in trajectories) + 1},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": _accuracy(trajectories),
        },
        "stats": {"started_at": now, "completed_at": now, "model_usage": {}},
        "samples": samples,
    }
    write_json(path, log)


def _sample(trajectory: Trajectory, prompt: str, gold: str) -> dict[str, Any]:
    messages = as_messages(trajectory, prompt)
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
        "input": prompt,
        "target": gold,
        "messages": [_message(message) for message in messages],
        "output": {"model": trajectory.policy, "choices": [choice], "completion": last["content"]},
        "scores": {} if trajectory.success is None else {"verifier": score},
        "metadata": {RECORD: encode_record(trajectory)},
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


def _accuracy(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    scored = [t.success for t in trajectories if t.success is not None]
    if not scored:
        return []
    metrics = {"accuracy": {"name": "accuracy", "value": sum(scored) / len(scored), "params": {}}}
    return [{"name": "verifier", "scorer": "verifier", "params": {}, "metrics": metrics}]


# ---- reading
def from_inspect(
    path: str | Path, *, policy: str = "", tasks: Iterable[Task] = (), scorer: str = ""
) -> Imported:
    """Trajectories from an inspect_ai log, .json or .eval.

    Args:
        path: the log.
        policy: their name; by default the log's model.
        tasks: score every answer against these; without them success is the scorer's value.
        scorer: whose score counts; by default the first one. C is 1, I and N are 0, P is 0.5, as inspect_ai
            has it.

    Raises:
        DataError: no readable log, a broken sample, an unknown scorer, or a task that is not among ``tasks``.
    """
    header, samples = _read_log(Path(path))
    dropped, rows, faults = Counter(), [], []
    for i, sample in enumerate(samples, start=1):
        where = f"{path}, sample {i}"
        score = _score(sample, where, scorer, dropped)
        try:
            row = _row(sample, where, score)
            if any(message["role"] == "assistant" for message in row.messages):
                turns_of(row.messages, where, Counter())
                rows.append(row)
            else:
                dropped["samples that ended before the model said anything"] += 1
        except (DataError, RecursionError) as error:
            faults.append(DataError(f"{where} cannot be read: {error}"))
            dropped[str(faults[-1])] = 1
    if faults and not rows:
        raise faults[0]
    events = any(_dict(sample).get("events") for sample in samples)
    dropped["the transcript of events (times, usage, model calls)"] = int(events)
    model = _dict(header.get("eval")).get("model")
    return read_conversations(rows, policy or str(model or "inspect"), tasks, dropped)


def _read_log(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Header and samples of a log. Raises DataError where it is damaged, or something else."""
    try:
        with open_file(path) as file:
            if path.suffix == ".eval":
                with zipfile.ZipFile(file) as archive:
                    names = [name for name in archive.namelist() if re.fullmatch(r"samples/.*\.json", name)]
                    header = _member(archive, "header.json")
                    samples = [_member_or_none(archive, name) for name in names]
            else:
                header = parse_json(file.read())
                samples = _dict(header).get("samples")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Name an inspect_ai log, .json or .eval.") from None
    except _DAMAGED as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is not a readable inspect_ai log ({why}). Copy it again.") from None
    if not isinstance(samples, list) or not any(isinstance(sample, dict) for sample in samples):
        raise DataError(
            f"{path} holds no samples of inspect_ai. Name a log of 'inspect eval' that ran to its end."
        )
    return _dict(header), samples


def _member_or_none(archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return _member(archive, name)
    except _DAMAGED:
        return None


def _member(archive: zipfile.ZipFile, name: str) -> Any:
    """One member of an .eval archive; inspect_ai packs with Zstandard, new to zipfile in Python 3.14."""
    info = archive.getinfo(name)
    if info.file_size > _MAX_MEMBER:
        raise ValueError(f"{name} is {info.file_size:,} bytes; {_MAX_MEMBER:,} is the limit")
    if info.compress_type != _ZSTANDARD:
        return parse_json(archive.read(info))
    import pyarrow as pa

    packed = copy.copy(info)
    packed.compress_type, packed.file_size = zipfile.ZIP_STORED, info.compress_size
    del packed.CRC  # it is that of the text
    data = pa.decompress(archive.read(packed), info.file_size, "zstd", asbytes=True)
    if zlib.crc32(data) != info.CRC:
        raise ValueError(f"{name} is damaged")
    return parse_json(data)


def _score(sample: Any, where: str, scorer: str, dropped: Counter) -> dict[str, Any]:
    """The score that counts, and its grade. Raises DataError where the scorer is the wrong one."""
    scores = _dict(_dict(sample).get("scores"))
    if scorer and scores and scorer not in scores:
        raise DataError(f"{where} has no score {scorer!r}. Its scorers are {', '.join(map(str, scores))}.")
    score = _dict(scores.get(scorer or next(iter(scores), "")))
    dropped["samples with scores of other scorers"] += len(scores) > 1
    return {"success": _grade(score.get("value")), "why": str(score.get("explanation") or "")}


def _row(sample: Any, where: str, score: dict[str, Any]) -> Row:
    if not isinstance(sample, dict):
        raise DataError("it is damaged")
    sample = _attached(sample, _dict(sample.get("attachments")))
    target, epoch = sample.get("target"), sample.get("epoch")
    record = _dict(sample.get("metadata")).get(RECORD)
    messages = checked_messages(sample.get("messages"), "messages")
    identity = {
        "task_id": None if sample.get("id") in (None, "") else str(sample["id"]),
        "sample": epoch - 1 if isinstance(epoch, int) and epoch > 0 else None,
        "stop_reason": _stop(sample),
    }
    return Row(
        where,
        messages,
        record if isinstance(record, str) else None,
        gold="; ".join(map(str, target)) if isinstance(target, list) else str(target or ""),
        fields=identity | _submitted(sample, messages) | score,
    )


def _submitted(sample: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer that an agent handed to a tool (basic_agent's ``submit``), and the completion ends in."""
    said = _dict(sample.get("output")).get("completion")
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), {})
    if sample.get("error") or sample.get("limit") or not isinstance(said, str):
        return {}
    asked = [asked_of(call, "", Counter())[1] for call in last.get("tool_calls") or []]
    values = (value for arguments in asked for value in arguments.values())
    given = [str(value) for value in values if isinstance(value, str | int | float)]
    answer = next((value for value in given if value.strip() and said.strip().endswith(value.strip())), None)
    if answer is None:
        return {}
    return {"answer": final_answer(answer, MAX_CODE), "stop_reason": StopReason.ANSWER}


def _stop(sample: Mapping[str, Any]) -> StopReason | None:
    """Why a sample ended, where the log says that it was not the model's own choice."""
    if sample.get("error"):
        return StopReason.ERROR
    limit = _dict(sample.get("limit")).get("type")
    if isinstance(limit, str) and limit in _LIMITS:
        return _LIMITS[limit]
    choices = _dict(sample.get("output")).get("choices")
    first = _dict(choices[0]) if isinstance(choices, list) and choices else {}
    return StopReason.TOKEN_LIMIT if first.get("stop_reason") in ("max_tokens", "model_length") else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _attached(value: Any, attachments: Mapping[str, Any]) -> Any:
    """The value with references to long texts, which a log holds once, replaced by the texts."""
    if isinstance(value, str) and value.startswith("attachment://"):
        return attachments.get(value.removeprefix("attachment://"), value)
    if isinstance(value, list):
        return [_attached(item, attachments) for item in value]
    if isinstance(value, dict):
        return {key: item if key in _UNREAD else _attached(item, attachments) for key, item in value.items()}
    return value


def _grade(value: Any) -> float | None:
    """A score as a share; None where it is not one number, or NaN, which is inspect_ai's "not scored"."""
    if isinstance(value, str):
        value = _GRADES.get(value, _GRADES.get(value.lower(), value))
    if isinstance(value, str) and re.fullmatch(r"\d{1,20}(\.\d{0,20})?", value):
        value = float(value)
    return number(value)
