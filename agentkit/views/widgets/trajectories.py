"""Trajectories side by side, task by task, turn by turn, with filters, deep links (#task=ID) and notes.

Leaves out measuring (evaluation) and reading trajectories (runs).
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import traitlets

from agentkit.evaluation import SOLVED
from agentkit.evaluation.summary import all_in
from agentkit.lab import Lab
from agentkit.records import Task, Trajectory
from agentkit.runs import Run, append_jsonl, read_jsonl
from agentkit.runs.schemas import NOTE_FIELDS, fault
from agentkit.trajectories import by_task, results_of
from agentkit.views.widgets.base import LiveView, View, packed, task_fields, trajectory_fields
from agentkit.views.widgets.forks import Fork, ForkPanel
from agentkit.views.widgets.states import States

SAMPLES = 8  # of a task and policy that are shown; all are counted
BLOCK = 20  # tasks that a browser unpacks together
NOTES = (
    "notes.jsonl"  # in the run: a line for each change, the newest of a task counts; empty text takes it back
)
_INDEX = ("id", "family", "difficulty", "solved", "marks")  # what the filters need of every task


class LiveCompare(LiveView):
    """The comparison with a kernel behind it; notes go into the run as they are written."""

    task_id = traitlets.Unicode("").tag(sync=True)  # the task on screen, readable and settable
    notes = traitlets.List().tag(sync=True)  # rows of notes.jsonl, all of them: a busy kernel misses none
    status = traitlets.Unicode("").tag(sync=True)  # what became of the last note

    def __init__(self, run: Run | None, **traits: Any):
        super().__init__(**traits)
        self._run = run
        self._saved = {row["task_id"]: row for row in self.notes}
        self.observe(self._save, names="notes")

    def _save(self, change: Any) -> None:
        new = [row for row in change["new"] if is_note(row) and self._saved.get(row["task_id"]) != row]
        if not new:
            return
        if self._run is None:
            self.status = "not saved: no run was given, so export the notes"
            return
        try:
            for row in new:  # one write a note loses nothing when two notebooks have the same run open
                append_jsonl(self._run.file(NOTES), {name: row[name] for name in NOTE_FIELDS})
        except OSError as error:
            self.status = f"not saved: {error}"
            return
        self._saved |= {row["task_id"]: row for row in new}
        self.status = f"saved in {self._run.path.name}/{NOTES} at {time.strftime('%H:%M:%S')}"


class CompareWidget(View):
    """Trajectories side by side: static by itself, ``live()`` with a kernel."""

    def __init__(
        self, payload: dict[str, Any], run: Run | None = None, panel: Callable[..., ForkPanel] = ForkPanel
    ):
        super().__init__("trajectories", "Trajectories side by side", payload, 720)
        self._run, self._panel = run, panel

    @cached_property
    def data(self) -> list[bytes]:
        """What the filters need of all tasks, then the tasks in blocks."""
        tasks = self.payload["tasks"]
        index = [{name: task[name] for name in _INDEX} for task in tasks]
        blocks = [tasks[start : start + BLOCK] for start in range(0, len(tasks), BLOCK)]
        return [packed(self.payload | {"tasks": index, "block": BLOCK}), *map(packed, blocks)]

    def live(self, fork: Fork | None = None) -> LiveCompare | ForkPanel:
        """An anywidget for a running kernel: it saves notes in the run; ``task_id`` is the task on screen.

        Args:
            fork: where given, a reader may change a turn and have its trajectory continued. It is called by
                name with task, trajectory, turn and perhaps observation or text, and returns continuations:
                ``partial(lab.fork, policy=policy, n=4)``.
        """
        tasks, notes = self.payload["tasks"], self.payload["notes"]
        traits = {"_esm": self.source, "data": self.data, "task_id": tasks[0]["id"], "notes": notes}
        live = LiveCompare(self._run, **traits)
        return self._panel(live, fork=fork) if fork else live


def compare_trajectories(
    tasks: Iterable[Task],
    policies: Mapping[str, Sequence[Trajectory]],
    *,
    run: Run | None = None,
    environments: Mapping[str, Callable[[], object]] | None = None,
) -> CompareWidget:
    """Page through tasks with each policy's trajectories side by side.

    Args:
        tasks: the suite, in the order to page; tasks without a trajectory are left out.
        policies: trajectories by policy name, usually two or three.
        run: where notes are; those it has are shown, and the live view adds to them.
        environments: by family, as ``lab.environments``: those with ``render`` show their state after each
            turn. By default those of the run's lab, or none.

    Raises:
        ValueError: there is no trajectory, or a trajectory's task is not in ``tasks``.
        RunError: the run's notes cannot be read.
    """
    tasks = {task.id: task for task in tasks}
    samples = {name: by_task(trajectories) for name, trajectories in policies.items()}
    covered = {task for policy in samples.values() for task in policy}
    all_in("the trajectories", covered, "the given tasks", tasks)
    if not covered:
        raise ValueError("there is no trajectory to show. Pass {'sft': trajectories, 'grpo': trajectories}.")
    if environments is None and run is not None:
        environments = Lab.of(run).environments
    states, own = States(environments), list(samples.values())
    rows = [_task(task, own, states) for task in tasks.values() if task.id in covered]
    payload = {"key": _key(list(policies), rows, run), "policies": list(policies), "tasks": rows}
    compare = partial(compare_trajectories, environments=environments)  # of what a fork gives
    panel = partial(ForkPanel, tasks=tasks, policies=samples, compare=compare)
    return CompareWidget(payload | {"notes": note_rows(run) if run else []}, run, panel)


def _key(policies: list[str], rows: list[dict[str, Any]], run: Run | None) -> str:
    """What a browser keeps notes under: the same for the same tasks and policies of the same run."""
    place = run.path.resolve().parts[-3:] if run else ()  # of a sweep: sweep, arm and seed
    names = [place, policies, [row["id"] for row in rows]]
    return hashlib.sha256(json.dumps(names).encode("ascii")).hexdigest()[:16]


def _task(task: Task, policies: list[dict[str, list[Trajectory]]], states: States) -> dict[str, Any]:
    columns, solved, trajectories = [], [], []
    for policy in policies:
        samples = policy.get(task.id, [])
        trajectories += samples
        shown = sorted(samples, key=lambda t: t.sample)[:SAMPLES]
        fields = [trajectory_fields(t, states.after_turns(task, t)) for t in shown]
        scored = [t.success for t in samples if t.success is not None]
        counts = {"count": len(samples), "scored": len(scored), "right": scored.count(1.0)}
        columns.append(counts | {"samples": fields})
        solved.append(counts["right"] > SOLVED * len(scored) if scored else None)
    held = {
        "not scored": any(t.success is None for t in trajectories),
        "no answer": any(t.answer is None for t in trajectories),
        "failed call": any(not result.ok for t in trajectories for result in results_of(t)),
    }
    marks = [name for name, holds in held.items() if holds]
    return task_fields(task) | {"columns": columns, "solved": solved, "marks": marks}


# ---- notes
def note_rows(run: Run) -> list[dict[str, str]]:
    """The newest row of each task: task_id, text, at (ISO 8601, UTC). Lines of another form are left out."""
    path = run.file(NOTES)
    rows = [row for row in read_jsonl(path) if is_note(row)] if path.exists() else []
    return list({row["task_id"]: row for row in sorted(rows, key=lambda row: row["at"])}.values())


def is_note(row: Any) -> bool:
    return fault("note", row) is None
