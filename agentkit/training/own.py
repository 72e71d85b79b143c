"""What a lab file brings to a training: advantages, metric columns and alarms, checked when the lab opens
and guarded when they run.

An advantage that fails ends the training; a column or an alarm that fails is warned of and left out. Leaves
out those that ship (advantages, metrics, diagnostics); loads no torch.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, get_args

from agentkit.diagnostics.conditions import History, Numbers
from agentkit.diagnostics.rules import RULES, Rule
from agentkit.recipe import Advantage
from agentkit.records import RecipeError, Step
from agentkit.runs.labfile import blame, check_takes
from agentkit.tools.execution import settled


def estimators(own: Mapping[str, Any], path: Path) -> dict[str, Callable]:
    """A lab file's ``advantages``, functions (rewards, groups). Raises RecipeError."""
    places = {name: _place(path, "advantages", name, get_args(Advantage)) for name in own}
    return {name: _kept(_estimated, places[name], own[name], "rewards", "groups") for name in own}


def counts(own: Mapping[str, Any], path: Path) -> dict[str, Callable[[Step], float | None]]:
    """A lab file's ``columns``, functions (step) that give a number or None. Raises RecipeError."""
    return {name: _kept(_guarded, _place(path, "columns", name), own[name], "step") for name in own}


def rules(own: Mapping[str, Any], path: Path) -> tuple[Rule, ...]:
    """A lab file's ``alarms``, each (function (history), cause, advice). Raises RecipeError."""
    return tuple(_rule(name, entry, _place(path, "alarms", name, RULES)) for name, entry in own.items())


def _rule(name: str, entry: Any, place: str) -> Rule:
    function, *texts = entry if isinstance(entry, tuple | list) and len(entry) == 3 else (None,)
    try:
        cause, advice = texts
        cause.format(value=0.0), advice.format(value=0.0)
    except (AttributeError, KeyError, IndexError, ValueError):
        raise RecipeError(
            f"{place} is {str(entry):.80}: give (function, what is wrong, what to change), where the last "
            "two are texts that may hold {value}"
        ) from None
    holds = _kept(_held, place, function, "history")
    return Rule(name, holds, measure="", cause=cause, advice=advice, needs="")


def _place(path: Path, what: str, name: str, taken: tuple[str, ...] = ()) -> str:
    """How a sentence names an entry. Raises RecipeError for the name of one that ships."""
    place = f"{path}: {what}[{name!r}]"
    if name in taken:
        raise RecipeError(f"{place} has the name of one that ships with agentkit: give it another")
    return place


def _kept(guard: Callable, place: str, function: Any, *arguments: str) -> Callable:
    """A function behind its guard, with its name and docstring. Raises RecipeError if it takes other
    arguments.
    """
    check_takes(place, function, *arguments)
    return update_wrapper(partial(guard, place, function), function)


def _estimated(place: str, function: Callable, rewards: Any, groups: Any) -> Any:
    """Advantages (B,) of the scored trajectories, 0 of the others, which the function is not shown."""
    scored, values = ~rewards.isnan(), rewards.new_zeros(len(rewards))
    if not scored.any():
        return values
    try:
        given = settled(partial(function, rewards[scored], groups[scored]))
    except Exception as error:
        raise RecipeError(f"{place} failed: {blame(error)}") from error
    n = int(scored.sum())
    if type(given) is not type(rewards) or given.shape != (n,) or not given.isfinite().all():
        raise RecipeError(
            f"{place} must give a tensor of finite numbers, one for each of {n} rewards, such as "
            f"rewards - rewards.mean(); it gave {str(given):.80}"
        )
    values[scored] = given.to(values)
    return values


def _held(place: str, function: Callable, history: History) -> Numbers | None:
    value = _guarded(place, function, history)
    return None if value is None else {"value": value}


def _guarded(place: str, function: Callable, argument: Any) -> float | None:
    """The number that a function gives, None for None, NaN and False; None and a warning if it fails."""
    try:
        value = settled(partial(function, argument))
        is_false = "bool" in type(value).__name__ and not value  # numpy has one of its own
        return None if value is None or is_false or math.isnan(value) else float(value)
    except (Exception, SystemExit) as error:
        warnings.warn(f"{place} failed, and is left out: {blame(error):.200}", stacklevel=2)
        return None
