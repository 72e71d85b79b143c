"""End to end: wall clock of GRPO from one SFT agent to the target on the small recipe, ours and stock TRL's.

Both train one after the other from the same cold start, with the same hyperparameters, reward and validation;
the clock runs while a step runs and stands still during validation, which is our sampling policy's for both.
The peer is ``StockTrainer`` (peer.py) with TRL's own generation and ``environment_factory``, one
environment a trajectory; its reward is computed from the messages TRL hands over, by the same verifier and
weights. Families A and B only: TRL gives every trajectory the same tools. Leaves out what either learns
beyond the target.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl.chat_template_utils import qwen3_template

from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.policies.transformers import TransformersPolicy
from agentkit.records import Task
from agentkit.rewards.components import TURN_PENALTY
from agentkit.rollouts import rollout
from agentkit.runs import Recipe, Run, project_root, read_recipe
from agentkit.training.adapters import lora, merged
from agentkit.training.loop import GRPO
from agentkit.training.sft import cold_start, demonstrations
from agentkit.verifiers import answer_of, verify

from .common import case, main, messages, report
from .peer import StockTrainer, stock_config

TARGET, EVERY = 0.85, 6  # success on the validation tasks, steps between validations
SEEDS = (1, 2, 3)
PATIENCE = 5.0  # times our seconds after which the peer is stopped: its ratio is then at least this
Result = dict[str, Any]  # seconds in all, steps, whether it reached the target, success by step


def bench_end_to_end(quick: bool = False) -> dict[str, Any]:
    """Seconds of training until 85 % of validation is solved; ``quick`` times two steps of one seed.

    ``ratio`` is peer / ours: above 1 is faster. ``reached`` counts the seeds that came to the target; one
    that did not counts with the seconds after which it was stopped, a lower bound where only the peer was.
    """
    runs = [_seed(seed, quick) for seed in SEEDS[: 1 if quick else None]]
    names = ("seconds", "steps", "reached", "success")
    figures = {name: {side: [run[side][name] for run in runs] for side in ("ours", "peer")} for name in names}
    seconds, unit = figures.pop("seconds"), f"s to {TARGET:.0%}"
    if quick:
        unit = "s/step"
        seconds = {side: [seconds[side][0] / figures["steps"][side][0]] for side in seconds}
    figures["reached"] = {side: sum(values) for side, values in figures["reached"].items()}
    timed = case("trl_env", unit, seconds["ours"], seconds["peer"], inverse=True, **figures)
    return report("end-to-end", [timed])


def _seed(seed: int, quick: bool) -> dict[str, Result]:
    changes = {"families": "A,B", "seed": seed, "suite_seed": seed}
    if quick:
        changes |= {"steps": 2, "n_tasks": 60, "prompts_per_step": 2}
    lab = Lab.open(read_recipe(project_root() / "params" / "nano-careless.yaml") | changes)
    suite = lab.suite()
    train, validation = suite.split("train"), suite.split("validation")
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), []
        if not quick:
            agent, tokenizer = load_agent("nano")
            start = [folder / "sft"]
            cold_start(agent, tokenizer, demonstrations(lab, train, tokenizer), lab.recipe, start[0])
        ours = _ours(lab, load_agent("nano", start), train, validation, folder / "race")
        stock = _stock(*load_agent("nano", start), train, lab, folder / "trl")
        return {"ours": ours, "peer": _theirs(stock, lab, validation, PATIENCE * ours["seconds"])}


def _validation(model: Any, tokenizer: Any, lab: Lab, tasks: Sequence[Task]) -> Callable[[], float]:
    policy = TransformersPolicy(model, tokenizer, max_batch=lab.recipe.max_batch)

    def validate() -> float:
        training = model.training
        with merged(model):
            trajectories = rollout(tasks, policy, **lab.options(seed=lab.recipe.seed))
        model.train(training)
        return fmean(t.success or 0.0 for t in trajectories)

    return validate


class _AtTarget(Exception):
    """Training has come to the target."""


def _ours(
    lab: Lab, agent: tuple[Any, Any], tasks: Sequence[Task], held: Sequence[Task], folder: Path
) -> Result:
    """Train until validation success reaches the target, or the recipe's steps are over."""
    seconds, success = [], {}

    def hear(row: dict[str, Any]) -> None:
        if not row["step"]:
            return
        seconds.append(row["seconds"])
        if row["step"] % EVERY == 0 or row["step"] == lab.recipe.steps:
            success[row["step"]] = validate()
            if success[row["step"]] >= TARGET:
                raise _AtTarget

    trainer = GRPO(lab, *agent, tasks, [], Run.create(folder), hear)
    validate = _validation(trainer.model, trainer.tokenizer, lab, held)
    reached = False
    try:
        trainer.train()
    except _AtTarget:
        reached = True
    return {"seconds": sum(seconds), "steps": len(seconds), "reached": reached, "success": success}


def _theirs(trainer: Any, lab: Lab, held: Sequence[Task], limit_s: float) -> Result:
    """The same by TRL's trainer, which is stopped when its time is up."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    clock = _Clock(_validation(model, trainer.processing_class, lab, held), limit_s)
    trainer.add_callback(clock)
    trainer.train()
    steps = len(clock.steps)
    return {"seconds": sum(clock.steps), "steps": steps, "reached": clock.reached, "success": clock.success}


class _Clock(TrainerCallback):
    """Seconds of training, validation left out; stops the training at the target, or when its time is up."""

    def __init__(self, validate: Callable[[], float], limit_s: float):
        self._validate, self._limit_s = validate, limit_s
        self.steps: list[float] = []  # seconds of each
        self.success: dict[int, float] = {}  # by step
        self.reached = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._start = time.perf_counter()  # an optimiser step begins with its rollouts

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.append(time.perf_counter() - self._start)
        late = sum(self.steps) > self._limit_s
        if state.global_step % EVERY == 0 or state.global_step == state.max_steps or late:
            self.success[state.global_step] = self._validate()
            self.reached = self.success[state.global_step] >= TARGET
            control.should_training_stop = self.reached or late


# ---- stock TRL
def _stock(model: Any, tokenizer: Any, tasks: Sequence[Task], lab: Lab, folder: Path) -> StockTrainer:
    tokenizer.response_template = qwen3_template
    args = stock_config(lab.recipe, folder)
    args.max_tool_calling_iterations = lab.recipe.max_turns - 1
    by_id = {task.id: task for task in tasks}

    def reward(completions: list[list[dict]], task_id: list[str], **unused: Any) -> list[float]:
        return [_plan_reward(by_id[i], c, lab.recipe) for i, c in zip(task_id, completions, strict=True)]

    trainer = StockTrainer(
        model=model,
        args=args,
        reward_funcs=[reward],
        train_dataset=Dataset.from_list([{"prompt": messages(task), "task_id": task.id} for task in tasks]),
        processing_class=tokenizer,
        peft_config=lora(lab.recipe, model),
        environment_factory=lab.environments[tasks[0].family],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _plan_reward(task: Task, completion: list[dict], recipe: Recipe) -> float:
    """The plan's reward (rewards.plan), from the messages of a completion."""
    turns = [str(m.get("content") or "") for m in completion if m["role"] == "assistant"]
    replies = [str(m.get("content")) for m in completion if m["role"] == "tool"]
    valid = sum("error" not in text[:12].lower() for text in replies) / max(len(replies), 1)
    right = bool(turns) and verify(task, answer_of(task, turns[-1]).answer).value == 1.0
    short = -TURN_PENALTY * len(turns) if right else 0.0
    return right + 0.1 * valid + short


if __name__ == "__main__":
    main(bench_end_to_end)
