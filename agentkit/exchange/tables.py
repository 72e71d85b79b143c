"""Tables of conversations: ``messages`` data sets and the Parquet files of TRL's ``log_completions``.

Leaves out columns that are neither messages, scores nor ours; those dropped are reported.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentkit.exchange.conversation import (
    RECORD,
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
from agentkit.records import DataError, Task, Trajectory
from agentkit.runs import read_rows, write_jsonl, write_table

_FIELDS = ("task_id", "policy", "sample", "success", "reward")  # of a trajectory, in both kinds of table
_TRL = {"step", "prompt", "completion", "advantage"}  # columns of every table of TRL's
_KNOWN = {"messages", "id", *_FIELDS, RECORD}


# ---- Hugging Face messages
def to_messages(trajectories: Iterable[Trajectory], tasks: Iterable[Task]) -> list[dict[str, Any]]:
    """Rows for ``datasets.Dataset.from_list``: messages in OpenAI's form, fields and record.

    Arguments of tool calls are JSON text, so that their column has one type; thoughts stand in
    ``reasoning_content``. Other readers do not see token ids, masks, log-probabilities and times, nor the
    system prompt, which a trajectory holds as tokens.
    """
    by_id = {task.id: task for task in tasks}
    rows = [{"messages": as_messages(t, prompt_of(t, by_id))} | _columns(t) for t in trajectories]
    return [utf8(row) for row in rows]


def write_messages(path: str | Path, trajectories: Iterable[Trajectory], tasks: Iterable[Task]) -> None:
    """Write ``to_messages`` as .parquet, which ``datasets.load_dataset("parquet", data_files=...)`` reads, or
    as .jsonl. Raises DataError for a name that ends otherwise.
    """
    _write_rows(path, to_messages(trajectories, tasks))


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
        DataError: a row is broken, or its task is not among ``tasks``; the message names the row.
    """
    name = str(source) if isinstance(source, str | Path) else "the rows"
    rows = []
    for i, row in enumerate(_rows_of(source), start=1):
        where = f"{name}, row {i}"
        messages = checked_messages(row.get("messages"), f"{where}: messages")
        rows.append(_row(row, where, messages, "success"))
    return read_conversations(rows, policy, tasks, Counter())


# ---- TRL
def write_trl(path: str | Path, trajectories: Iterable[Trajectory], tasks: Iterable[Task]) -> None:
    """Write the table of TRL's ``log_completions``: step, prompt, completion, components, advantage.

    More columns, as TRL's ``log_extra`` allows: task_id, policy, sample, success, reward and the record.

    Raises:
        DataError: a reward component has the name of one of these columns.
    """
    by_id, rows = {task.id: task for task in tasks}, []
    for trajectory in trajectories:
        clashes = sorted(set(trajectory.components) & (_TRL | _KNOWN))
        if clashes:
            raise DataError(
                f"the reward component {clashes[0]!r} has the name of a column of the table. Rename it."
            )
        prompt, *completion = as_messages(trajectory, prompt_of(trajectory, by_id))
        row = {"step": trajectory.step, "prompt": [prompt], "completion": completion, **trajectory.components}
        rows.append(utf8(row | {"advantage": trajectory.advantage} | _columns(trajectory)))
    _write_rows(path, rows)


def from_trl(
    path: str | Path, *, policy: str = "", tasks: Iterable[Task] = (), success: str = "success"
) -> Imported:
    """Trajectories from what TRL's ``log_completions`` writes: completions_*.parquet, or their folder.

    A completion that is one text, as a ``rollout_func`` leaves it, becomes one turn: TRL drops the control
    tokens that tell tool replies from what the policy wrote.

    Args:
        path: the file or folder.
        policy: name for rows that have no ``policy`` column.
        tasks: score every answer against these; without them success is the column named next.
        success: the reward column that says right (1) or wrong (0).

    Raises:
        DataError: no file, a broken row, no number in the column ``success`` names, or a task that is not
            among ``tasks``.
    """
    path, dropped, rows = Path(path), Counter(), []
    files = sorted(path.glob("completions_*.parquet")) if path.is_dir() else [path]
    if not files:
        raise DataError(
            f"{path} holds no completions_*.parquet. Name TRL's folder 'completions', or one file in it."
        )
    for file in files:
        for i, row in enumerate(_rows_of(file), start=1):
            where = f"{file}, row {i}"
            prompt = _side(row, "prompt", "user", where, dropped)
            asked = [i for i, message in enumerate(prompt) if message["role"] == "user"][-1:]
            if any(message["role"] == "assistant" for message in prompt[: max(asked, default=0)]):
                dropped["examples before the question in prompts"] += 1
                prompt = prompt[asked[0] :]
            completion = _side(row, "completion", "assistant", where, dropped)
            components = {}
            for name in row.keys() - _TRL - _KNOWN:
                if isinstance(row[name], int | float | None):
                    components[name] = _number(row, name, where)
                else:
                    dropped[f"the column {name!r}"] = 1
            rows.append(_row(row, where, prompt + completion, success, components))
    if success != "success" and rows and all(row.fields["success"] is None for row in rows):
        held = {name for row in rows for name, n in row.fields["components"].items() if n is not None}
        listed = ", ".join(sorted(held)) or "none"
        raise DataError(f"{path}: no row has a number in the column {success!r}. Name one of: {listed}.")
    return read_conversations(rows, policy, tasks, dropped)


def _side(row: Mapping[str, Any], name: str, role: str, where: str, dropped: Counter) -> list[dict[str, Any]]:
    """Prompt or completion as messages; TRL logs them as messages or as one text."""
    value = row.get(name)
    if isinstance(value, str):
        dropped["where turns end in completions that are plain text (each is one turn)"] = 1
        return [{"role": role, "content": value}]
    return checked_messages(value, f"{where}: {name}")


# ---- rows
def _columns(trajectory: Trajectory) -> dict[str, Any]:
    return {name: getattr(trajectory, name) for name in _FIELDS} | {RECORD: encode_record(trajectory)}


def _row(
    row: Mapping[str, Any], where: str, messages: list, success: str, components: dict | None = None
) -> Row:
    fields = {
        "task_id": _identity(row.get("task_id")) or _identity(row.get("id")),
        "policy": row.get("policy") if isinstance(row.get("policy"), str) else None,
        "sample": _whole(row.get("sample")),
        "step": _whole(row.get("step")),
        "success": _number(row, success, where),
        "reward": _number(row, "reward", where),
        "advantage": _number(row, "advantage", where),
        "components": components,
    }
    record = row.get(RECORD)
    return Row(where, messages, record if isinstance(record, str) else None, fields=fields)


def _number(row: Mapping[str, Any], name: str, where: str) -> float | None:
    """A column's number; None where there is none, or NaN, by which pandas says so."""
    value = row.get(name)
    if isinstance(value, int | float) and value == value and number(value) is None:
        raise DataError(f"{where}: {name} is {value!s:.60}, beyond any number. Mend it, or drop the column.")
    return number(value)


def _identity(value: Any) -> str | None:
    """An id as text; pandas has NaN for none, and makes of 1 beside it 1.0."""
    if isinstance(value, float):
        value = int(value) if value.is_integer() else value if value == value else None
    return None if value in (None, "") else str(value)


def _whole(value: Any) -> int | None:
    value = number(value)
    return int(value) if value is not None and value >= 0 and value == int(value) else None


def _rows_of(source: str | Path | Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    rows = read_rows(source) if isinstance(source, str | Path) else list(source)
    for i, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(f"row {i} is {type(row).__name__}, not an object with columns. Remove it.")
    return rows


def _write_rows(path: str | Path, rows: list[dict[str, Any]]) -> None:
    if not rows:
        raise DataError("there is no trajectory to write. Roll out the policy first.")
    if (ending := Path(path).suffix) not in (".parquet", ".jsonl"):
        raise DataError(f"{path} is not written. Let its name end in .parquet or .jsonl, which can be read.")
    if ending == ".jsonl":
        write_jsonl(path, rows)
        return
    import pyarrow as pa

    columns = dict.fromkeys(name for row in rows for name in row)
    write_table(path, pa.table({name: [row.get(name) for row in rows] for name in columns}))
