"""What GRPO is compared with: SFT on more demonstrations, and rejection-sampled SFT.

Both start where GRPO started, from the SFT model. SFT with more data imitates fresh demonstrations of every
training task, ``sft_transcripts`` each. Rejection sampling samples as many trajectories as GRPO did and
processes as many training tokens: prompts and completions of every stored trajectory, once for each optimiser
step on them; GRPO's validation and its reference model are not counted. Leaves out measuring and comparing
them (notebook 05).
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

from agentkit.lab import Lab
from agentkit.policies.loading import agent_of, make_policy
from agentkit.policies.process_group import on_main_process, spread
from agentkit.records import Task, Trajectory
from agentkit.rollouts import rollout
from agentkit.runs import Run, RunError, cost, read_trajectories
from agentkit.training.sft import WARMUP, demonstrations, fine_tune, right_ones, token_count

SEED_STEP = 1_000_003  # between batches of fresh demonstrations
HELD = 256  # tasks at the most of which wrong answers are held, too


def grpo_tokens(run: Run) -> int:
    """Training tokens that a run's GRPO processed. Raises RunError where it stores no trajectories."""
    if not run.steps:
        raise RunError(
            f"{run.path} stores no training trajectories. Run notebook 03_grpo for this run first."
        )
    files = [run.file("train", "trajectories", f"step_{step:05d}.parquet") for step in run.steps]
    return on_main_process(lambda: sum(token_count(read_trajectories(file)) for file in files))


def train_control(name: str, lab: Lab, run: Run, tasks: Sequence[Task]) -> tuple[Any, Any, dict[str, float]]:
    """Train one control of a run, sft_more or rft; its adapter goes to the run's folder of that name.

    Returns the trained model, its tokenizer, and figures: training tokens of GRPO, its own, and the
    trajectories it learnt from. Raises RunError where there is nothing to compare with, or no right answer to
    imitate.
    """
    recipe = lab.recipe
    budget = grpo_tokens(run)
    agent, tokenizer = agent_of(run, recipe, "sft")
    found = (
        fresh_demonstrations(lab, tasks, tokenizer)
        if name == "sft_more"
        else up_to(budget, cycle(own_right_answers(lab, run, agent, tokenizer, tasks)))
    )
    short = min(WARMUP, len(found) // recipe.sft_batch // 4)  # a short control outlasts its warm-up
    options = {"num_train_epochs": 1, "warmup_steps": short}
    trained, _ = fine_tune(agent, tokenizer, found, recipe, run.file(name), **options)
    figures = {"grpo_tokens": budget, "tokens": token_count(found), "trajectories": len(found)}
    return trained, tokenizer, figures


def up_to(tokens: int, trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """The first trajectories that hold this many tokens together, the one that crosses the line included."""
    found, total = [], 0
    for t in trajectories:
        if total >= tokens:
            break
        found.append(t)
        total += token_count([t])
    return found


def fresh_demonstrations(lab: Lab, tasks: Sequence[Task], tokenizer: Any) -> list[Trajectory]:
    """Demonstrations of every training task, whatever ``sft_tasks`` is; the expert's flaws fall anew."""
    every = replace(lab, recipe=lab.recipe.but(sft_tasks=0))
    return demonstrations(every, tasks, tokenizer, lab.recipe.seed + SEED_STEP)


def own_right_answers(
    lab: Lab, run: Run, agent: Any, tokenizer: Any, tasks: Sequence[Task]
) -> list[Trajectory]:
    """What the SFT model gets right when it samples as many trajectories as GRPO did."""
    recipe = lab.recipe
    groups = int(cost.sampled(run.metrics, recipe).sum()) // recipe.group_size
    tasks = random.Random(f"{recipe.seed}-rft").sample(tasks, len(tasks))  # the suite goes family by family
    found = []
    with make_policy(agent, tokenizer, "rft", recipe) as policy:  # whose engine's memory the update needs
        for number, start in enumerate(range(0, groups, len(tasks))):
            seed = recipe.seed + number * SEED_STEP  # a task again has another
            options = lab.options(group_size=recipe.group_size, seed=seed, progress="rft")
            roll, chosen = partial(rollout, policy=policy, **options), tasks[: groups - start]
            for some in range(0, len(chosen), HELD):
                found += right_ones(spread(roll, chosen[some : some + HELD], recipe.group_size))
    if not found:
        tried = groups * recipe.group_size
        raise RunError(
            f"none of the agent's {tried} answers is right: there is nothing to imitate. Use sft_more."
        )
    return right_ones(found)
