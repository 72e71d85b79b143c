"""Training on one drawing until some rollout solves it, from the same agent with the same number of rollouts:
GRPO, hindsight replay (HER), or both at once (hybrid), as arc25 compares the first two.

A round is a step of GRPO, or a round of hindsight replay. Leaves out several tasks.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from agentkit.policies.loading import load_agent
from agentkit.recipe import Recipe, batch_rules, refuse
from agentkit.records import RecipeError, Task, Trajectory
from agentkit.runs import (
    Run,
    RunError,
    append_jsonl,
    read_json,
    read_jsonl,
    read_trajectories,
    write_json,
    write_trajectories,
)
from agentkit.tasks.families.drawing import target
from agentkit.training.grpo import AgentGRPOTrainer, train
from agentkit.training.hindsight import hindsight
from agentkit.training.processes import lock, unlock
from agentkit.training.sft import cold_start, demonstrations
from agentkit.verifiers.grids import as_rows, drawn_in, right_pixels

if TYPE_CHECKING:
    from agentkit.lab import Lab

_FREE = ("drawings", "methods", "n_seeds", "sft_micro_batch")  # keys that may differ from what made a result
_STARTS = {  # keys that make the cold start, besides sft_... and flaw_...; all seeds share one
    "model", "n_tasks", "suite_seed", "transcripts", "lora_r", "lora_alpha", "precision",
    "chat_template", "template_arguments", "max_turns", "max_turn_tokens", "max_tokens",
}  # fmt: skip
PUBLISHED = {  # arc25, a 0.5B model: what GRPO and hindsight replay took there
    "lines": ("40 rollouts", "2 epochs"), "12": ("584 rollouts", "2 to 4 epochs"),
    "16": ("never", "4 to 7 epochs"), "20": ("not tried", "7 epochs"), "25": ("not tried", "10 to 11 epochs"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Round:
    """What a round of sampling came to; rounds.jsonl holds one a line."""

    round: int  # from 1
    rollouts: int  # so far
    seconds: float  # so far, this round's sampling included
    success: float  # share of the round's rollouts that solve the task
    pixels: float  # share that is right in the best drawing so far
    best: list[list[int]] | None  # that drawing


class _Rounds:
    """Writes a row for each round, and keeps its rollouts."""

    def __init__(self, run: Run, task: Task):
        self._run, self._target = run, task.verifier["tests"][0][1]
        self._started, self._cells = time.monotonic(), sum(map(len, self._target))
        self._last = Round(0, 0, 0.0, 0.0, 0.0, None)

    def __call__(self, sampled: Sequence[Trajectory]) -> None:
        last, drawings = self._last, [drawn_in(t.why) for t in sampled]
        best = max([last.best, *drawings], key=self._pixels)
        solved = sum(t.success == 1.0 for t in sampled)
        self._last = Round(
            last.round + 1,
            last.rollouts + len(sampled),
            time.monotonic() - self._started,
            solved / len(sampled),
            self._pixels(best),
            best,
        )
        write_trajectories(self._run.file("rounds", f"{self._last.round:05d}.parquet"), sampled)
        append_jsonl(self._run.file("rounds.jsonl"), asdict(self._last))

    def _pixels(self, drawn: list[list[int]] | None) -> float:
        return right_pixels(drawn, self._target) / self._cells


def begin(lab: Lab, shown: Sequence[Task], run: Run) -> tuple[Path | None, list[dict[str, Any]]]:
    """The adapter that every method starts from, made from demonstrations of ``shown`` where it is missing,
    and the log of making it. None without ``sft``.

    Raises RunError where it was made with other keys.
    """
    recipe, start, keys = lab.recipe, run.file("sft"), run.file("sft.json")
    if not recipe.sft:
        return None, []
    named = {k: v for k, v in recipe.everything().items() if k in _STARTS or k.startswith(("sft_", "flaw_"))}
    del named["sft_micro_batch"]
    named["prompt"] = shown[0].prompt  # an older kit drew and showed others
    if start.exists():
        _check_keys(run, keys, named)
        return start, []
    write_json(keys, named)
    agent, tokenizer = _agent(recipe, None)
    return start, cold_start(agent, tokenizer, demonstrations(lab, shown, tokenizer), recipe, start)


def _check_keys(run: Run, file: Path, made: dict[str, Any]) -> None:
    newer = Recipe().everything()  # keys that the file lacks had their defaults
    found = newer | read_json(file) if file.exists() else made
    if other := sorted(k for k, v in made.items() if found.get(k) != v):
        raise RunError(
            f"{run.path} was made with another {', '.join(other)[:200]}. Name another folder with run."
        )


def solve(lab: Lab, start: Path | None, task: Task, method: str, run: Run) -> list[Round]:
    """Train the agent, with the adapter ``start`` if there is one, on one task until a rollout solves it, or
    the budget of ``steps`` times ``group_size`` rollouts is spent; the rounds. A run that ended is read, not
    repeated; one that was interrupted starts anew.

    Raises:
        RecipeError: a method that is not one of METHODS.
        RunError: the folder was made with other keys, or another process trains in it.
    """
    _check(method)
    file, done = run.file("rounds.jsonl"), run.file("done.json")
    unread = "hindsight_" if method == "grpo" else "-"  # keys that this method does not depend on
    own = lab.recipe.everything().items()
    made = {k: v for k, v in own if k not in _FREE and not k.startswith(unread)}
    made |= {"task": task.id, "prompt": task.prompt}
    _check_keys(run, done, made)
    if not done.exists():
        lock(run)  # before anything of another process is deleted
        try:
            for left in (file, *(run.file(name) for name in ("rounds", "train", "hindsight"))):
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
            METHODS[method](lab, start, task, run, _Rounds(run, task))
            write_json(done, made)
        finally:
            unlock(run)
    return [Round(**row) for row in read_jsonl(file)]


def _check(method: str) -> None:
    if method not in METHODS:
        raise RecipeError(f"methods names {method[:40]!r}; use {', '.join(METHODS)}, or several with commas")


def _agent(recipe: Recipe, start: Path | None) -> tuple[Any, Any]:
    return load_agent(recipe.model, [start] if start else [], precision=recipe.precision, chat=recipe.chat)


def _grpo(lab: Lab, start: Path | None, task: Task, run: Run, rounds: _Rounds, weight: float = 0.0) -> None:
    changes = {"prompts_per_step": 1, "until_solved": True, "hindsight_weight": weight, "save_every": 0}
    changes["micro_batch"] = math.gcd(lab.recipe.micro_batch, lab.recipe.group_size)
    changes["steps"] = (
        lab.recipe.steps * lab.recipe.num_iterations * lab.recipe.minibatches
    )  # on a batch each
    lab = replace(lab, recipe=lab.recipe.but(**changes))
    refuse(batch_rules(lab.recipe))
    agent, tokenizer = _agent(lab.recipe, start)

    def note(row: dict[str, Any]) -> None:
        if row["step"] and row["step"] == trainer.step.number:  # not step 0, nor one on earlier rollouts
            rounds(trainer.step.trajectories)

    trainer = AgentGRPOTrainer(lab, agent, tokenizer, [task], [], run, note)
    train(trainer)


def _her(lab: Lab, start: Path | None, task: Task, run: Run, rounds: _Rounds) -> None:
    recipe = lab.recipe
    budget = max(1, recipe.steps * recipe.group_size // recipe.hindsight_samples)
    agent, tokenizer = _agent(recipe, start)
    hindsight(lab, agent, tokenizer, [task], run, budget, lambda sampled: rounds(lab.score([task], sampled)))


METHODS: dict[str, Callable[..., None]] = {
    "grpo": _grpo,
    "her": _her,
    "hybrid": lambda lab, *rest: _grpo(lab, *rest, lab.recipe.hindsight_weight or 1.0),
}


Found = Sequence[tuple[str, str, int, Sequence[Round]]]  # drawing, method, seed and its rounds


def solve_all(lab: Lab, start: Path | None, run: Run) -> Found:
    """``solve`` for all of the recipe's ``drawings``, ``methods`` and ``n_seeds`` in the run's folders
    <drawing>/<method>/seed-<n>; those that ended before are read.
    """
    recipe, found = lab.recipe, []
    names, methods = ([w.strip() for w in words.split(",")] for words in (recipe.drawings, recipe.methods))
    for method in methods:
        _check(method)
    if "pixels" not in lab.reward:
        raise RecipeError(f"reward is {recipe.reward}: take reward: drawing, the share of right pixels")
    tasks = [target(name) for name in names]
    for seed, task, method in product(range(recipe.seed, recipe.seed + recipe.n_seeds), tasks, methods):
        name = str(task.meta["template"])
        own = Run.create(run.file(name, method, f"seed-{seed}"))
        rounds = solve(replace(lab, recipe=recipe.but(seed=seed)), start, task, method, own)
        found.append((name, method, seed, rounds))
    return found


def frame(found: Found) -> pd.DataFrame:
    """A row a round."""
    return pd.DataFrame(
        {"drawing": drawing, "method": method, "seed": seed, **asdict(each)}
        for drawing, method, seed, rounds in found
        for each in rounds
    )


def summary(found: Found) -> pd.DataFrame:
    """A row for each drawing and method: how many seeds solved it, the rollouts and minutes that took
    (median, least and most of those that did), and the published counts.
    """
    rows = []
    for drawing, method in dict.fromkeys((d, m) for d, m, _, _ in found):
        runs = [rounds[-1] for d, m, _, rounds in found if (d, m) == (drawing, method)]
        solved = [last for last in runs if last.success > 0]
        told = dict(zip(METHODS, PUBLISHED[drawing], strict=False))
        rows.append(
            {
                "drawing": drawing,
                "method": method,
                "solved": f"{len(solved)} of {len(runs)}",
                "rollouts": _spread([last.rollouts for last in solved]),
                "minutes": _spread([last.seconds / 60 for last in solved]),
                "pixels of the worst": f"{min(last.pixels for last in runs):.0%}",
                "published": told.get(method, "–"),
            }
        )
    return pd.DataFrame(rows)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{pd.Series(values).median():.3g} ({min(values):.3g} to {max(values):.3g})"


def last_rollouts(found: Found, run: Run, seed: int, shown: int = 8) -> list[Trajectory]:
    """The last round's best rollouts of each drawing and method with a seed, under the method's name."""
    last = []
    for name, method, own, rounds in found:
        path = run.file(name, method, f"seed-{own}", "rounds", f"{len(rounds):05d}.parquet")
        sampled = read_trajectories(path) if own == seed else []
        best = sorted(sampled, key=lambda t: -(t.reward or 0))[:shown]
        last += [replace(t, policy=method) for t in best]
    return last


def bests(rounds: Sequence[Round], task: Task, shown: int = 12) -> dict[str, list[list[int]]]:
    """The target, and the best drawing so far round by round where it changed, for a gallery."""
    changed = {str(each.best): each for each in reversed(rounds) if each.best}  # the first round with each
    kept = sorted(changed.values(), key=lambda each: each.round)[-shown:]
    pictures = {f"round {each.round}: {each.pixels:.0%}": each.best for each in kept if as_rows(each.best)}
    return {"target": task.verifier["tests"][0][1]} | pictures
