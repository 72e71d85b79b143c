"""One step of GRPO up to its update, for a stand-in that cannot be trained: sampled, scored, compared, and
written where a training writes.

Leaves out all that needs a model: loss, update, validation, checkpoints and adapter.
"""

import time
from functools import partial
from typing import Any

from agentkit.diagnostics import Watch
from agentkit.lab import Lab
from agentkit.records import Step
from agentkit.runs import Run, append_jsonl, write_trajectories
from agentkit.runs.run import ADAPTER
from agentkit.training import advantages, metrics
from agentkit.training.checkpoint_folders import set_aside
from agentkit.training.launch import OnMetrics
from agentkit.training.loop import check_size
from agentkit.training.processes import locked
from agentkit.training.selection import batches, fresh_tasks, select


def sampled_step(lab: Lab, run: Run, tell: OnMetrics) -> dict[str, Any]:
    """Sample and score the first step's groups, give them advantages, and write them and their metrics down;
    what an earlier training left is put aside.

    Raises RecipeError for too few tasks.
    """
    with locked(run):
        for folder in ("train", "adapter"):
            set_aside(run.file(folder))
        run.remove(ADAPTER)  # its hash too
        start = time.monotonic()
        step = _sampled(lab, run)
        write_trajectories(run.file("train", "trajectories", "step_00001.parquet"), step.trajectories)
        measured = {"planned_steps": lab.recipe.steps} | metrics.of_step(step, lab)
        row = metrics.row(1, measured, time.monotonic() - start)
        watch = Watch.over(run, lab.own_alarms)
        append_jsonl(run.file("train", "metrics.jsonl"), row)
        watch.add(row, step.trajectories)
    tell(row)
    return {"steps": 1}


def _sampled(lab: Lab, run: Run) -> Step:
    recipe, tasks, start = lab.recipe, lab.train_tasks(lab.load(run)), time.monotonic()
    check_size(recipe, len(tasks))
    by_id, seed, size = {task.id: task for task in tasks}, recipe.seed + 1_000_003, recipe.group_size
    asked = next(batches(tasks, recipe.prompts_per_step, recipe.seed))
    fresh = fresh_tasks(tasks, [task.id for task in asked], seed)
    dead = partial(advantages.teaches_nothing, by_id, lab.reward, recipe, own=lab.own_advantages)
    with lab.policy(run, "sft") as policy:
        roll = partial(lab.rollout, policy=policy, seed=seed, step=1)
        chosen = select(asked, fresh, lambda some, n: roll(some, group_size=n), dead, recipe)
    sampled = chosen.trajectories
    groups = [number // size for number in range(len(sampled))]
    values = advantages.of_trajectories(by_id, sampled, groups, lab.reward, recipe, lab.own_advantages)
    told, took = advantages.recorded(sampled, values), time.monotonic() - start
    return Step(1, tuple(by_id[t.task_id] for t in told[::size]), told, counts=chosen.counts, seconds=took)
