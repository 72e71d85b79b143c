"""GRPO on multi-turn tool trajectories: a subclass of TRL's GRPOTrainer.

TRL keeps the loss, the optimiser and the schedule. Replaced are its two ends: rollouts come from the rollout
loop, token-exact and with an action mask, with the kit's rewards and advantages; log-probabilities share
prefixes (update; TRL 1.15's own need a GPU kernel). Every step writes its metrics and trajectories before the
next begins; validation chooses the adapter that is kept. Leaves out the loss (update), what a step is
(selection, advantages) and several processes (processes).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import PrinterCallback

from agentkit.diagnostics import Watch
from agentkit.policies.engine_weights import bare
from agentkit.policies.loading import make_policy
from agentkit.policies.process_group import counted, gathered
from agentkit.policies.shards import leave_shards
from agentkit.policies.sync_guard import NOISE, sync
from agentkit.policies.unsloth import adapted
from agentkit.records import EngineError, RecipeError, Step, Task, TrainingError, Trajectory
from agentkit.rewards import score_all
from agentkit.rollouts import prompt_lengths, rollout
from agentkit.rollouts.template_probe import end_of_turn_ids
from agentkit.rollouts.tokens import check_batch
from agentkit.runs import Run, append_jsonl, write_trajectories
from agentkit.training import advantages, metrics
from agentkit.training.adapters import lora, merged
from agentkit.training.grpo_config import grpo_config
from agentkit.training.guards import Guards
from agentkit.training.hindsight import lesson_batch
from agentkit.training.processes import check_same, unlock
from agentkit.training.resume import Resumable, made_with
from agentkit.training.selection import Selected, fresh_tasks, select
from agentkit.training.trainers import Progress
from agentkit.training.trl_trainer import GRPOTrainer
from agentkit.training.update import Update, kl_median
from agentkit.training.validation import Validate, Validated, spread_over

if TYPE_CHECKING:
    from agentkit.lab import Lab

OnMetrics = Callable[[dict[str, Any]], None]


class AgentGRPOTrainer(Resumable, Validated, Update, GRPOTrainer):
    """TRL's GRPOTrainer with agent rollouts.

    It goes on from the newest sound checkpoint in the run's train/ where that was made with the same
    parameters; otherwise what an earlier training left there is kept beside it as train-1, train-2 and so on.
    A new LoRA adapter is put on ``model``, the SFT model, which is the reference with the adapter switched
    off; ``engine: unsloth`` loads it anew. ``on_metrics`` is called with every metrics row.

    Attributes:
        step: the batch in the making or in use, of all processes; it travels beside TRL's batch.
        best: the best validation success, and the step of the adapter that is kept.
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
        recipe = lab.recipe
        self.lab, self.recipe, self.run, self.on_metrics = lab, recipe, run, on_metrics
        self.reward = lab.reward
        if len(tasks) < recipe.prompts_per_step:  # TRL would train no step
            raise RecipeError(
                f"prompts_per_step {recipe.prompts_per_step} is more than the {len(tasks)} training tasks: "
                "lower it, or give more tasks"
            )
        self.validation = spread_over(validation, recipe.val_tasks)
        self.best: tuple[float, int] = (-1.0, 0)
        self.step = Step(0, ())
        self.guards = Guards(recipe)
        self.lesson_weight, self.token_budget = recipe.hindsight_weight, recipe.micro_batch_tokens
        self._options = lab.options()
        self._tasks = {task.id: task for task in tasks}
        self._watch: Watch | None = None
        self._measured: dict[str, float] = {}  # columns of the next metrics row
        self._mismatches = 0  # of the tool cache, so far
        self._noise: dict[str, float] = {}  # what engine and trainer last differed by
        self._started = time.monotonic()
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # of rollout_func, tested with this pin
        unsloth, engine = recipe.engine == "unsloth", None
        if unsloth:
            model, engine = adapted(model, tokenizer, recipe)
        super().__init__(
            model=model if unsloth else bare(model),
            args=grpo_config(recipe, run.file("train", "checkpoints")),
            reward_funcs=[_reward],
            # the prompt is nobody's: of messages TRL would parse completions too, and stumble over odd ones
            train_dataset=Dataset.from_list([{"prompt": t.id, "task_id": t.id} for t in tasks]),
            processing_class=tokenizer,
            peft_config=None if unsloth else lora(recipe, model),
            rollout_func=_rollout_func,
            callbacks=[Progress("GRPO"), Validate(self), self.guards],
        )
        self._prepare(tokenizer, engine)

    def _prepare(self, tokenizer: Any, engine: Any) -> None:
        """What needs the model as TRL has set it up: prefixes, the checkpoint to go on from, the policy."""
        self.remove_callback(PrinterCallback)
        if "ref" in self.model.peft_config:  # TRL's copy of an adapter that changes nothing yet
            self.model.delete_adapter("ref")
        leave_shards(self.model)
        self.share_prefixes(self.recipe.share_prefixes)
        tasks = [*self._tasks.values(), *self.validation]
        world = self.accelerator.num_processes
        model = self.accelerator.unwrap_model(self.model)
        with ExitStack() as failed:
            failed.callback(unlock, self.run)
            self.open_training(made_with(self.lab, self.model, tasks, world))
            self.policy = make_policy(model, tokenizer, "grpo", self.recipe, engine)
            failed.callback(self.policy.close)
            self._check_prompts(tasks)
            failed.pop_all()  # it did not: lock and policy are kept

    def _check_prompts(self, tasks: Sequence[Task]) -> None:
        """Raise RecipeError where a prompt leaves no room for a completion, as far as it is known now."""
        reads, options = self.policy.max_length or math.inf, self._options
        # a text has no more tokens than bytes; the tools' is taken to be at most half of what is read
        long = [task for task in tasks if 2 * len(task.prompt.encode("utf-8", "replace")) >= reads]
        lengths = prompt_lengths(long, self.policy.tokenizer, options["environment"])
        worst = max(lengths, key=lengths.get, default=None)
        if worst is not None and lengths[worst] >= reads:
            raise RecipeError(
                f"the prompt of task {worst} has {lengths[worst]} tokens, and the engine reads {reads} with "
                "the completion: leave such tasks out with max_prompt_tokens, or give it a longer context"
            )

    # ---- a step: rollouts and rewards, then TRL's batch of them
    def _set_signature_columns_if_needed(self) -> None:
        """Keep the task id beside the prompt."""
        self._signature_columns = ["prompt", "task_id"]

    def _generate_and_score_completions(self, inputs: list[dict]) -> dict[str, Any]:
        """TRL's batch of a step, with the kit's advantages and the log-probabilities at sampling.

        TRL's rows go in, already repeated, group by group. TRL asks ``_rollout_func`` for the completions,
        which calls ``sample_groups``: ``self.step`` carries the tasks there, and the trajectories back.
        """
        tasks = tuple(self._tasks[row["task_id"]] for row in inputs[:: self.recipe.group_size])
        self.step = Step(self.state.global_step + 1, tasks)
        output = super()._generate_and_score_completions(inputs)
        completion_ids = output["completion_ids"]
        if self.step.number == 1:
            check_batch(output, self.own_trajectories, self.recipe.group_size, self.processing_class)
        output["advantages"] = self._advantages(completion_ids)
        sampled = _padded([t.old_logprobs for t in self.own_trajectories], completion_ids)
        if self.lesson_weight:
            self._add_lessons(output)
        self._measured |= metrics.mean_of(gathered([self._correct_and_compare(output, sampled)]))
        self._measured |= metrics.rollout_metrics(self.step) | metrics.reward_metrics(self.step, self.reward)
        if self.accelerator.is_main_process:
            path = self.run.file("train", "trajectories", f"step_{self.step.number:05d}.parquet")
            write_trajectories(path, self.step.trajectories)
        return output

    def sample_groups(self) -> None:
        """Roll out and score the step's tasks.

        Fresh tasks may take the place of some (``dead_groups: replace``), and the loss may leave trajectories
        out.
        """
        start, asked = time.monotonic(), self.step.tasks
        everyone = gathered([task.id for task in asked])
        with self._synced() as gap:
            selected = self._sample(asked, everyone)
        trajectories, more = selected.trajectories, 1 + self.recipe.resample_correct
        counted["training"] += more * len(trajectories) + selected.counts["extra"]
        trained = (
            (0,) * len(t.action_mask) if out else t.action_mask
            for t, out in zip(trajectories, selected.left_out, strict=True)
        )
        step = Step(
            self.step.number,
            tuple(self._tasks[t.task_id] for t in trajectories[:: self.recipe.group_size]),
            tuple(trajectories),
            tuple(trained),
            selected.counts,
            time.monotonic() - start,
        )
        self.step = metrics.joined(gathered([step]))
        self.guards.scored(self.step.trajectories)
        self._measured |= gap | self._cache_mismatches() | {"planned_steps": self.recipe.steps}

    def _sample(self, tasks: Sequence[Task], everyone: Sequence[str]) -> Selected:
        """The trajectories of this process' tasks at a step; ``everyone`` has the ids of all processes'."""
        seed = self.recipe.seed + 1_000_003 * self.step.number
        fresh = fresh_tasks(self._tasks.values(), everyone, seed)
        index, count = self.accelerator.process_index, self.accelerator.num_processes
        fresh = fresh[index::count]
        extra = int(self.recipe.extra_rollouts * len(everyone))  # groups of all processes
        extra = extra // count + (index < extra % count)
        roll = partial(self._rollout, seed=seed, step=self.step.number)
        is_dead = partial(advantages.teaches_nothing, self._tasks, self.reward, self.recipe)
        return select(tasks, fresh, roll, is_dead, self.recipe, extra)

    @contextmanager
    def _synced(self) -> Iterator[dict[str, float]]:
        """Give the policy the weights as they are; yields metrics where its engine has weights of its own.

        Afterwards its engine sleeps, so that the update has its memory.
        """
        model = self.accelerator.unwrap_model(self.model)
        with merged(model) if self.policy.shares_weights else nullcontext():
            recipe, noise = self.recipe, self._noise.get("sync")
            gap = sync(self.policy, model, recipe.temperature, recipe.sync_threshold, noise)
            if gap:
                self._noise["sync"] = gap.mean
            yield gap.metrics("sync_gap") if gap else {}
        self.policy.sleep()

    def _rollout(self, tasks: Sequence[Task], group_size: int, **options: Any) -> list[Trajectory]:
        sampled = rollout(tasks, policy=self.policy, group_size=group_size, **options, **self._options)
        end = (sorted(end_of_turn_ids(self.policy.tokenizer))[0],)
        whole = [t if t.completion_ids else _with_token(t, end) for t in sampled]
        return score_all(tasks, whole, self.reward)

    def _correct_and_compare(self, output: dict[str, Any], sampled: torch.Tensor) -> dict[str, float]:
        """The batch corrected where engine and trainer disagree, and metrics of how far they do.

        Raises:
            EngineError: the batch was sampled by another policy than the one that is trained.
        """
        recipe, mode = self.recipe, self.recipe.mismatch
        dtype = self.accelerator.unwrap_model(self.model).dtype
        if mode == "auto":
            same = self.policy.shares_weights and dtype == torch.float32
            mode = "off" if same else "token_truncate"
        measured = self.correct_mismatch(output, sampled, mode, recipe.mismatch_cap, recipe.mismatch_floor)
        before = self._noise.get("batch")
        compared = self.compare_engine(output, sampled, before or NOISE[dtype])
        mismatch = self.engine_gap(output, sampled) if mode == "off" else 0.0
        if compared is None:
            return measured
        measured |= {"adapter_effect": compared.effect} | kl_median(output)
        if mode == "off":
            return measured | {"mismatch": mismatch}
        if why := compared.problem(dtype, recipe.sync_threshold, before or math.inf):
            raise EngineError(
                f"in the rollouts of step {self.step.number} {why}: they were sampled by another policy than "
                "the one that is trained, or at another temperature. The run stops before it learns from them"
            )
        self._noise["batch"] = compared.mean
        return measured | compared.metrics("mismatch")

    def _cache_mismatches(self) -> dict[str, int]:
        """Replayed tool calls whose cached answer was another one, since the last step."""
        cache = self._options.get("tool_cache")
        before = self._mismatches
        self._mismatches = sum(cache.mismatches.values()) if cache else 0
        return {"cache_mismatches": sum(gathered([self._mismatches - before]))}

    @property
    def own_trajectories(self) -> tuple[Trajectory, ...]:
        """Those of the step that this process sampled, and trains on."""
        return self.step.trajectories[self._own]

    @property
    def _own(self) -> slice:
        size = len(self.step.trajectories) // self.accelerator.num_processes
        return slice(self.accelerator.process_index * size, (self.accelerator.process_index + 1) * size)

    def sampled_mask(self, completion_mask: torch.Tensor) -> torch.Tensor:
        """The action mask (B, T) of the batch just sampled, 0 on what the loss leaves out."""
        return _padded(self.step.trained[self._own], completion_mask).bool()

    def _advantages(self, like: torch.Tensor) -> torch.Tensor:
        """(B,) or (B, T) advantages of this process' trajectories among those of all, into the record too."""
        trajectories = self.step.trajectories
        groups = [i // self.recipe.group_size for i in range(len(trajectories))]
        values = advantages.of_trajectories(self._tasks, trajectories, groups, self.reward, self.recipe)
        recorded = [
            replace(t, advantage=advantages.summary(value, t.action_mask))
            for t, value in zip(trajectories, values, strict=True)
        ]
        self.step = replace(self.step, trajectories=tuple(recorded))
        values = values[self._own].to(like.device)
        if values.ndim == 1:
            return values
        missing = max(0, like.shape[1] - values.shape[1])
        return torch.nn.functional.pad(values, (0, missing))[:, : like.shape[1]]

    def _add_lessons(self, output: dict[str, Any]) -> None:
        lessons = lesson_batch(self.lab, self.step.tasks, self.own_trajectories, self.processing_class)
        counts = gathered([int(lessons["lesson_tokens"])])  # gradients are averaged over processes
        lessons["lesson_tokens"] = torch.tensor(sum(counts) / len(counts) / self.recipe.minibatches)
        output |= {name: values.to(output["completion_ids"].device) for name, values in lessons.items()}
        self._measured["lessons"] = sum(gathered([int(lessons["lesson_scored"].any(1).sum())]))

    # ---- the metrics row
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            self._measured |= self.guards.metrics()
        if self.recipe.report_to != "none" and "loss" in logs:
            logs |= {name: value for name, value in self._measured.items() if math.isfinite(value)}
        super().log(logs, start_time)  # puts TRL's own metrics into logs
        if "loss" in logs:
            self._write_row(logs, time.monotonic() - self._started)
            self._started = time.monotonic()

    def _write_row(self, logs: dict[str, Any], seconds: float | None = None) -> None:
        number = self.state.global_step
        row = metrics.row(number, logs, self._measured, seconds)
        self._measured = {}
        if self.accelerator.is_main_process:
            self._watch = self._watch or Watch.over(self.run)
            append_jsonl(self.run.file("train", "metrics.jsonl"), row)
            self._watch.add(row, self.step.trajectories if number and number == self.step.number else ())
            self.on_metrics(row)


def _reward(rewards: list[float | None], **unused: Any) -> list[float | None]:
    return rewards


def _rollout_func(prompts: list, trainer: AgentGRPOTrainer) -> dict[str, list]:
    """TRL's rollout_func: one completion for each prompt it received."""
    trainer.sample_groups()
    trajectories = trainer.own_trajectories
    return {
        "prompt_ids": [list(t.prompt_ids) for t in trajectories],
        "completion_ids": [list(t.completion_ids) for t in trajectories],
        "logprobs": [list(t.old_logprobs) for t in trajectories],
        "env_mask": [list(mask) for mask in trainer.step.trained[trainer._own]],
        "rewards": [t.reward for t in trajectories],
    }


def _with_token(trajectory: Trajectory, ids: tuple[int, ...]) -> Trajectory:
    """One that ended before its first token, with one that is not trained on: TRL expects a token."""
    return replace(trajectory, completion_ids=ids, action_mask=(0,), old_logprobs=(0.0,))


def _padded(rows: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    """Values of completion tokens, (B, T) with zeros at the right end, beside completion ids."""
    values = pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)
    return torch.nn.functional.pad(values, (0, like.shape[1] - values.shape[1])).to(like.device)


def train(trainer: AgentGRPOTrainer) -> dict[str, Any]:
    """Run GRPO from the SFT reference; the adapter that validation chose lies in adapter/ afterwards.

    Returns the best validation success, the kept adapter's step, the number of steps, and why training
    ended: steps, patience, solved or asked. A checkpoint is kept where it raises TrainingError (a guard) or
    TrainingStopped (interrupted).
    """
    with trainer.policy:
        trainer.train()
    check_same(trainer.model)
    if trainer.guards.problem:
        raise TrainingError(trainer.guards.problem)
    steps = trainer.state.global_step
    ended = trainer.guards.watch.ended or ("steps" if steps == trainer.recipe.steps else "asked")
    result = {
        "best_val_success": trainer.best[0],
        "best_step": trainer.best[1],
        "steps": steps,
        "ended": ended,
    }
    if ended != "asked":
        trainer.mark_finished(result)
    return result
