"""Is this sweep worth starting? Its rewards and test sets, and what it will take.

Leaves out reading the file, whose faults the reader names itself (runs.sweep).
"""

import textwrap
from typing import Any

from agentkit.lab import Lab
from agentkit.records import AgentkitError, RecipeError
from agentkit.runs import cost
from agentkit.runs.fingerprints import STAGES
from agentkit.runs.sweep import Cell, Design, Sweep, plan

# what the length of a prompt depends on, beside the suite and its tools
_PROMPT = ("max_prompt_tokens", "model", "chat_template", "template_arguments")


def check(design: Design) -> None:
    """Raise RecipeError where an arm's reward is empty, or arms are tested on different tasks."""
    suites: dict[Any, tuple[str, Lab]] = {}
    for name, arm in design.arms.items():
        try:
            lab = Lab.open(arm.recipe)
            is_empty = not any(weight for _, weight in lab.reward.values())
        except AgentkitError as error:
            raise RecipeError(f"arm {name!r}: {error}") from None
        if is_empty:
            why = "its reward has no component with a weight, so nothing would be learnt"
            raise RecipeError(f"arm {name!r}: {why}")
        prompt = [str(getattr(arm.recipe, key)) for key in _PROMPT] if arm.recipe.max_prompt_tokens else []
        suites.setdefault((arm.keys()[0], *prompt), (name, lab))
    if len(suites) == 1:
        return
    tests = [(name, _test_ids(lab)) for name, lab in suites.values()]  # built only where they might differ
    for name, asked in tests:
        if asked != tests[0][1]:
            why = f"arm {name!r} is tested on other tasks than {tests[0][0]!r}"
            raise RecipeError(f"{why}: leave the suite's keys and max_prompt_tokens alone")


def _test_ids(lab: Lab) -> set[str]:
    return {task.id for task in lab.without_long_prompts(lab.suite()).split("test")}


def dry_run(design: Design, sweep: Sweep) -> dict[str, Any]:
    """What is to be made, in order, and the hours and money that it takes."""
    sweep.check(design)  # raises where an arm has changed
    prices, recipe = cost.read_prices(), design.arms[design.against].recipe
    rates = prices.rates_of(recipe)
    todo = [cell for cell in plan(design, sweep.folder).values() if not cell.is_done()]
    seconds = {cell.name: round(_seconds(cell, rates)) for cell in todo}
    hours = sum(seconds.values()) / 3600
    total = {name: sum(phases.values()) for name, phases in cost.planned(recipe, prices).items()}
    rented = prices.providers if rates.device == "GPU" else {}
    return {
        "question": design.file.question,
        "against": design.against,
        "arms": {name: {"policy": arm.policy, **arm.changes} for name, arm in design.arms.items()},
        "seeds": design.file.seeds,
        "make": {cell.name: STAGES[len(cell.keys) - 1] for cell in todo},
        "seconds": seconds,
        "device_hours": hours,
        "range_hours": [hours * total[name] / total["planned"] for name in ("at least", "at most")],
        "money": {name: round(hours * price, 2) for name, price in rented.items()},
        "currency": prices.currency,
        "rates": rates.source,
    }


def _seconds(cell: Cell, rates: cost.Rates) -> float:
    """Device seconds of the stages that a cell does not begin with."""
    baseline, rollouts, updates, validation, final, other = cost.forecast(cell.recipe, rates).values()
    stages = (0.0, baseline, rollouts + updates + validation, 0.0, other + final)
    return sum(stages[len(cell.parent.keys) if cell.parent else 0 : len(cell.keys)])


def as_text(plan: dict[str, Any]) -> str:
    """What a dry run prints."""
    arms = [f"{name}: {', '.join(f'{k} {v}' for k, v in own.items())}" for name, own in plan["arms"].items()]
    cells = [name for name in plan["make"] if not name.startswith("shared/")]
    shared = [f"{name} ({last})" for name, last in plan["make"].items() if name.startswith("shared/")]
    least, most = map(cost.hours, plan["range_hours"])
    lines = [
        plan["question"],
        *arms,
        f"against: {plan['against']}; seeds: {', '.join(map(str, plan['seeds']))}",
        f"made once: {', '.join(shared) or 'nothing'}",
        f"{len(cells)} cells to run, in this order: {', '.join(cells)}" if cells else "every cell is done",
        f"{cost.hours(plan['device_hours'])} device-hours [{least}, {most}]; rates: {plan['rates']}",
        "; ".join(f"{name} {plan['currency']}{amount:,.2f}" for name, amount in plan["money"].items()),
    ]
    wrapped = (textwrap.wrap(line, 110, subsequent_indent="  ", break_on_hyphens=False) for line in lines)
    return "\n".join(part for line in wrapped for part in line)
