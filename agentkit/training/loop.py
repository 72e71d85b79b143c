"""GRPO on multi-turn tool trajectories as one loop: sample, score, compare, update, validate, write down.

Every process samples and trains on its share of a batch. The loss is a sum over tokens, so gradients and
metrics of processes and passes are summed. Leaves out the loss, when training stops (guards) and what a
checkpoint holds (saves).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from peft import get_peft_model
from torch import Tensor
from tqdm.auto import tqdm
from transformers import get_scheduler, set_seed

from agentkit.diagnostics import Watch
from agentkit.evaluation import summarize
from agentkit.policies.engine_weights import bare
from agentkit.policies.loading import make_policy
from agentkit.policies.precision import checkpoints
from agentkit.policies.process_group import gathered, join, on_main_process, rank, spread, world
from agentkit.policies.shards import sharded
from agentkit.policies.sync_guard import sync
from agentkit.policies.unsloth import adapted
from agentkit.records import RecipeError, RunError, Step, Task, Trajectory
from agentkit.rewards import score_all
from agentkit.rollouts import prompt_lengths, rollout
from agentkit.rollouts.tokens import batch_faults, exact_decode
from agentkit.runs import Run, append_jsonl, write_trajectories
from agentkit.training import advantages, metrics
from agentkit.training.adapters import lora, merged, save_adapter
from agentkit.training.guards import Guards
from agentkit.training.hindsight import demonstrate, lessons
from agentkit.training.loss import Batch, Loss
from agentkit.training.mismatch import Correction
from agentkit.training.prefix import scorer
from agentkit.training.processes import check_same, share_gradients, summed
from agentkit.training.saves import Saves
from agentkit.training.selection import Selected, batches, fresh_tasks, select, spread_over

if TYPE_CHECKING:
    from agentkit.lab import Lab
    from agentkit.recipe import Recipe

OnMetrics = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What no recipe says of a training."""

    share_prefixes: bool = True  # compute what trajectories have in common once
    importance_level: str = "token"  # of the loss' ratio: token, or sequence as in GSPO
    until_solved: bool = False  # end training once every task of a step was solved by some rollout
    hindsight_keep: float = 1.0  # share of a task's lessons that is imitated


class GRPO:
    """One training from the SFT model, which is the reference with its new adapter switched off.

    ``train`` goes on from the newest sound checkpoint in the run's train/ where that was made with the same
    parameters; otherwise what an earlier training left there is kept beside it as train-1 and so on.
    ``on_metrics`` is called with every metrics row; without it there is a progress bar. ``settings`` are
    those of ``Settings``.

    Attributes:
        done: optimiser steps so far.
        step: the batch sampled last, of all processes.
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
        on_metrics: OnMetrics | None = None,
        **settings: Any,
    ):
        recipe = lab.recipe
        join(recipe)
        check_size(recipe, len(tasks))
        self.lab, self.recipe, self.run = lab, recipe, run
        self.on_metrics, self._is_followed = on_metrics or (lambda row: None), on_metrics is not None
        self.tokenizer, self.settings, self.options = tokenizer, Settings(**settings), lab.options()
        self.tasks = {task.id: task for task in tasks}
        self.validation = spread_over(validation, recipe.val_tasks)
        set_seed(recipe.seed)
        self.model, self._engine = _with_new_adapter(model, tokenizer, lab)
        self.score, self.unshared = scorer(self.model, self.settings.share_prefixes)
        if self.unshared and self.settings.share_prefixes:
            why = f"every trajectory is computed in full, prompt included: {self.unshared}"
            warnings.warn(why, stacklevel=2)
        clip = recipe.clip_epsilon, recipe.clip_epsilon_high or recipe.clip_epsilon
        level = self.settings.importance_level
        self.loss = Loss(recipe.loss_type, *clip, recipe.beta, level, recipe.max_tokens)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=recipe.learning_rate, weight_decay=0.0)
        self.schedule = get_scheduler(recipe.lr_schedule, self.optimizer, recipe.warmup_steps, recipe.steps)
        self.guards = Guards(self.settings.until_solved)
        self.done, self.step, self.best = 0, Step(0, ()), (-1.0, 0)
        self._sync_noise: float | None = None  # what engine and trainer differed by after the last sync
        self.saves = Saves(self)

    # ---- the loop
    def train(self) -> dict[str, Any]:
        """Train; the adapter that validation chose lies in the run's adapter/ afterwards.

        Returns the best validation success, the kept adapter's step, the number of steps, and why training
        ended: steps, solved or asked. A checkpoint is kept where it raises TrainingError (a guard)
        or TrainingStopped (interrupted).
        """
        recipe, main = self.recipe, rank() == 0
        policy = partial(make_policy, self.model, self.tokenizer, "grpo", recipe, self._engine)
        bar = partial(tqdm, total=recipe.steps, desc="GRPO", disable=not main or self._is_followed)
        with self.saves, policy() as self.policy, bar() as self._bar:
            self._check_prompts()
            self.saves.go_on()
            self._bar.update(self.done)
            self._correct = Correction(self.policy, self.model, self.logprobs, recipe)
            self._report = metrics.reporter(recipe.report_to, self.run if main else None)
            self._watch = Watch.over(self.run, self.lab.own_alarms) if main else None
            if not self.done:
                self.write(metrics.row(0, self.validate()))
            order = batches([*self.tasks.values()], recipe.prompts_per_step, recipe.seed)
            for asked in islice(order, self.done // recipe.minibatches, None):
                if self.over or self.saves.ending:
                    break
                self.train_on(asked)
                self.saves.after()
            check_same(self.trained)
            return self.saves.finish()

    @property
    def over(self) -> bool:
        return self.done >= self.recipe.steps or self.guards.ended is not None

    def train_on(self, asked: Sequence[Task]) -> None:
        """All optimiser steps on one batch; each writes its row before the next begins."""
        start, count = time.monotonic(), self.recipe.minibatches
        step, measured = self.collect(asked)
        batch, imitated, found = self.assemble(step)
        measured, sampled = measured | found, self.step.trajectories
        taught = imitated.split(count) if imitated else [None] * count
        for part in zip(batch.split(count), taught, strict=True):
            measured |= self.update(*part)
            is_last = self.done % count == 0 or self.done == self.recipe.steps
            if is_last:
                self.saves.listen()
            is_end = is_last and (self.over or self.saves.ending)
            if is_end or self.done % self.recipe.val_every == 0:
                measured |= self.validate()
            self.write(metrics.row(self.done, measured, time.monotonic() - start), sampled)
            if is_last:
                return
            start, measured, sampled = time.monotonic(), {}, ()

    def write(self, row: dict[str, Any], sampled: Sequence[Trajectory] = ()) -> None:
        """A row of metrics.jsonl, with the batch it was made on where that is new, to all who look at it."""
        if rank() > 0:
            return
        append_jsonl(self.run.file("train", "metrics.jsonl"), row)
        self._watch.add(row, sampled)
        self._report(row)
        self._bar.set_postfix({"loss": f"{row['loss']:.4g}"} if "loss" in row else {}, refresh=False)
        self._bar.update(self.done - self._bar.n)
        self.on_metrics(row)

    # ---- sampling
    def collect(self, asked: Sequence[Task]) -> tuple[Step, dict[str, float]]:
        """The trajectories of all processes for these tasks, scored, and their metrics.

        Fresh tasks may take the place of some (``dead_groups: replace``), and the loss may leave trajectories
        out.
        """
        start, size = time.monotonic(), self.recipe.group_size
        with self.synced() as measured:
            chosen = self._select(asked)
        sampled = chosen.trajectories
        both = zip(sampled, chosen.left_out, strict=True)
        trained = ((0,) * len(t.action_mask) if out else t.action_mask for t, out in both)
        tasks = tuple(self.tasks[t.task_id] for t in sampled[::size])
        took = time.monotonic() - start
        mine = Step(self.done + 1, tasks, tuple(sampled), tuple(trained), chosen.counts, took)
        step = metrics.joined(gathered([mine]))
        self.guards.scored(step.trajectories)
        measured |= {"planned_steps": self.recipe.steps}
        return step, measured | metrics.of_step(step, self.lab)

    def _select(self, asked: Sequence[Task]) -> Selected:
        """This process' share of a step's groups."""
        share, number, own = len(asked) // world(), self.done + 1, self.lab.own_advantages
        seed = self.recipe.seed + 1_000_003 * number
        return select(
            asked[rank() * share : (rank() + 1) * share],
            fresh_tasks(self.tasks.values(), [task.id for task in asked], seed)[rank() :: world()],
            partial(self._roll, seed=seed, step=number),
            partial(advantages.teaches_nothing, self.tasks, self.lab.reward, self.recipe, own=own),
            self.recipe,
        )

    @contextmanager
    def synced(self) -> Iterator[dict[str, float]]:
        """Within, the policy has the weights as they are; gives metrics where its engine has its own.

        Afterwards its engine sleeps, so that the update has its memory.
        """
        with merged(self.model) if self.policy.shares_weights else nullcontext():
            gap = sync(self.policy, self.model, self.recipe.temperature, noise=self._sync_noise)
            self._sync_noise = gap.mean if gap else None
            yield gap.metrics("sync_gap") if gap else {}
        self.policy.sleep()

    def _roll(self, tasks: Sequence[Task], group_size: int, **options: Any) -> list[Trajectory]:
        sampled = rollout(tasks, self.policy, group_size=group_size, **options, **self.options)
        return score_all(tasks, sampled, self.lab.reward)

    # ---- what is learnt from
    def assemble(self, step: Step) -> tuple[Batch, Batch | None, dict[str, float]]:
        """This process' share of a step as the update reads it, with advantages among all of it; what is to
        be imitated besides; and metrics.
        """
        recipe, number = self.recipe, len(step.trajectories)
        groups = [i // recipe.group_size for i in range(number)]
        how = self.lab.reward, recipe, self.lab.own_advantages
        values = advantages.of_trajectories(self.tasks, step.trajectories, groups, *how)
        self.step = step = replace(step, trajectories=advantages.recorded(step.trajectories, values))
        own = slice(rank() * number // world(), (rank() + 1) * number // world())
        mine = step.trajectories[own]
        batch = Batch.of(mine, step.trained[own], values[own], self.model.device)
        if step.number == 1:
            self._check_batch(mine, batch)
        if recipe.beta:
            with self.model.disable_adapter():
                batch = replace(batch, reference=self.logprobs(batch, batch.mask))
        batch, found = self._correct(batch)
        imitated, taught = self._lessons(step, mine)
        file = self.run.file("train", "trajectories", f"step_{step.number:05d}.parquet")
        on_main_process(lambda: write_trajectories(file, step.trajectories))
        return batch, imitated, metrics.mean_of(gathered([found])) | taught

    def _check_batch(self, sampled: Sequence[Trajectory], batch: Batch) -> None:
        """The gate before the first update: what the loss will read is what was sampled; else RunError."""
        spans = [(len(t.prompt_ids), len(t.prompt_ids) + len(t.completion_ids)) for t in sampled]
        rows = [batch.ids[i, start:end].tolist() for i, (start, end) in enumerate(spans)]
        read = torch.nn.functional.pad(batch.mask.int(), (1, 0))  # as ids lie
        masks = [read[i, start:end].tolist() for i, (start, end) in enumerate(spans)]
        decode = exact_decode(self.tokenizer)
        if faults := batch_faults(sampled, self.recipe.group_size, rows=rows, masks=masks, decode=decode):
            raise RunError(f"the batch must not be trained on: {' '.join(faults[:5])}")

    def _lessons(self, step: Step, mine: Sequence[Trajectory]) -> tuple[Batch | None, dict[str, float]]:
        """Transcripts of what this process' trajectories did achieve (``hindsight_weight``)."""
        if not self.recipe.hindsight_weight:
            return None, {}
        taught = lessons(step.tasks, mine, self.lab.families, self.settings.hindsight_keep)
        shown, device = demonstrate(self.lab, taught, self.tokenizer), self.model.device
        count = {"lessons": sum(gathered([len(shown)]))}
        masks = [t.action_mask for t in shown]
        return Batch.of(shown, masks, torch.zeros(len(shown)), device) if shown else None, count

    # ---- the update
    def update(self, batch: Batch, imitated: Batch | None = None) -> dict[str, float]:
        """One optimiser step on this process' part of it; metrics over all processes."""
        sums = self.backward(batch)
        sums["loss"] += self._imitate(imitated)
        row = self._move()
        total = dict(zip(sums, summed([*sums.values()]), strict=True))
        row["loss"] = math.nan if self.guards.in_row else total["loss"]
        row["clip_fraction"] = total["clipped"] / max(total["tokens"], 1)
        measured = ["entropy", "kl"] if self.recipe.beta else ["entropy"]
        return row | {name: total[name] / total["scored"] for name in measured if total["scored"]}

    def backward(self, batch: Batch) -> dict[str, float]:
        """The gradient of this process' part of an optimiser step, and sums of what it has measured."""
        mask = batch.mask
        moves = mask  # without a KL term, trajectories without advantage add nothing
        if not self.recipe.beta:
            moves = mask & (batch.advantages != 0).any(1, keepdim=True)
        rows, tokens = summed([len(batch.ids), int(mask.sum())])
        weights = self.loss.weights(mask, int(rows), int(tokens))
        sums = {"scored": int(moves.sum()), "tokens": int(mask.sum())}
        sums |= dict.fromkeys(("loss", "kl", "entropy", "clipped"), 0.0)
        for part, scored in self.parts(batch, moves):
            here, counts = batch[part], scored & moves[part]
            logprobs, entropy = self._scored(here, scored, self.recipe.temperature, entropy=True)
            losses, clipped, kl = self.loss.of_tokens(logprobs, replace(here, old=here.old * scored))
            loss = (losses * weights[part] * counts).sum()
            loss.backward()
            sums["loss"] += float(loss.detach())
            sums["kl"] += float((kl.detach() * counts).sum())
            sums["entropy"] += float((entropy * counts).sum())
            sums["clipped"] += float((clipped & counts).sum())
        return sums

    def _imitate(self, imitated: Batch | None) -> float:
        """The gradient of the lessons' mean negative log-likelihood, nats a token, and this process' part."""
        weight, total = self.recipe.hindsight_weight, 0.0
        if not weight:
            return total
        (tokens,) = summed([0 if imitated is None else int(imitated.mask.sum())])
        for rows, scored in () if imitated is None else self.parts(imitated, imitated.mask):
            loss = -weight * self._scored(imitated[rows], scored, 1.0)[0].sum() / tokens
            loss.backward()
            total += float(loss.detach())
        return total

    def _move(self) -> dict[str, float]:
        """Move the weights by the gradients of all processes, unless those are not finite."""
        share_gradients(self.trained)
        norm = float(torch.nn.utils.clip_grad_norm_(self.trained, self.recipe.max_grad_norm or math.inf))
        row = {"grad_norm": norm, "learning_rate": self.schedule.get_last_lr()[0]}
        self.done += 1  # from here on the weights are not those of the last checkpoint
        if self.guards.take(norm):
            self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return row | ({"skipped_steps": self.guards.skipped} if self.guards.skipped else {})

    def parts(self, batch: Batch, asked: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Rows of each forward pass and what it scores of them; rows of which nothing is asked cost nothing.

        ``asked`` is (B, T) bool. Sharded weights are gathered by all processes at once, so each makes as many
        passes there, some of them in vain.
        """
        passes = torch.arange(len(batch.ids)).split(self.recipe.micro_batch)
        found = [(rows, asked[rows]) for rows in passes if asked[rows].any()]
        if sharded(self.model):
            longest, vain = batch.real.sum(1).argmax()[None], torch.zeros_like(asked[:1])
            vain[0, 0] = True
            found += [(longest, vain)] * (max(gathered([len(found)])) - len(found))
        return found

    def _scored(
        self, batch: Batch, scored: Tensor, temperature: float, entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(B, T) log-probabilities of what is scored, and entropies where asked."""
        half = self.model.dtype != torch.float32
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=half):
            return self.score(self.model, batch.ids, batch.real, scored, temperature, entropy)

    @torch.no_grad()
    def logprobs(self, batch: Batch, asked: Tensor) -> Tensor:
        """(B, T) log-probabilities by the model as it is where ``asked``, zero elsewhere."""
        found = torch.zeros(asked.shape, device=asked.device)
        for rows, scored in self.parts(batch, asked):
            values, _ = self._scored(batch[rows], scored, self.recipe.temperature)
            found[rows] += values * asked[rows]
        return found

    # ---- validation
    def validate(self) -> dict[str, float]:
        """Success on the validation tasks, sampled as in training, and the adapter if it is to be kept: the
        last one within a standard error of the best, as a few tasks cannot tell closer ones apart.
        """
        if not self.validation:
            return {}
        start = time.monotonic()
        roll = partial(self._roll, group_size=1, seed=self.recipe.seed, step=self.done + 1)
        with self.synced():
            sampled = spread(roll, self.validation)
        if all(t.success is None for t in sampled):
            why = f"validation is left out: none of its samples has a verdict ({sampled[0].why[:200]})"
            warnings.warn(why, stacklevel=2)
            return {}
        summary = summarize(sampled, self.validation)
        best, success = self.best[0], summary["success"]
        slack = math.sqrt(max(best, 0.0) * (1 - best) / len(self.validation))  # a standard error
        if success >= best - slack:
            on_main_process(lambda: save_adapter(self.model, self.tokenizer, self.run.file("adapter")))
            self.best = (max(best, success), self.done)
        return metrics.validation_metrics(summary, sampled, time.monotonic() - start)

    def _check_prompts(self) -> None:
        """Raise RecipeError for a prompt that leaves no room: rollouts would end the training at its turn."""
        tasks, reads = [*self.tasks.values(), *self.validation], self.policy.max_length or math.inf
        # a text has no more tokens than bytes; the tools' is taken to be at most half of what is read
        long = [task for task in tasks if 2 * len(task.prompt.encode("utf-8", "replace")) >= reads]
        for task, length in prompt_lengths(long, self.tokenizer, self.options["environment"]).items():
            if length >= reads:
                raise RecipeError(
                    f"the prompt of task {task} has {length} tokens, and the engine reads {reads} with the "
                    "completion: leave such tasks out with max_prompt_tokens, or give it a longer context"
                )


def check_size(recipe: Recipe, tasks: int) -> None:
    """Raise RecipeError for too few tasks, RunError for another number of processes: batches would differ."""
    each, running = recipe.prompts_per_step, world()
    if tasks < each:
        raise RecipeError(
            f"prompts_per_step {each} is more than the {tasks} training tasks: lower it, or give more tasks"
        )
    if running != recipe.processes:
        raise RunError(
            f"the recipe says processes: {recipe.processes}, and {running} run{'s' * (running == 1)}. Start "
            "them with notebook 03 or 'python -m torch.distributed.run --standalone --nproc_per_node "
            f"{recipe.processes}'; 'accelerate launch --cpu' runs one process whatever it is told."
        )


def _with_new_adapter(model: Any, tokenizer: Any, lab: Lab) -> tuple[Any, Any]:
    """The model with a new adapter, ready to train, and the engine that Unsloth brings for its weights."""
    if lab.recipe.engine == "unsloth":
        model, engine = adapted(model, tokenizer, lab.recipe)
        return model.train(), engine
    model = get_peft_model(bare(model), lora(lab.recipe, model)).train()
    if checkpoints(model.dtype):
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    return model, None
