"""Hindsight replay: what a rollout did achieve is the right answer to another task, and can be imitated.

As in arc25 (iterations 4 to 6): sample programs, run them, keep the shortest for each different outcome,
relabel each as the task that asks for what it gave, order them from worst to best against the task that was
really asked, fine-tune, and repeat. Needs no right answer to start from. ``hindsight`` is that loop; with
``hindsight_weight`` GRPO imitates the lessons of its own rollouts instead (``lesson_batch``). A family takes
part by its ``relabel``. Leaves out how a trajectory is relabelled (tasks.relabel for programs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from agentkit.policies.loading import make_policy
from agentkit.policies.scripted import ScriptedPolicy
from agentkit.records import Task, Trajectory
from agentkit.rollouts import rollout
from agentkit.runs import Run, append_jsonl
from agentkit.runs.recipe import Recipe
from agentkit.tasks.family import Family
from agentkit.training.sft import fine_tune, token_count

if TYPE_CHECKING:
    from agentkit.lab import Lab


def lessons(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], families: Mapping[str, Family]
) -> list[Task]:
    """The relabelled tasks of a round: the shortest answer for each outcome, from worst to best.

    Each family's ``relabel`` gives the task that a trajectory solved, with ``outcome`` and ``closeness`` in
    its meta, or None; trajectories of families without one give no lesson.
    """
    by_id = {task.id: task for task in tasks}
    different = {(t.task_id, t.answer): t for t in trajectories}
    shortest: dict[str, Task] = {}
    for trajectory in different.values():
        asked = by_id[trajectory.task_id]
        relabel = families[asked.family].relabel if asked.family in families else None
        solved = relabel(asked, trajectory) if relabel else None
        if solved is None:
            continue
        key = f"{asked.id} {solved.meta['outcome']}"
        if key not in shortest or len(solved.answer) < len(shortest[key].answer):
            shortest[key] = solved
    return sorted(shortest.values(), key=lambda task: task.meta["closeness"])


def hindsight(
    lab: Lab, model: Any, tokenizer: Any, tasks: Sequence[Task], run: Run
) -> tuple[Any, list[dict]]:
    """Sample, relabel, fine-tune and repeat, until every task was solved by some sample or the rounds are
    over.

    Args:
        lab: families with their ``relabel``; its recipe says rounds, samples a task, learning rate and LoRA.
        model: is changed; each round's adapter is merged into it, and saved to hindsight/round-<n> in the
            run.
        tokenizer: of the model.
        tasks: what is to be solved.
        run: also gets hindsight/log.jsonl, one row a round.

    Returns:
        The model, and the log: round, share of tasks solved by some sample, mean success, lessons, their
        tokens, and loss.
    """
    recipe, log = lab.recipe, []
    for number in range(1, recipe.hindsight_rounds + 1):
        policy = make_policy(model, tokenizer, "hindsight", recipe)
        options = lab.options(
            group_size=recipe.hindsight_samples,
            seed=recipe.seed + number,
            step=number,
            progress=f"hindsight, round {number}",
        )
        sampled = rollout(tasks, policy, **options)
        solved = {t.task_id for t in sampled if t.success == 1.0}
        row = {"round": number, "solved": len(solved) / len(tasks), "lessons": 0, "tokens": 0, "loss": None}
        row["success"] = sum(t.success or 0.0 for t in sampled) / len(sampled)
        if len(solved) < len(tasks):
            transcripts = demonstrate(lab, lessons(tasks, sampled, lab.families), tokenizer)
            if transcripts:
                model, losses = _learn(model, tokenizer, transcripts, recipe, run, number)
                row |= {"lessons": len(transcripts), "tokens": token_count(transcripts)}
                row["loss"] = losses[-1]["loss"]
        log.append(row)
        append_jsonl(run.file("hindsight", "log.jsonl"), row)
        if len(solved) == len(tasks) or not row["lessons"]:
            break
    return model, log


def demonstrate(lab: Lab, tasks: Sequence[Task], tokenizer: Any) -> list[Trajectory]:
    """One flawless transcript for each task, in order, without those that do not pass their own verifier."""
    if not tasks:
        return []
    expert = ScriptedPolicy(tokenizer, name="hindsight")
    transcripts = rollout(tasks, expert, **lab.options(seed=lab.recipe.seed))
    return [t for t in transcripts if t.success == 1.0]


def lesson_batch(
    lab: Lab, tasks: Sequence[Task], trajectories: Sequence[Trajectory], tokenizer: Any
) -> dict[str, torch.Tensor]:
    """The lessons of a batch of B rollouts as tensors that are split and stored with it, for ``Update``.

    Returns:
        ``lesson_ids`` and ``lesson_mask`` (B, T), the transcripts at evenly spaced rows and nothing in the
        others, padded on the right; ``lesson_scored`` (B, T), 1 on what the expert wrote; ``lesson_tokens``
        (), their number.
    """
    transcripts = demonstrate(lab, lessons(tasks, trajectories, lab.families), tokenizer)
    width = max((len(t.prompt_ids) + len(t.completion_ids) for t in transcripts), default=1)
    ids, mask, scored = (torch.zeros(len(trajectories), width, dtype=torch.int64) for _ in range(3))
    for i, t in enumerate(transcripts):
        row, end = i * len(trajectories) // len(transcripts), len(t.prompt_ids) + len(t.completion_ids)
        ids[row, :end], mask[row, :end] = torch.tensor([*t.prompt_ids, *t.completion_ids]), 1
        scored[row, len(t.prompt_ids) : end] = torch.tensor(t.action_mask)
    return {"lesson_ids": ids, "lesson_mask": mask, "lesson_scored": scored, "lesson_tokens": scored.sum()}


def _learn(
    model: Any, tokenizer: Any, transcripts: Sequence[Trajectory], recipe: Recipe, run: Run, number: int
) -> tuple[Any, list[dict]]:
    changes = {"train_sampling_strategy": "sequential", "lr_scheduler_type": "constant", "warmup_steps": 0}
    changes |= {"learning_rate": recipe.hindsight_learning_rate, "num_train_epochs": 1}
    return fine_tune(
        model, tokenizer, transcripts, recipe, run.file("hindsight", f"round-{number}"), **changes
    )
