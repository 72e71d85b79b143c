"""Tables of conversations: ``messages`` data sets and the Parquet files of TRL's ``log_completions``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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
    utf8,
)
from agentkit.records import Task, Trajectory
from agentkit.runs import read_rows, write_table

_TRL = {"step", "prompt", "completion", "advantage"}  # columns of every table of TRL's
_KNOWN = {"messages", "task_id", "id", "policy", "sample", "success", "reward", RECORD}


# ---- Hugging Face messages
# -------------------------------------------------------------------------------------------
def to_messages(trajectories: Iterable[Trajectory], tasks: Iterable[Task]) -> Exported:
    """Rows for ``datasets.Dataset.from_list``: messages in OpenAI's form, task_id, policy, sample, success,
    reward, record.

    Arguments of tool calls are JSON text, so that their column has one type. Other readers do not see token
    ids, masks and log-probabilities, nor the system prompt, which a trajectory holds as token ids only.
    """
    known = {task.id: task for task in tasks}
    rows = [{"messages": as_messages(t, prompt_of(t, known))} | _fields(t) for t in trajectories]
    return Exported([utf8(row) for row in rows], UNSEEN)


def write_messages(path: str | Path, trajectories: Iterable[Trajectory], tasks: Iterable[Task]) -> Exported:
    """Write ``to_messages`` as Parquet, which ``datasets.load_dataset("parquet", data_files=...)`` reads."""
    exported = to_messages(trajectories, tasks)
    _write_parquet(path, exported.rows)
    return exported


def from_messages(
    source: str | Path | Iterable[Mapping[str, Any]], *, policy: str = "", tasks: Iterable[Task] = ()
) -> Imported:
    """Trajectories from rows with a ``messages`` column.

    Args:
        source: a Dataset or any rows, or a .parquet, .jsonl or .json file.
        policy: name for rows that have no ``policy`` column.
        tasks: score every answer against these, found by task_id or by prompt; without them ``success`` is
            taken as it is.

    Raises:
        ExchangeError: a row is broken, or its task is not among ``tasks``; the message names the row.
    """
    place, dropped = ("the rows" if not isinstance(source, str | Path) else str(source)), Counter()
    rows = [
        _row(
            row,
            f"{place}, row {i}",
            checked_messages(row.get("messages"), f"{place}, row {i}: messages"),
            "success",
        )
        for i, row in enumerate(_rows_of(source), start=1)
    ]
    return read_conversations(rows, policy, tasks, dropped)


# ---- TRL
# -------------------------------------------------------------------------------------------------------------
def write_trl(path: str | Path, trajectories: Iterable[Trajectory], tasks: Iterable[Task]) -> Exported:
    """Write the table of TRL's ``log_completions``: step, prompt, completion, one column a reward component,
    advantage.

    More columns, as TRL's ``log_extra`` allows: task_id, policy, sample, success, reward and the record.

    Raises:
        ExchangeError: a reward component has the name of one of these columns.
    """
    known, rows = {task.id: task for task in tasks}, []
    for t in trajectories:
        if clash := sorted(set(t.components) & (_TRL | _KNOWN)):
            raise ExchangeError(
                f"the reward component {clash[0]!r} has the name of a column of the table. Rename it."
            )
        messages = as_messages(t, prompt_of(t, known))
        row = {
            "step": t.step,
            "prompt": messages[:1],
            "completion": messages[1:],
            **t.components,
            "advantage": t.advantage,
        }
        rows.append(utf8(row | _fields(t)))
    _write_parquet(path, rows)
    return Exported(rows, UNSEEN)


def from_trl(
    path: str | Path, *, policy: str = "", tasks: Iterable[Task] = (), success: str = "success"
) -> Imported:
    """Trajectories from completions_*.parquet of TRL's ``log_completions``: one file, or the folder that
    holds them.

    A completion that is one text, as a ``rollout_func`` leaves it, becomes one turn: TRL drops the control
    tokens that tell tool replies from what the policy wrote.

    Args:
        path: the file or folder.
        policy: name for rows that have no ``policy`` column.
        tasks: score every answer against these; without them success is the column named next.
        success: the reward column that says right (1) or wrong (0).

    Raises:
        ExchangeError: no file, a broken row, or a task that is not among ``tasks``.
    """
    path, dropped, rows = Path(path), Counter(), []
    files = sorted(path.glob("completions_*.parquet")) if path.is_dir() else [path]
    if not files:
        raise ExchangeError(
            f"{path} holds no completions_*.parquet. Name TRL's folder 'completions', or one file in it."
        )
    for file in files:
        for i, row in enumerate(_rows_of(file), start=1):
            place = f"{file}, row {i}"
            messages = _side(row, "prompt", "user", place, dropped) + _side(
                row, "completion", "assistant", place, dropped
            )
            rewards = {
                k: number(v)
                for k, v in row.items()
                if k not in _TRL | _KNOWN and isinstance(v, int | float | None)
            }
            for name in row.keys() - rewards.keys() - _TRL - _KNOWN:
                dropped[f"the column {name!r}"] = 1
            rows.append(_row(row, place, messages, success, rewards))
    return read_conversations(rows, policy, tasks, dropped)


def _side(row: Mapping[str, Any], name: str, role: str, place: str, dropped: Counter) -> list[dict[str, Any]]:
    value = row.get(name)
    if isinstance(value, str):
        dropped["where turns end in completions that are plain text (each is one turn)"] = 1
        return [{"role": role, "content": value}]
    return checked_messages(value, f"{place}: {name}")


# ---- rows
# ------------------------------------------------------------------------------------------------------------
def _fields(t: Trajectory) -> dict[str, Any]:
    names = ("task_id", "policy", "sample", "success", "reward")
    return {name: getattr(t, name) for name in names} | {RECORD: encode_record(t)}


def _row(
    row: Mapping[str, Any], place: str, messages: list, success: str, components: dict | None = None
) -> Row:
    verdict = number(row.get(success))
    if verdict is not None and not 0.0 <= verdict <= 1.0:
        raise ExchangeError(
            f"{place}: {success} is {verdict}, which is not in [0, 1]. Name another column, or pass tasks."
        )
    return Row(
        place=place,
        messages=messages,
        record=row.get(RECORD) if isinstance(row.get(RECORD), str) else None,
        task_id=next((str(row[k]) for k in ("task_id", "id") if row.get(k) is not None), None),
        policy=row.get("policy") if isinstance(row.get("policy"), str) else None,
        sample=_whole(row.get("sample")),
        step=_whole(row.get("step")),
        success=verdict,
        reward=number(row.get("reward")),
        advantage=number(row.get("advantage")),
        components=components or {},
    )


def _whole(value: Any) -> int | None:
    found = number(value)
    return int(found) if found is not None and found >= 0 and found == int(found) else None


def _rows_of(source: str | Path | Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    rows = read_rows(source) if isinstance(source, str | Path) else list(source)
    for i, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise ExchangeError(f"row {i} is {type(row).__name__}, not an object with columns. Remove it.")
    return rows


def _write_parquet(path: str | Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    if not rows:
        raise ExchangeError("there is no trajectory to write. Roll out the policy first.")
    columns = dict.fromkeys(name for row in rows for name in row)
    write_table(path, pa.table({name: [row.get(name) for row in rows] for name in columns}))
