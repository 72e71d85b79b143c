"""One timed GRPO training of the same agent on the same tasks, with our trainer or stock TRL's: how soon is
it good enough?

The clock runs while a step runs and stands still during validation, which is done the same way for both: our
sampling policy, sampled as in training. The peer is ``StockTrainer`` (peer.py) with TRL's own generation and
its ``environment_factory``, one environment a trajectory; its reward is computed from the messages TRL hands
over, by the same verifier and weights.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from trl.chat_template_utils import qwen3_template

from agentkit.lab import Lab
from agentkit.policies.transformers import TransformersPolicy
from agentkit.records import Task
from agentkit.rewards.components import TURN_PENALTY
from agentkit.rollouts import rollout
from agentkit.runs import Run
from agentkit.runs.recipe import Recipe
from agentkit.tools.environments import SYSTEM_PROMPT
from agentkit.training.common import lora, merged, only_own_progress
from agentkit.training.grpo import AgentGRPOTrainer, config
from agentkit.training.peer import StockTrainer
from agentkit.verifiers import final_answer, verify


class Clock(TrainerCallback):
    """Seconds of training, validation left out; stops the training at the target, or when its time is up.

    Args:
        validate: success of the policy as trained so far, in [0, 1].
        every: steps between validations.
        target: the success to reach.
        limit_s: seconds of training after which it is stopped.
    """

    def __init__(self, validate: Callable[[], float], every: int, target: float, limit_s: float):
        self._validate, self._every, self._target, self._limit_s = validate, every, target, limit_s
        self.steps: list[float] = []  # seconds of each
        self.success: dict[int, float] = {}  # by step
        self.reached = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock: an optimiser step begins with its rollouts."""
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock; validate where it is time to."""
        self.steps.append(time.perf_counter() - self._start)
        late = sum(self.steps) > self._limit_s
        if state.global_step % self._every == 0 or state.global_step == state.max_steps or late:
            self.success[state.global_step] = self._validate()
            self.reached = self.success[state.global_step] >= self._target
            control.should_training_stop = self.reached or late


def race_ours(model: Any, tokenizer: Any, tasks: Sequence[Task], validation: Sequence[Task], lab: Lab,
              every: int, target: float, limit_s: float = math.inf) -> dict[str, Any]:  # fmt: skip
    """Train with our trainer until validation success reaches the target, or the recipe's steps or the
    seconds are over.

    Returns:
        seconds in all, steps, reached, success by step, and mean seconds a step of rollouts and of the rest.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "race")
        trainer = AgentGRPOTrainer(lab, model, tokenizer, tasks, [], run)
        found = _timed(trainer, validation, lab, every, target, limit_s)
        rollouts = fmean(run.metrics["rollout_seconds"].dropna())
    return found | _levers(found, rollouts)


def race_trl(model: Any, tokenizer: Any, tasks: Sequence[Task], validation: Sequence[Task], lab: Lab,
             every: int, target: float, limit_s: float = math.inf) -> dict[str, Any]:  # fmt: skip
    """As ``race_ours``, with stock TRL."""
    tokenizer.response_template = qwen3_template
    recipe, environment = lab.recipe, lab.environments[tasks[0].family]
    with tempfile.TemporaryDirectory() as folder:
        args = config(recipe, Path(folder))
        args.max_tool_calling_iterations = recipe.max_turns - 1
        trainer = _TimedStock(
            model=model,
            args=args,
            reward_funcs=[plan_reward({task.id: task for task in tasks}, recipe)],
            train_dataset=Dataset.from_list(
                [{"prompt": _messages(task), "task_id": task.id} for task in tasks]
            ),
            processing_class=tokenizer,
            peft_config=lora(recipe),
            environment_factory=environment,
        )
        only_own_progress(trainer)
        found = _timed(trainer, validation, lab, every, target, limit_s)
    return found | _levers(found, fmean(trainer.generation_seconds))


class _TimedStock(StockTrainer):
    """Stock TRL that notes how long its generation and tools take."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.generation_seconds: list[float] = []

    def _generate(self, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        found = super()._generate(*arguments, **options)
        self.generation_seconds.append(time.perf_counter() - start)
        return found


def _timed(trainer: Any, validation: Sequence[Task], lab: Lab, every: int, target: float,
           limit_s: float) -> dict[str, Any]:  # fmt: skip
    model = trainer.accelerator.unwrap_model(trainer.model)
    policy = TransformersPolicy(model, trainer.processing_class, max_batch=lab.recipe.max_batch)

    def validate() -> float:
        training = model.training
        with merged(model):
            found = rollout(validation, policy, **lab.options(seed=lab.recipe.seed))
        model.train(training)
        return fmean(t.success or 0.0 for t in found)

    clock = Clock(validate, every, target, limit_s)
    trainer.add_callback(clock)
    trainer.train()
    return {
        "seconds": sum(clock.steps),
        "steps": len(clock.steps),
        "reached": clock.reached,
        "success": clock.success,
    }


def _levers(found: dict[str, Any], rollouts: float) -> dict[str, Any]:
    """Mean seconds of a step's rollouts, and of the rest of it."""
    return {"rollout_seconds": rollouts, "update_seconds": found["seconds"] / found["steps"] - rollouts}


def _messages(task: Task) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task.prompt}]


def plan_reward(tasks: dict[str, Task], recipe: Recipe) -> Callable[..., list[float]]:
    """The plan's reward (rewards.plan) as a reward function of TRL's, from the messages of a completion."""

    def reward(completions: list[list[dict]], task_id: list[str], **unused: Any) -> list[float]:
        return [
            _plan(tasks[name], messages, recipe) for name, messages in zip(task_id, completions, strict=True)
        ]

    return reward


def _plan(task: Task, messages: list[dict], recipe: Recipe) -> float:
    turns = [m for m in messages if m["role"] == "assistant"]
    results = [str(m.get("content")) for m in messages if m["role"] == "tool"]
    valid = sum("error" not in text[:12].lower() for text in results) / max(len(results), 1)
    right = (
        verify(task, final_answer(str(turns[-1].get("content") or "")) or "").value == 1.0 if turns else False
    )
    short = -TURN_PENALTY * len(turns) if right else 0.0
    return recipe.reward_correctness * right + recipe.reward_format * valid + recipe.reward_efficiency * short
