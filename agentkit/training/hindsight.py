"""Hindsight replay: what a rollout did achieve is the right answer to another task, and can be imitated.

As in arc25 (iterations 4 to 6): sample programs, run them, keep the shortest for each different outcome
without the lines that do nothing, relabel each as the task that asks for what it gave, order them from worst
to best against the task that was really asked, fine-tune, and repeat. Needs no right answer to start from.
``hindsight`` is that loop; with ``hindsight_weight`` GRPO imitates the lessons of its own rollouts instead
(``lesson_batch``). A family takes part by a function ``relabel(task, trajectory)`` that gives the task a
trajectory solved, or None; ``relabel_code`` serves family C and all code tasks tested by arguments.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from agentkit.policies.loading import make_policy
from agentkit.policies.scripted import ScriptedPolicy
from agentkit.records import Task, Trajectory
from agentkit.rewards.components import closeness
from agentkit.rollouts import rollout, rollout_options
from agentkit.runs import Run, append_jsonl
from agentkit.runs.recipe import Recipe
from agentkit.training.sft import fine_tune, token_count
from agentkit.verifiers.programs import NOTHING, extract_code, returned

Relabel = Callable[[Task, Trajectory], Task | None]
MAX_PROGRAM = 2_000  # characters; a longer one is not relabelled
MAX_VALUE = 400  # characters of a value in a prompt
SHOWN = 2  # inputs with their results in a relabelled prompt, at most
TIMEOUT_S = 1.0  # for a program on all its inputs, as in arc25


# ---- code
# ------------------------------------------------------------------------------------------------------------
def relabel_code(task: Task, trajectory: Trajectory) -> Task | None:
    """The task to write a function that gives what the trajectory's program gives on the inputs of this
    task's tests.

    None where there is no program, or it fails on some input, or gives the same for all of several: nothing
    is asked then. Lines without effect on the results are dropped. The new task's ``meta`` holds ``outcome``,
    the results as JSON, and ``closeness``, the share that was right for the task really asked (pixels, where
    results are grids).
    """
    verifier = task.verifier
    tests = [test for test in verifier.get("tests", ()) if isinstance(test, list) and len(test) == 2]
    program = extract_code(trajectory.answer or "", verifier.get("entry", "f"))
    if (
        verifier.get("kind") != "code"
        or not tests
        or not isinstance(program, str)
        or len(program) > MAX_PROGRAM
    ):
        return None
    inputs = [test[0] for test in tests]
    running = {"entry": verifier["entry"], "setup": verifier.get("setup", ""), "timeout_s": TIMEOUT_S}
    try:
        values = returned(program, inputs, **running)
        if NOTHING in values or (len(values) > 1 and all(value == values[0] for value in values)):
            return None
        short = without_idle_lines(program, lambda code: returned(code, inputs, **running) == values)
    except RuntimeError as error:
        warnings.warn(f"a trajectory of {task.id} was not relabelled: {error}", stacklevel=2)
        return None
    new = verifier | {"tests": [list(pair) for pair in zip(inputs, values, strict=True)]}
    return _asked(
        dataclasses.replace(task, verifier=new, answer=short),
        values,
        closeness(values, [test[1] for test in tests]),
    )


def _asked(task: Task, values: list[Any], close: float) -> Task | None:
    """The relabelled task with its prompt and plan; None where no input has a result that is short and prints
    as it is.
    """
    entry = task.verifier["entry"]
    calls = [f"{entry}({', '.join(map(repr, test[0]))})" for test in task.verifier["tests"]]
    shown = [
        (call, value)
        for call, value in zip(calls, values, strict=True)
        if len(call) + len(repr(value)) <= MAX_VALUE and str(value) and str(value) == str(value).strip()
    ]
    if not shown:
        return None
    prompt = f"Write {entry}. " + " ".join(f"Example: {call} is {value!r}." for call, value in shown[:SHOWN])
    outcome = json.dumps(values)
    code = f"{task.answer}\nprint({shown[0][0]})"
    plan = [{"tool": "python", "arguments": {"code": code}, "expect": str(shown[0][1])}]
    meta = {
        "plan": plan,
        "answer_if": {str(shown[0][1]): task.answer},
        "outcome": outcome,
        "closeness": close,
    }
    name = f"{task.id}-h{hashlib.sha256(outcome.encode()).hexdigest()[:8]}"
    return dataclasses.replace(task, id=name, prompt=prompt, meta=meta, tools=("python",))


def without_idle_lines(program: str, same: Callable[[str], bool]) -> str:
    """The program without the statements that change nothing ``same`` sees, tried one by one from the last to
    the first.

    A program of one line stays one. The code is parsed and never run here.
    """
    short = program
    try:
        tree = ast.parse(program)
        fields = [
            getattr(node, name, None) for node in ast.walk(tree) for name in ("body", "orelse", "finalbody")
        ]
        bodies = [
            body for body in fields if isinstance(body, list) and body and isinstance(body[0], ast.stmt)
        ]
        for body in reversed(bodies):
            for i in reversed(range(len(body))):
                statement = body.pop(i)
                if body and same(text := _text(tree, program)):
                    short = text
                else:
                    body.insert(i, statement)
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ):  # deeper than the parser or the printer goes
        return program
    return short


def _text(tree: ast.Module, program: str) -> str:
    """The tree as source; on one line where the program was one function on one line."""
    if "\n" in program.strip() or len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return ast.unparse(tree)
    head = ast.unparse(tree).splitlines()[0]
    return f"{head} {'; '.join(map(ast.unparse, tree.body[0].body))}"


# ---- lessons
# ---------------------------------------------------------------------------------------------------------
def lessons(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], relabel: Relabel = relabel_code
) -> list[Task]:
    """The relabelled tasks of a round: the shortest answer for each outcome, from worst to best.

    Args:
        tasks: those that were asked.
        trajectories: of those tasks, in any order.
        relabel: gives the task that a trajectory solved, with ``outcome`` and ``closeness`` in its meta, or
            None.
    """
    by_id = {task.id: task for task in tasks}
    shortest: dict[str, Task] = {}
    for answer, t in {(t.task_id, t.answer): t for t in trajectories}.items():
        new = relabel(by_id[answer[0]], t)
        if new is None:
            continue
        key = f"{answer[0]} {new.meta['outcome']}"
        if key not in shortest or len(new.answer) < len(shortest[key].answer):
            shortest[key] = new
    return sorted(shortest.values(), key=lambda task: task.meta["closeness"])


def hindsight(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[Task],
    recipe: Recipe,
    run: Run,
    relabel: Relabel = relabel_code,
) -> tuple[Any, list[dict]]:
    """Sample, relabel, fine-tune and repeat, until every task was solved by some sample or the rounds are
    over.

    Args:
        model: is changed; each round's adapter is merged into it, and saved to hindsight/round-<n> in the
            run.
        tokenizer: of the model.
        tasks: what is to be solved.
        recipe: rounds, samples a task and learning rate (``hindsight_...``), LoRA, and how rollouts go.
        run: also gets hindsight/log.jsonl, one row a round.
        relabel: of the tasks' family.

    Returns:
        The model, and the log: round, share of tasks solved by some sample, mean success, lessons, their
            tokens, and loss.
    """
    log: list[dict] = []
    for number in range(1, recipe.hindsight_rounds + 1):
        policy = make_policy(model, tokenizer, "hindsight", recipe)
        options = rollout_options(recipe) | {
            "group_size": recipe.hindsight_samples,
            "seed": recipe.seed + number,
            "step": number,
        }
        sampled = rollout(tasks, policy, progress=f"hindsight, round {number}", **options)
        solved = {t.task_id for t in sampled if t.success == 1.0}
        row = {"round": number, "solved": len(solved) / len(tasks), "lessons": 0, "tokens": 0, "loss": None}
        row["success"] = sum(t.success or 0.0 for t in sampled) / len(sampled)
        if len(solved) < len(tasks):
            shown = demonstrate(lessons(tasks, sampled, relabel), tokenizer, recipe)
            if shown:
                model, losses = _learn(model, tokenizer, shown, recipe, run, number)
                row |= {"lessons": len(shown), "tokens": token_count(shown), "loss": losses[-1]["loss"]}
        log.append(row)
        append_jsonl(run.file("hindsight", "log.jsonl"), row)
        if len(solved) == len(tasks) or not row["lessons"]:
            break
    return model, log


def demonstrate(new: Sequence[Task], tokenizer: Any, recipe: Recipe) -> list[Trajectory]:
    """One flawless transcript for each relabelled task, in order; those that do not pass their own verifier
    are left out.
    """
    if not new:
        return []
    options = rollout_options(recipe) | {"seed": recipe.seed}
    return [
        t for t in rollout(new, ScriptedPolicy(tokenizer, name="hindsight"), **options) if t.success == 1.0
    ]


def lesson_batch(
    tasks: Sequence[Task],
    trajectories: Sequence[Trajectory],
    tokenizer: Any,
    recipe: Recipe,
    relabel: Relabel = relabel_code,
) -> dict[str, torch.Tensor]:
    """The lessons of a batch of B rollouts as tensors that are split and stored with it, for ``Update``.

    Returns:
        ``lesson_ids`` and ``lesson_mask`` (B, T), the transcripts at evenly spaced rows and nothing in the
        others, padded on the right; ``lesson_scored`` (B, T), 1 on what the expert wrote; ``lesson_tokens``
        (), their number.
    """
    shown = demonstrate(lessons(tasks, trajectories, relabel), tokenizer, recipe)
    width = max((len(t.prompt_ids) + len(t.completion_ids) for t in shown), default=1)
    ids, mask, scored = (torch.zeros(len(trajectories), width, dtype=torch.int64) for _ in range(3))
    for i, t in enumerate(shown):
        row, end = i * len(trajectories) // len(shown), len(t.prompt_ids) + len(t.completion_ids)
        ids[row, :end], mask[row, :end] = torch.tensor([*t.prompt_ids, *t.completion_ids]), 1
        scored[row, len(t.prompt_ids) : end] = torch.tensor(t.action_mask)
    return {"lesson_ids": ids, "lesson_mask": mask, "lesson_scored": scored, "lesson_tokens": scored.sum()}


def _learn(
    model: Any, tokenizer: Any, shown: Sequence[Trajectory], recipe: Recipe, run: Run, number: int
) -> tuple[Any, list[dict]]:
    changes = {"train_sampling_strategy": "sequential", "lr_scheduler_type": "constant", "warmup_steps": 0}
    changes |= {"learning_rate": recipe.hindsight_learning_rate, "num_train_epochs": 1}
    return fine_tune(model, tokenizer, shown, recipe, run.file("hindsight", f"round-{number}"), **changes)
