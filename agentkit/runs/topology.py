"""Which GPUs do what: everything in this process, or one process a GPU that rolls out and trains (colocate).

A choice with its reason, from what is visible and the recipe; and how long one process waits for the others.
Leaves out starting anything (training.launch), finding the cards (torch) and servers on other
cards, which the user starts.
"""

import math
import os
from dataclasses import dataclass
from typing import Any

from agentkit.recipe import Recipe, batch_rules, refuse
from agentkit.records import RecipeError

CARDS = "CUDA_VISIBLE_DEVICES"  # read by CUDA once, so it is set before a process looks for a GPU
SETTING_UP_S = 1800.0  # to load a model, start an engine, save a checkpoint


@dataclass(frozen=True, slots=True)
class Topology:
    """Who uses which card, by the names that CUDA_VISIBLE_DEVICES takes; no names on a CPU."""

    kind: str  # here or colocate
    processes: int = 1  # that train together
    cards: tuple[str, ...] = ()  # all that are used
    why: str = ""

    @property
    def workers(self) -> int:
        """Processes of a job that does not train: every card, or as many as train on a CPU."""
        return len(self.cards) or self.processes

    def __str__(self) -> str:
        n, cards = self.processes, self.cards[: self.processes]
        who = f"{n} processes train" if n > 1 else "1 process trains"
        where = f"GPU{'s' * (len(cards) > 1)} {', '.join(cards)}" if cards else "the CPU"
        return f"{self.kind}: {'this process works' if self.kind == 'here' else who} on {where}: {self.why}"


def visible(count: int) -> tuple[str, ...]:
    """Names of the first ``count`` cards that this process may use."""
    named = [name.strip() for name in os.environ.get(CARDS, "").split(",") if name.strip()]
    return tuple(named[:count] if len(named) >= count else map(str, range(count)))


def gpu_count(unsaid: int | None = None) -> int | None:
    """GPUs that CUDA_VISIBLE_DEVICES offers; ``unsaid`` where it is not set."""
    named = os.environ.get(CARDS)
    return unsaid if named is None else sum(name.strip() not in ("", "-1") for name in named.split(","))


def choose(recipe: Recipe, count: int, in_cells: bool = False) -> Topology:
    """The topology of a recipe where ``count`` GPUs are visible; ``in_cells``: of a notebook's own parts.

    vLLM is started once a process: preflight, training and each measurement have one of their own.

    Raises RecipeError where the recipe asks for what is not there.
    """
    if not recipe.can_train:
        return Topology("here", why="a stand-in computes nothing")
    cards = visible(_wanted(recipe, count))
    if recipe.engine == "unsloth" and len(cards) > 1:
        why = "Unsloth trains in one process on one card here, several were never tried"
        return Topology("colocate", 1, cards[:1], why)
    processes = _most(recipe, len(cards))
    if recipe.shard and processes == 1:
        raise RecipeError(
            "shard spreads a model over the processes that train, and there is one: set processes, or gpus, "
            "so that there are two at least, each with a GPU"
        )
    apart = recipe.engine in ("vllm", "unsloth") and not in_cells
    if processes == 1 and count <= 1 and not apart:
        return Topology("here", 1, cards, "one device does everything in turn")
    refuse(batch_rules(recipe.but(processes=processes)))
    why = "all cards roll out and then all train" if cards else f"processes: {processes} on the CPU"
    why = "each job has a process and an engine of its own" if processes == 1 and count <= 1 else why
    return Topology("colocate", processes, cards, why)


def _wanted(recipe: Recipe, count: int) -> int:
    """How many cards are used."""
    wanted = count if recipe.gpus == "auto" else int(recipe.gpus)
    if wanted > count:
        raise RecipeError(
            f"gpus is {wanted}, and {count} can be seen here (nvidia-smi and CUDA_VISIBLE_DEVICES tell): "
            "set gpus to auto or to a number that is there"
        )
    if wanted and "processes" in recipe.model_fields_set and recipe.processes > wanted:
        raise RecipeError(
            f"processes: {recipe.processes} need a GPU each, and {wanted} can be used here: lower it"
        )
    return wanted


def _most(recipe: Recipe, cards: int) -> int:
    """The largest number of processes that whole groups can be dealt to, or what the recipe says."""
    if "processes" in recipe.model_fields_set or not cards:
        return recipe.processes
    for n in range(cards, 1, -1):
        if not any(is_broken for is_broken, _ in batch_rules(recipe.but(processes=n))):
            return n
    return 1


def patience(recipe: Recipe) -> float:
    """Seconds that a process may wait for the others: all their trajectories may run into their limit."""
    test = math.ceil(0.15 * recipe.n_tasks) * recipe.test_samples
    most = max(recipe.prompts_per_step * recipe.group_size, recipe.val_tasks, test)
    return SETTING_UP_S + math.ceil(most / recipe.max_batch) * recipe.trajectory_timeout_s


def settled(recipe: Recipe, topology: Topology) -> dict[str, Any]:
    """The recipe that one of the processes works with."""
    return recipe.everything() | {"processes": topology.processes}
