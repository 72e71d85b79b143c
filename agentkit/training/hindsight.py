"""Hindsight replay: what a rollout did achieve is the right answer to another task, and can be imitated.

As in arc25 (iterations 4 to 6): sample programs, run them, keep the shortest for each different outcome,
relabel each as the task that asks for what it gave, order them from worst to best against the task that was
really asked, fine-tune, and repeat. Needs no right answer to start from. ``hindsight`` is that loop; with
``hindsight_weight`` GRPO imitates the lessons of its own rollouts instead (loop). A family takes
part by its ``relabel``. Leaves out how a trajectory is relabelled (tasks.relabel for programs).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any

from agentkit.policies.loading import make_policy
from agentkit.policies.scripted import ScriptedPolicy
from agentkit.records import Task, Trajectory
from agentkit.rollouts import rollout
from agentkit.runs import Run, append_jsonl, write_trajectories
from agentkit.runs.labfile import blame
from agentkit.tasks.family import Family
from agentkit.training.sft import fine_tune, token_count
from agentkit.trajectories import verifier_kind

if TYPE_CHECKING:
    from agentkit.lab import Lab

AT_ONCE = 4  # programs relabelled


def lessons(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], families: Mapping[str, Family], keep: float = 1
) -> list[Task]:
    """The relabelled tasks of a round: the shortest answer for each outcome, from worst to best; of each task
    the share ``keep`` that is nearest to what was asked.
    """
    by_id = {task.id: task for task in tasks}
    longest_first = sorted(trajectories, key=lambda t: len(t.answer or ""), reverse=True)
    different = {(t.task_id, str(_done(by_id[t.task_id], t))): t for t in longest_first}

    def relabelled(trajectory: Trajectory) -> Task | None:
        asked = by_id[trajectory.task_id]
        relabel = families[asked.family].relabel if asked.family in families else None
        try:
            return relabel(asked, trajectory) if relabel else None
        except (Exception, SystemExit) as error:  # a family's own
            why = f"a trajectory of {asked.id} was not relabelled ({blame(error):.200})"
            warnings.warn(why, stacklevel=2)
            return None

    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = list(threads.map(relabelled, different.values()))
    shortest: dict[str, dict[str, Task]] = {}
    for trajectory, solved in zip(different.values(), found, strict=True):
        if solved is None:
            continue
        own, outcome = (
            shortest.setdefault(trajectory.task_id, {}),
            str(solved.meta.get("outcome", solved.prompt)),
        )
        if outcome not in own or len(solved.answer) < len(own[outcome].answer):
            own[outcome] = solved
    ranked = (_ranked(own.values()) for own in shortest.values())
    return _ranked(chain.from_iterable(own[-math.ceil(keep * len(own)) :] for own in ranked))


def _done(task: Task, trajectory: Trajectory) -> Any:
    """What tells a trajectory from others: its program, or all that it did."""
    return trajectory.answer if verifier_kind(task) == "code" else trajectory.completion_ids


def _ranked(tasks: Iterable[Task]) -> list[Task]:
    """From worst to best."""
    return sorted(tasks, key=lambda task: task.meta.get("closeness", 0.0))


def hindsight(
    lab: Lab,
    model: Any,
    tokenizer: Any,
    tasks: Sequence[Task],
    run: Run,
    most: int,
    *,
    samples: int = 128,
    keep: float = 1.0,
    learning_rate: float = 1e-5,
) -> tuple[Any, list[dict]]:
    """Sample, relabel, fine-tune and repeat, until every task was solved by some sample.

    ``model`` is changed: each round's adapter is merged into it, and saved to hindsight/round-<n> in the run.
    In half precision all rounds train one adapter. What a round sampled is stored as a step of GRPO's is.

    Args:
        most: rounds, at most.
        samples: trajectories of each task in a round.
        keep: share of a task's lessons that is imitated, those nearest to what was asked.
        learning_rate: of each round's fine-tuning, constant.

    Returns:
        The model, and a row a round: step, solved (the share of tasks), success, lessons, tokens and loss.
    """
    log: list[dict] = []
    settings = {"train_sampling_strategy": "sequential", "lr_scheduler_type": "constant", "warmup_steps": 0,
                "learning_rate": learning_rate, "num_train_epochs": 1}  # fmt: skip
    for number in range(1, most + 1):
        changes = {"group_size": samples, "step": number, "progress": f"hindsight, round {number}"}
        seed = lab.recipe.seed + 1_000_003 * number  # that no other seed's rounds use
        with make_policy(model, tokenizer, "hindsight", lab.recipe) as policy:  # the update needs its memory
            sampled = lab.rollout(tasks, policy, seed=seed, **changes)
        write_trajectories(run.file("train", "trajectories", f"step_{number:05d}.parquet"), sampled)
        solved = {t.task_id for t in sampled if t.success == 1.0}
        row = {"step": number, "solved": len(solved) / len(tasks), "lessons": 0, "tokens": 0, "loss": None}
        row["success"] = sum(t.success or 0.0 for t in sampled) / len(sampled)
        if len(solved) < len(tasks):
            near = lessons(tasks, sampled, lab.families, keep)
            if transcripts := demonstrate(lab, near, tokenizer):
                out = run.file("hindsight", f"round-{number}")
                model, losses = fine_tune(model, tokenizer, transcripts, lab.recipe, out, **settings)
                row |= {"lessons": len(transcripts), "tokens": token_count(transcripts)}
                row["loss"] = losses[-1]["loss"]
        log.append(row)
        append_jsonl(run.file("train", "metrics.jsonl"), row)
        if not row["lessons"]:  # all solved, or nothing to learn from
            break
    return model, log


def demonstrate(lab: Lab, tasks: Sequence[Task], tokenizer: Any) -> list[Trajectory]:
    """One flawless transcript for each task, in order, without those that do not pass their own verifier."""
    if not tasks:
        return []
    expert = ScriptedPolicy(tokenizer, name="hindsight")
    transcripts = rollout(tasks, expert, **lab.options(seed=lab.recipe.seed))
    return [t for t in transcripts if t.success == 1.0]
