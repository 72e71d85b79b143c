"""Is this sweep worth starting? Its rewards and test sets, its hours and money, and what it could show.

Leaves out reading the file, whose faults the reader names itself (runs.sweep).
"""

import contextlib
import textwrap
from typing import Any

from agentkit.evaluation.statistics import SEEDS
from agentkit.evaluation.sweeps import Ablation, Spread, measured_spread, smallest
from agentkit.lab import Lab
from agentkit.records import AgentkitError, RecipeError, SuiteError
from agentkit.runs import Recipe, cost
from agentkit.runs.stages import STAGES, parameters_of
from agentkit.runs.sweep import Design, Job, Sweep, plan

# what the length of a prompt depends on, beside the suite and its tools
_PROMPT = ("max_prompt_tokens", "model", "chat_template", "template_arguments")


def check(design: Design) -> None:
    """Raise RecipeError where an arm's reward is empty, or arms are tested on different tasks."""
    suites = {}
    for arm in sorted(design.arms, key=lambda arm: arm.name != design.against):
        try:
            lab = Lab.open(arm.recipe)
            if not any(weight for _, weight in lab.reward.values()):
                raise RecipeError(
                    "its reward has no component: all weights are 0, so nothing would be learnt"
                )
        except AgentkitError as error:
            raise RecipeError(f"arm {arm.name!r}: {error}") from None
        digest = lab.digest if lab.own_families or lab.own_verifiers else ""  # own rewards change no suite
        keys = parameters_of(STAGES[0], arm.recipe.used()) | {"lab": digest}
        if arm.recipe.max_prompt_tokens:
            keys |= {name: getattr(arm.recipe, name) for name in _PROMPT}
        suites.setdefault(repr(keys), (arm.name, lab))
    (first, lab), *others = suites.values()
    asked = _test_ids(first, lab) if others else set()  # suites are built only where they might differ
    for name, other in others:
        if _test_ids(name, other) != asked:
            why = f"arm {name!r} is tested on other tasks than {first!r}, so their results cannot be compared"
            alone = "leave families, n_tasks, suite_seed, top_k and tasks alone"
            raise RecipeError(f"{why}: {alone}, and max_prompt_tokens out or above each test prompt")


def _test_ids(arm: str, lab: Lab) -> set[str]:
    try:
        return {task.id for task in lab.without_long_prompts(lab.suite()).split("test")}
    except (FileNotFoundError, SuiteError) as error:  # the model's tokenizer, or no prompt is short enough
        raise RecipeError(f"arm {arm!r}: {error}") from None


def dry_run(design: Design, sweep: Sweep, slots: int) -> dict[str, Any]:
    """What is to be made, how long it takes and costs, and the smallest difference that would be shown."""
    sweep.unchanged(design)  # raises where an arm has changed
    prices, recipe = cost.read_prices(), design.arm(design.against).recipe
    done, rates = None, prices.rates_of(recipe)
    with contextlib.suppress(AgentkitError):  # nothing there yet
        done = Ablation(sweep)
    trained = [run for runs in done.runs.values() for run in runs.values() if run.steps] if done else []
    rates = cost.measured_rates(trained[0]) if trained else rates
    jobs = [job for job in plan(design, sweep.folder) if not job.is_done()]
    if known := next((size for run in trained if (size := cost.tests_of(run))), 0):
        suite_size = known
    elif recipe.tasks or recipe.new_templates:  # which nobody counts without building them
        suite_size = len(Lab.open(recipe).suite().split("test"))
    else:
        suite_size = round(0.15 * recipe.n_tasks)
    seconds = {job.folder: _seconds(job, jobs, rates, suite_size) for job in jobs}
    total, hours = sum(seconds.values()), sum(seconds.values()) / 3600
    several = done is not None and len(done.seeds) > 1
    spread = measured_spread([done.success]) if several else Spread()
    error, freedom = spread.error(len(design.seeds), suite_size, len(design.arms))
    rented = prices.providers if rates.device == "GPU" else {}
    return {
        "question": design.question,
        "against": design.against,
        "arms": {arm.name: _changes(design, arm.recipe, arm.policy) for arm in design.arms},
        "seeds": list(design.seeds),
        "cells": [str(job.folder.relative_to(sweep.folder)) for job in jobs if job.arm],
        "shared": {
            f"shared/{job.folder.name}": f"{STAGES[job.last]}, seed {job.recipe['seed']}"
            for job in jobs
            if not job.arm
        },
        "seconds": {str(folder.relative_to(sweep.folder)): round(s) for folder, s in seconds.items()},
        "device_hours": hours,
        "wall_clock_hours": max(total / slots, max(seconds.values(), default=0.0)) / 3600,
        "money": {name: round(hours * price, 2) for name, price in rented.items()},
        "currency": prices.currency,
        "rates": rates.source,
        "smallest_difference": smallest(error, freedom, len(design.arms) - 1)
        if len(design.seeds) >= SEEDS
        else None,
        "test_tasks": suite_size,
        "spread": {"seeds": spread.seeds, "tasks": spread.tasks, "rest": spread.rest, "measured": several},
    }


def _changes(design: Design, recipe: Recipe, policy: str) -> dict[str, Any]:
    """What sets an arm apart from the one it is compared with."""
    reference, own = design.arm(design.against), recipe.everything()
    before = reference.recipe.everything() | {"policy": reference.policy}
    return {name: v for name, v in (own | {"policy": policy}).items() if v != before[name]}


def _seconds(job: Job, jobs: list[Job], rates: cost.Rates, n_test: int) -> float:
    """Device seconds of the stages that a job does not begin with."""
    recipe = Recipe.from_mapping(job.recipe)
    phases = cost.forecast(recipe, rates, n_test)
    baseline, rollouts, updates, validation, final, other = (phases[name] for name in cost.PHASES)
    stages = (0.0, baseline, rollouts + updates + validation, 0.0, other + final)
    planned = (parent.last + 1 for parent in jobs if parent.folder == job.parent)
    return sum(stages[next(planned, job.done_in(job.parent or job.folder)) : job.last + 1])


def as_text(plan: dict[str, Any]) -> str:
    """What a dry run prints."""
    arms = {
        name: ", ".join(f"{k}: {v}" for k, v in changes.items()) or "what the others are compared with"
        for name, changes in plan["arms"].items()
    }
    width = max(map(len, ["arm", *arms]))
    cells = [name for name in plan["seconds"] if not name.startswith("shared")]
    listed = (
        f"{len(cells)} cells to run, in this order: {', '.join(cells)}" if cells else "every cell is done"
    )
    clock = cost.duration(3600 * plan["wall_clock_hours"])
    lines = [
        plan["question"],
        *(f"{name:<{width}}  {what}" for name, what in {"arm": "what it changes", **arms}.items()),
        f"seeds: {', '.join(map(str, plan['seeds']))}",
        *textwrap.wrap(listed, 110, subsequent_indent="  ", break_on_hyphens=False),
        *(f"made once: {name} ({what})" for name, what in plan["shared"].items()),
        f"{cost.hours(plan['device_hours'])} device-hours, about {clock}; rates: {plan['rates']}",
        "; ".join(f"{name} {plan['currency']}{amount:,.2f}" for name, amount in plan["money"].items()),
        _could_show(plan),
    ]
    return "\n".join(line for line in lines if line)


def _could_show(plan: dict[str, Any]) -> str:
    if len(plan["seeds"]) < SEEDS:
        return f"fewer than {SEEDS} seeds give intervals and no verdict: list more to have one"
    seen, spread = plan["smallest_difference"], plan["spread"]
    shown = f"a difference of {100 * seen:.1f} points" if seen else "no difference at all"
    source = "as measured here" if spread["measured"] else "an assumption"
    sizes = ", ".join(f"{name} {100 * spread[name]:.1f}" for name in ("seeds", "tasks", "rest"))
    return (
        f"{len(plan['seeds'])} seeds and {plan['test_tasks']} test tasks show {shown} in 80 of 100 cases "
        f"(Dunnett over {len(plan['arms']) - 1}; spread of a difference in points, {source}: {sizes})"
    )
