"""Trajectories and suites on disk: what was written is read back as it was, or an error says why not.

What is read is checked against the records' own types, so that no later code meets a field of a wrong kind.
Leaves out writing files safely (files) and where they lie in a run (run).
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.records import RunError, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs.files import finite, parquet_rows, parse_json, read_jsonl, write_jsonl, write_table
from agentkit.runs.schemas import fault

TEXTS = ("turns", "components")  # fields of a trajectory that are stored as JSON
TOKENS = ("prompt_ids", "completion_ids", "action_mask", "old_logprobs")
SCORES = ("success", "why", "components", "reward")  # fields that verifiers and rewards give
CHOSEN_BY = ["task_id", "sample", "step", "reward"]  # columns from which rows are chosen
_FILE = ("trajectory file", "Run the stage that writes it again")

Choose = Callable[[list[dict]], Iterable[int]]  # numbers of the rows to read, from what CHOSEN_BY says of all


class Unread(Sequence):
    """Tokens that were not read: their number, and equal where the tokens are. To look at one is an error."""

    __slots__ = ("_held",)

    def __init__(self, length: int, digest: bytes):
        self._held = length, digest

    def __len__(self) -> int:
        return self._held[0]

    def __getitem__(self, place: int | slice) -> Any:
        raise RunError("these trajectories were read without their tokens: run.trajectories(name) reads them")

    def __eq__(self, other: object) -> bool:
        return self._held == other._held if isinstance(other, Unread) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._held)


# ---- trajectories as Parquet
def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> Path:
    """Write trajectories as one Parquet file: token fields as lists, turns and components as JSON text."""
    import pyarrow as pa

    ids, text, number = pa.list_(pa.int32()), pa.string(), pa.float64()
    columns = {
        "task_id": text,
        "policy": text,
        "sample": pa.int32(),
        "seed": pa.int64(),
        "prompt_ids": ids,
        "completion_ids": ids,
        "action_mask": pa.list_(pa.int8()),
        "old_logprobs": pa.list_(pa.float32()),
        "turns": text,
        "stop_reason": text,
        "answer": text,
        "success": number,
        "why": text,
        "components": text,
        "reward": number,
        "advantage": number,
        "step": pa.int32(),
    }
    rows = [_trajectory_row(trajectory) for trajectory in trajectories]
    return write_table(path, pa.Table.from_pylist(rows, schema=pa.schema(columns)))


def read_trajectories(
    path: str | Path, *, tokens: bool = True, choose: Choose | None = None
) -> list[Trajectory]:
    """Read what write_trajectories wrote. Raises RunError when the file is missing or damaged.

    Args:
        tokens: whether ids, masks and log-probabilities are wanted; without they are ``Unread``.
        choose: which rows are; all by default.
    """
    import pyarrow as pa

    def part(table: Any) -> Any:
        if choose:
            chosen = choose(table.select(CHOSEN_BY).to_pylist())
            table = table.take(pa.array(chosen, pa.int64()))
        if tokens or not _sound(table):  # then the row is named that is not
            return table
        unread = [pa.array([_held(row) for row in table[name]]) for name in TOKENS[:2]]
        table = table.drop_columns(list(TOKENS))
        for name, column in zip(TOKENS, unread, strict=False):
            table = table.append_column(name, column)
        return table

    rows, trajectories, blank = parquet_rows(Path(path), *_FILE, part), [], {}
    try:
        for row in rows:
            texts = {name: parse_json(row[name]) for name in TEXTS if isinstance(row.get(name), str)}
            if not tokens and isinstance(row["completion_ids"], dict):
                prompt, completion = (Unread(**row[name]) for name in TOKENS[:2])
                blank = dict.fromkeys(TOKENS, completion) | {"prompt_ids": prompt}
                texts |= dict.fromkeys(TOKENS, ())
            trajectories.append(trajectory_from(row | texts, blank))
    except ValueError as error:
        why = " ".join(f"row {len(trajectories) + 1}: {error}".split())[:300]
        raise RunError(f"{path} is not a {_FILE[0]} ({why}). {_FILE[1]}.") from None
    return trajectories


def write_scores(path: str | Path, trajectories: Sequence[Trajectory]) -> Path:
    """Write SCORES of a file's trajectories, in its order, into it; tokens and turns stay as they are.

    Raises RunError as read_trajectories.
    """
    import pyarrow as pa

    held = []
    parquet_rows(Path(path), *_FILE, lambda table: held.append(table) or table.slice(0, 0))
    (table,), rows = held, [_scores_row(trajectory) for trajectory in trajectories]
    for name in SCORES:
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        table = table.set_column(at, field, pa.array([row[name] for row in rows], field.type))
    return write_table(path, table)


def count_tokens(path: str | Path) -> int:
    """Tokens of stored trajectories, prompts included; none is read. Raises RunError as read_trajectories."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def lengths(table: Any) -> Any:
        return pa.table({name: pc.list_value_length(table[name]) for name in TOKENS[:2]})

    return sum(sum(row.values()) for row in parquet_rows(Path(path), *_FILE, lengths))


def _trajectory_row(trajectory: Trajectory) -> dict[str, Any]:
    row = {field.name: getattr(trajectory, field.name) for field in dataclasses.fields(Trajectory)}
    turns = [dataclasses.asdict(turn) for turn in trajectory.turns]
    row["turns"] = json.dumps(finite(turns), ensure_ascii=True)  # ASCII: a model may emit lone surrogates
    row["stop_reason"] = trajectory.stop_reason.value
    return {k: _utf8(v) if isinstance(v, str) else v for k, v in row.items()} | _scores_row(trajectory)


def _scores_row(trajectory: Trajectory) -> dict[str, Any]:
    row = {name: getattr(trajectory, name) for name in SCORES}
    return row | {"why": _utf8(trajectory.why), "components": json.dumps(finite(trajectory.components))}


def _sound(table: Any) -> bool:
    """Whether the token columns hold what a trajectory may, of all rows at once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [table[name] for name in TOKENS]
    if any(column.null_count or not pa.types.is_list(column.type) for column in columns):
        return False
    kinds = [column.type.value_type for column in columns]
    if not (all(map(pa.types.is_integer, kinds[:3])) and pa.types.is_floating(kinds[3])):
        return False
    lengths = [pc.list_value_length(column) for column in columns[1:]]
    flat = [pc.list_flatten(column) for column in columns]
    ends = [pc.min_max(values).as_py() for values in flat[:3]]
    return (
        lengths[0].equals(lengths[1])
        and lengths[0].equals(lengths[2])
        and not any(values.null_count for values in flat)
        and all((end["min"] or 0) >= 0 for end in ends)
        and (ends[2]["max"] or 0) <= 1
        and pc.all(pc.is_finite(flat[3])).as_py() is not False
    )


def _held(tokens: Any) -> dict[str, Any]:
    """What ``Unread`` keeps of a row's list of tokens."""
    values = tokens.values.to_numpy(zero_copy_only=False) if tokens.is_valid else b""
    return {"length": len(values), "digest": hashlib.blake2b(values, digest_size=16).digest()}


def _utf8(text: str) -> str:
    """Text as Parquet holds it: what UTF-8 lacks is replaced."""
    return text.encode("utf-8", "replace").decode()


def trajectory_from(row: Mapping[str, Any], blank: Mapping[str, tuple] | None = None) -> Trajectory:
    """A trajectory from its fields as ``dataclasses.asdict`` and JSON give them, some left ``blank``.

    Raises:
        ValueError: a field is missing, unknown, of another kind, or does not fit the others.
    """
    if problem := fault("trajectory", row):
        raise ValueError(problem)
    if len({len(row[name]) for name in TOKENS if name != "prompt_ids"}) > 1:
        raise ValueError("its token fields differ in length")
    if not all(map(math.isfinite, row["old_logprobs"])):
        raise ValueError("old_logprobs holds what is no number")
    tokens = {name: tuple(row[name]) for name in TOKENS} | (blank or {})
    turns, length = tuple(map(_turn, row["turns"])), len(tokens["completion_ids"])
    for span in (turn.span for turn in turns):
        if not 0 <= span[0] <= span[1] <= length:
            raise ValueError(f"a turn spans {span!s:.60} of {length} completion tokens")
    return Trajectory(**(row | tokens | {"turns": turns, "stop_reason": StopReason(row["stop_reason"])}))


def _turn(turn: Mapping[str, Any]) -> Turn:
    start, end = map(int, turn["span"])
    results = tuple(ToolResult(**r) for r in turn["results"])
    return Turn(turn["text"], (start, end), results, turn["seconds"])


def misplaced(
    trajectories: Iterable[Trajectory],
    policies: Collection[str] | None,
    step: int | None,
    suite: Iterable[Task] | None,
) -> str | None:
    """How rows differ from what their file's name and the run's suite say, or None.

    Args:
        trajectories: the rows of a file.
        policies: names that the rows may have, all of them the same; None where its name says none.
        step: of each row; None outside training.
        suite: the run's tasks, where they are known.
    """
    known = None if suite is None else {_utf8(task.id) for task in suite}
    seen: dict[tuple[str, int], Trajectory] = {}
    for number, t in enumerate(trajectories, start=1):
        if policies is not None and t.policy not in policies:
            return f"row {number} is of policy {t.policy!r:.60}, and the file of {', '.join(policies)}"
        policies = {t.policy}
        if t.step != step:
            names = ["no training step" if n is None else f"step {n}" for n in (t.step, step)]
            return f"row {number} is of {names[0]}, and the file of {names[1]}"
        if known is not None and t.task_id not in known:
            return f"the run's tasks.jsonl lacks task {t.task_id!r:.60}, which row {number} is of"
        earlier = seen.setdefault((t.task_id, t.sample), t)
        if earlier is not t and (step is None or earlier == t):  # a batch may hold a task twice
            return f"row {number} holds sample {t.sample} of task {t.task_id!r:.60} a second time"
    return None


# ---- metrics
def step_rows(rows: Iterable[dict], last: int = 0) -> tuple[list[dict], list[str]]:
    """The last row of each step; in phrases, what was left out, and which steps up to ``last`` lack a row."""
    latest: dict[int, dict] = {}
    faults, before = [], 0
    for row in map(finite, rows):
        if problem := fault("metrics", row):
            faults.append(f"a row was left out, for {problem}")
            continue
        step = int(row["step"])
        faults += [f"step {step} has several rows, of which the last counts"] * (step in latest)
        latest[step] = row | {"step": step}
    for step in sorted({*latest, last + 1} if last else latest):
        if step > before + 1:
            faults.append(f"there is a gap: steps {before + 1} to {step - 1} have no row")
        before = step
    return list(latest.values()), faults


# ---- tasks as JSON lines
def read_tasks(path: str | Path) -> list[Task]:
    """Read a suite's tasks.jsonl. A damaged line is an error: a suite with holes would shift every split.

    A row without an id is known by its place.
    """
    rows = [{"id": f"task-{n}"} | row for n, row in enumerate(read_jsonl(path, tolerant=False), start=1)]
    if problem := _suite_problem(rows):
        remedy = "Mend the line, or, where a run made the file, build it again with notebook 01."
        raise RunError(f"{path}: {problem}. {remedy}")
    return [Task(**(row | ({"tools": tuple(row["tools"])} if "tools" in row else {}))) for row in rows]


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> Path:
    """Write a suite's tasks.jsonl atomically. Raises RunError where ``read_tasks`` would not give it back."""
    tasks = list(tasks)
    if problem := _suite_problem(map(_task_row, tasks)):  # rows of 50,000 tasks are not held
        raise RunError(f"{path} is not written: {problem}. Mend the suite and save it again.")
    return write_jsonl(path, map(dataclasses.asdict, tasks))


def task_problem(task: Any) -> str | None:
    """Why something is no task that can be used and written, or None."""
    if not isinstance(task, Task):
        return f"it is of type {type(task).__name__}; return a Task"
    try:
        return fault("task", _task_row(task))
    except RunError as error:
        return str(error)


def _suite_problem(rows: Iterable[dict]) -> str | None:
    """What is wrong with the rows of a suite, or None."""
    known = {field.name for field in dataclasses.fields(Task)}
    seen = set()
    for number, row in enumerate(rows, start=1):
        if missing := {"prompt", "answer"} - row.keys():
            return f"task {number} lacks {sorted(missing)}, and has {sorted(row.keys() - {'id'})!s:.100}"
        if unknown := row.keys() - known:
            return f"task {number} has unknown fields {sorted(unknown)!s:.100}: what is yours goes into meta"
        if problem := fault("task", row):
            return f"task {number} ({row['id']!r:.60}): {problem}"
        if row["id"] in seen:
            return f"task {row['id']} occurs twice"
        seen.add(row["id"])
    return None if seen else "it holds no task"


def _task_row(task: Task) -> dict[str, Any]:
    """A task as it is written. Raises RunError where JSON would not give the same back."""
    try:
        row = dataclasses.asdict(task)
        json.dumps(row, allow_nan=False)
        odd = [key for key in _keys(row) if not isinstance(key, str)]
    except (TypeError, ValueError, RecursionError) as error:
        raise RunError(
            f"task {task.id!r:.60} cannot be written ({error}): give it values that JSON has."
        ) from None
    if odd:
        raise RunError(f"task {task.id!r:.60} cannot be written: the key {odd[0]!r:.60} must be text.")
    return row


def _keys(value: Any) -> Iterator[Any]:
    """The keys of every object in a value."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _keys(inner)
