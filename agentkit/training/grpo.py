"""GRPO on multi-turn tool trajectories: a subclass of TRL's GRPOTrainer.

TRL keeps the loss, the optimiser and the schedule. Replaced are its two ends: rollouts come from the rollout
loop, token-exact and with an action mask, with the kit's rewards and advantages; log-probabilities share
prefixes (update; TRL 1.15's own need a GPU kernel). Every step writes its metrics and trajectories before the
next begins; validation keeps the best adapter.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from agentkit.diagnostics import Watch, audit_metrics, audited
from agentkit.evaluation import summarize
from agentkit.policies.guard import sync
from agentkit.policies.loading import make_policy
from agentkit.policies.unsloth import adapted
from agentkit.records import Task, Trajectory
from agentkit.rewards import component_metrics, score_all
from agentkit.rollouts import rollout, tool_metrics
from agentkit.rollouts.gate import check_batch
from agentkit.runs import Run, append_jsonl, write_trajectories
from agentkit.runs.recipe import Recipe
from agentkit.training import advantages
from agentkit.training.common import (
    ProgressCallback,
    lora,
    merged,
    only_own_progress,
    quiet_trainer,
    save_adapter,
)
from agentkit.training.guards import Guards, TrainingError
from agentkit.training.hindsight import lesson_batch
from agentkit.training.resume import Resumable, made_with
from agentkit.training.selection import fresh_tasks, select
from agentkit.training.together import check_processes, check_same, gathered, on_main_process
from agentkit.training.update import Update

if TYPE_CHECKING:
    from agentkit.lab import Lab

os.environ.setdefault(
    "TRL_EXPERIMENTAL_SILENCE", "1"
)  # rollout_func is experimental; this pin was tested with it
OnMetrics = Callable[[dict[str, Any]], None]


def config(recipe: Recipe, out: Path) -> GRPOConfig:
    """TRL's configuration, every default that matters, or that Unsloth changes, set explicitly."""
    cuda = torch.cuda.is_available()
    check_processes(recipe)
    rollouts = (
        recipe.prompts_per_step * recipe.group_size // recipe.processes
    )  # of whole groups, in each process
    return GRPOConfig(
        output_dir=str(out),
        max_steps=recipe.steps,
        per_device_train_batch_size=recipe.micro_batch,
        gradient_accumulation_steps=rollouts // recipe.micro_batch,
        steps_per_generation=rollouts // recipe.micro_batch,
        num_generations=recipe.group_size,
        num_iterations=recipe.num_iterations,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=recipe.lr_schedule,
        warmup_steps=recipe.warmup_steps,
        optim="adamw_torch",
        weight_decay=0.0,
        max_grad_norm=recipe.max_grad_norm,
        temperature=recipe.temperature,
        max_completion_length=recipe.max_tokens,
        beta=recipe.beta,
        epsilon=recipe.clip_epsilon,
        epsilon_high=recipe.clip_epsilon_high or recipe.clip_epsilon,
        delta=recipe.dual_clip or None,
        importance_sampling_level=recipe.importance_level,
        loss_type=recipe.loss_type,
        scale_rewards="group",
        mask_truncated_completions=False,
        vllm_importance_sampling_correction=True,
        router_aux_loss_coef=0.0,  # our log-probabilities come without a router's loss
        logging_nan_inf_filter=True,
        torch_empty_cache_steps=None,
        gradient_checkpointing=cuda,
        **(quiet_trainer(recipe.seed, cuda) | {"report_to": recipe.report_to}),
    )


class AgentGRPOTrainer(Resumable, Update, GRPOTrainer):
    """TRL's GRPOTrainer with agent rollouts.

    It goes on from the newest sound checkpoint in the run's train/ where that was made with the same
    parameters; otherwise what an earlier training left there is kept beside it as train-1, train-2 and so on.

    Args:
        lab: recipe, environments and reward.
        model: the SFT model; its LoRA adapter is added here, and the reference is the same model with it
            switched off. ``engine: unsloth`` loads it anew.
        tokenizer: with a chat template.
        tasks: training tasks.
        validation: tasks for validation, in the order they are used.
        run: where metrics, trajectories and the best adapter go.
        on_metrics: called with every metrics row, as for live curves.
    """

    def __init__(
        self,
        lab: Lab,
        model: Any,
        tokenizer: Any,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        run: Run,
        on_metrics: OnMetrics = lambda row: None,
    ):
        self.lab, recipe = lab, lab.recipe
        self.recipe = recipe
        self.reward = lab.reward
        self.run = run
        self.validation = list(validation)[: recipe.val_tasks]
        self._options = lab.options()
        self.on_metrics = on_metrics
        self.best: tuple[float, int] = (-1.0, 0)  # validation success and its step
        self._tasks = {task.id: task for task in tasks}
        self._rows: list[dict] = []
        self._batch: list[Trajectory] = []
        self._trained: list[
            Sequence[int]
        ] = []  # the batch's action masks, zeros where the loss leaves a trajectory out
        self._sampled: list[Trajectory] = []  # of every process, until the alarms have seen them
        self._watch: Watch | None = None
        self._mismatches = 0  # of the tool cache, so far
        self._extra: dict[str, Any] = {}
        self._started = time.monotonic()
        self._rollout_seconds = 0.0
        self._gap: dict[
            str, float
        ] = {}  # what the last sync found, in nats, where the engine has weights of its own
        self.guards = Guards(self, recipe)
        unsloth = recipe.engine == "unsloth"
        super().__init__(
            model=adapted(model, tokenizer, recipe) if unsloth else model,
            args=config(recipe, run.file("train", "checkpoints")),
            reward_funcs=[_reward],
            train_dataset=Dataset.from_list(
                [{"prompt": [{"role": "user", "content": t.prompt}], "task_id": t.id} for t in tasks]
            ),
            processing_class=tokenizer,
            peft_config=None if unsloth else lora(recipe),
            rollout_func=_rollout_func,
            callbacks=[ProgressCallback("GRPO"), _Validate(self), self.guards],
        )
        only_own_progress(self)
        if (
            "ref" in self.model.peft_config
        ):  # TRL's copy of an adapter that changes nothing yet: without any is the same
            self.model.delete_adapter("ref")
        self.share_prefixes(recipe.share_prefixes)
        self.lesson_weight = recipe.hindsight_weight
        self.open_training(
            made_with(lab, self.model, [*tasks, *self.validation], self.accelerator.num_processes)
        )
        self.policy = make_policy(self.accelerator.unwrap_model(self.model), tokenizer, "grpo", recipe)

    def kept_state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside weights and random states."""
        return {"best": list(self.best), "guards": self.guards.state()}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Put back what ``kept_state`` gave."""
        self.best = (state["best"][0], state["best"][1])
        self.guards.restore(state["guards"])

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the task id beside the prompt."""
        self._signature_columns = ["prompt", "task_id"]

    def _generate_and_score_completions(self, inputs: list[dict]) -> dict[str, Any]:
        """Rollouts, rewards and advantages through TRL, then what only we know: sampled log-probabilities,
        records.
        """
        self._rows = inputs
        output = super()._generate_and_score_completions(inputs)
        if self.state.global_step == 0:
            check_batch(output, self._batch, self.recipe.group_size, self.processing_class)
        output["advantages"] = self._advantages(output["completion_ids"])
        sampled = _padded([t.old_logprobs for t in self._batch], output["completion_ids"])
        mismatch = self.correct_mismatch(output, sampled, self.recipe.mismatch, self.recipe.mismatch_cap)
        told = (
            self._bring_lessons(output)
            | mismatch
            | self._gap
            | {"rollout_seconds": self._rollout_seconds}
            | self._stale()
        )
        batch = gathered(self._batch)
        if self.accelerator.is_main_process:
            step = self.state.global_step + 1
            write_trajectories(self.run.file("train", "trajectories", f"step_{step:05d}.parquet"), batch)
        told |= batch_metrics(batch) | tool_metrics(batch) | component_metrics(batch, self.reward)
        self._extra = told | self._selection | audit_metrics(audited(self._tasks, batch))
        self._sampled = batch
        return output

    def _bring_lessons(self, output: dict[str, Any]) -> dict[str, int]:
        """Put what this process' rollouts did achieve into the batch, where it is to be imitated; how many
        lessons.
        """
        if not self.lesson_weight:
            return {}
        found = lesson_batch(self.lab, list(self._tasks.values()), self._batch, self.processing_class)
        output |= {name: x.to(output["completion_ids"].device) for name, x in found.items()}
        return {"lessons": int(found["lesson_scored"].any(1).sum())}

    def _stale(self) -> dict[str, int]:
        """Replayed tool calls whose cached answer was another one, since the last step."""
        cache = self._options.get("tool_cache")
        total = sum(cache.mismatches.values()) if cache else 0
        found, self._mismatches = {"cache_mismatches": total - self._mismatches}, total
        return found

    def sampled_mask(self, completion_mask: torch.Tensor) -> torch.Tensor:
        """The action mask (B, T) of the batch just sampled, 0 on what the loss leaves out."""
        return _padded(self._trained, completion_mask).bool()

    def _advantages(self, like: torch.Tensor) -> torch.Tensor:
        """Advantages of this process' trajectories among those of all: (B,), or (B, T) with T the columns of
        ``like``.
        """
        everyone, size = gathered(self._batch), self.recipe.group_size
        groups = [i // size for i in range(len(everyone))]
        found = advantages.of_trajectories(self._tasks, everyone, groups, self.reward, self.recipe)
        first = self.accelerator.process_index * len(self._batch)
        own = found[first : first + len(self._batch)].to(like.device)
        if own.ndim == 2:
            own = torch.nn.functional.pad(own, (0, max(0, like.shape[1] - own.shape[1])))[:, : like.shape[1]]
        told = [advantages.summary(row, t.action_mask) for row, t in zip(own, self._batch, strict=True)]
        self._batch = [replace(t, advantage=a) for t, a in zip(self._batch, told, strict=True)]
        return own

    def sample_groups(self) -> None:
        """Roll out and score the batch TRL asked for: its rows are already repeated, group by group.

        Fresh tasks may take the place of some (``dead_groups: replace``), and the loss may leave trajectories
        out.
        """
        tasks = [self._tasks[row["task_id"]] for row in self._rows[:: self.recipe.group_size]]
        start, seed = time.monotonic(), self.recipe.seed + 1_000_003 * (self.state.global_step + 1)
        fresh = fresh_tasks(self._tasks.values(), gathered([task.id for task in tasks]), seed)
        fresh = fresh[self.accelerator.process_index :: self.accelerator.num_processes]
        selected = select(tasks, fresh, lambda own, size: self._rollout(own, size, seed), self.recipe)
        self._batch, self._selection = selected.trajectories, selected.metrics
        self._trained = [
            [0] * len(t.action_mask) if out else t.action_mask
            for t, out in zip(self._batch, selected.left_out, strict=True)
        ]
        self.guards.scored(gathered(self._batch))
        self._rollout_seconds = time.monotonic() - start

    def _rollout(self, tasks: Sequence[Task], group_size: int, seed: int) -> list[Trajectory]:
        step = self.state.global_step + 1
        model = self.accelerator.unwrap_model(self.model)
        with merged(model):
            if apart := sync(self.policy, model, self.recipe.temperature, self.recipe.sync_threshold):
                self._gap = {"sync_gap": apart.mean}
            sampled = rollout(
                tasks, self.policy, group_size=group_size, seed=seed, step=step, **self._options
            )
        return score_all(tasks, sampled, self.reward)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write one metrics row a step, in the kit's names, as soon as it is known."""
        if self.recipe.report_to != "none" and "loss" in logs:
            logs |= {name: value for name, value in self._extra.items() if math.isfinite(value)}
        super().log(logs, start_time)
        if "loss" not in logs:
            return
        row = {"step": self.state.global_step, "loss": logs["loss"], "grad_norm": float(logs["grad_norm"]),
               "learning_rate": logs["learning_rate"]}  # fmt: skip
        row |= {ours: logs[theirs] for theirs, ours in _METRICS.items() if theirs in logs} | self._extra
        row["seconds"] = time.monotonic() - self._started
        row["update_seconds"] = row["seconds"] - row.get("rollout_seconds", 0.0) - row.get("val_seconds", 0.0)
        self._started, self._extra = time.monotonic(), {}
        self.write_metrics(row)

    def write_metrics(self, row: dict[str, Any]) -> None:
        """Append one row to train/metrics.jsonl and hand it to the live view."""
        if self.accelerator.is_main_process:
            self._watch = self._watch or Watch.over(self.run)
            append_jsonl(self.run.file("train", "metrics.jsonl"), row)
            self._watch.add(row, self._sampled if row["step"] else ())
            self._sampled = []
            self.on_metrics(row)

    def validate(self) -> dict[str, Any]:
        """Success on the validation tasks, sampled as in training; the adapter is kept when none before was
        better.
        """
        if not self.validation:
            return {}
        start = time.monotonic()
        found = on_main_process(
            lambda: self._rollout(self.validation, self.recipe.val_samples, self.recipe.seed)
        )
        summary = summarize(found, self.validation)
        improved = summary["success"] >= self.best[0]
        if improved:
            self.best = (summary["success"], self.state.global_step)
            kept = (
                self.accelerator.unwrap_model(self.model),
                self.processing_class,
                self.run.file("adapter"),
            )
            on_main_process(lambda: save_adapter(*kept))
        self.guards.validated(summary["success"], improved)
        low, high = summary["ci95"]
        values = {"val_success": summary["success"], "val_ci_low": low, "val_ci_high": high}
        return values | {"val_seconds": time.monotonic() - start}


class _Validate(TrainerCallback):
    """Validation before the first step, every ``val_every`` steps, and after the last."""

    def __init__(self, trainer: AgentGRPOTrainer):
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:  # else training goes on from a checkpoint
            self._trainer.write_metrics({"step": 0} | self._trainer.validate())
        self._trainer._started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._trainer.recipe.val_every == 0 or state.global_step == state.max_steps:
            self._trainer._extra |= self._trainer.validate()


_METRICS = {
    "reward": "reward",
    "reward_std": "reward_std",
    "kl": "kl",
    "entropy": "entropy",
    "clip_ratio/region_mean": "clip_fraction",
    "cispo_clip_ratio": "clip_fraction",
    "frac_reward_zero_std": "dead_groups",
}


def _reward(rewards: list[float | None], **unused: Any) -> list[float | None]:
    """A reward function in TRL's form: the trajectories are scored already. TRL prints what it hands over
    where that is None.
    """
    return rewards


def _rollout_func(prompts: list, trainer: AgentGRPOTrainer) -> dict[str, list]:
    """TRL's rollout_func: one completion for each prompt it received."""
    trainer.sample_groups()
    return {
        "prompt_ids": [list(t.prompt_ids) for t in trainer._batch],
        "completion_ids": [list(t.completion_ids) for t in trainer._batch],
        "logprobs": [list(t.old_logprobs) for t in trainer._batch],
        "env_mask": [list(mask) for mask in trainer._trained],
        "rewards": [t.reward for t in trainer._batch],
    }


def _padded(rows: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    """Values of completion tokens, (B, T) with zeros at the right end, beside completion ids."""
    found = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    for i, row in enumerate(rows):
        found[i, : len(row)] = torch.tensor(row)
    return found


def batch_metrics(batch: Sequence[Trajectory]) -> dict[str, float]:
    """What a batch of trajectories tells: success, turns, tool failures, lengths, unscored share."""
    calls = [result.ok for t in batch for turn in t.turns for result in turn.results]
    scored = [t.success for t in batch if t.success is not None]
    return {
        "success": float(np.mean(scored)) if scored else float("nan"),
        "unscored": 1 - len(scored) / len(batch),
        "turns": float(np.mean([len(t.turns) for t in batch])),
        "tool_calls": len(calls) / len(batch),
        "tool_failure_rate": 1 - float(np.mean(calls)) if calls else 0.0,
        "completion_tokens": float(np.mean([len(t.completion_ids) for t in batch])),
    }


def train(trainer: AgentGRPOTrainer) -> dict[str, Any]:
    """Run GRPO from the SFT reference; the best adapter lies in the run's adapter/ afterwards.

    Returns:
        The best validation success, its step, the number of steps, and why training ended: steps, patience,
            rollbacks or asked.

    Raises:
        TrainingError: a guard stopped it; a checkpoint is kept.
        TrainingStopped: it was interrupted; a checkpoint is kept, and a new trainer goes on from it.
    """
    with trainer.policy:
        if trainer.finished:
            return trainer.finished
        trainer.train()
    check_same(trainer.model)
    if trainer.guards.problem:
        raise TrainingError(trainer.guards.problem)
    steps = trainer.state.global_step
    ended = trainer.guards.ended or ("steps" if steps == trainer.recipe.steps else "asked")
    result = {
        "best_val_success": trainer.best[0],
        "best_step": trainer.best[1],
        "steps": steps,
        "ended": ended,
    }
    if ended != "asked":
        trainer.mark_finished(result)
    return result
