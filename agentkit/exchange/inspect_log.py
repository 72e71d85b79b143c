"""Logs of inspect_ai, read and written as the JSON they are, without inspect_ai itself."""

from __future__ import annotations

import io
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
    UNSEEN,
    ExchangeError,
    Exported,
    Imported,
    Row,
    as_messages,
    checked_messages,
    encode_record,
    number,
    prompt_of,
    read_conversations,
)
from agentkit.records import StopReason, Task, Trajectory
from agentkit.runs import write_json

_MAX_MEMBER = 1 << 30  # bytes of one sample in an .eval archive
_GRADES = {
    "C": 1.0,
    "I": 0.0,
    "P": 0.5,
    "N": 0.0,
    "yes": 1.0,
    "true": 1.0,
    "no": 0.0,
    "false": 0.0,
}  # value_to_float there
_LIMITS = {"time": StopReason.TIME_LIMIT, "working": StopReason.TIME_LIMIT, "token": StopReason.TOKEN_LIMIT}


def write_inspect(
    path: str | Path, trajectories: Sequence[Trajectory], tasks: Iterable[Task], *, name: str = "agentkit"
) -> Exported:
    """Write an inspect_ai log (version 2, .json) of one policy, which ``inspect view`` and ``read_eval_log``
    open.

    A task is a sample, a trajectory an epoch of it; the verdict is the score named "verifier", absent where
    not scored.

    Raises:
        ExchangeError: no trajectory, several policies, or one task's sample twice (as of two training steps).
    """
    known, policies = {task.id: task for task in tasks}, sorted({t.policy for t in trajectories})
    if len(policies) != 1:
        raise ExchangeError(
            f"a log holds the trajectories of one policy, these are of {policies or 'none'}. Write one log "
            "each."
        )
    twice = [key for key, n in Counter((t.task_id, t.sample) for t in trajectories).items() if n > 1]
    if twice:
        raise ExchangeError(
            f"sample {twice[0][1]} of task {twice[0][0]} occurs twice. Write the trajectories of one step a "
            "log."
        )
    samples = [_sample(t, prompt_of(t, known), known[t.task_id].answer) for t in trajectories]
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    ids = sorted({t.task_id for t in trajectories})
    dataset = {"name": name, "samples": len(ids), "sample_ids": ids}
    spec = {
        "eval_id": uuid.uuid4().hex,
        "run_id": uuid.uuid4().hex,
        "created": now,
        "task": name,
        "task_id": uuid.uuid4().hex,
    }
    spec |= {
        "task_version": 0,
        "dataset": dataset,
        "model": policies[0],
        "config": {"epochs": max(t.sample for t in trajectories) + 1},
    }
    results = {
        "total_samples": len(samples),
        "completed_samples": len(samples),
        "scores": _accuracy(trajectories),
    }
    stats = {"started_at": now, "completed_at": now, "model_usage": {}}
    log = {
        "version": 2,
        "status": "success",
        "eval": spec,
        "plan": {"name": "plan", "steps": [], "config": {}},
    }
    write_json(path, log | {"results": results, "stats": stats, "samples": samples})
    return Exported(samples, UNSEEN)


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
        ExchangeError: no readable log, a broken sample, an unknown scorer, or a task that is not among
            ``tasks``.
    """
    header, samples = _inspect_samples(Path(path))
    spec = header.get("eval") if isinstance(header.get("eval"), dict) else {}
    dropped: Counter = Counter()
    rows = [
        _inspect_row(sample, f"{path}, sample {i}", scorer, dropped)
        for i, sample in enumerate(samples, start=1)
    ]
    dropped["the transcript of events (times, usage, model calls)"] = int(
        any(sample.get("events") for sample in samples)
    )
    return read_conversations(rows, policy or str(spec.get("model") or "inspect"), tasks, dropped)


def _sample(t: Trajectory, prompt: str, gold: str) -> dict[str, Any]:
    messages = [_inspect_message(m) for m in as_messages(t, prompt)]
    last = next(
        (m for m in reversed(messages) if m["role"] == "assistant"), {"role": "assistant", "content": ""}
    )
    cut = t.stop_reason in (StopReason.TOKEN_LIMIT, StopReason.TRUNCATED_TURN)
    choice = {
        "message": last,
        "stop_reason": "max_tokens" if cut else "tool_calls" if last.get("tool_calls") else "stop",
    }
    score = {"value": t.success, "answer": t.answer, "explanation": t.why}
    return {
        "id": t.task_id,
        "epoch": t.sample + 1,
        "input": prompt,
        "target": gold,
        "messages": messages,
        "output": {"model": t.policy, "choices": [choice], "completion": last["content"]},
        "scores": {} if t.success is None else {"verifier": score},
        "metadata": {RECORD: encode_record(t)},
    }


def _inspect_message(message: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's form into inspect_ai's: calls are flat, arguments an object, a tool message names its
    function.
    """
    calls = [
        {
            "id": c["id"],
            "type": "function",
            "function": c["function"]["name"],
            "arguments": json.loads(c["function"]["arguments"]),
        }
        for c in message.get("tool_calls") or []
    ]
    kept = {k: v for k, v in message.items() if k in ("role", "content", "tool_call_id") and v is not None}
    kept |= {"tool_calls": calls} if calls else {}
    return kept | ({"function": message["name"]} if message.get("name") else {})


def _accuracy(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    scored = [t.success for t in trajectories if t.success is not None]
    if not scored:
        return []
    metrics = {"accuracy": {"name": "accuracy", "value": sum(scored) / len(scored), "params": {}}}
    return [{"name": "verifier", "scorer": "verifier", "params": {}, "metrics": metrics}]


def _inspect_samples(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    try:
        if path.suffix == ".eval":
            with zipfile.ZipFile(path) as archive:
                names = [n for n in archive.namelist() if n.startswith("samples/") and n.endswith(".json")]
                header, samples = (
                    json.loads(_member(path, archive, "header.json")),
                    [json.loads(_member(path, archive, n)) for n in names],
                )
        else:
            header = json.loads(path.read_bytes())
            samples = header.get("samples") or [] if isinstance(header, dict) else None
    except FileNotFoundError:
        raise ExchangeError(f"{path} does not exist. Name an inspect_ai log, .json or .eval.") from None
    except (OSError, ValueError, KeyError, RecursionError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ExchangeError(
            f"{path} is not a readable inspect_ai log ({type(error).__name__}: {error}). Copy it again."
        ) from None
    if (
        not isinstance(header, dict)
        or not isinstance(samples, list)
        or not all(isinstance(s, dict) for s in samples)
    ):
        raise ExchangeError(
            f"{path} is not an inspect_ai log: it has no list of samples. Name a log of 'inspect eval'."
        )
    if not samples:
        raise ExchangeError(f"{path} holds no sample. Run the evaluation to its end, or name another log.")
    return header, samples


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    """One member of an .eval archive. inspect_ai packs with Zstandard, which zipfile reads from Python 3.14
    on.
    """
    info = archive.getinfo(name)
    if info.file_size > _MAX_MEMBER:
        raise ValueError(f"{name} is {info.file_size:,} bytes; {_MAX_MEMBER:,} is the limit")
    if info.compress_type != 93:
        return archive.read(info)
    import pyarrow as pa

    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(
            30
        )  # the local header ends with the lengths of a name and an extra field, then comes the data
        file.seek(
            int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little"), io.SEEK_CUR
        )
        packed = file.read(info.compress_size)
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        data = stream.read(info.file_size + 1)
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise ValueError(f"{name} is damaged")
    return data


def _inspect_row(sample: Mapping[str, Any], place: str, scorer: str, dropped: Counter) -> Row:
    sample = _attached(sample, _dict(sample.get("attachments")))
    scores = _dict(sample.get("scores"))
    if scorer and scores and scorer not in scores:
        raise ExchangeError(
            f"{place} has no score {scorer!r}. Its scorers are {', '.join(map(str, scores))}."
        )
    score = _dict(scores.get(scorer or next(iter(scores), "")))
    dropped["samples with scores of other scorers"] += len(scores) > 1
    target, epoch, record = (
        sample.get("target"),
        sample.get("epoch"),
        _dict(sample.get("metadata")).get(RECORD),
    )
    return Row(
        place=place,
        messages=checked_messages(sample.get("messages"), f"{place}: messages"),
        record=record if isinstance(record, str) else None,
        task_id=None if sample.get("id") is None else str(sample["id"]),
        sample=epoch - 1 if isinstance(epoch, int) and epoch > 0 else None,
        gold="; ".join(map(str, target)) if isinstance(target, list) else str(target or ""),
        success=_grade(score.get("value"), place),
        why=str(score.get("explanation") or ""),
        stop=_stop(sample),
    )


def _stop(sample: Mapping[str, Any]) -> StopReason | None:
    """Why a sample ended, where the log says that it was not the model's own choice."""
    choices = _dict(sample.get("output")).get("choices")
    last = _dict(choices[0]) if isinstance(choices, list) and choices else {}
    cut = StopReason.TOKEN_LIMIT if last.get("stop_reason") in ("max_tokens", "model_length") else None
    return (
        StopReason.ERROR if sample.get("error") else _LIMITS.get(_dict(sample.get("limit")).get("type"), cut)
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _attached(value: Any, attachments: Mapping[str, Any]) -> Any:
    """The value with references to long texts, which a log holds once, replaced by the texts."""
    if isinstance(value, str) and value.startswith("attachment://"):
        return attachments.get(value.removeprefix("attachment://"), value)
    if isinstance(value, dict):
        return {
            k: v if k in ("attachments", "events", "events_data") else _attached(v, attachments)
            for k, v in value.items()
        }
    return [_attached(item, attachments) for item in value] if isinstance(value, list) else value


def _grade(value: Any, place: str) -> float | None:
    """A score as a share; None where it is not one number, or NaN, which is inspect_ai's "not scored"."""
    if isinstance(value, str):
        value = _GRADES.get(value, _GRADES.get(value.lower(), value))
    if isinstance(value, str) and re.fullmatch(r"\d{1,20}(\.\d{0,20})?", value):
        value = float(value)
    found = number(value)
    if found is not None and not 0.0 <= found <= 1.0:
        raise ExchangeError(
            f"{place}: the score {found:g} is not in [0, 1]. Choose another scorer, or pass tasks to score "
            "it here."
        )
    return found
