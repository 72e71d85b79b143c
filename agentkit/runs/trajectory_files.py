"""Trajectories and suites on disk: what was written is read back as it was, or an error says why not.

What is read is checked against the records' own types, so that no later code meets a field of a wrong kind.
Leaves out writing files safely (files) and where they lie in a run (run).
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.records import RunError, Task, Trajectory
from agentkit.runs.files import finite, parquet_rows, parse_json, read_jsonl, write_jsonl, write_table
from agentkit.runs.schemas import fault, read_as

TEXTS = ("turns", "components")  # fields of a trajectory that are stored as JSON
TOKENS = ("completion_ids", "action_mask", "old_logprobs")  # fields as long as each other
CHOSEN_BY = ["task_id", "sample", "step", "reward"]  # columns from which rows are chosen
_FIELDS = tuple(field.name for field in dataclasses.fields(Trajectory))

Choose = Callable[[list[dict]], Iterable[int]]  # numbers of the rows to read, from what CHOSEN_BY says of all


# ---- trajectories as Parquet
def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> Path:
    """Write trajectories as one Parquet file: token fields as lists, turns and components as JSON text."""
    import pyarrow as pa

    kinds: dict[str, Any] = dict.fromkeys(("success", "reward", "advantage"), pa.float64())
    kinds |= dict.fromkeys(("sample", "step"), pa.int32()) | {"seed": pa.int64()}
    kinds |= dict.fromkeys(("prompt_ids", "completion_ids"), pa.list_(pa.int32()))
    kinds |= {"action_mask": pa.list_(pa.int8()), "old_logprobs": pa.list_(pa.float32())}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in _FIELDS])
    return write_table(path, pa.Table.from_pylist(list(map(_row, trajectories)), schema=schema))


def _row(trajectory: Trajectory) -> dict[str, Any]:
    row = {name: getattr(trajectory, name) for name in _FIELDS}
    row["turns"] = json.dumps(finite([dataclasses.asdict(turn) for turn in trajectory.turns]))
    row["components"] = json.dumps(finite(trajectory.components))
    row["stop_reason"] = trajectory.stop_reason.value
    # a model may emit lone surrogates, which UTF-8 lacks
    return {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in row.items()}


def read_trajectories(path: str | Path, *, choose: Choose | None = None) -> list[Trajectory]:
    """Read what write_trajectories wrote, all rows or those that ``choose`` names.

    Raises RunError where the file is missing, damaged, or of another version.
    """
    import pyarrow as pa

    def part(table: Any) -> Any:
        if not choose:
            return table
        return table.take(pa.array(choose(table.select(CHOSEN_BY).to_pylist()), pa.int64()))

    rows = parquet_rows(Path(path), part)
    trajectories: list[Trajectory] = []
    try:
        for row in rows:
            texts = {name: parse_json(row[name]) for name in TEXTS}
            trajectories.append(trajectory_from(row | texts))
    except (ValueError, TypeError, KeyError) as error:
        why = " ".join(f"row {len(trajectories) + 1}: {error}".split())[:300]
        way = "run the stage that writes it again"
        raise RunError(f"{path} is not a trajectory file of this version ({why}): {way}") from None
    return trajectories


def count_tokens(path: str | Path) -> int:
    """Tokens of stored trajectories, prompts included. Raises RunError as read_trajectories."""
    return sum(len(t.prompt_ids) + len(t.completion_ids) for t in read_trajectories(path))


def trajectory_from(row: Mapping[str, Any]) -> Trajectory:
    """A trajectory from its fields as ``dataclasses.asdict`` and JSON give them.

    Raises ValueError where a field is missing, of another kind, or does not fit the others.
    """
    trajectory = read_as(Trajectory, row)
    length = len(trajectory.completion_ids)
    if any(len(getattr(trajectory, name)) != length for name in TOKENS):
        raise ValueError("its token fields differ in length")
    numbers = [*trajectory.old_logprobs, *trajectory.components.values()]
    numbers += [trajectory.success, trajectory.reward, trajectory.advantage]
    if not all(math.isfinite(number) for number in numbers if number is not None):
        raise ValueError("a log-probability, reward or success is no finite number")
    if not 0 <= (trajectory.success or 0) <= 1:
        raise ValueError(f"success is {trajectory.success}, no share")
    for turn in trajectory.turns:
        if not 0 <= turn.span[0] <= turn.span[1] <= length:
            raise ValueError(f"a turn spans {turn.span!s:.60} of {length} completion tokens")
    return trajectory


def misplaced(
    trajectories: Iterable[Trajectory], policy: str | None, step: int | None, suite: Iterable[Task] | None
) -> str | None:
    """How rows differ from what their file's name and the run's suite say, or None.

    Args:
        trajectories: the rows of a file.
        policy: that all of them are of; None where the file's name says none.
        step: of each row; None outside training.
        suite: the run's tasks, where they are known.
    """
    known = None if suite is None else {task.id.encode("utf-8", "replace").decode() for task in suite}
    seen: dict[tuple[str, int], Trajectory] = {}
    for number, t in enumerate(trajectories, start=1):
        if (policy or t.policy, step) != (t.policy, t.step):
            own, file = (f"{who!r:.60}, step {when}" for who, when in ((t.policy, t.step), (policy, step)))
            return f"row {number} is of policy {own}, and the file of {file}"
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
    faults = []
    for row in map(finite, rows):
        step = row.get("step")
        problem = fault("metrics", row)
        if problem or not isinstance(step, int | float) or step < 0 or step % 1:
            faults.append(f"a row was left out, for {problem or f'its step is {step!r:.60}'}")
            continue
        faults += [f"step {step:g} has several rows, of which the last counts"] * (step in latest)
        latest[int(step)] = row | {"step": int(step)}
    known = sorted({*latest, last + 1} if last else latest)
    for before, step in zip([0, *known], known, strict=False):
        if step > before + 1:
            faults.append(f"there is a gap: steps {before + 1} to {step - 1} have no row")
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
    rows = [dataclasses.asdict(task) for task in tasks]
    if problem := _suite_problem(rows):
        raise RunError(f"{path} is not written: {problem}. Mend the suite and save it again.")
    return write_jsonl(path, rows)


def task_problem(task: Any) -> str | None:
    """Why something is no task that can be used and written, or None."""
    if not isinstance(task, Task):
        return f"it is of type {type(task).__name__}; return a Task"
    return _row_problem(dataclasses.asdict(task))


def _suite_problem(rows: Sequence[dict]) -> str | None:
    """What is wrong with the rows of a suite, or None."""
    seen = set()
    for number, row in enumerate(rows, start=1):
        if missing := {"prompt", "answer"} - row.keys():
            return f"task {number} lacks {sorted(missing)}, and has {sorted(row.keys() - {'id'})!s:.100}"
        if problem := _row_problem(row):
            return f"task {number} ({row['id']!r:.60}): {problem}"
        if row["id"] in seen:
            return f"task {row['id']} occurs twice"
        seen.add(row["id"])
    return None if seen else "it holds no task"


def _row_problem(row: dict) -> str | None:
    """Why a task's row is none, or why JSON would not give the same back; None where it does."""
    if problem := fault("task", row):
        return f"{problem}; what is yours goes into meta" if "unknown key" in problem else problem
    try:
        json.dumps(row, allow_nan=False)
        odd = _odd_keys(row)
    except (TypeError, ValueError, RecursionError) as error:
        return f"it cannot be written ({error}): give it values that JSON has"
    return f"the key {odd[0]!r:.60} must be text" if odd else None


def _odd_keys(value: Any) -> list[Any]:
    """Keys of every object in a value that are no text."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    own = [key for key in value if not isinstance(key, str)] if isinstance(value, dict) else []
    return own + [key for part in parts for key in _odd_keys(part)]
